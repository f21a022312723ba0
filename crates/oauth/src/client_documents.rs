//! Clients that describe themselves: the `client_id` is the URL of a document that says what others register (OAuth
//! Client ID Metadata Document). Whoever answers at that URL vouches for the client, so the domain is what is shown.
//!
//! URLs are anybody's. They are looked at before anything is fetched, fetched for users who have logged in and for
//! clients that hold something a user has granted, and by a client that connects to public addresses alone. Documents
//! are kept in memory, each instance its own: a lost one is fetched again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use drawbridge_auth::fetch::{self, Fetch};
use drawbridge_auth::jwks::{Fixed, Jwks, Location};
use drawbridge_auth::jwt::KeySource;
use drawbridge_core::Tasks;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use url::{Host, Url};

use crate::clients::{AuthMethod, Client, Metadata};
use crate::options::{ClientDocumentOptions, Registration};
use crate::redirect;
use crate::text::printable;

const MAX_URL: usize = 512;
const MAX_BYTES: usize = 5 * 1024;
const MAX_REDIRECT_URIS: usize = 20;
const MAX_NAME: usize = 256;
const MAX_KEPT: usize = 1000;
/// How long a document is fresh: at least, if its server says nothing, at most.
const FRESH: (Duration, Duration, Duration) =
    (Duration::from_secs(300), Duration::from_secs(3600), Duration::from_secs(24 * 3600));
/// While its server fails, a document is used for so long after it was fetched.
const STALE: Duration = Duration::from_secs(7 * 24 * 3600);
/// A failure is remembered for so long.
const FAILED: Duration = Duration::from_secs(30);
/// How many may be fetched from one host at a time.
const AT_A_TIME: usize = 2;
/// How long others that fetch from the host are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The hosts that are known to describe their clients so.
const KNOWN_HOSTS: [&str; 5] = ["claude.ai", "chatgpt.com", "vscode.dev", "opencode.ai", "zed.dev"];
/// And those on a host where anybody may put documents.
const KNOWN_PREFIX: &str = "https://github.com/copilot/";

/// Why there is no document. For the log alone: whoever names URLs must not learn what there is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoDocument {
    /// It can't be had now.
    #[error("{0}")]
    Unfetched(String),
    /// It is there, and is none.
    #[error("{0}")]
    Unfit(&'static str),
}

/// What a document says.
pub(crate) struct Document {
    metadata: Metadata,
    keys: Option<Arc<dyn KeySource>>,
    jwks_uri: Option<String>,
    domain: String,
}

impl Document {
    /// The client that it describes.
    fn client(&self, id: &str) -> Client {
        Client {
            id: id.to_owned(),
            metadata: self.metadata.clone(),
            secret: None,
            keys: self.keys.clone(),
            domain: Some(self.domain.clone()),
            named: None,
            is_disabled: false,
            has_proven: false,
        }
    }
}

#[derive(Default)]
struct Kept {
    document: Option<Arc<Document>>,
    fetched: Option<Instant>,
    fresh_until: Option<Instant>,
    failed: Option<(Instant, NoDocument)>,
}

impl Kept {
    fn fresh(&self) -> Option<Arc<Document>> {
        let is_fresh = self.fresh_until.is_some_and(|until| Instant::now() < until);
        self.document.clone().filter(|_| is_fresh)
    }

    fn usable(&self) -> Option<Arc<Document>> {
        let is_usable = self.fetched.is_some_and(|at| at.elapsed() < STALE);
        self.document.clone().filter(|_| is_usable)
    }
}

#[derive(Default)]
struct Slot {
    kept: Mutex<Kept>,
    /// Whoever has it fetches; others wait for what comes of it.
    fetching: tokio::sync::Mutex<()>,
}

/// The documents of clients, as far as they were needed.
pub(crate) struct ClientDocuments {
    options: ClientDocumentOptions,
    fetch: Arc<dyn Fetch>,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    hosts: Mutex<HashMap<String, Arc<Semaphore>>>,
    tasks: Tasks,
}

