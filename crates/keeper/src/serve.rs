//! The message loop: the node's connections, the guest's end, and requests to end by signal.
//!
//! Calls are carried out one after the other; a capture makes others wait. A connection that breaks the protocol or does
//! not take its answers is closed, which the node sees; nothing else of the sandbox is touched by it.

use crate::capture;
use crate::end;
use crate::failure::{Failure, chain};
use crate::pause;
use crate::start::Live;
use branchbox_model::Code;
use branchbox_protocol::keeper::{Call, CaptureReport, KeeperConfig, KeeperError, Reply, Request, Response, Usage};
use branchbox_protocol::{FrameError, PROTOCOL_VERSION, Packet, decode, encode, recv_packet, send_packet};
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SocketFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connections at once; a node has one, and a second while it takes over from another.
const CONNECTIONS_MAX: usize = 16;
/// How long a keeper that could not start waits for the node to ask why.
const FAILURE_LINGER: Duration = Duration::from_secs(10);
/// How long an ephemeral sandbox waits for its node's first word before it takes it for dead.
const EPHEMERAL_WAIT: Duration = Duration::from_secs(60);

struct Connection {
    socket: OwnedFd,
    greeted: bool,
}

/// Why the loop ends.
enum Outcome {
    /// The node asked, on this connection.
    Shutdown { connection: usize, id: u64 },
    /// The node asked for a pause, on this connection, and nothing runs any more.
    Paused { connection: usize, id: u64, report: CaptureReport, usage: Usage },
    /// A signal, or the first process of the sandbox ended.
    Ended,
    /// The last node of an ephemeral sandbox went away, or none came.
    Abandoned,
}

/// Who is left to clean up after the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// A node, or whoever ended it.
    Somebody,
    /// Nobody: the keeper is the last.
    Nobody,
}

/// Serves until the sandbox is to end or has ended.
///
/// # Errors
/// [`Failure`] when the loop cannot go on, or something of the sandbox would not go. The sandbox is ended in each case
/// but an adopted one's loop failure.
pub fn serve(config: &KeeperConfig, live: Live, listener: &OwnedFd, signals: &SignalFd) -> Result<Left, Failure> {
    let mut server = Server { config, live, connections: Vec::new(), was_greeted: false, begun: Instant::now() };
    let outcome = loop {
        match server.turn(listener, signals) {
            Ok(None) => {}
            Ok(Some(outcome)) => break outcome,
            Err(failure) => {
                tracing::error!("{failure}");
                break Outcome::Ended;
            }
        }
    };
    let left = if matches!(outcome, Outcome::Abandoned) { Left::Nobody } else { Left::Somebody };
    let ended = end::end(config, &server.live);
    match outcome {
        Outcome::Shutdown { connection, id } => {
            let result = ended.clone().map(Reply::Ended).map_err(|failure| failure.0);
            server.answer(connection, Response { id, result });
        }
        // It is paused whatever would not go; the loop's own error says what that was.
        Outcome::Paused { connection, id, report, usage } => {
            server.answer(connection, Response { id, result: Ok(Reply::Paused { report, usage }) });
        }
        Outcome::Ended | Outcome::Abandoned => {}
    }
    ended.map(|_| left)
}

struct Server<'a> {
    config: &'a KeeperConfig,
    live: Live,
    connections: Vec<Connection>,
    was_greeted: bool,
    begun: Instant,
}

