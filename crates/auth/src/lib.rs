//! Who may: tokens, whom they are from, what they allow, and what was revoked.
//!
//! Must not know: axum, hyper, Redis, SQL, configuration files. Records are behind a port ([`records::Records`]).

use drawbridge_core::seal::{KeyRing, Purpose, SealKey};
use sha2::{Digest as _, Sha256};

pub mod audit;
pub mod challenge;
pub mod client_assertion;
pub mod fetch;
pub mod id_jag;
pub mod id_token;
pub mod identity;
pub mod jwks;
pub mod jwt;
pub mod named_clients;
pub mod opaque;
pub mod policy;
pub mod records;
pub mod resource;
pub mod revoking;
pub mod scope;
pub mod secret;
pub mod signing;
pub mod token;
pub mod vault;
pub mod verifier;

/// Seals `plain` so that only whoever has `secret` can open it.
pub fn seal_under(secret: &str, plain: &[u8]) -> Vec<u8> {
    ring_of(secret).map(|ring| ring.seal(Purpose::Replay, plain).into_bytes()).unwrap_or_default()
}

/// Opens what was sealed under `secret`.
pub fn open_under(secret: &str, sealed: &[u8]) -> Option<Vec<u8>> {
    ring_of(secret)?.open(Purpose::Replay, std::str::from_utf8(sealed).ok()?)
}

fn ring_of(secret: &str) -> Option<KeyRing> {
    let mut hash = Sha256::new();
    // Not the hash under which the secret itself is kept.
    hash.update("drawbridge v1 under a secret");
    hash.update(secret);
    KeyRing::new(&[SealKey { id: "r".to_owned(), secret: hash.finalize().into() }]).ok()
}

/// An id that no other has, later ones after earlier ones.
pub fn fresh_id() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}
