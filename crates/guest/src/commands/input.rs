//! What a command will read: accepted bytes on their way into its pipe.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;

/// The guest's side of a command's standard input.
#[derive(Debug, Default)]
pub struct Input {
    pipe: Option<OwnedFd>,
    pending: VecDeque<u8>,
    accepted: u64,
    eof: bool,
    is_terminal: bool,
    has_told_end: bool,
}

/// What says the end of input on a terminal (termios(3), VEOF), where there is nothing to close.
const END_OF_TRANSMISSION: u8 = 4;

/// More input for a command that takes none.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

impl Input {
    /// Takes over the guest's end of the pipe, with what was accepted and not yet written.
    pub fn new(pipe: Option<OwnedFd>, pending: Vec<u8>, accepted: u64, eof: bool) -> Self {
        let mut input = Self { pipe, pending: pending.into(), accepted, eof, ..Self::default() };
        input.close_if_done();
        input
    }

    /// Its pipe is the master of a terminal.
    pub fn on_terminal(mut self) -> Self {
        self.is_terminal = true;
        self
    }

    /// More may come.
    pub fn is_open(&self) -> bool {
        self.pipe.is_some() && !self.eof
    }

    /// Bytes accepted in all.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The end of it was asked for.
    pub fn is_ended(&self) -> bool {
        self.eof
    }

    /// Accepted bytes that are not in the pipe yet.
    pub fn pending(&self) -> Vec<u8> {
        self.pending.iter().copied().collect()
    }

    /// The pipe, if something waits to be written.
    pub fn wants_write(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().filter(|_| !self.pending.is_empty()).map(AsFd::as_fd)
    }

    /// The pipe.
    pub fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Accepts what is new of `bytes` at `offset`, as far as there is room, and says how much is accepted in all. The end
    /// counts only once everything before it is accepted.
    ///
    /// # Errors
    /// [`Closed`] when there is something new and the command takes no more.
    pub fn accept(&mut self, offset: u64, bytes: &[u8], eof: bool, pending_max: usize) -> Result<u64, Closed> {
        let Some(known) = self.accepted.checked_sub(offset) else { return Ok(self.accepted) };
        let new = usize::try_from(known).ok().and_then(|known| bytes.get(known..)).unwrap_or_default();
        if new.is_empty() && !eof {
            return Ok(self.accepted);
        }
        if !self.is_open() {
            return if new.is_empty() { Ok(self.accepted) } else { Err(Closed) };
        }
        let taken = new.len().min(pending_max.saturating_sub(self.pending.len()));
        self.pending.extend(&new[..taken]);
        self.accepted += taken as u64;
        self.eof = eof && taken == new.len();
        self.write();
        Ok(self.accepted)
    }

    /// Writes as much as the pipe takes.
    pub fn write(&mut self) {
        while let Some(pipe) = &self.pipe {
            let (front, _) = self.pending.as_slices();
            if front.is_empty() {
                break;
            }
            match rustix::io::write(pipe, front) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The command reads no more, which is its right.
                Err(_) => return self.close(),
            }
        }
        self.close_if_done();
    }

    /// Forgets the pipe and what waits for it.
    pub fn close(&mut self) {
        self.pipe = None;
        self.pending = VecDeque::new();
    }

    fn close_if_done(&mut self) {
        if !self.eof || !self.pending.is_empty() || self.pipe.is_none() {
            return;
        }
        if self.is_terminal && !self.has_told_end {
            self.has_told_end = true;
            self.pending.push_back(END_OF_TRANSMISSION);
            return self.write();
        }
        self.pipe = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn input() -> (OwnedFd, Input) {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("pipe");
        (reader, Input::new(Some(writer), Vec::new(), 0, false))
    }

    #[test]
    fn duplicates_are_skipped_and_gaps_not_taken() {
        let (reader, mut input) = input();
        assert_eq!(input.accept(0, b"hello", false, 100), Ok(5));
        assert_eq!(input.accept(3, b"lo you", false, 100), Ok(9));
        assert_eq!(input.accept(50, b"gap", true, 100), Ok(9));
        assert!(input.is_open());
        assert_eq!(input.accept(9, b"", true, 100), Ok(9));
        assert!(!input.is_open());
        assert_eq!(input.accept(0, b"hello", true, 100), Ok(9));
        assert_eq!(input.accept(9, b"more", false, 100), Err(Closed));
        let mut bytes = [0; 20];
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(9));
        assert_eq!(&bytes[..9], b"hello you");
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(0));
    }

    #[test]
    fn what_does_not_fit_is_not_accepted() {
        let (_reader, mut input) = input();
        let bytes = vec![1; 200_000];
        let accepted = input.accept(0, &bytes, true, 100_000).expect("open");
        assert_eq!(accepted, 100_000, "the bound holds before the pipe takes any");
        assert!(input.is_open(), "the end counts only behind all bytes");
        assert_eq!(input.pending().len() as u64, accepted - 65_536);
    }

    #[test]
    fn a_reader_that_went_away_closes_it() {
        let (reader, mut input) = input();
        drop(reader);
        assert_eq!(input.accept(0, b"x", false, 10), Ok(1));
        assert!(!input.is_open() && input.pipe().is_none());
    }
}
