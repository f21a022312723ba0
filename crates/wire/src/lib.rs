//! The wire formats of MCP: JSON-RPC messages, protocol versions, HTTP headers and server-sent events.
//!
//! Everything here works on bytes that somebody else keeps: a [`Message`] is the original text plus an index
//! of the few members that a gateway reads. Changing a message ([`Edit`]) replaces those members and leaves
//! every other byte as it was, so numbers, escapes, key order and unknown fields survive.
//!
//! Must not know: tokio, HTTP libraries, Redis, sessions, backends. Start reading at [`message`].

pub mod edit;
pub mod error;
pub mod header;
pub mod json;
pub mod level;
pub mod message;
pub mod method;
pub mod payload;
mod skip;
pub mod sse;
pub mod version;

pub use edit::Edit;
pub use error::{RpcError, code};
pub use message::{Id, Invalid, Kind, Message};
pub use payload::Payload;
pub use version::ProtocolVersion;
