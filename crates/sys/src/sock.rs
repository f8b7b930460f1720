//! Socket calls with raw option values and raw addresses, as a record needs them.
#![expect(unsafe_code, reason = "options and addresses of any family travel as bytes")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

const ADDRESS_BYTES_MAX: usize = 128;

fn check(result: libc::c_int) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result.cast_unsigned() as usize) }
}

/// getsockopt(2) as bytes, at most `bytes`.
///
/// # Errors
/// What the call says.
pub fn option(socket: impl AsFd, level: i32, name: i32, bytes: usize) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; bytes];
    let mut length = bytes as libc::socklen_t;
    // SAFETY: the buffer is live and `length` is its size.
    check(unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length)
    })?;
    value.truncate(length as usize);
    Ok(value)
}

/// getsockopt(2) of an integer.
///
/// # Errors
/// What the call says.
pub fn option_i32(socket: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let value = option(socket, level, name, 4)?;
    let mut raw = [0u8; 4];
    raw[..value.len().min(4)].copy_from_slice(&value[..value.len().min(4)]);
    Ok(i32::from_le_bytes(raw))
}

/// setsockopt(2) from bytes.
///
/// # Errors
/// What the call says.
pub fn set_option(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is live and its size is given.
    check(unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    })
    .map(drop)
}

type NameCall = unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address_by(call: NameCall, socket: impl AsFd) -> io::Result<Vec<u8>> {
    let mut raw = [0u8; ADDRESS_BYTES_MAX];
    let mut length = raw.len() as libc::socklen_t;
    // SAFETY: the buffer is live and `length` is its size.
    check(unsafe { call(socket.as_fd().as_raw_fd(), raw.as_mut_ptr().cast(), &raw mut length) })?;
    Ok(raw[..(length as usize).min(ADDRESS_BYTES_MAX)].to_vec())
}

/// getsockname(2): the raw address, family first.
///
/// # Errors
/// What the call says.
pub fn local_address(socket: impl AsFd) -> io::Result<Vec<u8>> {
    address_by(libc::getsockname, socket)
}

/// getpeername(2).
///
/// # Errors
/// `ENOTCONN`.
pub fn peer_address(socket: impl AsFd) -> io::Result<Vec<u8>> {
    address_by(libc::getpeername, socket)
}

/// socket(2), close-on-exec.
///
/// # Errors
/// What the call says.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the call just made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// socketpair(2) of unix sockets, close-on-exec.
///
/// # Errors
/// What the call says.
pub fn pair(kind: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the array is live and has two places.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the call just made both and nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// bind(2) to a raw address.
///
/// # Errors
/// What the call says.
pub fn bind(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    // SAFETY: the address is live and its size is given.
    check(unsafe { libc::bind(socket.as_fd().as_raw_fd(), address.as_ptr().cast(), address.len() as libc::socklen_t) })
        .map(drop)
}

/// connect(2) to a raw address.
///
/// # Errors
/// What the call says.
pub fn connect(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    // SAFETY: the address is live and its size is given.
    check(unsafe {
        libc::connect(socket.as_fd().as_raw_fd(), address.as_ptr().cast(), address.len() as libc::socklen_t)
    })
    .map(drop)
}

/// listen(2).
///
/// # Errors
/// What the call says.
pub fn listen(socket: impl AsFd, backlog: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::listen(socket.as_fd().as_raw_fd(), backlog) }).map(drop)
}

