//! One packet: encoded bytes and passed descriptors.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Most bytes in one packet: below the usual socket buffer of 208 KiB, which bounds a packet.
pub const MESSAGE_BYTES_MAX: usize = 160 * 1024;
/// Most descriptors beside one packet; the kernel's own limit is 253 (`SCM_MAX_FD`).
pub const PASSED_FDS_MAX: usize = 250;
/// Most bytes of a message that travels in a memory file because it does not fit a packet.
pub const LARGE_MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most bytes believed of an attached memory file.
const MEMORY_FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

impl Packet {
    /// Makes a packet of a message. One that is larger than [`MESSAGE_BYTES_MAX`] goes into a memory file that becomes
    /// the first descriptor of a packet without bytes, which no message encodes to.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] above [`LARGE_MESSAGE_BYTES_MAX`], [`FrameError::Io`].
    pub fn fold<T: Serialize>(message: &T, mut fds: Vec<OwnedFd>) -> Result<Self, FrameError> {
        let bytes = encode_attached(message)?;
        if bytes.len() <= MESSAGE_BYTES_MAX {
            return Ok(Self { bytes, fds });
        }
        if bytes.len() > LARGE_MESSAGE_BYTES_MAX {
            return Err(FrameError::TooLarge);
        }
        fds.insert(0, memory_file(&bytes)?);
        Ok(Self { bytes: Vec::new(), fds })
    }

    /// Undoes [`Packet::fold`] on a received packet: afterwards `bytes` is the message, whatever way it came.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] above [`LARGE_MESSAGE_BYTES_MAX`], [`FrameError::Io`].
    pub fn unfold(mut self) -> Result<Self, FrameError> {
        if self.bytes.is_empty() && !self.fds.is_empty() {
            let file = self.fds.remove(0);
            self.bytes = read_bounded(&file, LARGE_MESSAGE_BYTES_MAX as u64)?;
        }
        Ok(self)
    }
}

/// A packet that could not be sent, received or understood.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other side is gone.
    #[error("the other side closed the connection")]
    Closed,
    /// The kernel refused.
    #[error("{call}")]
    Io {
        /// Which call.
        call: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Larger than [`MESSAGE_BYTES_MAX`], or cut short.
    #[error("a message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLarge,
    /// Bytes that are no message.
    #[error("a message that cannot be decoded")]
    Malformed(#[source] postcard::Error),
}

fn io(call: &'static str) -> impl Fn(Errno) -> FrameError {
    move |errno| FrameError::Io { call, source: errno.into() }
}

/// Encodes what will travel in a memory file, such as a [`crate::guest::GuestState`].
///
/// # Errors
/// [`FrameError::TooLarge`] when the other side would not believe so much.
pub fn encode_attached<T: Serialize>(content: &T) -> Result<Vec<u8>, FrameError> {
    let bytes = postcard::to_stdvec(content).map_err(FrameError::Malformed)?;
    if bytes.len() as u64 > MEMORY_FILE_BYTES_MAX { Err(FrameError::TooLarge) } else { Ok(bytes) }
}

/// Encodes a message.
///
/// # Errors
/// [`FrameError::TooLarge`] when it does not fit a packet.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let bytes = postcard::to_stdvec(message).map_err(FrameError::Malformed)?;
    if bytes.len() > MESSAGE_BYTES_MAX { Err(FrameError::TooLarge) } else { Ok(bytes) }
}

/// Decodes a message; bytes behind it are an error.
///
/// # Errors
/// [`FrameError::Malformed`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(FrameError::Malformed(postcard::Error::DeserializeBadEncoding)),
        Err(error) => Err(FrameError::Malformed(error)),
    }
}

/// Sends one packet.
///
/// # Errors
/// [`FrameError`]; `EAGAIN` of a non-blocking socket comes as [`FrameError::Io`].
pub fn send_packet(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
    if bytes.len() > MESSAGE_BYTES_MAX || fds.len() > PASSED_FDS_MAX {
        return Err(FrameError::TooLarge);
    }
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "space for PASSED_FDS_MAX descriptors was reserved");
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(FrameError::TooLarge),
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(FrameError::Closed),
            Err(errno) => return Err(io("sendmsg")(errno)),
        }
    }
}

/// Receives one packet.
///
/// # Errors
/// [`FrameError`]; `EAGAIN` of a non-blocking socket comes as [`FrameError::Io`].
pub fn recv_packet(socket: impl AsFd) -> Result<Packet, FrameError> {
    let mut bytes = vec![0u8; MESSAGE_BYTES_MAX];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Err(FrameError::Closed),
            Err(errno) => return Err(io("recvmsg")(errno)),
        }
    };
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = part {
            fds.extend(passed);
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(FrameError::TooLarge);
    }
    if message.bytes == 0 && fds.is_empty() {
        return Err(FrameError::Closed);
    }
    bytes.truncate(message.bytes);
    Ok(Packet { bytes, fds })
}

/// Makes a memory file with this content, to be passed beside a packet.
///
/// # Errors
/// [`FrameError::Io`].
pub fn memory_file(content: &[u8]) -> Result<OwnedFd, FrameError> {
    use rustix::fs::MemfdFlags;
    let fd = rustix::fs::memfd_create("branchbox", MemfdFlags::CLOEXEC).map_err(io("memfd_create"))?;
    let mut done = 0;
    while done < content.len() {
        done += rustix::io::pwrite(&fd, &content[done..], done as u64).map_err(io("pwrite"))?;
    }
    Ok(fd)
}

/// Reads a memory file that came beside a packet; bounded.
///
/// # Errors
/// [`FrameError::TooLarge`] above 256 MiB, [`FrameError::Io`].
pub fn read_memory_file(fd: impl AsFd) -> Result<Vec<u8>, FrameError> {
    read_bounded(fd, MEMORY_FILE_BYTES_MAX)
}

fn read_bounded(fd: impl AsFd, bytes_max: u64) -> Result<Vec<u8>, FrameError> {
    let size = rustix::fs::fstat(&fd).map_err(io("fstat"))?.st_size.cast_unsigned();
    if size > bytes_max {
        return Err(FrameError::TooLarge);
    }
    let mut content = vec![0u8; usize::try_from(size).map_err(|_| FrameError::TooLarge)?];
    let mut done = 0;
    while done < content.len() {
        match rustix::io::pread(&fd, &mut content[done..], done as u64).map_err(io("pread"))? {
            0 => break,
            read => done += read,
        }
    }
    content.truncate(done);
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_message_travels_in_a_memory_file() {
        let (a, b) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .expect("socketpair");
        for (length, passed) in [(10, 0), (MESSAGE_BYTES_MAX * 3, 1)] {
            let message = vec![7u8; length];
            let packet = Packet::fold(&message, Vec::new()).expect("fold");
            assert_eq!(packet.fds.len(), passed);
            let fds: Vec<_> = packet.fds.iter().map(AsFd::as_fd).collect();
            send_packet(&a, &packet.bytes, &fds).expect("send");
            let received = recv_packet(&b).expect("receive").unfold().expect("unfold");
            assert_eq!(decode::<Vec<u8>>(&received.bytes).expect("decode"), message);
        }
        assert!(matches!(Packet::fold(&vec![0u8; LARGE_MESSAGE_BYTES_MAX], Vec::new()), Err(FrameError::TooLarge)));
    }
}
