//! One process: what can be read from outside, and what only its own threads can say.

use super::{Context, Member, calls, refuse};
use crate::error::CaptureError;
use crate::live::{Call, Live, Seat};
use crate::procfs::{self, Stat, Status};
use crate::stop::Task;
use branchbox_snapshot::{Credentials, Life, MemoryLayout, PosixTimer, Process, Restart, SignalAction, Thread};
use branchbox_sys::ptrace::{self, Queue};
use branchbox_sys::task;
use std::fs;
use std::io;
use std::time::Duration;

const SIGNALS: usize = 64;
/// Place of `orig_rax` in the recorded registers.
const ORIG_RAX: usize = 15;
const PR_GET_PDEATHSIG: u64 = 2;
const PR_GET_DUMPABLE: u64 = 3;
const PR_GET_SECUREBITS: u64 = 27;
const PR_GET_TIMERSLACK: u64 = 30;
const PR_GET_CHILD_SUBREAPER: u64 = 37;
const PR_GET_TID_ADDRESS: u64 = 40;
const PR_GET_THP_DISABLE: u64 = 42;
const PR_GET_MDWE: u64 = 66;
const MEMBARRIER_GET_REGISTRATIONS: u64 = 1 << 9;
const TIMERS_MAX: usize = 150;

/// Places in a batch's data half.
mod at {
    pub(super) const ACTIONS: usize = 0;
    pub(super) const ITIMERS: usize = 2048;
    pub(super) const SUBREAPER: usize = 2176;
    pub(super) const ALT_STACK: usize = 2240;
    pub(super) const TID_ADDRESS: usize = 2272;
    pub(super) const DEATH_SIGNAL: usize = 2280;
    pub(super) const TIMERS: usize = 2304;
}

/// Describes a process; its descriptors and memory are filled in by others.
pub(crate) fn process(context: &Context<'_>, member: &Member) -> Result<Process, CaptureError> {
    let mut process = empty(member);
    if member.zombie.is_some() {
        return Ok(process);
    }
    let failed = |what: &'static str| {
        CaptureError::io(format!("{what} of process {} ({})", member.pid, procfs::name(member.host_pid)))
    };
    let status = Status::read(member.host_pid).map_err(failed("status"))?;
    refuse_attributes(member)?;
    outside(member, &status, &mut process).map_err(failed("attributes"))?;

    let tasks: Vec<&Task> = context.stopped.tasks.iter().filter(|task| task.pid == member.host_pid).collect();
    if tasks.first().is_none_or(|leader| leader.tid != member.host_pid) {
        return Err(refuse(
            member,
            "an ended first thread",
            "a process whose first thread has ended cannot be made again",
            "end it",
        )
        // A process that is ending is in this state too, until its other threads have ended.
        .passing());
    }
    process.life = tasks[0].group_stop.map_or(Life::Alive, Life::Stopped);
    let timers = posix_timers(member).map_err(failed("timers"))?;
    if timers.len() > TIMERS_MAX {
        let object = format!("{} POSIX timers", timers.len());
        return Err(refuse(member, object, format!("at most {TIMERS_MAX} are captured"), "end it and try again"));
    }
    let mut live = Live::open(member.host_pid).map_err(failed("memory"))?;
    for (index, task) in tasks.iter().enumerate() {
        let mut thread = thread_from_outside(context, task).map_err(failed("a thread"))?;
        let number = context.history.number(task).filter(|_| calls::waits(&task.registers));
        match number {
            Some(number) => {
                thread.registers[ORIG_RAX] = number;
                wait_less(&mut thread.registers, number, context.history.waited(task));
            }
            None if calls::waits(&task.registers) => {
                let why = "which call it waits in cannot be told, since something else stopped it meanwhile";
                return Err(refuse(member, "a thread that waits with a time limit", why, "try again").passing());
            }
            None => {}
        }
        let leader = index == 0;
        let ask = |seat: &mut Seat<'_>| inside(seat, member, leader, &timers, &mut thread, &mut process);
        live.with_thread(task, index + 1 == tasks.len(), ask).map_err(failed("a thread's own answers"))?;
        process.threads.push(thread);
    }
    let early = std::mem::take(&mut process.pending);
    process.pending = pending(member.host_pid, Queue::Process).map_err(failed("pending signals"))?;
    // A one-shot timer that ran out while it was asked for is its signal now, and not armed any more.
    if process.interval_timers[0].0 == 0 && has_alarm(&process.pending) && !has_alarm(&early) {
        process.interval_timers[0].1 = 0;
    }
    refuse_answers(member, &process)?;
    Ok(process)
}

