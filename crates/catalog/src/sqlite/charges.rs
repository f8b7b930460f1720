//! What was charged: a row for each resource, account and hour.

use super::database;
use crate::{CatalogError, Charge};
use sqlx::Row;
use sqlx::sqlite::SqlitePool;
use std::collections::BTreeMap;

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(super) async fn add(pool: &SqlitePool, charge: &Charge) -> Result<(), CatalogError> {
    sqlx::query(
        "INSERT INTO charges (resource, hour, account, pico) VALUES (?, ?, ?, ?) \
         ON CONFLICT (resource, hour, account) DO UPDATE SET pico = pico + excluded.pico",
    )
    .bind(&charge.resource)
    .bind(charge.hour)
    .bind(&charge.account)
    .bind(signed(charge.pico))
    .execute(pool)
    .await
    .map(drop)
    .map_err(database("add a charge"))
}

pub(super) async fn since(pool: &SqlitePool, account: &str, hour: i64) -> Result<u64, CatalogError> {
    let sum: i64 = sqlx::query_scalar("SELECT COALESCE(SUM(pico), 0) FROM charges WHERE account = ? AND hour >= ?")
        .bind(account)
        .bind(hour)
        .fetch_one(pool)
        .await
        .map_err(database("read charges"))?;
    Ok(unsigned(sum))
}

pub(super) async fn all(pool: &SqlitePool) -> Result<BTreeMap<String, u64>, CatalogError> {
    let rows = sqlx::query("SELECT resource, SUM(pico) FROM charges GROUP BY resource")
        .fetch_all(pool)
        .await
        .map_err(database("read charges"))?;
    let pair = |row: &sqlx::sqlite::SqliteRow| Ok((row.try_get(0)?, unsigned(row.try_get(1)?)));
    rows.iter().map(pair).collect::<Result<_, sqlx::Error>>().map_err(database("read charges"))
}
