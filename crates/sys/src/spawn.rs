//! Starting a command in a cgroup: clone3, the child's setup, exec, and the report of a setup that failed.
//!
//! C: `clone3` with `CLONE_INTO_CGROUP` (Linux 5.7), clone(2); where that is refused, `fork` and a write to
//! `cgroup.procs`. The child makes only plain system calls on data prepared before the clone: it never allocates and
//! takes no lock, so a caller with threads would do no harm either. The caller waits until the child has executed its
//! program or failed, so that nobody ever sees a child that is still a copy of the caller.
#![expect(unsafe_code, reason = "clone3, and the child's calls between clone and exec, have no safe wrapper")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Copies of the standard descriptors go to numbers from here up, so that none is overwritten while still needed.
const STDIO_COPY_MIN: RawFd = 3;

/// `CLONE_INTO_CGROUP` of linux/sched.h.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A child's setup step, as told in its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Entering the cgroup.
    Cgroup,
    /// Session, signals, limits, standard descriptors.
    Setup,
    /// Becoming the user.
    User,
    /// Entering the working directory.
    Cwd,
    /// Executing the program.
    Exec,
}

impl Step {
    const ALL: [Step; 5] = [Step::Cgroup, Step::Setup, Step::User, Step::Cwd, Step::Exec];
}

/// A command that did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No process could be made.
    #[error("clone")]
    Clone(#[source] io::Error),
    /// The child failed before its program ran; it is reaped.
    #[error("child setup, step {step:?}")]
    Child {
        /// The pid it had.
        pid: i32,
        /// Where it failed.
        step: Step,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What a child needs, prepared.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Directory of the cgroup it begins in.
    pub cgroup: BorrowedFd<'a>,
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Its uid, in all four places.
    pub uid: u32,
    /// Its gid.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: &'a [u32],
    /// Its working directory, entered as the user.
    pub cwd: &'a CStr,
    /// Paths tried in order, as `execvp` tries them.
    pub programs: &'a [CString],
    /// Its arguments, the name first.
    pub argv: &'a [CString],
    /// Its environment.
    pub env: &'a [CString],
    /// Soft and hard limit of open files.
    pub open_files: (u64, u64),
    /// How readily it is killed for memory.
    pub oom_score_adj: &'a CStr,
    /// Its standard input is a terminal that becomes its session's own.
    pub has_terminal: bool,
}

/// The raw forms that the child uses.
struct Raw<'a> {
    plan: &'a Plan<'a>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    report: RawFd,
}

/// Starts a command; returns when its program runs or could not be run.
///
/// # Errors
/// [`SpawnError`]; after it no child is left.
pub fn spawn(plan: &Plan<'_>) -> Result<i32, SpawnError> {
    use rustix::pipe::{PipeFlags, pipe_with};
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| SpawnError::Clone(errno.into()))?;
    let raw = Raw { plan, argv: pointers(plan.argv), env: pointers(plan.env), report: writer.as_raw_fd() };
    let pid = clone_child(&raw).map_err(SpawnError::Clone)?;
    drop(writer);
    let Some((step, source)) = read_report(&reader) else { return Ok(pid) };
    if let Some(child) = rustix::process::Pid::from_raw(pid) {
        let _ =
            rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()));
    }
    Err(SpawnError::Child { pid, step, source })
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

fn read_report(reader: &OwnedFd) -> Option<(Step, io::Error)> {
    let mut record = [0u8; 8];
    // Eight bytes are below PIPE_BUF, so a report comes whole or not at all.
    match rustix::io::retry_on_intr(|| rustix::io::read(reader, &mut record)) {
        Ok(8) => {
            let [a, b, c, d, e, f, g, h] = record;
            let step = Step::ALL.get(u32::from_le_bytes([a, b, c, d]) as usize).copied().unwrap_or(Step::Setup);
            Some((step, io::Error::from_raw_os_error(i32::from_le_bytes([e, f, g, h]))))
        }
        _ => None,
    }
}

fn clone_child(raw: &Raw<'_>) -> io::Result<i32> {
    // SAFETY: `clone_args` is plain integers; all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = raw.plan.cgroup.as_raw_fd() as u64;
    // SAFETY: `args` outlives the call and the size is its own. Without CLONE_VM the child runs on a copy of this memory,
    // and `in_child` makes only async-signal-safe calls and never returns.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) } {
        0 => in_child(raw, true),
        -1 => {
            let error = io::Error::last_os_error();
            // Out of processes or memory is no reason to try the other way.
            if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM)) {
                return Err(error);
            }
            fork_child(raw)
        }
        pid => Ok(i32::try_from(pid).unwrap_or(i32::MAX)),
    }
}

