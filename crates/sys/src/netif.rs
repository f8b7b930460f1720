//! Loopback of the calling thread's network namespace: `ioctl` of `netdevice(7)` on any inet socket.
//!
//! Needs `CAP_NET_ADMIN` in the user namespace that owns the network namespace.
#![expect(unsafe_code, reason = "interface ioctls have no safe wrapper")]

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

fn control_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn loopback_request() -> libc::ifreq {
    // SAFETY: `ifreq` is plain bytes and integers; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    request
}

/// Brings `lo` up, which gives it its addresses and local routes. `SIOCSIFFLAGS`.
///
/// # Errors
/// `EPERM` without the capability.
pub fn loopback_up() -> io::Result<()> {
    let socket = control_socket()?;
    let mut request = loopback_request();
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives through the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Adds an IPv4 default route over `lo`: a way that looks as if it led out, for checking that a check sees one. `SIOCADDRT`.
///
/// # Errors
/// `EPERM` without the capability, `ENETUNREACH` while `lo` is down.
pub fn default_route_over_loopback() -> io::Result<()> {
    let socket = control_socket()?;
    // SAFETY: `rtentry` is plain data and pointers; all zeroes is a valid value (no device named).
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    for address in [&mut route.rt_dst, &mut route.rt_genmask] {
        address.sa_family = libc::AF_INET as libc::sa_family_t;
    }
    let mut device = *b"lo\0";
    route.rt_flags = libc::RTF_UP as libc::c_ushort;
    route.rt_dev = device.as_mut_ptr().cast();
    // SAFETY: SIOCADDRT reads one `rtentry` and the name it points to; both live through the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw mut route) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
