//! The records: what is kept about each thing.

use branchbox_model::{
    Limits, RootSpec, SandboxId, SandboxState, SnapshotId, SnapshotMode, SnapshotState, StopReason, Timestamp, User,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// Unique among sandboxes that have neither ended nor been deleted.
    pub name: Option<String>,
    /// Free pairs of text.
    pub labels: BTreeMap<String, String>,
    /// Where it is in its life.
    pub state: SandboxState,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it ended for good, with nothing left to come back to.
    pub ended: Option<Timestamp>,
    /// When it was deleted; the record is then a tombstone.
    pub deleted: Option<Timestamp>,
    /// Everything that is not searched.
    pub detail: SandboxDetail,
}

/// What is not searched of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDetail {
    /// What it runs under.
    pub limits: Limits,
    /// Variables of every command.
    pub env: BTreeMap<String, String>,
    /// Default user of commands.
    pub user: User,
    /// Its file tree.
    pub root: RootSpec,
    /// The snapshot it started from.
    pub snapshot: Option<SnapshotId>,
    /// The sandbox it was forked from.
    pub forked_from: Option<SandboxId>,
    /// Why it does not run.
    pub stop_reason: Option<StopReason>,
    /// When commands could first run.
    pub ready: Option<Timestamp>,
    /// When it stopped.
    pub stopped: Option<Timestamp>,
    /// When it was last used.
    pub last_active: Timestamp,
    /// Its network rules.
    pub rules: Rules,
    /// Its shared ports.
    #[serde(default)]
    pub previews: BTreeMap<u16, PreviewRecord>,
    /// Settings as they were asked for.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// When it was paused; `None` when it is not.
    #[serde(default)]
    pub paused: Option<Timestamp>,
    /// The stretch of running that its keeper counts; `None` while it does not run.
    #[serde(default)]
    pub session: Option<Session>,
    /// Whether its last start brought its memory back; `None` before it was ever woken or restarted.
    #[serde(default)]
    pub memory_restored: Option<bool>,
}

/// A port that is shared over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewRecord {
    /// Whether visitors need no token.
    pub public: bool,
    /// Sites that may show it in a frame; empty is every site.
    pub embed_origins: Vec<String>,
    /// When it was first shared.
    pub created: Timestamp,
    /// Random; tokens are made with it, so that another one refuses those made before.
    pub seed: String,
}

/// Network rules; the version counts changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Counts changes, from 1.
    pub version: u64,
    /// When they were last set.
    pub updated: Timestamp,
}

/// Which sandboxes to list.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    /// Any of these states; empty is every state.
    pub states: Vec<SandboxState>,
    /// Ended ones too.
    pub include_ended: bool,
    /// All of these labels.
    pub labels: Vec<(String, String)>,
    /// This name.
    pub name: Option<String>,
    /// Only after this id.
    pub after: Option<SandboxId>,
    /// At most this many.
    pub limit: u32,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// Its id.
    pub id: SnapshotId,
    /// Free text.
    pub name: Option<String>,
    /// Free pairs of text.
    pub labels: BTreeMap<String, String>,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// The sandbox it was taken from.
    pub source: SandboxId,
    /// When it was asked for.
    pub created: Timestamp,
    /// Belongs to a fork and goes with it; never listed.
    pub temporary: bool,
    /// Everything that is not searched.
    pub detail: SnapshotDetail,
}

/// What is not searched of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotDetail {
    /// What it holds.
    pub mode: SnapshotMode,
    /// The source's limits, which are a memory snapshot's shape.
    pub limits: Limits,
    /// The source's file tree.
    pub root: RootSpec,
    /// The source's default user.
    pub user: User,
    /// The source's variables; kept by forks, not by creates.
    pub env: BTreeMap<String, String>,
    /// The source's settings.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// When it became ready.
    pub ready: Option<Timestamp>,
    /// Days it is kept; `None` is until deleted.
    pub retention_days: Option<u32>,
    /// Bytes that it keeps beyond what an earlier snapshot keeps; `None` until they are counted.
    pub stored_bytes: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
    /// The boot its files were written in.
    pub boot_id: String,
    /// Its files have reached the disk: it survives a power cut.
    pub synced: bool,
}

/// Which snapshots to list.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Taken from this sandbox.
    pub source: Option<SandboxId>,
    /// This name.
    pub name: Option<String>,
    /// This state.
    pub state: Option<SnapshotState>,
    /// Those that belong to forks too.
    pub include_temporary: bool,
    /// Only older than this id.
    pub after: Option<SnapshotId>,
    /// At most this many.
    pub limit: u32,
}

/// The answer that an idempotency key got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Of the request that ran.
    pub fingerprint: String,
    /// HTTP status.
    pub status: u16,
    /// The JSON body.
    pub body: String,
    /// When it was kept.
    pub created: Timestamp,
}

/// From a start to the next pause or stop: a keeper counts only what happens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// When it began.
    pub begun: Timestamp,
    /// What the sandbox had used before it.
    pub before: Usage,
}

/// Money for something in one hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// A sandbox or snapshot.
    pub resource: String,
    /// Who pays.
    pub account: String,
    /// Hours since 1970.
    pub hour: i64,
    /// Picodollars: a millionth of a microdollar, so that what a second costs is a whole number.
    pub pico: u64,
}

/// What a sandbox has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Milliseconds it ran.
    pub running_ms: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Memory held, in MiB times milliseconds.
    pub memory_mib_ms: u64,
}
