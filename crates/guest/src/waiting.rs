//! Calls that wait: for new output, or for a command's end.
//!
//! A waiting call holds no resource but its entry here; it is answered when what it waits for is there, when its time is
//! up, and forgotten with its connection.

use branchbox_model::ExecId;
use std::time::Instant;

/// Waiting calls of all connections together.
pub const WAITING_MAX: usize = 4096;

/// What a call waits for, and how it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Output behind a cursor, or the end.
    Output {
        /// From here.
        cursor: u64,
        /// At most so much.
        bytes_max: u32,
        /// The caller keeps reading.
        attached: bool,
    },
    /// The end.
    Status,
}

/// One waiting call.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Whose.
    pub connection: u64,
    /// The request's number.
    pub id: u64,
    /// The command it is about.
    pub exec: ExecId,
    /// What for.
    pub wanted: Wanted,
    /// Answered at this time in any case.
    pub deadline: Instant,
}
