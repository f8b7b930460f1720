//! The one door to the engine.

use crate::failure::Failure;
use crate::guest::{Guest, Held};
use branchbox_engine::{
    CallHistory, CaptureError, CaptureRequest, Captured, GuestLink, Held as Stood, RestoreRequest, Restored, Saved,
};
use branchbox_protocol::keeper::{CaptureReport, KeeperConfig, Note};
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
    branchbox_engine::capture(&request(config, guest_pid, cgroup_work, held, image), history, layer)
}

/// Saves the processes of a sandbox whose guest is held, and keeps them standing still.
///
/// # Errors
/// The engine's; the source runs on.
pub fn capture_and_hold(
    config: &KeeperConfig,
    guest_pid: i32,
    cgroup_work: &Path,
    held: Held,
    history: &mut CallHistory,
    image: &Path,
) -> Result<(Captured, Stood), CaptureError> {
    branchbox_engine::capture_and_hold(&request(config, guest_pid, cgroup_work, held, image), history)
}

fn request<'a>(
    config: &'a KeeperConfig,
    guest_pid: i32,
    cgroup_work: &'a Path,
    held: Held,
    image: &'a Path,
) -> CaptureRequest<'a> {
    CaptureRequest {
        guest_pid,
        cgroup_work,
        guest_state: held.state,
        guest_fds: held.fds,
        last_pid: held.last_pid,
        image,
        root: &config.root,
        boot_id: &config.boot_id,
    }
}

/// What a capture was, as it travels.
pub fn report(captured: Captured, total_us: u64) -> CaptureReport {
    CaptureReport {
        pause_us: captured.pause_us,
        total_us,
        memory_bytes: captured.memory_bytes,
        record_bytes: captured.record_bytes,
        processes: captured.processes,
        threads: captured.threads,
        notes: notes(captured.notes),
    }
}

/// Makes the saved processes again below a fresh guest; they run once the result is released.
///
/// # Errors
/// [`Failure`]; the half-made sandbox is of no use then.
pub fn restore(
    config: &KeeperConfig,
    guest_pid: i32,
    cgroup_work: &Path,
    saved: Saved,
    guest: &mut Guest,
) -> Result<Restored, Failure> {
    let request = RestoreRequest { guest_pid, cgroup_work, root: &config.root };
    branchbox_engine::restore(&request, saved, guest).map_err(Failure::from)
}

/// Opens what a sandbox is to be restored from.
///
/// # Errors
/// [`Failure`]: damaged, of another kernel, or on another image.
pub fn open(config: &KeeperConfig, image: &Path) -> Result<Saved, Failure> {
    Saved::open(image, &config.root, &config.boot_id).map_err(Failure::from)
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