/// A copy waits for what is left: `poll` has its limit in a register, and sleeps that were interrupted have written what is
/// left where the program asked for it. Other relative limits start anew.
fn wait_less(registers: &mut [u64], number: u64, over: Duration) {
    const R10: usize = 7;
    const RDX: usize = 12;
    const RSI: usize = 13;
    const RDI: usize = 14;
    match number {
        7 if registers[RDX] as i32 > 0 => registers[RDX] = calls::shortened(registers[RDX], over),
        35 if registers[RSI] != 0 => registers[RDI] = registers[RSI],
        230 if registers[RSI] & 1 == 0 && registers[R10] != 0 => registers[RDX] = registers[R10],
        _ => {}
    }
}

fn empty(member: &Member) -> Process {
    Process {
        pid: member.pid,
        parent: member.parent,
        group: member.group,
        session: member.session,
        life: member.zombie.map_or(Life::Alive, Life::Zombie),
        cgroup: member.cgroup.clone(),
        threads: Vec::new(),
        memory: MemoryLayout::default(),
        fds: Vec::new(),
        cwd: None,
        umask: 0,
        actions: Vec::new(),
        pending: Vec::new(),
        limits: Vec::new(),
        interval_timers: [(0, 0); 3],
        posix_timers: Vec::new(),
        locks: Vec::new(),
        personality: 0,
        dumpable: 1,
        subreaper: false,
        thp_disabled: false,
        oom_score_adj: 0,
        coredump_filter: 0x33,
        membarrier: 0,
    }
}

fn refuse_attributes(member: &Member) -> Result<(), CaptureError> {
    let io = CaptureError::io(format!("reading process {}", member.pid));
    let stat = Stat::read(member.host_pid).map_err(io)?;
    if stat.terminal() != 0 {
        let why = "terminals are not captured yet";
        return Err(refuse(
            member,
            "a controlling terminal",
            why,
            "run the command without a terminal, or end it first",
        ));
    }
    const SIGCHLD: u64 = 17;
    let signal = stat.field(38);
    if signal != SIGCHLD {
        let object = format!("an end that is told by signal {signal}");
        return Err(refuse(member, object, "only children that end with SIGCHLD are captured", "end it and try again"));
    }
    let status = Status::read(member.host_pid).map_err(CaptureError::io("reading a status"))?;
    if status.number("Seccomp") == 1 {
        return Err(refuse(
            member,
            "strict seccomp mode",
            "it allows no call that a capture needs",
            "end it and try again",
        ));
    }
    let root = procfs::link(member.host_pid, "root").map_err(CaptureError::io("reading a root link"))?;
    if root != b"/" {
        let object = format!("a root directory of its own, {}", String::from_utf8_lossy(&root));
        return Err(refuse(member, object, "chroot is not captured", "end the process and try again"));
    }
    Ok(())
}

fn refuse_answers(member: &Member, process: &Process) -> Result<(), CaptureError> {
    let first = process.threads.first().map(|thread| &thread.credentials);
    if process.threads.iter().any(|thread| Some(&thread.credentials) != first) {
        let why = "every thread of a process is given the same rights";
        return Err(refuse(member, "threads with different rights", why, "end the process and try again"));
    }
    Ok(())
}

fn outside(member: &Member, status: &Status, process: &mut Process) -> io::Result<()> {
    let pid = member.host_pid;
    process.umask = status.octal("Umask");
    process.personality =
        u32::from_str_radix(fs::read_to_string(procfs::path(pid, "personality"))?.trim(), 16).unwrap_or(0);
    process.oom_score_adj = fs::read_to_string(procfs::path(pid, "oom_score_adj"))?.trim().parse().unwrap_or(0);
    let filter = fs::read_to_string(procfs::path(pid, "coredump_filter"))?;
    process.coredump_filter = u32::from_str_radix(filter.trim(), 16).unwrap_or(0x33);
    for resource in 0..task::LIMITS {
        process.limits.push(task::limit(pid, resource, None)?);
    }
    process.pending = pending(pid, Queue::Process)?;
    Ok(())
}

fn has_alarm(pending: &[Vec<u8>]) -> bool {
    const SIGALRM: u8 = 14;
    pending.iter().any(|info| info.starts_with(&[SIGALRM, 0, 0, 0]))
}

