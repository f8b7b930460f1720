//! What the tests need on a machine with nothing installed by hand.
//!
//! System packages come from apt, only those that are missing. Python packages are pinned in `tests/requirements.txt`
//! and live in an environment of their own below `target/`. A package that would start a service is unpacked there too.

use crate::run::{command, have, output, root, show};
use anyhow::{Context, Result, ensure};
use branchbox_testkit::tools;
use std::path::{Path, PathBuf};

/// A program that tests run, and the package that brings it.
const PACKAGES: &[(&str, &str)] = &[
    ("python3", "python3"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("git", "git"),
    ("make", "make"),
    ("sqlite3", "sqlite3"),
    ("ip", "iproute2"),
    ("ps", "procps"),
    ("setpriv", "util-linux"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("openssl", "openssl"),
];
/// As above, for packages that would start a service: their files are unpacked and nothing is installed.
const UNPACKED: &[(&str, &str)] = &[("docker-registry", "docker-registry")];
/// The system's own interpreter: one from a version manager may not be usable by another user.
const PYTHON: &str = "/usr/bin/python3";

/// The environment's interpreter.
pub fn python() -> PathBuf {
    environment().join("bin/python")
}

/// Installs what is missing.
pub fn install() -> Result<String> {
    let mut missing: Vec<&str> = PACKAGES.iter().filter(|(program, _)| !have(program)).map(|(_, name)| *name).collect();
    if !Path::new(PYTHON).is_file() {
        missing.push("python3");
    }
    if !can_make_environments() {
        missing.push("python3-venv");
    }
    missing.dedup();
    install_packages(&missing)?;
    for (_, package) in UNPACKED.iter().filter(|(program, _)| tools::find(program).is_none()) {
        unpack_package(package)?;
        missing.push(package);
    }
    install_python()?;
    let note =
        if missing.is_empty() { "nothing was missing".into() } else { format!("installed {}", missing.join(" ")) };
    Ok(note)
}

fn can_make_environments() -> bool {
    output(&mut command(PYTHON, &["-c", "import venv, ensurepip"])).is_ok()
}

fn install_packages(names: &[&str]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    ensure!(have("apt-get"), "missing: {}; install them and run this again", names.join(" "));
    show(&mut command("apt-get", &["-q", "update"]))?;
    let mut install = command("apt-get", &["-q", "install", "-y", "--no-install-recommends"]);
    show(install.args(names).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Puts a package's files below [`tools::directory`], and runs none of its scripts.
fn unpack_package(name: &str) -> Result<()> {
    ensure!(have("apt-get") && have("dpkg-deb"), "missing: {name}; install it and run this again");
    let scratch = tempfile::tempdir()?;
    show(&mut command("apt-get", &["-q", "update"]))?;
    show(command("apt-get", &["-q", "download", name]).current_dir(scratch.path()))?;
    let file = fs_err::read_dir(scratch.path())?.next().context("apt-get downloaded nothing")??.path();
    fs_err::create_dir_all(tools::directory())?;
    show(command("dpkg-deb", &["--extract"]).arg(file).arg(tools::directory()))
}

/// Makes the environment when it is not there or when its list changed.
fn install_python() -> Result<()> {
    let wanted = fs_err::read_to_string(root().join("tests/requirements.txt"))?;
    let stamp = environment().join("installed.txt");
    if fs_err::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    if environment().exists() {
        fs_err::remove_dir_all(environment())?;
    }
    show(command(PYTHON, &["-m", "venv"]).arg(environment()))?;
    let words =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", "tests/requirements.txt"];
    show(&mut command(&python().to_string_lossy(), &words))?;
    show(&mut command(&python().to_string_lossy(), &["-m", "pip", "--disable-pip-version-check", "check"]))?;
    Ok(fs_err::write(stamp, wanted)?)
}

fn environment() -> PathBuf {
    root().join("target/test-python")
}
