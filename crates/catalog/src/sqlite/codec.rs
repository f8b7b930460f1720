//! Between records and columns.

use super::database;
use crate::{CatalogError, SandboxRecord, SnapshotRecord};
use branchbox_model::{IdError, SandboxId, Timestamp};
use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// JSON text of a part of record `id`.
pub(super) fn json<T: Serialize>(id: &str, value: &T) -> Result<String, CatalogError> {
    serde_json::to_string(value).map_err(|source| CatalogError::Damaged { id: id.to_owned(), source })
}

pub(super) fn parsed<T: DeserializeOwned>(id: &str, text: &str) -> Result<T, CatalogError> {
    serde_json::from_str(text).map_err(|source| CatalogError::Damaged { id: id.to_owned(), source })
}

/// A unit enum's word as on the wire, without its quotes.
pub(super) fn word<T: Serialize>(value: &T) -> Result<String, CatalogError> {
    Ok(json("state", value)?.trim_matches('"').to_owned())
}

pub(super) fn from_word<T: DeserializeOwned>(id: &str, text: &str) -> Result<T, CatalogError> {
    parsed(id, &format!("\"{text}\""))
}

pub(super) fn id_error(id: &str, error: &IdError) -> CatalogError {
    CatalogError::Damaged { id: id.to_owned(), source: serde_json::Error::custom(error) }
}

pub(super) fn column<'r, T>(row: &'r SqliteRow, name: &str) -> Result<T, CatalogError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(name).map_err(database("read a column"))
}

fn times(row: &SqliteRow, name: &str) -> Result<Option<Timestamp>, CatalogError> {
    Ok(column::<Option<i64>>(row, name)?.map(Timestamp))
}

pub(super) fn sandbox(row: &SqliteRow) -> Result<SandboxRecord, CatalogError> {
    let id: String = column(row, "id")?;
    Ok(SandboxRecord {
        id: id.parse::<SandboxId>().map_err(|e| id_error(&id, &e))?,
        name: column(row, "name")?,
        labels: parsed(&id, column(row, "labels")?)?,
        state: from_word(&id, column(row, "state")?)?,
        created: Timestamp(column(row, "created")?),
        ended: times(row, "ended")?,
        deleted: times(row, "deleted")?,
        detail: parsed(&id, column(row, "detail")?)?,
    })
}

pub(super) fn snapshot(row: &SqliteRow) -> Result<SnapshotRecord, CatalogError> {
    let id: String = column(row, "id")?;
    let source: String = column(row, "source")?;
    Ok(SnapshotRecord {
        id: id.parse().map_err(|e| id_error(&id, &e))?,
        name: column(row, "name")?,
        labels: parsed(&id, column(row, "labels")?)?,
        state: from_word(&id, column(row, "state")?)?,
        source: source.parse().map_err(|e| id_error(&id, &e))?,
        created: Timestamp(column(row, "created")?),
        temporary: column(row, "temporary")?,
        detail: parsed(&id, column(row, "detail")?)?,
    })
}
