//! Sockets: listeners first, then every connection by really connecting, then what was unread.

use super::{Maker, maker};
use branchbox_snapshot::{
    Blob, ObjectKind, SocketOption, TcpSocket, TcpState, UdpSocket, UnixKind, UnixSocket, UnixState,
};
use branchbox_sys::sock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::net::{SendFlags, Shutdown};
use std::io;

const AF_UNIX: i32 = 1;
const SOCK_STREAM: i32 = 1;
const SOCK_DGRAM: i32 = 2;
const SOL_SOCKET: i32 = 1;
const SO_REUSEADDR: i32 = 2;
const SO_REUSEPORT: i32 = 15;
const SO_LINGER: i32 = 13;
const FIONREAD: u64 = 0x541b;
const IPV6_LEVEL: i32 = 41;
const IPV6_V6ONLY: i32 = 26;
/// How long a connection inside one namespace may take to be made or to take in its bytes.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Most connections that are put into one listener's queue; the kernel's own default limit.
const BACKLOG_MAX: u32 = 4096;
/// How long a listener's queue may take to take in one more.
const BACKLOG_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

fn text(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

impl Maker<'_> {
    pub(super) fn sockets(&mut self) -> Result<(), String> {
        let plan = self.plan;
        for (index, object) in plan.objects.iter().enumerate() {
            let made = match &object.kind {
                ObjectKind::Tcp(tcp) if !is_connection(&tcp.state) => Some(tcp_alone(tcp)?),
                ObjectKind::Udp(udp) => Some(udp_socket(udp)?),
                ObjectKind::Unix(unix) if matches!(unix.state, UnixState::Plain | UnixState::Listening(_)) => {
                    Some(unix_alone(unix)?)
                }
                _ => None,
            };
            if let Some(fd) = made {
                self.made[index] = Some(fd);
            }
        }
        for (index, object) in plan.objects.iter().enumerate() {
            if self.made[index].is_some() {
                continue;
            }
            match &object.kind {
                ObjectKind::Tcp(tcp) => self.tcp_connection(index, tcp)?,
                ObjectKind::Unix(unix) => self.unix_connection(index, unix)?,
                _ => {}
            }
        }
        self.settle()?;
        self.reset_connections()
    }

    /// Last of all, since options cannot be set and connections cannot be accepted any more afterwards: what is reset.
    fn reset_connections(&mut self) -> Result<(), String> {
        for (index, far) in std::mem::take(&mut self.resets) {
            let unread = match &self.plan.objects[index].kind {
                ObjectKind::Tcp(tcp) => tcp.inbox.map_or(0, |blob| blob.bytes),
                _ => 0,
            };
            if let Some(near) = &self.made[index] {
                await_bytes(near, unread)?;
            }
            reset(far)?;
        }
        for (index, object) in self.plan.objects.iter().enumerate() {
            let ObjectKind::Tcp(tcp) = &object.kind else { continue };
            // Where several listen on a port it is not known on which they waited; nobody outside waits any longer.
            if let Some(listener) = &self.made[index]
                && tcp.waiting > 0
                && self.listeners(port(&tcp.local)).len() == 1
            {
                fill_backlog(listener, tcp)?;
            }
        }
        Ok(())
    }

    /// The listeners of a port that were made.
    fn listeners(&self, at: u16) -> Vec<&OwnedFd> {
        let objects = self.plan.objects.iter().zip(&self.made);
        let listens = |socket: &TcpSocket| matches!(socket.state, TcpState::Listening(_)) && port(&socket.local) == at;
        objects
            .filter_map(|(object, made)| match &object.kind {
                ObjectKind::Tcp(socket) if listens(socket) => made.as_ref(),
                _ => None,
            })
            .collect()
    }

    /// Options and flags come last, so that none of them stands in the way of connecting.
    fn settle(&self) -> Result<(), String> {
        for (index, object) in self.plan.objects.iter().enumerate() {
            let (options, shutdown) = match &object.kind {
                ObjectKind::Tcp(tcp) => (&tcp.options, u8::from(tcp.sent_fin) << 1),
                ObjectKind::Udp(udp) => (&udp.options, 0),
                ObjectKind::Unix(unix) => (&unix.options, unix.shutdown),
                _ => continue,
            };
            let Some(fd) = &self.made[index] else { continue };
            set_options(fd, options)?;
            let how = match shutdown {
                1 => Some(Shutdown::Read),
                2 => Some(Shutdown::Write),
                3 => Some(Shutdown::Both),
                _ => None,
            };
            if let Some(how) = how {
                // A side whose peer has shut down already has nothing left to shut down.
                let _ = rustix::net::shutdown(fd, how);
            }
            if object.flags.cast_unsigned() & rustix::fs::OFlags::NONBLOCK.bits() != 0 {
                rustix::io::ioctl_fionbio(fd, true)
                    .map_err(|errno| format!("setting a socket non-blocking: {errno}"))?;
            }
        }
        Ok(())
    }

    fn tcp_connection(&mut self, index: usize, tcp: &TcpSocket) -> Result<(), String> {
        let Some(peer) = tcp.peer.as_deref() else {
            let (near, far) = self.ended_connection(tcp)?;
            self.made[index] = Some(near);
            self.part(index, tcp, far);
            return Ok(());
        };
        let other = match tcp.state {
            TcpState::Connected(other) => match &self.plan.objects[other.0 as usize].kind {
                ObjectKind::Tcp(socket) => Some((other.0 as usize, socket)),
                _ => return Err("a connection to something that is no TCP socket".into()),
            },
            _ => None,
        };
        let other_family = other.map_or_else(|| family(peer), |(_, socket)| socket.family);
        let active_first = tcp.active || other.is_some_and(|(_, socket)| !socket.active);
        let (near, far) = if active_first {
            let target = other.map_or_else(|| peer.to_vec(), |(_, socket)| socket.local.clone());
            self.connect_tcp(tcp.family, &tcp.local, peer, other_family, &target)?
        } else {
            let (far, near) = self.connect_tcp(
                other_family,
                &other.map_or_else(|| peer.to_vec(), |(_, s)| s.local.clone()),
                &other.and_then(|(_, s)| s.peer.clone()).unwrap_or_else(|| tcp.local.clone()),
                tcp.family,
                &tcp.local,
            )?;
            (near, far)
        };
        self.deliver(&far, tcp.inbox)?;
        if let Some((_, socket)) = other {
            self.deliver(&near, socket.inbox)?;
        }
        self.made[index] = Some(near);
        match other {
            Some((other_index, _)) => self.made[other_index] = Some(far),
            None => self.part(index, tcp, far),
        }
        Ok(())
    }

    /// A peer that is gone is closed here, which is what it did; one that resets does so later.
    fn part(&mut self, index: usize, tcp: &TcpSocket, far: OwnedFd) {
        if matches!(tcp.state, TcpState::Reset) {
            self.resets.push((index, far));
        }
    }

    /// A connection that is over, of which unread bytes may be left; the kernel has forgotten the peer. Its end and the
    /// other one.
    fn ended_connection(&self, tcp: &TcpSocket) -> Result<(OwnedFd, OwnedFd), String> {
        let failed = text("making an ended TCP connection");
        let listeners = self.listeners(port(&tcp.local));
        let (near, far) = match listeners.first() {
            // Only what is accepted can have the address of a listener.
            Some(listener) if !tcp.active => {
                let far = sock::socket(tcp.family, SOCK_STREAM, 0).map_err(&failed)?;
                sock::connect(&far, &sock::local_address(listener).map_err(&failed)?).map_err(&failed)?;
                (accepted(&listeners)?, far)
            }
            _ => {
                let mut any = tcp.local.clone();
                any[2..4].fill(0);
                let listener = bound(tcp.family, &any)?;
                sock::listen(&listener, 1).map_err(&failed)?;
                let near = bound(tcp.family, &tcp.local)?;
                sock::connect(&near, &sock::local_address(&listener).map_err(&failed)?).map_err(&failed)?;
                (near, sock::accept(&listener).map_err(&failed)?)
            }
        };
        self.deliver(&far, tcp.inbox)?;
        Ok((near, far))
    }

    /// Connects from `from` to `to` (as the connecting side writes it) where `at` is listened on: the connecting and the
    /// accepted socket.
    fn connect_tcp(
        &self,
        active: i32,
        from: &[u8],
        to: &[u8],
        passive: i32,
        at: &[u8],
    ) -> Result<(OwnedFd, OwnedFd), String> {
        let failed = text("making a TCP connection");
        let mut listeners = self.listeners(port(at));
        let temporary;
        if listeners.is_empty() {
            temporary = bound(passive, at)?;
            sock::listen(&temporary, 1).map_err(&failed)?;
            listeners.push(&temporary);
        }
        let near = bound(active, from)?;
        sock::connect(&near, to).map_err(&failed)?;
        Ok((near, accepted(&listeners)?))
    }

    fn deliver(&self, sender: &OwnedFd, data: Option<Blob>) -> Result<(), String> {
        let Some(blob) = data else { return Ok(()) };
        let mut bytes = vec![0u8; blob.bytes as usize];
        std::os::unix::fs::FileExt::read_exact_at(&self.pages, &mut bytes, blob.offset)
            .map_err(text("reading the image"))?;
        send_all(sender, &bytes)
    }

    fn unix_connection(&mut self, index: usize, unix: &UnixSocket) -> Result<(), String> {
        let other = match unix.state {
            UnixState::Connected(other) => Some(other.0 as usize),
            _ => None,
        };
        let peer = match other.map(|other| &self.plan.objects[other].kind) {
            Some(ObjectKind::Unix(peer)) => Some(peer.as_ref()),
            None => None,
            Some(_) => return Err("a unix socket connected to something else".into()),
        };
        if unix.kind == UnixKind::Datagram {
            return self.datagram(index, unix, other, peer);
        }
        let (near, far) = match (unix.accepted_from, peer.and_then(|peer| peer.accepted_from)) {
            (None, None) => {
                maker::pair(unix.peer_credentials, kind(unix.kind)).map_err(text("making a socket pair"))?
            }
            (Some(listener), _) => {
                // The accepted side sees who connected.
                let client = peer.map(|peer| peer.local.as_slice());
                let (far, near) =
                    self.connect_unix(unix, client, &unix.local, listener.0 as usize, unix.peer_credentials)?;
                (near, far)
            }
            (None, Some(listener)) => {
                let address = peer.map(|peer| peer.local.clone()).unwrap_or_default();
                let by = peer.and_then(|peer| peer.peer_credentials);
                self.connect_unix(unix, Some(&unix.local), &address, listener.0 as usize, by)?
            }
        };
        self.deliver_messages(&far, unix)?;
        if let (Some(other), Some(peer)) = (other, peer) {
            self.deliver_messages(&near, peer)?;
            self.made[other] = Some(far);
        }
        self.made[index] = Some(near);
        Ok(())
    }

    fn connect_unix(
        &self,
        unix: &UnixSocket,
        client: Option<&[u8]>,
        address: &[u8],
        listener: usize,
        by: Option<maker::Maker>,
    ) -> Result<(OwnedFd, OwnedFd), String> {
        let failed = text("making a unix connection");
        let listener = self.made[listener].as_ref().ok_or("a listener that was not made")?;
        let near = sock::socket(AF_UNIX, kind(unix.kind), 0).map_err(&failed)?;
        if let Some(name) = client.filter(|name| name.len() > 2) {
            sock::bind(&near, name).map_err(&failed)?;
        }
        maker::act(by, || sock::connect(&near, address)).map_err(&failed)?;
        let far = sock::accept(listener).map_err(&failed)?;
        Ok((near, far))
    }

    fn datagram(
        &mut self,
        index: usize,
        unix: &UnixSocket,
        other: Option<usize>,
        peer: Option<&UnixSocket>,
    ) -> Result<(), String> {
        let failed = text("making a datagram socket");
        let (Some(other), Some(peer)) = (other, peer) else {
            self.made[index] = Some(unix_alone(unix)?);
            return Ok(());
        };
        let mutual = matches!(peer.state, UnixState::Connected(back) if back.0 as usize == index);
        if mutual && unix.local.len() <= 2 && peer.local.len() <= 2 {
            let (near, far) = sock::pair(SOCK_DGRAM).map_err(&failed)?;
            self.deliver_messages(&far, unix)?;
            self.deliver_messages(&near, peer)?;
            (self.made[index], self.made[other]) = (Some(near), Some(far));
            return Ok(());
        }
        let near = unix_alone(unix)?;
        if self.made[other].is_none() {
            self.made[other] = Some(unix_alone(peer)?);
        }
        if peer.local.len() <= 2 {
            return Err("a datagram socket connected to one without a name".into());
        }
        sock::connect(&near, &peer.local).map_err(&failed)?;
        if mutual {
            let far = self.made[other].as_ref().ok_or("a peer that was not made")?;
            sock::connect(far, &unix.local).map_err(&failed)?;
            self.deliver_messages(far, unix)?;
            self.deliver_messages(&near, peer)?;
        }
        self.made[index] = Some(near);
        Ok(())
    }

    fn deliver_messages(&self, sender: &OwnedFd, receiver: &UnixSocket) -> Result<(), String> {
        for message in &receiver.inbox {
            self.deliver(sender, Some(message.data))?;
        }
        Ok(())
    }
}

