//! Ending a sandbox so that nothing of it is left running, mounted or named.

use crate::failure::Failure;
use crate::listen;
use crate::record::RunRecord;
use crate::start::Live;
use branchbox_protocol::keeper::{KeeperConfig, Usage};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Tries to remove a directory that another keeper may be removing too.
const REMOVE_TRIES: u32 = 20;
/// Between two tries.
const REMOVE_PAUSE: Duration = Duration::from_millis(50);

/// What the sandbox has used.
pub fn usage(live: &Live) -> Usage {
    let used = live.cgroup.usage();
    Usage {
        cpu_us: used.cpu_us,
        memory_bytes: used.memory_bytes,
        memory_peak_bytes: used.memory_peak_bytes,
        pids: used.pids,
        oom_kills: used.oom_kills,
    }
}

/// Ends every process of the sandbox and removes what was made for it. The answer is what it used.
///
/// # Errors
/// [`Failure`] when something would not go; the rest is gone then.
pub fn end(config: &KeeperConfig, live: &Live) -> Result<Usage, Failure> {
    let used = usage(live);
    live.jail.kill_and_reap();
    let removed = live.cgroup.remove();
    forget(config);
    removed?;
    tracing::info!(cpu_us = used.cpu_us, memory_peak_bytes = used.memory_peak_bytes, "ended");
    Ok(used)
}

/// Removes the names of a sandbox that does not run.
pub fn forget(config: &KeeperConfig) {
    RunRecord::remove(&config.sandbox_dir);
    listen::remove(&listen::guest_path(config));
    listen::remove(&listen::keeper_path(config));
}

/// After a start that failed. A sandbox that only could not be adopted runs on, and keeps the names by which the next keeper
/// finds it: without them that one would start it anew.
pub fn forget_unless_alive(config: &KeeperConfig) {
    if RunRecord::read(&config.sandbox_dir).is_some_and(|record| record.is_alive()) {
        listen::remove(&listen::keeper_path(config));
    } else {
        forget(config);
    }
}

/// Removes the directory of an ephemeral node. Its keepers may all be doing so at once.
pub fn remove_directory(directory: &Path) {
    let mut last = None;
    for _ in 0..REMOVE_TRIES {
        match std::fs::remove_dir_all(directory) {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::NotFound && !directory.exists() => return,
            Err(error) => last = Some(error),
        }
        std::thread::sleep(REMOVE_PAUSE);
    }
    if let Some(error) = last {
        tracing::error!("cannot remove {}: {error}", directory.display());
    }
}
