//! `cargo xtask test`: the parts, in the order in which they run.
//!
//! A part that fails does not keep the next ones from running, except that nothing can run without a build. The
//! command fails when a part fails, and when something was skipped that this machine could have run.

use crate::report::Report;
use crate::{cargo, leaks, pytest, tidy, tools};
use anyhow::{Result, bail};
use clap::ValueEnum;

/// A part of the test command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Part {
    /// Packages, the Python environment
    Tools,
    /// `cargo fmt --check`
    Format,
    /// Arrows, docs, safety comments, leftovers
    Tidy,
    /// Clippy without warnings
    Lint,
    /// The program itself
    Build,
    /// Unit and integration tests of all crates
    Rust,
    /// A keeper that dies or fails at every step of a capture and a restore
    Faults,
    /// The real SDK's programs, against a live node
    Sdk,
    /// The API document, against a live node
    Contract,
    /// The SDK's adapters, each with the agent framework it is for
    Adapters,
    /// The node: crashes, bad input, state directories
    Node,
    /// The command line, `try` among it
    Cli,
    /// What was left behind on the machine
    Leaks,
}

/// What `cargo xtask check` runs.
pub const QUICK: &[Part] = &[Part::Format, Part::Tidy, Part::Lint, Part::Rust];

/// Runs the parts asked for, or all of them.
pub fn run(only: &[Part], words: &[String]) -> Result<()> {
    let mut report = Report::new();
    let before = leaks::look()?;
    for part in Part::value_variants() {
        if !only.is_empty() && !only.contains(part) {
            continue;
        }
        match part {
            Part::Tools => report.part("tools", |_| tools::install()),
            Part::Format => report.part("format", |_| cargo::format()),
            Part::Tidy => report.part("tidy", |_| tidy::run()),
            Part::Lint => report.part("lint", |_| cargo::lint()),
            Part::Build if !report.part("build", |_| cargo::build()) => {
                report.left_out("everything after the build", "there is no program to test");
                break;
            }
            Part::Build => true,
            Part::Rust => report.part("rust", cargo::tests),
            Part::Faults => report.part("faults", |_| cargo::faults()),
            Part::Sdk => report.part("sdk", |skips| pytest::suite("sdk", words, skips)),
            Part::Contract => report.part("contract", |skips| pytest::suite("contract", words, skips)),
            Part::Adapters => report.part("adapters", |skips| pytest::suite("adapters", words, skips)),
            Part::Node => report.part("node", |skips| pytest::suite("node", words, skips)),
            Part::Cli => report.part("cli", |skips| pytest::suite("cli", words, skips)),
            Part::Leaks => report.part("leaks", |_| leaks::compare(&before)),
        };
    }
    let failed = report.close();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}
