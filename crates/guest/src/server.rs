//! The loop: one poll over everything that can happen, one turn of work, again.
//!
//! What is polled follows from the state alone, so "do not read this now" is simply not asking for it: a peer that does
//! not take its replies, a command whose reader is slow, and, while the table is held for a capture, everything but the
//! keeper.

use crate::commands::{Pipe, Table};
use crate::connection::{CONNECTIONS_MAX, Connection};
use crate::waiting::{Waiting, Wanted};
use branchbox_protocol::guest::{GuestConfig, GuestError, Reply, Response, Role};
use branchbox_sys::peer::peer_pid;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// Packets taken from one connection before others have their turn.
const PACKETS_PER_TURN: usize = 16;
/// Open files that commands get if the guest was started without a limit on them.
const OPEN_FILES_DEFAULT: (u64, u64) = (1024, 1_048_576);

/// What a guest starts with.
#[derive(Debug)]
pub struct Setup {
    /// Listening SEQPACKET socket.
    pub listener: OwnedFd,
    /// Cgroup directory (version 2) that commands' cgroups are made in.
    pub cgroup: OwnedFd,
    /// Writable `/proc/sys/kernel/ns_last_pid`, for a rebuild.
    pub last_pid: Option<OwnedFd>,
}

/// Why a guest cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Started without something it needs.
    #[error("no {what} at descriptor {fd}")]
    Descriptor {
        /// What.
        what: &'static str,
        /// Where.
        fd: i32,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The kernel refused.
    #[error("{call}")]
    Kernel {
        /// What.
        call: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn kernel<E: Into<std::io::Error>>(call: &'static str) -> impl Fn(E) -> ServeError {
    move |error| ServeError::Kernel { call, source: error.into() }
}

/// What the sandbox is at.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Being made; only the keeper is served, children belong to the engine.
    Building,
    /// Sealed.
    Serving(GuestConfig),
}

/// A table that is held for a capture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// By whom.
    pub connection: u64,
    /// Since when time stands still for commands.
    pub since: Instant,
}

/// Everything process 1 knows.
#[derive(Debug)]
pub(crate) struct Guest {
    listener: OwnedFd,
    pub last_pid: Option<OwnedFd>,
    signals: SignalFd,
    connections: Vec<Connection>,
    next_connection: u64,
    pub table: Table,
    pub waiting: Vec<Waiting>,
    pub phase: Phase,
    pub held: Option<Held>,
}

/// Where an event comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Signals,
    Listener,
    Connection(u64),
    Pipe(Pipe),
}

/// Serves until the kernel refuses something it cannot do without.
///
/// # Errors
/// [`ServeError`].
pub fn serve(setup: Setup) -> Result<Infallible, ServeError> {
    let mut guest = Guest::new(setup)?;
    loop {
        let events = guest.wait()?;
        for (source, flags) in events {
            guest.handle(source, flags);
        }
        if matches!(guest.phase, Phase::Serving(_)) && guest.held.is_none() {
            guest.table.tick(Instant::now());
        }
        guest.answer_waiting(Instant::now());
    }
}

/// Raises the guest's own limit of open files as far as allowed; gives what it was, for the commands.
fn raise_open_files() -> (u64, u64) {
    let before = getrlimit(Resource::Nofile);
    // Each command costs up to three pipes, and a restore holds many more for a moment. Best effort: the limit shows later.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    (before.current.unwrap_or(OPEN_FILES_DEFAULT.0), before.maximum.unwrap_or(OPEN_FILES_DEFAULT.1))
}

impl Guest {
    fn new(setup: Setup) -> Result<Self, ServeError> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block().map_err(kernel("block signals"))?;
        let signals =
            SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(kernel("signalfd"))?;
        umask(Mode::from_raw_mode(0o022));
        let flags = rustix::fs::fcntl_getfl(&setup.listener).map_err(kernel("fcntl of the listener"))?;
        rustix::fs::fcntl_setfl(&setup.listener, flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(kernel("fcntl of the listener"))?;
        Ok(Self {
            listener: setup.listener,
            last_pid: setup.last_pid,
            signals,
            connections: Vec::new(),
            next_connection: 0,
            table: Table::new(setup.cgroup, raise_open_files()),
            waiting: Vec::new(),
            phase: Phase::Building,
            held: None,
        })
    }

