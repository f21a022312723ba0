//! The upstream faces: everything that speaks to a backend.
//!
//! [`http`] backends are reached over Streamable HTTP of either era or over HTTP+SSE, [`stdio`] backends are
//! processes under a guard. Each transport is paired with a dialect: [`legacy`] (handshake, sessions) or
//! [`modern`] (metadata on each request), found out by asking the backend. Both turn a call into messages and
//! messages into events; neither knows what the client speaks.
//!
//! Must not know: axum, Redis, SQL, configuration files.

mod abandoned;
pub mod answer;
mod answering;
mod changes;
pub mod client_certificate;
mod described;
mod fleet;
pub mod guarded;
pub mod http;
mod inbox;
pub mod legacy;
pub mod modern;
pub mod options;
pub mod outbound;
mod pipe;
pub mod process;
mod restore;
mod scopes;
mod shared_session;
mod standing;
pub mod stdio;
mod tasks;

pub use client_certificate::ClientCertificate;
pub use guarded::{GuardOptions, Guarded};
pub use http::{HttpBackend, Proof};
pub use options::{EraChoice, Options, SessionScope, TransportChoice};
pub use outbound::{Outbound, OutboundOptions, Proxy};
pub use stdio::StdioBackend;
