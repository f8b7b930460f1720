//! Bringing every task of a sandbox to a stop, and letting go again.
//!
//! The cgroup is frozen first: attaching to a thread while another one of its process is in `execve` would deadlock a
//! single-threaded tracer. Under the freezer each task is seized and interrupted, which works with the freezer of cgroup v2
//! and not with that of v1. Then results of interrupted calls are repaired, and the cgroup is thawed at once: from there on
//! every task is held by its ptrace stop alone, so that a keeper that dies lets all of them run on by itself.
//!
//! Invariant: whoever drops a [`Stopped`] leaves no task stopped or traced and the cgroup thawed.

use crate::capture::CallHistory;
use crate::error::{CaptureError, Refusal};
use crate::fault;
use crate::leftovers;
use crate::procfs::{self, Status};
use branchbox_sys::ptrace::{self, Registers, Stop};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the freezer, and then each task, may take.
const STOP_MAX: Duration = Duration::from_millis(2000);
/// How often a sandbox that is caught in the middle of a vfork is let go and stopped again.
const ATTEMPTS: u32 = 40;
/// Between attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(5);
/// Below this a wait spins, since a stop usually takes a few microseconds.
const SPIN: Duration = Duration::from_micros(500);

const OPTIONS: u64 = ptrace::SUSPEND_SECCOMP | ptrace::TRACE_SYSGOOD;
const ERESTARTNOHAND: u64 = (-514i64).cast_unsigned();
const EINTR: u64 = (-4i64).cast_unsigned();

/// System calls that answer a mere stop with `EINTR` (signal(7), "interruption by stop signals", and the sources of
/// epoll, semop, sigtimedwait and AIO): epoll_wait, epoll_pwait, epoll_pwait2, rt_sigtimedwait, semop, semtimedop,
/// io_getevents, io_pgetevents, and socket calls with a timeout (recvmsg, recvfrom, recvmmsg, sendmsg, sendto, sendmmsg,
/// accept, accept4, connect, and read, write, readv, writev, sendfile, splice, which on everything else are restarted).
const INTERRUPTED_BY_STOP: &[u64] =
    &[232, 281, 441, 128, 65, 220, 208, 333, 47, 45, 299, 46, 44, 307, 43, 288, 42, 0, 1, 19, 20, 40, 275];

/// A stopped task.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// Host id.
    pub tid: i32,
    /// Host id of its process.
    pub pid: i32,
    /// As stopped, after repair.
    pub registers: Registers,
    /// Stopped by this job-control signal before we came.
    pub group_stop: Option<i32>,
}

/// Every task of a sandbox, stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    freezer: Freezer,
    pub tasks: Vec<Task>,
    seized: Vec<i32>,
    /// Whether the freezer holds them too.
    frozen: bool,
}

/// What tasks are stopped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To be captured: all of them.
    Capture,
    /// To be put right after a keeper's death: those that it can have left in disorder.
    Recovery,
}

/// The freezer of a cgroup of version 2.
#[derive(Debug)]
struct Freezer(PathBuf);

impl Freezer {
    fn set(&self, frozen: bool) -> io::Result<()> {
        fs::write(self.0.join("cgroup.freeze"), if frozen { "1" } else { "0" })
    }

    fn is_frozen(&self) -> io::Result<bool> {
        Ok(fs::read_to_string(self.0.join("cgroup.events"))?.lines().any(|line| line == "frozen 1"))
    }

    fn freeze(&self) -> Result<(), CaptureError> {
        let begin = Instant::now();
        self.set(true).map_err(CaptureError::io("freezing the cgroup"))?;
        while !self.is_frozen().map_err(CaptureError::io("reading cgroup.events"))? {
            if begin.elapsed() > STOP_MAX {
                let waited_ms = begin.elapsed().as_millis() as u64;
                return Err(CaptureError::Stop { waited_ms, what: "the cgroup did not freeze".into() });
            }
            pause(begin);
        }
        Ok(())
    }
}

