//! The command line: one file per command, all of them clients of the API.
//!
//! Data goes to standard output and everything else to standard error; colours only where somebody looks; every way to
//! end is an [`Exit`]. Only two commands touch more than the client: `serve` runs a node for good, and `try` runs one
//! in its own process for as long as the step takes.
//!
//! Deliberately not here: what a sandbox is, and how one is made. That is the node's.

mod absent;
mod args;
mod attempt;
mod commands;
mod connect;
mod exit;
mod fault;
mod output;
mod progress;
mod reference;
mod resolve;
mod signals;
mod table;
mod terminal;
mod text;

pub use exit::Exit;
pub use fault::Fault;

use clap::Parser as _;
use std::path::Path;
use std::process::ExitCode;

/// Runs the command line of this process and says how it ended.
#[must_use]
pub fn main() -> ExitCode {
    let words = words();
    match args::Cli::try_parse_from(&words) {
        Ok(cli) => commands::run(cli).into(),
        Err(error) => match absent::explain(&error) {
            Some(fault) => {
                output::fault(output::Form::of(absent::wants_json(&words)), &fault);
                fault.exit().into()
            }
            None => usage(&error).into(),
        },
    }
}

/// The words of this process. Under the name of the Runtime command line the words of that one: there the products may be
/// said in the singular, also where a flat verb of ours has that word.
fn words() -> Vec<std::ffi::OsString> {
    let mut words: Vec<_> = std::env::args_os().collect();
    let is_runtime =
        words.first().is_some_and(|name| Path::new(name).file_name().is_some_and(|name| name == "runtime"));
    if let (true, Some(word)) = (is_runtime, words.get_mut(1))
        && word == "snapshot"
    {
        *word = "snapshots".into();
    }
    words
}

/// Prints help (to standard output, successfully) or what is wrong with the words.
fn usage(error: &clap::Error) -> Exit {
    // A closed standard output is nobody's failure here.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Done }
}
