//! Sockets, read through duplicates of the descriptors: nothing is taken from a queue and no repair mode is entered.
//!
//! A restored machine makes its connections anew, by really connecting inside its own network namespace, and puts what was
//! unread into them. So a capture needs addresses, who is connected to whom, options, and the unread bytes of each receiving
//! side. Bytes that the sending side still holds (the receiver's window was full) cannot be seen from outside: such a
//! connection is refused by name.
//!
//! A TCP connection whose other end is held outside (by the node, for a tunnel or a preview) is nobody's loss: the source
//! keeps it, and in a copy, where nobody outside is connected, it has been reset.

mod inet;
mod options;
mod outside;
mod unix;

use super::Context;
use super::objects::{Entry, Registry};
use crate::error::CaptureError;
use branchbox_snapshot::{ObjectId, ObjectKind, TcpSocket, TcpState, UdpSocket, UnixKind, UnixSocket, UnixState};
use branchbox_sys::sock;
use inet::{connect_tcp, describe_tcp, describe_udp, refuse_groups};
use std::collections::HashMap;
use unix::{connect_unix, describe_unix, unix_diags};

const SOL_SOCKET: i32 = 1;
const SO_TYPE: i32 = 3;
const SO_PASSCRED: i32 = 16;
const SO_PROTOCOL: i32 = 38;
const SO_DOMAIN: i32 = 39;
const SO_PEEK_OFF: i32 = 42;
const SOL_TCP: i32 = 6;
const AF_UNIX: i32 = 1;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
const FIONREAD: u64 = 0x541b;
const CLOSE_HINT: &str = "close it and try again";

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
            waiting: 0,
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
    connect_tcp(context, registry, &sockets)?;
    connect_unix(registry, &sockets)
}
