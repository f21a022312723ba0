//! Listening to a stateless backend: one stream of the backend for all clients of one kind, which names what any of them
//! wants. To want something else, another stream is opened before the first is let go.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Emitter, Event, Events, Reply};
use drawbridge_core::fault::Deadline;
use drawbridge_core::{Client, Fault, ProfileKey, Retry, Tasks};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, code, json, method};
use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::future::FutureExt as _;

use super::{Filter, Listeners, MAX_URIS};
use crate::inbox::Inbox;
use crate::modern;

/// Starts a call of the backend.
pub(crate) type Caller = Arc<dyn Fn(Call) -> Events + Send + Sync>;

/// How long a change of a subscription waits for the backend to acknowledge it.
const ACKNOWLEDGE_TIME: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Until something else is wanted.
const FOR_GOOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// Those who listen to one stateless backend, by client profile.
pub(crate) struct Hubs {
    caller: Caller,
    listens: Caller,
    tasks: Tasks,
    hubs: Mutex<HashMap<ProfileKey, Weak<Hub>>>,
}

impl Hubs {
    /// Those who listen to the backend that `caller` calls.
    pub(crate) fn new(caller: Caller, tasks: Tasks) -> Self {
        Self { listens: caller.clone(), caller, tasks, hubs: Mutex::default() }
    }

    /// The same, with another way to open streams.
    pub(crate) fn listening_by(self, listens: Caller) -> Self {
        Self { listens, ..self }
    }

    /// Starts calls of the backend that are not those of one client.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// A place among the listeners like `client`, for what `to` takes.
    pub(crate) fn subscription(&self, client: &Arc<Client>, to: Weak<dyn Unsolicited>) -> Subscription {
        let mut hubs = self.hubs.lock();
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let key = client.profile();
        let hub = hubs.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let hub = Hub::start(self.listens.clone(), client.clone(), &self.tasks);
            hubs.insert(key, Arc::downgrade(&hub));
            hub
        });
        drop(hubs);
        let number = hub.listeners.enter(Filter::default(), to);
        Subscription { hub, number, filter: Mutex::default() }
    }

    /// Runs the listen of a stateless client, until the backend ends it in good order or turns out not to be stateless
    /// (any more). A stream that is lost is opened again: then all of it may have changed.
    pub(crate) async fn listen(&self, emit: &Emitter, call: &Call) -> Event {
        let wanted = Filter::read(call.request.raw(Field::Notifications).unwrap_or(b"{}"));
        let inbox = Arc::<Inbox>::default();
        let to: Weak<dyn Unsolicited> = Arc::downgrade(&(inbox.clone() as Arc<dyn Unsolicited>));
        let subscription = self.subscription(&call.client, to);
        let change = subscription.change(|filter| filter.clone_from(&wanted));
        let mut now = subscription.hub.now.clone();
        let heard = now.wait_for(|now| now.change >= change).await.map(|now| now.clone());
        // Only a gateway that stops has nobody who follows.
        let Ok(heard) = heard else { return Event::Fail(Fault::Draining) };
        let Now { asked, honoured, refusal, ends, .. } = heard;
        if let Some(refusal) = refusal.filter(|_| !wanted.without(&asked).is_empty()) {
            return refusal.into();
        }
        let honoured = wanted.in_common(&honoured);
        inbox.stands_for(honoured.clone());
        emit.emit(modern::acknowledged(&honoured.write())).await;
        let ended = now.wait_for(|now| now.ends > ends).map(|now| now.ok()?.end.clone());
        let end = inbox.beside(emit, ended).await;
        end.map_or(Event::Fail(Fault::Draining), |reply| Event::Done(Reply::clone(&reply)))
    }
}

/// Why a stream was not opened.
#[derive(Debug, Clone)]
enum Refusal {
    /// The backend answered otherwise than by acknowledging.
    Answer(Arc<Reply>),
    Fault(Fault),
}

impl Refusal {
    /// Whether it would be the same a moment later.
    fn is_final(&self) -> bool {
        match self {
            Self::Answer(reply) => matches!(
                reply.message.error_code(),
                code::METHOD_NOT_FOUND | code::INVALID_PARAMS | code::MISSING_CLIENT_CAPABILITY
            ),
            Self::Fault(fault) => fault.retry() == Retry::Useless,
        }
    }
}

impl From<Refusal> for Event {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Answer(reply) => Self::Done(Reply::clone(&reply)),
            Refusal::Fault(fault) => Self::Fail(fault),
        }
    }
}

/// The answer of a backend that is not stateless (any more).
pub(crate) fn not_stateless() -> Event {
    Event::Done(modern::not_spoken())
}

