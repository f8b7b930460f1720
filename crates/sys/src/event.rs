//! eventfd, signalfd and timerfd with the state they had.
#![expect(unsafe_code, reason = "signalfd and the tick ioctl have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `TFD_IOC_SET_TICKS` (Linux 3.17, `CONFIG_CHECKPOINT_RESTORE`).
const SET_TICKS: libc::c_ulong = 0x4008_5400;

fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call that gave this number just made it and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// eventfd(2) with a count of up to 64 bits.
///
/// # Errors
/// What the call says.
pub fn eventfd(count: u64, semaphore: bool) -> io::Result<OwnedFd> {
    let flags = libc::EFD_CLOEXEC | if semaphore { libc::EFD_SEMAPHORE } else { 0 };
    // SAFETY: plain numbers.
    let fd = owned(unsafe { libc::eventfd(0, flags) })?;
    if count > 0 {
        rustix::io::write(&fd, &count.to_le_bytes())?;
    }
    Ok(fd)
}

/// signalfd(2); bit n-1 of the mask is signal n.
///
/// # Errors
/// What the call says.
pub fn signalfd(mask: u64) -> io::Result<OwnedFd> {
    // SAFETY: the mask is live and of the size given.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, 8, libc::SFD_CLOEXEC) };
    owned(fd as libc::c_int)
}

/// timerfd_create(2) with its remaining time and missed ticks. An absolute timer is armed for what remained.
///
/// # Errors
/// What the calls say.
pub fn timerfd(clock: i32, ticks: u64, settime_flags: i32, value_ns: u64, interval_ns: u64) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = owned(unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC) })?;
    let spec = |ns: u64| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let setting = libc::itimerspec { it_interval: spec(interval_ns), it_value: spec(value_ns) };
    let flags = settime_flags & !libc::TFD_TIMER_ABSTIME;
    // SAFETY: the setting is live; a null old value is allowed.
    if unsafe { libc::timerfd_settime(fd.as_raw_fd(), flags, &raw const setting, std::ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the ioctl reads one live 64-bit integer.
    if ticks > 0 && unsafe { libc::ioctl(fd.as_raw_fd(), SET_TICKS, &raw const ticks) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// timerfd_gettime(2), for its effect: an expired periodic timer counts the ticks it missed and runs on, as it would at the
/// program's next read, so that what `/proc` shows of it is whole.
///
/// # Errors
/// `EINVAL` when it is no timer.
pub fn settle_timerfd(timer: impl AsFd) -> io::Result<()> {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut setting = libc::itimerspec { it_interval: zero, it_value: zero };
    // SAFETY: the setting is live.
    if unsafe { libc::timerfd_gettime(timer.as_fd().as_raw_fd(), &raw mut setting) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
