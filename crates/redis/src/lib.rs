//! Shared state in Redis: the adapters of the seven ports of [`drawbridge_core::state`], over one server, a master
//! that Sentinel watches, or a cluster.
//!
//! [`RedisState::connect`] gives them. It does not wait for Redis: whatever is asked while Redis can't be reached is
//! answered [`Unavailable`](drawbridge_core::state::Unavailable), and the connections come back by themselves. The
//! number of connections of an instance is constant, whatever it does: one for commands to each node, one for topics,
//! and one that blocks (two in a cluster), for the instance's inbox and the revocations.
//!
//! Where to start reading: `state.rs` puts the parts together; `hub.rs` gets a request to the node that has its key;
//! `keys.rs` has every key, `scripts.rs` every script. What is kept in Redis, and what Redis must allow, is in
//! `docs/redis.md`.
//!
//! Must not know: the MCP faces, backends, configuration files. Only `app` may use this crate.

mod backoff;
mod bus;
mod claims;
mod error;
mod events;
mod health;
mod hub;
mod keys;
mod leases;
mod limiter;
mod link;
mod node;
mod observer;
mod options;
mod reader;
mod request;
mod revocations;
mod scripts;
mod sessions;
mod state;
mod tls;
mod topics;
mod url;

pub use error::Error;
pub use observer::Observer;
pub use options::{EventLimits, PasswordProvider, RedisOptions};
pub use state::RedisState;
pub use url::{Address, ServerUrl, Servers, UrlError};