impl Server<'_> {
    /// Waits for something and deals with it.
    fn turn(&mut self, listener: &OwnedFd, signals: &SignalFd) -> Result<Option<Outcome>, Failure> {
        let ready = self.wait(listener, signals)?;
        if ready.signal {
            tracing::info!("told to end by a signal");
            return Ok(Some(Outcome::Ended));
        }
        if ready.guest {
            tracing::warn!("the sandbox's first process has ended");
            return Ok(Some(Outcome::Ended));
        }
        for index in ready.connections.into_iter().rev() {
            if let Some(outcome) = self.receive(index) {
                return Ok(Some(outcome));
            }
        }
        if ready.listener {
            self.accept(listener);
        }
        Ok(self.is_abandoned().then_some(Outcome::Abandoned))
    }

    fn wait(&self, listener: &OwnedFd, signals: &SignalFd) -> Result<Ready, Failure> {
        let fixed: [BorrowedFd<'_>; 3] = [signals.as_fd(), self.live.jail.pidfd.as_fd(), listener.as_fd()];
        let sockets = self.connections.iter().map(|connection| connection.socket.as_fd());
        let mut fds: Vec<_> =
            fixed.into_iter().chain(sockets).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // Only an ephemeral sandbox that nobody has greeted waits for a time.
        let limited = self.config.ephemeral.is_some() && !self.was_greeted;
        let timeout = Timespec::try_from(EPHEMERAL_WAIT.saturating_sub(self.begun.elapsed())).unwrap_or_default();
        match rustix::event::poll(&mut fds, limited.then_some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(Failure::io("wait for the node", errno.into())),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let connections =
            fds.iter().skip(fixed.len()).enumerate().filter(|(_, fd)| is_ready(fd)).map(|(index, _)| index).collect();
        Ok(Ready { signal: is_ready(&fds[0]), guest: is_ready(&fds[1]), listener: is_ready(&fds[2]), connections })
    }

    /// The node of an ephemeral sandbox has gone, or never came.
    fn is_abandoned(&self) -> bool {
        let alone = !self.connections.iter().any(|connection| connection.greeted);
        let gone = self.was_greeted || self.begun.elapsed() >= EPHEMERAL_WAIT;
        self.config.ephemeral.is_some() && alone && gone
    }

    fn accept(&mut self, listener: &OwnedFd) {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) if self.connections.len() < CONNECTIONS_MAX => {
                self.connections.push(Connection { socket, greeted: false })
            }
            Ok(_) => tracing::warn!("more than {CONNECTIONS_MAX} connections; the newest is closed"),
            Err(errno) => tracing::warn!("accept: {errno}"),
        }
    }

    /// One packet of one connection.
    fn receive(&mut self, index: usize) -> Option<Outcome> {
        let packet = recv_packet(&self.connections[index].socket).and_then(Packet::unfold);
        let request: Result<Request, FrameError> = packet.and_then(|packet| decode(&packet.bytes));
        let Request { id, call } = match request {
            Ok(request) => request,
            Err(FrameError::Io { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => return None,
            Err(error) => {
                if !matches!(error, FrameError::Closed) {
                    tracing::warn!("a connection is closed: {}", chain(&error));
                }
                self.connections.remove(index);
                return None;
            }
        };
        if matches!(call, Call::Shutdown) && self.connections[index].greeted {
            return Some(Outcome::Shutdown { connection: index, id });
        }
        let result = match call {
            Call::Pause { image } if self.connections[index].greeted => {
                let usage = end::usage(&self.live);
                match pause::pause(self.config, &mut self.live, &image) {
                    Ok(report) => return Some(Outcome::Paused { connection: index, id, report, usage }),
                    Err(failure) => Err(failure),
                }
            }
            call => self.carry_out(index, call),
        };
        let result = result.map_err(|failure| {
            tracing::warn!(code = failure.code().as_str(), "{failure}");
            failure.0
        });
        self.answer(index, Response { id, result });
        None
    }

    fn carry_out(&mut self, index: usize, call: Call) -> Result<Reply, Failure> {
        match call {
            Call::Hello { version: PROTOCOL_VERSION } => {
                self.connections[index].greeted = true;
                self.was_greeted = true;
                Ok(Reply::Running(self.live.running.clone()))
            }
            Call::Hello { version } => Err(wrong_version(version)),
            _ if !self.connections[index].greeted => Err(Failure::new(Code::InternalError, "a call before Hello")),
            Call::Usage => Ok(Reply::Usage(end::usage(&self.live))),
            Call::Capture { image, layer } => {
                capture::capture(self.config, &mut self.live, image.as_deref(), &layer).map(Reply::Captured)
            }
            // Taken out before.
            Call::Shutdown | Call::Pause { .. } => Err(Failure::new(Code::InternalError, "an end out of turn")),
        }
    }

    /// Sends an answer; a connection that does not take it is closed.
    fn answer(&mut self, index: usize, response: Response) {
        if let Err(error) = send_response(&self.connections[index].socket, response) {
            tracing::warn!("an answer could not be sent: {}", chain(&error));
            self.connections.remove(index);
        }
    }
}

#[derive(Default)]
struct Ready {
    signal: bool,
    guest: bool,
    listener: bool,
    connections: Vec<usize>,
}

/// Tells why the sandbox could not be started to whoever asks first, for a moment.
pub fn report_failure(listener: &OwnedFd, failure: &Failure) {
    let deadline = Instant::now() + FAILURE_LINGER;
    let waited = |fd: BorrowedFd<'_>| {
        let timeout = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap_or_default();
        matches!(rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)), Ok(1..))
    };
    while waited(listener.as_fd()) {
        let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else { return };
        if !waited(socket.as_fd()) {
            return;
        }
        let request: Result<Request, _> = recv_packet(&socket).and_then(|packet| decode(&packet.bytes));
        let Ok(Request { id, .. }) = request else { continue };
        if send_response(&socket, Response { id, result: Err(failure.0.clone()) }).is_ok() {
            return;
        }
    }
}

fn send_response(socket: &OwnedFd, response: Response) -> Result<(), FrameError> {
    let id = response.id;
    let bytes = encode(&response).or_else(|_| encode(&Response { id, result: Err(too_large()) }))?;
    send_packet(socket, &bytes, &[])
}

fn too_large() -> KeeperError {
    Failure::new(Code::InternalError, "the keeper's answer does not fit a packet").0
}

fn wrong_version(version: u32) -> Failure {
    Failure::new(Code::InternalError, format!("the node speaks version {version}, this keeper {PROTOCOL_VERSION}"))
        .hint("stop the sandbox with the release that started it")
}