fn pause(begin: Instant) {
    if begin.elapsed() < SPIN {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Processes in a cgroup and everything below it, as host ids, with the path below `cgroup`.
pub(crate) fn processes(cgroup: &Path) -> io::Result<Vec<(i32, String)>> {
    fn walk(directory: &Path, below: &str, all: &mut Vec<(i32, String)>) -> io::Result<()> {
        let text = fs::read_to_string(directory.join("cgroup.procs"))?;
        all.extend(text.lines().filter_map(|line| Some((line.trim().parse().ok()?, below.to_owned()))));
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let inner = if below.is_empty() { name } else { format!("{below}/{name}") };
                walk(&entry.path(), &inner, all)?;
            }
        }
        Ok(())
    }
    let mut all = Vec::new();
    walk(cgroup, "", &mut all)?;
    Ok(all)
}

enum Caught {
    All(Stopped),
    Vfork(i32),
    Traced { tid: i32, by: i32 },
}

/// Who traces a task.
enum Tracer {
    Nobody,
    /// A process of the sandbox.
    Inside(i32),
    /// A keeper that is about to end, or a debugger of the host.
    Outside(i32),
}

impl Stopped {
    /// Stops every task in `cgroup`.
    ///
    /// # Errors
    /// [`CaptureError::Stop`] when one does not stop in time, [`CaptureError::Refused`] when one is traced by another.
    /// In either case nothing is left stopped.
    pub(crate) fn stop(cgroup: &Path, history: &mut CallHistory) -> Result<Self, CaptureError> {
        Self::stop_for(Purpose::Capture, cgroup, history)
    }

