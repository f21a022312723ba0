//! The keys of another issuer, as it publishes them (RFC 7517). They are kept for as long as it says, fetched anew
//! before that is over, and fetched for an unknown key no more often than every half minute.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jsonwebtoken::Algorithm;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::fetch::{Fetch, NotFetched, document};
use crate::jwt::{KeySource, NoKeys, VerifyingKey};

/// The largest document, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
const MAX_KEYS: usize = 100;
const KEPT: (Duration, Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(300), Duration::from_secs(900));
/// For an unknown key the issuer is asked this often at most.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Keys are used for so long after their time if the issuer does not answer.
const STALE: Duration = Duration::from_secs(3600);

/// Where the keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// At this URL.
    Url(String),
    /// Where the issuer's metadata say: OpenID Connect Discovery, or RFC 8414.
    Discovered,
}

#[derive(Default)]
struct Kept {
    keys: Vec<VerifyingKey>,
    url: Option<String>,
    until: Option<Instant>,
    asked: Option<Instant>,
    error: Option<String>,
}

/// The keys of an issuer.
pub struct Jwks {
    issuer: String,
    location: Location,
    fetch: Arc<dyn Fetch>,
    kept: Mutex<Kept>,
}

impl std::fmt::Debug for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwks").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    jwks_uri: String,
}

impl Jwks {
    /// The keys of `issuer`, which are not fetched until they are needed.
    pub fn new(issuer: &str, location: Location, fetch: Arc<dyn Fetch>) -> Self {
        Self { issuer: issuer.to_owned(), location, fetch, kept: Mutex::default() }
    }

    async fn refresh(&self, kept: &mut Kept) {
        kept.asked = Some(Instant::now());
        match self.load(kept.url.clone()).await {
            Ok((url, keys, age)) => {
                let (least, default, most) = KEPT;
                let age = age.map_or(default, |age| age.clamp(least, most));
                *kept = Kept {
                    keys,
                    url: Some(url),
                    until: Some(Instant::now() + age),
                    asked: kept.asked,
                    error: None,
                };
            }
            Err(NotFetched(why)) => {
                tracing::warn!(issuer = self.issuer, "the keys of an issuer can't be had: {why}");
                kept.error = Some(why);
            }
        }
    }

    async fn load(
        &self,
        known: Option<String>,
    ) -> Result<(String, Vec<VerifyingKey>, Option<Duration>), NotFetched> {
        let url = match (&self.location, known) {
            (Location::Url(url), _) => url.clone(),
            (Location::Discovered, Some(url)) => url,
            (Location::Discovered, None) => {
                let metadata: Metadata = serde_json::from_value(metadata(&*self.fetch, &self.issuer).await?)
                    .map_err(|_| NotFetched("its metadata name no keys".to_owned()))?;
                if metadata.issuer != self.issuer {
                    return Err(NotFetched(format!("its metadata are of {}", metadata.issuer)));
                }
                metadata.jwks_uri
            }
        };
        let (set, age) = document(&*self.fetch, &url, MAX_BYTES).await?;
        Ok((url, keys(&set)?, age))
    }
}

/// The metadata of an authorization server or identity provider.
///
/// # Errors
///
/// If they can't be had.
pub async fn metadata(fetch: &dyn Fetch, issuer: &str) -> Result<Value, NotFetched> {
    let base = issuer.trim_end_matches('/');
    let openid = format!("{base}/.well-known/openid-configuration");
    let found = document(fetch, &openid, MAX_BYTES).await;
    if let Ok((metadata, _)) = found {
        return Ok(metadata);
    }
    let parsed = url::Url::parse(base).map_err(|_| NotFetched("the issuer is no URL".to_owned()))?;
    let path = parsed.path().trim_end_matches('/');
    let oauth =
        format!("{}/.well-known/oauth-authorization-server{path}", parsed.origin().ascii_serialization());
    match document(fetch, &oauth, MAX_BYTES).await {
        Ok((metadata, _)) => Ok(metadata),
        Err(_) => found.map(|(metadata, _)| metadata),
    }
}

