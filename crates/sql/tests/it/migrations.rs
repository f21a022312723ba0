//! How the tables come to be.

use drawbridge_auth::records::{Records as _, RecordsError};
use drawbridge_sql::{MigrationError, SqlOptions, SqlRecords};
use drawbridge_testkit::postgres::PostgresDatabase;
use tempfile::TempDir;

use crate::fixture::{at, claims};

const ALL: [&str; 3] = ["0001_records", "0002_audit", "0003_connections"];

fn open(url: &str) -> SqlRecords {
    SqlRecords::open(url, &SqlOptions::default()).unwrap()
}

async fn once(url: &str) {
    let records = open(url);
    assert_eq!(records.pending().await.unwrap(), ALL);
    let early = records.enter_user("u1", &claims("one"), at(0)).await.unwrap_err();
    assert!(matches!(early, RecordsError::Refused(_)), "{early}");
    assert_eq!(records.migrate().await.unwrap(), ALL);
    assert_eq!(records.pending().await.unwrap(), Vec::<String>::new());
    assert_eq!(records.migrate().await.unwrap(), Vec::<String>::new());
    records.enter_user("u1", &claims("one"), at(0)).await.unwrap();
}

/// Eight instances start at once.
async fn together(url: &str) {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let records = open(url);
        tasks.spawn(async move {
            records.migrate().await.unwrap();
            records.enter_user("u1", &claims("one"), at(n)).await.unwrap();
            records.close().await;
        });
    }
    tasks.join_all().await;
    assert_eq!(open(url).pending().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn sqlite_is_migrated_once() {
    once("sqlite::memory:").await;
    let dir = TempDir::new().unwrap();
    once(&format!("sqlite:{}", dir.path().join("records.db").display())).await;
}

#[tokio::test]
async fn sqlite_is_migrated_by_one_of_many() {
    let dir = TempDir::new().unwrap();
    together(&format!("sqlite:{}", dir.path().join("records.db").display())).await;
}

#[tokio::test]
async fn postgres_is_migrated_once() {
    once(&PostgresDatabase::fresh().await.url()).await;
}

#[tokio::test]
async fn postgres_is_migrated_by_one_of_many() {
    let database = PostgresDatabase::fresh().await;
    together(&database.url()).await;
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_left_alone() {
    let database = PostgresDatabase::fresh().await;
    let records = open(&database.url());
    records.migrate().await.unwrap();
    database.run(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time) \
         values (9999, 'later', true, '', 0)",
    );
    for error in [records.migrate().await.unwrap_err(), records.pending().await.unwrap_err()] {
        assert!(matches!(error, MigrationError::Newer(9999)), "{error:?}");
        assert!(error.to_string().contains("newer version"), "{error}");
    }
    database.run("delete from _sqlx_migrations where version = 9999");
    database.run("update _sqlx_migrations set checksum = 'other'");
    for error in [records.migrate().await.unwrap_err(), records.pending().await.unwrap_err()] {
        assert!(matches!(error, MigrationError::Changed(1)), "{error:?}");
    }
}
