//! What is particular to a file of SQLite.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use drawbridge_auth::records::{Records as _, RecordsError};
use drawbridge_sql::{Database, SqlOptions, SqlRecords, UrlError};
use tempfile::TempDir;

use crate::fixture::{at, claims};

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_new_file_is_for_its_user_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("data/records.db");
    let records = SqlRecords::open(&format!("sqlite://{}", path.display()), &SqlOptions::default()).unwrap();
    records.migrate().await.unwrap();
    records.enter_user("u1", &claims("one"), at(0)).await.unwrap();
    assert_eq!(records.database(), Database::Sqlite);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    for name in ["records.db", "records.db-wal", "records.db-shm"] {
        assert_eq!(mode(&path.with_file_name(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn what_is_written_is_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let url = format!("sqlite:{}", dir.path().join("records.db").display());
    let first = SqlRecords::open(&url, &SqlOptions::default()).unwrap();
    first.migrate().await.unwrap();
    let user = first.enter_user("u1", &claims("one"), at(0)).await.unwrap();
    first.close().await;
    let closed = first.user("u1").await.unwrap_err();
    assert!(matches!(closed, RecordsError::Unavailable(_)), "{closed}");
    let second = SqlRecords::open(&url, &SqlOptions::default()).unwrap();
    assert_eq!(second.migrate().await.unwrap(), Vec::<String>::new());
    assert_eq!(second.user("u1").await.unwrap(), Some(user));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("records.db");
    std::fs::write(&path, "these are notes, and not a database at all".repeat(100)).unwrap();
    let records = SqlRecords::open(&format!("sqlite:{}", path.display()), &SqlOptions::default()).unwrap();
    for error in [records.user("u1").await.map(drop), records.revocations(None, at(0)).await.map(drop)] {
        assert!(matches!(error, Err(RecordsError::Refused(_))), "{error:?}");
    }
    records.migrate().await.unwrap_err();
    let folder = SqlRecords::open(&format!("sqlite:{}", dir.path().display()), &SqlOptions::default());
    assert!(matches!(folder, Err(UrlError::File(_))), "{folder:?}");
}
