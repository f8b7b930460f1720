//! `cargo xtask bench`: builds the optimised program and the benchmark, and runs the one against the other.

use crate::run::{command, root, show};
use anyhow::Result;

/// Runs the benchmark program; its words are handed on.
pub fn run(words: &[String]) -> Result<()> {
    show(&mut command("cargo", &["build", "--release", "--locked", "-p", "branchbox", "-p", "branchbox-bench"]))?;
    let release = root().join("target/x86_64-unknown-linux-gnu/release");
    let mut bench = command(&release.join("branchbox-bench").to_string_lossy(), &[]);
    bench.args(words).env("BRANCHBOX_BIN", release.join("branchbox"));
    show(&mut bench)
}
