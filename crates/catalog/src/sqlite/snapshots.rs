//! Snapshots.

use super::codec::{json, snapshot, word};
use super::{database, events};
use crate::{CatalogError, SnapshotFilter, SnapshotRecord};
use branchbox_model::SnapshotId;
use sqlx::sqlite::SqlitePool;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use std::collections::BTreeMap;

pub(super) async fn insert(pool: &SqlitePool, record: &SnapshotRecord) -> Result<(), CatalogError> {
    let id = record.id.as_str();
    sqlx::query("INSERT INTO snapshots (id, name, labels, state, source, created, temporary, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
        .bind(id)
        .bind(&record.name)
        .bind(json(id, &record.labels)?)
        .bind(word(&record.state)?)
        .bind(record.source.as_str())
        .bind(record.created.0)
        .bind(record.temporary)
        .bind(json(id, &record.detail)?)
        .execute(pool)
        .await
        .map(|_| ())
        .map_err(database("add a snapshot"))
}

pub(super) async fn update(
    pool: &SqlitePool,
    record: &SnapshotRecord,
    if_labels: Option<&BTreeMap<String, String>>,
) -> Result<(), CatalogError> {
    let id = record.id.as_str();
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(database("begin"))?;
    let old = get_in(&mut tx, &record.id).await?;
    let mut query = QueryBuilder::<Sqlite>::new("UPDATE snapshots SET name = ");
    query.push_bind(record.name.clone());
    query.push(", labels = ").push_bind(json(id, &record.labels)?);
    query.push(", state = ").push_bind(word(&record.state)?);
    query.push(", temporary = ").push_bind(record.temporary);
    query.push(", detail = ").push_bind(json(id, &record.detail)?);
    query.push(" WHERE id = ").push_bind(id.to_owned());
    if let Some(expected) = if_labels {
        // Maps are sorted, so equal labels are equal texts.
        query.push(" AND labels = ").push_bind(json(id, expected)?);
    }
    let done = query.build().execute(&mut *tx).await.map_err(database("update a snapshot"))?;
    match (done.rows_affected(), old) {
        (1.., Some(old)) => events::snapshot_changes(&mut tx, old.state, record, false).await?,
        (_, Some(_)) => return Err(CatalogError::LabelsChanged { id: id.to_owned() }),
        (_, None) => return Err(CatalogError::Missing { id: id.to_owned() }),
    }
    tx.commit().await.map_err(database("commit a snapshot"))
}

pub(super) async fn get(pool: &SqlitePool, id: &SnapshotId) -> Result<Option<SnapshotRecord>, CatalogError> {
    let mut connection = pool.acquire().await.map_err(database("read a snapshot"))?;
    get_in(&mut connection, id).await
}

async fn get_in(connection: &mut SqliteConnection, id: &SnapshotId) -> Result<Option<SnapshotRecord>, CatalogError> {
    let row = sqlx::query("SELECT * FROM snapshots WHERE id = ?")
        .bind(id.as_str())
        .fetch_optional(connection)
        .await
        .map_err(database("read a snapshot"))?;
    row.as_ref().map(snapshot).transpose()
}

pub(super) async fn list(pool: &SqlitePool, filter: &SnapshotFilter) -> Result<Vec<SnapshotRecord>, CatalogError> {
    let mut query = QueryBuilder::<Sqlite>::new("SELECT * FROM snapshots WHERE 1 = 1");
    if !filter.include_temporary {
        query.push(" AND temporary = 0");
    }
    if let Some(source) = &filter.source {
        query.push(" AND source = ").push_bind(source.to_string());
    }
    if let Some(name) = &filter.name {
        query.push(" AND name = ").push_bind(name.clone());
    }
    if let Some(state) = &filter.state {
        query.push(" AND state = ").push_bind(word(state)?);
    }
    if let Some(after) = &filter.after {
        query.push(" AND id < ").push_bind(after.to_string());
    }
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit));
    let rows = query.build().fetch_all(pool).await.map_err(database("list snapshots"))?;
    rows.iter().map(snapshot).collect()
}

pub(super) async fn remove(pool: &SqlitePool, id: &SnapshotId) -> Result<(), CatalogError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(database("begin"))?;
    let Some(old) = get_in(&mut tx, id).await? else { return Ok(()) };
    events::snapshot_changes(&mut tx, old.state, &old, true).await?;
    sqlx::query("DELETE FROM snapshots WHERE id = ?")
        .bind(id.as_str())
        .execute(&mut *tx)
        .await
        .map_err(database("remove a snapshot"))?;
    tx.commit().await.map_err(database("commit"))
}
