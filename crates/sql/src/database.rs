//! What the URL of a database means, and what differs between the two kinds.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, AssertSqlSafe, raw_sql};
use url::Url;

use crate::error::UrlError;

/// What may not stand for itself in the path of a URL.
const PATH: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// What a PostgreSQL URL may say after its `?`. Anything else is a mistake, and may be a misspelt password.
const POSTGRES_PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// The kind of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// A file of SQLite, for one instance.
    Sqlite,
    /// SQLite in memory: all is gone when the program ends.
    SqliteMemory,
    /// A PostgreSQL server, for several instances.
    Postgres,
}

impl Database {
    /// The statement that begins a transaction which is going to write.
    pub(crate) fn begin(self) -> &'static str {
        match self {
            // Takes the lock at once: a lock that a reader wants later may be refused without waiting.
            Self::Sqlite | Self::SqliteMemory => "begin immediate",
            // Statements that wait for a row must see what was committed meanwhile, whatever the server's default is.
            Self::Postgres => "begin isolation level read committed",
        }
    }

    pub(crate) fn is_postgres(self) -> bool {
        self == Self::Postgres
    }

    /// Makes a new connection what the statements rely on.
    pub(crate) async fn prepare(
        self,
        connection: &mut AnyConnection,
        options: &SqlOptions,
    ) -> sqlx::Result<()> {
        match self {
            Self::Sqlite | Self::SqliteMemory => {
                // A commit is on disk when it returns; `normal` could lose the last ones when power fails. That and
                // foreign keys are what a connection begins with; a file that can't be read says so to who asks it.
                // For the lock that the journal's mode needs once SQLite doesn't wait: whoever has it does the same.
                let mode =
                    raw_sql("pragma journal_mode = wal; pragma synchronous = full").execute(connection).await;
                if let Err(error) = mode {
                    tracing::debug!(%error, "the journal's mode is left to another connection");
                }
            }
            Self::Postgres => {
                let statement = options.statement_timeout.as_millis();
                let limits = format!(
                    "set statement_timeout = {statement}; set lock_timeout = {statement}; \
                     set idle_in_transaction_session_timeout = {}; \
                     select set_config('application_name', 'drawbridge', false) \
                     where current_setting('application_name') = ''",
                    // An instance that was stopped in a transaction gives its locks up.
                    statement.saturating_mul(3)
                );
                raw_sql(AssertSqlSafe(limits)).execute(connection).await?;
            }
        }
        Ok(())
    }
}

/// How a database is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlOptions {
    /// The most connections of this instance to PostgreSQL.
    pub max_connections: u32,
    /// For how long a call waits for a connection.
    pub acquire_timeout: Duration,
    /// For how long PostgreSQL may take for a statement, waiting for locks included.
    pub statement_timeout: Duration,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self {
            max_connections: 8,
            acquire_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(3),
        }
    }
}

/// Where records are.
pub(crate) struct Place {
    pub(crate) database: Database,
    pub(crate) connect: AnyConnectOptions,
    /// For people, without user and password.
    pub(crate) shown: String,
}

impl Place {
    /// Where `url` points to. A file of SQLite and its directory are there afterwards, for this user alone.
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        if let Some(rest) = url.strip_prefix("sqlite:") {
            return sqlite(rest.strip_prefix("//").unwrap_or(rest));
        }
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            return postgres(url);
        }
        Err(UrlError::Scheme)
    }
}

fn sqlite(path: &str) -> Result<Place, UrlError> {
    if path == ":memory:" {
        let connect = "sqlite::memory:".parse().map_err(|_| UrlError::Malformed)?;
        return Ok(Place { database: Database::SqliteMemory, connect, shown: "sqlite::memory:".to_owned() });
    }
    if let Some((_, parameters)) = path.split_once('?') {
        let name = parameters.split(['=', '&']).next().unwrap_or_default();
        return Err(UrlError::Parameter(name.to_owned()));
    }
    let path = percent_decode_str(path).decode_utf8().map_err(|_| UrlError::Malformed)?;
    if path.is_empty() || path.contains('\0') {
        return Err(UrlError::NoPath);
    }
    let path = std::path::absolute(Path::new(&*path)).map_err(UrlError::File)?;
    create(&path).map_err(UrlError::File)?;
    let text = path.to_str().ok_or(UrlError::Malformed)?;
    let url = format!("sqlite://{}?mode=rw", utf8_percent_encode(text, PATH));
    let connect = url.parse().map_err(|_| UrlError::Malformed)?;
    Ok(Place { database: Database::Sqlite, connect, shown: format!("sqlite:{text}") })
}

/// Sees to it that there is a file. SQLite gives the files beside it the same mode.
fn create(path: &PathBuf) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map(drop)
}

fn postgres(url: &str) -> Result<Place, UrlError> {
    let parsed = Url::parse(url).map_err(|_| UrlError::Malformed)?;
    let known = |name: &str| POSTGRES_PARAMETERS.contains(&name) || name.starts_with("options[");
    let unknown = parsed.query_pairs().find(|(name, _)| !known(name));
    if let Some((name, _)) = unknown {
        return Err(UrlError::Parameter(name.into_owned()));
    }
    let host = parsed.host_str().unwrap_or_default();
    let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
    let shown = format!("postgres://{host}{port}{}", parsed.path());
    let connect: AnyConnectOptions = url.parse().map_err(|_| UrlError::Malformed)?;
    // Whatever sqlx does not like about it is better told now than as a database that does not answer.
    sqlx::postgres::PgConnectOptions::try_from(&connect).map_err(|_| UrlError::Malformed)?;
    Ok(Place { database: Database::Postgres, connect, shown })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Place::parse(url).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_url_that_is_not_understood_is_refused_without_its_secrets() {
        for url in [
            "mysql://u:hunter2@h/d",
            "postgres://u:hunter2@h:99999/d",
            "postgres://u:hunter2@h/d?sslmode=hunter2",
            "postgres://u@h/d?pasword=hunter2",
            "sqlite:/tmp/x?pasword=hunter2",
            "sqlite:",
        ] {
            let text = refused(url);
            assert!(!text.is_empty() && !text.contains("hunter2"), "{url}: {text}");
        }
        assert!(refused("postgres://h/d?pasword=x").contains("pasword"));
    }

    #[test]
    fn what_is_shown_has_no_user_and_no_password() {
        let place = Place::parse("postgresql://us%65r:hunter2@db.example:5433/records?sslmode=require").ok();
        assert_eq!(place.map(|place| place.shown), Some("postgres://db.example:5433/records".to_owned()));
    }
}
