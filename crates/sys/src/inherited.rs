//! Taking over descriptors that came as bare numbers: left open by an exec, or handed on by number inside a process.
//!
//! C: `fcntl(F_GETFD)`, `fcntl(F_SETFD)`, fcntl(2).
#![expect(unsafe_code, reason = "owning a descriptor by its number is a promise the compiler cannot check")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes over an open descriptor that nothing else in this process owns, and makes it close-on-exec.
///
/// The caller keeps the promise by asking once per number, and only for numbers that were inherited over an exec or
/// given up with `into_raw_fd`.
///
/// # Errors
/// `EBADF` when nothing is open there.
pub fn take(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; a number that is not open is refused with EBADF.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, as just seen, and nothing else owns it, as documented.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    #[test]
    fn only_open_descriptors_are_taken() {
        assert_eq!(super::take(1 << 20).map_err(|e| e.raw_os_error()).err(), Some(Some(libc::EBADF)));
        let (reader, _writer) = std::io::pipe().expect("pipe");
        let number = std::os::fd::OwnedFd::from(reader).into_raw_fd();
        assert!(super::take(number).is_ok());
    }
}
