//! Keepers run for real, as root, as the node runs them. Not the usual test harness: this program is also the keeper and
//! the guest, by the name it is started under, as the product's one binary is.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program fails by panicking and tells its figures"
)]

mod lives;
mod pauses;
mod processes;
mod state;

use branchbox_testkit::harness;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("branchbox-keeper") => return branchbox_keeper::main(),
        Some("branchbox-guest") => return branchbox_guest::main(),
        Some(name) => {
            let arguments: Vec<_> = std::env::args_os().skip(1).collect();
            if let Some(code) = branchbox_guest::tools::run(name, &arguments) {
                return code;
            }
        }
        None => {}
    }
    harness::run(&[lives::TESTS, pauses::TESTS, processes::TESTS].concat())
}
