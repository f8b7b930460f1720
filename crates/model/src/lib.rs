//! Ids, specifications, states and errors: the words every other crate speaks.
//!
//! Nothing here does input or output. A type lives here when two crates that do not know each other must agree on it.

mod code;
mod ids;
mod root;
mod spec;
mod state;
mod time;

pub use code::{Code, Coded, Retry};
pub use ids::{ExecId, IdError, SandboxId, SnapshotId};
pub use root::{Bind, ImageDefaults, PoolDriver, RootSpec, Tree};
pub use spec::{DiskMib, IdRange, Limits, MemoryMib, SandboxSpec, SpecError, User, Vcpus, names};
pub use state::{SandboxState, SnapshotMode, SnapshotState, StopReason};
pub use time::Timestamp;
