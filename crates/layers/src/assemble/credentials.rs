//! The credentials an overlay is mounted with.
//!
//! An overlay does its own work (work directory, whiteouts, copy-ups) with the credentials of whoever mounted it. Our
//! upper is an id-mapped mount that has no place for the host's root, so with root's own ids the kernel could not make
//! a single file there and would mount read-only. So the mount is made with the file-system ids of the sandbox's root
//! and every capability of the caller. The ids are the calling thread's alone and are put back when the guard goes;
//! so are the two things the kernel resets when they change: the dumpable flag and the parent-death signal.

use branchbox_model::IdRange;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::CapabilitySets;
use std::io;

/// Puts the thread's own credentials back when dropped.
pub(super) struct AsSandboxRoot {
    uid: Uid,
    gid: Gid,
    capabilities: CapabilitySets,
    dumpable: DumpableBehavior,
    death_signal: Option<Signal>,
}

impl AsSandboxRoot {
    /// Takes the file-system ids of the sandbox's root and keeps all capabilities.
    pub(super) fn take(range: IdRange) -> io::Result<Self> {
        let capabilities = rustix::thread::capabilities(None)?;
        let dumpable = rustix::process::dumpable_behavior()?;
        let death_signal = rustix::process::parent_process_death_signal()?;
        let gid = setfsgid(Gid::from_raw(range.base));
        let uid = setfsuid(Uid::from_raw(range.base));
        let taken = Self { uid, gid, capabilities, dumpable, death_signal };
        // Leaving uid 0 dropped the file capabilities from the effective set.
        rustix::thread::set_capabilities(None, capabilities)?;
        Ok(taken)
    }
}

impl Drop for AsSandboxRoot {
    fn drop(&mut self) {
        setfsuid(self.uid);
        setfsgid(self.gid);
        // Each was in force before and belongs to this thread, so none of these is refused.
        let _ = rustix::thread::set_capabilities(None, self.capabilities);
        let _ = rustix::process::set_dumpable_behavior(self.dumpable);
        if self.death_signal.is_some() {
            let _ = rustix::process::set_parent_process_death_signal(self.death_signal);
        }
    }
}
