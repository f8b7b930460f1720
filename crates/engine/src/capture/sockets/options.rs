//! Socket options: which are kept, and which make a socket one that is not captured.

use super::{CLOSE_HINT, SO_PASSCRED, SO_PEEK_OFF, SOL_SOCKET, SOL_TCP};
use crate::capture::objects::Entry;
use crate::error::CaptureError;
use branchbox_snapshot::SocketOption;
use branchbox_sys::sock;
use rustix::fd::OwnedFd;

const SO_SNDBUF: i32 = 7;
const SO_RCVBUF: i32 = 8;
const SO_BINDTODEVICE: i32 = 25;
const SO_GET_FILTER: i32 = 26;
const SO_BUF_LOCK: i32 = 72;
const SOL_UDP: i32 = 17;
const EOPNOTSUPP: i32 = 95;
const ENOPROTOOPT: i32 = 92;

/// Options that are kept: level, name, bytes. One that a kind of socket does not have is skipped; one that is as a new
/// socket has it is not set again.
pub(super) const OPTIONS: &[(i32, i32, usize)] = &[
    (SOL_SOCKET, 2, 4),   // SO_REUSEADDR
    (SOL_SOCKET, 15, 4),  // SO_REUSEPORT
    (SOL_SOCKET, 5, 4),   // SO_DONTROUTE
    (SOL_SOCKET, 9, 4),   // SO_KEEPALIVE
    (SOL_SOCKET, 6, 4),   // SO_BROADCAST
    (SOL_SOCKET, 10, 4),  // SO_OOBINLINE
    (SOL_SOCKET, 13, 8),  // SO_LINGER
    (SOL_SOCKET, 20, 16), // SO_RCVTIMEO
    (SOL_SOCKET, 21, 16), // SO_SNDTIMEO
    (SOL_SOCKET, SO_PASSCRED, 4),
    (SOL_SOCKET, 34, 4), // SO_PASSSEC
    (SOL_SOCKET, 76, 4), // SO_PASSPIDFD
    (SOL_SOCKET, 12, 4), // SO_PRIORITY
    (SOL_SOCKET, 18, 4), // SO_RCVLOWAT
    (SOL_SOCKET, 29, 4), // SO_TIMESTAMP
    (SOL_SOCKET, 35, 4), // SO_TIMESTAMPNS
    (SOL_SOCKET, 36, 4), // SO_MARK
    (SOL_SOCKET, 40, 4), // SO_RXQ_OVFL
    (SOL_SOCKET, SO_PEEK_OFF, 4),
    (SOL_SOCKET, 46, 4), // SO_BUSY_POLL
    (SOL_SOCKET, 60, 4), // SO_ZEROCOPY
];
pub(super) const TCP_OPTIONS: &[(i32, i32, usize)] = &[
    (SOL_TCP, 1, 4),   // TCP_NODELAY
    (SOL_TCP, 3, 4),   // TCP_CORK
    (SOL_TCP, 4, 4),   // TCP_KEEPIDLE
    (SOL_TCP, 5, 4),   // TCP_KEEPINTVL
    (SOL_TCP, 6, 4),   // TCP_KEEPCNT
    (SOL_TCP, 7, 4),   // TCP_SYNCNT
    (SOL_TCP, 8, 4),   // TCP_LINGER2
    (SOL_TCP, 9, 4),   // TCP_DEFER_ACCEPT
    (SOL_TCP, 13, 16), // TCP_CONGESTION
    (SOL_TCP, 18, 4),  // TCP_USER_TIMEOUT
    (SOL_TCP, 23, 4),  // TCP_FASTOPEN
    (SOL_TCP, 25, 4),  // TCP_NOTSENT_LOWAT
    (SOL_TCP, 36, 4),  // TCP_INQ
];
pub(super) const UDP_OPTIONS: &[(i32, i32, usize)] = &[
    (SOL_UDP, 1, 4),   // UDP_CORK
    (SOL_UDP, 103, 4), // UDP_SEGMENT
    (SOL_UDP, 104, 4), // UDP_GRO
];
pub(super) const IP_OPTIONS: &[(i32, i32, usize)] = &[
    (0, 1, 4),  // IP_TOS
    (0, 2, 4),  // IP_TTL
    (0, 8, 4),  // IP_PKTINFO
    (0, 10, 4), // IP_MTU_DISCOVER
    (0, 11, 4), // IP_RECVERR
    (0, 12, 4), // IP_RECVTTL
    (0, 13, 4), // IP_RECVTOS
    (0, 15, 4), // IP_FREEBIND
    (0, 19, 4), // IP_TRANSPARENT
    (0, 24, 4), // IP_BIND_ADDRESS_NO_PORT
    (0, 33, 4), // IP_MULTICAST_TTL
    (0, 34, 4), // IP_MULTICAST_LOOP
    (0, 49, 4), // IP_MULTICAST_ALL
];
pub(super) const IPV6_OPTIONS: &[(i32, i32, usize)] = &[
    (41, 26, 4), // IPV6_V6ONLY
    (41, 16, 4), // IPV6_UNICAST_HOPS
    (41, 18, 4), // IPV6_MULTICAST_HOPS
    (41, 19, 4), // IPV6_MULTICAST_LOOP
    (41, 23, 4), // IPV6_MTU_DISCOVER
    (41, 25, 4), // IPV6_RECVERR
    (41, 49, 4), // IPV6_RECVPKTINFO
    (41, 51, 4), // IPV6_RECVHOPLIMIT
    (41, 66, 4), // IPV6_RECVTCLASS
    (41, 67, 4), // IPV6_TCLASS
];

pub(super) fn options(
    entry: &Entry,
    socket: &OwnedFd,
    tables: &[&[(i32, i32, usize)]],
) -> Result<Vec<SocketOption>, CaptureError> {
    let mut all = Vec::new();
    for &(level, name, bytes) in tables.iter().copied().flatten() {
        match sock::option(socket, level, name, bytes) {
            Ok(value) => all.push(SocketOption { level, name, value }),
            // An option that this kind of socket does not have cannot have been set.
            Err(error) if matches!(error.raw_os_error(), Some(EOPNOTSUPP | ENOPROTOOPT)) => {}
            Err(error) => return Err(entry.handle().io()(error)),
        }
    }
    if sock::option(socket, SOL_SOCKET, SO_BINDTODEVICE, 16)
        .is_ok_and(|name| name.first().is_some_and(|&byte| byte != 0))
    {
        return Err(entry.handle().refuse("sockets bound to an interface are not captured", CLOSE_HINT));
    }
    // With no room for it the kernel gives the length of an attached filter.
    if sock::attached_filter_length(socket, SO_GET_FILTER).unwrap_or(0) > 0 {
        return Err(entry.handle().refuse("sockets with a packet filter are not captured", CLOSE_HINT));
    }
    let locked = sock::option_i32(socket, SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    for (bit, name) in [(1, SO_SNDBUF), (2, SO_RCVBUF)] {
        if locked & bit != 0 {
            // The kernel doubles what is set (socket(7)).
            let value = sock::option_i32(socket, SOL_SOCKET, name).map_err(entry.handle().io())? / 2;
            all.push(SocketOption { level: SOL_SOCKET, name, value: value.to_le_bytes().to_vec() });
        }
    }
    Ok(all)
}