    /// Everything to wait for now.
    fn interests(&self, now: Instant) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut found = Vec::new();
        for connection in &self.connections {
            let mut flags = PollFlags::empty();
            if connection.has_unsent() {
                flags |= PollFlags::OUT;
            } else if self.held.is_none() || connection.role != Some(Role::Node) {
                flags |= PollFlags::IN;
            }
            if !flags.is_empty() {
                found.push((Source::Connection(connection.number), connection.socket(), flags));
            }
        }
        if self.connections.len() < CONNECTIONS_MAX {
            found.push((Source::Listener, self.listener.as_fd(), PollFlags::IN));
        }
        if matches!(self.phase, Phase::Serving(_)) && self.held.is_none() {
            found.push((Source::Signals, self.signals.as_fd(), PollFlags::IN));
            let mut pipes = Vec::new();
            self.table.pipes(now, &mut pipes);
            found.extend(pipes.into_iter().map(|(pipe, fd)| match pipe {
                Pipe::Stdin(_) => (Source::Pipe(pipe), fd, PollFlags::OUT),
                Pipe::Output(..) => (Source::Pipe(pipe), fd, PollFlags::IN),
            }));
        }
        found
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let ticks = matches!(self.phase, Phase::Serving(_)) && self.held.is_none();
        let tick = if ticks { self.table.next_tick(now) } else { None };
        self.waiting.iter().map(|waiting| waiting.deadline).chain(tick).min()
    }

    fn wait(&self) -> Result<Vec<(Source, PollFlags)>, ServeError> {
        let now = Instant::now();
        let interests = self.interests(now);
        let mut fds: Vec<PollFd<'_>> = interests.iter().map(|(_, fd, flags)| PollFd::new(fd, *flags)).collect();
        let timeout = self.next_deadline(now).map(|deadline| timespec(deadline.saturating_duration_since(now)));
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            result => result.map_err(kernel("poll"))?,
        };
        let ready = interests.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|((source, ..), fd)| (*source, fd.revents())).collect())
    }

    fn handle(&mut self, source: Source, flags: PollFlags) {
        match source {
            Source::Signals => {
                // Only SIGCHLD has a meaning: process 1 ends with its sandbox, not by a polite request.
                while matches!(self.signals.read_signal(), Ok(Some(_))) {}
                self.table.reap();
            }
            Source::Listener => self.accept(),
            Source::Connection(number) => self.serve_connection(number, flags),
            // An earlier event of this turn may have held the table.
            Source::Pipe(pipe) if self.held.is_none() => self.table.ready(pipe, Instant::now()),
            Source::Pipe(_) => {}
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < CONNECTIONS_MAX {
            let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
            // Pid 0: from outside this pid namespace. Whoever comes from inside is not answered.
            if peer_pid(&socket).is_ok_and(|pid| pid == 0) {
                self.connections.push(Connection::new(self.next_connection, socket));
                self.next_connection += 1;
            }
        }
    }

    fn serve_connection(&mut self, number: u64, flags: PollFlags) {
        if flags.contains(PollFlags::OUT) {
            let flushed = self.connection(number).is_some_and(|connection| connection.flush().is_ok());
            if !flushed {
                return self.drop_connection(number);
            }
        }
        for _ in 0..PACKETS_PER_TURN {
            let held = self.held.is_some();
            let Some(connection) = self.connection(number) else { return };
            if connection.has_unsent() || (held && connection.role == Some(Role::Node)) {
                return;
            }
            match connection.receive() {
                Ok(Some(packet)) => self.take_packet(number, packet),
                Ok(None) => return,
                Err(_) => return self.drop_connection(number),
            }
        }
    }

    pub(crate) fn connection(&mut self, number: u64) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.number == number)
    }

    /// Forgets a connection, what it waits for, and the hold that it had.
    pub(crate) fn drop_connection(&mut self, number: u64) {
        self.connections.retain(|connection| connection.number != number);
        self.waiting.retain(|waiting| waiting.connection != number);
        if self.held.is_some_and(|held| held.connection == number) {
            self.resume();
        }
    }

    /// Ends a hold: time goes on, and what happened meanwhile is looked at.
    pub(crate) fn resume(&mut self) {
        if let Some(held) = self.held.take() {
            self.table.shift_deadlines(held.since.elapsed());
            self.table.reap();
        }
    }

    pub(crate) fn send(&mut self, number: u64, id: u64, result: Result<Reply, GuestError>, fds: Vec<OwnedFd>) {
        let Some(connection) = self.connection(number) else { return };
        if connection.reply(&Response { id, result }, fds).is_err() {
            self.drop_connection(number);
        }
    }

    fn answer_waiting(&mut self, now: Instant) {
        let table = &self.table;
        let is_due = |waiting: &Waiting| {
            waiting.deadline <= now
                || match waiting.wanted {
                    Wanted::Output { cursor, .. } => table.has_output(waiting.exec, cursor),
                    Wanted::Status => table.has_ended(waiting.exec),
                }
        };
        let (due, rest): (Vec<Waiting>, Vec<Waiting>) = self.waiting.drain(..).partition(is_due);
        self.waiting = rest;
        for waiting in due {
            let result = self.answer(waiting.exec, waiting.wanted);
            self.send(waiting.connection, waiting.id, result, Vec::new());
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
