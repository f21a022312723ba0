//! A session that several instances of the gateway use: found by one in what another has left, and one stream of
//! unasked messages for all.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::call::{Ask, Event, Events, Resume, Round};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fleet::relay::{self, frame, unframe};
use drawbridge_core::fleet::{Channel, Held, Ownership, Service};
use drawbridge_core::state::{InstanceId, NotSent, Unavailable};
use drawbridge_core::{Fault, Tasks};
use drawbridge_wire::{Message, ProtocolVersion};
use futures_util::StreamExt as _;
use http::HeaderValue;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{HttpSession, Opened};
use crate::answer;
use crate::fleet::{Home, KEPT_TIME, Said};
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
    /// It had a stream of its own while shared state was away, so what came there was heard by nobody else.
    #[serde(default)]
    was_apart: bool,
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
        if asked.was_apart
            && let Some(opened) = session.opened.lock().clone()
        {
            session.everything(&opened).into_iter().for_each(|message| session.told(Event::Notify(message)));
        }
        // The first word says that nothing is missed from now on.
        let begun = futures_util::stream::once(std::future::ready(Event::Begun));
        relay::tell(channel, Box::pin(begun.chain(events))).await;
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
    /// Shared state was away; until then it is not asked again, and the session is this instance's alone.
    apart_until: Option<Instant>,
}

