//! From exec to the loop: the inherited descriptors and the process-wide settings.
//!
//! Contract with the jail: 0, 1 and 2 are open, 3 is the listening socket, 4 the cgroup directory `work`, 5 a writable
//! `ns_last_pid` (needed for a restore only).

use crate::server::{ServeError, Setup, serve};
use branchbox_sys::{heap, inherited};
use std::io::Write;
use std::os::fd::RawFd;
use std::process::ExitCode;

const LISTENER_FD: RawFd = 3;
const CGROUP_FD: RawFd = 4;
const LAST_PID_FD: RawFd = 5;

/// Runs process 1 of a sandbox. Returns only when it cannot go on, which ends the sandbox.
#[must_use]
pub fn main() -> ExitCode {
    heap::stay_small();
    let Err(error) = inherit().and_then(serve);
    let mut text = format!("branchbox-guest: {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    // Nobody may be listening, and there is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::FAILURE
}

fn inherit() -> Result<Setup, ServeError> {
    let take = |fd, what| inherited::take(fd).map_err(|source| ServeError::Descriptor { what, fd, source });
    Ok(Setup {
        listener: take(LISTENER_FD, "listening socket")?,
        cgroup: take(CGROUP_FD, "cgroup directory")?,
        last_pid: inherited::take(LAST_PID_FD).ok(),
    })
}