fn fork_child(raw: &Raw<'_>) -> io::Result<i32> {
    // SAFETY: as in `clone_child`: the child makes only async-signal-safe calls.
    match unsafe { libc::fork() } {
        0 => in_child(raw, false),
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

fn in_child(raw: &Raw<'_>, in_cgroup: bool) -> ! {
    let step = prepare_and_exec(raw, in_cgroup);
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    let mut record = [0u8; 8];
    record[..4].copy_from_slice(&(step as u32).to_le_bytes());
    record[4..].copy_from_slice(&errno.to_le_bytes());
    // SAFETY: pointer and length are those of `record`.
    unsafe { libc::write(raw.report, record.as_ptr().cast(), record.len()) };
    // SAFETY: always allowed; skips exit handlers, which belong to the parent.
    unsafe { libc::_exit(127) }
}

/// Returns only with the step that failed; `errno` says why.
fn prepare_and_exec(raw: &Raw<'_>, in_cgroup: bool) -> Step {
    let plan = raw.plan;
    if !in_cgroup && !write_file(plan.cgroup.as_raw_fd(), c"cgroup.procs", c"0") {
        return Step::Cgroup;
    }
    // Best effort: only raising the score is always allowed.
    write_file(libc::AT_FDCWD, c"/proc/self/oom_score_adj", plan.oom_score_adj);
    if !reset(plan) || !place_stdio(plan) || !take_terminal(plan) {
        return Step::Setup;
    }
    if !become_user(plan) {
        return Step::User;
    }
    // SAFETY: a NUL-terminated path.
    if unsafe { libc::chdir(plan.cwd.as_ptr()) } != 0 {
        return Step::Cwd;
    }
    execute(raw);
    Step::Exec
}

fn write_file(directory: RawFd, path: &CStr, text: &CStr) -> bool {
    // SAFETY: a NUL-terminated path; a wrong directory descriptor only makes it fail.
    let fd = unsafe { libc::openat(directory, path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    // SAFETY: pointer and length are those of `text`; a negative descriptor only makes it fail.
    fd >= 0 && unsafe { libc::write(fd, text.as_ptr().cast(), text.count_bytes()) } >= 0
}

fn reset(plan: &Plan<'_>) -> bool {
    // All zeroes: the default action, no flags, an empty mask. Raw calls, because the C library keeps two signals to itself.
    let default_action = [0u64; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel's own sigaction is four words here, and a default action needs no code; fixed signals are refused.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default_action.as_ptr(), 0usize, size_of::<u64>()) };
    }
    let none = 0u64;
    // SAFETY: the kernel's signal set is eight bytes, those of `none`; the raw call has no other effect than the mask.
    let masked = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0usize, size_of::<u64>())
    };
    let limit = libc::rlimit64 { rlim_cur: plan.open_files.0, rlim_max: plan.open_files.1 };
    // SAFETY: `limit` is valid for the call.
    let limited = unsafe { libc::setrlimit64(libc::RLIMIT_NOFILE, &raw const limit) };
    // The parent may run at a higher priority than any command; giving that up is always allowed.
    // SAFETY: plain numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
    // SAFETY: no memory is involved.
    masked == 0 && limited == 0 && unsafe { libc::setsid() } >= 0
}

fn place_stdio(plan: &Plan<'_>) -> bool {
    let mut copies = [-1; 3];
    for (copy, fd) in copies.iter_mut().zip(&plan.stdio) {
        // SAFETY: makes a new descriptor of this process; no memory is involved.
        *copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, STDIO_COPY_MIN) };
    }
    // Whatever was left open without close-on-exec is not the command's. Best effort: Linux 5.11.
    // SAFETY: changes flags of the child's own descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, STDIO_COPY_MIN, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    // SAFETY: replaces descriptors of the child alone, which runs no code that owns them.
    copies.iter().zip(0..).all(|(copy, number)| *copy >= 0 && unsafe { libc::dup2(*copy, number) } == number)
}

/// The session is new, so it has none yet, and the terminal is nobody's.
fn take_terminal(plan: &Plan<'_>) -> bool {
    // SAFETY: TIOCSCTTY takes a plain number (ioctl_tty(2)): 0, take it from nobody.
    !plan.has_terminal || unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } == 0
}

/// By raw calls: the C library's versions try to change every thread that the parent had.
fn become_user(plan: &Plan<'_>) -> bool {
    let (uid, gid) = (plan.uid, plan.gid);
    // SAFETY: pointer and length are those of `groups`.
    let groups = unsafe { libc::syscall(libc::SYS_setgroups, plan.groups.len(), plan.groups.as_ptr()) };
    // SAFETY: plain numbers.
    let group = groups == 0 && unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) } == 0;
    // SAFETY: plain numbers.
    group && unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) } == 0
}

/// As `execvp`: goes on after "not there", remembers "not allowed", stops at anything else.
fn execute(raw: &Raw<'_>) {
    let mut denied = false;
    for program in raw.plan.programs {
        // SAFETY: a NUL-terminated path and two NULL-terminated arrays of NUL-terminated texts, alive in the caller's frame.
        unsafe { libc::execve(program.as_ptr(), raw.argv.as_ptr(), raw.env.as_ptr()) };
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EACCES) => denied = true,
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            _ => return,
        }
    }
    let errno = if denied { libc::EACCES } else { libc::ENOENT };
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// Sends a signal by number, real-time signals included; `kill(2)`.
///
/// # Errors
/// `EINVAL` for a pid that names more than one process or a number that is no signal; else what the kernel says.
pub fn send_signal(pid: i32, signal: i32) -> io::Result<()> {
    if pid < 2 || !(1..=64).contains(&signal) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: plain numbers.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
