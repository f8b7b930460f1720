//! What a process is besides its memory: descriptors, signals, timers, rights, and its threads.

use super::remote::{Batch, Remote};
use branchbox_snapshot::{Lock, MachineFileError, Object, ObjectKind, Process, Restart, Thread};
use branchbox_sys::ptrace;
use branchbox_sys::task;
use std::io;

const SYS_RT_SIGACTION: i64 = 13;
const SYS_SETITIMER: i64 = 38;
const SYS_FCNTL: i64 = 72;
const SYS_FCHDIR: i64 = 81;
const SYS_UMASK: i64 = 95;
const SYS_SETGROUPS: i64 = 116;
const SYS_SETRESUID: i64 = 117;
const SYS_SETRESGID: i64 = 119;
const SYS_SETFSUID: i64 = 122;
const SYS_SETFSGID: i64 = 123;
const SYS_CAPSET: i64 = 126;
const SYS_RT_SIGTIMEDWAIT: i64 = 128;
const SYS_RT_SIGQUEUEINFO: i64 = 129;
const SYS_SIGALTSTACK: i64 = 131;
const SYS_PERSONALITY: i64 = 135;
const SYS_PRCTL: i64 = 157;
const SYS_SET_TID_ADDRESS: i64 = 218;
const SYS_TIMER_CREATE: i64 = 222;
const SYS_TIMER_SETTIME: i64 = 223;
const SYS_EPOLL_CTL: i64 = 233;
const SYS_SET_ROBUST_LIST: i64 = 273;
const SYS_DUP3: i64 = 292;
const SYS_RT_TGSIGQUEUEINFO: i64 = 297;
const SYS_SECCOMP: i64 = 317;
const SYS_MEMBARRIER: i64 = 324;
const SYS_RSEQ: i64 = 334;
const SYS_PIDFD_OPEN: i64 = 434;
const SYS_CLOSE_RANGE: i64 = 436;

const PR_SET_PDEATHSIG: u64 = 1;
const PR_SET_DUMPABLE: u64 = 4;
const PR_SET_NAME: u64 = 15;
const PR_CAPBSET_DROP: u64 = 24;
const PR_SET_SECUREBITS: u64 = 28;
const PR_SET_TIMERSLACK: u64 = 29;
const PR_SET_CHILD_SUBREAPER: u64 = 36;
const PR_SET_NO_NEW_PRIVS: u64 = 38;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_CAP_AMBIENT: u64 = 47;
const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;
const SECBIT_NO_SETUID_FIXUP: u64 = 4;
const CAPABILITIES: u64 = 41;
const O_CLOEXEC: u64 = 0o2_000_000;
const O_NONBLOCK: i32 = 0o4000;
/// Size of `struct robust_list_head`, the only one the kernel takes.
const ROBUST_LIST_BYTES: u64 = 24;
const SS_DISABLE: u32 = 2;
const SS_AUTODISARM: u32 = 1 << 31;
const ERESTARTNOHAND: u64 = (-514i64).cast_unsigned();
const ERESTART_RESTARTBLOCK: u64 = (-516i64).cast_unsigned();
const SIGKILL: usize = 9;
const SIGSTOP: usize = 19;

/// Copies descriptors into place, closes everything else, enters the working directory, registers watches and takes locks.
pub(crate) fn descriptors(batch: &mut Batch<'_>, process: &Process, objects: &[Object], fds: &[i32]) -> io::Result<()> {
    if let Some(cwd) = process.cwd {
        batch.call(SYS_FCHDIR, &[fds[cwd.0 as usize] as u64]);
    }
    batch.call(SYS_UMASK, &[u64::from(process.umask)]);
    for slot in &process.fds {
        let flags = if slot.cloexec { O_CLOEXEC } else { 0 };
        match &objects[slot.object.0 as usize].kind {
            ObjectKind::Pid { pid } => {
                let nonblocking = objects[slot.object.0 as usize].flags & O_NONBLOCK;
                batch.run()?;
                batch.call(SYS_PIDFD_OPEN, &[*pid as u64, nonblocking as u64]);
                let made = batch.run()?.first().copied().unwrap_or(-1);
                if made == i64::from(slot.fd) {
                    const F_SETFD: u64 = 2;
                    batch.call(SYS_FCNTL, &[made as u64, F_SETFD, u64::from(slot.cloexec)]);
                } else {
                    batch.call(SYS_DUP3, &[made as u64, slot.fd as u64, flags]);
                }
            }
            _ => batch.call(SYS_DUP3, &[fds[slot.object.0 as usize] as u64, slot.fd as u64, flags]),
        }
    }
    batch.run()?;
    watches(batch, process, objects, fds)?;
    let mut numbers: Vec<u64> = process.fds.iter().map(|slot| slot.fd as u64).collect();
    numbers.sort_unstable();
    let mut from = 0;
    for number in numbers {
        if number > from {
            batch.call(SYS_CLOSE_RANGE, &[from, number - 1, 0]);
        }
        from = number + 1;
    }
    batch.call(SYS_CLOSE_RANGE, &[from, u64::from(u32::MAX), 0]);
    batch.run()?;
    // Closing any descriptor of a file drops all record locks of the process on it (fcntl(2)), so they come last.
    locks(batch, process)
}

