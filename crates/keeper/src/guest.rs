//! The keeper's connection to the guest. Everything that comes out of it is hostile: lengths are bounded by the framing,
//! waits by constants here, and a reply of the wrong kind is an error and not a surprise.

use crate::failure::{Failure, chain};
use crate::listen;
use branchbox_model::Code;
use branchbox_protocol::guest::{
    Call, ENDED_KEPT, GuestConfig, GuestState, RUNNING_MAX, Reply, Request, Response, Role,
};
use branchbox_protocol::{
    FrameError, PROTOCOL_VERSION, decode, encode, memory_file, read_memory_file, recv_packet, send_packet,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for an answer to a small call; the guest has one thread and may be starting commands.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Longest wait for a rebuild, which makes every process and kernel object of a machine.
const REBUILD_WAIT: Duration = Duration::from_secs(120);
/// Replies to other calls than the one waited for that are skipped before the guest is given up.
const STRAY_REPLIES_MAX: u32 = 8;

/// A guest that was greeted.
#[derive(Debug)]
pub struct Guest {
    socket: OwnedFd,
    next: u64,
}

/// A held table, and the guest's descriptors that it names.
#[derive(Debug)]
pub struct Held {
    /// The table as the guest encoded it, proved to decode.
    pub state: Vec<u8>,
    /// Descriptor numbers of the guest in the table.
    pub fds: Vec<i32>,
    /// Last pid given out inside, as the guest says.
    pub last_pid: i32,
}

impl Guest {
    /// Connects to the guest's socket and greets it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn connect(path: &Path) -> Result<Self, Failure> {
        let mut guest = Self { socket: listen::connect(path)?, next: 1 };
        match guest.call(Call::Hello { version: PROTOCOL_VERSION, role: Role::Keeper }, &[], ANSWER_WAIT)? {
            (Reply::Hello(PROTOCOL_VERSION), _) => Ok(guest),
            (Reply::Hello(other), _) => {
                Err(failed(format!("it speaks version {other}, this keeper {PROTOCOL_VERSION}")))
            }
            _ => Err(wrong_kind("Hello")),
        }
    }

    /// Takes the guest's table; it stands still until [`Guest::resume`].
    ///
    /// # Errors
    /// [`Failure`] also for a table that is no table.
    pub fn hold(&mut self) -> Result<Held, Failure> {
        let (reply, fds) = self.call(Call::Hold, &[], ANSWER_WAIT)?;
        let (Reply::Attached, [file]) = (reply, fds.as_slice()) else { return Err(wrong_kind("Hold")) };
        let state = read_memory_file(file).map_err(frame)?;
        let table: GuestState = decode(&state).map_err(frame)?;
        if table.execs.len() > RUNNING_MAX + ENDED_KEPT {
            return Err(failed(format!("its table has {} commands", table.execs.len())));
        }
        let fds =
            table.execs.iter().flat_map(|exec| [exec.stdin_fd, exec.stdout_fd, exec.stderr_fd]).flatten().collect();
        Ok(Held { state, fds, last_pid: table.last_pid })
    }

    /// Ends a hold.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn resume(&mut self) -> Result<(), Failure> {
        self.done(Call::Resume, &[], "Resume")
    }

    /// Has the guest run an engine's plan.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn rebuild(&mut self, plan: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, Failure> {
        let plan = memory_file(plan).map_err(frame)?;
        let attached: Vec<_> = std::iter::once(plan.as_fd()).chain(fds.iter().copied()).collect();
        let (reply, answer) = self.call(Call::Rebuild, &attached, REBUILD_WAIT)?;
        match (reply, answer.as_slice()) {
            (Reply::Attached, [file]) => read_memory_file(file).map_err(frame),
            _ => Err(wrong_kind("Rebuild")),
        }
    }

    /// Gives a fresh guest the table of a saved one.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn import(&mut self, state: &[u8], fds: Vec<(i32, i32)>) -> Result<(), Failure> {
        let file = memory_file(state).map_err(frame)?;
        self.done(Call::Import { fds }, &[file.as_fd()], "Import")
    }

    /// Ends the building of the sandbox.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn seal(&mut self, config: GuestConfig) -> Result<(), Failure> {
        self.done(Call::Seal(config), &[], "Seal")
    }

    fn done(&mut self, call: Call, fds: &[BorrowedFd<'_>], name: &str) -> Result<(), Failure> {
        match self.call(call, fds, ANSWER_WAIT)? {
            (Reply::Done, _) => Ok(()),
            _ => Err(wrong_kind(name)),
        }
    }

    fn call(&mut self, call: Call, fds: &[BorrowedFd<'_>], limit: Duration) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        let id = self.next;
        self.next += 1;
        let bytes = encode(&Request { id, call }).map_err(frame)?;
        send_packet(&self.socket, &bytes, fds).map_err(frame)?;
        let deadline = Instant::now() + limit;
        for _ in 0..STRAY_REPLIES_MAX {
            self.wait(deadline, limit)?;
            let packet = recv_packet(&self.socket).and_then(branchbox_protocol::Packet::unfold).map_err(frame)?;
            let response: Response = decode(&packet.bytes).map_err(frame)?;
            if response.id == id {
                let reply = response.result.map_err(|error| failed(error.to_string()))?;
                return Ok((reply, packet.fds));
            }
        }
        Err(failed("it answers calls that nobody made"))
    }

    fn wait(&self, deadline: Instant, limit: Duration) -> Result<(), Failure> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            match rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Err(failed(format!("no answer within {} s", limit.as_secs()))),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Failure::io("wait for the guest", errno.into())),
            }
        }
    }
}

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::GuestFailed, format!("the sandbox's first process failed: {why}"))
}

fn frame(error: FrameError) -> Failure {
    failed(chain(&error))
}

fn wrong_kind(call: &str) -> Failure {
    failed(format!("a reply to {call} of the wrong kind"))
}
