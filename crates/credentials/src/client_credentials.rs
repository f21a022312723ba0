//! Tokens that the gateway gets in its own name (RFC 6749 § 4.4), one for all users of a backend and all instances.
//!
//! ```text
//! a request ─▶ known and fresh? ─▶ send
//!              known and old?   ─▶ send, and renew aside
//!              none             ─▶ renew: shared by another instance? else, who has the lease asks the server
//! 401 ─▶ renew once ─▶ 401 again ─▶ nothing is sent for 30 s
//! ```
//!
//! What is shared is sealed, in the state of the instances under a key that all which the token depends on is in.
//! While that can't be reached, each instance asks for a token of its own.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use bytes::Bytes;
use chrono::Utc;
use drawbridge_auth::fetch::Fetch;
use drawbridge_core::credentials::{Credential, Credentials, Refusal};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::seal::{KeyRing, Purpose};
use drawbridge_core::state::{Lease, SharedState, Unavailable};
use drawbridge_core::{Fault, Principal, Tasks};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::Secret;
use crate::authority::{For, Pins, Site};
use crate::server::{self, Metadata};
use crate::token::{self, ClientIdentity, ClientProof, Grant, NoToken};

/// Where in the shared state a token is.
const FIELD: &str = "token";
/// Whoever asks the server has this long, and no other instance asks meanwhile.
const LEASE: Duration = Duration::from_secs(20);
/// How long an instance waits for another one to have a token.
const PATIENCE: Duration = Duration::from_secs(12);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A token is not used when its end is nearer than this, or a fifth of its life: it has to arrive.
const MARGIN: i64 = 10_000;
/// A token whose end nobody knows is shared for this long.
const UNKNOWN_LIFE: Duration = Duration::from_secs(3600);
/// After a renewed token was refused nothing is sent for this long.
const OPEN: Duration = Duration::from_secs(30);
/// After the server gave no token it is left alone for this long, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Where tokens are.
#[derive(Clone)]
pub enum From {
    /// At this endpoint.
    Endpoint(String),
    /// At the endpoint that this server names.
    Issuer(String),
    /// At the server that the backend named first.
    Backend(Box<(Pins, Site)>),
}

/// How the client shows its secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// As the server's metadata say, by HTTP Basic where they say nothing.
    Any,
    /// By HTTP Basic.
    Basic,
    /// In the form.
    Post,
}

/// What the configuration says.
#[derive(Clone)]
pub struct Options {
    /// Of the backend.
    pub name: String,
    /// Where tokens are.
    pub from: From,
    /// The gateway's id there.
    pub client_id: String,
    /// Its secret.
    pub secret: Secret,
    /// How it is shown.
    pub method: Method,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// What the token is for (RFC 8707); `None`: what the backend says, or nothing.
    pub resource: Option<String>,
}

/// A token as instances share it.
#[derive(Clone, Serialize, Deserialize)]
struct Minted {
    #[serde(rename = "i")]
    id: String,
    #[serde(rename = "a")]
    access: String,
    /// When it was got, in milliseconds since 1970, and until when it is good.
    #[serde(rename = "t")]
    at: i64,
    #[serde(rename = "e", skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
    /// The one before was refused.
    #[serde(rename = "f", default)]
    is_forced: bool,
}

impl Minted {
    fn is_good(&self, now: i64) -> bool {
        self.until.is_none_or(|until| now + MARGIN.min((until - self.at) / 5) < until)
    }

    /// Whether it need not be renewed yet: four fifths of its life are not over, a little less for some than for others.
    fn is_fresh(&self, now: i64) -> bool {
        let Some(until) = self.until else { return true };
        let jitter = i64::from(self.id.as_bytes().first().copied().unwrap_or_default()) % 50;
        now < self.at + (until - self.at) / 1000 * (800 - jitter)
    }

    fn credential(&self) -> Credential {
        Credential::bearer(&self.access, &self.id)
    }
}

#[derive(Default)]
struct Trouble {
    /// Nothing is sent to the backend until then.
    open_until: Option<Instant>,
    /// The server is not asked until then, and why.
    resting: Option<(Instant, Duration, String)>,
}

/// The server that gives tokens.
#[derive(Clone)]
struct Found {
    metadata: Metadata,
    /// Reaches it.
    fetch: Arc<dyn Fetch>,
    /// What its tokens are for, if the backend says that.
    resource: Option<String>,
}

/// Tokens for one backend.
pub struct ClientCredentials(Arc<Inner>);

