//! The face of the era with sessions (MCP 2024-11-05 to 2025-11-25).
//!
//! A session id is a sealed handle that holds all that `initialize` agreed on ([`handle`]), so nothing is stored
//! for a session until its first call. From then on [`session`] keeps what belongs to it on this instance:
//! conversations with backends, calls in flight, asks that wait for an answer, the standalone stream. All of it
//! can be lost: a genuine id brings the session back.

mod bound;
mod calls;
mod downgrade;
mod encode;
pub(crate) mod fleet;
pub mod handle;
pub(crate) mod http;
mod overview;
mod resume;
pub mod session;
mod spill;
pub(crate) mod sse;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use drawbridge_core::event_log::{EventRing, SessionKey};
use drawbridge_core::fault::Bounded;
use drawbridge_core::fleet::Peers;
use drawbridge_core::revocation::Revocations;
use drawbridge_core::seal::KeyRing;
use drawbridge_core::{Client, Endpoint, Fault, Principal, Tasks};
use parking_lot::Mutex;

use crate::Endpoints;
use crate::options::FrontOptions;
use handle::{Handles, SESSION_LIFETIME};
pub use overview::SessionOverview;
use session::Session;

/// What the face keeps.
pub struct Legacy {
    handles: Handles,
    sessions: Mutex<HashMap<Arc<str>, Arc<Session>, ahash::RandomState>>,
    /// The same, by key, for what other instances bring.
    by_key: Mutex<HashMap<SessionKey, Known, ahash::RandomState>>,
    connections: sse::Connections,
    events: Arc<EventRing>,
    revocations: Arc<dyn Revocations>,
    tasks: Tasks,
    /// The other instances.
    peers: Peers,
    limits: Mutex<Limits>,
}

/// A session of this instance.
struct Known {
    session: Weak<Session>,
    /// Under which it is kept, unless its connection keeps it.
    id: Option<Arc<str>>,
}

#[derive(Clone, Copy)]
struct Limits {
    max_sessions: usize,
    session_idle: Duration,
}

impl Limits {
    fn of(options: &FrontOptions) -> Self {
        Self { max_sessions: options.max_sessions, session_idle: options.session_idle }
    }
}

impl Legacy {
    pub(crate) fn new(
        options: &FrontOptions,
        keys: Arc<KeyRing>,
        events: Arc<EventRing>,
        tasks: Tasks,
        peers: &Peers,
    ) -> Self {
        Self {
            handles: Handles::new(keys, peers.state().clone()),
            sessions: Mutex::default(),
            by_key: Mutex::default(),
            connections: sse::Connections::default(),
            events,
            revocations: peers.state().revocations.clone(),
            tasks,
            peers: peers.clone(),
            limits: Mutex::new(Limits::of(options)),
        }
    }

    /// Keeps to other limits from now on.
    pub(crate) fn limit(&self, options: &FrontOptions) {
        *self.limits.lock() = Limits::of(options);
    }

    /// Lets all sessions go on at the endpoints that there are now. Those whose endpoint is gone are let go.
    pub(crate) fn follow(&self, endpoints: &Endpoints) {
        let sessions: Vec<_> =
            self.by_key.lock().values().filter_map(|known| known.session.upgrade()).collect();
        for session in sessions {
            let name = session.endpoint().name().map(ToString::to_string);
            match endpoints.get(&name) {
                Some(endpoint) => session.move_to(endpoint, &self.tasks),
                None => {
                    self.remove(session.key);
                    session.retire(&self.tasks);
                }
            }
        }
        self.connections.retire(|name| !endpoints.contains_key(name));
    }

    /// The session of a genuine id of this endpoint and principal; that of another does not exist. One that this instance does not know is made, but not kept:
    /// see [`Legacy::keep`].
    pub(crate) async fn find(
        &self,
        endpoint: &Arc<Endpoint>,
        principal: &Principal,
        id: &str,
    ) -> Result<Option<Arc<Session>>, Fault> {
        let known = self.sessions.lock().get(id).cloned();
        if let Some(session) = known {
            if !session.belongs_to(endpoint) || session.client().principal != *principal {
                return Ok(None);
            }
            session.move_to(endpoint, &self.tasks);
            return Ok(Some(session));
        }
        let name = endpoint.name().map(|n| n.as_str().to_owned()).unwrap_or_default();
        let Some(client) = self.handles.open(id, &name).await? else { return Ok(None) };
        let key = handle::key(id);
        if client.principal != *principal || self.revocations.is_revoked(&key) {
            return Ok(None);
        }
        // The caller's own also says which user it acts for, which the id does not.
        let client = Arc::new(Client { principal: principal.clone(), ..client });
        Ok(Some(Session::new(key, client, endpoint.clone(), self.peers.clone(), self.events.clone())))
    }

