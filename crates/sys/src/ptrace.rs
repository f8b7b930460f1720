//! ptrace(2), seize style: what the engine asks of a stopped task.
//!
//! All requests take the task's id in the caller's pid namespace and must come from the thread that seized it.
#![expect(unsafe_code, reason = "ptrace has no safe wrapper that covers seize, register sets of any size and sigmasks")]

use std::io;
use std::time::{Duration, Instant};

/// General registers, `struct user_regs_struct` of x86-64.
pub type Registers = libc::user_regs_struct;

/// `PTRACE_O_SUSPEND_SECCOMP` (Linux 4.3): filters of the tracee do not apply while it is traced.
pub const SUSPEND_SECCOMP: u64 = 1 << 21;
/// `PTRACE_O_TRACESYSGOOD`.
pub const TRACE_SYSGOOD: u64 = 1;
/// `PTRACE_O_TRACEFORK | TRACEVFORK | TRACECLONE`: new tasks are seized and stop before their first instruction.
pub const TRACE_NEW_TASKS: u64 = 2 | 4 | 8;
/// `PTRACE_O_EXITKILL` (Linux 3.8): the tracee dies with the tracer.
pub const EXIT_KILL: u64 = 1 << 20;

const SECCOMP_GET_FILTER: u32 = 0x420c;
const NT_X86_XSTATE: usize = 0x202;
const XSTATE_BYTES_MAX: usize = 16 * 1024;
const SIGINFO_BYTES: usize = 128;

/// One raw call; `addr` and `data` as ptrace(2) says for the request.
fn ptrace(request: u32, tid: i32, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: every caller below passes, for its request, either plain numbers or the address of a live buffer of the size
    // that ptrace(2) names for that request, valid for the whole call.
    let result =
        unsafe { libc::syscall(libc::SYS_ptrace, libc::c_ulong::from(request), tid as libc::c_long, addr, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// `PTRACE_SEIZE`: becomes the tracer without stopping the task.
///
/// # Errors
/// `ESRCH` if it is gone, `EPERM` if it is traced already.
pub fn seize(tid: i32, options: u64) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// `PTRACE_INTERRUPT`: stops a seized task; the stop is reported by wait.
///
/// # Errors
/// `ESRCH`.
pub fn interrupt(tid: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// `PTRACE_SETOPTIONS`.
///
/// # Errors
/// `ESRCH`.
pub fn set_options(tid: i32, options: u64) -> io::Result<()> {
    ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as usize).map(drop)
}

/// `PTRACE_DETACH`, delivering no signal.
///
/// # Errors
/// `ESRCH`.
pub fn detach(tid: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_DETACH, tid, 0, 0).map(drop)
}

/// `PTRACE_CONT`, delivering `signal` (0 for none).
///
/// # Errors
/// `ESRCH`.
pub fn cont(tid: i32, signal: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_CONT, tid, 0, signal as usize).map(drop)
}

/// `PTRACE_SYSCALL`: runs until the next entry to or exit from a system call.
///
/// # Errors
/// `ESRCH`.
pub fn to_syscall(tid: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_SYSCALL, tid, 0, 0).map(drop)
}

/// `PTRACE_GETREGS`.
///
/// # Errors
/// `ESRCH`.
pub fn registers(tid: i32) -> io::Result<Registers> {
    let mut registers = std::mem::MaybeUninit::<Registers>::zeroed();
    ptrace(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr() as usize)?;
    // SAFETY: all-zero is a value of this plain struct, and the call filled it.
    Ok(unsafe { registers.assume_init() })
}

/// `PTRACE_SETREGS`.
///
/// # Errors
/// `ESRCH`; `EIO` for values no task can have.
pub fn set_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    ptrace(libc::PTRACE_SETREGS, tid, 0, std::ptr::from_ref(registers) as usize).map(drop)
}

/// Vector and floating-point state (`NT_X86_XSTATE`), whatever its size on this processor.
///
/// # Errors
/// `ESRCH`.
pub fn xstate(tid: i32) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0u8; XSTATE_BYTES_MAX];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, std::ptr::from_mut(&mut part) as usize)?;
    buffer.truncate(part.iov_len);
    Ok(buffer)
}

/// Puts vector and floating-point state.
///
/// # Errors
/// `ESRCH`; `EINVAL` where the processor has another layout.
pub fn set_xstate(tid: i32, state: &[u8]) -> io::Result<()> {
    let part = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, std::ptr::from_ref(&part) as usize).map(drop)
}

/// `PTRACE_GETSIGMASK` (Linux 3.11): blocked signals, bit n-1 for signal n.
///
/// # Errors
/// `ESRCH`.
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    ptrace(libc::PTRACE_GETSIGMASK, tid, 8, std::ptr::from_mut(&mut mask) as usize)?;
    Ok(mask)
}

/// `PTRACE_SETSIGMASK`.
///
/// # Errors
/// `ESRCH`.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    ptrace(libc::PTRACE_SETSIGMASK, tid, 8, std::ptr::from_ref(&mask) as usize).map(drop)
}

/// Which queue of pending signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Of the one task.
    Task,
    /// Of the whole process.
    Process,
}

/// `PTRACE_PEEKSIGINFO` (Linux 3.10): pending signals with their values, oldest first, none taken.
///
/// # Errors
/// `ESRCH`.
pub fn pending_signals(tid: i32, queue: Queue) -> io::Result<Vec<[u8; SIGINFO_BYTES]>> {
    #[repr(C)]
    struct Args {
        off: u64,
        flags: u32,
        nr: i32,
    }
    const BATCH: usize = 16;
    let mut all = Vec::new();
    loop {
        let args = Args { off: all.len() as u64, flags: u32::from(queue == Queue::Process), nr: BATCH as i32 };
        let mut infos = [[0u8; SIGINFO_BYTES]; BATCH];
        let got =
            ptrace(libc::PTRACE_PEEKSIGINFO, tid, std::ptr::from_ref(&args) as usize, infos.as_mut_ptr() as usize)?;
        all.extend_from_slice(&infos[..got as usize]);
        if (got as usize) < BATCH {
            return Ok(all);
        }
    }
}