    fn stop_for(purpose: Purpose, cgroup: &Path, history: &mut CallHistory) -> Result<Self, CaptureError> {
        let begin = Instant::now();
        let mut blocker = None;
        for _ in 0..ATTEMPTS {
            blocker = Some(match Self::attempt(purpose, cgroup, history)? {
                Caught::All(stopped) => return Ok(stopped),
                blocker => blocker,
            });
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        let what = match blocker {
            Some(Caught::Traced { tid, by }) => return Err(traced(tid, by)),
            Some(Caught::Vfork(pid)) => format!("process {} ({}) is in vfork", inside(pid), procfs::name(pid)),
            _ => String::new(),
        };
        Err(CaptureError::Stop { waited_ms: begin.elapsed().as_millis() as u64, what })
    }

    fn attempt(purpose: Purpose, cgroup: &Path, history: &mut CallHistory) -> Result<Caught, CaptureError> {
        let freezer = Freezer(cgroup.to_owned());
        let mut stopped = Self { freezer, tasks: Vec::new(), seized: Vec::new(), frozen: false };
        let step = |capture: &'static str, recovery: &'static str| {
            let name = if purpose == Purpose::Capture { capture } else { recovery };
            fault::point(name).map_err(CaptureError::io(name))
        };
        step("stop.begin", "recover.begin")?;
        stopped.freezer.freeze()?;
        stopped.frozen = true;
        step("stop.frozen", "recover.frozen")?;
        let blocker = stopped.seize_all(purpose, cgroup)?;
        step("stop.seized", "recover.seized")?;
        stopped.repair_all()?;
        step("stop.repaired", "recover.repaired")?;
        history.note(&mut stopped.tasks).map_err(CaptureError::io("looking at calls that wait"))?;
        if let Some(blocker) = blocker {
            return blocker;
        }
        stopped.freezer.set(false).map_err(CaptureError::io("thawing the cgroup"))?;
        stopped.frozen = false;
        step("stop.thawed", "recover.thawed")?;
        Ok(Caught::All(stopped))
    }

    /// Whoever the freezer stopped must be seized before the thaw, or it would see its call fail; so the rest is seized even
    /// when one task makes this attempt fail.
    fn seize_all(
        &mut self,
        purpose: Purpose,
        cgroup: &Path,
    ) -> Result<Option<Result<Caught, CaptureError>>, CaptureError> {
        let tasks = list(cgroup).map_err(CaptureError::io("listing tasks"))?;
        let mut blocker = None;
        for &(tid, pid) in &tasks {
            if in_vfork(tid) {
                // No keeper can have put it on a stub, and no stop reaches it.
                if purpose == Purpose::Capture {
                    blocker = blocker.or(Some(Ok(Caught::Vfork(tid))));
                }
                continue;
            }
            if purpose == Purpose::Capture && ended_leader(tid, &tasks) {
                let why = "a process without it cannot be made again";
                // A process that is ending is in this state too, until its other threads have ended.
                blocker = Some(Err(refusal(tid, "an ended first thread", why).passing()));
                continue;
            }
            match tracer(tid, &tasks)? {
                Tracer::Nobody => match (purpose, self.seize(tid, pid)) {
                    (_, Ok(())) => {}
                    (Purpose::Capture, Err(error)) => return Err(error),
                    (Purpose::Recovery, Err(error)) => {
                        tracing::warn!(tid, %error, "a task cannot be looked at");
                    }
                },
                Tracer::Outside(by) => blocker = blocker.or(Some(Ok(Caught::Traced { tid, by }))),
                Tracer::Inside(by) if purpose == Purpose::Capture => blocker = Some(Err(traced(tid, by))),
                Tracer::Inside(_) => {}
            }
        }
        Ok(blocker)
    }

    fn repair_all(&mut self) -> Result<(), CaptureError> {
        for task in &mut self.tasks {
            let failed = format!("repairing task {}", task.tid);
            leftovers::bring_back(task)
                .and_then(|()| repair_interrupted(task))
                .and_then(|()| leave_rseq(task))
                .map_err(CaptureError::io(failed))?;
        }
        Ok(())
    }

    fn seize(&mut self, tid: i32, pid: i32) -> Result<(), CaptureError> {
        let failed = |what: &str| CaptureError::io(format!("{what} task {tid} ({})", procfs::name(tid)));
        let was_stopped = procfs::Stat::read(tid).map_err(failed("reading"))?.state() == 'T';
        ptrace::seize(tid, OPTIONS).map_err(failed("seizing"))?;
        self.seized.push(tid);
        if !was_stopped {
            ptrace::interrupt(tid).map_err(failed("interrupting"))?;
        }
        let signal = wait_stop(tid)?;
        let registers = ptrace::registers(tid).map_err(failed("reading registers of"))?;
        let group_stop = (was_stopped && signal != 5).then_some(signal);
        self.tasks.push(Task { tid, pid, registers, group_stop });
        // Our code in a live process is 64-bit code.
        const USER_CS: u64 = 0x33;
        if registers.cs != USER_CS {
            return Err(refusal(tid, "32-bit code", "32-bit programs are not captured"));
        }
        Ok(())
    }

    /// Lets every task run on.
    pub(crate) fn release(mut self) {
        self.let_go();
    }

    /// Takes the ends of tasks that were all killed: a pid namespace does not go away while a tracer has not. A process's
    /// first thread reports after all others, which are listed behind it.
    pub(crate) fn bury(mut self) {
        for tid in self.seized.drain(..).rev() {
            while ptrace::wait(tid).is_ok_and(|stop| !matches!(stop, Stop::Exited(_) | Stop::Killed(_))) {}
        }
    }

    /// After an error under the freezer, who was not seized or repaired yet is so now: it would see its call fail.
    fn let_go(&mut self) {
        if self.frozen {
            let cgroup = self.freezer.0.clone();
            for (tid, pid) in list(&cgroup).unwrap_or_default() {
                if !self.seized.contains(&tid) && !in_vfork(tid) {
                    // One that is traced by another or gone cannot be helped.
                    let _ = self.seize(tid, pid);
                }
            }
            if let Err(error) = self.repair_all() {
                tracing::warn!(%error, "a call in the sandbox may see that it was interrupted");
            }
        }
        for tid in self.seized.drain(..) {
            detach(tid);
        }
        let _ = self.freezer.set(false);
        self.frozen = false;
    }
}

/// Lets a task go, whatever it is at: one that runs is stopped first, and one that was killed meanwhile is taken, or its
/// parent would never hear of it.
fn detach(tid: i32) {
    if ptrace::detach(tid).is_err() {
        let _ = ptrace::interrupt(tid);
        if wait_stop(tid).is_ok() {
            let _ = ptrace::detach(tid);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn list(cgroup: &Path) -> io::Result<Vec<(i32, i32)>> {
    let mut tasks = Vec::new();
    for (pid, _) in processes(cgroup)? {
        for tid in procfs::threads(pid)? {
            tasks.push((tid, pid));
        }
    }
    Ok(tasks)
}

/// Whether a task is a first thread that has ended while others of its process live.
fn ended_leader(tid: i32, tasks: &[(i32, i32)]) -> bool {
    tasks.iter().any(|&(other, pid)| pid == tid && other != tid)
        && procfs::Stat::read(tid).is_ok_and(|stat| stat.state() == 'Z')
}

fn refusal(tid: i32, object: &str, why: &str) -> CaptureError {
    CaptureError::Refused(Box::new(Refusal {
        pid: inside(tid),
        process: procfs::name(tid),
        object: object.into(),
        why: why.into(),
        hint: "end the process and try again".into(),
        passing: false,
    }))
}

/// Waits for a seized task's stop and gives the signal it reports (SIGTRAP for our own interruption).
fn wait_stop(tid: i32) -> Result<i32, CaptureError> {
    let begin = Instant::now();
    loop {
        match ptrace::try_wait(tid).map_err(CaptureError::io(format!("waiting for task {tid}")))? {
            Some(Stop::Event(signal)) => return Ok(signal),
            Some(Stop::Exited(_) | Stop::Killed(_)) => {
                let waited_ms = begin.elapsed().as_millis() as u64;
                return Err(CaptureError::Stop { waited_ms, what: format!("task {tid} ended meanwhile") });
            }
            Some(Stop::Signal(signal)) => {
                ptrace::cont(tid, signal).map_err(CaptureError::io("continuing to the stop"))?
            }
            Some(_) => ptrace::cont(tid, 0).map_err(CaptureError::io("continuing to the stop"))?,
            None if begin.elapsed() > STOP_MAX => {
                let waited_ms = begin.elapsed().as_millis() as u64;
                let what = format!("process {} ({})", inside(tid), procfs::name(tid));
                return Err(CaptureError::Stop { waited_ms, what });
            }
            None => pause(begin),
        }
    }
}

/// The pid inside of a host pid.
pub(crate) fn inside(pid: i32) -> i32 {
    Status::read(pid).map_or(0, |status| status.inside("NSpid"))
}

/// Whether a task waits for its vfork child, in which no stop can reach it: vfork, or clone with `CLONE_VFORK`.
fn in_vfork(tid: i32) -> bool {
    const CLONE_VFORK: u64 = 0x4000;
    let Ok(text) = fs::read_to_string(procfs::path(tid, "syscall")) else { return false };
    let mut words = text.split_whitespace();
    let number = words.next().unwrap_or("");
    let first = words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()).unwrap_or(0);
    match number {
        "58" => true,
        "56" => first & CLONE_VFORK != 0,
        "435" => clone3_flags(tid, first).is_some_and(|flags| flags & CLONE_VFORK != 0),
        _ => false,
    }
}

fn clone3_flags(tid: i32, address: u64) -> Option<u64> {
    use std::os::unix::fs::FileExt;
    let mut raw = [0u8; 8];
    fs::File::open(procfs::path(tid, "mem")).ok()?.read_exact_at(&mut raw, address).ok()?;
    Some(u64::from_le_bytes(raw))
}

fn tracer(tid: i32, tasks: &[(i32, i32)]) -> Result<Tracer, CaptureError> {
    let status = Status::read(tid).map_err(CaptureError::io(format!("reading the status of task {tid}")))?;
    Ok(match status.number("TracerPid") as i32 {
        0 => Tracer::Nobody,
        by if tasks.iter().any(|&(other, pid)| by == other || by == pid) => Tracer::Inside(by),
        by => Tracer::Outside(by),
    })
}

fn traced(tid: i32, tracer: i32) -> CaptureError {
    CaptureError::Refused(Box::new(Refusal {
        pid: inside(tid),
        process: procfs::name(tid),
        object: format!("a tracer, process {} ({})", inside(tracer), procfs::name(tracer)),
        why: "a task can have only one tracer".into(),
        hint: "end the debugger or tracer and try again".into(),
        passing: false,
    }))
}

/// A call that only our stop interrupted is never seen to fail: with this result the kernel makes the call again, or gives
/// the real `EINTR` when a handler runs.
fn repair_interrupted(task: &mut Task) -> io::Result<()> {
    let registers = &mut task.registers;
    if registers.rax == EINTR && INTERRUPTED_BY_STOP.contains(&registers.orig_rax) {
        registers.rax = ERESTARTNOHAND;
        ptrace::set_registers(task.tid, registers)?;
    }
    Ok(())
}

/// A thread inside a restartable sequence goes on at the sequence's abort address, as after any interruption: its system
/// calls on our behalf end the sequence (rseq(2), `struct rseq_cs`: version, flags, start, length, abort address).
fn leave_rseq(task: &mut Task) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let rseq = ptrace::rseq(task.tid)?;
    if rseq.address == 0 {
        return Ok(());
    }
    let memory = fs::File::open(procfs::path(task.pid, "mem"))?;
    let mut raw = [0u8; 32];
    memory.read_exact_at(&mut raw[..8], rseq.address + 8)?;
    let word = |raw: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| raw[at + i]));
    let section = word(&raw, 0);
    if section != 0 && memory.read_exact_at(&mut raw, section).is_ok() {
        let (start, length, abort) = (word(&raw, 8), word(&raw, 16), word(&raw, 24));
        if task.registers.rip.wrapping_sub(start) < length {
            task.registers.rip = abort;
            ptrace::set_registers(task.tid, &task.registers)?;
        }
    }
    Ok(())
}

/// Runs `work` while every task of a cgroup stands still, and gives its result with the microseconds they did; no task sees
/// a call of its fail because of it.
///
/// # Errors
/// As a capture's own stop.
pub fn still<T>(cgroup: &Path, history: &mut CallHistory, work: impl FnOnce() -> T) -> Result<(T, u64), CaptureError> {
    let begin = Instant::now();
    let stopped = Stopped::stop(cgroup, history)?;
    let result = work();
    history.settle();
    stopped.release();
    Ok((result, begin.elapsed().as_micros() as u64))
}

/// Puts right what a keeper that died during a capture left: a frozen cgroup, threads on the stub, stub bytes, batch pages.
///
/// Tasks that a debugger inside traces, or that wait in vfork, are no hindrance: no keeper can have touched them.
///
/// # Errors
/// As a capture's own stop.
pub fn recover(cgroup: &Path) -> Result<(), CaptureError> {
    let stopped = Stopped::stop_for(Purpose::Recovery, cgroup, &mut CallHistory::default())?;
    leftovers::clear(&stopped.tasks).map_err(CaptureError::io("clearing what a dead keeper left"))?;
    fault::point("recover.cleared").map_err(CaptureError::io("recover.cleared"))?;
    stopped.release();
    Ok(())
}
