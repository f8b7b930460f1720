//! The audit log.

use super::codec::{column, json, parsed};
use super::database;
use crate::{AuditFilter, AuditRecord, CatalogError};
use branchbox_model::Timestamp;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{QueryBuilder, Sqlite};

pub(super) async fn write(pool: &SqlitePool, record: &AuditRecord) -> Result<(), CatalogError> {
    sqlx::query("INSERT INTO audit (at, action, detail) VALUES (?, ?, ?)")
        .bind(record.at.0)
        .bind(&record.action)
        .bind(json(&record.detail.request, &record.detail)?)
        .execute(pool)
        .await
        .map(|_| ())
        .map_err(database("write into the audit log"))
}

pub(super) async fn list(pool: &SqlitePool, filter: &AuditFilter) -> Result<Vec<AuditRecord>, CatalogError> {
    let mut query = QueryBuilder::<Sqlite>::new("SELECT * FROM audit WHERE 1 = 1");
    match filter.action.as_deref() {
        None => {}
        Some(group) if group.ends_with('.') => {
            query.push(" AND substr(action, 1, length(").push_bind(group.to_owned());
            query.push(")) = ").push_bind(group.to_owned());
        }
        Some(action) => drop(query.push(" AND action = ").push_bind(action.to_owned())),
    }
    if let Some(before) = filter.before {
        query.push(" AND seq < ").push_bind(before);
    }
    query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(filter.limit));
    let rows = query.build().fetch_all(pool).await.map_err(database("list the audit log"))?;
    rows.iter().map(line).collect()
}

fn line(row: &SqliteRow) -> Result<AuditRecord, CatalogError> {
    let seq: i64 = column(row, "seq")?;
    Ok(AuditRecord {
        seq,
        at: Timestamp(column(row, "at")?),
        action: column(row, "action")?,
        detail: parsed(&seq.to_string(), column(row, "detail")?)?,
    })
}

pub(super) async fn forget(pool: &SqlitePool, newest: u32) -> Result<u64, CatalogError> {
    let done = sqlx::query("DELETE FROM audit WHERE seq <= (SELECT max(seq) FROM audit) - ?")
        .bind(i64::from(newest))
        .execute(pool)
        .await
        .map_err(database("forget old lines of the audit log"))?;
    Ok(done.rows_affected())
}
