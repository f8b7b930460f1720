//! The catalog contract against SQLite, and what only a file can get wrong.

use branchbox_catalog::{Catalog, CatalogError, SqliteCatalog, contract};

#[tokio::test]
async fn sqlite_keeps_the_contract() {
    let directory = tempfile::tempdir().expect("a directory");
    let catalog = SqliteCatalog::open(&directory.path().join("catalog.db")).await.expect("open");
    contract::check(&catalog).await;
    catalog.close().await;
}

#[tokio::test]
async fn a_second_open_finds_what_the_first_wrote() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("catalog.db");
    let record = contract::sandbox(Some("web"), &[("a", "b")]);
    let first = SqliteCatalog::open(&path).await.expect("open");
    first.insert_sandbox(&record, 5).await.expect("insert");
    drop(first);
    let second = SqliteCatalog::open(&path).await.expect("open again");
    assert_eq!(second.sandbox(&record.id).await.expect("read"), Some(record));
    second.close().await;
}

#[tokio::test]
async fn a_name_asked_for_by_many_at_once_goes_to_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let catalog = SqliteCatalog::open(&directory.path().join("catalog.db")).await.expect("open");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let catalog = catalog.clone();
            tokio::spawn(async move { catalog.insert_sandbox(&contract::sandbox(Some("one"), &[]), 100).await })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(_) => won += 1,
            Err(CatalogError::NameTaken { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(won, 1);
    catalog.close().await;
}

#[tokio::test]
async fn a_newer_file_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("catalog.db");
    SqliteCatalog::open(&path).await.expect("open").close().await;
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await.expect("connect");
    sqlx::raw_sql("PRAGMA user_version = 99").execute(&pool).await.expect("pragma");
    pool.close().await;
    let error = SqliteCatalog::open(&path).await.expect_err("newer");
    assert!(matches!(error, CatalogError::Newer { found: 99, .. }), "{error:?}");
}
