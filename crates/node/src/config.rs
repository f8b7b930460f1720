//! How a node is set up.

use branchbox_model::{Bind, PoolDriver, Tree};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Sandboxes on one node when nothing else is said: what its descriptors and processes suffice for.
const SANDBOXES_MAX_DEFAULT: u32 = 1000;

/// A node's settings.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Where everything is kept.
    pub state_dir: PathBuf,
    /// The program that keepers and guests are modes of.
    pub exe: PathBuf,
    /// Where sockets lie, in a directory per state directory: a socket's path holds 108 bytes.
    pub run_parent: PathBuf,
    /// How uppers are kept; `None` takes the best there is.
    pub pool_driver: Option<PoolDriver>,
    /// Bytes that stay free on the state directory's disk; `None` is the pool's default.
    pub reserve_bytes: Option<u64>,
    /// Sandboxes at once, stopped ones not counted.
    pub sandboxes_max: u32,
    /// Sandboxes end when this process does, however it ends, and take the state directory with them.
    pub ephemeral: bool,
    /// How long a second of time limits, idle times and retentions lasts; tests shorten it.
    pub second: Duration,
    /// The host's boot; `None` asks the kernel, and tests name another.
    pub boot_id: Option<String>,
}

impl NodeConfig {
    /// The settings of a node on this state directory.
    #[must_use]
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            exe: "/proc/self/exe".into(),
            run_parent: "/run/branchbox".into(),
            pool_driver: None,
            reserve_bytes: None,
            sandboxes_max: SANDBOXES_MAX_DEFAULT,
            ephemeral: false,
            second: Duration::from_secs(1),
            boot_id: None,
        }
    }
}

/// What a sandbox gets beside its image; for a caller in this process, never over the API.
#[derive(Debug, Clone, Default)]
pub struct RootExtras {
    /// Overlays over the image's.
    pub trees: Vec<Tree>,
    /// Bind mounts over them.
    pub binds: Vec<Bind>,
    /// Variables of every command, under those of the request.
    pub env: BTreeMap<String, String>,
}

/// What becomes of the sandboxes when a node goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// They run on; the next node finds them.
    KeepSandboxes,
    /// They are stopped.
    EndSandboxes,
    /// They are deleted.
    DeleteSandboxes,
}
