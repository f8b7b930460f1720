//! Kernel objects behind descriptors and mappings.

use crate::machine::Blob;
use serde::{Deserialize, Serialize};

/// Names an object within one machine: its index in `Machine::objects`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectId(pub u32);

/// An open file description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its status flags as `F_GETFL` gives them.
    pub flags: i32,
    /// What it is.
    pub kind: ObjectKind,
    /// Its flock, if held.
    pub flock: Option<Lock>,
    /// Open-file-description locks.
    pub ofd_locks: Vec<(Lock, u64, u64)>,
}

/// Shared or exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lock {
    /// Read.
    Shared,
    /// Write.
    Exclusive,
}

/// What an open file description refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the doc of each variant says what its fields are")]
pub enum ObjectKind {
    /// Something with a path, or that once had one.
    File(FileObject),
    /// One end of a pipe.
    Pipe(PipeEnd),
    /// A memory file or shared anonymous memory: index into `Machine::shared`, and the file position.
    Shared { index: u32, offset: u64 },
    /// eventfd(2).
    Event { count: u64, semaphore: bool },
    /// signalfd(2): its mask.
    Signal { mask: u64 },
    /// timerfd_create(2).
    Timer { clock: i32, ticks: u64, settime_flags: i32, value_ns: u64, interval_ns: u64 },
    /// epoll(7).
    Epoll { watches: Vec<EpollWatch> },
    /// pidfd_open(2), of a process inside.
    Pid { pid: i32 },
    /// Unix socket.
    Unix(Box<UnixSocket>),
    /// TCP socket.
    Tcp(Box<TcpSocket>),
    /// UDP socket.
    Udp(Box<UdpSocket>),
    /// inotify(7); watches from the lowest number up.
    Inotify { watches: Vec<InotifyWatch> },
}

/// A file by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileObject {
    /// Absolute path inside the sandbox, raw bytes.
    pub path: Vec<u8>,
    /// Type bits of its mode.
    pub file_type: u32,
    /// Position.
    pub offset: u64,
    /// Inode number; compared after a restore.
    pub inode: u64,
    /// Size and change time (seconds, nanoseconds), compared for files of the base image, which must not have changed.
    pub identity: (u64, i64, i64),
    /// Deleted: index into `Machine::ghosts`.
    pub ghost: Option<u32>,
}

/// A deleted file that lives on because something holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ghost {
    /// The path it had.
    pub path: Vec<u8>,
    /// Full mode.
    pub mode: u32,
    /// Owner and group inside.
    pub owner: (u32, u32),
    /// Length.
    pub size: u64,
    /// Content: file offset and bytes; holes are left out. Empty for a directory.
    pub content: Vec<(u64, Blob)>,
    /// Access and modification time (seconds, nanoseconds).
    pub times: [(i64, i64); 2],
}

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipeEnd {
    /// Index into `Machine::pipes`.
    pub pipe: u32,
    /// The writing end.
    pub writes: bool,
}

/// A pipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipe {
    /// Where a named one lies.
    pub path: Option<Vec<u8>>,
    /// Capacity in bytes.
    pub capacity: u32,
    /// Owner and group inside.
    pub owner: (u32, u32),
    /// Bytes in flight.
    pub data: Option<Blob>,
}

/// Memory with a file behind it that lies on no disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMemory {
    /// memfd name, or `None` for shared anonymous memory.
    pub name: Option<Vec<u8>>,
    /// Length in bytes.
    pub size: u64,
    /// memfd seals.
    pub seals: u32,
    /// Mode and owner inside.
    pub mode: u32,
    /// Owner and group inside.
    pub owner: (u32, u32),
    /// Content: offset and bytes; the rest is zero.
    pub content: Vec<(u64, Blob)>,
}

/// One descriptor watched by an epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpollWatch {
    /// The process that registered it, whose descriptor number it is.
    pub pid: i32,
    /// Descriptor number at its registration.
    pub fd: i32,
    /// Events, with their behaviour bits.
    pub events: u32,
    /// The program's own data.
    pub data: u64,
}

/// One watch of an inotify.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InotifyWatch {
    /// Its number.
    pub number: i32,
    /// Events, with their behaviour bits.
    pub mask: u32,
    /// Absolute path inside the sandbox, raw bytes.
    pub path: Vec<u8>,
}

/// A socket option that is not as a new socket has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    /// Level, as in setsockopt(2).
    pub level: i32,
    /// Name.
    pub name: i32,
    /// Raw value to set.
    pub value: Vec<u8>,
}

/// Kind of unix socket, as the kernel numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnixKind {
    /// `SOCK_STREAM`.
    Stream,
    /// `SOCK_DGRAM`.
    Datagram,
    /// `SOCK_SEQPACKET`.
    SeqPacket,
}

/// Where a unix socket stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnixState {
    /// Not connected.
    Plain,
    /// Listening, with this backlog.
    Listening(i32),
    /// Connected to another object.
    Connected(ObjectId),
    /// Was connected; the peer is gone.
    PeerGone,
}

/// One message in flight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnixMessage {
    /// Its bytes.
    pub data: Blob,
}

/// A unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnixSocket {
    /// Kind.
    pub kind: UnixKind,
    /// Raw local address; two bytes (the family) when it has no name.
    pub local: Vec<u8>,
    /// Mode, owner and group of its file, when bound to a path that is still its.
    pub file: Option<(u32, u32, u32)>,
    /// State.
    pub state: UnixState,
    /// What waits to be read from it.
    pub inbox: Vec<UnixMessage>,
    /// Bits of shutdown(2): 1 no more receiving, 2 no more sending.
    pub shutdown: u8,
    /// Pid, uid, gid that its peer sees (`SO_PEERCRED` of this socket gives the peer's).
    pub peer_credentials: Option<(i32, u32, u32)>,
    /// Made by accept(2) from this listener.
    pub accepted_from: Option<ObjectId>,
    /// Options.
    pub options: Vec<SocketOption>,
}

/// Where a TCP socket stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the doc of each variant says what its fields are")]
pub enum TcpState {
    /// Neither listening nor connected; bound if `local` has a port.
    Closed { bound: bool },
    /// Listening, with this backlog.
    Listening(i32),
    /// Connected to another object of this machine.
    Connected(ObjectId),
    /// The other end is gone; what it sent is in the inbox.
    PeerGone,
    /// The other end has reset the connection, which the program has not been told yet, or it is held outside the
    /// sandbox, which for a copy is the same. What was unread is in the inbox and can be read before the error.
    Reset,
}

/// A TCP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpSocket {
    /// `AF_INET` or `AF_INET6`.
    pub family: i32,
    /// Raw local address.
    pub local: Vec<u8>,
    /// Raw peer address, when connected.
    pub peer: Option<Vec<u8>>,
    /// State.
    pub state: TcpState,
    /// Unread bytes.
    pub inbox: Option<Blob>,
    /// This side has sent its end of stream.
    pub sent_fin: bool,
    /// The other side's end of stream has arrived.
    pub got_fin: bool,
    /// It came from connect(2): it had no listener of its address.
    pub active: bool,
    /// Connections from outside that wait to be accepted on it; in a copy each has been reset.
    pub waiting: u32,
    /// Options.
    pub options: Vec<SocketOption>,
}

/// A UDP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpSocket {
    /// `AF_INET` or `AF_INET6`.
    pub family: i32,
    /// Raw local address, when bound.
    pub local: Option<Vec<u8>>,
    /// Raw peer address, when connected.
    pub peer: Option<Vec<u8>>,
    /// Options.
    pub options: Vec<SocketOption>,
}
