//! Attributes of other tasks that are read and set from outside.
#![expect(unsafe_code, reason = "these calls have no safe wrapper that takes another task's id")]

use std::io;

fn check(result: libc::c_long) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// get_robust_list(2): address of the head and its size; (0, 0) when there is none.
///
/// # Errors
/// `ESRCH`, `EPERM`.
pub fn robust_list(tid: i32) -> io::Result<(u64, u64)> {
    let (mut head, mut length) = (0usize, 0usize);
    // SAFETY: both out pointers are live.
    check(unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut length) })?;
    Ok((head as u64, length as u64))
}

/// One resource limit, soft and hard.
pub type Limit = (u64, u64);
/// Resources there are (`RLIM_NLIMITS`).
pub const LIMITS: u32 = 16;

/// prlimit(2): reads, and sets when `new` is given.
///
/// # Errors
/// `EPERM` when raising a hard limit.
pub fn limit(pid: i32, resource: u32, new: Option<Limit>) -> io::Result<Limit> {
    let new = new.map(|(soft, hard)| libc::rlimit64 { rlim_cur: soft, rlim_max: hard });
    let mut old = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let new_pointer = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the new value is null or live, the old one is live.
    check(unsafe { libc::syscall(libc::SYS_prlimit64, pid, resource, new_pointer, &raw mut old) })?;
    Ok((old.rlim_cur, old.rlim_max))
}

/// Scheduling attributes, `struct sched_attr` as the kernel fills it (sched_setattr(2)).
///
/// # Errors
/// `ESRCH`.
pub fn scheduling(tid: i32) -> io::Result<Vec<u8>> {
    let mut raw = vec![0u8; 56];
    // SAFETY: the buffer is live and its size is given.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, tid, raw.as_mut_ptr(), raw.len(), 0) })?;
    Ok(raw)
}

/// Sets scheduling attributes.
///
/// # Errors
/// `EPERM`, `EINVAL`.
pub fn set_scheduling(tid: i32, raw: &[u8]) -> io::Result<()> {
    if raw.len() < 48 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the buffer is live and its first word says its size, which the kernel bounds.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, raw.as_ptr(), 0) }).map(drop)
}

/// ioprio_get(2) of one task.
///
/// # Errors
/// `ESRCH`.
pub fn io_priority(tid: i32) -> io::Result<i32> {
    // SAFETY: plain numbers; 1 is IOPRIO_WHO_PROCESS.
    check(unsafe { libc::syscall(libc::SYS_ioprio_get, 1, tid) }).map(|value| value as i32)
}

/// ioprio_set(2) of one task.
///
/// # Errors
/// `EPERM`.
pub fn set_io_priority(tid: i32, value: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_ioprio_set, 1, tid, value) }).map(drop)
}

/// sched_getaffinity(2): the raw mask.
///
/// # Errors
/// `ESRCH`.
pub fn affinity(tid: i32) -> io::Result<Vec<u8>> {
    let mut mask = vec![0u8; 1024];
    // SAFETY: the buffer is live and its size is given; the call says how much it filled.
    let filled = check(unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, mask.len(), mask.as_mut_ptr()) })?;
    mask.truncate(filled as usize);
    Ok(mask)
}

/// sched_setaffinity(2).
///
/// # Errors
/// `EINVAL` when no processor of the mask is there.
pub fn set_affinity(tid: i32, mask: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is live and its size is given.
    check(unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, mask.len(), mask.as_ptr()) }).map(drop)
}

/// Sets the file-system ids of the calling thread and gives the old ones; used around making an object on behalf of a user.
pub fn set_fs_ids(uid: u32, gid: u32) -> (u32, u32) {
    // SAFETY: these calls cannot fail and only change the calling thread.
    let old_gid = unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    // SAFETY: as above.
    let old_uid = unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    (old_uid as u32, old_gid as u32)
}

/// The calling thread's id.
#[must_use]
pub fn current_tid() -> i32 {
    // SAFETY: no preconditions.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    tid as i32
}