fn is_connection(state: &TcpState) -> bool {
    matches!(state, TcpState::Connected(_) | TcpState::PeerGone | TcpState::Reset)
}

/// The connection that arrives at one of these.
fn accepted(listeners: &[&OwnedFd]) -> Result<OwnedFd, String> {
    let failed = text("accepting a TCP connection");
    let mut waiting: Vec<PollFd<'_>> = listeners.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut waiting, Some(&PATIENCE)).map_err(|errno| failed(errno.into()))?;
    let ready = waiting.iter().position(|fd| fd.revents().contains(PollFlags::IN));
    let listener = listeners[ready.ok_or("a connection did not arrive at its listener")?];
    sock::accept(listener).map_err(failed)
}

/// Closes a connection so that the other side gets a reset.
fn reset(far: OwnedFd) -> Result<(), String> {
    let at_once: Vec<u8> = [1i32, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    sock::set_option(&far, SOL_SOCKET, SO_LINGER, &at_once).map_err(text("resetting a connection"))
}

/// Waits until bytes that were sent have arrived: a reset would overtake none, but take back what is still to be sent.
fn await_bytes(near: &OwnedFd, unread: u64) -> Result<(), String> {
    let begin = std::time::Instant::now();
    let arrived = || sock::queue_bytes(near, FIONREAD).map_err(text("looking for bytes in flight"));
    while (arrived()? as u64) < unread {
        if begin.elapsed() > std::time::Duration::from_secs(PATIENCE.tv_sec.unsigned_abs()) {
            return Err(format!("{unread} bytes in flight do not arrive"));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

/// Puts connections that were reset before anyone accepted them into a listener's queue.
fn fill_backlog(listener: &OwnedFd, tcp: &TcpSocket) -> Result<(), String> {
    let failed = text("filling a listener's queue");
    let address = sock::local_address(listener).map_err(&failed)?;
    for _ in 0..tcp.waiting.min(BACKLOG_MAX) {
        let far = sock::socket(tcp.family, SOCK_STREAM, 0).map_err(&failed)?;
        rustix::io::ioctl_fionbio(&far, true).map_err(|errno| failed(errno.into()))?;
        match sock::connect(&far, &address) {
            Ok(()) => {}
            // One that does not fit is one that went away before it was in the queue.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
                let mut connecting = [PollFd::new(&far, PollFlags::OUT)];
                poll(&mut connecting, Some(&BACKLOG_PATIENCE)).map_err(|errno| failed(errno.into()))?;
            }
            Err(error) => return Err(failed(error)),
        }
        reset(far)?;
    }
    Ok(())
}

fn kind(kind: UnixKind) -> i32 {
    match kind {
        UnixKind::Stream => SOCK_STREAM,
        UnixKind::Datagram => SOCK_DGRAM,
        UnixKind::SeqPacket => 5,
    }
}

fn port(address: &[u8]) -> u16 {
    address.get(2..4).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

fn family(address: &[u8]) -> i32 {
    address.get(..2).map_or(0, |two| i32::from(u16::from_le_bytes([two[0], two[1]])))
}

/// A TCP socket bound so that its address may be in use by others of the same connection set.
fn bound(family: i32, address: &[u8]) -> Result<OwnedFd, String> {
    let failed = text("binding a TCP socket");
    let fd = sock::socket(family, SOCK_STREAM, 0).map_err(&failed)?;
    sock::set_option(&fd, SOL_SOCKET, SO_REUSEADDR, &1i32.to_le_bytes()).map_err(&failed)?;
    sock::bind(&fd, address).map_err(&failed)?;
    Ok(fd)
}

fn tcp_alone(tcp: &TcpSocket) -> Result<OwnedFd, String> {
    let failed = text("making a TCP socket");
    let fd = sock::socket(tcp.family, SOCK_STREAM, 0).map_err(&failed)?;
    set_early_options(&fd, &tcp.options)?;
    match tcp.state {
        TcpState::Closed { bound: false } => {}
        TcpState::Closed { bound: true } => sock::bind(&fd, &tcp.local).map_err(&failed)?,
        _ => {
            let reuse = sock::option(&fd, SOL_SOCKET, SO_REUSEADDR, 4).map_err(&failed)?;
            sock::set_option(&fd, SOL_SOCKET, SO_REUSEADDR, &1i32.to_le_bytes()).map_err(&failed)?;
            sock::bind(&fd, &tcp.local).map_err(&failed)?;
            sock::set_option(&fd, SOL_SOCKET, SO_REUSEADDR, &reuse).map_err(&failed)?;
        }
    }
    if let TcpState::Listening(backlog) = tcp.state {
        sock::listen(&fd, backlog).map_err(&failed)?;
    }
    Ok(fd)
}

fn udp_socket(udp: &UdpSocket) -> Result<OwnedFd, String> {
    let failed = text("making a UDP socket");
    let fd = sock::socket(udp.family, SOCK_DGRAM, 0).map_err(&failed)?;
    set_early_options(&fd, &udp.options)?;
    if let Some(local) = &udp.local {
        sock::bind(&fd, local).map_err(&failed)?;
    }
    if let Some(peer) = &udp.peer {
        sock::connect(&fd, peer).map_err(&failed)?;
    }
    Ok(fd)
}

/// A unix socket that is bound, listening or neither. Its file exists already in the file layer, but belongs to no socket of
/// this machine; it is made again with the same mode and owner.
fn unix_alone(unix: &UnixSocket) -> Result<OwnedFd, String> {
    let failed = text("making a unix socket");
    let fd = sock::socket(AF_UNIX, kind(unix.kind), 0).map_err(&failed)?;
    if unix.local.len() > 2 {
        let path = unix.local[2..].split(|&byte| byte == 0).next().filter(|path| !path.is_empty());
        match (path, unix.file) {
            (Some(path), Some((mode, uid, gid))) => bind_path(&fd, unix, path, mode, (uid, gid))?,
            (Some(_), None) => return Err("a unix socket whose file is gone".into()),
            (None, _) => sock::bind(&fd, &unix.local).map_err(&failed)?,
        }
    }
    if let UnixState::Listening(backlog) = unix.state {
        maker::act(unix.peer_credentials, || sock::listen(&fd, backlog)).map_err(&failed)?;
    }
    Ok(fd)
}

/// The file gets its owner and mode afterwards: its owner need not be allowed to make files there.
fn bind_path(fd: &OwnedFd, unix: &UnixSocket, path: &[u8], mode: u32, owner: (u32, u32)) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt;
    let failed = |errno: rustix::io::Errno| format!("binding {}: {errno}", String::from_utf8_lossy(path));
    let directory = std::path::Path::new(std::ffi::OsStr::from_bytes(path)).parent();
    super::files::keeping_times(directory.unwrap_or_else(|| std::path::Path::new("/")), || {
        let there = rustix::fs::lstat(path).map_err(failed)?;
        if there.st_mode & 0o170_000 != 0o140_000 {
            return Err(format!("{} is no socket any more", String::from_utf8_lossy(path)));
        }
        rustix::fs::unlink(path).map_err(failed)?;
        sock::bind(fd, &unix.local).map_err(text("binding a unix socket"))?;
        let (uid, gid) = (rustix::fs::Uid::from_raw(owner.0), rustix::fs::Gid::from_raw(owner.1));
        rustix::fs::chown(path, Some(uid), Some(gid)).map_err(failed)?;
        rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(failed)
    })
}

fn early(option: &SocketOption) -> bool {
    (option.level == SOL_SOCKET && (option.name == SO_REUSEADDR || option.name == SO_REUSEPORT))
        || (option.level == IPV6_LEVEL && option.name == IPV6_V6ONLY)
}

fn set_early_options(fd: &OwnedFd, options: &[SocketOption]) -> Result<(), String> {
    for option in options.iter().filter(|option| early(option)) {
        set_option(fd, option)?;
    }
    Ok(())
}

fn set_options(fd: &OwnedFd, options: &[SocketOption]) -> Result<(), String> {
    for option in options.iter().filter(|option| !(option.level == IPV6_LEVEL && option.name == IPV6_V6ONLY)) {
        set_option(fd, option)?;
    }
    Ok(())
}

/// Sets an option only when it is not already so: several refuse to be set to what they are.
fn set_option(fd: &OwnedFd, option: &SocketOption) -> Result<(), String> {
    let now = sock::option(fd, option.level, option.name, option.value.len());
    if now.is_ok_and(|now| now == option.value) {
        return Ok(());
    }
    sock::set_option(fd, option.level, option.name, &option.value)
        .map_err(|error| format!("setting socket option {}/{}: {error}", option.level, option.name))
}

/// Sends everything without waiting for a reader: what does not fit the receiver stays in the sender's own buffer.
fn send_all(sender: &OwnedFd, bytes: &[u8]) -> Result<(), String> {
    let mut rest = bytes;
    loop {
        match rustix::net::send(sender, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == rest.len() => return Ok(()),
            Ok(sent) => rest = &rest[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut waiting = [PollFd::new(sender, PollFlags::OUT)];
                let ready = poll(&mut waiting, Some(&PATIENCE)).map_err(|errno| format!("waiting to send: {errno}"))?;
                if ready == 0 {
                    return Err(format!("{} bytes in flight do not fit the new connection", rest.len()));
                }
            }
            Err(errno) => return Err(format!("sending bytes in flight: {errno}")),
        }
    }
}
