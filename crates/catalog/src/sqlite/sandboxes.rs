//! Sandboxes and their slots.

use super::codec::{json, sandbox, word};
use super::{database, events};
use crate::{CatalogError, SandboxFilter, SandboxRecord};
use branchbox_model::SandboxId;
use sqlx::sqlite::SqlitePool;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection};

pub(super) async fn insert(pool: &SqlitePool, record: &SandboxRecord, slots_max: u32) -> Result<u32, CatalogError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(database("begin"))?;
    check_name(&mut tx, record).await?;
    let id = record.id.as_str();
    sqlx::query("INSERT INTO sandboxes (id, name, labels, state, created, ended, deleted, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(id)
        .bind(&record.name)
        .bind(json(id, &record.labels)?)
        .bind(word(&record.state)?)
        .bind(record.created.0)
        .bind(record.ended.map(|t| t.0))
        .bind(record.deleted.map(|t| t.0))
        .bind(json(id, &record.detail)?)
        .execute(&mut *tx)
        .await
        .map_err(database("add a sandbox"))?;
    events::sandbox_created(&mut tx, record).await?;
    let slot = take_slot(&mut tx, &record.id, slots_max).await?;
    tx.commit().await.map_err(database("commit a sandbox"))?;
    Ok(slot)
}

async fn check_name(tx: &mut SqliteConnection, record: &SandboxRecord) -> Result<(), CatalogError> {
    let Some(name) = record.name.as_deref() else { return Ok(()) };
    if record.ended.is_some() || record.deleted.is_some() {
        return Ok(());
    }
    let holder: Option<String> =
        sqlx::query_scalar("SELECT id FROM sandboxes WHERE name = ? AND ended IS NULL AND deleted IS NULL AND id <> ?")
            .bind(name)
            .bind(record.id.as_str())
            .fetch_optional(tx)
            .await
            .map_err(database("look a name up"))?;
    match holder {
        None => Ok(()),
        Some(id) => {
            let holder = id.parse().map_err(|e| super::codec::id_error(&id, &e))?;
            Err(CatalogError::NameTaken { name: name.to_owned(), holder })
        }
    }
}

/// The lowest free slot, so that a machine uses as few different id ranges as it can.
async fn take_slot(tx: &mut SqliteConnection, id: &SandboxId, slots_max: u32) -> Result<u32, CatalogError> {
    let slot: i64 = sqlx::query_scalar(
        "SELECT min(slot) FROM (SELECT 0 AS slot UNION ALL SELECT slot + 1 FROM slots) WHERE slot NOT IN (SELECT slot FROM slots)",
    )
    .fetch_one(&mut *tx)
    .await
    .map_err(database("look for a slot"))?;
    let number =
        u32::try_from(slot).ok().filter(|n| *n < slots_max).ok_or(CatalogError::NoSlot { slots: slots_max })?;
    sqlx::query("INSERT INTO slots (slot, sandbox) VALUES (?, ?)")
        .bind(slot)
        .bind(id.as_str())
        .execute(tx)
        .await
        .map_err(database("take a slot"))?;
    Ok(number)
}

pub(super) async fn update(pool: &SqlitePool, record: &SandboxRecord) -> Result<(), CatalogError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(database("begin"))?;
    check_name(&mut tx, record).await?;
    events::sandbox_changes(&mut tx, record).await?;
    let id = record.id.as_str();
    let done = sqlx::query(
        "UPDATE sandboxes SET name = ?, labels = ?, state = ?, ended = ?, deleted = ?, detail = ? WHERE id = ?",
    )
    .bind(&record.name)
    .bind(json(id, &record.labels)?)
    .bind(word(&record.state)?)
    .bind(record.ended.map(|t| t.0))
    .bind(record.deleted.map(|t| t.0))
    .bind(json(id, &record.detail)?)
    .bind(id)
    .execute(&mut *tx)
    .await
    .map_err(database("update a sandbox"))?;
    if done.rows_affected() == 0 {
        return Err(CatalogError::Missing { id: id.to_owned() });
    }
    tx.commit().await.map_err(database("commit a sandbox"))
}

