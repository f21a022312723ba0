//! What a backend said about itself, by client profile; and the sessions that were opened to hear it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Events};
use drawbridge_core::{Client, Conversation, Description, Fault, ProfileKey, Tasks};
use parking_lot::Mutex;

use crate::fleet::Home;
use crate::shared_session::SharedSession;

/// A conversation that starts with a handshake.
#[async_trait]
pub(crate) trait LegacyConversation: Replaceable {
    /// Shakes hands now, if it is not done yet.
    async fn handshake(self: Arc<Self>) -> Result<Arc<Description>, Fault>;

    /// Gives what comes outside of calls to `sink`.
    fn attach(&self, sink: Weak<dyn Unsolicited>);

    /// Receives what comes outside of calls from now on, whatever happens to the way there, until
    /// [`Conversation::stop_listening`]. Resolves once that is so.
    async fn hear(self: Arc<Self>) -> Result<Arc<Description>, Fault>;

    /// From now on it is the one that all instances find at `home`. To be called before its first call.
    fn settle(self: Arc<Self>, _home: Home) {}
}

/// A conversation whose backend may have been replaced by one that it is no way to.
pub(crate) trait Replaceable: Conversation {
    /// Like [`Conversation::call`], for callers who know another way if the call is `refused`.
    fn call_or_refuse(self: Arc<Self>, call: Call, refused: Refused) -> Events;
}

/// Whether a backend has turned a call down, and done nothing, because it doesn't speak this dialect any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refused(Arc<AtomicBool>);

impl Refused {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

struct Spare {
    client: Arc<Client>,
    session: Arc<dyn LegacyConversation>,
    since: Instant,
}

/// Sessions that nobody has taken are ended after this long.
const SPARE_TIME: Duration = Duration::from_secs(60);
const MAX_SPARES: usize = 8;
const MAX_PROFILES: usize = 1024;
/// What a backend says is believed for at least this long, so that a burst of clients asks once.
const MIN_TTL: Duration = Duration::from_secs(1);

/// The cache of a backend's descriptions.
pub(crate) struct Described {
    ttl: Duration,
    known: Mutex<HashMap<ProfileKey, (Arc<Description>, Instant)>>,
    asking: tokio::sync::Mutex<()>,
    spares: Arc<Mutex<Vec<Spare>>>,
}

impl Described {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, known: Mutex::default(), asking: tokio::sync::Mutex::default(), spares: Arc::default() }
    }

    fn fresh(&self, key: &ProfileKey) -> Option<Arc<Description>> {
        let known = self.known.lock();
        let (description, until) = known.get(key)?;
        (Instant::now() < *until).then(|| description.clone())
    }

    /// The description for `client`, by asking at most once at a time.
    pub(crate) async fn get<F>(
        &self,
        client: &Arc<Client>,
        ask: impl FnOnce() -> F,
    ) -> Result<Arc<Description>, Fault>
    where
        F: Future<Output = Result<Arc<Description>, Fault>>,
    {
        let key = client.profile();
        if let Some(description) = self.fresh(&key) {
            return Ok(description);
        }
        let _turn = self.asking.lock().await;
        if let Some(description) = self.fresh(&key) {
            return Ok(description);
        }
        let description = ask().await?;
        self.learn(key, &description);
        Ok(description)
    }

    /// Notes what was heard, also in the handshakes of ordinary sessions.
    pub(crate) fn learn(&self, key: ProfileKey, description: &Arc<Description>) {
        let ttl = description.cache.as_ref().map_or(self.ttl, |(until, _)| {
            until.saturating_duration_since(Instant::now()).clamp(MIN_TTL, self.ttl.max(MIN_TTL))
        });
        let mut known = self.known.lock();
        if known.len() >= MAX_PROFILES {
            let now = Instant::now();
            known.retain(|_, (_, until)| *until > now);
            if known.len() >= MAX_PROFILES {
                known.clear();
            }
        }
        known.insert(key, (description.clone(), Instant::now() + ttl));
    }

    /// Keeps a session for the next client that is like `client` in everything.
    pub(crate) fn keep_spare(
        &self,
        client: &Arc<Client>,
        session: Arc<dyn LegacyConversation>,
        tasks: &Tasks,
    ) {
        let since = Instant::now();
        self.spares.lock().push(Spare { client: client.clone(), session, since });
        let spares = self.spares.clone();
        let draining = tasks.drain_token().clone();
        tasks.spawn("end spare session", async move {
            let _ = tokio::time::timeout(SPARE_TIME, draining.cancelled()).await;
            let old: Vec<_> = {
                let mut spares = spares.lock();
                let surplus = spares.len().saturating_sub(MAX_SPARES);
                let mut index = 0;
                spares
                    .extract_if(.., |spare| {
                        index += 1;
                        spare.since <= since || index <= surplus
                    })
                    .collect()
            };
            for spare in old {
                spare.session.close().await;
            }
        });
    }

    /// A session that was opened for a client like `client` and not used yet.
    pub(crate) fn take_spare(&self, client: &Client) -> Option<Arc<dyn LegacyConversation>> {
        let mut spares = self.spares.lock();
        let fits =
            |spare: &Spare| spare.client.info == client.info && spare.client.profile() == client.profile();
        let at = spares.iter().position(fits)?;
        Some(spares.swap_remove(at).session)
    }

    pub(crate) async fn close(&self) {
        let spares = std::mem::take(&mut *self.spares.lock());
        for spare in spares {
            spare.session.close().await;
        }
    }
}