/// A watched number means the watching process's own descriptor, so each process adds its own watches.
fn watches(batch: &mut Batch<'_>, process: &Process, objects: &[Object], fds: &[i32]) -> io::Result<()> {
    const EPOLL_CTL_ADD: u64 = 1;
    for (index, object) in objects.iter().enumerate() {
        let ObjectKind::Epoll { watches } = &object.kind else { continue };
        for watch in watches.iter().filter(|watch| watch.pid == process.pid) {
            if batch.room() < 64 {
                batch.run()?;
            }
            let mut event = watch.events.to_le_bytes().to_vec();
            event.extend_from_slice(&watch.data.to_le_bytes());
            let event = batch.data(&event)?;
            batch.call(SYS_EPOLL_CTL, &[fds[index] as u64, EPOLL_CTL_ADD, watch.fd as u64, event]);
        }
    }
    batch.run().map(drop)
}

fn locks(batch: &mut Batch<'_>, process: &Process) -> io::Result<()> {
    const F_SETLK: u64 = 6;
    for lock in &process.locks {
        if batch.room() < 64 {
            batch.run()?;
        }
        let kind: u16 = if lock.lock == Lock::Shared { 0 } else { 1 };
        let mut raw = vec![0u8; 32];
        raw[..2].copy_from_slice(&kind.to_le_bytes());
        raw[8..16].copy_from_slice(&lock.start.to_le_bytes());
        raw[16..24].copy_from_slice(&lock.length.to_le_bytes());
        let at = batch.data(&raw)?;
        batch.call(SYS_FCNTL, &[lock.fd as u64, F_SETLK, at]);
    }
    batch.run().map(drop)
}

/// What all threads share: signal actions, timers, and the rest of the process's attributes.
pub(crate) fn attributes(batch: &mut Batch<'_>, process: &Process) -> io::Result<()> {
    for (index, action) in process.actions.iter().enumerate() {
        let signal = index + 1;
        if signal == SIGKILL || signal == SIGSTOP {
            continue;
        }
        let words = [action.handler, action.flags, action.restorer, action.mask];
        let raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = batch.data(&raw)?;
        batch.call(SYS_RT_SIGACTION, &[signal as u64, at, 0, 8]);
    }
    batch.run()?;
    batch.call(SYS_PERSONALITY, &[u64::from(process.personality)]);
    batch.call(SYS_PRCTL, &[PR_SET_CHILD_SUBREAPER, u64::from(process.subreaper)]);
    batch.call(SYS_PRCTL, &[PR_SET_THP_DISABLE, u64::from(process.thp_disabled)]);
    for bit in (0..32).filter(|bit| process.membarrier >> bit & 1 == 1) {
        batch.call(SYS_MEMBARRIER, &[1 << bit]);
    }
    timers(batch, process)?;
    batch.run().map(drop)
}

fn timers(batch: &mut Batch<'_>, process: &Process) -> io::Result<()> {
    for (which, &(interval, remaining)) in process.interval_timers.iter().enumerate() {
        // A timer that repeats stands still between its signal and the signal's delivery, and shows no time left: it is
        // made to signal again at once, as its signal may have come after the pending ones were looked at.
        let remaining = remaining.max(u64::from(interval != 0));
        if remaining == 0 {
            continue;
        }
        let words = [interval / 1_000_000, interval % 1_000_000, remaining / 1_000_000, remaining % 1_000_000];
        let raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = batch.data(&raw)?;
        batch.call(SYS_SETITIMER, &[which as u64, at]);
    }
    if process.posix_timers.is_empty() {
        return Ok(());
    }
    batch.call(SYS_PRCTL, &[PR_TIMER_CREATE_RESTORE_IDS, 1]);
    for timer in &process.posix_timers {
        let mut event = vec![0u8; 64];
        event[..8].copy_from_slice(&timer.value.to_le_bytes());
        event[8..12].copy_from_slice(&timer.signal.to_le_bytes());
        event[12..16].copy_from_slice(&timer.notify.to_le_bytes());
        event[16..20].copy_from_slice(&timer.tid.to_le_bytes());
        let event = batch.data(&event)?;
        let id = batch.data(&timer.id.to_le_bytes())?;
        batch.call(SYS_TIMER_CREATE, &[timer.clock as u64, event, id]);
        let split = |ns: u64| [ns / 1_000_000_000, ns % 1_000_000_000];
        let words = [split(timer.interval_ns), split(timer.remaining_ns)].concat();
        let raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = batch.data(&raw)?;
        batch.call(SYS_TIMER_SETTIME, &[timer.id as u64, 0, at, 0]);
    }
    batch.call(SYS_PRCTL, &[PR_TIMER_CREATE_RESTORE_IDS, 0]);
    Ok(())
}

