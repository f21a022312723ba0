//! The keys of another issuer, as it publishes them (RFC 7517). They are kept for as long as it says, fetched anew
//! before that is over, and fetched for an unknown key no more often than every half minute.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use drawbridge_core::Tasks;
use jsonwebtoken::Algorithm;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
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
/// The part of their time after which keys are fetched anew, while the old ones are still used.
const AHEAD: f32 = 0.8;
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
    /// From when on they are fetched anew, and until when they are good.
    times: Option<(Instant, Instant)>,
    asked: Option<Instant>,
    /// Closed once the fetch that was begun last is over, whatever came of it.
    fetching: Option<watch::Receiver<()>>,
    error: Option<String>,
}

impl Kept {
    fn until(&self, of: impl Fn((Instant, Instant)) -> Instant) -> bool {
        self.times.is_some_and(|times| Instant::now() < of(times))
    }

    fn is_fresh(&self) -> bool {
        self.until(|(_, end)| end)
    }

    fn is_due(&self) -> bool {
        !self.until(|(due, _)| due)
    }

    fn is_usable(&self) -> bool {
        self.until(|(_, end)| end + STALE)
    }

    fn may_ask(&self) -> bool {
        self.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY)
    }
}

/// The keys of an issuer.
pub struct Jwks(Arc<Inner>);

struct Inner {
    issuer: String,
    location: Location,
    fetch: Arc<dyn Fetch>,
    kept: Mutex<Kept>,
    tasks: Tasks,
}

impl std::fmt::Debug for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwks").field("issuer", &self.0.issuer).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    jwks_uri: String,
}

impl Jwks {
    /// The keys of `issuer`, which are not fetched until they are needed, and then by one of `tasks`.
    pub fn new(issuer: &str, location: Location, fetch: Arc<dyn Fetch>, tasks: Tasks) -> Self {
        Self(Arc::new(Inner { issuer: issuer.to_owned(), location, fetch, kept: Mutex::default(), tasks }))
    }

    /// Fetches the keys, unless that is being done or was done a moment ago. What to wait for, if there is something; the
    /// fetch goes on if nobody does.
    fn refresh(&self) -> Option<watch::Receiver<()>> {
        let mut kept = self.0.kept.lock();
        let fetching = kept.fetching.as_ref().filter(|fetching| fetching.has_changed().is_ok());
        if let Some(fetching) = fetching {
            return Some(fetching.clone());
        }
        if !kept.may_ask() {
            return None;
        }
        kept.asked = Some(Instant::now());
        let (over, fetching) = watch::channel(());
        kept.fetching = Some(fetching.clone());
        let (inner, url) = (self.0.clone(), kept.url.clone());
        drop(kept);
        self.0.tasks.spawn_within("fetch keys", async move {
            inner.refresh(url).await;
            drop(over);
        });
        Some(fetching)
    }
}

