//! One peer's connection: who it is, what it still has to be sent.
//!
//! Invariants: a connection with unsent replies is not read from, so a peer that does not read cannot ask for more; what
//! piles up all the same is bounded, and beyond it the connection is dropped.

use branchbox_protocol::guest::{Response, Role};
use branchbox_protocol::{FrameError, Packet, recv_packet, send_packet};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io::ErrorKind;

/// Connections at once; more wait in the socket's backlog.
pub const CONNECTIONS_MAX: usize = 64;
/// Replies waiting for a peer that does not read.
const UNSENT_MAX: usize = 512;
/// Their bytes.
const UNSENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Names it as long as the guest lives.
    pub number: u64,
    /// Set by its Hello.
    pub role: Option<Role>,
    socket: OwnedFd,
    unsent: VecDeque<Packet>,
    unsent_bytes: usize,
}

impl Connection {
    /// Wraps an accepted, non-blocking socket.
    pub fn new(number: u64, socket: OwnedFd) -> Self {
        Self { number, role: None, socket, unsent: VecDeque::new(), unsent_bytes: 0 }
    }

    /// Its socket, for polling.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether replies wait for the peer to read.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes one packet, `None` when there is none now.
    ///
    /// # Errors
    /// [`FrameError`]: the connection is of no more use.
    pub fn receive(&self) -> Result<Option<Packet>, FrameError> {
        match recv_packet(&self.socket) {
            Ok(packet) => packet.unfold().map(Some),
            Err(error) if would_block(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a reply, or keeps it until the peer reads.
    ///
    /// # Errors
    /// [`FrameError`]: the connection is of no more use.
    pub fn reply(&mut self, response: &Response, fds: Vec<OwnedFd>) -> Result<(), FrameError> {
        let packet = Packet::fold(response, fds)?;
        self.unsent_bytes += packet.bytes.len();
        self.unsent.push_back(packet);
        self.flush()?;
        if self.unsent.len() > UNSENT_MAX || self.unsent_bytes > UNSENT_BYTES_MAX {
            return Err(FrameError::Closed);
        }
        Ok(())
    }

    /// Sends what waits, as far as the peer takes it.
    ///
    /// # Errors
    /// [`FrameError`]: the connection is of no more use.
    pub fn flush(&mut self) -> Result<(), FrameError> {
        while let Some(packet) = self.unsent.front() {
            let fds: Vec<BorrowedFd<'_>> = packet.fds.iter().map(AsFd::as_fd).collect();
            match send_packet(&self.socket, &packet.bytes, &fds) {
                Ok(()) => {}
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            self.unsent_bytes -= packet.bytes.len();
            self.unsent.pop_front();
        }
        Ok(())
    }
}

fn would_block(error: &FrameError) -> bool {
    matches!(error, FrameError::Io { source, .. } if source.kind() == ErrorKind::WouldBlock)
}
