//! The guest as process 1 of a real pid namespace with a file tree of its own, driven through its socket.
//!
//! Needs root, a version 2 cgroup mount, and `unshare` and `nsenter` of util-linux.
#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a test program")]

mod commands;
mod ends;
mod files;
mod harness;
mod holding;
mod inside;
mod peers;

use branchbox_testkit::harness::{Test, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = inside::run_mode() {
        return code;
    }
    run(&[commands::TESTS, ends::TESTS, files::TESTS, holding::TESTS, peers::TESTS].concat())
}
