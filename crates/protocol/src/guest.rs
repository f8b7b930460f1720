//! Calls that a guest answers, on its listening socket `run/<id>.guest`.
//!
//! The listener is made outside and handed to the guest at its start, so no path inside the sandbox leads to it. A peer
//! whose pid is not 0 in the guest's pid namespace (`SO_PEERCRED`) comes from inside and is dropped.
//! A connection's first call is [`Call::Hello`].

use branchbox_model::ExecId;
use serde::{Deserialize, Serialize};

/// Most bytes of file or output content in one message.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Output kept per command for late readers.
pub const OUTPUT_KEPT_BYTES: usize = 1024 * 1024;
/// Input accepted and not yet read by the command.
pub const STDIN_PENDING_BYTES_MAX: usize = 1024 * 1024;
/// Ended commands remembered.
pub const ENDED_KEPT: usize = 16;
/// Commands running at once in one sandbox.
pub const RUNNING_MAX: usize = 512;
/// Longest wait one call may ask for.
pub const WAIT_MS_MAX: u64 = 30_000;

/// A call with its number; the reply carries the same number. Replies may come out of order.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the caller, unique among its unanswered calls.
    pub id: u64,
    /// What to do.
    pub call: Call,
}

/// The answer to one call.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    /// The request's number.
    pub id: u64,
    /// What came of it.
    pub result: Result<Reply, GuestError>,
}

/// Who is calling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// May use the calls on commands and files.
    Node,
    /// May use everything.
    Keeper,
}

/// What a guest can be asked.
#[derive(Debug, Serialize, Deserialize)]
pub enum Call {
    /// First call of a connection.
    Hello {
        /// The caller's [`crate::PROTOCOL_VERSION`].
        version: u32,
        /// Who calls.
        role: Role,
    },
    /// Starts a command.
    Spawn(SpawnSpec),
    /// Reads output from a cursor, waiting up to `wait_ms` for something new.
    Output {
        /// Which command.
        exec: ExecId,
        /// Byte position over both streams together.
        cursor: u64,
        /// At most this many bytes, itself at most [`CHUNK_BYTES_MAX`].
        bytes_max: u32,
        /// 0 answers at once; at most [`WAIT_MS_MAX`].
        wait_ms: u64,
        /// The caller keeps reading: the command waits for it instead of losing output.
        attached: bool,
    },
    /// Input for a command started with [`Stdin::Pipe`].
    Input {
        /// Which command.
        exec: ExecId,
        /// Position of the first byte; bytes below what was accepted are duplicates and skipped.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
        /// No more will come.
        eof: bool,
    },
    /// Gives a command's terminal another size.
    Resize {
        /// Which.
        exec: ExecId,
        /// How large.
        size: PtySize,
    },
    /// Sends a signal to every process of a command.
    Signal {
        /// Which command.
        exec: ExecId,
        /// The number, 1 to 64.
        signal: i32,
    },
    /// One command's record, waiting up to `wait_ms` for its end.
    Status {
        /// Which command.
        exec: ExecId,
        /// 0 answers at once; at most [`WAIT_MS_MAX`].
        wait_ms: u64,
    },
    /// Every running command and the last [`ENDED_KEPT`] ended ones.
    List,
    /// A file operation, done with the rights of `user`.
    File {
        /// Uid and gid it is done as.
        user: (u32, u32),
        /// What to do.
        op: FileOp,
    },

    /// Begins a TCP connection to a port on the sandbox's loopback; the socket is passed beside [`Reply::Dialed`], not
    /// yet connected or refused: the caller waits for that.
    Dial {
        /// The port, not 0.
        port: u16,
        /// To `::1` instead of `127.0.0.1`.
        v6: bool,
    },

    // From here on for the keeper alone.
    /// Builds kernel objects and processes of a saved machine; the plan is the attached memory file, the answer too.
    /// The content of both is the engine's.
    Rebuild,
    /// Takes over a saved guest's table (attached memory file: a [`GuestState`]) after `Rebuild`.
    Import {
        /// For each descriptor number in the saved table, its number in this guest.
        fds: Vec<(i32, i32)>,
    },
    /// Gives up the rights that only building needs, and begins to serve. Never undone.
    Seal(GuestConfig),
    /// Stops changing the table and the pipes, and answers with the table (attached memory file: a [`GuestState`]).
    /// Ends by `Resume` or when this connection closes.
    Hold,
    /// Ends a `Hold`.
    Resume,
}

