//! Who works on a sandbox and what runs in it: the lock, and `keeper-run.json`.
//!
//! The record lets a later keeper find process 1 again. A pid alone is not enough (numbers are used again), so it carries
//! the start time and the boot. It exists only while a sealed guest runs.

use crate::failure::Failure;
use branchbox_model::Code;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Largest record believed.
const RECORD_BYTES_MAX: u64 = 4096;
const LOCK: &str = "keeper.lock";
const RECORD: &str = "keeper-run.json";

/// What runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Process 1 as the host sees it.
    pub guest_pid: i32,
    /// Its start, in clock ticks since the boot.
    pub guest_start: u64,
    /// The boot it belongs to.
    pub boot_id: String,
    /// The keeper that wrote this.
    pub keeper_pid: u32,
}

impl RunRecord {
    /// A record of a process that runs now.
    ///
    /// # Errors
    /// [`Failure`] when it does not.
    pub fn of(guest_pid: i32) -> Result<Self, Failure> {
        let gone = || Failure::new(Code::GuestFailed, "the sandbox's first process has ended");
        let guest_start = start_time(guest_pid).ok_or_else(gone)?;
        let boot_id =
            boot_id().ok_or_else(|| Failure::new(Code::InternalError, "the host does not tell its boot id"))?;
        Ok(Self { guest_pid, guest_start, boot_id, keeper_pid: std::process::id() })
    }

    /// Whether that very process still runs.
    pub fn is_alive(&self) -> bool {
        boot_id().as_ref() == Some(&self.boot_id) && start_time(self.guest_pid) == Some(self.guest_start)
    }

    /// Writes the record, whole or not at all.
    ///
    /// # Errors
    /// [`Failure`] naming the path.
    pub fn write(&self, sandbox_dir: &Path) -> Result<(), Failure> {
        let (path, new) = (sandbox_dir.join(RECORD), sandbox_dir.join(format!("{RECORD}.new")));
        let failed = |e: std::io::Error| Failure::io(format_args!("write {}", path.display()), e);
        let text = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(&text).and_then(|()| std::fs::rename(&new, &path)).map_err(failed)
    }

    /// The record of an earlier keeper, if there is one that can be read.
    pub fn read(sandbox_dir: &Path) -> Option<Self> {
        let mut text = Vec::new();
        File::open(sandbox_dir.join(RECORD)).ok()?.take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Removes the record.
    pub fn remove(sandbox_dir: &Path) {
        let path = sandbox_dir.join(RECORD);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {error}", path.display())
            }
            _ => {}
        }
    }
}

/// How long the keeper before this one may take to be gone: it says that it is done a little before its process ends.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Between two looks.
const LOCK_POLL: Duration = Duration::from_millis(1);

/// Takes the sandbox for this keeper, waiting this long for the one before; held until the file is dropped.
///
/// # Errors
/// [`Failure`] when another keeper has it.
pub fn lock(sandbox_dir: &Path, wait: Duration) -> Result<File, Failure> {
    let path = sandbox_dir.join(LOCK);
    let file = File::create(&path).map_err(|e| Failure::io(format_args!("make {}", path.display()), e))?;
    let deadline = Instant::now() + wait;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Failure::new(Code::Busy, "another keeper works on this sandbox"));
            }
            Err(errno) => return Err(Failure::io(format_args!("lock {}", path.display()), errno.into())),
        }
    }
}

fn boot_id() -> Option<String> {
    Some(std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

/// Field 22 of `/proc/<pid>/stat`, of a process that is not a zombie; the name before it may hold anything.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_its_process_from_another_of_the_same_number() {
        let own = RunRecord::of(std::process::id().cast_signed()).expect("running");
        assert!(own.is_alive());
        assert!(!RunRecord { guest_start: own.guest_start + 1, ..own.clone() }.is_alive());
        assert!(!RunRecord { boot_id: "another".into(), ..own }.is_alive());
    }

    #[test]
    fn two_locks_on_one_directory_are_refused() {
        let directory = std::env::temp_dir().join(format!("bbx-keeper-lock-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("create");
        let first = lock(&directory, Duration::ZERO).expect("first");
        assert_eq!(lock(&directory, Duration::ZERO).expect_err("second").code(), Code::Busy);
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(first);
        });
        lock(&directory, LOCK_WAIT).expect("one that waits");
        ending.join().expect("joined");
        std::fs::remove_dir_all(&directory).expect("remove");
    }
}
