//! Sessions at backends that all instances of the gateway share.
//!
//! A session over Streamable HTTP has no owner: whoever knows its id can post. [`Home`] is where instances find it. Only
//! its stream of unasked messages is one instance's, under a lease; others hear through that one ([`Ears`]).
//! What is bound to a connection or a process is one instance's as a whole ([`owned`]).

pub(crate) mod board;
pub(crate) mod owned;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::call::{Event, Events};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fleet::Peers;
use drawbridge_core::state::Unavailable;
use drawbridge_core::{BackendName, Client, Description, Tasks};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::options::Options;

/// What is known of a session is kept for this long after it is idle.
const SLACK: Duration = Duration::from_secs(3600);
/// A session in use is said to be so at most this often.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

/// Where all instances find a session at a backend.
pub(crate) struct Home {
    peers: Peers,
    backend: BackendName,
    key: SessionKey,
    is_own: bool,
    idle: Duration,
    touched: Mutex<Instant>,
}

impl Home {
    /// That of a session of one client.
    pub(crate) fn own(options: &Options, key: SessionKey) -> Option<Self> {
        Self::new(options, key, true)
    }

    /// That of a session which clients like `client` share.
    pub(crate) fn shared(options: &Options, client: &Client) -> Option<Self> {
        Self::new(options, SessionKey(client.profile().digest()), false)
    }

    /// There is none where there is just one instance.
    fn new(options: &Options, key: SessionKey, is_own: bool) -> Option<Self> {
        let peers = options.peers.clone();
        let (backend, idle) = (options.name.clone(), options.session_idle);
        let touched = Mutex::new(Instant::now());
        peers.state().is_fleet.then_some(Self { peers, backend, key, is_own, idle, touched })
    }

    pub(crate) fn key(&self) -> SessionKey {
        self.key
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Whether it is the session of one client, which takes each message once.
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// The name of the lease on something of this session.
    pub(crate) fn lease(&self, what: &str) -> String {
        format!("{what}:{}:{}", self.backend, self.key)
    }

    /// Whether another instance has something of this session, as far as that is known.
    pub(crate) async fn is_elsewhere(&self, what: &str) -> bool {
        let holder = self.peers.state().leases.holder(&self.lease(what)).await;
        holder.is_ok_and(|holder| holder.is_some_and(|lease| lease.owner != *self.peers.instance()))
    }

    /// What the fields of calls begin with.
    pub(crate) fn call_field(&self) -> String {
        format!("call:{}", self.backend)
    }

    fn field(&self) -> String {
        format!("backend:{}", self.backend)
    }

    fn touch_every(&self) -> Duration {
        TOUCH_EVERY.min(self.idle / 4)
    }

    fn ttl(&self) -> Duration {
        self.idle + SLACK
    }

    pub(crate) async fn get(&self, field: &str) -> Result<Option<Bytes>, Unavailable> {
        self.peers.state().sessions.get(self.key, field).await
    }

    /// Enters a value in the place of `old`. Returns what is there now.
    pub(crate) async fn put(
        &self,
        field: &str,
        old: Option<&Bytes>,
        new: Bytes,
    ) -> Result<Bytes, Unavailable> {
        let sessions = &self.peers.state().sessions;
        if let Some(old) = old
            && sessions.replace(self.key, field, old, new.clone(), self.ttl()).await?
        {
            return Ok(new);
        }
        sessions.put_if_absent(self.key, field, new, self.ttl()).await
    }

    /// Takes a value out.
    pub(crate) async fn take(&self, field: &str, known: &Bytes) -> Result<bool, Unavailable> {
        self.peers.state().sessions.remove(self.key, field, known).await
    }

    pub(crate) async fn read(&self) -> Result<Option<Bytes>, Unavailable> {
        self.get(&self.field()).await
    }

    /// Enters what is known of the session, in the place of `old`. Returns what is there now.
    pub(crate) async fn write(&self, old: Option<&Bytes>, new: Bytes) -> Result<Bytes, Unavailable> {
        self.put(&self.field(), old, new).await
    }

    /// Takes what is known of the session. Returns whether it was still `known`: then ending it is up to the caller.
    pub(crate) async fn remove(&self, known: &Bytes) -> Result<bool, Unavailable> {
        self.take(&self.field(), known).await
    }

    /// Says now and then that the session is in use.
    pub(crate) fn touch(self: &Arc<Self>, tasks: &Tasks) {
        {
            let mut touched = self.touched.lock();
            if touched.elapsed() < self.touch_every() {
                return;
            }
            *touched = Instant::now();
        }
        let home = self.clone();
        tasks.spawn("touch session", async move {
            // If that fails, the next minute comes.
            let _ = home.peers.state().sessions.touch(home.key, home.ttl()).await;
        });
    }

    /// Whether no instance has used the session for as long as it may be idle.
    pub(crate) async fn is_idle(&self) -> bool {
        let left = self.peers.state().sessions.touch(self.key, self.ttl()).await;
        let Ok(Some(left)) = left else { return false };
        self.ttl().saturating_sub(left) + self.touch_every() >= self.idle
    }
}

/// What a backend said about itself in a handshake, in shared state and between instances.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Said {
    #[serde(rename = "s")]
    server_info: String,
    #[serde(rename = "c")]
    capabilities: String,
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    instructions: Option<String>,
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    meta: Option<String>,
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl From<&Description> for Said {
    fn from(description: &Description) -> Self {
        Self {
            server_info: text(&description.server_info),
            capabilities: text(&description.capabilities),
            instructions: description.instructions.as_ref().map(text),
            meta: description.meta.as_ref().map(text),
        }
    }
}

impl From<Said> for Description {
    fn from(said: Said) -> Self {
        Self {
            server_info: said.server_info.into(),
            capabilities: said.capabilities.into(),
            instructions: said.instructions.map(Into::into),
            meta: said.meta.map(Into::into),
            cache: None,
        }
    }
}

/// How long events wait for a client to listen, and how many.
pub(crate) const KEPT_TIME: Duration = Duration::from_secs(10);
const MAX_KEPT: usize = 64;
/// Events that wait for an instance that hears through this one.
const MAX_WAITING: usize = 256;

struct Ear {
    number: u64,
    /// The client's standalone stream is there.
    listening: bool,
    to: mpsc::Sender<Event>,
}

/// The other instances that hear through this one what comes unasked in a session.
#[derive(Default)]
pub(crate) struct Ears {
    ears: Mutex<Vec<Ear>>,
    /// What nobody has heard yet.
    kept: Mutex<VecDeque<(Instant, Event)>>,
    next: AtomicU64,
}

/// An instance's place among the [`Ears`]. Dropping it ends it.
pub(crate) struct EarGuard {
    ears: Arc<Ears>,
    number: u64,
}

impl Drop for EarGuard {
    fn drop(&mut self) {
        self.ears.ears.lock().retain(|ear| ear.number != self.number);
    }
}

impl Ears {
    /// A place, and what comes there.
    pub(crate) fn enter(self: &Arc<Self>, listening: bool) -> (EarGuard, Events) {
        let (to, events) = mpsc::channel(MAX_WAITING);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if listening {
            for event in self.take_kept() {
                // There is room for all of them.
                drop(to.try_send(event));
            }
        }
        self.ears.lock().push(Ear { number, listening, to });
        (
            EarGuard { ears: self.clone(), number },
            Box::pin(tokio_stream::wrappers::ReceiverStream::new(events)),
        )
    }

