//! The parts that cargo runs: format, lints, the build, the crates' tests.

use crate::report::Skips;
use crate::run::{command, have, root, show, show_and_keep};
use anyhow::{Result, ensure};
use branchbox_testkit::needs::MUST_RUN;
use std::path::PathBuf;

/// The target that `.cargo/config.toml` names; binaries lie below it.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The program that the end-to-end suites test.
pub fn binary() -> PathBuf {
    root().join("target").join(TARGET).join("debug/branchbox")
}

/// `cargo fmt --check`.
pub fn format() -> Result<String> {
    show(&mut command("cargo", &["fmt", "--all", "--check"]))?;
    Ok("every file is formatted".into())
}

/// Clippy on everything, warnings are errors.
pub fn lint() -> Result<String> {
    let everything = ["--workspace", "--all-targets"].as_slice();
    // Fault points are another build of the same crates.
    let with_faults = ["-p", "branchbox-keeper", "--features", "faults", "--test", "faults"].as_slice();
    for chosen in [everything, with_faults] {
        let words = [&["clippy"], chosen, &["--locked", "--", "-D", "warnings"]].concat();
        show(&mut command("cargo", &words))?;
    }
    Ok("no warnings".into())
}

/// The program and the benchmark, unoptimised.
pub fn build() -> Result<String> {
    show(&mut command("cargo", &["build", "--locked", "-p", "branchbox", "-p", "branchbox-bench"]))?;
    Ok(format!("{}", binary().strip_prefix(root()).unwrap_or(&binary()).display()))
}

/// Unit and integration tests of every crate: a process per test where nextest is there.
pub fn tests(skips: &mut Skips) -> Result<String> {
    let words: &[&str] = if have("cargo-nextest") {
        &["nextest", "run", "--workspace", "--locked", "--no-fail-fast", "--color", "never"]
    } else {
        &["test", "--workspace", "--locked", "--no-fail-fast"]
    };
    let mut tests = command("cargo", words);
    tests.env(MUST_RUN, "1").env("BRANCHBOX_BIN", binary());
    let (passed, lines) = show_and_keep(&mut tests)?;
    let closing = lines.iter().rev().find(|line| line.contains(" tests run: "));
    ensure!(passed, "{}", closing.map_or("tests failed", |line| line.trim()));
    let closing = closing.map_or("all passed", |line| line.trim()).to_owned();
    if let Some(count) = skipped_in(&closing) {
        ensure!(count == 0, "{count} tests were skipped that could have run: {closing}");
    } else {
        skips.add("cargo-nextest is not installed: tests of one crate shared a process");
    }
    Ok(closing)
}

/// The keeper with fault points, which is another build of it than the product's.
pub fn faults() -> Result<String> {
    let words = ["test", "-p", "branchbox-keeper", "--features", "faults", "--test", "faults", "--locked"];
    let mut tests = command("cargo", &words);
    show(tests.env(MUST_RUN, "1"))?;
    Ok("every fault point was passed".into())
}

/// The number before ` skipped` in nextest's last line.
fn skipped_in(line: &str) -> Option<u32> {
    let before = line.split(" skipped").next()?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::skipped_in;

    #[test]
    fn nextest_says_how_many_it_skipped() {
        assert_eq!(skipped_in("Summary [   0.4s] 12 tests run: 12 passed, 3 skipped"), Some(3));
        assert_eq!(skipped_in("all passed"), None);
    }
}