/// What every command of this sandbox shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// Variables every command gets, over the guest's own defaults.
    pub env: Vec<(String, String)>,
    /// Changes with every restore; written to `/run/branchbox/generation`.
    pub generation: String,
}

/// How a command's standard input is fed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// What comes through [`Call::Input`].
    Pipe,
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// A command to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnSpec {
    /// Program and arguments; the program is searched in the command's own `PATH`.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// Variables over the sandbox's.
    pub env: Vec<(String, String)>,
    /// Start from an empty environment instead of the guest's defaults and the sandbox's variables.
    pub env_clear: bool,
    /// Uid, gid.
    pub user: (u32, u32),
    /// Its input.
    pub stdin: Stdin,
    /// Runs on a terminal of this size, which takes the place of all three standard descriptors.
    pub pty: Option<PtySize>,
    /// Ended with SIGKILL after this long; `None` is no limit.
    pub timeout_ms: Option<u64>,
    /// The caller will read at once and keep reading, as by [`Call::Output`]'s flag of this name: output that comes
    /// before its first such call is not lost either.
    pub attached: bool,
    /// Shown in lists: the command as the caller wrote it.
    pub display: String,
    /// What the caller wants kept with it, such as its output encoding; opaque to the guest, at most 4 KiB.
    pub tag: String,
}

/// Where a command is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecState {
    /// Its first process lives, or its output is not read to the end.
    Running,
    /// Ended by itself with this code.
    Exited(i32),
    /// Ended by this signal.
    Killed(i32),
    /// Ended because its time was up.
    TimedOut,
}

/// One command's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecInfo {
    /// Its number.
    pub exec: ExecId,
    /// State.
    pub state: ExecState,
    /// Pid of its first process inside the sandbox.
    pub pid: i32,
    /// As given at its start.
    pub display: String,
    /// As given at its start.
    pub cwd: String,
    /// As given at its start.
    pub user: (u32, u32),
    /// As given at its start.
    pub tag: String,
    /// Wall-clock milliseconds since 1970.
    pub started_ms: u64,
    /// Wall-clock milliseconds since 1970.
    pub ended_ms: Option<u64>,
    /// As given at its start.
    pub timeout_ms: Option<u64>,
    /// Milliseconds it ran (or has run).
    pub duration_ms: u64,
    /// The size of its terminal, if it has one.
    pub pty: Option<PtySize>,
    /// Its input is a pipe and still open.
    pub stdin_open: bool,
    /// Input bytes accepted.
    pub stdin_offset: u64,
    /// All output bytes so far, both streams together.
    pub output_bytes: u64,
    /// Position of the oldest output byte still kept.
    pub first_offset: u64,
    /// Processes of it that the memory limit killed.
    pub oom_kills: u32,
}

/// Which output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A run of output of one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Which stream.
    pub stream: Stream,
    /// Position of the first byte over both streams together.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What a guest answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To `Hello`: the guest's version.
    Hello(u32),
    /// To calls with nothing to say.
    Done,
    /// To `Spawn`, `Status`, `Signal`.
    Exec(ExecInfo),
    /// To `Output`.
    Output {
        /// In order of their offsets; adjacent.
        chunks: Vec<Chunk>,
        /// Where to go on.
        next_cursor: u64,
        /// Bytes between the asked cursor and the first kept byte.
        dropped: u64,
        /// The command's record; its state is an ended one only when `next_cursor` is the end of the output.
        info: ExecInfo,
    },
    /// To `Input`: bytes accepted in all.
    Input(u64),
    /// To `List`.
    List(Vec<ExecInfo>),
    /// To `File`.
    File(FileReply),
    /// To `Dial`: the socket is the passed descriptor.
    Dialed,
    /// To `Rebuild` and `Hold`: see the attached memory file.
    Attached,
}

