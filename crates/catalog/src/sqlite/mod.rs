//! The catalog of one machine: an SQLite file in WAL mode.
//!
//! `synchronous=NORMAL`: a commit survives any crash of ours; after a power cut the newest commits may be missing, and
//! the node's recovery then finds files without a record and removes them. Migrations are embedded and numbered by
//! `user_version`; a file of a newer version is refused untouched.

mod answers;
mod audit;
mod charges;
mod codec;
mod events;
mod sandboxes;
mod snapshots;

use crate::{
    AuditFilter, AuditRecord, Catalog, CatalogError, Charge, EventFilter, EventRecord, KeptAnswer, SandboxFilter,
    SandboxRecord, SnapshotFilter, SnapshotRecord, Usage,
};
use async_trait::async_trait;
use branchbox_model::{SandboxId, SnapshotId, Timestamp};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// One script per version, in order; a script is never edited once released.
const MIGRATIONS: &[&str] =
    &[include_str!("schema.sql"), include_str!("events.sql"), include_str!("audit.sql"), include_str!("charges.sql")];
/// Connections: one writes at a time, the others read.
const CONNECTIONS_MAX: u32 = 4;
/// How long a writer waits for another.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A [`Catalog`] in an SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteCatalog {
    pool: SqlitePool,
}

pub(crate) fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> CatalogError {
    move |source| CatalogError::Database { action, source }
}

impl SqliteCatalog {
    /// Opens or makes the file, and brings it to the newest version.
    ///
    /// # Errors
    /// [`CatalogError::Newer`] for a file of a newer version, or a failure of the database.
    pub async fn open(path: &Path) -> Result<Self, CatalogError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .connect_with(options)
            .await
            .map_err(database("open its file"))?;
        let catalog = Self { pool };
        catalog.migrate().await?;
        Ok(catalog)
    }

    /// Writes everything out and closes the file.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    async fn migrate(&self) -> Result<(), CatalogError> {
        let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
        let found: i64 = sqlx::query_scalar("PRAGMA user_version")
            .fetch_one(&self.pool)
            .await
            .map_err(database("read its version"))?;
        if found > known {
            return Err(CatalogError::Newer { found, known });
        }
        for (number, script) in (1i64..).zip(MIGRATIONS.iter().copied()) {
            if number > found {
                self.apply(number, script).await?;
            }
        }
        Ok(())
    }

    async fn apply(&self, number: i64, script: &'static str) -> Result<(), CatalogError> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(database("begin a migration"))?;
        sqlx::raw_sql(script).execute(&mut *tx).await.map_err(database("migrate"))?;
        let version = sqlx::AssertSqlSafe(format!("PRAGMA user_version = {number}"));
        sqlx::raw_sql(version).execute(&mut *tx).await.map_err(database("write its version"))?;
        tx.commit().await.map_err(database("commit a migration"))
    }
}

#[async_trait]
impl Catalog for SqliteCatalog {
    async fn insert_sandbox(&self, record: &SandboxRecord, slots_max: u32) -> Result<u32, CatalogError> {
        sandboxes::insert(&self.pool, record, slots_max).await
    }
    async fn update_sandbox(&self, record: &SandboxRecord) -> Result<(), CatalogError> {
        sandboxes::update(&self.pool, record).await
    }
    async fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, CatalogError> {
        sandboxes::get(&self.pool, id).await
    }
    async fn sandbox_by_name(&self, name: &str) -> Result<Option<SandboxRecord>, CatalogError> {
        sandboxes::by_name(&self.pool, name).await
    }
    async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxRecord>, CatalogError> {
        sandboxes::list(&self.pool, filter).await
    }
    async fn forget_sandbox(&self, id: &SandboxId) -> Result<(), CatalogError> {
        sandboxes::forget(&self.pool, id).await
    }
    async fn slot(&self, id: &SandboxId) -> Result<Option<u32>, CatalogError> {
        sandboxes::slot(&self.pool, id).await
    }
    async fn take_slot(&self, id: &SandboxId, slots_max: u32) -> Result<u32, CatalogError> {
        sandboxes::take_slot_again(&self.pool, id, slots_max).await
    }

    async fn release_slot(&self, id: &SandboxId) -> Result<(), CatalogError> {
        sandboxes::release_slot(&self.pool, id).await
    }
    async fn insert_snapshot(&self, record: &SnapshotRecord) -> Result<(), CatalogError> {
        snapshots::insert(&self.pool, record).await
    }
    async fn update_snapshot(
        &self,
        record: &SnapshotRecord,
        if_labels: Option<&BTreeMap<String, String>>,
    ) -> Result<(), CatalogError> {
        snapshots::update(&self.pool, record, if_labels).await
    }
    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, CatalogError> {
        snapshots::get(&self.pool, id).await
    }
    async fn snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotRecord>, CatalogError> {
        snapshots::list(&self.pool, filter).await
    }
    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), CatalogError> {
        snapshots::remove(&self.pool, id).await
    }
    async fn events(&self, filter: &EventFilter) -> Result<Vec<EventRecord>, CatalogError> {
        events::list(&self.pool, filter).await
    }
    async fn forget_events(&self, before: Timestamp, newest: u32) -> Result<u64, CatalogError> {
        events::forget(&self.pool, before, newest).await
    }
    async fn write_audit(&self, record: &AuditRecord) -> Result<(), CatalogError> {
        audit::write(&self.pool, record).await
    }
    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRecord>, CatalogError> {
        audit::list(&self.pool, filter).await
    }
    async fn forget_audit(&self, newest: u32) -> Result<u64, CatalogError> {
        audit::forget(&self.pool, newest).await
    }
    async fn kept_answer(&self, account: &str, key: &str) -> Result<Option<KeptAnswer>, CatalogError> {
        answers::get(&self.pool, account, key).await
    }
    async fn keep_answer(&self, account: &str, key: &str, answer: &KeptAnswer) -> Result<(), CatalogError> {
        answers::keep(&self.pool, account, key, answer).await
    }
    async fn forget_answers(&self, before: Timestamp) -> Result<u64, CatalogError> {
        answers::forget(&self.pool, before).await
    }
    async fn add_usage(&self, id: &SandboxId, more: Usage) -> Result<(), CatalogError> {
        answers::add_usage(&self.pool, id, more).await
    }
    async fn usage_of(&self, id: &SandboxId) -> Result<Usage, CatalogError> {
        answers::usage_of(&self.pool, id).await
    }
    async fn usage(&self, limit: u32) -> Result<Vec<(SandboxId, Usage)>, CatalogError> {
        answers::usage(&self.pool, limit).await
    }
    async fn add_charge(&self, charge: &Charge) -> Result<(), CatalogError> {
        charges::add(&self.pool, charge).await
    }
    async fn charged_since(&self, account: &str, hour: i64) -> Result<u64, CatalogError> {
        charges::since(&self.pool, account, hour).await
    }
    async fn charged(&self) -> Result<BTreeMap<String, u64>, CatalogError> {
        charges::all(&self.pool).await
    }
    async fn setting(&self, name: &str) -> Result<Option<String>, CatalogError> {
        answers::setting(&self.pool, name).await
    }
    async fn set_setting(&self, name: &str, value: &str) -> Result<(), CatalogError> {
        answers::set_setting(&self.pool, name, value).await
    }
}
