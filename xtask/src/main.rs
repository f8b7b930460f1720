//! Repository chores: `cargo xtask test`, `check`, `tidy`, `docs`, `bench`.
//!
//! Everything that continuous integration runs is here, in Rust, so that it runs the same on every machine.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program talks to a person")]

mod bench;
mod cargo;
mod leaks;
mod pytest;
mod python;
mod report;
mod run;
mod test;
mod tidy;
mod tools;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Chores of this repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the tests need, then run everything that CI runs
    Test {
        /// Run only this part (may be given more than once)
        #[arg(long = "only", value_enum)]
        only: Vec<test::Part>,
        /// Hand this to pytest, for example a test's file or `-k name`
        #[arg(long = "pytest", allow_hyphen_values = true)]
        pytest: Vec<String>,
    },
    /// Run the quick part: format, tidy, lints, unit tests
    Check,
    /// Check the crates' arrows, docs, safety comments and leftovers
    Tidy,
    /// Write the generated documents
    Docs,
    /// Measure, with floor primitives beside each row
    Bench {
        /// Words for the benchmark program, for example `--rows fork,exec`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Test { only, pytest } => test::run(&only, &pytest),
        Chore::Check => test::run(test::QUICK, &[]),
        Chore::Tidy => tidy::run().map(|notes| println!("tidy: {notes}")),
        Chore::Docs => tidy::write_documents(),
        Chore::Bench { words } => bench::run(&words),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
