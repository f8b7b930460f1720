//! What a sandbox has used, from whichever hierarchy counts it.

use super::files::{keyed, read};
use super::sandbox::SandboxCgroup;
use std::path::Path;

/// What a sandbox has used so far. A number that this host does not count is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Memory now, in bytes.
    pub memory_bytes: u64,
    /// Most memory at once, in bytes.
    pub memory_peak_bytes: u64,
    /// Processes and threads now.
    pub pids: u64,
    /// Processes that the memory limit killed.
    pub oom_kills: u64,
}

fn number(dir: &Path, file: &str) -> Option<u64> {
    read(&dir.join(file)).ok()?.trim().parse().ok()
}

fn field(dir: &Path, file: &str, key: &str) -> Option<u64> {
    keyed(&read(&dir.join(file)).ok()?, key)
}

pub(super) fn measure(group: &SandboxCgroup) -> Usage {
    // v2 names and v1 names differ, so asking every directory for both finds the one that counts.
    let dirs = || std::iter::once(group.dir()).chain(group.legacy_dirs());
    let first = |names: &[&str]| dirs().find_map(|dir| names.iter().find_map(|name| number(dir, name)));
    let oom = dirs().find_map(|dir| {
        field(dir, "memory.events", "oom_kill").or_else(|| field(dir, "memory.oom_control", "oom_kill"))
    });
    Usage {
        // v2 counts time even where v1 holds the cpu controller.
        cpu_us: field(group.dir(), "cpu.stat", "usage_usec").unwrap_or_default(),
        memory_bytes: first(&["memory.current", "memory.usage_in_bytes"]).unwrap_or_default(),
        memory_peak_bytes: first(&["memory.peak", "memory.max_usage_in_bytes"]).unwrap_or_default(),
        pids: first(&["pids.current"]).unwrap_or_default(),
        oom_kills: oom.unwrap_or_default(),
    }
}
