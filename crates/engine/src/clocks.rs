//! The clocks that count from a boot, as a sandbox sees them.
//!
//! Programs keep absolute times of `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME`: those clocks must never run back. Within one boot
//! of the host they go on by themselves. After another boot they start anew at zero, so a restore gives the sandbox a time
//! namespace (time_namespaces(7), Linux 5.6) in which they go on from where the capture found them: a machine that was
//! switched off counts no time. Whoever was captured in such a namespace gets one with the same offsets again.
//! Deliberately not here: making the namespace (the jail), the wall clock (it is the host's, in every sandbox).

use branchbox_snapshot::{ClockOffsets, Clocks};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::io;

const NANOSECONDS: i64 = 1_000_000_000;

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(NANOSECONDS).saturating_add(time.tv_nsec)
}

/// This host's clocks; the caller lives in no time namespace of its own.
fn host() -> ClockOffsets {
    ClockOffsets {
        monotonic_ns: nanoseconds(clock_gettime(ClockId::Monotonic)),
        boottime_ns: nanoseconds(clock_gettime(ClockId::Boottime)),
    }
}

/// The offsets of the time namespace of a process (proc_pid_timens_offsets(5)); zero on a kernel without them.
fn offsets(pid: i32) -> io::Result<ClockOffsets> {
    match std::fs::read_to_string(crate::procfs::path(pid, "timens_offsets")) {
        Ok(text) => parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unknown timens_offsets")),
        Err(error) if error.kind() == io::ErrorKind::NotFound && crate::procfs::path(pid, "").exists() => {
            Ok(ClockOffsets::default())
        }
        Err(error) => Err(error),
    }
}

fn parse(text: &str) -> Option<ClockOffsets> {
    let mut found = (None, None);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let clock = words.next()?;
        let seconds: i64 = words.next()?.parse().ok()?;
        let rest: i64 = words.next()?.parse().ok()?;
        let offset = seconds.checked_mul(NANOSECONDS)?.checked_add(rest)?;
        match clock {
            "monotonic" | "1" => found.0 = Some(offset),
            "boottime" | "7" => found.1 = Some(offset),
            _ => {}
        }
    }
    Some(ClockOffsets { monotonic_ns: found.0?, boottime_ns: found.1? })
}

/// What the clocks show inside now, to be kept with a capture. `guest` is the sandbox's first process.
pub(crate) fn now(guest: i32) -> io::Result<Clocks> {
    let (host, offsets) = (host(), offsets(guest)?);
    Ok(Clocks { inside: add(host, offsets), offsets })
}

fn add(a: ClockOffsets, b: ClockOffsets) -> ClockOffsets {
    ClockOffsets {
        monotonic_ns: a.monotonic_ns.saturating_add(b.monotonic_ns),
        boottime_ns: a.boottime_ns.saturating_add(b.boottime_ns),
    }
}

/// The offsets that a restored sandbox needs; `None` when the host's own clocks are right.
pub(crate) fn needed(saved: &Clocks, same_boot: bool) -> Option<ClockOffsets> {
    needed_on(saved, same_boot, host())
}

fn needed_on(saved: &Clocks, same_boot: bool, host: ClockOffsets) -> Option<ClockOffsets> {
    let offsets = if same_boot {
        saved.offsets
    } else {
        ClockOffsets {
            monotonic_ns: saved.inside.monotonic_ns.saturating_sub(host.monotonic_ns),
            boottime_ns: saved.inside.boottime_ns.saturating_sub(host.boottime_ns),
        }
    };
    (offsets != ClockOffsets::default()).then_some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(ns: i64) -> ClockOffsets {
        ClockOffsets { monotonic_ns: ns, boottime_ns: ns }
    }

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let text = "monotonic         -12 999999000\nboottime            3         0\n";
        let read = ClockOffsets { monotonic_ns: -11_000_001_000, boottime_ns: 3_000_000_000 };
        assert_eq!(parse(text), Some(read));
        assert_eq!(parse("monotonic 1 0\n"), None);
        assert_eq!(parse("monotonic x 0\nboottime 0 0\n"), None);
        let own = offsets(std::process::id().cast_signed()).expect("of this process");
        assert_eq!(own, ClockOffsets::default());
    }

    #[test]
    fn clocks_go_on_after_another_boot_and_keep_their_namespace_within_one() {
        let saved = Clocks { inside: both(500), offsets: both(0) };
        assert_eq!(needed_on(&saved, true, both(900)), None);
        assert_eq!(needed_on(&saved, false, both(20)), Some(both(480)), "from where they were");
        let moved = Clocks { inside: both(500), offsets: both(480) };
        assert_eq!(needed_on(&moved, true, both(900)), Some(both(480)));
        assert_eq!(needed_on(&moved, false, both(500)), None);
    }
}
