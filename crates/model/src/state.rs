//! The states a sandbox and a snapshot can be in, spelled as on the wire.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// Being made; commands wait.
    Starting,
    /// Commands can run.
    Running,
    /// On its way to `Paused`.
    Pausing,
    /// Memory and processes kept, nothing runs.
    Paused,
    /// On its way from `Paused` to `Running`.
    Resuming,
    /// On its way to `Stopped`.
    Stopping,
    /// Nothing runs and memory is gone.
    Stopped,
}

/// Why a sandbox is not running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A client asked.
    Requested,
    /// It could not be started.
    StartupFailed,
    /// The host went down, or the sandbox's first process ended.
    HostLost,
    /// `serve --end-sandboxes` or an operator ended it.
    OperatorStopped,
    /// Its time limit was reached.
    LeaseExpired,
    /// It was idle.
    Idle,
    /// Its paused state was kept as long as asked for.
    PausedExpired,
    /// It could not be paused.
    PauseFailed,
    /// The key that it was made with had spent what it may in a day.
    SpendingLimit,
}

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotMode {
    /// The whole machine.
    Memory,
    /// Files only.
    Disk,
}

/// Where a snapshot is in its life. `Ready` is said only when a sandbox can be started from it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotState {
    /// The capture runs.
    Capturing,
    /// Whole, and startable by this node.
    Ready,
    /// The capture failed; the record says why.
    Failed,
    /// Being removed.
    Deleting,
}