struct Inner {
    options: Options,
    fetch: Arc<dyn Fetch>,
    ring: Arc<KeyRing>,
    state: SharedState,
    tasks: Tasks,
    key: SessionKey,
    current: ArcSwapOption<Minted>,
    trouble: Mutex<Trouble>,
    server: Mutex<Option<Found>>,
    /// Whoever has it renews.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl ClientCredentials {
    /// Tokens as `options` say, from a server that `fetch` reaches.
    pub fn new(
        options: Options,
        fetch: Arc<dyn Fetch>,
        ring: Arc<KeyRing>,
        state: SharedState,
        tasks: Tasks,
    ) -> Self {
        let key = key(&options);
        Self(Arc::new(Inner {
            options,
            fetch,
            ring,
            state,
            tasks,
            key,
            current: ArcSwapOption::empty(),
            trouble: Mutex::default(),
            server: Mutex::default(),
            turn: Arc::default(),
        }))
    }
}

/// Where instances of the same configuration share a token.
fn key(options: &Options) -> SessionKey {
    let (kind, at) = match &options.from {
        From::Endpoint(url) => ("endpoint", url),
        From::Issuer(url) => ("issuer", url),
        From::Backend(of) => ("backend", &String::from(of.1.url.clone())),
    };
    let resource = options.resource.as_deref().unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update("drawbridge v1 client credentials");
    let parts = [&options.name[..], kind, at, &options.client_id, resource];
    for part in parts.into_iter().chain(options.scopes.iter().map(String::as_str)) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut key = [0; 16];
    key.copy_from_slice(&hash.finalize()[..16]);
    SessionKey(key)
}

fn now() -> i64 {
    Utc::now().timestamp_millis()
}

#[async_trait]
impl Credentials for ClientCredentials {
    async fn find(&self, _whom: &Principal) -> Result<Credential, Fault> {
        let inner = &self.0;
        inner.is_closed()?;
        let now = now();
        match inner.current.load_full() {
            Some(minted) if minted.is_fresh(now) && minted.is_good(now) => Ok(minted.credential()),
            Some(minted) if minted.is_good(now) => {
                inner.renew_aside();
                Ok(minted.credential())
            }
            _ => Ok(inner.renewed(None).await?.credential()),
        }
    }