fn pending(tid: i32, queue: Queue) -> io::Result<Vec<Vec<u8>>> {
    Ok(ptrace::pending_signals(tid, queue)?.iter().map(|info| info.to_vec()).collect())
}

fn thread_from_outside(context: &Context<'_>, task: &Task) -> io::Result<Thread> {
    let tid = task.tid;
    let status = Status::read(tid)?;
    if ptrace::user_dispatch(tid).unwrap_or(false) {
        return Err(io::Error::other("syscall user dispatch is on, which is not captured"));
    }
    let rseq = ptrace::rseq(tid)?;
    Ok(Thread {
        tid: status.inside("NSpid"),
        registers: ptrace::registers_to_words(&task.registers).to_vec(),
        xstate: ptrace::xstate(tid)?,
        restart: restart(task),
        mask: ptrace::signal_mask(tid)?,
        pending: pending(tid, Queue::Task)?,
        alt_stack: (0, 0, 0),
        robust_list: task::robust_list(tid)?,
        clear_child_tid: 0,
        rseq: (rseq.address != 0).then_some((rseq.address, rseq.bytes, rseq.signature)),
        name: fs::read(procfs::path(tid, "comm"))?.trim_ascii_end().to_vec(),
        credentials: credentials(context, &status),
        filters: filters(context, tid, &status)?,
        no_new_privs: status.number("NoNewPrivs") == 1,
        death_signal: 0,
        timer_slack: 0,
        scheduling: task::scheduling(tid)?,
        affinity: task::affinity(tid)?,
        io_priority: task::io_priority(tid)?,
    })
}

fn restart(task: &Task) -> Restart {
    let result = task.registers.rax.cast_signed();
    let in_call = task.registers.orig_rax.cast_signed() >= 0;
    if in_call && (matches!(result, -514..=-512) || result == -516) { Restart::Again } else { Restart::None }
}

fn credentials(context: &Context<'_>, status: &Status) -> Credentials {
    Credentials {
        uids: status.ids("Uid").map(|id| context.id(id)),
        gids: status.ids("Gid").map(|id| context.id(id)),
        groups: status.groups().into_iter().map(|id| context.id(id)).collect(),
        capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|key| status.hex(key)),
        securebits: 0,
    }
}

/// Filters that the program installed itself: those beyond what the guest has.
fn filters(context: &Context<'_>, tid: i32, status: &Status) -> io::Result<Vec<Vec<u8>>> {
    let own = status.number("Seccomp_filters") as usize;
    let guest = Status::read(context.request.guest_pid)?.number("Seccomp_filters") as usize;
    (guest..own).map(|index| ptrace::seccomp_filter(tid, index)).collect()
}

fn prctl(args: &[u64]) -> Call {
    Call::new(157, args)
}

/// Asks one thread for what only it can say; the leader also for what belongs to the process.
fn inside(
    seat: &mut Seat<'_>,
    member: &Member,
    leader: bool,
    timers: &[PosixTimer],
    thread: &mut Thread,
    process: &mut Process,
) -> io::Result<()> {
    let data = seat.live().data();
    let mut calls = vec![
        Call::new(131, &[0, data + at::ALT_STACK as u64]),
        prctl(&[PR_GET_TID_ADDRESS, data + at::TID_ADDRESS as u64]),
        prctl(&[PR_GET_PDEATHSIG, data + at::DEATH_SIGNAL as u64]),
        prctl(&[PR_GET_TIMERSLACK]),
        prctl(&[PR_GET_SECUREBITS]),
    ];
    let own = calls.len();
    if leader {
        calls.extend(leader_calls(data, timers));
    }
    let results = seat.run(member.pid, thread.tid, &calls)?;
    if let Some(failed) = results[..own].iter().position(|&result| result < 0) {
        return Err(io::Error::from_raw_os_error(-results[failed] as i32));
    }
    let live = seat.live();
    let stack = live.read_data(at::ALT_STACK, 24);
    thread.alt_stack = (word(&stack, 0), word(&stack, 8) as u32, word(&stack, 16));
    thread.clear_child_tid = word(&live.read_data(at::TID_ADDRESS, 8), 0);
    thread.death_signal = word(&live.read_data(at::DEATH_SIGNAL, 8), 0) as i32;
    thread.timer_slack = results[3] as u64;
    thread.credentials.securebits = results[4] as u32;
    if leader {
        leader_answers(live, &results[own..], timers, process)?;
    }
    Ok(())
}

