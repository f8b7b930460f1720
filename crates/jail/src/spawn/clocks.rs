//! A time namespace for a sandbox whose clocks are not the host's: one that was captured before the host's last boot.
//!
//! Children of a process enter the namespace that it has made for them (time_namespaces(7), Linux 5.6), and the offsets can
//! be written only while nobody is in it. So the keeper makes one, writes them, forks process 1, and goes back to its own.
//! The namespace belongs to the host's user namespace: nobody inside can change it.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

const NANOSECONDS: i64 = 1_000_000_000;
/// `CLONE_NEWTIME` of `linux/sched.h`.
const CLONE_NEWTIME: i32 = 0x80;

/// How far the clocks that count from a boot are from the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffsets {
    /// Of `CLOCK_MONOTONIC`, nanoseconds.
    pub monotonic_ns: i64,
    /// Of `CLOCK_BOOTTIME`, nanoseconds.
    pub boottime_ns: i64,
}

impl ClockOffsets {
    /// As `timens_offsets` takes them: the nanoseconds are never negative.
    fn text(self) -> String {
        let line =
            |name: &str, ns: i64| format!("{name} {} {}\n", ns.div_euclid(NANOSECONDS), ns.rem_euclid(NANOSECONDS));
        line("monotonic", self.monotonic_ns) + &line("boottime", self.boottime_ns)
    }
}

/// The namespace that the next child enters. The caller must have one thread.
#[derive(Debug)]
pub(super) struct Namespace {
    own: File,
}

impl Namespace {
    /// Makes it.
    pub(super) fn enter(offsets: ClockOffsets) -> io::Result<Self> {
        let own = File::open("/proc/self/ns/time")?;
        nix::sched::unshare(nix::sched::CloneFlags::from_bits_retain(CLONE_NEWTIME))?;
        let namespace = Self { own };
        match std::fs::write("/proc/self/timens_offsets", offsets.text()) {
            Ok(()) => Ok(namespace),
            Err(error) => {
                namespace.leave()?;
                Err(error)
            }
        }
    }

    /// Later children are in the caller's own again.
    pub(super) fn leave(self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.own.as_fd(), Some(LinkNameSpaceType::Time))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_written_as_the_kernel_reads_them() {
        let offsets = ClockOffsets { monotonic_ns: -1, boottime_ns: 2_000_000_003 };
        assert_eq!(offsets.text(), "monotonic -1 999999999\nboottime 2 3\n");
    }
}
