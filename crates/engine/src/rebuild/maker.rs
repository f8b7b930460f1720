//! Acting as the process that the kernel remembers.
//!
//! `SO_PEERCRED` of a unix socket names the process that made the pair, listened or connected, at the time it did. So these
//! calls are made by a short-lived child of the guest that has that process's pid and ids and shares the guest's descriptor
//! table; the number a program reads stays right when the pid later belongs to the restored process itself.

use branchbox_sys::region::{become_ids, run_as_child};
use rustix::fd::{AsFd, OwnedFd};
use std::io;

/// Pid, uid and gid inside; pid 0 where the process is long gone and its number unknown.
pub(super) type Maker = (i32, u32, u32);

/// Runs `work` as `maker`; without one, as the guest itself.
pub(super) fn act(maker: Option<Maker>, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let Some((pid, uid, gid)) = maker else { return work() };
    let errno = |error: io::Error| error.raw_os_error().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
    let code = run_as_child(pid, || match become_ids(uid, gid).and_then(|()| work()) {
        Ok(()) => 0,
        Err(error) => errno(error),
    })?;
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(i32::from(code))) }
}

/// A socket pair made by `maker`.
pub(super) fn pair(maker: Option<Maker>, kind: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    if maker.is_none() {
        return branchbox_sys::sock::pair(kind);
    }
    // Two numbers of this table, which the child fills with the pair.
    let mut near = placeholder()?;
    let mut far = placeholder()?;
    act(maker, || {
        let (one, other) = branchbox_sys::sock::pair(kind)?;
        rustix::io::dup3(&one, &mut near, rustix::io::DupFlags::CLOEXEC)?;
        rustix::io::dup3(&other, &mut far, rustix::io::DupFlags::CLOEXEC)?;
        Ok(())
    })?;
    Ok((near, far))
}

fn placeholder() -> io::Result<OwnedFd> {
    let null = std::fs::File::open("/dev/null")?;
    null.as_fd().try_clone_to_owned()
}