/// Whether a listen has ended because the backend is not stateless (any more).
pub(crate) fn is_not_stateless(event: &Event) -> bool {
    matches!(event, Event::Done(reply) if reply.message.error_code() == code::UNSUPPORTED_PROTOCOL_VERSION)
}

/// What has come of the changes of what is wanted.
#[derive(Debug, Clone, Default)]
struct Now {
    /// Up to which change the backend was asked.
    change: u64,
    /// What the open stream was asked for, and what of that it tells of.
    asked: Filter,
    honoured: Filter,
    /// Why there is none that was asked for all that is wanted.
    refusal: Option<Refusal>,
    /// How often a stream was ended for good by the backend, and with what it was last.
    ends: u64,
    end: Option<Arc<Reply>>,
}

/// The listeners of one profile and the stream that serves them.
struct Hub {
    listeners: Arc<Listeners>,
    /// Counts the changes of what is wanted.
    wanted: watch::Sender<u64>,
    now: watch::Receiver<Now>,
}

/// One client's part in a hub. Dropping it ends it.
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    number: u64,
    filter: Mutex<Filter>,
}

impl Subscription {
    /// Changes what the client wants to hear of.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Filter)) -> u64 {
        let filter = {
            let mut filter = self.filter.lock();
            change(&mut filter);
            filter.clone()
        };
        self.hub.listeners.set(self.number, filter);
        self.hub.bump()
    }

    /// Resolves once the backend has said what of a change it tells of, or takes too long for that: whether it
    /// tells of `uri`, if that is asked.
    pub(crate) async fn heard(&self, change: u64, uri: Option<&str>) -> bool {
        let mut now = self.hub.now.clone();
        let told = tokio::time::timeout(ACKNOWLEDGE_TIME, now.wait_for(|now| now.change >= change)).await;
        matches!(told, Ok(Ok(now)) if uri.is_none_or(|uri| now.honoured.uris.contains(uri)))
    }

    /// Adds a resource; resolves once the backend has said whether it tells of it.
    pub(crate) async fn subscribe(&self, uri: &str) -> Result<bool, Fault> {
        if self.filter.lock().uris.len() >= MAX_URIS {
            return Err(Fault::invalid_params(format!("at most {MAX_URIS} resources can be subscribed to")));
        }
        let change = self.change(|filter| {
            filter.uris.insert(uri.to_owned());
        });
        // Dropped when the client goes before it has an answer, too.
        let mut undo = Undo { subscription: self, uri: Some(uri) };
        let honoured = self.heard(change, Some(uri)).await;
        if honoured {
            undo.uri = None;
        }
        Ok(honoured)
    }
}

/// Takes a resource out again, if there is one.
struct Undo<'a> {
    subscription: &'a Subscription,
    uri: Option<&'a str>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(uri) = self.uri {
            self.subscription.change(|filter| {
                filter.uris.remove(uri);
            });
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.listeners.leave(self.number);
        self.hub.bump();
    }
}

impl Hub {
    fn start(caller: Caller, client: Arc<Client>, tasks: &Tasks) -> Arc<Self> {
        let listeners = Arc::<Listeners>::default();
        let (wanted, changes) = watch::channel(0);
        let (say, now) = watch::channel(Now::default());
        let follow = Follow { caller, client, listeners: listeners.clone(), changes, say };
        let draining = tasks.drain_token().clone();
        let following = follow.run().with_cancellation_token_owned(draining);
        tasks.spawn("listen to stateless backend", following.map(drop));
        Arc::new(Self { listeners, wanted, now })
    }

    fn bump(&self) -> u64 {
        let mut now = 0;
        self.wanted.send_modify(|count| {
            *count += 1;
            now = *count;
        });
        now
    }
}

/// Keeps one stream open that names what is wanted.
struct Follow {
    caller: Caller,
    client: Arc<Client>,
    listeners: Arc<Listeners>,
    changes: watch::Receiver<u64>,
    say: watch::Sender<Now>,
}

/// An acknowledged stream.
struct Open {
    events: Events,
    asked: Filter,
    honoured: Filter,
}

