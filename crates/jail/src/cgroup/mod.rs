//! The control groups of one sandbox: its limits, its freezer, its end, and what it used.
//!
//! Every sandbox has `branchbox/<id>` in the v2 hierarchy, with two children: `guest` for process 1 and `work` for commands.
//! Freezing and killing always go through v2, because tasks frozen by v2 still take ptrace stops and those frozen by v1 do
//! not. Limits lie in v2 where it has the controllers, else in the v1 hierarchies beside it (the hybrid layout).
//!
//! `work` belongs to the sandbox's root, which makes one group per command in it. Moving a process from `guest` to
//! `work/e1` also needs the right to write `cgroup.procs` of their common parent, so that one file is given away too; the
//! files that hold limits are not. The depth and number of groups that the sandbox can make are bounded.
//!
//! Invariants: a group is removed only after everything in it is dead; a limit that could not be set is listed in
//! [`SandboxCgroup::missing`], never passed over. Deliberately not here: whose groups are left over, which only the node knows.

mod files;
mod layout;
mod sandbox;
mod usage;

pub use layout::{Controller, Layout};
pub use sandbox::{Part, SandboxCgroup, collect};
pub use usage::Usage;

use branchbox_model::{Code, Coded, Retry};
use std::path::PathBuf;

/// A control group that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No v2 hierarchy is mounted.
    #[error("no cgroup v2 hierarchy is mounted")]
    NoUnified,
    /// A file or directory of the hierarchy.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The kernel did not get there in time.
    #[error("{} was not {state} within {waited_ms} ms", path.display())]
    Timeout {
        /// Which group.
        path: PathBuf,
        /// The state waited for.
        state: &'static str,
        /// How long.
        waited_ms: u64,
    },
}

impl Coded for CgroupError {
    fn code(&self) -> Code {
        match self {
            Self::NoUnified => Code::HostUnsupported,
            _ => Code::InternalError,
        }
    }
    fn retry(&self) -> Retry {
        match self {
            Self::Timeout { .. } => Retry::Retry,
            _ => Retry::Permanent,
        }
    }
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoUnified => "mount it: `mount -t cgroup2 none /sys/fs/cgroup/unified`".into(),
            Self::Io { .. } => "run `branchbox doctor` and look at its rows on cgroups".into(),
            Self::Timeout { .. } => "a process may be stuck in the kernel; look at the `wchan` column of `ps`".into(),
        })
    }
}
