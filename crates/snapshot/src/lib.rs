//! The snapshot format: what a captured machine is, as plain data, and how it lies on disk.
//!
//! A capture is a directory with two files: `machine` (records, [`write_machine`]) and `pages` (memory and other bulk bytes,
//! [`BlobWriter`]). Records name bulk bytes by [`Blob`]: where in `pages` they lie. Memory is a map from address ranges to
//! such extents; what no extent covers is zero, or the mapped file's own content.
//!
//! The `machine` file is magic, format version, length, BLAKE3 of the payload, payload (postcard). Everything read is checked
//! before it is believed: a snapshot may come from a disk that lost power.

mod file;
mod machine;
mod object;
mod process;

pub use file::{
    BlobReader, BlobWriter, FORMAT_VERSION, MachineFileError, from_bytes, read_machine, to_bytes, write_machine,
};
pub use machine::{Blob, ClockOffsets, Clocks, Host, Machine, Note};
pub use object::{
    EpollWatch, FileObject, Ghost, InotifyWatch, Lock, Object, ObjectId, ObjectKind, Pipe, PipeEnd, SharedMemory,
    SocketOption, TcpSocket, TcpState, UdpSocket, UnixKind, UnixMessage, UnixSocket, UnixState,
};
pub use process::{
    Backing, Credentials, Extent, FdSlot, Life, Mapping, MemoryLayout, PosixLock, PosixTimer, Process, Restart,
    SignalAction, Thread,
};