/// The usable keys of a set.
fn keys(set: &Value) -> Result<Vec<VerifyingKey>, NotFetched> {
    let all = set.get("keys").and_then(Value::as_array).ok_or_else(|| NotFetched("no key set".to_owned()))?;
    if all.len() > MAX_KEYS {
        return Err(NotFetched(format!("more than {MAX_KEYS} keys")));
    }
    let mut usable: Vec<VerifyingKey> = Vec::new();
    for key in all {
        let is_private = is_private(key);
        let Ok(jwk) = serde_json::from_value::<Jwk>(key.clone()) else { continue };
        let signs = jwk.common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
        if is_private || !signs || is_weak(&jwk) {
            continue;
        }
        let is_known = |kid: &str| usable.iter().any(|known| known.kid.as_deref() == Some(kid));
        if jwk.common.key_id.as_deref().is_some_and(is_known) {
            tracing::warn!(kid = jwk.common.key_id, "a key set has two keys of one name; the first is used");
            continue;
        }
        usable.extend(VerifyingKey::of(&jwk));
    }
    Ok(usable)
}

/// Whether a key says what must stay secret.
fn is_private(key: &Value) -> bool {
    ["d", "p", "q", "dp", "dq", "qi", "oth", "k"].into_iter().any(|part| key.get(part).is_some())
}

/// The key with this id that fits the algorithm; without an id the only one that does.
fn find(keys: &[VerifyingKey], kid: Option<&str>, algorithm: Algorithm) -> Option<VerifyingKey> {
    let mut fitting = keys.iter().filter(|key| key.fits(algorithm));
    match kid {
        Some(kid) => fitting.find(|key| key.kid.as_deref() == Some(kid)).cloned(),
        None => match (fitting.next(), fitting.next()) {
            (Some(only), None) => Some(only.clone()),
            _ => None,
        },
    }
}

/// Keys that were given and don't change.
#[derive(Debug)]
pub struct Fixed(Vec<VerifyingKey>);

impl Fixed {
    /// The usable keys of a set (RFC 7517 § 5).
    ///
    /// # Errors
    ///
    /// If it is none, or gives a secret away.
    pub fn of(set: &Value) -> Result<Self, NotFetched> {
        let keys = keys(set)?;
        if set["keys"].as_array().is_some_and(|all| all.iter().any(is_private)) {
            return Err(NotFetched("a key is not a public one".to_owned()));
        }
        Ok(Self(keys))
    }

    /// Whether there is no usable key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[async_trait]
impl KeySource for Fixed {
    async fn key(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Option<VerifyingKey>, NoKeys> {
        Ok(find(&self.0, kid, algorithm))
    }
}

/// Whether it is an RSA key of less than 2048 bits.
fn is_weak(jwk: &Jwk) -> bool {
    use base64::Engine as _;
    let AlgorithmParameters::RSA(rsa) = &jwk.algorithm else { return false };
    let modulus = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(&rsa.n).unwrap_or_default();
    let bits = modulus.iter().position(|b| *b != 0).map_or(0, |zeros| (modulus.len() - zeros) * 8);
    bits < 2048
}

#[async_trait]
impl KeySource for Jwks {
    async fn key(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Option<VerifyingKey>, NoKeys> {
        let mut kept = self.kept.lock().await;
        let find = |kept: &Kept| find(&kept.keys, kid, algorithm);
        let now = Instant::now();
        let is_fresh = kept.until.is_some_and(|until| now < until);
        if is_fresh && let Some(key) = find(&kept) {
            return Ok(Some(key));
        }
        if kept.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
            self.refresh(&mut kept).await;
        }
        let is_usable = kept.until.is_some_and(|until| Instant::now() < until + STALE);
        if is_usable {
            return Ok(find(&kept));
        }
        let why = kept.error.clone().unwrap_or_else(|| "not fetched yet".to_owned());
        Err(NoKeys { issuer: self.issuer.clone(), why })
    }
}
