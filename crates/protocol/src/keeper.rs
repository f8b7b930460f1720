//! Calls that a keeper answers, on its listening socket `run/<id>.keeper`, and the file it starts from.

use branchbox_model::{IdRange, Limits, RootSpec, SandboxId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a keeper is started with: a JSON file whose path is its only argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeeperConfig {
    /// The sandbox.
    pub id: SandboxId,
    /// Where the two sockets lie: `<id>.keeper` and `<id>.guest`.
    pub run_dir: PathBuf,
    /// `STATE/sandboxes/<id>`; `keeper.json` (this file), `keeper.log` and the keeper's own records lie here.
    pub sandbox_dir: PathBuf,
    /// What is inside.
    pub hostname: String,
    /// Its ids on the host.
    pub ids: IdRange,
    /// Its limits.
    pub limits: Limits,
    /// Its files.
    pub root: RootSpec,
    /// Variables of every command.
    pub env: Vec<(String, String)>,
    /// Where it begins.
    pub start: Start,
    /// The host's boot, as captures note it.
    pub boot_id: String,
    /// End the sandbox when the last connection of a node closes, and then remove this directory (of `branchbox try`).
    pub ephemeral: Option<PathBuf>,
}

/// Where a sandbox begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// An empty machine.
    Boot,
    /// The machine saved in this directory; the upper was made from its layer already.
    Restore {
        /// `STATE/extents/<capture id>`.
        image: PathBuf,
    },
}

/// A call with its number.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the caller.
    pub id: u64,
    /// What to do.
    pub call: Call,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    /// The request's number.
    pub id: u64,
    /// What came of it.
    pub result: Result<Reply, KeeperError>,
}

/// What a keeper can be asked.
#[derive(Debug, Serialize, Deserialize)]
pub enum Call {
    /// First call of a connection; answered when the sandbox runs, or with why it cannot.
    Hello {
        /// The caller's [`crate::PROTOCOL_VERSION`].
        version: u32,
    },
    /// Saves the machine at one instant.
    Capture {
        /// New directory for memory and records; `None` saves files only.
        image: Option<PathBuf>,
        /// New layer for the files.
        layer: PathBuf,
    },
    /// Saves the machine and ends it in that very state; the files stay where they are. The keeper ends too.
    Pause {
        /// Directory for memory and records; appears whole and on the disk, or not at all. An older one is replaced.
        image: PathBuf,
    },
    /// What the sandbox has used.
    Usage,
    /// Ends every process of the sandbox and the keeper.
    Shutdown,
}

/// What a keeper answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To `Hello`: the sandbox runs.
    Running(Running),
    /// To `Capture`.
    Captured(CaptureReport),
    /// To `Pause`: saved, and nothing of it runs. After an error the sandbox runs on.
    Paused {
        /// What was saved; the whole length was a pause.
        report: CaptureReport,
        /// What the sandbox had used.
        usage: Usage,
    },
    /// To `Usage`.
    Usage(Usage),
    /// To `Shutdown`: all of it is gone.
    Ended(Usage),
}

/// Facts of a running sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Running {
    /// The keeper's own version.
    pub version: u32,
    /// Process 1 as the host sees it.
    pub guest_pid: i32,
    /// Microseconds from the keeper's start until the sandbox ran.
    pub start_us: u64,
    /// What a restore did to programs.
    pub notes: Vec<Note>,
    /// What isolation is in force, computed by looking.
    pub enforced: Enforced,
}

/// Something a restore did that a program could notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// `inode_changed`, `base_changed`, `limit_lowered`, …
    pub kind: String,
    /// Pid inside the sandbox, if of one process.
    pub pid: Option<i32>,
    /// For people.
    pub detail: String,
}

/// Whether the sandbox has a way out, found by trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// No interface but loopback, no route that leaves.
    pub closed: bool,
}

/// One capture, measured on this call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaptureReport {
    /// Microseconds the source stood still.
    pub pause_us: u64,
    /// Microseconds of the whole call.
    pub total_us: u64,
    /// Bytes of memory written.
    pub memory_bytes: u64,
    /// Bytes of records written.
    pub record_bytes: u64,
    /// Processes captured.
    pub processes: u32,
    /// Threads captured.
    pub threads: u32,
    /// What a restore of it will do to programs.
    pub notes: Vec<Note>,
}

/// What a sandbox has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time.
    pub cpu_us: u64,
    /// Memory now.
    pub memory_bytes: u64,
    /// Most memory at once.
    pub memory_peak_bytes: u64,
    /// Processes and threads now.
    pub pids: u64,
    /// Processes the memory limit killed.
    pub oom_kills: u64,
}

/// A failure in the keeper, ready for the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct KeeperError {
    /// The stable code.
    pub code: branchbox_model::Code,
    /// What failed, with its object and causes.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
    /// Pairs for `details`, such as pid, process, object, why.
    pub details: Vec<(String, String)>,
}