/// A failure inside the guest, already in the caller's terms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum GuestError {
    /// No such command.
    #[error("no process {0}")]
    NoSuchExec(ExecId),
    /// Too many commands at once.
    #[error("{RUNNING_MAX} commands are running already")]
    TooManyExecs,
    /// A file operation failed.
    #[error("{op} {path}: {}", std::io::Error::from_raw_os_error(*errno))]
    File {
        /// The operation.
        op: String,
        /// The path as given.
        path: String,
        /// The kernel's word.
        errno: i32,
    },
    /// A call that cannot be accepted.
    #[error("{0}")]
    BadCall(String),
    /// A connection to a port inside could not be begun, or was refused.
    #[error("port {port}: {}", std::io::Error::from_raw_os_error(*errno))]
    Dial {
        /// The port.
        port: u16,
        /// The kernel's word.
        errno: i32,
    },
    /// A rebuild failed; the sandbox is of no use.
    #[error("{0}")]
    Rebuild(String),
}

/// A file operation. Paths are absolute and resolved inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the doc of each variant says what its fields are")]
pub enum FileOp {
    /// Reads part of a regular file.
    Read { path: String, offset: u64, bytes_max: u32 },
    /// Writes one piece of a file into a temporary one beside it; the last piece renames it into place.
    Write { path: String, offset: u64, bytes: Vec<u8>, last: bool, mode: u32, token: u64 },
    /// Makes an empty file beside `path`, to be filled with `Part`s and renamed: answered with [`FileReply::Staged`].
    Stage { path: String, token: u64 },
    /// Writes into a file that `Stage` has made.
    Part { path: String, offset: u64, bytes: Vec<u8> },
    /// Forgets a `Write` that will not be finished.
    WriteAbort { path: String, token: u64 },
    /// One entry's facts; follows no last symlink.
    Stat { path: String },
    /// Entries below a directory.
    List { path: String, depth: u32, hidden: bool, glob: Option<String>, limit: u32 },
    /// Makes a directory.
    Mkdir { path: String, parents: bool },
    /// Removes an entry.
    Remove { path: String, recursive: bool },
    /// Renames an entry.
    Rename { from: String, to: String, overwrite: bool },
    /// Changes permission bits.
    Chmod { path: String, mode: u32 },
}

/// What kind of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

/// One entry's facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Last component; not UTF-8 bytes replaced.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// Kind.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Milliseconds since 1970.
    pub mtime_ms: i64,
    /// Owner inside.
    pub uid: u32,
    /// Group inside.
    pub gid: u32,
    /// Where a symlink points.
    pub target: Option<String>,
}

/// The answer to a file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the doc of each variant says what its fields are")]
pub enum FileReply {
    /// To `Read`: the bytes and the file's whole size.
    Content { bytes: Vec<u8>, size: u64 },
    /// To `Stat`; `None` is no such entry.
    Entry(Option<FileEntry>),
    /// To `List`.
    Entries { entries: Vec<FileEntry>, truncated: bool },
    /// The file to fill, and the one that it is to replace: behind a link that one, not the link.
    Staged { staged: String, target: String },
    /// To `Remove`: whether there was something.
    Removed(bool),
    /// To the rest.
    Done,
}

/// A guest's table, as it travels in a snapshot. Decoded with bounds: [`RUNNING_MAX`] + [`ENDED_KEPT`] commands.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuestState {
    /// Number of the next command.
    pub next_exec: u64,
    /// Last pid given out in the namespace (`ns_last_pid`).
    pub last_pid: i32,
    /// The commands.
    pub execs: Vec<SavedExec>,
}

/// One command in a saved table.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedExec {
    /// Its record.
    pub info: ExecInfo,
    /// Milliseconds of its time limit that are left.
    pub timeout_left_ms: Option<u64>,
    /// Guest-side ends, as descriptor numbers of the saved guest.
    pub stdin_fd: Option<i32>,
    /// Guest-side end of standard output.
    pub stdout_fd: Option<i32>,
    /// Guest-side end of standard error.
    pub stderr_fd: Option<i32>,
    /// Input accepted and not yet written into the pipe.
    pub stdin_pending: Vec<u8>,
    /// End of input was asked for.
    pub stdin_eof: bool,
    /// Kept output.
    pub chunks: Vec<Chunk>,
    /// The first process has ended and was reaped; its wait status.
    pub wait_status: Option<i32>,
    /// The time limit ended it.
    pub timed_out: bool,
}
