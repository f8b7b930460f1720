//! Making a process in new namespaces: `clone3(2)` used as a fork, and the exec that ends the child's setup.
//!
//! The child gets a copy of the caller's memory, so after it the child may run ordinary code only when the caller had
//! one thread (another thread may have held the allocator's lock). [`fork_with`] checks that. Linux 5.5 (`CLONE_PIDFD`
//! with clone3; `set_tid` and `CLONE_INTO_CGROUP` are not used here). The base seccomp filter leaves clone3 alone.
#![expect(unsafe_code, reason = "clone3, close_range and dup2 have no safe wrapper for what is done here")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Exit code of a child whose setup panicked.
const PANIC_CODE: i32 = 101;
/// Descriptors are first copied to numbers from here up, so that no target number is overwritten while still needed.
const SAFE_FD_MIN: i32 = 128;

/// A process just made.
#[derive(Debug)]
pub struct Child {
    /// Its pid as the caller sees it.
    pub pid: i32,
    /// A descriptor of it; becomes readable when it ends.
    pub pidfd: OwnedFd,
}

/// Forks into new namespaces and runs `child` there; its return value is the exit code.
///
/// `flags` are `CLONE_NEW*`. C: `clone3(&args, sizeof args)`, clone(2).
///
/// # Errors
/// `EBUSY` when the caller has more than one thread; else what clone3 says (`ENOSPC`: a limit on namespaces).
pub fn fork_with(flags: u64, child: impl FnOnce() -> i32) -> io::Result<Child> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let mut pidfd: i32 = -1;
    // SAFETY: `clone_args` is plain integers; all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD.cast_unsigned() as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: `args` and `pidfd` outlive the call and the size is that of `args`. Without CLONE_VM the child has its own
    // copy of everything, with no stack given it goes on on a copy of this one, and there is no other thread whose locks it could miss.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match pid {
        0 => {
            let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(PANIC_CODE);
            // SAFETY: always allowed; skips the exit handlers, which belong to the parent.
            unsafe { libc::_exit(code) }
        }
        -1 => Err(io::Error::last_os_error()),
        pid => {
            // SAFETY: the kernel stored a new descriptor there that nobody else knows.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Child { pid: i32::try_from(pid).unwrap_or(i32::MAX), pidfd })
        }
    }
}

/// Puts every signal back to its default action and unblocks all: what an exec alone does not do (ignored signals and
/// the mask survive it). sigaction(2), `sigprocmask(2)`.
///
/// # Errors
/// What the kernel says; it has no reason to.
pub fn reset_signals() -> io::Result<()> {
    for signal in 1..=64 {
        // SAFETY: a signal's default action needs no code of ours; unknown or fixed signals are refused with EINVAL.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    nix::sys::signal::SigSet::empty().thread_set_mask().map_err(io::Error::from)
}

/// What [`exec`] runs.
#[derive(Debug)]
pub struct ExecPlan<'a> {
    /// Become descriptors 0, 1, 2, …; every other one is closed.
    pub fds: Vec<BorrowedFd<'a>>,
    /// Told of a failure, and closed by a success.
    pub report: BorrowedFd<'a>,
    /// First four bytes of that report, before the error number's four.
    pub report_kind: u32,
    /// The program.
    pub path: CString,
    /// Its arguments, the name first.
    pub argv: Vec<CString>,
    /// Its environment.
    pub env: Vec<CString>,
}

/// Lays out the descriptor table and becomes another program. Never returns: a failure is written to `report` as eight
/// bytes and ends the process, because the caller's descriptors are no longer what it believes.
///
/// C: `dup3`, `close_range` (Linux 5.9), `execve`.
pub fn exec(plan: &ExecPlan<'_>) -> ! {
    let report_fd = i32::try_from(plan.fds.len()).unwrap_or(0);
    let (fd, errno) = match arrange(plan, report_fd) {
        Ok(()) => {
            let Err(errno) = nix::unistd::execve(&plan.path, &plan.argv, &plan.env);
            (report_fd, errno as i32)
        }
        Err(error) => (plan.report.as_raw_fd(), error.raw_os_error().unwrap_or(libc::EIO)),
    };
    let mut record = [0u8; 8];
    record[..4].copy_from_slice(&plan.report_kind.to_le_bytes());
    record[4..].copy_from_slice(&errno.to_le_bytes());
    // SAFETY: the pointer and length are those of `record`; a wrong descriptor only makes the write fail.
    unsafe { libc::write(fd, record.as_ptr().cast(), record.len()) };
    // SAFETY: always allowed.
    unsafe { libc::_exit(127) }
}

fn arrange(plan: &ExecPlan<'_>, report_fd: i32) -> io::Result<()> {
    let mut copies = Vec::with_capacity(plan.fds.len());
    for fd in &plan.fds {
        copies.push(rustix::io::fcntl_dupfd_cloexec(fd, SAFE_FD_MIN)?);
    }
    let report = rustix::io::fcntl_dupfd_cloexec(plan.report, SAFE_FD_MIN)?;
    for (number, copy) in (0..).zip(&copies) {
        // SAFETY: replaces a descriptor of this process, which its owner never uses again: `exec` does not return.
        if unsafe { libc::dup2(copy.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: as above.
    if unsafe { libc::dup3(report.as_raw_fd(), report_fd, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    std::mem::forget((copies, report));
    let first = libc::c_uint::try_from(report_fd + 1).unwrap_or(libc::c_uint::MAX);
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
