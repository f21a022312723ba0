//! `requestState` of the modern era: what a client carries from one round of a call to the next. It is
//! encrypted and authenticated with a key that lives as long as the process, is bound to what was asked, and
//! expires.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};

const NONCE_BYTES: usize = 24;
const LIFETIME: Duration = Duration::from_secs(600);

/// Makes and checks states.
pub(crate) struct Sealer {
    cipher: XChaCha20Poly1305,
    born: Instant,
}

impl Sealer {
    pub(crate) fn new() -> Self {
        let key: [u8; 32] = rand::random();
        Self { cipher: XChaCha20Poly1305::new(&Key::from(key)), born: Instant::now() }
    }

    /// A state that is good for `purpose` for ten minutes.
    pub(crate) fn seal(&self, purpose: &str) -> String {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        let expiry = (self.born.elapsed() + LIFETIME).as_secs().to_be_bytes();
        let payload = Payload { msg: &expiry, aad: purpose.as_bytes() };
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload).unwrap_or_default();
        URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())
    }

    /// Whether `state` was made here for `purpose` and is not too old.
    pub(crate) fn opens(&self, state: &str, purpose: &str) -> bool {
        self.expiry(state, purpose).is_some_and(|expiry| self.born.elapsed().as_secs() < expiry)
    }

    fn expiry(&self, state: &str, purpose: &str) -> Option<u64> {
        let bytes = URL_SAFE_NO_PAD.decode(state).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg: sealed, aad: purpose.as_bytes() };
        let expiry = self.cipher.decrypt(&XNonce::from(*nonce), payload).ok()?;
        Some(u64::from_be_bytes(expiry.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_opens_only_unchanged_and_for_its_purpose() {
        let sealer = Sealer::new();
        let state = sealer.seal("elicit");
        assert!(sealer.opens(&state, "elicit"));
        assert!(!sealer.opens(&state, "sample"));
        assert!(!sealer.opens(&state[1..], "elicit"));
        assert!(!Sealer::new().opens(&state, "elicit"));
    }
}
