//! Durable records in SQL: [`SqlRecords`] is the port [`Records`](drawbridge_auth::records::Records) over SQLite, for
//! one instance, or PostgreSQL, for several.
//!
//! One set of statements serves both, through the driver `any` of sqlx; the tables are in `migrations/`. What differs
//! is in `database.rs`: how a connection is set up, and how a transaction begins.
//!
//! Where to start reading: `store.rs` gives every method its connection and its deadline; then a file for each kind of
//! record. `refresh.rs` is the one with a state machine.
//!
//! Must not know: what a secret is, HTTP, the configuration file. Only `app` may use this crate.

mod audit;
mod clients;
mod database;
mod error;
mod grants;
mod keys;
mod list;
mod migrations;
mod pools;
mod refresh;
mod revocations;
mod row;
mod store;
mod sweep;
mod tokens;
mod users;
mod vault;

pub use database::{Database, SqlOptions};
pub use error::{MigrationError, UrlError};
pub use store::SqlRecords;
