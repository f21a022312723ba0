//! The tables, and the numbers of what made them.

use drawbridge_auth::records::RecordsError;
use sqlx::migrate::{Migrate as _, MigrateError, Migrator};
use sqlx::{AnyConnection, Connection as _, raw_sql};

use crate::database::Database;
use crate::error::{MigrationError, migration_error, records_error};
use crate::pools::Pools;

static MIGRATOR: Migrator = sqlx::migrate!("../../migrations");

/// The names of the migrations that the database lacks.
pub(crate) async fn pending(pools: &Pools) -> Result<Vec<String>, MigrationError> {
    let database = pools.database;
    let applied = pools.read(async |connection| applied(database, connection).await).await?;
    missing(&applied)
}

/// Applies what the database lacks. Returns the names.
pub(crate) async fn migrate(pools: &Pools) -> Result<Vec<String>, MigrationError> {
    let database = pools.database;
    let failed = |error: &sqlx::Error| MigrationError::Records(records_error(database, error));
    let mut lease = pools.own().await.map_err(|error| failed(&error))?;
    let connection = lease.connection().map_err(|error| failed(&error))?;
    let missing = missing(&applied(database, connection).await.map_err(|error| failed(&error))?)?;
    if missing.is_empty() {
        return Ok(missing);
    }
    let done = match database {
        Database::Postgres => in_postgres(connection).await,
        Database::Sqlite | Database::SqliteMemory => in_sqlite(connection).await,
    };
    done.map_err(|error| migration_error(database, error))?;
    Ok(missing)
}

/// Who migrates beside us has the advisory lock, which sqlx takes; what we need from others are locks on tables.
async fn in_postgres(connection: &mut AnyConnection) -> Result<(), MigrateError> {
    let patience =
        "set statement_timeout = 0; set lock_timeout = '60s'; set idle_in_transaction_session_timeout = 0";
    raw_sql(patience).execute(&mut *connection).await?;
    MIGRATOR.run_direct(None, connection, false).await
}

/// SQLite has one lock, which is taken here for all of it.
async fn in_sqlite(connection: &mut AnyConnection) -> Result<(), MigrateError> {
    let mut transaction = connection.begin_with("begin immediate").await?;
    MIGRATOR.run_direct(None, &mut *transaction, false).await?;
    Ok(transaction.commit().await?)
}

/// The numbers and checksums of what was applied.
async fn applied(database: Database, connection: &mut AnyConnection) -> sqlx::Result<Vec<(i64, Vec<u8>)>> {
    let exists = match database {
        Database::Postgres => "select 1 where to_regclass('_sqlx_migrations') is not null",
        Database::Sqlite | Database::SqliteMemory => {
            "select 1 from sqlite_master where name = '_sqlx_migrations'"
        }
    };
    if sqlx::query(exists).fetch_all(&mut *connection).await?.is_empty() {
        return Ok(Vec::new());
    }
    let applied = connection.list_applied_migrations(&MIGRATOR.table_name).await;
    let applied = applied.map_err(|error| match error {
        MigrateError::Execute(error) => error,
        other => sqlx::Error::Decode(other.to_string().into()),
    })?;
    Ok(applied.into_iter().map(|one| (one.version, one.checksum.into_owned())).collect())
}

fn missing(applied: &[(i64, Vec<u8>)]) -> Result<Vec<String>, MigrationError> {
    if let Some((newer, _)) = applied.iter().find(|(version, _)| !MIGRATOR.version_exists(*version)) {
        return Err(MigrationError::Newer(*newer));
    }
    let mut names = Vec::new();
    for migration in MIGRATOR.iter() {
        match applied.iter().find(|(version, _)| *version == migration.version) {
            Some((version, checksum)) if **checksum != *migration.checksum => {
                return Err(MigrationError::Changed(*version));
            }
            Some(_) => {}
            None => {
                names.push(format!("{:04}_{}", migration.version, migration.description.replace(' ', "_")))
            }
        }
    }
    Ok(names)
}

impl From<MigrationError> for RecordsError {
    fn from(error: MigrationError) -> Self {
        match error {
            MigrationError::Records(error) => error,
            other => Self::Refused(other.to_string()),
        }
    }
}