fn leader_calls(data: u64, timers: &[PosixTimer]) -> Vec<Call> {
    let mut calls = vec![
        Call::new(12, &[0]),
        prctl(&[PR_GET_DUMPABLE]),
        prctl(&[PR_GET_CHILD_SUBREAPER, data + at::SUBREAPER as u64]),
        prctl(&[PR_GET_THP_DISABLE]),
        prctl(&[PR_GET_MDWE]),
        Call::new(324, &[MEMBARRIER_GET_REGISTRATIONS]),
    ];
    for which in 0..3 {
        calls.push(Call::new(36, &[which, data + at::ITIMERS as u64 + which * 32]));
    }
    for signal in 1..=SIGNALS as u64 {
        calls.push(Call::new(13, &[signal, 0, data + at::ACTIONS as u64 + (signal - 1) * 32, 8]));
    }
    for (index, timer) in timers.iter().enumerate() {
        calls.push(Call::new(224, &[timer.id as u64, data + (at::TIMERS + index * 32) as u64]));
    }
    calls
}

fn leader_answers(live: &Live, results: &[i64], timers: &[PosixTimer], process: &mut Process) -> io::Result<()> {
    process.memory.fields[5] = results[0] as u64;
    process.dumpable = results[1] as u32;
    process.subreaper = word(&live.read_data(at::SUBREAPER, 8), 0) as i32 != 0;
    process.thp_disabled = results[3] > 0;
    if results[4] > 0 {
        return Err(io::Error::other("memory-deny-write-execute is on, which is not captured"));
    }
    process.membarrier = results[5].max(0) as u32;
    let raw = live.read_data(at::ITIMERS, 96);
    for (index, timer) in process.interval_timers.iter_mut().enumerate() {
        let micros = |at: usize| word(&raw, index * 32 + at) * 1_000_000 + word(&raw, index * 32 + at + 8);
        *timer = (micros(0), micros(16));
    }
    let raw = live.read_data(at::ACTIONS, SIGNALS * 32);
    process.actions = (0..SIGNALS)
        .map(|index| SignalAction {
            handler: word(&raw, index * 32),
            flags: word(&raw, index * 32 + 8),
            restorer: word(&raw, index * 32 + 16),
            mask: word(&raw, index * 32 + 24),
        })
        .collect();
    let raw = live.read_data(at::TIMERS, timers.len() * 32);
    for (index, timer) in timers.iter().enumerate() {
        let nanos = |at: usize| word(&raw, index * 32 + at) * 1_000_000_000 + word(&raw, index * 32 + at + 8);
        process.posix_timers.push(PosixTimer { interval_ns: nanos(0), remaining_ns: nanos(16), ..timer.clone() });
    }
    Ok(())
}

fn word(raw: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| raw[at + i]))
}

/// `/proc/<pid>/timers` (proc(5)): blocks of `ID`, `signal: N/value`, `notify: kind/pid.N`, `ClockID`.
fn posix_timers(member: &Member) -> io::Result<Vec<PosixTimer>> {
    let text = fs::read_to_string(procfs::path(member.host_pid, "timers"))?;
    let mut timers: Vec<PosixTimer> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(": ") else { continue };
        if key == "ID" {
            let id = value.trim().parse().unwrap_or(0);
            timers.push(PosixTimer {
                id,
                clock: 0,
                signal: 0,
                notify: 0,
                value: 0,
                tid: 0,
                interval_ns: 0,
                remaining_ns: 0,
            });
            continue;
        }
        let Some(timer) = timers.last_mut() else { continue };
        match key {
            "signal" => {
                let (signal, pointer) = value.split_once('/').unwrap_or((value, "0"));
                timer.signal = signal.parse().unwrap_or(0);
                timer.value = u64::from_str_radix(pointer.trim_start_matches("0x"), 16).unwrap_or(0);
            }
            "notify" => {
                let (kind, target) = value.split_once('/').unwrap_or((value, ""));
                timer.notify = match kind {
                    "none" => 1,
                    "thread" => 2,
                    _ => 0,
                };
                if let Some(host_tid) = target.strip_prefix("tid.").and_then(|text| text.parse::<i32>().ok()) {
                    timer.notify |= 4;
                    timer.tid = crate::stop::inside(host_tid);
                }
            }
            "ClockID" => timer.clock = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    Ok(timers)
}