pub(super) async fn get(pool: &SqlitePool, id: &SandboxId) -> Result<Option<SandboxRecord>, CatalogError> {
    let row = sqlx::query("SELECT * FROM sandboxes WHERE id = ?")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await
        .map_err(database("read a sandbox"))?;
    row.as_ref().map(sandbox).transpose()
}

pub(super) async fn by_name(pool: &SqlitePool, name: &str) -> Result<Option<SandboxRecord>, CatalogError> {
    let row = sqlx::query("SELECT * FROM sandboxes WHERE name = ? AND ended IS NULL AND deleted IS NULL")
        .bind(name)
        .fetch_optional(pool)
        .await
        .map_err(database("look a name up"))?;
    row.as_ref().map(sandbox).transpose()
}

pub(super) async fn list(pool: &SqlitePool, filter: &SandboxFilter) -> Result<Vec<SandboxRecord>, CatalogError> {
    let mut query = QueryBuilder::<Sqlite>::new("SELECT * FROM sandboxes WHERE deleted IS NULL");
    if !filter.include_ended {
        query.push(" AND ended IS NULL");
    }
    if let Some(name) = &filter.name {
        query.push(" AND name = ").push_bind(name.clone());
    }
    if let Some(after) = &filter.after {
        query.push(" AND id > ").push_bind(after.to_string());
    }
    if !filter.states.is_empty() {
        query.push(" AND state IN (");
        let mut states = query.separated(", ");
        for state in &filter.states {
            states.push_bind(word(state)?);
        }
        query.push(")");
    }
    for (key, value) in &filter.labels {
        query.push(" AND EXISTS (SELECT 1 FROM json_each(labels) AS pair WHERE pair.key = ").push_bind(key.clone());
        query.push(" AND pair.value = ").push_bind(value.clone()).push(")");
    }
    query.push(" ORDER BY id LIMIT ").push_bind(i64::from(filter.limit));
    let rows = query.build().fetch_all(pool).await.map_err(database("list sandboxes"))?;
    rows.iter().map(sandbox).collect()
}

pub(super) async fn forget(pool: &SqlitePool, id: &SandboxId) -> Result<(), CatalogError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(database("begin"))?;
    events::unsay(&mut tx, id.as_str()).await?;
    sqlx::query("DELETE FROM sandboxes WHERE id = ?")
        .bind(id.as_str())
        .execute(&mut *tx)
        .await
        .map_err(database("forget a sandbox"))?;
    tx.commit().await.map_err(database("commit"))
}

pub(super) async fn slot(pool: &SqlitePool, id: &SandboxId) -> Result<Option<u32>, CatalogError> {
    let row = sqlx::query("SELECT slot FROM slots WHERE sandbox = ?")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await
        .map_err(database("read a slot"))?;
    row.map(|row| row.try_get::<u32, _>(0).map_err(database("read a slot"))).transpose()
}

pub(super) async fn take_slot_again(pool: &SqlitePool, id: &SandboxId, slots_max: u32) -> Result<u32, CatalogError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(database("begin"))?;
    let held: Option<u32> = sqlx::query_scalar("SELECT slot FROM slots WHERE sandbox = ?")
        .bind(id.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(database("read a slot"))?;
    let slot = match held {
        Some(slot) => slot,
        None => take_slot(&mut tx, id, slots_max).await?,
    };
    tx.commit().await.map_err(database("commit a slot"))?;
    Ok(slot)
}

pub(super) async fn release_slot(pool: &SqlitePool, id: &SandboxId) -> Result<(), CatalogError> {
    sqlx::query("DELETE FROM slots WHERE sandbox = ?")
        .bind(id.as_str())
        .execute(pool)
        .await
        .map(|_| ())
        .map_err(database("release a slot"))
}