    /// The ways to all of them, the latest first.
    pub(crate) fn all(&self) -> Vec<mpsc::Sender<Event>> {
        self.ears.lock().iter().rev().map(|ear| ear.to.clone()).collect()
    }

    /// Keeps an event for a while, for whoever listens next. Gives back what there is no room for.
    pub(crate) fn keep(&self, event: Event) -> Option<Event> {
        self.forget_old();
        let mut kept = self.kept.lock();
        let now = Instant::now();
        if kept.len() >= MAX_KEPT {
            return Some(event);
        }
        kept.push_back((now, event));
        None
    }

    /// Drops what nobody came for in time.
    pub(crate) fn forget_old(&self) {
        let now = Instant::now();
        self.kept.lock().retain(|(since, _)| now.duration_since(*since) < KEPT_TIME);
    }

    /// What was kept, for somebody who listens now.
    pub(crate) fn take_kept(&self) -> Vec<Event> {
        self.forget_old();
        std::mem::take(&mut *self.kept.lock()).into_iter().map(|(_, event)| event).collect()
    }

    /// Ends all of them: they have to hear elsewhere.
    pub(crate) fn end_all(&self) {
        self.ears.lock().clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ears.lock().is_empty()
    }

    /// Whether a client's standalone stream is at one of them.
    pub(crate) fn has_listener(&self) -> bool {
        self.ears.lock().iter().any(|ear| ear.listening)
    }

    /// Gives an event to those that it is for. Gives back what is for this instance too.
    pub(crate) fn tell(&self, event: Event, is_own: bool) -> Option<Event> {
        let ears = self.ears.lock();
        // Whoever is too slow loses it; a lost ask counts as refused.
        let give = |ear: &Ear, event| drop(ear.to.try_send(event));
        match event {
            Event::Notify(message) if is_own => match ears.iter().rfind(|ear| ear.listening) {
                Some(ear) => {
                    give(ear, Event::Notify(message));
                    None
                }
                None => Some(Event::Notify(message)),
            },
            Event::Notify(message) => {
                ears.iter().for_each(|ear| give(ear, Event::Notify(message.clone())));
                Some(Event::Notify(message))
            }
            Event::Asks(round) => match ears.last() {
                Some(ear) => {
                    give(ear, Event::Asks(round));
                    None
                }
                None => Some(Event::Asks(round)),
            },
            Event::Withdraw(key) => {
                ears.iter().for_each(|ear| give(ear, Event::Withdraw(key)));
                Some(Event::Withdraw(key))
            }
            event => Some(event),
        }
    }
}
