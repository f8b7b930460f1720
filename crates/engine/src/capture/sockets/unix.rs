//! Unix sockets: who is connected to whom, whose file is whose, and what waits to be read.

use super::options::{OPTIONS, options};
use super::{CLOSE_HINT, FIONREAD, SO_PASSCRED, SO_PEEK_OFF, SOL_SOCKET};
use crate::capture::objects::{Entry, Registry};
use crate::capture::{Context, Member};
use crate::error::CaptureError;
use crate::procfs;
use branchbox_snapshot::{ObjectId, ObjectKind, UnixKind, UnixMessage, UnixSocket, UnixState};
use branchbox_sys::sock::{self, UnixDiag};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::collections::HashMap;
use std::io;

const SO_PEERCRED: i32 = 17;
/// Messages of one datagram or packet socket.
const MESSAGES_MAX: usize = 4096;
/// Largest message of a datagram or packet socket.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

pub(super) fn unix_diags(context: &Context<'_>) -> Result<HashMap<u32, UnixDiag>, CaptureError> {
    let path = procfs::path(context.request.guest_pid, "ns/net");
    let namespace = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| CaptureError::io("opening the network namespace")(errno.into()))?;
    let all = sock::unix_sockets(&namespace).map_err(CaptureError::io("listing unix sockets"))?;
    Ok(all.into_iter().map(|diag| (diag.inode, diag)).collect())
}

pub(super) fn describe_unix(
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

/// Marks unix sockets that were accepted from a listener that is still there.
pub(super) fn connect_unix(registry: &mut Registry, sockets: &[(ObjectId, Entry)]) -> Result<(), CaptureError> {
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
