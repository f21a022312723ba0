//! Connections, each for a bounded time.
//!
//! PostgreSQL has one pool. A file of SQLite has one connection that writes, so that writers queue here in order and
//! don't poll the file's lock, and some that read beside it. SQLite in memory *is* its one connection.
//!
//! A connection to PostgreSQL whose call did not come to its end (it took too long, or nobody waits any more) is closed
//! and not used again: the answer may still come, or the network may have swallowed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drawbridge_auth::records::{RecordsError, Result};
use parking_lot::Mutex;
use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool, Connection as _};

use crate::database::{Database, Place, SqlOptions};
use crate::error::{breaks_connection, records_error};

/// PostgreSQL that was away this long ago is taken to be away still.
const AWAY: Duration = Duration::from_secs(5);
/// So long it is waited for then, by all but one.
const SOON: Duration = Duration::from_millis(200);
/// How many connections read a file of SQLite.
const READERS: u32 = 4;

pub(crate) struct Pools {
    pub(crate) database: Database,
    reads: AnyPool,
    writes: AnyPool,
    deadline: Duration,
    /// When there was no connection to PostgreSQL last, if there was none since.
    away_at: Mutex<Option<Instant>>,
    /// Whether somebody waits for one meanwhile for as long as it takes.
    is_tried: AtomicBool,
}

impl Pools {
    pub(crate) fn open(place: &Place, options: &SqlOptions) -> Self {
        install_default_drivers();
        let database = place.database;
        let pool = |connections: u32| pool(place, options, connections);
        let (reads, writes) = match database {
            Database::Postgres => {
                let pool = pool(options.max_connections.max(1));
                (pool.clone(), pool)
            }
            Database::SqliteMemory => {
                let pool = pool(1);
                (pool.clone(), pool)
            }
            Database::Sqlite => (pool(READERS), pool(1)),
        };
        // A call has few statements, and one that took its time is rarely followed by another.
        let deadline = options.acquire_timeout + 2 * options.statement_timeout;
        let (away_at, is_tried) = (Mutex::default(), AtomicBool::new(false));
        Self { database, reads, writes, deadline, away_at, is_tried }
    }

    /// What `work` reads.
    pub(crate) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut AnyConnection) -> sqlx::Result<T>,
    ) -> Result<T> {
        self.bounded(&self.reads, work).await
    }

    /// What `work`, which is one statement, changes.
    pub(crate) async fn write<T>(
        &self,
        work: impl AsyncFnOnce(&mut AnyConnection) -> sqlx::Result<T>,
    ) -> Result<T> {
        self.bounded(&self.writes, work).await
    }

    /// What `work` changes: all of it, or nothing if it fails.
    pub(crate) async fn transact<T>(
        &self,
        work: impl AsyncFnOnce(&mut AnyConnection) -> sqlx::Result<T>,
    ) -> Result<T> {
        self.bounded(&self.writes, async |connection| {
            let mut transaction = connection.begin_with(self.database.begin()).await?;
            let done = work(&mut transaction).await?;
            transaction.commit().await?;
            Ok(done)
        })
        .await
    }

    async fn bounded<T>(
        &self,
        pool: &AnyPool,
        work: impl AsyncFnOnce(&mut AnyConnection) -> sqlx::Result<T>,
    ) -> Result<T> {
        let whole = async {
            let mut lease = self.lease(pool).await?;
            let done = work(lease.connection()?).await;
            lease.ended = !done.as_ref().is_err_and(breaks_connection);
            done
        };
        match tokio::time::timeout(self.deadline, whole).await {
            Ok(done) => done.map_err(|error| records_error(self.database, &error)),
            Err(_) => Err(RecordsError::Unavailable(format!("it took longer than {:?}", self.deadline))),
        }
    }

    /// A connection. While PostgreSQL is away one waits for it for as long as it takes, and others are told soon.
    async fn lease(&self, pool: &AnyPool) -> sqlx::Result<Lease> {
        if !self.database.is_postgres() {
            return Lease::of(pool, self.database).await;
        }
        let is_away = self.away_at.lock().is_some_and(|at| at.elapsed() < AWAY);
        let tries = is_away && !self.is_tried.swap(true, Ordering::AcqRel);
        let _turn = tries.then(|| Turn(&self.is_tried));
        let leased = if is_away && !tries {
            let soon = tokio::time::timeout(SOON, Lease::of(pool, self.database)).await;
            soon.unwrap_or(Err(sqlx::Error::PoolTimedOut))
        } else {
            Lease::of(pool, self.database).await
        };
        *self.away_at.lock() = leased.is_err().then(Instant::now);
        leased
    }

    /// A connection for work that may take long. It does not go back to its pool.
    pub(crate) async fn own(&self) -> sqlx::Result<Lease> {
        Lease::of(&self.writes, self.database).await
    }

    pub(crate) async fn close(&self) {
        self.reads.close().await;
        self.writes.close().await;
    }
}

fn pool(place: &Place, options: &SqlOptions, connections: u32) -> AnyPool {
    let database = place.database;
    let mut pool = AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(database.is_postgres());
    if !database.is_postgres() {
        pool = pool.idle_timeout(None).max_lifetime(None);
    }
    let options = Arc::new(options.clone());
    pool = pool.after_connect(move |connection, _| {
        let options = Arc::clone(&options);
        Box::pin(async move { database.prepare(connection, &options).await })
    });
    pool.connect_lazy_with(place.connect.clone())
}

/// Whose turn it is to wait for PostgreSQL.
struct Turn<'p>(&'p AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A connection from a pool.
pub(crate) struct Lease {
    connection: Option<PoolConnection<Any>>,
    /// Whether another connection would do as well.
    replaceable: bool,
    /// Whether what it was used for came to its end.
    ended: bool,
}

impl Lease {
    async fn of(pool: &AnyPool, database: Database) -> sqlx::Result<Self> {
        let connection = Some(pool.acquire().await?);
        Ok(Self { connection, replaceable: database.is_postgres(), ended: false })
    }

    pub(crate) fn connection(&mut self) -> sqlx::Result<&mut AnyConnection> {
        self.connection.as_deref_mut().ok_or(sqlx::Error::PoolClosed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.replaceable && !self.ended {
            // Out of its pool it is closed at once, without a farewell that could take long.
            drop(self.connection.take().map(PoolConnection::detach));
        }
    }
}
