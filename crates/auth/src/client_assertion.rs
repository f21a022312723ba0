//! How an OAuth client proves who it is with a key of its own (RFC 7523 § 2.2 and § 3, `private_key_jwt`): a token that
//! it has signed about itself, for us, for a few minutes, to be used once.

use std::fmt::Write as _;
use std::time::Duration;

use chrono::Utc;
use drawbridge_core::state;
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::jwt::{KeySource, LEEWAY};

/// What `client_assertion_type` must be.
pub const TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// Longer assertions are not looked at, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;
/// How it may be signed, as JOSE names it.
pub const ALGORITHMS: [&str; 2] = ["RS256", "ES256"];

const ACCEPTED: [Algorithm; 2] = [Algorithm::RS256, Algorithm::ES256];
/// An assertion may be good for this many seconds more.
const MAX_AHEAD: f64 = 600.0;
/// A longer id of an assertion is not remembered.
pub(crate) const MAX_ID: usize = 512;

/// Why an assertion proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// It is no good. Why is for the log alone.
    #[error("{0}")]
    Invalid(&'static str),
    /// It can't be told now.
    #[error("{0}")]
    Unavailable(String),
}

#[derive(Debug, Clone, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
    iat: Option<f64>,
    jti: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    /// What it is for, if that is one thing.
    fn only(&self) -> Option<&str> {
        match self {
            Self::One(one) => Some(one),
            Self::Many(all) => match &all[..] {
                [one] => Some(one),
                _ => None,
            },
        }
    }
}

/// An assertion of which nothing is proven.
#[derive(Debug)]
pub struct Assertion<'a> {
    text: &'a str,
    header: Header,
    client: String,
}

#[derive(Deserialize)]
struct Subject {
    sub: String,
}

impl<'a> Assertion<'a> {
    /// Reads the form of an assertion.
    pub fn read(text: &'a str) -> Option<Self> {
        if text.len() > MAX_BYTES || text.bytes().filter(|b| *b == b'.').count() != 2 {
            return None;
        }
        let header = jsonwebtoken::decode_header(text).ok()?;
        let Subject { sub } = jsonwebtoken::dangerous::insecure_decode_claims(text).ok()?;
        Some(Self { text, header, client: sub })
    }

    /// The client that it says it is of.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Whether the client has signed it with one of `keys`, for one of `audiences`, and it was not used before.
    ///
    /// # Errors
    ///
    /// If not, or if that can't be told.
    pub async fn verify(
        &self,
        audiences: &[&str],
        keys: &dyn KeySource,
        used: &dyn state::Claims,
    ) -> Result<(), Unproven> {
        let algorithm = self.header.alg;
        if !ACCEPTED.contains(&algorithm) {
            return Err(Unproven::Invalid("its algorithm is not accepted"));
        }
        let key = keys.key(self.header.kid.as_deref(), algorithm).await;
        let key = key.map_err(|why| Unproven::Unavailable(why.to_string()))?;
        let key = key.ok_or(Unproven::Invalid("its key is not known"))?;
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.validate_aud = false;
        validation.set_issuer(&[&self.client]);
        validation.set_required_spec_claims(&["exp", "iss", "sub", "aud"]);
        let claims: Claims =
            key.decode(self.text, &validation).map_err(|wrong| Unproven::Invalid(wrong.why))?;
        self.check(&claims, audiences).map_err(Unproven::Invalid)?;
        use_up(used, &remembered("assertion", &self.client, &claims.jti), claims.exp).await
    }

    fn check(&self, claims: &Claims, audiences: &[&str]) -> Result<(), &'static str> {
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let leeway = LEEWAY as f64;
        if claims.iss != self.client || claims.sub != self.client {
            return Err("it is not of the client itself");
        }
        if !claims.aud.only().is_some_and(|audience| audiences.contains(&audience)) {
            return Err("it is for another server");
        }
        if !claims.exp.is_finite() || claims.exp > now() + MAX_AHEAD + leeway {
            return Err("it is good for longer than is accepted");
        }
        if claims.iat.is_some_and(|iat| iat > now() + leeway) {
            return Err("it was issued in the future");
        }
        if claims.jti.is_empty() || claims.jti.len() > MAX_ID {
            return Err("its id can't be remembered");
        }
        Ok(())
    }
}

/// What an assertion of `issuer` with this id is remembered by.
pub(crate) fn remembered(kind: &str, issuer: &str, id: &str) -> String {
    let mut hash = Sha256::new();
    for part in [issuer, id] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut name = format!("{kind}:");
    for byte in &hash.finalize()[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Takes what is remembered as `name` and ends at `exp`; whoever comes with it again is refused.
pub(crate) async fn use_up(used: &dyn state::Claims, name: &str, exp: f64) -> Result<(), Unproven> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds, at most 630")]
    let left = (exp - now()).max(0.0) as u64 + LEEWAY + 1;
    match used.claim(name, Duration::from_secs(left)).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Unproven::Invalid("it was used before")),
        Err(why) => Err(Unproven::Unavailable(why.to_string())),
    }
}

