//! What backends are called with: fixed headers, tokens of the gateway's own, tokens of its users.
//!
//! Each kind gives [`drawbridge_core::credentials::Credential`]s for one backend, and hears when one was refused. Where
//! a token is from another server, the gateway is an OAuth client of it ([`server`], [`token`]).
//!
//! Must not know: axum, hyper, Redis, SQL, configuration files, what backends speak.

pub mod authority;
pub mod client_credentials;
pub mod connections;
pub mod exchange;
pub mod fixed;
pub mod server;
pub mod token;

use std::fmt;
use std::sync::Arc;

/// A secret that may change while the gateway runs.
#[derive(Clone)]
pub struct Secret(Arc<dyn Fn() -> String + Send + Sync>);

impl Secret {
    /// One that does not change.
    pub fn fixed(value: &str) -> Self {
        let value = value.to_owned();
        Self(Arc::new(move || value.clone()))
    }

    /// One that is what `read` says when it is needed.
    pub fn read_by(read: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// What it is now.
    pub fn read(&self) -> String {
        (self.0)()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A text of another server as it may be logged: short, and printable.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(200).collect()
}
