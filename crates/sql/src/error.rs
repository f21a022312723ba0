//! Why records can't be had, without anything that must not be shown.

use drawbridge_auth::records::RecordsError;
use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::migrate::MigrateError;

use crate::database::Database;

/// Why a database can't be used at all.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// It begins with something else.
    #[error("the URL of the database must begin with sqlite: or postgres://")]
    Scheme,
    /// It is not a URL, or a part of it has no meaning.
    #[error("the URL of the database is malformed")]
    Malformed,
    /// After its question mark is something unknown.
    #[error("the URL of the database has the unknown parameter {0}")]
    Parameter(String),
    /// It names no file.
    #[error("the URL of the database names no file")]
    NoPath,
    /// The file can't be made or opened.
    #[error("the file of the database can't be opened: {0}")]
    File(#[source] std::io::Error),
}

/// Why the tables of a database are not what the program needs.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// A newer version of the program has been here.
    #[error(
        "the database was migrated by a newer version of Drawbridge (migration {0} is unknown to this one): \
         start that version or a later one, or restore a backup from before it"
    )]
    Newer(i64),
    /// What was applied is not what this program has under that number.
    #[error(
        "migration {0} was applied to the database in another form than this version has: \
         start a released version, or restore a backup"
    )]
    Changed(i64),
    /// The database did not answer, or refused.
    #[error(transparent)]
    Records(#[from] RecordsError),
}

/// What an error of sqlx means for whoever asked.
pub(crate) fn records_error(database: Database, error: &sqlx::Error) -> RecordsError {
    let unavailable = |text: &str| RecordsError::Unavailable(text.to_owned());
    let refused = |text: &str| RecordsError::Refused(text.to_owned());
    match error {
        sqlx::Error::Database(error) => from_database(database, &**error),
        sqlx::Error::Io(error) => {
            RecordsError::Unavailable(format!("the connection failed ({})", error.kind()))
        }
        sqlx::Error::Tls(error) => RecordsError::Unavailable(format!("TLS failed: {error}")),
        sqlx::Error::PoolTimedOut => unavailable("there was no connection in time"),
        sqlx::Error::PoolClosed => unavailable("it was closed"),
        sqlx::Error::Protocol(_) | sqlx::Error::BeginFailed => unavailable("the connection broke off"),
        sqlx::Error::WorkerCrashed => unavailable("its worker ended"),
        sqlx::Error::Configuration(_) => refused("the URL is not understood"),
        sqlx::Error::ColumnDecode { index, .. } => {
            RecordsError::Refused(format!("column {index} has another type"))
        }
        // These two are made in this crate.
        sqlx::Error::Decode(text) | sqlx::Error::Encode(text) => RecordsError::Refused(text.to_string()),
        _ => refused("the statement failed"),
    }
}

/// Whether the connection itself is to blame, so that it must not be used again.
pub(crate) fn breaks_connection(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::BeginFailed => {
            true
        }
        // It leads to a server that is stopping, or that has become a replica: another may lead to the one that took
        // its place.
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| code == "25006" || code.starts_with("57P"))
        }
        _ => false,
    }
}

fn from_database(database: Database, error: &dyn DatabaseError) -> RecordsError {
    let code = error.code().unwrap_or_default();
    let passes = if database.is_postgres() { passes_in_postgres(&code) } else { passes_in_sqlite(&code) };
    let text = match error.kind() {
        ErrorKind::UniqueViolation => format!("there is one already ({code})"),
        ErrorKind::ForeignKeyViolation => format!("it names something that isn't there ({code})"),
        _ => format!("{} ({code})", error.message()),
    };
    if passes { RecordsError::Unavailable(text) } else { RecordsError::Refused(text) }
}

/// SQLSTATEs of what passes: lost connections, locks and deadlocks, a server that is full, starting, stopping, or has
/// become a replica, a statement that took too long.
fn passes_in_postgres(code: &str) -> bool {
    matches!(code.get(..2), Some("08" | "40" | "53" | "57" | "58"))
        || matches!(code, "55P03" | "25006" | "25P02" | "25P03" | "25P04")
}

/// Codes of SQLite for what passes; the lowest byte says what it is. Busy, locked, input and output, full, can't open,
/// locking protocol.
fn passes_in_sqlite(code: &str) -> bool {
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 6 | 10 | 13 | 14 | 15))
}

/// What an error of migrating means.
pub(crate) fn migration_error(database: Database, error: MigrateError) -> MigrationError {
    match error {
        MigrateError::VersionMissing(version) => MigrationError::Newer(version),
        MigrateError::VersionMismatch(version) => MigrationError::Changed(version),
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            MigrationError::Records(records_error(database, &error))
        }
        other => MigrationError::Records(RecordsError::Refused(other.to_string())),
    }
}

/// Something in the database is not what was put there.
pub(crate) fn garbled(what: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("{what} can't be understood").into())
}