impl Follow {
    async fn run(mut self) {
        let mut open: Option<Open> = None;
        let mut pause = FIRST_PAUSE;
        let mut since = Instant::now();
        // What was honoured when the stream was lost: all of it may have changed since.
        let mut missed: Option<Filter> = None;
        let mut seen = None;
        // When to ask again for what the backend does not tell of, unless something else is wanted before.
        let mut again = Instant::now();
        loop {
            let change = *self.changes.borrow_and_update();
            let is_new = seen.replace(change) != Some(change);
            let wanted = self.listeners.union();
            let is_served = open.as_ref().is_some_and(|open| open.asked == wanted);
            if wanted.is_empty() {
                open = None;
                missed = None;
                self.say(change, None, None);
            } else if is_served {
                self.say(change, open.as_ref(), None);
            } else if is_new || again <= Instant::now() {
                match self.listen(&wanted).await {
                    Ok(next) => {
                        // The old stream is dropped only now, and what it still had is told.
                        if let Some(old) = open.take() {
                            self.drain(old.events);
                        }
                        if let Some(missed) = missed.take() {
                            self.listeners.tell_everything(&missed);
                        }
                        self.say(change, Some(&next), None);
                        open = Some(next);
                        since = Instant::now();
                        continue;
                    }
                    Err(refusal) => {
                        let wait = if refusal.is_final() { FOR_GOOD } else { pause };
                        self.say(change, open.as_ref(), Some(refusal));
                        again = Instant::now() + wait;
                        pause = (pause * 2).min(MAX_PAUSE);
                    }
                }
            }
            let waits = !wanted.is_empty() && open.as_ref().is_none_or(|open| open.asked != wanted);
            let next = async {
                match &mut open {
                    Some(open) => open.events.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(again), if waits => {}
                event = next => match event {
                    Some(Event::Notify(message)) => self.listeners.tell(&message),
                    Some(event) if !event.is_terminal() => {}
                    // Ended, in good order or not: what is wanted still is asked for again.
                    end => {
                        if let Some(Event::Done(reply)) = end {
                            self.end(reply);
                        }
                        missed = open.take().map(|open| open.honoured);
                        if since.elapsed() > MAX_PAUSE {
                            pause = FIRST_PAUSE;
                        }
                        again = Instant::now() + pause;
                        pause = (pause * 2).min(MAX_PAUSE);
                    }
                },
            }
        }
    }

    fn say(&self, change: u64, open: Option<&Open>, refusal: Option<Refusal>) {
        if let Some(refusal) = &refusal {
            tracing::debug!(listen.refusal = ?refusal, "not listening");
        }
        self.say.send_modify(|now| {
            now.change = change;
            now.asked = open.map(|open| open.asked.clone()).unwrap_or_default();
            now.honoured = open.map(|open| open.honoured.clone()).unwrap_or_default();
            if let Some(Refusal::Answer(reply)) = &refusal
                && reply.message.error_code() == code::UNSUPPORTED_PROTOCOL_VERSION
            {
                (now.ends, now.end) = (now.ends + 1, Some(reply.clone()));
            }
            now.refusal = refusal;
        });
    }

    /// The backend has ended the stream by its answer.
    fn end(&self, reply: Reply) {
        self.say.send_modify(|now| (now.ends, now.end) = (now.ends + 1, Some(Arc::new(reply))));
    }

    /// Tells what had come already on a stream that is let go.
    fn drain(&self, mut events: Events) {
        while let Some(Some(Event::Notify(message))) = events.next().now_or_never() {
            self.listeners.tell(&message);
        }
    }

    /// Opens a stream and waits for its acknowledgement.
    async fn listen(&self, wanted: &Filter) -> Result<Open, Refusal> {
        let notifications = wanted.write();
        let params = json::object([("notifications", &notifications[..])]);
        let request = Message::request(&Id::from_number(1), method::LISTEN, &params);
        let client = self.client.clone();
        let mut events = (self.caller)(Call::new(request, client));
        let acknowledged = async {
            while let Some(event) = events.next().await {
                match event {
                    Event::Notify(message) if message.method() == method::SUBSCRIPTIONS_ACKNOWLEDGED => {
                        return Ok(wanted.honoured_by(message.raw(Field::Notifications).unwrap_or(b"{}")));
                    }
                    Event::Fail(fault) => return Err(Refusal::Fault(fault)),
                    Event::Done(reply) => return Err(Refusal::Answer(Arc::new(reply))),
                    event if event.is_terminal() => break,
                    _ => {}
                }
            }
            Err(Refusal::Fault(Fault::method_not_found(method::LISTEN)))
        };
        // It may be slow only now, so it is asked again.
        let late = || Fault::Timeout { backend: String::new(), deadline: Deadline::FirstByte };
        let acknowledged = tokio::time::timeout(ACKNOWLEDGE_TIME, acknowledged).await;
        let honoured = acknowledged.unwrap_or_else(|_| Err(Refusal::Fault(late())))?;
        Ok(Open { events, asked: wanted.clone(), honoured })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawbridge_core::Answers;
    use drawbridge_core::client::Principal;
    use drawbridge_wire::ProtocolVersion;
    use futures_util::stream;
    use tokio::sync::mpsc;

    /// A listen that a backend got, and the way to its stream.
    struct Got {
        wanted: Filter,
        events: mpsc::Sender<Event>,
    }

    impl Got {
        /// Acknowledges it.
        async fn honours(self, filter: &Filter) -> mpsc::Sender<Event> {
            self.events.send(modern::acknowledged(&filter.write())).await.unwrap();
            self.events
        }
    }

    struct Backend {
        hubs: Hubs,
        client: Arc<Client>,
        listens: mpsc::Receiver<Got>,
    }

    fn backend() -> Backend {
        let (got, listens) = mpsc::channel(64);
        let caller: Caller = Arc::new(move |call: Call| {
            let (events, stream) = mpsc::channel(64);
            let wanted = Filter::read(call.request.raw(Field::Notifications).unwrap());
            got.try_send(Got { wanted, events }).unwrap();
            Box::pin(stream::unfold(stream, |mut stream| async move { Some((stream.recv().await?, stream)) }))
        });
        let client = Arc::new(Client {
            principal: Principal::anonymous(),
            version: ProtocolVersion::V2025_11_25,
            capabilities: "{}".into(),
            info: None,
            answers: Answers::Live,
        });
        Backend { hubs: Hubs::new(caller, Tasks::default()), client, listens }
    }

    impl Backend {
        fn subscription(&self, inbox: &Arc<Inbox>) -> Subscription {
            let to: Weak<dyn Unsolicited> = Arc::downgrade(&(inbox.clone() as Arc<dyn Unsolicited>));
            self.hubs.subscription(&self.client, to)
        }
    }

    fn lists() -> Filter {
        Filter::all_lists()
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_never_acknowledges_is_asked_again_and_subscriptions_are_refused_in_time() {
        let mut backend = backend();
        let inbox = Arc::default();
        let subscription = backend.subscription(&inbox);
        assert_eq!(subscription.subscribe("a://1").await, Ok(false));
        assert!(subscription.filter.lock().uris.is_empty());
        subscription.change(|filter| filter.add(&lists()));
        let mut kept = Vec::new();
        for _ in 0..4 {
            kept.push(backend.listens.recv().await.unwrap());
        }
        assert!(kept[0].events.is_closed(), "those that are given up are let go");
        let last = backend.listens.recv().await.unwrap();
        assert_eq!(last.wanted, lists());
        last.honours(&lists()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_does_not_wait_for_the_pause_after_a_listen_that_ended() {
        let mut backend = backend();
        let inbox = Arc::default();
        let subscription = backend.subscription(&inbox);
        subscription.change(|filter| filter.add(&lists()));
        // Each one ends at once, so the pauses grow.
        for _ in 0..8 {
            drop(backend.listens.recv().await.unwrap().honours(&lists()).await);
        }
        let begun = Instant::now();
        let wanted = async {
            let got = loop {
                let got = backend.listens.recv().await.unwrap();
                if !got.wanted.uris.is_empty() {
                    break got;
                }
            };
            let all = got.wanted.clone();
            got.honours(&all).await
        };
        let (subscribed, events) = tokio::join!(subscription.subscribe("a://1"), wanted);
        assert_eq!(subscribed, Ok(true));
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        drop(subscription);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(events.is_closed(), "nobody listens any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_listen_that_fails_does_not_silence_the_one_that_is_open() {
        let mut backend = backend();
        let inbox = Arc::<Inbox>::default();
        let first = backend.subscription(&inbox);
        first.change(|filter| filter.add(&lists()));
        let open = backend.listens.recv().await.unwrap().honours(&lists()).await;
        let others = Arc::default();
        let second = backend.subscription(&others);
        second.change(|filter| {
            filter.uris.insert("a://1".to_owned());
        });
        let refused = backend.listens.recv().await.unwrap();
        refused.events.send(Event::Fail(Fault::method_not_found("x"))).await.unwrap();
        open.send(Event::Notify(Message::notification(method::TOOLS_LIST_CHANGED, b"{}"))).await.unwrap();
        let told = drawbridge_core::call::generate(|emit| async move {
            inbox.beside(&emit, std::future::pending()).await
        });
        let told = told.into_future();
        assert!(tokio::time::timeout(Duration::from_secs(1), told).await.is_ok());
        assert!(backend.listens.recv().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_while_it_subscribes_leaves_nothing() {
        let mut backend = backend();
        let inbox = Arc::default();
        let subscription = backend.subscription(&inbox);
        let gone = tokio::time::timeout(Duration::from_secs(1), subscription.subscribe("a://1")).await;
        assert!(gone.is_err() && subscription.filter.lock().uris.is_empty());
        let got = backend.listens.recv().await.unwrap();
        tokio::time::sleep(ACKNOWLEDGE_TIME).await;
        assert!(got.events.is_closed());
        assert!(backend.listens.recv().now_or_never().is_none());
    }
}
