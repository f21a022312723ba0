//! A session that several instances of the gateway use: found by one in what another has left, and one stream of
//! unasked messages for all.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::call::{Event, Events};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fleet::relay::{self, frame, unframe};
use drawbridge_core::fleet::{Channel, Held, Ownership, Service};
use drawbridge_core::state::{InstanceId, NotSent};
use drawbridge_core::{Fault, Tasks};
use drawbridge_wire::ProtocolVersion;
use futures_util::StreamExt as _;
use http::HeaderValue;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{HttpSession, Opened};
use crate::answer;
use crate::fleet::{Home, Said};
use crate::http::shared::{COURTESY, Shared};
use crate::legacy::{self, Handshake};

/// What instances know of a session at a backend.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The id that the backend gave it.
    id: String,
    /// The protocol version of the session.
    version: String,
    said: Said,
    /// Requests that set something in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    set: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct HearFrame {
    key: String,
    /// The client's standalone stream is at the instance that asks.
    listening: bool,
}

fn service(shared: &Shared) -> String {
    format!("ear:{}", shared.options.name)
}

/// Lets other instances hear through this one.
pub(in crate::http) fn attend(shared: &Arc<Shared>) {
    let peers = &shared.options.peers;
    if peers.state().is_fleet {
        peers.serve(service(shared), Arc::new(Desk(Arc::downgrade(shared))));
    }
}

struct Desk(Weak<Shared>);

#[async_trait]
impl Service for Desk {
    async fn accept(&self, opening: Bytes, channel: Channel) {
        let Some(shared) = self.0.upgrade() else { return };
        let Some((asked, _)) = unframe::<HearFrame>(&opening) else { return };
        let key = SessionKey::parse(&asked.key);
        let session = key.and_then(|key| shared.sessions.lock().get(&key).and_then(Weak::upgrade));
        let Some(session) = session.filter(|session| session.has_stream()) else {
            relay::elsewhere(&channel).await;
            return;
        };
        let (ear, events) = session.ears.enter(asked.listening);
        session.interest.notify_waiters();
        relay::tell(channel, events).await;
        drop(ear);
        session.interest.notify_waiters();
    }
}

/// What all instances have in common of a session. Empty where there is only one.
#[derive(Default)]
pub(super) struct Common {
    home: Option<Arc<Home>>,
    /// What is known of the session, as it was last seen.
    record: Option<Bytes>,
    /// The session is the one that all use.
    is_settled: bool,
    /// The backend does not know this session any more.
    lost: Option<HeaderValue>,
}

impl HttpSession {
    /// Makes this the session that all instances find at `home`.
    pub(super) fn at_home(self: &Arc<Self>, home: Home) {
        {
            let mut sessions = self.shared.sessions.lock();
            if sessions.len() == sessions.capacity() {
                sessions.retain(|_, session| session.strong_count() > 0);
            }
            sessions.insert(home.key(), Arc::downgrade(self));
        }
        self.common.lock().home = Some(Arc::new(home));
    }

    pub(super) fn home(&self) -> Option<Arc<Home>> {
        self.common.lock().home.clone()
    }

    /// Whether the open session is the one that all use, as far as there are others.
    pub(super) fn is_settled(&self) -> bool {
        let common = self.common.lock();
        common.home.is_none() || common.is_settled
    }

    fn has_stream(&self) -> bool {
        self.opened.lock().as_ref().is_some_and(|opened| opened.has_stream.load(Ordering::Acquire))
    }

    /// The backend does not know the session any more, whoever uses it.
    pub(super) fn note_lost(&self, opened: &Opened) {
        let mut common = self.common.lock();
        common.is_settled = false;
        common.lost.clone_from(&opened.id);
    }

    pub(super) fn touch(&self, tasks: &Tasks) {
        let home = self.common.lock().home.clone();
        if let Some(home) = home {
            home.touch(tasks);
        }
    }

