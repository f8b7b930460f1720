//! What a node knows about sandboxes, snapshots and requests, kept so that a crash loses none of it.
//!
//! One trait, [`Catalog`]; [`SqliteCatalog`] implements it for one machine. Every method is one transaction: what must
//! be decided once (a name, a slot, an idempotency key) is decided by the database and by nothing in memory.
//!
//! Columns are what is searched or must be unique; everything else of a record is JSON in its `detail`, so that a new
//! field needs no migration. Deliberately not here: any judgement about states; the node alone moves them.

mod audit;
pub mod contract;
mod error;
mod events;
mod records;
mod sqlite;

use async_trait::async_trait;
use branchbox_model::{SandboxId, SnapshotId, Timestamp};
use std::collections::BTreeMap;

pub use audit::{AuditDetail, AuditFilter, AuditRecord};
pub use error::CatalogError;
pub use events::{EventDetail, EventFilter, EventRecord};
pub use records::{
    Charge, KeptAnswer, PreviewRecord, Rules, SandboxDetail, SandboxFilter, SandboxRecord, Session, SnapshotDetail,
    SnapshotFilter, SnapshotRecord, Usage,
};
pub use sqlite::SqliteCatalog;

/// Metadata of one node.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// Adds a sandbox and gives it a slot.
    ///
    /// # Errors
    /// [`CatalogError::NameTaken`], [`CatalogError::NoSlot`], or a failure of the database.
    async fn insert_sandbox(&self, record: &SandboxRecord, slots_max: u32) -> Result<u32, CatalogError>;

    /// Writes a sandbox's record over the old one.
    ///
    /// # Errors
    /// [`CatalogError::NameTaken`], [`CatalogError::Missing`], or a failure of the database.
    async fn update_sandbox(&self, record: &SandboxRecord) -> Result<(), CatalogError>;

    /// Reads a sandbox, tombstones included.
    async fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, CatalogError>;

    /// Reads the sandbox that holds a name.
    async fn sandbox_by_name(&self, name: &str) -> Result<Option<SandboxRecord>, CatalogError>;

    /// Lists sandboxes, oldest first; never tombstones.
    async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxRecord>, CatalogError>;

    /// Forgets a sandbox altogether, as if it had never been; of creates that failed before they were answered.
    async fn forget_sandbox(&self, id: &SandboxId) -> Result<(), CatalogError>;

    /// The slot a sandbox holds.
    async fn slot(&self, id: &SandboxId) -> Result<Option<u32>, CatalogError>;

    /// Takes the lowest free slot for a sandbox that starts again; the one it has already, if it has one.
    ///
    /// # Errors
    /// [`CatalogError::NoSlot`] when all below `slots_max` are taken, or a failure of the database.
    async fn take_slot(&self, id: &SandboxId, slots_max: u32) -> Result<u32, CatalogError>;

    /// Gives a sandbox's slot back.
    async fn release_slot(&self, id: &SandboxId) -> Result<(), CatalogError>;

    /// Adds a snapshot.
    async fn insert_snapshot(&self, record: &SnapshotRecord) -> Result<(), CatalogError>;

    /// Writes a snapshot's record over the old one; with `if_labels`, only while its labels are these.
    ///
    /// # Errors
    /// [`CatalogError::LabelsChanged`], [`CatalogError::Missing`], or a failure of the database.
    async fn update_snapshot(
        &self,
        record: &SnapshotRecord,
        if_labels: Option<&BTreeMap<String, String>>,
    ) -> Result<(), CatalogError>;

    /// Reads a snapshot.
    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, CatalogError>;

    /// Lists snapshots, newest first.
    async fn snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotRecord>, CatalogError>;

    /// Forgets a snapshot; forgetting an unknown one is no error.
    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), CatalogError>;

    /// Lists events, newest first. They are written by the methods that write states.
    async fn events(&self, filter: &EventFilter) -> Result<Vec<EventRecord>, CatalogError>;

    /// Forgets events from before `before`, and all but the `newest`; says how many.
    async fn forget_events(&self, before: Timestamp, newest: u32) -> Result<u64, CatalogError>;

    /// Adds a line to the audit log; its number is given here.
    async fn write_audit(&self, record: &AuditRecord) -> Result<(), CatalogError>;

    /// Lists the audit log, newest first.
    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRecord>, CatalogError>;

    /// Forgets all lines of the audit log but the `newest`; says how many.
    async fn forget_audit(&self, newest: u32) -> Result<u64, CatalogError>;

    /// The kept answer of an idempotency key.
    async fn kept_answer(&self, account: &str, key: &str) -> Result<Option<KeptAnswer>, CatalogError>;

    /// Keeps an answer; the first one of a key stays.
    async fn keep_answer(&self, account: &str, key: &str, answer: &KeptAnswer) -> Result<(), CatalogError>;

    /// Forgets answers kept before `before`; says how many.
    async fn forget_answers(&self, before: Timestamp) -> Result<u64, CatalogError>;

    /// Adds to what a sandbox has used.
    async fn add_usage(&self, id: &SandboxId, more: Usage) -> Result<(), CatalogError>;

    /// What one sandbox has used.
    async fn usage_of(&self, id: &SandboxId) -> Result<Usage, CatalogError>;

    /// What each sandbox has used, deleted ones included, newest first.
    async fn usage(&self, limit: u32) -> Result<Vec<(SandboxId, Usage)>, CatalogError>;

    /// Adds to what was charged for something in an hour.
    async fn add_charge(&self, charge: &Charge) -> Result<(), CatalogError>;

    /// What an account was charged in this hour and later, in picodollars.
    async fn charged_since(&self, account: &str, hour: i64) -> Result<u64, CatalogError>;

    /// What was charged for each thing in all, in picodollars.
    async fn charged(&self) -> Result<BTreeMap<String, u64>, CatalogError>;

    /// Reads a setting.
    async fn setting(&self, name: &str) -> Result<Option<String>, CatalogError>;

    /// Writes a setting.
    async fn set_setting(&self, name: &str, value: &str) -> Result<(), CatalogError>;
}
