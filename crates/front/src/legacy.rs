//! The face of the era with sessions (MCP 2024-11-05 to 2025-11-25).
//!
//! A session id is a sealed handle that holds all that `initialize` agreed on ([`handle`]), so nothing is stored
//! for a session until its first call. From then on [`session`] keeps what belongs to it on this instance:
//! conversations with backends, calls in flight, asks that wait for an answer, the standalone stream. All of it
//! can be lost: a genuine id brings the session back.

mod calls;
mod downgrade;
mod encode;
pub mod handle;
pub(crate) mod http;
mod resume;
pub mod session;
pub(crate) mod sse;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drawbridge_core::event_log::{EventRing, SessionKey};
use drawbridge_core::fault::Bounded;
use drawbridge_core::revocation::Revocations;
use drawbridge_core::seal::KeyRing;
use drawbridge_core::{Endpoint, Fault, Tasks};
use parking_lot::Mutex;

use crate::options::FrontOptions;
use handle::{Handles, SESSION_LIFETIME};
use session::Session;

/// What the face keeps.
pub struct Legacy {
    handles: Handles,
    sessions: Mutex<HashMap<Arc<str>, Arc<Session>, ahash::RandomState>>,
    connections: sse::Connections,
    events: Arc<EventRing>,
    revocations: Arc<dyn Revocations>,
    tasks: Tasks,
    /// Names this run of this instance in event ids and asks.
    instance: Arc<str>,
    max_sessions: usize,
    session_idle: Duration,
}

impl Legacy {
    pub(crate) fn new(
        options: &FrontOptions,
        keys: Arc<KeyRing>,
        events: Arc<EventRing>,
        revocations: Arc<dyn Revocations>,
        tasks: Tasks,
    ) -> Self {
        Self {
            handles: Handles::new(keys),
            sessions: Mutex::default(),
            connections: sse::Connections::default(),
            events,
            revocations,
            tasks,
            instance: Arc::from(format!("{:08x}", rand::random::<u32>())),
            max_sessions: options.max_sessions,
            session_idle: options.session_idle,
        }
    }

    /// The session of a genuine id of this endpoint. One that this instance does not know is made, but not kept:
    /// see [`Legacy::keep`].
    pub(crate) fn find(&self, endpoint: &Arc<Endpoint>, id: &str) -> Result<Option<Arc<Session>>, Fault> {
        let known = self.sessions.lock().get(id).cloned();
        if let Some(session) = known {
            return Ok(session.belongs_to(endpoint).then_some(session));
        }
        let name = endpoint.name().map(|n| n.as_str().to_owned()).unwrap_or_default();
        let Some(client) = self.handles.open(id, &name) else { return Ok(None) };
        let key = handle::key(id);
        if self.revocations.is_revoked(&key) {
            return Ok(None);
        }
        let client = Arc::new(client);
        Ok(Some(Session::new(key, client, endpoint.clone(), self.instance.clone(), self.events.clone())))
    }

    /// Keeps a session on this instance, since something of it has to be remembered. Returns the one that is kept,
    /// which is another if two requests brought it back at once.
    pub(crate) fn keep(&self, id: &str, session: Arc<Session>) -> Result<Arc<Session>, Fault> {
        let mut sessions = self.sessions.lock();
        if let Some(kept) = sessions.get(id) {
            return Ok(kept.clone());
        }
        if sessions.len() >= self.max_sessions && !evict(&mut sessions, &self.tasks) {
            return Err(Fault::Busy { what: Bounded::Sessions, limit: self.max_sessions });
        }
        sessions.insert(Arc::from(id), session.clone());
        Ok(session)
    }

    /// Ends a session for good.
    pub(crate) async fn end(&self, id: &str, key: SessionKey) {
        if let Err(e) = self.revocations.revoke(key, SESSION_LIFETIME).await {
            tracing::warn!("other instances hear later that a session was ended: {e}");
        }
        let session = self.sessions.lock().remove(id);
        if let Some(session) = session {
            session.end_streams();
            self.tasks.spawn("end session", async move { session.close().await });
        }
    }

    /// Drops what was not used for long.
    pub(crate) fn sweep(&self) {
        let idle: Vec<Arc<Session>> = {
            let mut sessions = self.sessions.lock();
            let old: Vec<Arc<str>> = sessions
                .iter()
                .filter(|(_, session)| session.idle_for().is_some_and(|idle| idle >= self.session_idle))
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
                session.close().await;
            }
        });
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions.lock().len()
    }

    pub(crate) async fn close(&self) {
        let sessions: Vec<_> = self.sessions.lock().drain().map(|(_, session)| session).collect();
        let ended = sessions.iter().map(|session| session.close());
        let _ = tokio::time::timeout(Duration::from_secs(5), futures_util::future::join_all(ended)).await;
    }
}

/// Drops the session that was idle for longest. Returns whether there was one.
fn evict(sessions: &mut HashMap<Arc<str>, Arc<Session>, ahash::RandomState>, tasks: &Tasks) -> bool {
    let oldest =
        sessions.iter().filter_map(|(id, s)| Some((s.idle_for()?, id))).max_by_key(|(idle, _)| *idle);
    let Some(id) = oldest.map(|(_, id)| id.clone()) else { return false };
    if let Some(session) = sessions.remove(&id) {
        tasks.spawn("end session", async move { session.close().await });
    }
    true
}
