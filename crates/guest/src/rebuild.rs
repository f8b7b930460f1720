//! The one door to the engine: building a saved machine's objects and processes.
//!
//! Runs to its end before anything else is served: between its first process and its last, this process's children and
//! descriptors belong to the engine. The processes it makes are children of the guest and are reaped by it after the seal.

use branchbox_protocol::FrameError;
use branchbox_protocol::guest::GuestError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Runs the plan in the first descriptor, a memory file, with the other descriptors; gives the answer as a memory file.
///
/// # Errors
/// [`GuestError::Rebuild`] with the engine's reason; the sandbox is of no use then.
pub fn rebuild(
    mut fds: Vec<OwnedFd>,
    cgroup: BorrowedFd<'_>,
    last_pid: Option<&OwnedFd>,
) -> Result<OwnedFd, GuestError> {
    let unreadable = |error: FrameError| GuestError::Rebuild(error.to_string());
    if fds.is_empty() {
        return Err(GuestError::BadCall("a rebuild without a plan".into()));
    }
    let file = fds.remove(0);
    let plan = branchbox_protocol::read_memory_file(&file).map_err(unreadable)?;
    drop(file);
    let Some(last_pid) = last_pid else {
        return Err(GuestError::Rebuild("this guest was started without ns_last_pid".into()));
    };
    let context = branchbox_engine::rebuild::Context { cgroup, last_pid: last_pid.as_fd() };
    let answer = branchbox_engine::rebuild::run(&plan, fds, &context).map_err(GuestError::Rebuild)?;
    branchbox_protocol::memory_file(&answer).map_err(unreadable)
}