impl Inner {
    async fn refresh(&self, url: Option<String>) {
        let loaded = self.load(url).await;
        let mut kept = self.kept.lock();
        match loaded {
            Ok((url, keys, age)) => {
                let (least, default, most) = KEPT;
                let age = age.map_or(default, |age| age.clamp(least, most));
                let now = Instant::now();
                let times = Some((now + age.mul_f32(AHEAD), now + age));
                (kept.keys, kept.url, kept.times, kept.error) = (keys, Some(url), times, None);
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
        {
            let kept = self.0.kept.lock();
            // An issuer that did not answer is not waited for again while its keys can still be used.
            let is_good = kept.is_fresh() || (kept.error.is_some() && kept.is_usable());
            if is_good && let Some(key) = find(&kept.keys, kid, algorithm) {
                let is_due = kept.is_due();
                drop(kept);
                if is_due {
                    self.refresh();
                }
                return Ok(Some(key));
            }
        }
        if let Some(mut fetching) = self.refresh() {
            // It says nothing but that it is over.
            let _ = fetching.changed().await;
        }
        let kept = self.0.kept.lock();
        if kept.is_usable() {
            return Ok(find(&kept.keys, kid, algorithm));
        }
        let why = kept.error.clone().unwrap_or_else(|| "not fetched yet".to_owned());
        Err(NoKeys { issuer: self.0.issuer.clone(), why })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use jsonwebtoken::EncodingKey;
    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::*;

    /// An issuer of which a test says what it answers, and when.
    struct Issuer {
        kids: Mutex<Vec<&'static str>>,
        asked: AtomicUsize,
        answers: Semaphore,
    }

    impl Issuer {
        fn with(kids: &[&'static str]) -> Arc<Self> {
            Arc::new(Self {
                kids: Mutex::new(kids.to_vec()),
                asked: AtomicUsize::new(0),
                answers: Semaphore::new(1000),
            })
        }

        fn keys(self: &Arc<Self>) -> Jwks {
            let location = Location::Url("https://id.example/keys".to_owned());
            Jwks::new("https://id.example", location, self.clone(), Tasks::default())
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    #[async_trait]
    impl Fetch for Issuer {
        async fn fetch(&self, _: Request<Vec<u8>>, _: usize) -> Result<Response<Vec<u8>>, NotFetched> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.answers.acquire().await.unwrap().forget();
            let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
            let key = EncodingKey::from_ec_der(&pair.serialize_der());
            let public = |kid: &&str| {
                let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
                jwk.common.key_id = Some((*kid).to_owned());
                jwk
            };
            let keys: Vec<Jwk> = self.kids.lock().iter().map(public).collect();
            let body = serde_json::to_vec(&json!({ "keys": keys })).unwrap();
            let response = Response::builder()
                .header("content-type", "application/json")
                .header("cache-control", "max-age=100");
            Ok(response.body(body).unwrap())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_unknown_keys_wait_for_one_fetch_and_are_refused_at_once_after_it() {
        let issuer = Issuer::with(&["one"]);
        let keys = Arc::new(issuer.keys());
        assert!(has(&keys, "one").await);
        issuer.answers.forget_permits(1000);
        tokio::time::advance(ASK_EVERY).await;
        let mut asking = tokio::task::JoinSet::new();
        for n in 0..100 {
            let keys = keys.clone();
            asking.spawn(async move { has(&keys, &format!("unknown {n}")).await });
        }
        while issuer.asked() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(keys.0.tasks.tracker().len(), 1, "one task for all who wait");
        issuer.answers.add_permits(1);
        assert!(asking.join_all().await.iter().all(|has| !has));
        assert!(!has(&keys, "yet another").await);
        assert_eq!((issuer.asked(), keys.0.tasks.tracker().len()), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_that_is_cut_off_by_the_end_of_the_gateway_leaves_nobody_waiting() {
        let issuer = Issuer::with(&["one"]);
        issuer.answers.forget_permits(1000);
        let keys = Arc::new(issuer.keys());
        let waits = keys.clone();
        let mut asking = tokio::task::JoinSet::new();
        asking.spawn(async move { waits.key(Some("one"), Algorithm::ES256).await.is_err() });
        while issuer.asked() < 1 {
            tokio::task::yield_now().await;
        }
        assert!(!keys.0.tasks.finish(Duration::from_secs(1)).await);
        assert_eq!(asking.join_all().await, [true]);
    }

    async fn has(keys: &Jwks, kid: &str) -> bool {
        keys.key(Some(kid), Algorithm::ES256).await.unwrap().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn t27_a_new_key_is_asked_for_once_and_a_removed_one_ends_with_its_time() {
        let issuer = Issuer::with(&["old"]);
        let keys = issuer.keys();
        assert!(has(&keys, "old").await);
        issuer.kids.lock().push("new");
        tokio::time::advance(ASK_EVERY).await;
        assert!(has(&keys, "new").await && has(&keys, "old").await);
        assert_eq!(issuer.asked(), 2);

        *issuer.kids.lock() = vec!["new"];
        tokio::time::advance(Duration::from_secs(70)).await;
        assert!(has(&keys, "old").await, "its time is not over");
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(!has(&keys, "old").await);
        assert!(has(&keys, "new").await);
        assert_eq!(issuer.asked(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_fetched_anew_before_their_time_is_over_and_nobody_waits() {
        let issuer = Issuer::with(&["one"]);
        let keys = issuer.keys();
        assert!(has(&keys, "one").await);
        issuer.answers.forget_permits(1000);
        tokio::time::advance(Duration::from_secs(81)).await;
        for _ in 0..3 {
            assert!(has(&keys, "one").await);
            tokio::task::yield_now().await;
        }
        assert_eq!(issuer.asked(), 2);
        issuer.answers.add_permits(1);
        while keys.0.kept.lock().is_due() {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(Duration::from_secs(79)).await;
        assert!(has(&keys, "one").await);
        assert_eq!(issuer.asked(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_key_that_is_asked_for_holds_up_nobody_whose_key_is_known() {
        let issuer = Issuer::with(&["one"]);
        let keys = Arc::new(issuer.keys());
        assert!(has(&keys, "one").await);
        issuer.answers.forget_permits(1000);
        tokio::time::advance(ASK_EVERY).await;
        let of_nobody = keys.clone();
        let mut asking = tokio::task::JoinSet::new();
        asking.spawn(async move { has(&of_nobody, "unknown").await });
        while issuer.asked() < 2 {
            tokio::task::yield_now().await;
        }
        assert!(has(&keys, "one").await);
        issuer.answers.add_permits(1);
        assert_eq!(asking.join_all().await, [false]);
    }
}
