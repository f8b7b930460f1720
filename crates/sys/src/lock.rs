//! Record locks of an open file description (fcntl(2), `F_OFD_SETLK`, Linux 3.15).
#![expect(unsafe_code, reason = "fcntl with a lock has no safe wrapper for OFD locks")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Takes a lock without waiting; length 0 is to the end of the file.
///
/// # Errors
/// `EAGAIN` when another holds it.
pub fn set_description_lock(file: impl AsFd, exclusive: bool, start: u64, length: u64) -> io::Result<()> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start as i64,
        l_len: length as i64,
        l_pid: 0,
    };
    // SAFETY: the lock is live for the call.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
