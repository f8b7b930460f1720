//! What a test needs from the machine, and skips that nobody overlooks.
//!
//! A test that cannot run here says so with [`or_skip`]. Under the repository's test command, which sets
//! [`MUST_RUN`], such a skip is a failure: the command installs what the tests need, so nothing may be missing.

/// Set by the test command: a need that is not met fails the test.
pub const MUST_RUN: &str = "BRANCHBOX_TESTS_MUST_RUN";

/// Whether the test runs as root of the machine.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns whether the need is met; prints the skip when it is not.
///
/// # Panics
/// When it is not met and [`MUST_RUN`] is set.
#[must_use]
#[expect(clippy::print_stderr, reason = "a skip must be seen in the test's output")]
pub fn or_skip(met: bool, need: &str) -> bool {
    if met {
        return true;
    }
    assert!(std::env::var_os(MUST_RUN).is_none(), "needs {need}, which the test command provides");
    eprintln!("SKIPPED: needs {need}");
    false
}
