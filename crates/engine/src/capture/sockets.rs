//! Sockets, read through duplicates of the descriptors: nothing is taken from a queue and no repair mode is entered.
//!
//! A restored machine makes its connections anew, by really connecting inside its own network namespace, and puts what was
//! unread into them. So a capture needs addresses, who is connected to whom, options, and the unread bytes of each receiving
//! side. Bytes that the sending side still holds (the receiver's window was full) cannot be seen from outside: such a
//! connection is refused by name.

use super::objects::{Entry, Registry};
use super::{Context, Member};
use crate::error::CaptureError;
use crate::procfs;
use branchbox_snapshot::{
    ObjectId, ObjectKind, SocketOption, TcpSocket, TcpState, UdpSocket, UnixKind, UnixMessage, UnixSocket, UnixState,
};
use branchbox_sys::sock::{self, UnixDiag};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::collections::HashMap;
use std::io;

const SOL_SOCKET: i32 = 1;
const SO_TYPE: i32 = 3;
const SO_SNDBUF: i32 = 7;
const SO_RCVBUF: i32 = 8;
const SO_PEERCRED: i32 = 17;
const SO_PASSCRED: i32 = 16;
const SO_PEEK_OFF: i32 = 42;
const SO_PROTOCOL: i32 = 38;
const SO_DOMAIN: i32 = 39;
const SO_BUF_LOCK: i32 = 72;
const SOL_TCP: i32 = 6;
const SOL_UDP: i32 = 17;
const SO_BINDTODEVICE: i32 = 25;
const SO_GET_FILTER: i32 = 26;
const TCP_INFO: i32 = 11;
/// Offsets in `struct tcp_info` (linux/tcp.h), low words: bytes acknowledged, received, sent, and sent again.
const TCP_INFO_ACKED: usize = 120;
const TCP_INFO_RECEIVED: usize = 128;
const TCP_INFO_SENT: usize = 200;
const TCP_INFO_RESENT: usize = 208;
const AF_UNIX: i32 = 1;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
const EOPNOTSUPP: i32 = 95;
const ENOPROTOOPT: i32 = 92;
const FIONREAD: u64 = 0x541b;
const SIOCOUTQNSD: u64 = 0x894b;
/// Messages of one datagram or packet socket.
const MESSAGES_MAX: usize = 4096;
/// Largest message of a datagram or packet socket.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
const CLOSE_HINT: &str = "close it and try again";

