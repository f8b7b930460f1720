//! TCP ends that no captured process holds, as the kernel's own tables show them.
//!
//! The other end of a connection may be held by something outside (a tunnel, a preview), wait in a listener's queue, or
//! be what the kernel still does for a program that has closed it. `/proc/<pid>/net/tcp` tells them apart: an end that
//! somebody holds has an inode number, the others have none. Only the first may be lost in a copy, where nobody outside
//! is connected.
//!
//! The tables are read only when a connection has an end that is not captured: they cost time for each socket there is.

use super::inet::{Address, port};
use crate::capture::Context;
use crate::error::CaptureError;
use crate::procfs;
use std::collections::HashSet;

const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    local: Address,
    remote: Address,
    state: u8,
    inode: u64,
}

/// Every TCP end in the sandbox's network namespace.
#[derive(Debug)]
pub(super) struct Ends(Vec<End>);

/// What the kernel knows of the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Other {
    /// Something holds it.
    Held,
    /// Nothing holds it, but it is not over: it waits to be accepted, or has bytes left to bring.
    Alone,
    /// There is none in this namespace.
    Missing,
}

impl Ends {
    pub(super) fn read(context: &Context<'_>) -> Result<Self, CaptureError> {
        let mut ends = Vec::new();
        for name in ["net/tcp", "net/tcp6"] {
            match std::fs::read_to_string(procfs::path(context.request.guest_pid, name)) {
                Ok(table) => ends.extend(table.lines().skip(1).filter_map(parse)),
                // A kernel without the protocol has no such connections.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(CaptureError::io("reading the table of connections")(error)),
            }
        }
        Ok(Self(ends))
    }

    /// The other end of the connection from `local` to `peer`.
    pub(super) fn other(&self, local: &[u8], peer: &[u8]) -> Other {
        let (Some(local), Some(peer)) = (super::inet::normal(local), super::inet::normal(peer)) else {
            return Other::Missing;
        };
        match self.0.iter().find(|end| end.local == peer && end.remote == local) {
            Some(end) if end.inode != 0 => Other::Held,
            Some(_) => Other::Alone,
            None => Other::Missing,
        }
    }

    /// Whether everything that waits to be accepted on a port comes from outside: from ends that are held, and by none of
    /// the captured sockets. One that was reset while it waited is in no table any more, and counts as such.
    pub(super) fn wait_from_outside(&self, local: &[u8], captured: &HashSet<u64>) -> bool {
        let port = port(local);
        let waits = |end: &&End| end.local.1 == port && end.inode == 0 && matches!(end.state, ESTABLISHED | CLOSE_WAIT);
        self.0.iter().filter(waits).all(|waiting| {
            let client = self.0.iter().find(|end| end.local == waiting.remote && end.remote == waiting.local);
            client.is_some_and(|client| client.inode != 0 && !captured.contains(&client.inode))
        })
    }
}

/// One line: `sl local remote state queues timer retransmits uid timeout inode …`.
fn parse(line: &str) -> Option<End> {
    let words: Vec<&str> = line.split_whitespace().take(10).collect();
    Some(End {
        local: address(words.get(1)?)?,
        remote: address(words.get(2)?)?,
        state: u8::from_str_radix(words.get(3)?, 16).ok()?,
        inode: words.get(9)?.parse().ok()?,
    })
}

/// `0100007F:1F90`, with the address as words in this machine's byte order.
fn address(text: &str) -> Option<Address> {
    let (ip, port) = text.split_once(':')?;
    let mut bytes = [0u8; 16];
    let start = match ip.len() {
        8 => {
            bytes[10..12].fill(0xff);
            12
        }
        32 => 0,
        _ => return None,
    };
    for (index, word) in bytes[start..].chunks_exact_mut(4).enumerate() {
        let digits = ip.get(index * 8..index * 8 + 8)?;
        word.copy_from_slice(&u32::from_str_radix(digits, 16).ok()?.to_ne_bytes());
    }
    Some((bytes, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000001 00:00000000 00000000  0 0 11 1 x
   1: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000  0 0 0 1 x
   2: 0100007F:C001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  0 0 12 1 x
   3: 0000000000000000FFFF00000100007F:1F91 0000000000000000FFFF00000100007F:C002 01 0:0 0:0 0 0 0 13 1 x
   4: 0100007F:C002 0100007F:1F91 04 00000000:00000000 00:00000000 00000000  0 0 0 1 x
";

    fn ends() -> Ends {
        Ends(TABLE.lines().filter_map(parse).collect())
    }

    fn raw(port: u16) -> Vec<u8> {
        let mut raw = 2u16.to_le_bytes().to_vec();
        raw.extend(port.to_be_bytes());
        raw.extend([127, 0, 0, 1]);
        raw
    }

    #[test]
    fn the_other_end_is_held_or_alone_or_missing() {
        let ends = ends();
        assert_eq!(ends.0.len(), 5);
        assert_eq!(ends.other(&raw(0x1f90), &raw(0xc001)), Other::Held);
        assert_eq!(ends.other(&raw(0x1f91), &raw(0xc002)), Other::Alone, "it has bytes left to bring");
        assert_eq!(ends.other(&raw(0x1f90), &raw(0xc003)), Other::Missing);
    }

    #[test]
    fn a_backlog_is_from_outside_unless_a_captured_socket_waits_in_it() {
        let ends = ends();
        assert!(ends.wait_from_outside(&raw(0x1f90), &HashSet::from([11])));
        assert!(!ends.wait_from_outside(&raw(0x1f90), &HashSet::from([11, 12])));
    }
}
