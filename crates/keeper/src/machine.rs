//! The one door to the engine.

use crate::failure::Failure;
use crate::guest::{Guest, Held};
use branchbox_engine::{CallHistory, CaptureError, CaptureRequest, Captured, GuestLink, RestoreRequest, Restored};
use branchbox_protocol::keeper::{KeeperConfig, Note};
use std::os::fd::BorrowedFd;
use std::path::Path;

impl GuestLink for Guest {
    fn rebuild(&mut self, plan: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, String> {
        Guest::rebuild(self, plan, fds).map_err(|failure| failure.to_string())
    }
}

/// Saves the processes of a sandbox whose guest is held.
///
/// # Errors
/// The engine's; the source runs on.
pub fn capture(
    config: &KeeperConfig,
    guest_pid: i32,
    cgroup_work: &Path,
    held: Held,
    history: &mut CallHistory,
    image: &Path,
    layer: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Captured, CaptureError> {
    let request = CaptureRequest {
        guest_pid,
        cgroup_work,
        guest_state: held.state,
        guest_fds: held.fds,
        last_pid: held.last_pid,
        image,
        root: &config.root,
    };
    branchbox_engine::capture(&request, history, layer)
}

/// Makes the saved processes again below a fresh guest; they run once the result is released.
///
/// # Errors
/// [`Failure`]; the half-made sandbox is of no use then.
pub fn restore(
    config: &KeeperConfig,
    guest_pid: i32,
    cgroup_work: &Path,
    image: &Path,
    guest: &mut Guest,
) -> Result<Restored, Failure> {
    let request = RestoreRequest { guest_pid, cgroup_work, image, root: &config.root };
    branchbox_engine::restore(&request, guest).map_err(Failure::from)
}

/// Puts right what a keeper that died during a capture left.
///
/// # Errors
/// [`Failure`].
pub fn recover(cgroup_work: &Path) -> Result<(), Failure> {
    branchbox_engine::recover(cgroup_work).map_err(Failure::from)
}

/// Notes as they travel.
pub fn notes(notes: Vec<branchbox_snapshot::Note>) -> Vec<Note> {
    notes.into_iter().map(|note| Note { kind: note.kind, pid: note.pid, detail: note.detail }).collect()
}
