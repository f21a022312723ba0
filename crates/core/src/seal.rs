//! Sealed handles: what a client carries back to the gateway (session ids, cursors, request states) is encrypted and
//! authenticated, so that any instance with the keys can read it and nobody can make one.
//!
//! A handle is `key-id "." base64url(nonce || XChaCha20-Poly1305 ciphertext)`. Each [`Purpose`] has a key of its own,
//! derived by HKDF-SHA-256 from the ring's key, so a handle of one purpose is worthless as another. Principal,
//! endpoint and expiry are inside, checked by whoever opens it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::Sha256;

/// Handles longer than this many bytes are not even tried; a backend's own state, or id, may be larger than ours.
const MAX_HANDLE_BYTES: usize = 16 * 1024;
const MAX_STATE_BYTES: usize = 2 << 20;
const NONCE_BYTES: usize = 24;

/// What a handle is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A session id.
    Session,
    /// A pagination cursor of a merged list.
    Cursor,
    /// The `requestState` of a call that asks.
    RequestState,
    /// A key that access tokens are signed with, in the records.
    SigningKey,
    /// An authorization request on its way through login and consent.
    Authorization,
    /// An authorization code.
    Code,
    /// Who has logged in with a browser.
    Login,
    /// An answer that is given again to whoever presents the same secret.
    Replay,
    /// A key that checkpoints of the audit trail are signed with, in the records.
    AuditKey,
    /// A credential for a backend that instances share.
    Credential,
    /// What users have at other servers, in the records. Bound to where it is kept.
    Vault,
    /// A link under which a user connects an account, and what comes back from the other server.
    Connect,
    /// The id of a task at a backend. The same at all instances, each time.
    Task,
}

impl Purpose {
    const ALL: [Self; 13] = [
        Self::Session,
        Self::Cursor,
        Self::RequestState,
        Self::SigningKey,
        Self::Authorization,
        Self::Code,
        Self::Login,
        Self::Replay,
        Self::AuditKey,
        Self::Credential,
        Self::Vault,
        Self::Connect,
        Self::Task,
    ];

    fn label(self) -> &'static [u8] {
        match self {
            Self::Session => b"drawbridge v1 session",
            Self::Cursor => b"drawbridge v1 cursor",
            Self::RequestState => b"drawbridge v1 request state",
            Self::SigningKey => b"drawbridge v1 signing key",
            Self::Authorization => b"drawbridge v1 authorization",
            Self::Code => b"drawbridge v1 code",
            Self::Login => b"drawbridge v1 login",
            Self::Replay => b"drawbridge v1 replay",
            Self::AuditKey => b"drawbridge v1 audit key",
            Self::Credential => b"drawbridge v1 credential",
            Self::Vault => b"drawbridge v1 vault",
            Self::Connect => b"drawbridge v1 connect",
            Self::Task => b"drawbridge v1 task",
        }
    }
}

/// A key as configured: a short id and 32 secret bytes.
#[derive(Clone)]
pub struct SealKey {
    /// Names the key inside handles: `[A-Za-z0-9_-]{1,16}`.
    pub id: String,
    /// The secret.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What the key is derived by of which nonces are made that are to be the same each time.
const NONCES: &[u8] = b"drawbridge v1 nonces";

struct RingKey {
    id: String,
    ciphers: [XChaCha20Poly1305; Purpose::ALL.len()],
    nonces: [u8; 32],
}

/// The keys: the first seals, all open.
pub struct KeyRing(Vec<RingKey>);

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|k| &k.id)).finish()
    }
}

/// Why there is no key ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// There is no key to seal with.
    #[error("no seal key is configured")]
    None,
    /// An id is empty, too long, doubled or has other characters.
    #[error("seal key ids are 1 to 16 letters, digits, '-' or '_', each used once")]
    Id,
    /// HKDF refused; can't happen with 32-byte keys.
    #[error("a seal key could not be derived")]
    Derive,
}

