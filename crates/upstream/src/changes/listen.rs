//! Listening to a stateless backend for clients with sessions: one stream of the backend for all of one kind, which
//! names what any of them wants. To want something else, another stream is opened before the first is let go.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Event, Events};
use drawbridge_core::fault::Deadline;
use drawbridge_core::{Client, Fault, ProfileKey, Retry, Tasks};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, json, method};
use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::future::FutureExt as _;

use super::{Filter, Listeners, MAX_URIS};

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
    tasks: Tasks,
    hubs: Mutex<HashMap<ProfileKey, Weak<Hub>>>,
}

impl Hubs {
    pub(crate) fn new(caller: Caller, tasks: Tasks) -> Self {
        Self { caller, tasks, hubs: Mutex::default() }
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
            let hub = Hub::start(self.caller.clone(), client.clone(), &self.tasks);
            hubs.insert(key, Arc::downgrade(&hub));
            hub
        });
        drop(hubs);
        let number = hub.listeners.enter(Filter::default(), to);
        Subscription { hub, number, filter: Mutex::default() }
    }
}

/// The listeners of one profile and the stream that serves them.
struct Hub {
    listeners: Arc<Listeners>,
    /// Counts the changes of what is wanted.
    wanted: watch::Sender<u64>,
    /// Up to which change the backend was asked, and what it honours of that.
    honoured: watch::Receiver<(u64, Filter)>,
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

    /// Resolves once the backend has said what of a change it tells of, or takes too long for that.
    pub(crate) async fn heard(&self, change: u64) {
        let mut honoured = self.hub.honoured.clone();
        let _ = tokio::time::timeout(ACKNOWLEDGE_TIME, honoured.wait_for(|(done, _)| *done >= change)).await;
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
        let mut honoured = self.hub.honoured.clone();
        let told =
            tokio::time::timeout(ACKNOWLEDGE_TIME, honoured.wait_for(|(done, _)| *done >= change)).await;
        let honoured = matches!(told, Ok(Ok(now)) if now.1.uris.contains(uri));
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
        let (say, honoured) = watch::channel((0, Filter::default()));
        let follow = Follow { caller, client, listeners: listeners.clone(), changes, say };
        let draining = tasks.drain_token().clone();
        let following = follow.run().with_cancellation_token_owned(draining);
        tasks.spawn("listen to stateless backend", following.map(drop));
        Arc::new(Self { listeners, wanted, honoured })
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
    say: watch::Sender<(u64, Filter)>,
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
                self.say.send_replace((change, Filter::default()));
            } else if is_served {
                let honoured = open.as_ref().map(|open| open.honoured.clone()).unwrap_or_default();
                self.say.send_replace((change, honoured));
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
                        self.say.send_replace((change, next.honoured.clone()));
                        open = Some(next);
                        since = Instant::now();
                        continue;
                    }
                    Err(fault) => {
                        tracing::debug!(error.code = fault.code(), "not listening: {fault}");
                        self.say.send_replace((change, Filter::default()));
                        // What it does not offer it will not offer a moment later.
                        again =
                            Instant::now() + if fault.retry() == Retry::Useless { FOR_GOOD } else { pause };
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
                    // Ended, in good order or not: what is wanted is asked for again.
                    _ => {
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

    /// Tells what had come already on a stream that is let go.
    fn drain(&self, mut events: Events) {
        while let Some(Some(Event::Notify(message))) = futures_util::FutureExt::now_or_never(events.next()) {
            self.listeners.tell(&message);
        }
    }

    /// Opens a stream and waits for its acknowledgement.
    async fn listen(&self, wanted: &Filter) -> Result<Open, Fault> {
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
                    Event::Fail(fault) => return Err(fault),
                    event if event.is_terminal() => break,
                    _ => {}
                }
            }
            Err(Fault::method_not_found(method::LISTEN))
        };
        // It may be slow only now, so it is asked again.
        let late = || Fault::Timeout { backend: String::new(), deadline: Deadline::FirstByte };
        let honoured =
            tokio::time::timeout(ACKNOWLEDGE_TIME, acknowledged).await.unwrap_or_else(|_| Err(late()))?;
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

    use crate::inbox::Inbox;
    use crate::modern;

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
