//! Programs that tests run and that are not installed on the machine: unpacked below `target/` by the test command.

use std::path::{Path, PathBuf};

/// Where packages are unpacked.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-tools")
}

/// A program, from the path if it is installed, else from [`directory`].
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let unpacked = ["usr/bin", "usr/sbin", "bin"].map(|below| directory().join(below));
    installed.into_iter().chain(unpacked).map(|directory| directory.join(program)).find(|file| file.is_file())
}