impl KeyRing {
    /// A ring of `keys`.
    pub fn new(keys: &[SealKey]) -> Result<Self, BadKeys> {
        let legal = |id: &str| {
            (1..=16).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let mut ring: Vec<RingKey> = Vec::with_capacity(keys.len());
        for key in keys {
            if !legal(&key.id) || ring.iter().any(|k| k.id == key.id) {
                return Err(BadKeys::Id);
            }
            let hkdf = Hkdf::<Sha256>::new(None, &key.secret);
            let mut derived = [[0u8; 32]; Purpose::ALL.len()];
            for (purpose, out) in Purpose::ALL.iter().zip(&mut derived) {
                hkdf.expand(purpose.label(), out).ok().ok_or(BadKeys::Derive)?;
            }
            let ciphers = derived.map(|key| XChaCha20Poly1305::new(&Key::from(key)));
            let mut nonces = [0; 32];
            hkdf.expand(NONCES, &mut nonces).ok().ok_or(BadKeys::Derive)?;
            ring.push(RingKey { id: key.id.clone(), ciphers, nonces });
        }
        if ring.is_empty() { Err(BadKeys::None) } else { Ok(Self(ring)) }
    }

    /// Seals `plain`. The handle has only letters, digits, '-', '_' and '.'.
    pub fn seal(&self, purpose: Purpose, plain: &[u8]) -> String {
        self.seal_for(purpose, "", plain)
    }

    /// Seals `plain` for a place: the handle opens nowhere else.
    pub fn seal_for(&self, purpose: Purpose, place: &str, plain: &[u8]) -> String {
        self.seal_with(purpose, place, plain, rand::random())
    }

    /// The same, and the same handle each time as long as the ring seals with this key: for what is compared.
    pub fn seal_same(&self, purpose: Purpose, place: &str, plain: &[u8]) -> String {
        let mut about = purpose.label().to_vec();
        for part in [place.as_bytes(), plain] {
            about.extend_from_slice(&(part.len() as u64).to_be_bytes());
            about.extend_from_slice(part);
        }
        // Made of all that is sealed, so no nonce is used for two different things.
        let (digest, _) = Hkdf::<Sha256>::extract(Some(&self.0[0].nonces), &about);
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&digest[..NONCE_BYTES]);
        self.seal_with(purpose, place, plain, nonce)
    }

    fn seal_with(&self, purpose: Purpose, place: &str, plain: &[u8], nonce: [u8; NONCE_BYTES]) -> String {
        let key = &self.0[0];
        let payload = Payload { msg: plain, aad: &bound(&key.id, place) };
        let sealed = key.ciphers[purpose as usize].encrypt(&XNonce::from(nonce), payload).unwrap_or_default();
        let mut handle = String::with_capacity(key.id.len() + 1 + (NONCE_BYTES + sealed.len()) * 4 / 3 + 4);
        handle.push_str(&key.id);
        handle.push('.');
        URL_SAFE_NO_PAD.encode_string([&nonce[..], &sealed].concat(), &mut handle);
        handle
    }

    /// Whether a handle was sealed with another key than this ring seals with now.
    pub fn is_outdated(&self, handle: &str) -> bool {
        handle.split_once('.').is_none_or(|(id, _)| id != self.0[0].id)
    }

    /// The plain text of a handle that this ring sealed for `purpose`; `None` for anything else.
    pub fn open(&self, purpose: Purpose, handle: &str) -> Option<Vec<u8>> {
        self.open_for(purpose, "", handle)
    }

    /// The id of the key that seals; the others open only.
    pub fn sealing(&self) -> &str {
        &self.0[0].id
    }

    /// The same of a handle that was sealed for a place.
    pub fn open_for(&self, purpose: Purpose, place: &str, handle: &str) -> Option<Vec<u8>> {
        let is_large = matches!(purpose, Purpose::RequestState | Purpose::Task);
        let limit = if is_large { MAX_STATE_BYTES } else { MAX_HANDLE_BYTES };
        if handle.len() > limit {
            return None;
        }
        let (id, body) = handle.split_once('.')?;
        let key = self.0.iter().find(|k| k.id == id)?;
        let body = URL_SAFE_NO_PAD.decode(body).ok()?;
        let (nonce, sealed) = body.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg: sealed, aad: &bound(id, place) };
        key.ciphers[purpose as usize].decrypt(&XNonce::from(*nonce), payload).ok()
    }
}