/// How long a session that could not be shared goes on without another try.
const APART: Duration = Duration::from_secs(5);
/// How often a record that others change is tried to be changed.
const TRIES: usize = 8;

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
        let is_apart = || common.apart_until.is_some_and(|until| Instant::now() < until);
        common.home.is_none() || common.is_settled || is_apart()
    }

    /// The session could not be shared. It is better than none, and shared when that is possible again.
    fn stay_apart(&self, why: &Unavailable) {
        tracing::warn!(backend.name = %self.shared.options.name, "a session is not shared with other instances: {why}");
        self.common.lock().apart_until = Some(Instant::now() + APART);
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
                let opened = self.fresh(fresh).await?;
                self.stay_apart(&e);
                return Ok(opened);
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
            Err(e) => self.stay_apart(&e),
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
        if let Ok(response) = self.shared.delete(&self.client.principal, &opened.headers()).await {
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

    /// Tells the other instances what the client has set with `request`, on top of what they have set.
    pub(super) fn share_settings(self: &Arc<Self>, request: &Message) {
        let Some(home) = self.home() else { return };
        let (session, request) = (self.clone(), request.clone());
        self.shared.tasks.spawn_within("share settings", async move {
            let Some(opened) = session.opened.lock().clone() else { return };
            for _ in 0..TRIES {
                let Some(seen) = session.seen(&home, &opened).await else { return };
                session.restore.set(&request);
                let Some(new) = session.record(&opened) else { return };
                match home.write(Some(&seen), new.clone()).await {
                    Ok(kept) if kept == new => return session.common.lock().record = Some(new),
                    // Another instance was faster: what it has set is to be kept too.
                    Ok(_) => {}
                    Err(e) => {
                        return tracing::warn!("what was set in a session is known to one instance: {e}");
                    }
                }
            }
        });
    }

    /// What is known to all of the session that is open; what was set in it is remembered.
    async fn seen(&self, home: &Home, opened: &Opened) -> Option<Bytes> {
        let seen = home.read().await.ok()??;
        let record: Record = serde_json::from_slice(&seen).ok()?;
        if opened.id.as_ref()? != record.id.as_str() {
            return None;
        }
        self.restore.load(&record.set);
        Some(seen)
    }

    /// The session that instances have in common, if there is one.
    pub(super) async fn opened_elsewhere(&self, home: &Home) -> Option<Arc<Opened>> {
        let text = home.read().await.ok()??;
        self.adopt(&text, None)
    }

    /// Whether the session is this instance's to end: nobody else does.
    pub(super) async fn is_ours_to_end(&self, opened: &Opened) -> bool {
        let (home, is_shared) = {
            let common = self.common.lock();
            (common.home.clone(), common.is_settled && opened.id.is_some())
        };
        let Some(home) = home.filter(|_| is_shared) else { return true };
        for _ in 0..TRIES {
            // It is another session's by now, or ended.
            let Some(seen) = self.seen(&home, opened).await else { return false };
            match home.remove(&seen).await {
                Ok(true) => return true,
                // Something was set in it meanwhile.
                Ok(false) => {}
                Err(_) => return false,
            }
        }
        false
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
            Ok(Ownership::Theirs(owner)) => self.hear_from(home, owner, opened).await,
            // Without shared state nobody knows who has it; the backend refuses a second one, if it minds.
            Err(_) => self.start_stream(opened, None).await,
        }
    }

    /// Resolves when a stream that was opened without shared state can be shared again: a backend sends each message on
    /// one stream only, and others may listen.
    pub(super) async fn until_shared(&self, is_shared: bool) {
        let Some(home) = self.home().filter(|_| !is_shared) else { return std::future::pending().await };
        let leases = &home.peers().state().leases;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if leases.holder(&home.lease("ear")).await.is_ok() {
                self.was_apart.store(true, Ordering::Release);
                return;
            }
        }
    }

    async fn hear_from(self: &Arc<Self>, home: &Home, owner: InstanceId, opened: &Arc<Opened>) {
        let (session, opened, peers) = (self.clone(), opened.clone(), home.peers().clone());
        let (name, key) = (self.shared.options.name.clone(), home.key());
        let listening = self.listening.load(Ordering::Acquire);
        let was_apart = self.was_apart.swap(false, Ordering::AcqRel);
        let frame = frame(&HearFrame { key: home.key().to_string(), listening, was_apart }, b"");
        let service = service(&self.shared);
        let channel = peers.open(&owner, &service, frame).await;
        let mut events = channel.map(|channel| relay::receive(channel, |_| Event::Fail(Fault::Draining)));
        let mut first = None;
        if let Ok(events) = &mut events {
            // What the backend asks because of a call must find this instance there.
            first = tokio::time::timeout(super::STREAM_HEAD_TIME, events.next()).await.ok().flatten();
        }
        self.shared.tasks.spawn("hear session", async move {
            let mut was_lost = true;
            let begun = matches!(first, Some(Event::Begun));
            tracing::debug!(backend.name = %name, session.key = %key, instance.id = %owner, begun, listening, "hears through another instance");
            match events.map(|events| (events, first)) {
                Ok((events, Some(Event::Begun))) => {
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
                // It is about to have it, or to be known to be gone.
                Ok(_) | Err(NotSent::Gone(_) | NotSent::Unavailable(_)) => {}
            }
            opened.streaming.store(false, Ordering::Release);
            tracing::debug!(backend.name = %name, session.key = %key, was_lost, "hears no more through another instance");
            if session.listening.load(Ordering::Acquire) {
                if was_lost {
                    session.was_lost.store(true, Ordering::Release);
                    tokio::time::sleep(Duration::from_millis(200)).await;
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

    async fn take_events(&self, mut events: Events) {
        while let Some(event) = events.next().await {
            if event.is_terminal() {
                return;
            }
            self.told_elsewhere(event);
        }
    }

    /// Takes what came unasked on the stream that is here.
    pub(super) fn told(self: &Arc<Self>, event: Event) {
        let Some(event) = self.to_calls(event) else { return };
        let is_listening = self.listening.load(Ordering::Acquire);
        let Some(home) = self.home() else { return self.to_sink(event) };
        let event = match event {
            Event::Asks(round) if !is_listening && !self.ears.is_empty() => return self.offer(round),
            Event::Asks(round) if is_listening => Some(Event::Asks(round)),
            event => self.ears.tell(event, home.is_own()),
        };
        let is_wanted_here = is_listening || self.running.load(Ordering::Acquire) > 0;
        let event = match event {
            // The client's stream may be on its way to another instance.
            Some(event) if home.is_own() && !is_wanted_here => self.keep_for_a_while(event),
            event => event,
        };
        if let Some(event) = event {
            self.to_sink(event);
        }
    }

    /// Keeps an event for whoever listens next. An ask that nobody takes is refused by being dropped.
    fn keep_for_a_while(&self, event: Event) -> Option<Event> {
        let given_back = self.ears.keep(event);
        let ears = self.ears.clone();
        self.shared.tasks.spawn("forget events", async move {
            tokio::time::sleep(KEPT_TIME).await;
            ears.forget_old();
        });
        given_back
    }

    /// Takes what came unasked at the instance that has the stream. An ask that nobody here is for is given back by
    /// dropping it.
    fn told_elsewhere(&self, event: Event) {
        match self.to_calls(event) {
            Some(Event::Asks(round)) if self.listening.load(Ordering::Acquire) => {
                self.to_sink(Event::Asks(round));
            }
            Some(Event::Asks(_)) | None => {}
            Some(event) => self.to_sink(event),
        }
    }

    /// Gives an event to the call of this instance that it belongs to; gives it back if there is none.
    fn to_calls(&self, event: Event) -> Option<Event> {
        match event {
            Event::Withdraw(key) if self.calls.withdraw(key) => None,
            Event::Asks(round) => {
                let key = round.asks.first().map(|ask| ask.key)?;
                let is_shared = self.sink().is_some_and(|sink| sink.is_shared());
                self.calls.ask(round, key, is_shared).map(Event::Asks)
            }
            event => Some(event),
        }
    }

    fn to_sink(&self, event: Event) {
        match (self.sink(), event) {
            (Some(sink), event) => sink.deliver(event),
            (None, Event::Asks(round)) => legacy::refuse_round(*round),
            (None, _) => {}
        }
    }

    /// Offers an ask to the instances that hear through this one, until one of them has the call that it is from, or the
    /// client's stream.
    fn offer(self: &Arc<Self>, mut round: Box<Round>) {
        let session = self.clone();
        self.shared.tasks.spawn("offer ask", async move {
            for ear in session.ears.all() {
                let (copy, answers) = copy_of(&round);
                if ear.try_send(Event::Asks(Box::new(copy))).is_err() {
                    continue;
                }
                let mut is_taken = false;
                for (ask, answer) in round.asks.iter_mut().zip(answers) {
                    if let Ok(answer) = answer.await {
                        is_taken = true;
                        if let Some(reply) = ask.reply.take() {
                            // The backend may have gone.
                            reply.send(answer);
                        }
                    }
                }
                if is_taken {
                    return;
                }
            }
            session.to_sink(Event::Asks(round));
        });
    }
}

/// The same asks, with channels of their own.
fn copy_of(round: &Round) -> (Round, Vec<oneshot::Receiver<Message>>) {
    let (mut asks, mut answers) = (smallvec::SmallVec::new(), Vec::new());
    for ask in &round.asks {
        let (reply, answer) = oneshot::channel();
        asks.push(Ask { key: ask.key, request: ask.request.clone(), reply: Some(reply.into()) });
        answers.push(answer);
    }
    (Round { asks, resume: Resume::Live, source: None }, answers)
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
