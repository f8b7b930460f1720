//! kcmp(2): whether two tasks share one kernel object.
#![expect(unsafe_code, reason = "kcmp has no safe wrapper")]

use std::cmp::Ordering;
use std::io;

/// What is compared; the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// Two open file descriptions, by descriptor number.
    File = 0,
    /// Address spaces.
    Memory = 1,
    /// Descriptor tables.
    Files = 2,
    /// Working directory, root and umask.
    Fs = 3,
    /// Signal actions.
    SignalHandlers = 4,
    /// I/O contexts.
    Io = 5,
    /// SysV semaphore undo lists.
    SemaphoreUndo = 6,
}

fn raw(pid_a: i32, pid_b: i32, kind: i32, a: u64, b: u64) -> io::Result<i64> {
    // SAFETY: plain numbers, or for KCMP_EPOLL_TFD the address of a live slot, see below.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, pid_a, pid_b, kind, a, b) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn ordering(result: i64) -> io::Result<Ordering> {
    match result {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// Orders two open file descriptions; a total order for one boot, equal when they are one.
///
/// # Errors
/// `ESRCH`, `EBADF`, `ENOSYS` on kernels built without it.
pub fn files(pid_a: i32, fd_a: i32, pid_b: i32, fd_b: i32) -> io::Result<Ordering> {
    ordering(raw(pid_a, pid_b, Kind::File as i32, fd_a as u64, fd_b as u64)?)
}

/// Orders two tasks by one of their objects; equal when they share it.
///
/// # Errors
/// `ESRCH`, `ENOSYS`.
pub fn order(pid_a: i32, pid_b: i32, kind: Kind) -> io::Result<Ordering> {
    ordering(raw(pid_a, pid_b, kind as i32, 0, 0)?)
}

/// Whether descriptor `fd` of a task is what its epoll descriptor `epoll` watches under number `watched`, the `nth` such.
///
/// # Errors
/// `ENOENT` when the epoll watches no such number.
pub fn epoll_target(pid: i32, fd: i32, epoll: i32, watched: i32, nth: u32) -> io::Result<bool> {
    #[repr(C)]
    struct Slot {
        efd: u32,
        tfd: u32,
        toff: u32,
    }
    const KCMP_EPOLL_TFD: i32 = 7;
    let slot = Slot { efd: epoll as u32, tfd: watched as u32, toff: nth };
    let result = raw(pid, pid, KCMP_EPOLL_TFD, fd as u64, std::ptr::from_ref(&slot) as u64)?;
    Ok(ordering(result)? == Ordering::Equal)
}