impl ClientDocuments {
    /// Keys that documents name are fetched by one of `tasks`.
    pub(crate) fn new(options: ClientDocumentOptions, fetch: Arc<dyn Fetch>, tasks: Tasks) -> Self {
        Self { options, fetch, slots: Mutex::default(), hosts: Mutex::default(), tasks }
    }

    /// Whether `id` can be a client here that describes itself. Nothing is fetched for this.
    pub(crate) fn may_be(&self, id: &str) -> bool {
        let Some(url) = parse(id) else { return false };
        let host = url.host_str().unwrap_or_default();
        match self.options.policy {
            Registration::Closed => false,
            Registration::Open => true,
            Registration::Curated => {
                KNOWN_HOSTS.contains(&host)
                    || id.starts_with(KNOWN_PREFIX)
                    || self.options.hosts.iter().any(|named| named == host)
            }
        }
    }

    /// The client `id` as it was last known, however long ago.
    pub(crate) fn cached(&self, id: &str) -> Option<Client> {
        let slot = self.slots.lock().get(id).cloned()?;
        let usable = slot.kept.lock().usable()?;
        self.may_be(id).then(|| usable.client(id))
    }

    /// Whether the client `id` is known well enough that nothing will be fetched.
    pub(crate) fn is_fresh(&self, id: &str) -> bool {
        let slot = self.slots.lock().get(id).cloned();
        slot.is_some_and(|slot| slot.kept.lock().fresh().is_some())
    }

    /// The client `id`, fetched if need be.
    pub(crate) async fn client(&self, id: &str) -> Result<Client, NoDocument> {
        if !self.may_be(id) {
            return Err(NoDocument::Unfit("its URL is not accepted"));
        }
        let slot = self.slot(id);
        if let Some(document) = slot.kept.lock().fresh() {
            return Ok(document.client(id));
        }
        let _fetching = slot.fetching.lock().await;
        {
            let kept = slot.kept.lock();
            if let Some(document) = kept.fresh() {
                return Ok(document.client(id));
            }
            if let Some((at, why)) = &kept.failed
                && at.elapsed() < FAILED
            {
                return kept.usable().map(|document| document.client(id)).ok_or_else(|| why.clone());
            }
        }
        let before = slot.kept.lock().document.clone();
        let fetched = self.fetch(id, before).await;
        let mut kept = slot.kept.lock();
        match fetched {
            Ok((document, age)) => {
                let (least, default, most) = FRESH;
                let now = Instant::now();
                let document = Arc::new(document);
                *kept = Kept {
                    document: Some(document.clone()),
                    fetched: Some(now),
                    fresh_until: Some(now + age.map_or(default, |age| age.clamp(least, most))),
                    failed: None,
                };
                Ok(document.client(id))
            }
            Err(why) => {
                tracing::warn!(client.id = id, "the document of a client can't be used: {why}");
                if matches!(why, NoDocument::Unfit(_)) {
                    // What its server says now counts.
                    *kept = Kept::default();
                }
                kept.failed = Some((Instant::now(), why.clone()));
                kept.usable().map(|document| document.client(id)).ok_or(why)
            }
        }
    }

    fn slot(&self, id: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(id) {
            return slot.clone();
        }
        if slots.len() >= MAX_KEPT {
            let age = |slot: &Slot| slot.kept.lock().fetched;
            let oldest = slots.iter().min_by_key(|(_, slot)| age(slot)).map(|(id, _)| id.clone());
            if let Some(oldest) = oldest {
                slots.remove(&oldest);
            }
        }
        slots.entry(id.to_owned()).or_default().clone()
    }