    /// The session that all instances use: another's, or a new one, which may be here already.
    pub(super) async fn open_for_all(
        self: &Arc<Self>,
        home: &Home,
        fresh: Option<Arc<Opened>>,
    ) -> Result<Arc<Opened>, Fault> {
        let seen = match home.read().await {
            Ok(seen) => seen,
            Err(e) => {
                // A session that only this instance knows is better than none; the next call tries again.
                tracing::warn!(backend.name = %self.shared.options.name, "a session is not shared with other instances: {e}");
                return self.fresh(fresh).await;
            }
        };
        let lost = self.common.lock().lost.clone();
        if let Some(text) = &seen
            && let Some(found) = self.adopt(text, lost.as_ref())
        {
            self.end_apart(fresh);
            return Ok(found);
        }
        let opened = self.fresh(fresh).await?;
        let Some(new) = self.record(&opened) else {
            // Without an id there is nothing to find.
            self.common.lock().is_settled = true;
            return Ok(opened);
        };
        match home.write(seen.as_ref(), new.clone()).await {
            Ok(kept) if kept != new => {
                // Another instance was faster.
                if let Some(found) = self.adopt(&kept, lost.as_ref()) {
                    self.end_apart(Some(opened));
                    return Ok(found);
                }
            }
            Ok(_) => {
                let mut common = self.common.lock();
                (common.record, common.is_settled) = (Some(new), true);
            }
            Err(e) => {
                tracing::warn!(backend.name = %self.shared.options.name, "a session is not shared with other instances: {e}");
            }
        }
        Ok(opened)
    }

    async fn fresh(self: &Arc<Self>, fresh: Option<Arc<Opened>>) -> Result<Arc<Opened>, Fault> {
        match fresh {
            Some(opened) => Ok(opened),
            None => self.open_anew().await,
        }
    }

    fn end_apart(self: &Arc<Self>, opened: Option<Arc<Opened>>) {
        let Some(opened) = opened else { return };
        let session = self.clone();
        self.shared.tasks.spawn("end session", async move { session.end_at_backend(&opened).await });
    }

    pub(super) async fn end_at_backend(&self, opened: &Opened) {
        if opened.id.is_none() {
            return;
        }
        if let Ok(response) = self.shared.delete(&opened.headers()).await {
            let _ = tokio::time::timeout(COURTESY, answer::read(response, &self.shared.options)).await;
        }
    }

    /// Takes up the session of a record, unless it is the one that is lost. What is to be set in the next one is
    /// remembered either way.
    fn adopt(&self, text: &Bytes, lost: Option<&HeaderValue>) -> Option<Arc<Opened>> {
        let record: Record = serde_json::from_slice(text).ok()?;
        self.restore.load(&record.set);
        let id = HeaderValue::from_str(&record.id).ok()?;
        if lost == Some(&id) {
            return None;
        }
        let version = ProtocolVersion::parse(&record.version)?;
        let handshake = Handshake { version, description: Arc::new(record.said.into()) };
        let mut common = self.common.lock();
        (common.record, common.is_settled) = (Some(text.clone()), true);
        Some(Arc::new(Opened::new(Some(id), handshake, &self.closed, true)))
    }

    fn record(&self, opened: &Opened) -> Option<Bytes> {
        let record = Record {
            id: opened.id.as_ref()?.to_str().ok()?.to_owned(),
            version: opened.handshake.version.to_string(),
            said: (&*opened.handshake.description).into(),
            set: self.restore.texts(),
        };
        serde_json::to_vec(&record).ok().map(Bytes::from)
    }

    /// Tells the other instances what the client has set.
    pub(super) fn share_settings(self: &Arc<Self>) {
        let Some(home) = self.home() else { return };
        let session = self.clone();
        self.shared.tasks.spawn_within("share settings", async move {
            let Some(opened) = session.opened.lock().clone() else { return };
            let Some(new) = session.record(&opened) else { return };
            let old = session.common.lock().record.clone();
            if let Ok(kept) = home.write(old.as_ref(), new).await {
                session.common.lock().record = Some(kept);
            }
        });
    }

