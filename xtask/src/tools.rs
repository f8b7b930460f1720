//! What the tests need on a machine with nothing installed by hand.
//!
//! System packages come from apt, only those that are missing. A package that would start a
//! service is unpacked below `target/`, where the Python environments are too ([`python`]).

use crate::python;
use crate::run::{command, have, show};
use anyhow::{Context, Result, ensure};
use branchbox_testkit::tools;

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
    ("debootstrap", "debootstrap"),
    ("qemu-img", "qemu-utils"),
];
/// As above, for packages that would start a service or stand in the way of another: their files are unpacked and nothing
/// is installed.
const UNPACKED: &[(&str, &str)] = &[("docker-registry", "docker-registry"), ("busybox", "busybox-static")];

/// Installs what is missing.
pub fn install() -> Result<String> {
    let mut missing: Vec<&str> = PACKAGES.iter().filter(|(program, _)| !have(program)).map(|(_, name)| *name).collect();
    if !python::is_there() {
        missing.push("python3");
    }
    if !python::is_whole() {
        missing.push("python3-venv");
    }
    missing.dedup();
    install_packages(&missing)?;
    for (_, package) in UNPACKED.iter().filter(|(program, _)| tools::find(program).is_none()) {
        unpack_package(package)?;
        missing.push(package);
    }
    python::install()?;
    let note =
        if missing.is_empty() { "nothing was missing".into() } else { format!("installed {}", missing.join(" ")) };
    Ok(note)
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