/// Options that are kept: level, name, bytes. One that a kind of socket does not have is skipped; one that is as a new
/// socket has it is not set again.
const OPTIONS: &[(i32, i32, usize)] = &[
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
const TCP_OPTIONS: &[(i32, i32, usize)] = &[
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
const UDP_OPTIONS: &[(i32, i32, usize)] = &[
    (SOL_UDP, 1, 4),   // UDP_CORK
    (SOL_UDP, 103, 4), // UDP_SEGMENT
    (SOL_UDP, 104, 4), // UDP_GRO
];
const IP_OPTIONS: &[(i32, i32, usize)] = &[
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
const IPV6_OPTIONS: &[(i32, i32, usize)] = &[
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

/// What kind of socket a descriptor is; filled in by [`describe`] when all are known.
pub(crate) fn placeholder(entry: &Entry) -> Result<ObjectKind, CaptureError> {
    let socket = entry.duplicate()?;
    let option = |name| sock::option_i32(&socket, SOL_SOCKET, name).map_err(entry.handle().io());
    let (domain, kind, protocol) = (option(SO_DOMAIN)?, option(SO_TYPE)?, option(SO_PROTOCOL)?);
    match (domain, kind, protocol) {
        (AF_UNIX, 1 | 2 | 5, _) => Ok(ObjectKind::Unix(Box::new(UnixSocket {
            kind: match kind {
                1 => UnixKind::Stream,
                2 => UnixKind::Datagram,
                _ => UnixKind::SeqPacket,
            },
            local: Vec::new(),
            file: None,
            state: UnixState::Plain,
            inbox: Vec::new(),
            shutdown: 0,
            peer_credentials: None,
            accepted_from: None,
            options: Vec::new(),
        }))),
        (AF_INET | AF_INET6, 1, 6) => Ok(ObjectKind::Tcp(Box::new(TcpSocket {
            family: domain,
            local: Vec::new(),
            peer: None,
            state: TcpState::Closed { bound: false },
            inbox: None,
            sent_fin: false,
            got_fin: false,
            active: false,
            options: Vec::new(),
        }))),
        (AF_INET | AF_INET6, 2, 17) => {
            Ok(ObjectKind::Udp(Box::new(UdpSocket { family: domain, local: None, peer: None, options: Vec::new() })))
        }
        _ => {
            Err(entry.handle().refuse(format!("sockets of family {domain}, type {kind} are not captured"), CLOSE_HINT))
        }
    }
}

/// Describes all sockets.
pub(crate) fn describe(context: &mut Context<'_>, registry: &mut Registry) -> Result<(), CaptureError> {
    let sockets = std::mem::take(&mut registry.sockets);
    if sockets.is_empty() {
        return Ok(());
    }
    refuse_groups(context, &sockets)?;
    let diags = unix_diags(context)?;
    let by_inode: HashMap<u32, ObjectId> = sockets.iter().map(|(id, entry)| (entry.inode as u32, *id)).collect();
    for (id, entry) in &sockets {
        let socket = entry.duplicate()?;
        let kind = match registry.objects[id.0 as usize].kind.clone() {
            ObjectKind::Unix(mut unix) => {
                describe_unix(context, entry, &socket, &diags, &by_inode, &mut unix)?;
                ObjectKind::Unix(unix)
            }
            ObjectKind::Tcp(mut tcp) => {
                describe_tcp(context, entry, &socket, &mut tcp)?;
                ObjectKind::Tcp(tcp)
            }
            ObjectKind::Udp(mut udp) => {
                describe_udp(entry, &socket, &mut udp)?;
                ObjectKind::Udp(udp)
            }
            other => other,
        };
        registry.objects[id.0 as usize].kind = kind;
    }
    connect_tcp(registry, &sockets)?;
    connect_unix(registry, &sockets)
}

/// Refuses memberships of multicast groups other than every host's own, which `/proc/<pid>/net/igmp` and `igmp6` list.
fn refuse_groups(context: &Context<'_>, sockets: &[(ObjectId, Entry)]) -> Result<(), CaptureError> {
    const ALL_HOSTS: &str = "010000E0";
    const ALL_NODES: [&str; 2] = ["ff020000000000000000000000000001", "ff010000000000000000000000000001"];
    let read = |name: &str| {
        let path = procfs::path(context.request.guest_pid, name);
        // A kernel without the protocol has no such file and no memberships.
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let four = read("net/igmp");
    let joined_four =
        four.lines().filter(|line| line.starts_with('\t')).filter_map(|line| line.split_whitespace().next());
    let six = read("net/igmp6");
    let joined_six = six.lines().filter_map(|line| line.split_whitespace().nth(2));
    let joined =
        joined_four.filter(|group| *group != ALL_HOSTS).chain(joined_six.filter(|g| !ALL_NODES.contains(g))).next();
    match (joined, sockets.first()) {
        (Some(_), Some((_, entry))) => {
            let member = &entry.member;
            let object = "a membership of a multicast group in its sandbox";
            Err(super::refuse(member, object, "memberships are not captured", "leave the group and try again"))
        }
        _ => Ok(()),
    }
}

fn unix_diags(context: &Context<'_>) -> Result<HashMap<u32, UnixDiag>, CaptureError> {
    let path = procfs::path(context.request.guest_pid, "ns/net");
    let namespace = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| CaptureError::io("opening the network namespace")(errno.into()))?;
    let all = sock::unix_sockets(&namespace).map_err(CaptureError::io("listing unix sockets"))?;
    Ok(all.into_iter().map(|diag| (diag.inode, diag)).collect())
}

fn options(
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

fn describe_unix(
    context: &mut Context<'_>,
    entry: &Entry,
    socket: &OwnedFd,
    diags: &HashMap<u32, UnixDiag>,
    by_inode: &HashMap<u32, ObjectId>,
    unix: &mut UnixSocket,
) -> Result<(), CaptureError> {
    let handle = entry.handle();
    let Some(diag) = diags.get(&(entry.inode as u32)) else {
        return Err(handle.refuse("it belongs to another network namespace", CLOSE_HINT));
    };
    unix.local = sock::local_address(socket).map_err(handle.io())?;
    unix.file = bound_file(context, &unix.local);
    refuse_lost_file(entry, diag, unix)?;
    unix.shutdown = diag.shutdown;
    unix.options = options(entry, socket, &[OPTIONS])?;
    unix.state = match diag.state {
        10 if diag.waiting > 0 => {
            return Err(handle
                .refuse("connections wait to be accepted on it", "let the program accept them and try again")
                .passing());
        }
        10 => UnixState::Listening(diag.backlog as i32),
        _ if diag.peer != 0 => match by_inode.get(&diag.peer) {
            Some(&peer) => UnixState::Connected(peer),
            None => {
                return Err(handle
                    .refuse("it is connected to a socket that no captured process holds", CLOSE_HINT)
                    .passing());
            }
        },
        1 => UnixState::PeerGone,
        _ => UnixState::Plain,
    };
    if !matches!(unix.state, UnixState::Plain) && unix.kind != UnixKind::Datagram {
        unix.peer_credentials = peer_credentials(context, entry, socket);
    }
    if !matches!(unix.state, UnixState::Listening(_)) {
        unix.inbox = inbox(context, entry, socket, unix.kind)?;
    }
    let alone = !matches!(unix.state, UnixState::Connected(_));
    if unix.kind == UnixKind::Datagram && alone && !unix.inbox.is_empty() {
        return Err(entry
            .handle()
            .refuse("datagrams wait to be read from it", "let the program read them and try again")
            .passing());
    }
    Ok(())
}

/// A socket that must be bound again needs the file it was bound to.
fn refuse_lost_file(entry: &Entry, diag: &UnixDiag, unix: &UnixSocket) -> Result<(), CaptureError> {
    let path = unix.local.get(2..).filter(|path| path.first().is_some_and(|&byte| byte != 0));
    let bound_again = diag.state != 1 || unix.kind == UnixKind::Datagram;
    match path {
        Some(path) if bound_again && path[0] != b'/' => Err(entry
            .handle()
            .refuse("it was bound to a relative path, whose place is not known", "bind it to an absolute path")),
        Some(_) if bound_again && unix.file.is_none() => {
            Err(entry.handle().refuse("the file it was bound to is gone or is another now", CLOSE_HINT))
        }
        _ => Ok(()),
    }
}

/// Mode and owner of the file a socket is bound to, if that file is there.
fn bound_file(context: &Context<'_>, local: &[u8]) -> Option<(u32, u32, u32)> {
    let path = local.get(2..).filter(|path| path.first().is_some_and(|&byte| byte != 0))?;
    let path = path.split(|&byte| byte == 0).next()?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(&context.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let facts = rustix::fs::fstat(found.ok()?).ok()?;
    if facts.st_mode & 0o170_000 != 0o140_000 {
        return None;
    }
    Some((facts.st_mode & 0o7777, context.id(facts.st_uid), context.id(facts.st_gid)))
}

/// Who made, connected or listened, as the kernel remembers it; the guest itself is 1.
fn peer_credentials(context: &mut Context<'_>, entry: &Entry, socket: &OwnedFd) -> Option<(i32, u32, u32)> {
    let raw = sock::option(socket, SOL_SOCKET, SO_PEERCRED, 12).ok()?;
    let word =
        |at: usize| raw.get(at..at + 4).map_or(0, |four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    let host_pid = word(0).cast_signed();
    if host_pid == context.request.guest_pid {
        return None;
    }
    let known = context.members.iter().find(|member: &&Member| member.host_pid == host_pid).map(|member| member.pid);
    if known.is_none() {
        context.notes.push(branchbox_snapshot::Note {
            kind: "peer_credentials".into(),
            pid: Some(entry.member.pid),
            detail: format!("descriptor {}: the process at its other end is gone; its pid reads as another", entry.fd),
        });
    }
    Some((known.unwrap_or(0), context.id(word(4)), context.id(word(8))))
}

fn inbox(
    context: &mut Context<'_>,
    entry: &Entry,
    socket: &OwnedFd,
    kind: UnixKind,
) -> Result<Vec<UnixMessage>, CaptureError> {
    let handle = entry.handle();
    let waiting = sock::queue_bytes(socket, FIONREAD).map_err(handle.io())?;
    let in_flight = || handle.refuse("descriptors are in flight on it", "let its reader read and try again").passing();
    if waiting == 0 && kind != UnixKind::Datagram {
        return Ok(Vec::new());
    }
    if waiting > 0 && sock::option_i32(socket, SOL_SOCKET, SO_PASSCRED).unwrap_or(0) != 0 {
        let why = "messages that carry their sender's credentials wait on it";
        return Err(handle.refuse(why, "let its reader read and try again").passing());
    }
    let mut keep = |data: &[u8]| -> Result<UnixMessage, CaptureError> {
        Ok(UnixMessage { data: context.writer.append(data).map_err(CaptureError::Image)? })
    };
    if kind == UnixKind::Stream {
        let (data, beside) = sock::peek(socket, waiting).map_err(handle.io())?;
        if beside || data.len() != waiting {
            return Err(in_flight());
        }
        return Ok(vec![keep(&data)?]);
    }
    let mut messages = Vec::new();
    for (data, beside) in peek_all(entry, socket)? {
        if beside {
            return Err(in_flight());
        }
        if data.is_empty() {
            return Err(handle.refuse("an empty message waits on it", "let its reader read and try again").passing());
        }
        messages.push(keep(&data)?);
    }
    Ok(messages)
}

/// Every message that waits on a socket that keeps them apart: with a peek offset each peek gives the next one. The
/// program's own offset is put back.
fn peek_all(entry: &Entry, socket: &OwnedFd) -> Result<Vec<(Vec<u8>, bool)>, CaptureError> {
    let own = sock::option_i32(socket, SOL_SOCKET, SO_PEEK_OFF).map_err(entry.handle().io())?;
    let set = |offset: i32| {
        sock::set_option(socket, SOL_SOCKET, SO_PEEK_OFF, &offset.to_le_bytes()).map_err(entry.handle().io())
    };
    set(0)?;
    let mut all = Vec::new();
    let result = loop {
        match sock::peek(socket, MESSAGE_BYTES_MAX) {
            Ok((data, beside)) => {
                let ends = data.is_empty();
                all.push((data, beside));
                if ends || all.len() > MESSAGES_MAX {
                    break Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
            Err(error) => break Err(entry.handle().io()(error)),
        }
    };
    set(own)?;
    result.map(|()| all)
}

fn describe_tcp(
    context: &mut Context<'_>,
    entry: &Entry,
    socket: &OwnedFd,
    tcp: &mut TcpSocket,
) -> Result<(), CaptureError> {
    let handle = entry.handle();
    let info = sock::option(socket, SOL_TCP, TCP_INFO, 256).map_err(handle.io())?;
    let word =
        |at: usize| info.get(at..at + 4).map_or(0, |four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    tcp.local = sock::local_address(socket).map_err(handle.io())?;
    tcp.peer = sock::peer_address(socket).ok();
    let mut tables = vec![OPTIONS, TCP_OPTIONS, IP_OPTIONS];
    if tcp.family == AF_INET6 {
        tables.push(IPV6_OPTIONS);
    }
    tcp.options = options(entry, socket, &tables)?;
    let state = info.first().copied().unwrap_or(7);
    match state {
        10 if word(24) > 0 => {
            return Err(handle
                .refuse("connections wait to be accepted on it", "let the program accept them and try again")
                .passing());
        }
        10 => tcp.state = TcpState::Listening(word(28) as i32),
        7 if was_connected(socket, &word) => {
            if sock::has_error(socket).map_err(handle.io())? {
                return Err(handle
                    .refuse("its connection failed and the program has not looked yet", "try again")
                    .passing());
            }
            tcp.state = TcpState::PeerGone;
            (tcp.sent_fin, tcp.got_fin) = (true, true);
        }
        7 => tcp.state = TcpState::Closed { bound: port(&tcp.local) != 0 },
        1 | 4 | 5 | 8 | 9 | 11 => {
            tcp.state = TcpState::PeerGone;
            tcp.sent_fin = matches!(state, 4 | 5 | 9 | 11);
            tcp.got_fin = matches!(state, 8 | 9 | 11);
        }
        _ => return Err(handle.refuse("it is in the middle of connecting", "try again").passing()),
    }
    if matches!(tcp.state, TcpState::PeerGone) {
        if sock::queue_bytes(socket, SIOCOUTQNSD).map_err(handle.io())? > 0 {
            return Err(handle
                .refuse("it holds bytes that its receiver has no room for", "let the receiver read and try again")
                .passing());
        }
        let waiting = sock::queue_bytes(socket, FIONREAD).map_err(handle.io())?;
        if waiting > 0 {
            let (data, _) = sock::peek(socket, waiting).map_err(handle.io())?;
            if data.len() != waiting {
                return Err(handle.refuse("urgent data is in flight on it", "let its reader read and try again"));
            }
            tcp.inbox = Some(context.writer.append(&data).map_err(CaptureError::Image)?);
        }
    }
    Ok(())
}

/// Whether a socket in the closed state had a connection: something was acknowledged or received, or is still unread.
fn was_connected(socket: &OwnedFd, word: &impl Fn(usize) -> u32) -> bool {
    word(TCP_INFO_ACKED) != 0
        || word(TCP_INFO_RECEIVED) != 0
        || sock::queue_bytes(socket, FIONREAD).is_ok_and(|waiting| waiting > 0)
}

fn describe_udp(entry: &Entry, socket: &OwnedFd, udp: &mut UdpSocket) -> Result<(), CaptureError> {
    let handle = entry.handle();
    if sock::peek(socket, 1).is_ok() {
        return Err(handle
            .refuse("datagrams wait to be read from it", "let the program read them and try again")
            .passing());
    }
    let local = sock::local_address(socket).map_err(handle.io())?;
    udp.local = (port(&local) != 0).then_some(local);
    udp.peer = sock::peer_address(socket).ok();
    let mut tables = vec![OPTIONS, UDP_OPTIONS, IP_OPTIONS];
    if udp.family == AF_INET6 {
        tables.push(IPV6_OPTIONS);
    }
    udp.options = options(entry, socket, &tables)?;
    Ok(())
}

/// The port of a raw internet address.
pub(crate) fn port(address: &[u8]) -> u16 {
    address.get(2..4).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

/// Address and port with IPv4 as mapped IPv6, so that both ends of a connection compare.
fn normal(address: &[u8]) -> Option<([u8; 16], u16)> {
    let family = i32::from(u16::from_le_bytes([*address.first()?, *address.get(1)?]));
    let mut ip = [0u8; 16];
    if family == AF_INET {
        ip[10..12].fill(0xff);
        ip[12..].copy_from_slice(address.get(4..8)?);
    } else {
        ip.copy_from_slice(address.get(8..24)?);
    }
    Some((ip, port(address)))
}

/// Finds the two ends of each connection, and which of them was accepted.
fn connect_tcp(registry: &mut Registry, sockets: &[(ObjectId, Entry)]) -> Result<(), CaptureError> {
    let mut ends = HashMap::new();
    let mut listening = Vec::new();
    let entries: HashMap<ObjectId, &Entry> = sockets.iter().map(|(id, entry)| (*id, entry)).collect();
    for (id, _) in sockets {
        let ObjectKind::Tcp(tcp) = &registry.objects[id.0 as usize].kind else { continue };
        match (&tcp.state, &tcp.peer) {
            (TcpState::Listening(_), _) => listening.push(port(&tcp.local)),
            (TcpState::PeerGone, Some(peer)) => {
                ends.insert((normal(&tcp.local), normal(peer)), *id);
            }
            _ => {}
        }
    }
    for (id, entry) in sockets {
        let ObjectKind::Tcp(tcp) = &mut registry.objects[id.0 as usize].kind else { continue };
        let (TcpState::PeerGone, Some(peer)) = (&tcp.state, &tcp.peer) else { continue };
        tcp.active = !listening.contains(&port(&tcp.local));
        match ends.get(&(normal(peer), normal(&tcp.local))) {
            Some(other) if !arrived(entry, entries[other])? => {
                let why = "bytes are on their way between its ends";
                return Err(entry.handle().refuse(why, "let the receiver read and try again").passing());
            }
            Some(&other) => tcp.state = TcpState::Connected(other),
            None if tcp.got_fin => {}
            None => {
                return Err(entry
                    .handle()
                    .refuse("its other end is held by no captured process", "try again")
                    .passing());
            }
        }
    }
    Ok(())
}

/// Whether all that one end has sent has arrived at the other; an end of stream counts for one byte.
fn arrived(from: &Entry, to: &Entry) -> Result<bool, CaptureError> {
    let info = |entry: &Entry| -> Result<Vec<u8>, CaptureError> {
        sock::option(entry.duplicate()?, SOL_TCP, TCP_INFO, 256).map_err(entry.handle().io())
    };
    let long = |info: &[u8], at: usize| {
        info.get(at..at + 8).map_or(0, |raw| u64::from_le_bytes(std::array::from_fn(|index| raw[index])))
    };
    let (sender, receiver) = (info(from)?, info(to)?);
    if sender.len() < TCP_INFO_RESENT + 8 {
        return Ok(true); // Before Linux 4.19 the kernel did not count this.
    }
    let sent = long(&sender, TCP_INFO_SENT).saturating_sub(long(&sender, TCP_INFO_RESENT));
    let received = long(&receiver, TCP_INFO_RECEIVED);
    Ok(received == sent || received == sent + 1)
}

/// Marks unix sockets that were accepted from a listener that is still there.
fn connect_unix(registry: &mut Registry, sockets: &[(ObjectId, Entry)]) -> Result<(), CaptureError> {
    let mut listeners = HashMap::new();
    for (id, _) in sockets {
        if let ObjectKind::Unix(unix) = &registry.objects[id.0 as usize].kind
            && matches!(unix.state, UnixState::Listening(_))
        {
            listeners.insert(unix.local.clone(), *id);
        }
    }
    for (id, entry) in sockets {
        let ObjectKind::Unix(unix) = &mut registry.objects[id.0 as usize].kind else { continue };
        let connected = matches!(unix.state, UnixState::Connected(_) | UnixState::PeerGone);
        if !connected || unix.kind == UnixKind::Datagram || unix.local.len() <= 2 {
            continue;
        }
        match listeners.get(&unix.local) {
            Some(&listener) => unix.accepted_from = Some(listener),
            None => return Err(entry.handle().refuse("the listening socket it came from is gone", CLOSE_HINT)),
        }
    }
    Ok(())
}
