//! Who may: tokens, whom they are from, and what was revoked.
//!
//! Must not know: axum, hyper, Redis, SQL, configuration files. Records are behind a port ([`records::Records`]).

pub mod records;
pub mod revoking;
pub mod token;