    async fn refused(
        &self,
        _whom: &Principal,
        credential: &Credential,
        refusal: &Refusal,
    ) -> Result<Option<Credential>, Fault> {
        // Another token would not allow more.
        if refusal.status != 401 {
            return Ok(None);
        }
        let inner = &self.0;
        let current = inner.current.load_full();
        match current {
            Some(current) if current.id != credential.id() && current.is_good(now()) => {
                Ok(Some(current.credential()))
            }
            Some(current) if current.is_forced && now() - current.at < millis(OPEN) => {
                tracing::warn!(
                    backend.name = inner.options.name,
                    "the backend refuses a token that was just renewed; it gets no requests for {} s",
                    OPEN.as_secs()
                );
                inner.trouble.lock().open_until = Some(Instant::now() + OPEN);
                Ok(None)
            }
            _ => Ok(Some(inner.renewed(Some(credential.id().to_owned())).await?.credential())),
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Inner {
    fn no_credential(&self, detail: &str) -> Fault {
        Fault::NoCredential { backend: self.options.name.clone(), detail: detail.to_owned() }
    }

    fn is_closed(&self) -> Result<(), Fault> {
        let open_until = self.trouble.lock().open_until;
        match open_until.filter(|until| Instant::now() < *until) {
            Some(_) => Err(Fault::Refused { backend: self.options.name.clone(), status: 401 }),
            None => Ok(()),
        }
    }

    /// Renews while others use what there is, unless somebody does already.
    fn renew_aside(self: &Arc<Self>) {
        let is_resting =
            self.trouble.lock().resting.as_ref().is_some_and(|(until, ..)| Instant::now() < *until);
        if is_resting {
            return;
        }
        // The task begins later than others come: what it has from here on is the turn itself.
        if let Ok(turn) = self.turn.clone().try_lock_owned() {
            let (inner, asked) = (self.clone(), now());
            self.tasks.spawn("renew a credential", async move {
                if let Err(fault) = inner.with_turn(&turn, None, asked).await {
                    tracing::warn!(backend.name = inner.options.name, error.code = fault.code(), "{fault}");
                }
            });
        }
    }

    /// A token that is not the refused one. Whoever waits may go: the work is not theirs.
    async fn renewed(self: &Arc<Self>, refused: Option<String>) -> Result<Arc<Minted>, Fault> {
        let (told, renewed) = tokio::sync::oneshot::channel();
        let inner = self.clone();
        self.tasks.spawn("get a credential", async move {
            // Nobody may wait any more.
            let _ = told.send(inner.in_turn(refused.as_deref()).await);
        });
        renewed.await.unwrap_or(Err(Fault::Draining))
    }

    async fn in_turn(&self, refused: Option<&str>) -> Result<Arc<Minted>, Fault> {
        let asked = now();
        let turn = self.turn.clone().lock_owned().await;
        self.with_turn(&turn, refused, asked).await
    }

    /// A token that is not the refused one, for whoever has waited for the turn since `asked`.
    async fn with_turn(
        &self,
        _turn: &OwnedMutexGuard<()>,
        refused: Option<&str>,
        asked: i64,
    ) -> Result<Arc<Minted>, Fault> {
        let is_other = |minted: &Minted| refused.is_none_or(|refused| refused != minted.id);
        if let Some(current) = self.current.load_full()
            && is_other(&current)
            && current.is_good(now())
            && (current.is_fresh(now()) || current.at > asked)
        {
            return Ok(current);
        }
        let resting = self.trouble.lock().resting.clone();
        if let Some((_, _, why)) = resting.filter(|(until, ..)| Instant::now() < *until) {
            return Err(self.no_credential(&why));
        }
        let minted = match self.shared_or_own(refused).await {
            Ok(minted) => minted,
            Err(why) => {
                let mut trouble = self.trouble.lock();
                let pause =
                    trouble.resting.take().map_or(BACK_OFF.0, |(_, last, _)| (last * 2).min(BACK_OFF.1));
                trouble.resting = Some((Instant::now() + pause, pause, why.clone()));
                return Err(self.no_credential(&why));
            }
        };
        self.trouble.lock().resting = None;
        let minted = Arc::new(minted);
        self.current.store(Some(minted.clone()));
        Ok(minted)
    }

    /// A token that another instance has got, or one of our own.
    async fn shared_or_own(&self, refused: Option<&str>) -> Result<Minted, String> {
        let until = Instant::now() + PATIENCE;
        let lease_of = format!("credential:{}", self.key);
        loop {
            let taken = match self.shared(refused).await {
                Ok((Some(minted), _)) => return Ok(minted),
                Ok((None, old)) => {
                    let leases = &self.state.leases;
                    leases.acquire(&lease_of, &self.state.instance, LEASE).await.map(|lease| (lease, old))
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok((lease, _)) if lease.owner != self.state.instance => {
                    if Instant::now() >= until {
                        return Err("another instance asks for one and has none yet".to_owned());
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Ok((lease, _)) => return self.own_and_share(refused, &lease_of, &lease).await,
                Err(Unavailable(why)) => {
                    tracing::warn!(
                        backend.name = self.options.name,
                        "a token of this instance alone, since shared state is unavailable: {why}"
                    );
                    return self.own(refused).await.map_err(|why| why.to_string());
                }
            }
        }
    }

    /// The shared token if it is of use, and what is there in any case.
    async fn shared(&self, refused: Option<&str>) -> Result<(Option<Minted>, Option<Bytes>), Unavailable> {
        let there = self.state.sessions.get(self.key, FIELD).await?;
        let minted = there.as_ref().and_then(|sealed| {
            let sealed = std::str::from_utf8(sealed).ok()?;
            let plain = self.ring.open_for(Purpose::Credential, &self.key.to_string(), sealed)?;
            serde_json::from_slice::<Minted>(&plain).ok()
        });
        let now = now();
        let of_use = |minted: &Minted| {
            refused.is_none_or(|refused| refused != minted.id) && minted.is_good(now) && minted.is_fresh(now)
        };
        Ok((minted.filter(of_use), there))
    }

    /// Asks the server, as the one instance that does, and lets the others have it.
    async fn own_and_share(
        &self,
        refused: Option<&str>,
        lease_of: &str,
        lease: &Lease,
    ) -> Result<Minted, String> {
        let result = async {
            // Whoever had the lease before may just have been done.
            if let Ok((Some(minted), _)) = self.shared(refused).await {
                return Ok(minted);
            }
            let minted = self.own(refused).await.map_err(|why| why.to_string())?;
            if let Err(Unavailable(why)) = self.share(&minted).await {
                tracing::warn!(backend.name = self.options.name, "a token can't be shared: {why}");
            }
            Ok(minted)
        }
        .await;
        if let Err(Unavailable(why)) = self.state.leases.release(lease_of, lease).await {
            tracing::debug!("a lease ends by itself: {why}");
        }
        result
    }

    async fn share(&self, minted: &Minted) -> Result<(), Unavailable> {
        let plain = serde_json::to_vec(minted).unwrap_or_default();
        let sealed = self.ring.seal_for(Purpose::Credential, &self.key.to_string(), &plain);
        let life = minted.until.map(|until| u64::try_from(until - now()).unwrap_or_default());
        let ttl = life.map_or(UNKNOWN_LIFE, Duration::from_millis).max(Duration::from_secs(1));
        let (sessions, new) = (&self.state.sessions, Bytes::from(sealed));
        if let Some(old) = sessions.get(self.key, FIELD).await?
            && sessions.replace(self.key, FIELD, &old, new.clone(), ttl).await?
        {
            return Ok(());
        }
        sessions.put_if_absent(self.key, FIELD, new, ttl).await.map(drop)
    }

    /// A token from the server.
    async fn own(&self, refused: Option<&str>) -> Result<Minted, NoToken> {
        let Found { metadata: server, fetch, resource } =
            self.server().await.map_err(NoToken::Unavailable)?;
        let options = &self.options;
        let mut client =
            ClientIdentity::with_secret(&options.client_id, Some(options.secret.clone()), &server);
        match options.method {
            Method::Any => {}
            Method::Basic => client.proof = ClientProof::Basic(options.secret.clone()),
            Method::Post => client.proof = ClientProof::Post(options.secret.clone()),
        }
        let resource = options.resource.as_deref().or(resource.as_deref());
        let asked = token::request(&fetch, &server, &client, Grant::Client, &options.scopes, resource);
        let tokens = asked.await?;
        let at = now();
        tracing::info!(
            backend.name = options.name,
            expires_in_secs = tokens.expires_in.map(|life| life.as_secs()),
            "got a token for the backend"
        );
        Ok(Minted {
            id: format!("{:016x}", rand::random::<u64>()),
            access: tokens.access,
            at,
            until: tokens.expires_in.map(|life| at.saturating_add(millis(life))),
            is_forced: refused.is_some(),
        })
    }

    async fn server(&self) -> Result<Found, String> {
        let own = |metadata| Found { metadata, fetch: self.fetch.clone(), resource: None };
        let known = self.server.lock().clone();
        let found = match (&self.options.from, known) {
            (_, Some(known)) => return Ok(known),
            (From::Endpoint(url), None) => own(Metadata::of_endpoint(url)),
            (From::Issuer(issuer), None) => {
                own(server::metadata(&*self.fetch, issuer).await.map_err(|why| why.to_string())?)
            }
            (From::Backend(of), None) => {
                let (pins, site) = &**of;
                let found = pins.find(site, For::Gateway).await.map_err(|why| why.to_string())?;
                let resource = Some(found.resource).filter(|resource| !resource.is_empty());
                Found { metadata: found.metadata, fetch: found.fetch, resource }
            }
        };
        *self.server.lock() = Some(found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use drawbridge_auth::fetch::NotFetched;
    use drawbridge_core::seal::SealKey;
    use drawbridge_core::state::MemoryState;
    use http::{Request, Response};

    use super::*;

    /// A server that never answers.
    struct Silent;

    #[async_trait]
    impl Fetch for Silent {
        async fn fetch(&self, _: Request<Vec<u8>>, _: usize) -> Result<Response<Vec<u8>>, NotFetched> {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn many_who_find_a_token_old_at_once_have_it_renewed_by_one_task() {
        let options = Options {
            name: "gh".to_owned(),
            from: From::Endpoint("https://id.example/token".to_owned()),
            client_id: "gateway".to_owned(),
            secret: Secret::fixed("secret"),
            method: Method::Any,
            scopes: Vec::new(),
            resource: None,
        };
        let ring = KeyRing::new(&[SealKey { id: "k".to_owned(), secret: [7; 32] }]).unwrap();
        let state = MemoryState::new(1 << 20, Duration::from_secs(60)).instance(false);
        let tasks = Tasks::default();
        let credentials =
            ClientCredentials::new(options, Arc::new(Silent), Arc::new(ring), state, tasks.clone());
        let (at, until) = (now() - 900_000, Some(now() + 100_000));
        let old = Minted { id: "old".to_owned(), access: "token".to_owned(), at, until, is_forced: false };
        credentials.0.current.store(Some(Arc::new(old)));
        for _ in 0..50 {
            assert!(credentials.find(&Principal::anonymous()).await.is_ok(), "nobody waits");
        }
        assert_eq!(tasks.tracker().len(), 1);
        tokio::task::yield_now().await;
        assert!(credentials.find(&Principal::anonymous()).await.is_ok());
        assert_eq!(tasks.tracker().len(), 1);
    }
}
