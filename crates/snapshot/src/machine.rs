//! The whole machine.

use crate::object::{Ghost, Object, ObjectId, Pipe, SharedMemory};
use crate::process::Process;
use branchbox_model::RootSpec;
use serde::{Deserialize, Serialize};

/// Bytes in the `pages` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// What the restoring host must share with the capturing one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// `uname -r`.
    pub kernel: String,
    /// Bytes of vector state, which depend on the processor's features.
    pub xstate_bytes: u32,
    /// Boot id; within one boot clocks go on by themselves.
    pub boot_id: String,
    /// The clocks at the capture.
    pub clocks: Clocks,
}

/// Nanoseconds of the two clocks that count from a boot: readings, or differences from the host's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffsets {
    /// `CLOCK_MONOTONIC`.
    pub monotonic_ns: i64,
    /// `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}

/// The clocks of a captured sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// What they showed inside while it stood still.
    pub inside: ClockOffsets,
    /// How far that was from the host's: the offsets of its time namespace.
    pub offsets: ClockOffsets,
}

/// What a restore does to programs that they could notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Kind, as the API names it.
    pub kind: String,
    /// Pid inside.
    pub pid: Option<i32>,
    /// For people.
    pub detail: String,
}

/// A captured machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Where it was captured.
    pub host: Host,
    /// Its file tree; the upper is replaced at a restore.
    pub root: RootSpec,
    /// Last pid given out in its pid namespace.
    pub last_pid: i32,
    /// Open file descriptions, by id.
    pub objects: Vec<Object>,
    /// Pipes, by id.
    pub pipes: Vec<Pipe>,
    /// Deleted files that are still open or mapped.
    pub ghosts: Vec<Ghost>,
    /// Memory files.
    pub shared: Vec<SharedMemory>,
    /// Processes; parents before children.
    pub processes: Vec<Process>,
    /// The guest's own table, opaque here.
    pub guest_state: Vec<u8>,
    /// For each descriptor number in that table, the object it is.
    pub guest_fds: Vec<(i32, ObjectId)>,
    /// What restoring will do to programs.
    pub notes: Vec<Note>,
}
