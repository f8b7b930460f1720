//! Who is at the other end of a unix socket.
//!
//! C: `getsockopt(SO_PEERCRED)`, unix(7). `rustix` has this call but cannot represent pid 0, which the kernel gives for a
//! peer outside the caller's pid namespace: the one answer that a guest looks for.
#![expect(unsafe_code, reason = "see above: pid 0 must be representable")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The pid of the process that connected, or 0 if it lies outside this process's pid namespace.
///
/// # Errors
/// What the kernel says, such as `ENOTSOCK`.
pub fn peer_pid(socket: impl AsFd) -> io::Result<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `peer` is as long as `length` says and both outlive the call.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<libc::ucred>() {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    Ok(peer.pid)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_peer_of_the_same_process_has_its_pid() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().expect("pair");
        assert_eq!(super::peer_pid(&a).expect("peer"), std::process::id().cast_signed());
    }
}