fn now() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let now = Utc::now().timestamp() as f64;
    now
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use drawbridge_core::state::{MemoryClaims, Unavailable};
    use jsonwebtoken::EncodingKey;
    use jsonwebtoken::jwk::Jwk;
    use serde_json::{Value, json};

    use super::*;
    use crate::jwks::Fixed;

    const CLIENT: &str = "https://host.example/client.json";
    const US: [&str; 2] = ["https://gw.example", "https://gw.example/token"];

    fn key() -> EncodingKey {
        use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
        let random = aws_lc_rs::rand::SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        EncodingKey::from_ec_der(pkcs8.as_ref())
    }

    fn public(key: &EncodingKey) -> Value {
        json!({ "keys": [serde_json::to_value(Jwk::from_encoding_key(key, Algorithm::ES256).unwrap()).unwrap()] })
    }

    fn sign(key: &EncodingKey, algorithm: Algorithm, changes: &Value) -> String {
        let now = Utc::now().timestamp();
        let mut claims = json!({ "iss": CLIENT, "sub": CLIENT, "aud": US[0], "iat": now, "exp": now + 300,
            "jti": rand::random::<u64>().to_string() });
        for (name, value) in changes.as_object().unwrap() {
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        jsonwebtoken::encode(&Header::new(algorithm), &claims, key).unwrap()
    }

    #[tokio::test]
    async fn what_a_client_says_of_itself_to_us_is_believed_once() {
        let (key, used) = (key(), MemoryClaims::default());
        let keys = Fixed::of(&public(&key)).unwrap();
        for aud in [json!(US[0]), json!(US[1]), json!([US[0]])] {
            let text = sign(&key, Algorithm::ES256, &json!({ "aud": aud }));
            let assertion = Assertion::read(&text).unwrap();
            assert_eq!(assertion.client(), CLIENT);
            assert_eq!(assertion.verify(&US, &keys, &used).await, Ok(()));
            let again = assertion.verify(&US, &keys, &used).await;
            assert_eq!(again, Err(Unproven::Invalid("it was used before")));
        }
    }

    #[tokio::test]
    async fn whatever_else_it_says_it_proves_nothing() {
        let (own, used, now) = (key(), MemoryClaims::default(), Utc::now().timestamp());
        let keys = Fixed::of(&public(&own)).unwrap();
        for changes in [
            json!({ "iss": "https://other.example" }),
            json!({ "aud": "https://other.example" }),
            json!({ "aud": US }),
            json!({ "aud": [] }),
            json!({ "aud": "https://gw.example/" }),
            json!({ "aud": null }),
            json!({ "exp": null }),
            json!({ "exp": now - 60 }),
            json!({ "exp": now + 3600 }),
            json!({ "nbf": now + 120 }),
            json!({ "iat": now + 120 }),
            json!({ "jti": null }),
            json!({ "jti": "" }),
            json!({ "jti": "x".repeat(513) }),
        ] {
            let text = sign(&own, Algorithm::ES256, &changes);
            let verified = Assertion::read(&text).unwrap().verify(&US, &keys, &used).await;
            assert!(matches!(verified, Err(Unproven::Invalid(_))), "{changes}: {verified:?}");
        }
        let foreign = sign(&key(), Algorithm::ES256, &json!({}));
        let verified = Assertion::read(&foreign).unwrap().verify(&US, &keys, &used).await;
        assert_eq!(verified, Err(Unproven::Invalid("its signature is wrong")));
        // The public key as a secret.
        let secret = EncodingKey::from_secret(public(&own).to_string().as_bytes()).unwrap();
        let confused = sign(&secret, Algorithm::HS256, &json!({}));
        let verified = Assertion::read(&confused).unwrap().verify(&US, &keys, &used).await;
        assert_eq!(verified, Err(Unproven::Invalid("its algorithm is not accepted")));
        for text in
            ["", "a.b", "a.b.c", &"a.".repeat(MAX_BYTES), &format!("{}.e30.e30", "x".repeat(MAX_BYTES))]
        {
            assert!(Assertion::read(text).is_none());
        }
    }

    struct Away;

    #[async_trait]
    impl state::Claims for Away {
        async fn claim(&self, _: &str, _: Duration) -> Result<bool, Unavailable> {
            Err(Unavailable("away".to_owned()))
        }
    }

    #[tokio::test]
    async fn while_nobody_remembers_what_was_used_nothing_is_proven() {
        let key = key();
        let keys = Fixed::of(&public(&key)).unwrap();
        let text = sign(&key, Algorithm::ES256, &json!({}));
        let verified = Assertion::read(&text).unwrap().verify(&US, &keys, &Away).await;
        assert!(matches!(verified, Err(Unproven::Unavailable(_))), "{verified:?}");
    }

    #[test]
    fn a_set_that_gives_a_secret_away_is_refused() {
        let mut set = public(&key());
        assert!(!Fixed::of(&set).unwrap().is_empty());
        set["keys"][0]["d"] = json!("AAAA");
        assert!(Fixed::of(&set).is_err());
        assert!(Fixed::of(&json!({ "keys": [] })).unwrap().is_empty());
        assert!(Fixed::of(&json!([])).is_err());
    }
}
