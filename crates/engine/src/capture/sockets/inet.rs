//! Internet sockets: both ends of a TCP connection are inside, one is outside, or the connection has ended.

use super::options::{IP_OPTIONS, IPV6_OPTIONS, OPTIONS, TCP_OPTIONS, UDP_OPTIONS, options};
use super::outside::{Ends, Other};
use super::{AF_INET, AF_INET6, FIONREAD, SOL_TCP};
use crate::capture::Context;
use crate::capture::objects::{Entry, Registry};
use crate::error::CaptureError;
use crate::procfs;
use branchbox_snapshot::{Note, ObjectId, ObjectKind, TcpSocket, TcpState, UdpSocket};
use branchbox_sys::sock;
use rustix::fd::OwnedFd;
use std::collections::HashMap;

/// An address as IPv6, and a port.
pub(super) type Address = ([u8; 16], u16);

const TCP_INFO: i32 = 11;
/// Offset in `struct tcp_info` (linux/tcp.h) of the options that both sides have agreed on.
const TCP_INFO_OPTIONS: usize = 5;
/// Offsets in `struct tcp_info` (linux/tcp.h), low words: bytes acknowledged, received, sent, and sent again.
const TCP_INFO_ACKED: usize = 120;
const TCP_INFO_RECEIVED: usize = 128;
const TCP_INFO_SENT: usize = 200;
const TCP_INFO_RESENT: usize = 208;
const SIOCOUTQNSD: u64 = 0x894b;

/// Refuses memberships of multicast groups other than every host's own, which `/proc/<pid>/net/igmp` and `igmp6` list.
pub(super) fn refuse_groups(context: &Context<'_>, sockets: &[(ObjectId, Entry)]) -> Result<(), CaptureError> {
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
            Err(crate::capture::refuse(member, object, "memberships are not captured", "leave the group and try again"))
        }
        _ => Ok(()),
    }
}

pub(super) fn describe_tcp(
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
        10 => {
            tcp.state = TcpState::Listening(word(28) as i32);
            tcp.waiting = word(24);
        }
        7 if was_connected(socket, &info) && sock::has_error(socket).map_err(handle.io())? => {
            tcp.state = TcpState::Reset;
        }
        7 if was_connected(socket, &info) => {
            tcp.state = TcpState::PeerGone;
            (tcp.sent_fin, tcp.got_fin) = (true, true);
        }
        7 if sock::has_error(socket).map_err(handle.io())? => {
            return Err(handle
                .refuse("its connection failed and the program has not looked yet", "try again")
                .passing());
        }
        7 => tcp.state = TcpState::Closed { bound: port(&tcp.local) != 0 },
        1 | 4 | 5 | 8 | 9 | 11 => {
            tcp.state = TcpState::PeerGone;
            tcp.sent_fin = matches!(state, 4 | 5 | 9 | 11);
            tcp.got_fin = matches!(state, 8 | 9 | 11);
        }
        _ => return Err(handle.refuse("it is in the middle of connecting", "try again").passing()),
    }
    if matches!(tcp.state, TcpState::PeerGone | TcpState::Reset) {
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

/// Whether a socket in the closed state had a connection: something was acknowledged or received, or is still unread, or
/// the two sides have agreed on options, which they do when they connect.
fn was_connected(socket: &OwnedFd, info: &[u8]) -> bool {
    let counted = |at: usize| info.get(at..at + 8).is_some_and(|eight| eight.iter().any(|&byte| byte != 0));
    let agreed = info.get(TCP_INFO_OPTIONS).is_some_and(|&options| options != 0);
    agreed
        || counted(TCP_INFO_ACKED)
        || counted(TCP_INFO_RECEIVED)
        || sock::queue_bytes(socket, FIONREAD).is_ok_and(|waiting| waiting > 0)
}

pub(super) fn describe_udp(entry: &Entry, socket: &OwnedFd, udp: &mut UdpSocket) -> Result<(), CaptureError> {
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
pub(super) fn port(address: &[u8]) -> u16 {
    address.get(2..4).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

/// Address and port with IPv4 as mapped IPv6, so that both ends of a connection compare.
pub(super) fn normal(address: &[u8]) -> Option<Address> {
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

/// Finds the two ends of each connection, which of them was accepted, and what comes from outside.
pub(super) fn connect_tcp(
    context: &mut Context<'_>,
    registry: &mut Registry,
    sockets: &[(ObjectId, Entry)],
) -> Result<(), CaptureError> {
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
    let mut tables = None;
    for (id, entry) in sockets {
        let ObjectKind::Tcp(tcp) = &mut registry.objects[id.0 as usize].kind else { continue };
        tcp.active = !listening.contains(&port(&tcp.local));
        if tcp.waiting > 0 {
            check_backlog(known(&mut tables, context)?, entry, tcp, sockets)?;
        }
        let (TcpState::PeerGone, Some(peer)) = (&tcp.state, &tcp.peer) else { continue };
        match ends.get(&(normal(peer), normal(&tcp.local))) {
            Some(other) if !arrived(entry, entries[other])? => {
                let why = "bytes are on their way between its ends";
                return Err(entry.handle().refuse(why, "let the receiver read and try again").passing());
            }
            Some(&other) => tcp.state = TcpState::Connected(other),
            None if tcp.got_fin => {}
            None => match known(&mut tables, context)?.other(&tcp.local, peer) {
                Other::Held => {
                    tcp.state = TcpState::Reset;
                    context.notes.push(outside_note(entry));
                    continue;
                }
                Other::Alone => {
                    let why = "its other end is not accepted yet, or has bytes left to bring";
                    return Err(entry.handle().refuse(why, "try again").passing());
                }
                Other::Missing => {
                    let why = "its other end is held by no captured process";
                    return Err(entry.handle().refuse(why, "try again").passing());
                }
            },
        }
        if sock::queue_bytes(entry.duplicate()?, SIOCOUTQNSD).map_err(entry.handle().io())? > 0 {
            let why = "it holds bytes that its receiver has no room for";
            return Err(entry.handle().refuse(why, "let the receiver read and try again").passing());
        }
    }
    Ok(())
}

/// The kernel's tables, read at the first need.
fn known<'t>(tables: &'t mut Option<Ends>, context: &Context<'_>) -> Result<&'t Ends, CaptureError> {
    match tables {
        Some(ends) => Ok(ends),
        None => Ok(tables.insert(Ends::read(context)?)),
    }
}

fn check_backlog(
    ends: &Ends,
    entry: &Entry,
    tcp: &TcpSocket,
    sockets: &[(ObjectId, Entry)],
) -> Result<(), CaptureError> {
    let captured = sockets.iter().map(|(_, entry)| entry.inode).collect();
    if ends.wait_from_outside(&tcp.local, &captured) {
        return Ok(());
    }
    let why = "connections wait to be accepted on it";
    Err(entry.handle().refuse(why, "let the program accept them and try again").passing())
}

fn outside_note(entry: &Entry) -> Note {
    Note {
        kind: "outside_connection".into(),
        pid: Some(entry.member.pid),
        detail: format!("descriptor {}: its other end is outside, so a copy finds the connection reset", entry.fd),
    }
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
