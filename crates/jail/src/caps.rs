//! The capabilities that stay in a sandbox, and giving up all others.
//!
//! They are capabilities in the sandbox's own user namespace: rights over its own files, processes and network namespace,
//! never the host's. Process 1 starts with all of them, because bringing back saved processes needs them, and gives up the
//! rest once, before the first command. Commands then can never have more, `sudo` included: the bounding set decides.
//!
//! The list is that of common container engines without `MKNOD`, which a user namespace has no use for.

use rustix::thread::{CapabilitySet, CapabilitySets};

/// One capability that stays.
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    /// Which.
    pub set: CapabilitySet,
    /// What needs it.
    pub reason: &'static str,
}

const fn keep(set: CapabilitySet, reason: &'static str) -> Kept {
    Kept { set, reason }
}

/// Every capability that the sandbox's root keeps.
pub const KEPT: &[Kept] = &[
    keep(CapabilitySet::CHOWN, "package managers and install scripts set owners"),
    keep(CapabilitySet::DAC_OVERRIDE, "root reads and writes every file of its own machine"),
    keep(CapabilitySet::FOWNER, "package managers set modes and times of others' files"),
    keep(CapabilitySet::FSETID, "tar and dpkg keep set-group-id bits"),
    keep(CapabilitySet::KILL, "root signals any process; the guest ends commands"),
    keep(CapabilitySet::SETGID, "sudo, su, and daemons that drop to their own group"),
    keep(CapabilitySet::SETUID, "sudo, su, and daemons that drop to their own user"),
    keep(CapabilitySet::SETPCAP, "daemons that give up capabilities"),
    keep(CapabilitySet::NET_BIND_SERVICE, "servers on ports below 1024"),
    keep(CapabilitySet::NET_RAW, "ping, inside the sandbox's own network namespace"),
    keep(CapabilitySet::SYS_CHROOT, "sshd, apt and postfix confine parts of themselves"),
    keep(CapabilitySet::AUDIT_WRITE, "PAM writes to the audit log, and fails hard without the right"),
    keep(CapabilitySet::SETFCAP, "packages whose programs have file capabilities"),
];

/// Highest capability number to look for; the kernel has 41 today and refuses those it does not know.
const CAPABILITY_MAX: u32 = 63;

/// A right that could not be given up.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct CapsError {
    /// Which step.
    pub step: &'static str,
    /// Why not.
    #[source]
    pub source: std::io::Error,
}

/// All that stay, as one set.
#[must_use]
pub fn kept() -> CapabilitySet {
    KEPT.iter().fold(CapabilitySet::empty(), |all, one| all | one.set)
}

/// Gives up everything but [`KEPT`], for good: bounding, ambient, permitted, effective and inheritable sets of the calling
/// thread. For process 1, which has one thread.
///
/// # Errors
/// [`CapsError`]; a caller must not go on then.
pub fn drop_to_runtime_set() -> Result<(), CapsError> {
    let failed = |step| move |errno: rustix::io::Errno| CapsError { step, source: errno.into() };
    let kept = kept();
    for number in 0..=CAPABILITY_MAX {
        let one = CapabilitySet::from_bits_retain(1 << number);
        // An unknown capability cannot be asked for, and ends the list.
        let Ok(there) = rustix::thread::capability_is_in_bounding_set(one) else { break };
        if there && !kept.contains(one) {
            rustix::thread::remove_capability_from_bounding_set(one).map_err(failed("drop from the bounding set"))?;
        }
    }
    rustix::thread::clear_ambient_capability_set().map_err(failed("clear the ambient set"))?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed("set the capabilities"))
}