/// What each thread has of its own. Rights come last, since everything before needs them.
pub(crate) fn thread(batch: &mut Batch<'_>, process: &Process, thread: &Thread) -> io::Result<()> {
    let (address, flags, bytes) = thread.alt_stack;
    // Set also where there is none: the thread still has what it inherited from the guest.
    let kept = flags & (SS_AUTODISARM | SS_DISABLE);
    let raw = [address.to_le_bytes(), u64::from(kept).to_le_bytes(), bytes.to_le_bytes()].concat();
    let at = batch.data(&raw)?;
    batch.call(SYS_SIGALTSTACK, &[at, 0]);
    batch.call(SYS_SET_ROBUST_LIST, &[thread.robust_list.0, ROBUST_LIST_BYTES]);
    batch.call(SYS_SET_TID_ADDRESS, &[thread.clear_child_tid]);
    if let Some((address, bytes, signature)) = thread.rseq {
        batch.call(SYS_RSEQ, &[address, u64::from(bytes), 0, u64::from(signature)]);
    }
    let name = batch.data(&[thread.name.as_slice(), b"\0"].concat())?;
    batch.call(SYS_PRCTL, &[PR_SET_NAME, name]);
    batch.call(SYS_PRCTL, &[PR_SET_TIMERSLACK, thread.timer_slack]);
    batch.run()?;
    rights(batch, process, thread)
}

fn rights(batch: &mut Batch<'_>, process: &Process, thread: &Thread) -> io::Result<()> {
    let own = &thread.credentials;
    let groups: Vec<u8> = own.groups.iter().flat_map(|group| group.to_le_bytes()).collect();
    let groups_at = batch.data(&groups)?;
    batch.call(SYS_SETGROUPS, &[own.groups.len() as u64, groups_at]);
    let [inheritable, permitted, effective, bounding, ambient] = own.capabilities;
    for capability in (0..CAPABILITIES).filter(|capability| bounding >> capability & 1 == 0) {
        batch.call(SYS_PRCTL, &[PR_CAPBSET_DROP, capability]);
    }
    for filter in &thread.filters {
        if batch.room() < filter.len() + 64 {
            batch.run()?;
        }
        let program = batch.data(filter)?;
        let mut raw = ((filter.len() / 8) as u64).to_le_bytes().to_vec();
        raw.extend_from_slice(&program.to_le_bytes());
        let at = batch.data(&raw)?;
        batch.call(SYS_SECCOMP, &[1, 0, at]);
    }
    batch.call(SYS_PRCTL, &[PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP]);
    let gids = own.gids.map(u64::from);
    let uids = own.uids.map(u64::from);
    batch.call(SYS_SETRESGID, &gids[..3]);
    batch.call(SYS_SETRESUID, &uids[..3]);
    batch.attempt(SYS_SETFSGID, &gids[3..]);
    batch.attempt(SYS_SETFSUID, &uids[3..]);
    batch.call(SYS_PRCTL, &[PR_SET_SECUREBITS, u64::from(own.securebits)]);
    batch.run()?;
    if thread.no_new_privs {
        batch.call(SYS_PRCTL, &[PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0]);
    }
    batch.call(SYS_PRCTL, &[PR_SET_DUMPABLE, u64::from(process.dumpable == 1)]);
    batch.call(SYS_PRCTL, &[PR_SET_PDEATHSIG, thread.death_signal as u64]);
    let header = batch.data(&[0x2008_0522u32.to_le_bytes(), 0u32.to_le_bytes()].concat())?;
    let half = |set: u64, shift: u32| ((set >> shift) as u32).to_le_bytes();
    let sets = [0, 32]
        .map(|shift| [half(effective, shift), half(permitted, shift), half(inheritable, shift)].concat())
        .concat();
    let sets = batch.data(&sets)?;
    batch.call(SYS_CAPSET, &[header, sets]);
    for capability in (0..CAPABILITIES).filter(|capability| ambient >> capability & 1 == 1) {
        batch.call(SYS_PRCTL, &[PR_CAP_AMBIENT, 2, capability, 0, 0]);
    }
    batch.run().map(drop)
}