/// Sessions that clients without sessions of their own share, by profile.
#[derive(Default)]
pub(crate) struct SharedSessions {
    sessions: Mutex<HashMap<ProfileKey, Shared>>,
    /// Hears of changes in all of them.
    pub(crate) memory: OnceLock<Weak<dyn Unsolicited>>,
}

struct Shared {
    session: Arc<SharedSession>,
    used: Instant,
}

/// At most this many are kept, and those on which something goes on; the one used least recently is ended first.
const MAX_SHARED_SESSIONS: usize = 256;

impl SharedSessions {
    /// The session for clients like `client`, made by `make` if there is none.
    pub(crate) fn find(
        &self,
        client: &Arc<Client>,
        tasks: &Tasks,
        make: impl FnOnce(&Arc<Client>) -> Arc<dyn LegacyConversation>,
    ) -> Arc<SharedSession> {
        let mut sessions = self.sessions.lock();
        let key = client.profile();
        if let Some(shared) = sessions.get_mut(&key) {
            shared.used = Instant::now();
            return shared.session.clone();
        }
        if sessions.len() >= MAX_SHARED_SESSIONS
            && let Some(oldest) = oldest(&sessions)
            && let Some(old) = sessions.remove(&oldest)
        {
            tasks.spawn("end shared session", async move { old.session.leave().await });
        }
        let session =
            SharedSession::new(make(client), client.clone(), tasks.clone(), self.memory.get().cloned());
        sessions.insert(key, Shared { session: session.clone(), used: Instant::now() });
        session
    }

    /// Lets go of a session that is of no use any more.
    pub(crate) fn forget(&self, client: &Client) {
        self.sessions.lock().remove(&client.profile());
    }

    pub(crate) async fn close(&self) {
        let sessions = std::mem::take(&mut *self.sessions.lock());
        for shared in sessions.into_values() {
            shared.session.leave().await;
        }
    }
}

/// The session used least recently of those on which nothing goes on: to end another would end a call of its clients.
fn oldest(sessions: &HashMap<ProfileKey, Shared>) -> Option<ProfileKey> {
    let idle = sessions.iter().filter(|(_, shared)| !shared.session.is_busy());
    idle.min_by_key(|(_, shared)| shared.used).map(|(key, _)| key.clone())
}
