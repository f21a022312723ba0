//! Access tokens that the gateway's own authorization server issues (RFC 9068), and the keys that sign them. Keys are
//! in the records, sealed; all instances sign with the same and publish the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{TimeDelta, Utc};
use drawbridge_core::seal::{KeyRing, Purpose};
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::jwt::{KeySource, NoKeys, Policy, VerifyingKey};
use crate::records::{Records, RecordsError, SigningKey, Time};

/// Access tokens are of this type.
const TYPE: &str = "at+jwt";
/// What backends are told of callers with is of this type, which nobody takes for an access token.
pub const IDENTITY_TYPE: &str = "drawbridge-identity+jwt";
/// It is good for this long.
const IDENTITY: TimeDelta = TimeDelta::minutes(5);
/// A key signs for so long.
const SIGNS: TimeDelta = TimeDelta::days(90);
/// Its successor is published this long before.
const AHEAD: TimeDelta = TimeDelta::days(1);
/// A key that was just published is not used yet: others have to hear of it.
const PUBLISHED: TimeDelta = TimeDelta::minutes(10);
/// What the gateway proves itself to other servers with is good for this long.
const ASSERTION: TimeDelta = TimeDelta::minutes(2);
/// No token is good for longer.
pub const MAX_LIFETIME: TimeDelta = TimeDelta::hours(24);
/// For a key that is not known the records are asked this often at most.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// A key as it is used.
struct Usable {
    kid: String,
    signs: EncodingKey,
    verifies: VerifyingKey,
    public: Value,
    not_before: Time,
    retires_at: Time,
}

/// The keys of this gateway, and what is signed with them.
pub struct Signer {
    issuer: String,
    records: Arc<dyn Records>,
    ring: Arc<KeyRing>,
    keys: ArcSwap<Vec<Usable>>,
    asked: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// Why nothing can be signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// Records can't be had.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// A key could not be made or used.
    #[error("the signing key {0}")]
    Key(&'static str),
}

/// What an access token says.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Access<'a> {
    /// Whose it is: a user's id, or the client's own.
    #[serde(rename = "sub")]
    pub subject: &'a str,
    /// To which client it is given.
    #[serde(rename = "client_id")]
    pub client: &'a str,
    /// For which resource.
    #[serde(rename = "aud")]
    pub resource: &'a str,
    /// What it allows.
    pub scope: &'a str,
    /// Of which grant it is.
    #[serde(rename = "gid")]
    pub grant: &'a str,
    /// With which refresh token it comes.
    #[serde(rename = "rid", skip_serializing_if = "Option::is_none")]
    pub refresh: Option<&'a str>,
    /// The version of the user.
    #[serde(rename = "ver", skip_serializing_if = "Option::is_none")]
    pub user_version: Option<i64>,
    /// The version of a client that the configuration names.
    #[serde(rename = "cver", skip_serializing_if = "Option::is_none")]
    pub client_version: Option<i64>,
    /// When the user logged in, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_time: Option<i64>,
}

#[derive(Serialize)]
struct Issued<'a> {
    iss: &'a str,
    iat: i64,
    exp: i64,
    jti: String,
    #[serde(flatten)]
    access: &'a Access<'a>,
}

#[derive(Serialize)]
struct Asserted<'a> {
    iss: &'a str,
    sub: &'a str,
    aud: &'a str,
    iat: i64,
    exp: i64,
    jti: String,
}

/// What a backend is told of a caller.
#[derive(Debug, Clone, Serialize)]
pub struct Told<'a> {
    /// Who it is.
    pub sub: &'a str,
    /// Who is told.
    pub aud: &'a str,
    /// By which client it calls.
    pub client_id: &'a str,
    /// An address, as the identity provider says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<&'a str>,
    /// A name, for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Groups, as the identity provider says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<&'a BTreeSet<String>>,
}

#[derive(Serialize)]
struct Identified<'a> {
    iss: &'a str,
    iat: i64,
    exp: i64,
    jti: String,
    #[serde(flatten)]
    told: &'a Told<'a>,
}

impl Signer {
    /// A signer whose keys are in `records`, sealed by `ring`.
    pub fn new(issuer: &str, records: Arc<dyn Records>, ring: Arc<KeyRing>) -> Self {
        Self { issuer: issuer.to_owned(), records, ring, keys: ArcSwap::default(), asked: Mutex::default() }
    }

    /// Which of its tokens are accepted.
    pub fn policy(&self) -> Policy {
        Policy {
            groups_claim: String::new(),
            issuer: self.issuer.clone(),
            algorithms: vec![Algorithm::ES256],
            types: vec![TYPE.to_owned()],
            audiences: Vec::new(),
            clients: Vec::new(),
            max_lifetime: None,
        }
    }

    /// Reads the keys, and makes one where there is none or the last will soon retire. To be called now and then.
    ///
    /// # Errors
    ///
    /// If the records can't be had, or a key can't be made.
    pub async fn tend(&self) -> Result<(), SigningError> {
        self.load().await?;
        let now = Utc::now();
        let keys = self.keys.load();
        let signs_until = keys.iter().map(|key| key.retires_at).max();
        if signs_until.is_none_or(|end| end - now < AHEAD) {
            // Two instances may do this at once: then there are two, both published, and both good.
            let not_before = if signs_until.is_some_and(|end| end > now) { now + PUBLISHED } else { now };
            self.records.add_signing_key(&self.make(not_before)?).await?;
            self.load().await?;
        }
        Ok(())
    }