/// accept4(2), close-on-exec.
///
/// # Errors
/// What the call says.
pub fn accept(socket: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: null address pointers are allowed.
    let fd = check(unsafe {
        libc::accept4(socket.as_fd().as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
    })?;
    // SAFETY: the call just made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `ioctl(fd, SIOCINQ)` or `SIOCOUTQ`-like requests that fill one integer.
///
/// # Errors
/// What the call says.
pub fn queue_bytes(fd: impl AsFd, request: u64) -> io::Result<usize> {
    let mut value: libc::c_int = 0;
    // SAFETY: the request fills one live integer.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut value) })?;
    Ok(value.max(0).cast_unsigned() as usize)
}

/// socket(2) made inside another network namespace; the descriptor works from anywhere.
///
/// # Errors
/// What setns(2) and socket(2) say.
pub fn socket_in(namespace: &OwnedFd, family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    std::thread::scope(|scope| {
        // Entering a network namespace changes the calling thread alone, so a thread of its own does it and ends.
        let made = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            socket(family, kind, protocol)
        });
        made.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}

/// recv(2) with `MSG_PEEK | MSG_DONTWAIT`: the bytes, and whether something beside them (descriptors, credentials) was there.
///
/// # Errors
/// `EAGAIN` when nothing waits.
pub fn peek(socket: impl AsFd, bytes_max: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut data = vec![0u8; bytes_max.max(1)];
    let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: `msghdr` is plain integers and pointers; all zeroes is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names one live buffer of the size given, and no control buffer.
    let got = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    data.truncate(got.cast_unsigned());
    Ok((data, message.msg_flags & libc::MSG_CTRUNC != 0))
}

/// One unix socket as sock_diag(7) shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnixDiag {
    /// Its inode number.
    pub inode: u32,
    /// 1 connected, 7 not, 10 listening.
    pub state: u8,
    /// The peer's inode number, 0 for none.
    pub peer: u32,
    /// Bytes or connections waiting.
    pub waiting: u32,
    /// Of a listener, the backlog's limit.
    pub backlog: u32,
    /// Shutdown bits: 1 receiving, 2 sending.
    pub shutdown: u8,
}

/// Every unix socket of a network namespace.
///
/// # Errors
/// What the netlink socket says.
pub fn unix_sockets(namespace: &OwnedFd) -> io::Result<Vec<UnixDiag>> {
    const NETLINK_SOCK_DIAG: i32 = 4;
    const NLMSG_ERROR: u16 = 2;
    const NLMSG_DONE: u16 = 3;
    let netlink = socket_in(namespace, libc::AF_NETLINK, libc::SOCK_RAW, NETLINK_SOCK_DIAG)?;
    let mut request = Vec::new();
    request.extend_from_slice(&40u32.to_le_bytes());
    request.extend_from_slice(&20u16.to_le_bytes());
    request.extend_from_slice(&0x301u16.to_le_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(&[libc::AF_UNIX as u8, 0, 0, 0]);
    request.extend_from_slice(&u32::MAX.to_le_bytes());
    request.extend_from_slice(&0u32.to_le_bytes());
    request.extend_from_slice(&(4u32 | 0x10 | 0x40).to_le_bytes());
    request.extend_from_slice(&[0; 8]);
    rustix::io::write(&netlink, &request)?;
    let mut all = Vec::new();
    loop {
        let mut buffer = vec![0u8; 64 * 1024];
        let got = rustix::io::read(&netlink, &mut buffer)?;
        let mut rest = &buffer[..got];
        while rest.len() >= 16 {
            let length = (u32_at(rest, 0) as usize).clamp(16, rest.len());
            match u16_at(rest, 4) {
                NLMSG_DONE => return Ok(all),
                NLMSG_ERROR => return Err(io::Error::from_raw_os_error(-(u32_at(rest, 16).cast_signed()))),
                _ => all.extend(unix_diag(&rest[16..length])),
            }
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
}

fn u16_at(raw: &[u8], at: usize) -> u16 {
    raw.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    raw.get(at..at + 4).map_or(0, |four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn unix_diag(message: &[u8]) -> Option<UnixDiag> {
    let mut diag = UnixDiag { inode: u32_at(message, 4), state: *message.get(2)?, ..UnixDiag::default() };
    let mut rest = message.get(16..)?;
    while rest.len() >= 4 {
        let length = (u16_at(rest, 0) as usize).clamp(4, rest.len());
        match u16_at(rest, 2) {
            2 => diag.peer = u32_at(rest, 4),
            4 => (diag.waiting, diag.backlog) = (u32_at(rest, 4), u32_at(rest, 8)),
            6 => diag.shutdown = rest.get(4).copied().unwrap_or(0),
            _ => {}
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    Some(diag)
}

/// Length in instructions of the classic filter attached to a socket (`SO_GET_FILTER` with no room, socket(7)).
///
/// # Errors
/// What getsockopt(2) says.
pub fn attached_filter_length(socket: impl AsFd, name: i32) -> io::Result<u32> {
    let mut length: libc::socklen_t = 0;
    // SAFETY: no buffer is given and the length says so; the call only writes the length.
    check(unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, name, std::ptr::null_mut(), &raw mut length)
    })?;
    Ok(length)
}

/// Whether an error waits on a socket, without taking it (`POLLERR`).
///
/// # Errors
/// What poll(2) says.
pub fn has_error(socket: impl AsFd) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one live entry is given.
    check(unsafe { libc::poll(&raw mut entry, 1, 0) })?;
    Ok(entry.revents & libc::POLLERR != 0)
}

/// Who gets a descriptor's signals (`F_GETOWN`, fcntl(2)): a pid, a negated process group, or 0.
///
/// # Errors
/// `EBADF` for a descriptor that is only a path.
pub fn signal_owner(fd: impl AsFd) -> io::Result<i32> {
    // The raw call gives a group as a negative number, which must not be taken for an error; `F_GETOWN_EX` tells them apart.
    let mut owner = [0i32; 2];
    const F_GETOWN_EX: libc::c_int = 16;
    // SAFETY: the kernel fills a live pair of integers, `struct f_owner_ex`.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), F_GETOWN_EX, owner.as_mut_ptr()) })?;
    Ok(owner[1])
}
