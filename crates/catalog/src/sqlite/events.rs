//! Events, written with the states they tell.

use super::codec::{column, from_word, json, parsed, word};
use super::database;
use crate::events::{of_sandbox, of_snapshot};
use crate::{CatalogError, EventDetail, EventFilter, EventRecord, SandboxRecord, SnapshotRecord};
use branchbox_model::{SandboxState, SnapshotState, Timestamp};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

async fn write(
    tx: &mut SqliteConnection,
    kind: &str,
    resource: &str,
    state: &str,
    detail: &EventDetail,
) -> Result<(), CatalogError> {
    sqlx::query("INSERT INTO events (at, type, resource, state, detail) VALUES (?, ?, ?, ?, ?)")
        .bind(Timestamp::now().0)
        .bind(kind)
        .bind(resource)
        .bind(state)
        .bind(json(resource, detail)?)
        .execute(tx)
        .await
        .map(|_| ())
        .map_err(database("write an event"))
}

fn of(record: &SandboxRecord, previous: Option<String>) -> EventDetail {
    let (name, labels) = (record.name.clone(), record.labels.clone());
    EventDetail { name, labels, previous, reason: record.detail.stop_reason, ..EventDetail::default() }
}

/// Writes that a sandbox was asked for.
pub(super) async fn sandbox_created(tx: &mut SqliteConnection, record: &SandboxRecord) -> Result<(), CatalogError> {
    write(tx, "sandbox.created", record.id.as_str(), &word(&record.state)?, &of(record, None)).await
}

/// Writes what becomes of a sandbox by this record, which is about to be written over the old one.
pub(super) async fn sandbox_changes(tx: &mut SqliteConnection, record: &SandboxRecord) -> Result<(), CatalogError> {
    let id = record.id.as_str();
    let old: Option<String> = sqlx::query_scalar("SELECT state FROM sandboxes WHERE id = ?")
        .bind(id)
        .fetch_optional(&mut *tx)
        .await
        .map_err(database("read a state"))?;
    let Some(old) = old else { return Ok(()) };
    let old: SandboxState = from_word(id, &old)?;
    if old == record.state {
        return Ok(());
    }
    let told: Option<String> =
        sqlx::query_scalar("SELECT state FROM events WHERE resource = ? ORDER BY seq DESC LIMIT 1")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await
            .map_err(database("read the last event"))?;
    let told = told.map_or(Ok(old), |told| from_word(id, &told))?;
    match of_sandbox(told, old, record.state) {
        Some(kind) => write(tx, kind, id, &word(&record.state)?, &of(record, Some(word(&told)?))).await,
        None => Ok(()),
    }
}

/// Writes what becomes of a snapshot: by this record, or with `is_gone` by its removal. Those of forks are no events.
pub(super) async fn snapshot_changes(
    tx: &mut SqliteConnection,
    old: SnapshotState,
    record: &SnapshotRecord,
    is_gone: bool,
) -> Result<(), CatalogError> {
    let new = Some(record.state).filter(|_| !is_gone);
    let Some(kind) = of_snapshot(old, new).filter(|_| !record.temporary) else { return Ok(()) };
    let state = match kind {
        "snapshot.deleted" => "deleted".to_owned(),
        "snapshot.failed" => word(&SnapshotState::Failed)?,
        _ => word(&record.state)?,
    };
    let detail = EventDetail {
        name: record.name.clone(),
        labels: record.labels.clone(),
        previous: Some(word(&old)?),
        reason: None,
        source: Some(record.source.to_string()),
        error: record.detail.error.clone(),
    };
    write(tx, kind, record.id.as_str(), &state, &detail).await
}

/// Forgets what was told of a thing that never was.
pub(super) async fn unsay(tx: &mut SqliteConnection, resource: &str) -> Result<(), CatalogError> {
    let done = sqlx::query("DELETE FROM events WHERE resource = ?").bind(resource).execute(tx).await;
    done.map(|_| ()).map_err(database("forget events"))
}

pub(super) async fn list(pool: &SqlitePool, filter: &EventFilter) -> Result<Vec<EventRecord>, CatalogError> {
    let mut query = QueryBuilder::<Sqlite>::new("SELECT * FROM events WHERE 1 = 1");
    if let Some(resource) = &filter.resource {
        query.push(" AND resource = ").push_bind(resource.clone());
    }
    if let Some(kind) = &filter.kind {
        query.push(" AND type = ").push_bind(kind.clone());
    }
    if let Some(before) = filter.before {
        query.push(" AND seq < ").push_bind(before);
    }
    query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(filter.limit));
    let rows = query.build().fetch_all(pool).await.map_err(database("list events"))?;
    rows.iter().map(event).collect()
}

fn event(row: &SqliteRow) -> Result<EventRecord, CatalogError> {
    let resource: String = column(row, "resource")?;
    Ok(EventRecord {
        seq: column(row, "seq")?,
        at: Timestamp(column(row, "at")?),
        kind: column(row, "type")?,
        state: column(row, "state")?,
        detail: parsed(&resource, column(row, "detail")?)?,
        resource,
    })
}

pub(super) async fn forget(pool: &SqlitePool, before: Timestamp, newest: u32) -> Result<u64, CatalogError> {
    let done = sqlx::query("DELETE FROM events WHERE at < ? OR seq <= (SELECT max(seq) FROM events) - ?")
        .bind(before.0)
        .bind(i64::from(newest))
        .execute(pool)
        .await
        .map_err(database("forget events"))?;
    Ok(done.rows_affected())
}