    /// Keeps a session on this instance, since something of it has to be remembered. Returns the one that is kept,
    /// which is another if two requests brought it back at once.
    pub(crate) fn keep(&self, id: &str, session: Arc<Session>) -> Result<Arc<Session>, Fault> {
        let limit = self.limits.lock().max_sessions;
        let mut sessions = self.sessions.lock();
        if let Some(kept) = sessions.get(id) {
            return Ok(kept.clone());
        }
        if sessions.len() >= limit && !evict(&mut sessions, &self.tasks) {
            return Err(Fault::Busy { what: Bounded::Sessions, limit });
        }
        let id: Arc<str> = Arc::from(id);
        sessions.insert(id.clone(), session.clone());
        drop(sessions);
        self.enter(&session, Some(id));
        Ok(session)
    }

    /// Lets other instances bring what is for a session, which is kept under `id` or by its connection.
    pub(super) fn enter(&self, session: &Arc<Session>, id: Option<Arc<str>>) {
        let mut by_key = self.by_key.lock();
        if by_key.len() == by_key.capacity() {
            by_key.retain(|_, known| known.session.strong_count() > 0);
        }
        by_key.insert(session.key, Known { session: Arc::downgrade(session), id });
    }

    /// Takes a session out.
    fn remove(&self, key: SessionKey) -> Option<Arc<Session>> {
        let Known { session, id } = self.by_key.lock().remove(&key)?;
        // Here may be the last to keep it.
        let session = session.upgrade();
        if let Some(id) = id {
            self.sessions.lock().remove(&id);
        }
        session
    }

    /// The session on this instance with a key in hexadecimal form.
    fn by_key(&self, key: &str) -> Option<Arc<Session>> {
        self.by_key.lock().get(&SessionKey::parse(key)?)?.session.upgrade()
    }

    /// Lets go of a session that was ended, here or at another instance.
    fn forget(&self, key: SessionKey) {
        let session = self.remove(key);
        if let Some(session) = session {
            session.end_streams();
            self.tasks.spawn("end session", async move { session.close().await });
        }
    }

    /// The same for all that were ended.
    fn forget_revoked(&self) {
        let keys: Vec<SessionKey> = self.by_key.lock().keys().copied().collect();
        keys.into_iter().filter(|key| self.revocations.is_revoked(key)).for_each(|key| self.forget(key));
    }

    /// Ends a session for good, at all instances.
    pub(crate) async fn end(&self, key: SessionKey) {
        if let Err(e) = self.revocations.revoke(key, SESSION_LIFETIME).await {
            tracing::warn!("other instances hear later that a session was ended: {e}");
        }
        self.forget(key);
    }

    /// Drops what was not used for long.
    pub(crate) fn sweep(&self) {
        let limit = self.limits.lock().session_idle;
        let idle: Vec<Arc<Session>> = {
            let mut sessions = self.sessions.lock();
            let old: Vec<Arc<str>> = sessions
                .iter()
                .filter(|(_, session)| session.idle_for().is_some_and(|idle| idle >= limit))
                .map(|(id, _)| id.clone())
                .collect();
            let gone = old.iter().filter_map(|id| sessions.remove(id)).collect();
            if sessions.capacity() > 1024 && sessions.len() < sessions.capacity() / 4 {
                sessions.shrink_to_fit();
            }
            gone
        };
        if idle.is_empty() {
            return;
        }
        self.tasks.spawn("end idle sessions", async move {
            for session in idle {
                session.leave().await;
            }
        });
    }

    /// Up to `most` of the sessions that this instance keeps something for, in the order of their keys, behind the
    /// one with the key `after`.
    pub(crate) fn overview(&self, after: Option<SessionKey>, most: usize) -> Vec<SessionOverview> {
        let mut sessions: Vec<Arc<Session>> =
            self.by_key.lock().values().filter_map(|known| known.session.upgrade()).collect();
        sessions.retain(|session| !session.is_ended() && after.is_none_or(|after| session.key.0 > after.0));
        sessions.sort_unstable_by_key(|session| session.key.0);
        sessions.truncate(most);
        sessions.iter().map(|session| session.overview()).collect()
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions.lock().len()
    }

    pub(crate) async fn close(&self) {
        let sessions: Vec<_> = self.sessions.lock().drain().map(|(_, session)| session).collect();
        let ended = sessions.iter().map(|session| session.leave());
        let _ = tokio::time::timeout(Duration::from_secs(5), futures_util::future::join_all(ended)).await;
    }
}

/// Drops the session that was idle for longest. Returns whether there was one.
fn evict(sessions: &mut HashMap<Arc<str>, Arc<Session>, ahash::RandomState>, tasks: &Tasks) -> bool {
    let oldest =
        sessions.iter().filter_map(|(id, s)| Some((s.idle_for()?, id))).max_by_key(|(idle, _)| *idle);
    let Some(id) = oldest.map(|(_, id)| id.clone()) else { return false };
    if let Some(session) = sessions.remove(&id) {
        tasks.spawn("end session", async move { session.leave().await });
    }
    true
}