/// What a handle is bound to beside its key. Ids of keys have no colon.
fn bound(id: &str, place: &str) -> Vec<u8> {
    if place.is_empty() { id.as_bytes().to_vec() } else { format!("{id}:{place}").into_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(id: &str, fill: u8) -> SealKey {
        SealKey { id: id.to_owned(), secret: [fill; 32] }
    }

    #[test]
    fn a_handle_opens_only_for_its_purpose_and_ring() {
        let ring = KeyRing::new(&[key("a", 1)]).unwrap();
        let handle = ring.seal(Purpose::Session, b"hello");
        assert_eq!(ring.open(Purpose::Session, &handle).unwrap(), b"hello");
        assert_eq!(ring.open(Purpose::Cursor, &handle), None);
        assert_eq!(KeyRing::new(&[key("a", 2)]).unwrap().open(Purpose::Session, &handle), None);
        assert_ne!(handle, ring.seal(Purpose::Session, b"hello"), "unpredictable");
    }

    #[test]
    fn what_was_sealed_for_a_place_opens_nowhere_else() {
        let ring = KeyRing::new(&[key("a", 1)]).unwrap();
        let handle = ring.seal_for(Purpose::Vault, "ann|gh", b"secret");
        assert_eq!(ring.open_for(Purpose::Vault, "ann|gh", &handle).unwrap(), b"secret");
        for place in ["", "bob|gh", "ann|gh|"] {
            assert_eq!(ring.open_for(Purpose::Vault, place, &handle), None, "{place}");
        }
        assert_eq!(ring.sealing(), "a");
    }

    #[test]
    fn what_is_to_be_compared_is_sealed_the_same_each_time_and_alike_for_nothing_else() {
        let ring = KeyRing::new(&[key("a", 1)]).unwrap();
        let same = |place: &str, plain: &str| ring.seal_same(Purpose::Task, place, plain.as_bytes());
        assert_eq!(same("ann", "7"), same("ann", "7"));
        assert_eq!(ring.open_for(Purpose::Task, "ann", &same("ann", "7")).unwrap(), b"7");
        assert_eq!(ring.open_for(Purpose::Task, "bob", &same("ann", "7")), None);
        let nonce = |handle: &str| handle[..2 + NONCE_BYTES * 4 / 3].to_owned();
        let all = [same("ann", "7"), same("ann", "8"), same("an", "n7"), same("bob", "7"), same("", "ann7")];
        for (n, one) in all.iter().enumerate() {
            assert!(all[n + 1..].iter().all(|other| nonce(one) != nonce(other)), "{n}");
        }
    }

    #[test]
    fn rotation_keeps_old_handles_open() {
        let old = KeyRing::new(&[key("a", 1)]).unwrap();
        let handle = old.seal(Purpose::Session, b"x");
        let new = KeyRing::new(&[key("b", 2), key("a", 1)]).unwrap();
        assert!(new.open(Purpose::Session, &handle).is_some());
        assert!(new.seal(Purpose::Session, b"x").starts_with("b."));
        assert!(new.is_outdated(&handle) && !old.is_outdated(&handle));
        assert_eq!(KeyRing::new(&[key("a", 1), key("a", 2)]).unwrap_err(), BadKeys::Id);
        assert_eq!(KeyRing::new(&[]).unwrap_err(), BadKeys::None);
    }

    proptest! {
        #[test]
        fn a_changed_handle_does_not_open(at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_.-]") {
            let ring = KeyRing::new(&[key("k1", 7)]).unwrap();
            let handle = ring.seal(Purpose::Session, b"who am i");
            let at = at.index(handle.len());
            let forged = format!("{}{to}{}", &handle[..at], &handle[at + 1..]);
            prop_assume!(forged != handle);
            prop_assert_eq!(ring.open(Purpose::Session, &forged), None);
        }

        #[test]
        fn any_text_is_refused(text in any::<String>()) {
            let ring = KeyRing::new(&[key("k1", 7)]).unwrap();
            prop_assert_eq!(ring.open(Purpose::Session, &text), None);
        }
    }
}
