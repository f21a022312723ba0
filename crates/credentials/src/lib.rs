//! What backends are called with: fixed headers, what is known of the caller, tokens of the gateway's own, tokens of its
//! users.
//!
//! Each kind gives [`drawbridge_core::credentials::Credential`]s for one backend, and hears when one was refused. Where
//! a token is from another server, the gateway is an OAuth client of it ([`server`], [`token`]).
//!
//! Must not know: axum, hyper, Redis, SQL, configuration files, what backends speak.

pub mod authority;
pub mod caller;
pub mod client_credentials;
pub mod connections;
pub mod exchange;
pub mod fixed;
pub mod server;
pub mod token;
mod turns;

pub use drawbridge_auth::secret::Secret;

/// A text of another server as it may be logged: short, and printable.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(200).collect()
}
