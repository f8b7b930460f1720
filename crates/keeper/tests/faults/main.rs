//! The first hazard: a keeper that dies, or fails, at any step harms no source and leaves nothing half made.
//!
//! Built with the engine's fault points, which no product build has. This program is also the keeper and the guest, by the
//! name it is started under. A sandbox runs programs that check themselves (`programs.c`); the tests go over every fault
//! point that a capture or a restore passes, and look from outside at every process after each.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test program reports to its caller and fails by panicking"
)]

mod captures;
mod pauses;
mod restores;
#[expect(dead_code, reason = "a part of it serves the other tests alone")]
#[path = "../it/state.rs"]
mod state;
mod watch;
mod world;

use branchbox_testkit::harness::{self, Test};
use std::path::Path;
use std::process::ExitCode;

const TESTS: &[Test] = &[
    ("a_keeper_killed_at_any_step_of_a_capture_harms_no_source", captures::killed),
    ("a_keeper_killed_between_steps_of_a_capture_harms_no_source", captures::killed_between_points),
    ("a_keeper_killed_while_it_takes_over_harms_no_source", captures::killed_while_taking_over),
    ("a_capture_that_fails_at_any_step_harms_no_source", captures::failing),
    ("debuggers_and_vfork_inside_do_not_keep_a_keeper_from_taking_over", captures::hindered),
    ("a_pause_that_fails_at_any_step_harms_no_source", pauses::failing),
    ("a_keeper_killed_at_any_step_of_a_pause_harms_no_source", pauses::killed),
    ("a_restore_that_fails_at_any_step_leaves_nothing", restores::failing),
    ("a_keeper_killed_at_any_step_of_a_restore_leaves_nothing", restores::killed),
];

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("branchbox-keeper") => branchbox_keeper::main(),
        Some("branchbox-guest") => branchbox_guest::main(),
        Some(name) => {
            let arguments: Vec<_> = std::env::args_os().skip(1).collect();
            branchbox_guest::tools::run(name, &arguments).unwrap_or_else(|| harness::run(TESTS))
        }
        None => harness::run(TESTS),
    }
}