    /// Whether the session is this instance's to end: nobody else goes on with it.
    pub(super) async fn is_ours_to_end(&self) -> bool {
        let (home, record) = {
            let common = self.common.lock();
            (common.home.clone(), common.record.clone())
        };
        match home.zip(record) {
            Some((home, record)) => home.remove(&record).await.unwrap_or(false),
            None => true,
        }
    }

    /// Opens the stream of unasked messages, or hears through the instance that has it.
    pub(super) async fn start_shared_stream(self: &Arc<Self>, home: &Home, opened: &Arc<Opened>) {
        let peers = home.peers();
        match peers.own(&home.lease("ear")).await {
            Ok(Ownership::Mine { held, taken_over }) => {
                self.start_stream(opened, Some(held)).await;
                if taken_over {
                    self.tell_everything(opened);
                }
            }
            Ok(Ownership::Theirs(owner)) => self.hear_from(home, owner, opened),
            // Without shared state nobody knows who has it; the backend refuses a second one, if it minds.
            Err(_) => self.start_stream(opened, None).await,
        }
    }

    fn hear_from(self: &Arc<Self>, home: &Home, owner: InstanceId, opened: &Arc<Opened>) {
        let (session, opened, peers) = (self.clone(), opened.clone(), home.peers().clone());
        let listening = self.listening.load(Ordering::Acquire);
        let frame = frame(&HearFrame { key: home.key().to_string(), listening }, b"");
        let service = service(&self.shared);
        self.shared.tasks.spawn("hear session", async move {
            let mut was_lost = true;
            match peers.open(&owner, &service, frame).await {
                Ok(channel) => {
                    let events = relay::receive(channel, |_| Event::Fail(Fault::Draining));
                    let gone = opened.gone.clone();
                    let drain = session.shared.tasks.drain_token().clone();
                    tokio::select! {
                        () = gone.cancelled() => {}
                        () = drain.cancelled() => {}
                        () = session.until_unwanted() => was_lost = false,
                        () = session.until_listening_is_not(listening) => was_lost = false,
                        () = session.take_events(events) => {}
                    }
                }
                Err(NotSent::Gone(_) | NotSent::Unavailable(_)) => {}
            }
            opened.streaming.store(false, Ordering::Release);
            if session.listening.load(Ordering::Acquire) {
                if was_lost {
                    session.was_lost.store(true, Ordering::Release);
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
                session.reopen_for_listeners();
            }
        });
    }

    async fn until_listening_is_not(&self, before: bool) {
        loop {
            let changed = self.interest.notified();
            if self.listening.load(Ordering::Acquire) != before {
                return;
            }
            changed.await;
        }
    }

    async fn take_events(self: &Arc<Self>, mut events: Events) {
        while let Some(event) = events.next().await {
            if event.is_terminal() {
                return;
            }
            self.told(event);
        }
    }

    /// Takes what came unasked, here or at another instance.
    pub(super) fn told(self: &Arc<Self>, event: Event) {
        let event = match event {
            Event::Withdraw(key) if self.calls.withdraw(key) => return,
            Event::Asks(round) => {
                let Some(key) = round.asks.first().map(|ask| ask.key) else { return };
                match self.calls.ask(round, key) {
                    Some(round) => Event::Asks(round),
                    None => return,
                }
            }
            event => event,
        };
        let home = self.home();
        let here = matches!(event, Event::Asks(_)) && self.listening.load(Ordering::Acquire);
        let event = match &home {
            Some(home) if !here => self.ears.tell(event, home.is_own()),
            _ => Some(event),
        };
        match (self.sink(), event) {
            (Some(sink), Some(event)) => sink.deliver(event),
            (None, Some(Event::Asks(round))) => legacy::refuse_round(*round),
            _ => {}
        }
    }
}

/// Resolves when the lease is another instance's.
pub(super) async fn lost(held: Option<&Held>) {
    match held {
        Some(held) => held.lost().cancelled().await,
        None => std::future::pending().await,
    }
}

/// The state of an [`HttpSession`] that all instances have in common.
pub(super) type CommonCell = Mutex<Common>;