    async fn fetch(
        &self,
        id: &str,
        before: Option<Arc<Document>>,
    ) -> Result<(Document, Option<Duration>), NoDocument> {
        let host = parse(id).and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        let permits = {
            let mut hosts = self.hosts.lock();
            hosts.retain(|_, permits| Arc::strong_count(permits) > 1);
            hosts.entry(host).or_insert_with(|| Arc::new(Semaphore::new(AT_A_TIME))).clone()
        };
        let permit = tokio::time::timeout(PATIENCE, permits.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(NoDocument::Unfetched("too many are fetched from its host".to_owned()));
        };
        let fetched = fetch::document(&*self.fetch, id, MAX_BYTES).await;
        let (value, age) = fetched.map_err(|why| NoDocument::Unfetched(why.to_string()))?;
        let mut document = read(id, &value).map_err(NoDocument::Unfit)?;
        if let Some(uri) = &document.jwks_uri {
            // Keys at the same place stay those that were fetched.
            let same = before.filter(|before| before.jwks_uri.as_ref() == Some(uri));
            document.keys = match same {
                Some(before) => before.keys.clone(),
                None => Some(Arc::new(Jwks::new(
                    id,
                    Location::Url(uri.clone()),
                    self.fetch.clone(),
                    self.tasks.clone(),
                ))),
            };
        }
        Ok((document, age))
    }
}

/// The URL that a `client_id` is, if it may be that of a document: in its normal form, of a public name, and of nothing
/// that could be read in two ways.
fn parse(id: &str) -> Option<Url> {
    let is_long = id.len() > MAX_URL;
    if is_long || !id.starts_with("https://") || id.contains(['\\', '#', '?', '@']) || !id.is_ascii() {
        return None;
    }
    if id.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control()) {
        return None;
    }
    let lower = id.to_ascii_lowercase();
    if ["%2f", "%2e", "%5c", "%00"].iter().any(|encoded| lower.contains(encoded)) {
        return None;
    }
    let url = Url::parse(id).ok().filter(|url| url.as_str() == id && url.port().is_none())?;
    let Some(Host::Domain(name)) = url.host() else { return None };
    let is_inner = !name.contains('.')
        || name.ends_with('.')
        || [".local", ".internal", ".localhost"].iter().any(|end| name.ends_with(end));
    (!is_inner && url.path() != "/").then_some(url)
}

/// What the document at `id` says, if it is one.
fn read(id: &str, value: &Value) -> Result<Document, &'static str> {
    let says = value.as_object().ok_or("it is no object")?;
    if says.get("client_id").and_then(Value::as_str) != Some(id) {
        return Err("its client_id is not its URL");
    }
    if says.keys().any(|name| name.starts_with("client_secret")) {
        return Err("it has a secret");
    }
    let name = says.get("client_name").and_then(Value::as_str).map(|name| printable(name, MAX_NAME));
    let name = name.filter(|name| !name.trim().is_empty()).ok_or("it has no client_name")?;
    let grants = strings(says, "grant_types")?;
    if grants.is_some_and(|all| !all.contains("authorization_code")) {
        return Err("it does not want codes");
    }
    let uris = says.get("redirect_uris").and_then(Value::as_array).ok_or("it has no redirect_uris")?;
    let uris: Option<Vec<&str>> = uris.iter().map(Value::as_str).collect();
    let uris = uris.filter(|all| (1..=MAX_REDIRECT_URIS).contains(&all.len()));
    let uris = uris.ok_or("it must have 1 to 20 redirect_uris")?;
    if uris.iter().any(|uri| redirect::parse(uri).is_err()) {
        return Err("one of its redirect_uris is not accepted");
    }
    let url = parse(id).ok_or("its URL is not accepted")?;
    let (inline, jwks_uri) = keys(says, &url)?;
    let mut offered = strings(says, "token_endpoint_auth_methods_supported")?.unwrap_or_default();
    offered.extend(says.get("token_endpoint_auth_method").and_then(Value::as_str));
    let has_keys = inline.is_some() || jwks_uri.is_some();
    let method = if offered.is_empty() || offered.contains("none") {
        AuthMethod::None
    } else if offered.contains("private_key_jwt") && has_keys {
        AuthMethod::PrivateKeyJwt
    } else {
        return Err("it offers no way to prove who it is that a document can have");
    };
    let signs = offered.contains("private_key_jwt");
    Ok(Document {
        metadata: Metadata {
            client_name: Some(name),
            redirect_uris: uris.into_iter().map(str::to_owned).collect(),
            token_endpoint_auth_method: method,
            client_uri: None,
            jwks: None,
        },
        keys: inline.filter(|_| signs),
        jwks_uri: jwks_uri.filter(|_| signs),
        domain: url.host_str().unwrap_or_default().to_owned(),
    })
}