/// Signals that were pending; whatever the making of the process itself left is taken off first.
pub(crate) fn pending(batch: &mut Batch<'_>, process: &Process, thread: &Thread, leader: bool) -> io::Result<()> {
    const SIGCHLD_MASK: u64 = 1 << 16;
    let set = batch.data(&SIGCHLD_MASK.to_le_bytes())?;
    let zero = batch.data(&[0u8; 16])?;
    batch.attempt(SYS_RT_SIGTIMEDWAIT, &[set, 0, zero, 8]);
    batch.run()?;
    let signal = |info: &[u8]| u64::from(u32::from_le_bytes([info[0], info[1], info[2], info[3]]));
    for info in &thread.pending {
        let at = batch.data(info)?;
        batch.call(SYS_RT_TGSIGQUEUEINFO, &[process.pid as u64, thread.tid as u64, signal(info), at]);
        batch.run()?;
    }
    for info in process.pending.iter().filter(|_| leader) {
        let at = batch.data(info)?;
        batch.call(SYS_RT_SIGQUEUEINFO, &[process.pid as u64, signal(info), at]);
        batch.run()?;
    }
    Ok(())
}

/// What is set from outside: limits, scheduling, oom score.
pub(crate) fn from_outside(process: &Process, remotes: &[Remote]) -> io::Result<Vec<String>> {
    let mut lowered = Vec::new();
    let Some(leader) = remotes.first() else { return Ok(lowered) };
    for (resource, &limit) in process.limits.iter().enumerate() {
        let now = task::limit(leader.host_tid, resource as u32, None)?;
        if now == limit {
            continue;
        }
        if task::limit(leader.host_tid, resource as u32, Some(limit)).is_err() {
            let within = (limit.0.min(now.1), limit.1.min(now.1));
            task::limit(leader.host_tid, resource as u32, Some(within))?;
            lowered.push(format!("limit {resource} lowered from {limit:?} to {within:?}"));
        }
    }
    for (thread, remote) in process.threads.iter().zip(remotes) {
        let now = task::scheduling(remote.host_tid)?;
        if now != thread.scheduling && task::set_scheduling(remote.host_tid, &thread.scheduling).is_err() {
            lowered.push("a scheduling priority could not be given back".into());
        }
        if task::affinity(remote.host_tid)? != thread.affinity {
            task::set_affinity(remote.host_tid, &thread.affinity)?;
        }
        if task::io_priority(remote.host_tid)? != thread.io_priority {
            task::set_io_priority(remote.host_tid, thread.io_priority)?;
        }
    }
    let path = crate::procfs::path(leader.host_tid, "coredump_filter");
    std::fs::write(path, format!("{:#x}", process.coredump_filter))?;
    let path = crate::procfs::path(leader.host_tid, "oom_score_adj");
    let now = std::fs::read_to_string(&path)?;
    if now.trim() != process.oom_score_adj.to_string() {
        std::fs::write(path, process.oom_score_adj.to_string())?;
    }
    Ok(lowered)
}

/// The last touch: registers, vector state and mask.
///
/// A call that was interrupted keeps the kernel's own mark in `rax`: leaving a ptrace stop makes the kernel look at it and
/// make the call again, or give `EINTR` when a signal that waited has a handler, as it does in the source. A call that
/// would go on by its restart block, which a new task does not have, is marked to be made again instead.
pub(crate) fn registers(remote: Remote, thread: &Thread) -> io::Result<()> {
    let words: [u64; 27] = thread
        .registers
        .as_slice()
        .try_into()
        .map_err(|_| io::Error::other(MachineFileError::Damaged { path: "machine".into(), what: "registers" }))?;
    let mut registers = ptrace::registers_from_words(&words);
    match thread.restart {
        Restart::Again if registers.rax == ERESTART_RESTARTBLOCK => registers.rax = ERESTARTNOHAND,
        Restart::Again => {}
        Restart::None => registers.orig_rax = u64::MAX,
    }
    ptrace::set_xstate(remote.host_tid, &thread.xstate)?;
    ptrace::set_registers(remote.host_tid, &registers)?;
    ptrace::set_signal_mask(remote.host_tid, thread.mask)
}
