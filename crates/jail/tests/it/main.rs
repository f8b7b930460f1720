//! Rooms made for real, as root. Not the usual test harness: a room can be made only by a process with one thread, and this
//! program is its own guest (it is static, so it runs in any tree).

#![expect(clippy::unwrap_used, reason = "a test program fails by panicking")]

mod cgroups;
mod checks;
mod guest;
mod room;
mod rooms;

use branchbox_testkit::harness::{self, Test};
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    if name == branchbox_jail::spawn::GUEST_NAME {
        guest::run();
    }
    harness::run(&[rooms::TESTS, cgroups::TESTS, checks::TESTS].concat())
}
