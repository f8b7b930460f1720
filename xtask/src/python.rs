//! The Python environments of the suites: one per list of packages, pinned, below `target/`.
//!
//! Most suites need the SDK alone. That of the agent frameworks needs a few hundred megabytes more, and a newer Python
//! where there is one.

use crate::run::{command, output, root, show};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// The system's own interpreter: one from a version manager may not be usable by another user.
const PYTHON: &str = "/usr/bin/python3";

/// Newer interpreters, best first: Harbor, one of the agent frameworks, runs on no older one.
const NEWER: &[&str] = &["3.12", "3.13"];

/// The interpreter that runs a suite.
pub fn of(suite: &str) -> PathBuf {
    match suite {
        "adapters" => ADAPTERS.python(),
        "contract" => CONTRACT.python(),
        _ => SDK.python(),
    }
}

/// A Python environment below `target/` and the list of what is in it.
struct Environment {
    folder: &'static str,
    list: &'static str,
}

/// The SDK alone.
const SDK: Environment = Environment { folder: "target/test-python", list: "tests/requirements.txt" };
/// The SDK with the agent frameworks it has adapters for.
const ADAPTERS: Environment = Environment { folder: "target/adapters-python", list: "tests/adapters/requirements.txt" };

/// What checks the API document against a node.
const CONTRACT: Environment = Environment { folder: "target/contract-python", list: "tests/contract/requirements.txt" };

/// Makes all environments when they are not there or when their lists changed.
pub fn install() -> Result<()> {
    SDK.install(Path::new(PYTHON))?;
    CONTRACT.install(Path::new(PYTHON))?;
    ADAPTERS.install(&newest())
}

/// Whether the system's own interpreter is there.
pub fn is_there() -> bool {
    Path::new(PYTHON).is_file()
}

/// Whether it can make environments.
pub fn is_whole() -> bool {
    can_make_environments(Path::new(PYTHON))
}

fn can_make_environments(python: &Path) -> bool {
    output(&mut command(&python.to_string_lossy(), &["-c", "import venv, ensurepip"])).is_ok()
}

/// One that can make environments, from the path or from pyenv; else the system's own.
fn newest() -> PathBuf {
    let pyenv = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv")));
    let held = pyenv.and_then(|root| fs_err::read_dir(root.join("versions")).ok());
    let mut held: Vec<PathBuf> = held.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    held.sort();
    let of = |wanted: &&str| {
        let named = PathBuf::from(format!("python{wanted}"));
        let held = held.iter().filter(|path| is_release(path, wanted));
        let held = held.map(|path| path.join("bin/python3"));
        std::iter::once(named).chain(held).find(|python| can_make_environments(python))
    };
    NEWER.iter().find_map(of).unwrap_or_else(|| PYTHON.into())
}

/// Whether the folder is of a release of `wanted`: `3.12.1` of `3.12`.
fn is_release(folder: &Path, wanted: &str) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{wanted}.")))
}

impl Environment {
    fn python(&self) -> PathBuf {
        root().join(self.folder).join("bin/python")
    }

    /// Makes it when it is not there, when its list changed, or when its interpreter is gone.
    fn install(&self, interpreter: &Path) -> Result<()> {
        let wanted = fs_err::read_to_string(root().join(self.list))?;
        let folder = root().join(self.folder);
        let stamp = folder.join("installed.txt");
        if self.python().is_file() && fs_err::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        if folder.exists() {
            fs_err::remove_dir_all(&folder)?;
        }
        show(command(&interpreter.to_string_lossy(), &["-m", "venv"]).arg(&folder))?;
        let python = self.python();
        let pip = |words: &[&str]| show(command(&python.to_string_lossy(), &["-m", "pip"]).args(words));
        pip(&["install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", self.list])?;
        pip(&["--disable-pip-version-check", "check"])?;
        Ok(fs_err::write(stamp, wanted)?)
    }
}
