//! What may be revoked, and how it is named where revocations are kept.

use sha2::{Digest as _, Sha256};

/// Names something that can be revoked: a token, a grant, or all that was given to a user. Sixteen bytes of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RevocationKey(pub [u8; 16]);

impl RevocationKey {
    /// What was true of a token at this version.
    pub fn token(id: &str, version: i64) -> Self {
        Self::of("token", id, version)
    }

    /// A grant.
    pub fn grant(id: &str) -> Self {
        Self::of("grant", id, 0)
    }

    /// What was true of a user at this version.
    pub fn user(id: &str, version: i64) -> Self {
        Self::of("user", id, version)
    }

    fn of(kind: &str, id: &str, version: i64) -> Self {
        let mut hash = Sha256::new();
        for part in [kind.as_bytes(), id.as_bytes(), &version.to_be_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hash.finalize()[..16]);
        Self(key)
    }
}