type Keys = (Option<Arc<dyn KeySource>>, Option<String>);

/// Where its keys are: in itself, or at its own host.
fn keys(says: &Map<String, Value>, url: &Url) -> Result<Keys, &'static str> {
    let inline = says.get("jwks").filter(|jwks| !jwks.is_null());
    let inline = inline.map(|jwks| Fixed::of(jwks).map_err(|_| "its keys are none, or not public ones"));
    let inline = inline.transpose()?.filter(|keys| !keys.is_empty());
    let uri = match says.get("jwks_uri").filter(|uri| !uri.is_null()) {
        Some(uri) => {
            let uri = uri.as_str().ok_or("its jwks_uri is no text")?;
            let parsed = Url::parse(uri).ok().filter(|parsed| parsed.origin() == url.origin());
            let parsed = parsed.filter(|parsed| parsed.username().is_empty() && parsed.password().is_none());
            Some(parsed.ok_or("its keys are at another host")?.to_string())
        }
        None => None,
    };
    match inline {
        Some(keys) => Ok((Some(Arc::new(keys)), None)),
        None => Ok((None, uri)),
    }
}

fn strings<'v>(says: &'v Map<String, Value>, name: &str) -> Result<Option<BTreeSet<&'v str>>, &'static str> {
    let Some(value) = says.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let all = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
    all.map(Some).ok_or("a list in it is none of texts")
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use drawbridge_auth::fetch::NotFetched;
    use http::{Request, Response};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const URL: &str = "https://claude.ai/client.json";
    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// A document at each URL, or nothing; counts who asks.
    #[derive(Default)]
    struct Web {
        answer: Mutex<Option<(Value, &'static str)>>,
        asked: Mutex<usize>,
    }

    impl Web {
        fn answers(&self, document: Value, cache_control: &'static str) {
            *self.answer.lock() = Some((document, cache_control));
        }
    }

    #[async_trait]
    impl Fetch for Web {
        async fn fetch(&self, _: Request<Vec<u8>>, _: usize) -> Result<Response<Vec<u8>>, NotFetched> {
            *self.asked.lock() += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
            let answer = self.answer.lock().clone();
            let (document, cache_control) = answer.ok_or_else(|| NotFetched("away".to_owned()))?;
            let response = Response::builder().header("content-type", "application/json");
            Ok(response.header("cache-control", cache_control).body(document.to_string().into()).unwrap())
        }
    }

    fn document(redirect: &str) -> Value {
        json!({ "client_id": URL, "client_name": "a client", "redirect_uris": [redirect] })
    }

    fn documents(policy: Registration) -> (Arc<Web>, ClientDocuments) {
        let web = Arc::new(Web::default());
        web.answers(document("http://localhost/cb"), "");
        let options = ClientDocumentOptions { policy, hosts: vec!["app.example.com".to_owned()] };
        (web.clone(), ClientDocuments::new(options, web, Tasks::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_is_fetched_again_when_its_server_says_so_within_limits() {
        for (says, at_least, at_most) in [
            ("", 59 * MINUTE, 61 * MINUTE),
            ("no-store", 4 * MINUTE, 6 * MINUTE),
            ("max-age=1", 4 * MINUTE, 6 * MINUTE),
            ("max-age=7200", 119 * MINUTE, 121 * MINUTE),
            ("max-age=99999999", 23 * 60 * MINUTE, 25 * 60 * MINUTE),
        ] {
            let (web, all) = documents(Registration::Curated);
            web.answers(document("http://localhost/cb"), says);
            assert!(!all.is_fresh(URL));
            all.client(URL).await.unwrap();
            tokio::time::advance(at_least).await;
            all.client(URL).await.unwrap();
            assert!(all.is_fresh(URL) && *web.asked.lock() == 1, "{says}");
            tokio::time::advance(at_most - at_least).await;
            all.client(URL).await.unwrap();
            assert_eq!(*web.asked.lock(), 2, "{says}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn t66_while_its_server_is_away_a_document_is_used_for_a_week() {
        let (web, all) = documents(Registration::Curated);
        all.client(URL).await.unwrap();
        *web.answer.lock() = None;
        tokio::time::advance(2 * DAY).await;
        assert!(all.client(URL).await.is_ok());
        assert_eq!(*web.asked.lock(), 2);
        // It is not asked again at once.
        assert!(all.client(URL).await.is_ok());
        assert_eq!(*web.asked.lock(), 2);
        tokio::time::advance(MINUTE).await;
        assert!(all.client(URL).await.is_ok());
        assert_eq!(*web.asked.lock(), 3);
        // What it says when it is back counts at once.
        web.answers(document("http://localhost/other"), "");
        tokio::time::advance(MINUTE).await;
        let client = all.client(URL).await.unwrap();
        assert!(!client.may_be_answered_at("http://localhost/cb"));
        *web.answer.lock() = None;
        tokio::time::advance(8 * DAY).await;
        assert!(all.client(URL).await.is_err() && all.cached(URL).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_that_is_wrong_now_was_right_before_in_vain() {
        let (web, all) = documents(Registration::Curated);
        all.client(URL).await.unwrap();
        web.answers(json!({ "client_id": "https://claude.ai/other" }), "");
        tokio::time::advance(2 * DAY).await;
        assert!(matches!(all.client(URL).await, Err(NoDocument::Unfit(_))));
        assert!(all.cached(URL).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_at_once_asks_once() {
        let (web, all) = documents(Registration::Curated);
        let asks = futures_util::future::join_all((0..20).map(|_| all.client(URL))).await;
        assert!(asks.iter().all(Result::is_ok));
        assert_eq!(*web.asked.lock(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_are_kept() {
        let (_, all) = documents(Registration::Open);
        for n in 0..MAX_KEPT + 10 {
            let _ = all.client(&format!("https://a.example/{n}")).await;
        }
        assert_eq!(all.slots.lock().len(), MAX_KEPT);
    }

    #[test]
    fn the_policy_says_whose_documents_are_looked_at() {
        let (_, curated) = documents(Registration::Curated);
        let (_, open) = documents(Registration::Open);
        let (_, closed) = documents(Registration::Closed);
        for (url, is_known) in [
            ("https://claude.ai/oauth/mcp-oauth-client-metadata", true),
            ("https://chatgpt.com/oauth/codex", true),
            ("https://vscode.dev/oauth/client-metadata.json", true),
            ("https://opencode.ai/oauth/opencode/client.json", true),
            ("https://zed.dev/oauth/client-metadata.json", true),
            ("https://github.com/copilot/cli/client-metadata.json", true),
            ("https://app.example.com/client", true),
            ("https://github.com/other/client", false),
            ("https://b.example/client", false),
            ("https://x.claude.ai/client", false),
        ] {
            assert_eq!(curated.may_be(url), is_known, "{url}");
            assert!(open.may_be(url) && !closed.may_be(url), "{url}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_taken_for_a_url_is_one_in_its_normal_form(rest in "[a-z0-9./%@:?#\\\\\\[\\]-]{0,40}") {
            let id = format!("https://{rest}");
            if let Some(url) = parse(&id) {
                prop_assert_eq!(url.as_str(), &id);
                prop_assert!(matches!(url.host(), Some(Host::Domain(_))) && url.port().is_none());
                prop_assert!(url.path().len() > 1 && url.query().is_none() && url.username().is_empty());
            }
        }

        #[test]
        fn no_document_makes_it_panic(name in "\\PC{0,20}", uri in "\\PC{0,40}", method in "\\PC{0,20}") {
            let value = json!({ "client_id": URL, "client_name": name, "redirect_uris": [uri],
                "token_endpoint_auth_method": method, "jwks": { "keys": [{ "kty": method }] } });
            let _ = read(URL, &value);
        }
    }
}