/// A task's rseq registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rseq {
    /// Address of the area; 0 when there is none.
    pub address: u64,
    /// Its size as registered.
    pub bytes: u32,
    /// The abort signature.
    pub signature: u32,
}

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
///
/// # Errors
/// `ESRCH`.
pub fn rseq(tid: i32) -> io::Result<Rseq> {
    #[repr(C)]
    #[derive(Default)]
    struct Config {
        address: u64,
        bytes: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut config = Config::default();
    ptrace(0x420f, tid, std::mem::size_of::<Config>(), std::ptr::from_mut(&mut config) as usize)?;
    Ok(Rseq { address: config.address, bytes: config.bytes, signature: config.signature })
}

/// Whether syscall user dispatch is on (`PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG`, Linux 6.4).
///
/// # Errors
/// `ESRCH`; `EIO` on older kernels.
pub fn user_dispatch(tid: i32) -> io::Result<bool> {
    let mut config = [0u64; 4];
    ptrace(0x4211, tid, std::mem::size_of_val(&config), config.as_mut_ptr() as usize)?;
    Ok(config[0] != 0)
}

/// One of a task's seccomp filters as BPF instructions of 8 bytes, number 0 the first installed.
///
/// # Errors
/// `ENOENT` when there are no more.
pub fn seccomp_filter(tid: i32, index: usize) -> io::Result<Vec<u8>> {
    let count = ptrace(SECCOMP_GET_FILTER, tid, index, 0)? as usize;
    let mut program = vec![0u8; count * 8];
    ptrace(SECCOMP_GET_FILTER, tid, index, program.as_mut_ptr() as usize)?;
    Ok(program)
}

/// `PTRACE_GETEVENTMSG`: of a new-task event, the new task's id.
///
/// # Errors
/// `ESRCH`.
pub fn event_message(tid: i32) -> io::Result<u64> {
    let mut message = 0u64;
    ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, std::ptr::from_mut(&mut message) as usize)?;
    Ok(message)
}

/// What wait reported of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Stopped by a seize-style event (`PTRACE_EVENT_STOP`), with the group-stop's signal or SIGTRAP.
    Event(i32),
    /// A fork, vfork or clone event.
    NewTask,
    /// Entry to or exit from a system call.
    Syscall,
    /// About to get this signal.
    Signal(i32),
    /// Ended with this exit code.
    Exited(i32),
    /// Ended by this signal.
    Killed(i32),
}

fn decode(status: i32) -> Stop {
    const EVENT_STOP: i32 = 128;
    if libc::WIFEXITED(status) {
        return Stop::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Stop::Killed(libc::WTERMSIG(status));
    }
    let signal = libc::WSTOPSIG(status);
    match (status >> 16, signal) {
        (EVENT_STOP, _) => Stop::Event(signal),
        (1..=3, _) => Stop::NewTask,
        (0, s) if s == libc::SIGTRAP | 0x80 => Stop::Syscall,
        _ => Stop::Signal(signal),
    }
}

/// Longest wait for one report. A killed leader of a process with traced threads reports only after all of them were
/// waited for, so no wait may be endless.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A report usually comes within microseconds; longer waits give the processor away.
const WAIT_SPIN: Duration = Duration::from_micros(300);

/// Waits for a task's next report.
///
/// # Errors
/// `ECHILD` if it is no tracee or child of ours; `TimedOut` after ten seconds.
pub fn wait(tid: i32) -> io::Result<Stop> {
    let begin = Instant::now();
    loop {
        if let Some(stop) = try_wait(tid)? {
            return Ok(stop);
        }
        let waited = begin.elapsed();
        if waited > WAIT_MAX {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("task {tid} reports nothing")));
        }
        if waited < WAIT_SPIN {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A task's next report if there is one already.
///
/// # Errors
/// As [`wait`].
pub fn try_wait(tid: i32) -> io::Result<Option<Stop>> {
    let mut status = 0;
    // SAFETY: the status points to a live integer.
    match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
        0 => Ok(None),
        got if got == tid => Ok(Some(decode(status))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The registers as bytes, for a record.
#[must_use]
pub fn registers_to_words(registers: &Registers) -> [u64; 27] {
    let r = registers;
    [
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi, r.rdi,
        r.orig_rax, r.rip, r.cs, r.eflags, r.rsp, r.ss, r.fs_base, r.gs_base, r.ds, r.es, r.fs, r.gs,
    ]
}

/// The registers from a record.
#[must_use]
pub fn registers_from_words(w: &[u64; 27]) -> Registers {
    Registers {
        r15: w[0],
        r14: w[1],
        r13: w[2],
        r12: w[3],
        rbp: w[4],
        rbx: w[5],
        r11: w[6],
        r10: w[7],
        r9: w[8],
        r8: w[9],
        rax: w[10],
        rcx: w[11],
        rdx: w[12],
        rsi: w[13],
        rdi: w[14],
        orig_rax: w[15],
        rip: w[16],
        cs: w[17],
        eflags: w[18],
        rsp: w[19],
        ss: w[20],
        fs_base: w[21],
        gs_base: w[22],
        ds: w[23],
        es: w[24],
        fs: w[25],
        gs: w[26],
    }
}
