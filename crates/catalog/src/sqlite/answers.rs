//! Kept answers, usage and settings: small tables with one key each.

use super::codec::id_error;
use super::database;
use crate::{CatalogError, KeptAnswer, Usage};
use branchbox_model::{SandboxId, Timestamp};
use sqlx::Row;
use sqlx::sqlite::{SqlitePool, SqliteRow};

pub(super) async fn get(pool: &SqlitePool, account: &str, key: &str) -> Result<Option<KeptAnswer>, CatalogError> {
    let row = sqlx::query("SELECT fingerprint, status, body, created FROM answers WHERE account = ? AND key = ?")
        .bind(account)
        .bind(key)
        .fetch_optional(pool)
        .await
        .map_err(database("read a kept answer"))?;
    let Some(row) = row else { return Ok(None) };
    let read = || {
        Ok(KeptAnswer {
            fingerprint: row.try_get(0)?,
            status: row.try_get(1)?,
            body: row.try_get(2)?,
            created: Timestamp(row.try_get(3)?),
        })
    };
    read().map(Some).map_err(database("read a kept answer"))
}

pub(super) async fn keep(pool: &SqlitePool, account: &str, key: &str, answer: &KeptAnswer) -> Result<(), CatalogError> {
    sqlx::query("INSERT INTO answers (account, key, fingerprint, status, body, created) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(account)
        .bind(key)
        .bind(&answer.fingerprint)
        .bind(answer.status)
        .bind(&answer.body)
        .bind(answer.created.0)
        .execute(pool)
        .await
        .map(|_| ())
        .map_err(database("keep an answer"))
}

pub(super) async fn forget(pool: &SqlitePool, before: Timestamp) -> Result<u64, CatalogError> {
    let done = sqlx::query("DELETE FROM answers WHERE created < ?")
        .bind(before.0)
        .execute(pool)
        .await
        .map_err(database("forget answers"))?;
    Ok(done.rows_affected())
}

pub(super) async fn add_usage(pool: &SqlitePool, id: &SandboxId, more: Usage) -> Result<(), CatalogError> {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    sqlx::query(
        "INSERT INTO usage (sandbox, running_ms, cpu_us, memory_mib_ms) VALUES (?, ?, ?, ?) ON CONFLICT (sandbox) DO UPDATE SET \
         running_ms = running_ms + excluded.running_ms, cpu_us = cpu_us + excluded.cpu_us, memory_mib_ms = memory_mib_ms + excluded.memory_mib_ms",
    )
    .bind(id.as_str())
    .bind(signed(more.running_ms))
    .bind(signed(more.cpu_us))
    .bind(signed(more.memory_mib_ms))
    .execute(pool)
    .await
    .map(|_| ())
    .map_err(database("add usage"))
}

/// The three numbers of a row, from column `first` on.
fn numbers(row: &SqliteRow, first: usize) -> Result<Usage, CatalogError> {
    let number = |column: usize| {
        row.try_get::<i64, _>(column).map(|n| u64::try_from(n).unwrap_or(0)).map_err(database("read usage"))
    };
    Ok(Usage { running_ms: number(first)?, cpu_us: number(first + 1)?, memory_mib_ms: number(first + 2)? })
}

pub(super) async fn usage_of(pool: &SqlitePool, id: &SandboxId) -> Result<Usage, CatalogError> {
    let row = sqlx::query("SELECT running_ms, cpu_us, memory_mib_ms FROM usage WHERE sandbox = ?")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await
        .map_err(database("read usage"))?;
    row.as_ref().map_or(Ok(Usage::default()), |row| numbers(row, 0))
}

pub(super) async fn usage(pool: &SqlitePool, limit: u32) -> Result<Vec<(SandboxId, Usage)>, CatalogError> {
    let rows =
        sqlx::query("SELECT sandbox, running_ms, cpu_us, memory_mib_ms FROM usage ORDER BY sandbox DESC LIMIT ?")
            .bind(i64::from(limit))
            .fetch_all(pool)
            .await
            .map_err(database("read usage"))?;
    let mut all = Vec::with_capacity(rows.len());
    for row in rows {
        let id: String = row.try_get(0).map_err(database("read usage"))?;
        all.push((id.parse().map_err(|e| id_error(&id, &e))?, numbers(&row, 1)?));
    }
    Ok(all)
}

pub(super) async fn setting(pool: &SqlitePool, name: &str) -> Result<Option<String>, CatalogError> {
    sqlx::query_scalar("SELECT value FROM settings WHERE name = ?")
        .bind(name)
        .fetch_optional(pool)
        .await
        .map_err(database("read a setting"))
}

pub(super) async fn set_setting(pool: &SqlitePool, name: &str, value: &str) -> Result<(), CatalogError> {
    sqlx::query(
        "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(name)
    .bind(value)
    .execute(pool)
    .await
    .map(|_| ())
    .map_err(database("write a setting"))
}