    async fn load(&self) -> Result<(), SigningError> {
        let now = Utc::now();
        let kept = self.records.signing_keys(now - MAX_LIFETIME - TimeDelta::hours(1)).await?;
        let mut usable = Vec::with_capacity(kept.len());
        for key in &kept {
            match self.usable(key) {
                Some(key) => usable.push(key),
                None => tracing::error!(
                    kid = key.kid,
                    "a signing key can't be opened; is the seal key that it was made with still in seal.keys?"
                ),
            }
        }
        self.keys.store(Arc::new(usable));
        Ok(())
    }

    fn make(&self, not_before: Time) -> Result<SigningKey, SigningError> {
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let made = made.map_err(|_| SigningError::Key("could not be made"))?;
        let signs = EncodingKey::from_ec_der(made.as_ref());
        let mut public = Jwk::from_encoding_key(&signs, Algorithm::ES256)
            .map_err(|_| SigningError::Key("could not be read"))?;
        let kid = crate::fresh_id();
        public.common.key_id = Some(kid.clone());
        public.common.public_key_use = Some(PublicKeyUse::Signature);
        Ok(SigningKey {
            kid,
            algorithm: "ES256".to_owned(),
            private: self.ring.seal(Purpose::SigningKey, made.as_ref()),
            public: serde_json::to_value(&public).map_err(|_| SigningError::Key("could not be written"))?,
            not_before,
            retires_at: not_before + SIGNS,
        })
    }

    fn usable(&self, key: &SigningKey) -> Option<Usable> {
        let private = self.ring.open(Purpose::SigningKey, &key.private)?;
        let jwk: Jwk = serde_json::from_value(key.public.clone()).ok()?;
        Some(Usable {
            kid: key.kid.clone(),
            signs: EncodingKey::from_ec_der(&private),
            verifies: VerifyingKey::of(&jwk)?,
            public: key.public.clone(),
            not_before: key.not_before,
            retires_at: key.retires_at,
        })
    }

    /// The public parts of all keys whose tokens may be presented, as a JWK Set.
    pub fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.keys.load().iter().map(|key| key.public.clone()).collect();
        json!({ "keys": keys })
    }

    /// An access token that says this, good until `expires_at`.
    ///
    /// # Errors
    ///
    /// If there is no key to sign with.
    pub fn issue(&self, access: &Access<'_>, now: Time, expires_at: Time) -> Result<String, SigningError> {
        let claims = Issued {
            iss: &self.issuer,
            iat: now.timestamp(),
            exp: expires_at.timestamp(),
            jti: URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()),
            access,
        };
        self.sign(TYPE, &claims, now)
    }

    /// Proves to another server, `audience`, that this gateway is the client with this id (RFC 7523 § 3). It is no access
    /// token: its type is another.
    ///
    /// # Errors
    ///
    /// If there is no key to sign with.
    pub fn assert(&self, client: &str, audience: &str, now: Time) -> Result<String, SigningError> {
        let claims = Asserted {
            iss: client,
            sub: client,
            aud: audience,
            iat: now.timestamp(),
            exp: (now + ASSERTION).timestamp(),
            jti: URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()),
        };
        self.sign("JWT", &claims, now)
    }

    /// Tells a backend who a caller is. It is no access token, and good for five minutes.
    ///
    /// # Errors
    ///
    /// If there is no key to sign with.
    pub fn identify(&self, told: &Told<'_>, now: Time) -> Result<String, SigningError> {
        let claims = Identified {
            iss: &self.issuer,
            iat: now.timestamp(),
            exp: (now + IDENTITY).timestamp(),
            jti: URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()),
            told,
        };
        self.sign(IDENTITY_TYPE, &claims, now)
    }

    fn sign(&self, typ: &str, claims: &impl Serialize, now: Time) -> Result<String, SigningError> {
        let keys = self.keys.load();
        let current = keys.iter().filter(|key| key.not_before <= now && now < key.retires_at);
        let key = current
            .max_by_key(|key| (key.not_before, key.kid.clone()))
            .ok_or(SigningError::Key("is missing"))?;
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some(typ.to_owned());
        header.kid = Some(key.kid.clone());
        jsonwebtoken::encode(&header, claims, &key.signs).map_err(|_| SigningError::Key("could not be used"))
    }

    fn known(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<VerifyingKey> {
        let keys = self.keys.load();
        let key = keys.iter().find(|key| Some(key.kid.as_str()) == kid)?;
        key.verifies.fits(algorithm).then(|| key.verifies.clone())
    }

    /// Whether the records may be asked again.
    fn may_ask(&self) -> bool {
        let mut asked = self.asked.lock();
        let may = asked.is_none_or(|at| at.elapsed() >= ASK_EVERY);
        if may {
            *asked = Some(Instant::now());
        }
        may
    }
}

#[async_trait]
impl KeySource for Signer {
    async fn key(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Option<VerifyingKey>, NoKeys> {
        let known = self.known(kid, algorithm);
        if known.is_some() || !self.may_ask() {
            return Ok(known);
        }
        match self.load().await {
            Ok(()) => Ok(self.known(kid, algorithm)),
            Err(error) if self.keys.load().is_empty() => {
                Err(NoKeys { issuer: self.issuer.clone(), why: error.to_string() })
            }
            Err(_) => Ok(None),
        }
    }
}
