//! Listening to a stateless backend for clients with sessions: one stream of the backend for all of one kind, which
//! names what any of them wants. To want something else, another stream is opened before the first is let go.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Event, Events};
use drawbridge_core::{Client, Fault, ProfileKey, Retry, Tasks};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, json, method};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Filter, Listeners};

/// Starts a call of the backend.
pub(crate) type Caller = Arc<dyn Fn(Call) -> Events + Send + Sync>;

/// How long a change of a subscription waits for the backend to acknowledge it.
const ACKNOWLEDGE_TIME: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);

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

    /// Adds a resource; resolves once the backend has said whether it tells of it.
    pub(crate) async fn subscribe(&self, uri: &str) -> Result<bool, Fault> {
        let change = self.change(|filter| {
            filter.uris.insert(uri.to_owned());
        });
        let mut honoured = self.hub.honoured.clone();
        let told =
            tokio::time::timeout(ACKNOWLEDGE_TIME, honoured.wait_for(|(done, _)| *done >= change)).await;
        let honoured = matches!(told, Ok(Ok(now)) if now.1.uris.contains(uri));
        if !honoured {
            self.change(|filter| {
                filter.uris.remove(uri);
            });
        }
        Ok(honoured)
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
        tasks.spawn("listen to stateless backend", async move {
            draining.run_until_cancelled(follow.run()).await;
        });
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
        loop {
            let change = *self.changes.borrow_and_update();
            let wanted = self.listeners.union();
            if wanted.is_empty() {
                open = None;
                missed = None;
                self.say.send_replace((change, Filter::default()));
            } else if open.as_ref().is_none_or(|open| open.asked != wanted) {
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
                    }
                    Err(fault) => {
                        tracing::debug!(error.code = fault.code(), "not listening: {fault}");
                        self.say.send_replace((change, Filter::default()));
                        // What it does not offer it will not offer a moment later.
                        let wait = if fault.retry() == Retry::Useless { Duration::MAX } else { pause };
                        tokio::select! {
                            () = tokio::time::sleep(wait) => {}
                            changed = self.changes.changed() => if changed.is_err() { return },
                        }
                        pause = (pause * 2).min(MAX_PAUSE);
                        continue;
                    }
                }
            } else {
                let honoured = open.as_ref().map(|open| open.honoured.clone()).unwrap_or_default();
                self.say.send_replace((change, honoured));
            }
            let next = async {
                match &mut open {
                    Some(open) => open.events.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.changes.changed() => if changed.is_err() { return },
                event = next => match event {
                    Some(Event::Notify(message)) => self.listeners.tell(&message),
                    Some(event) if !event.is_terminal() => {}
                    // Ended, in good order or not: what is wanted is asked for again.
                    _ => {
                        missed = open.take().map(|open| open.honoured);
                        if since.elapsed() > MAX_PAUSE {
                            pause = FIRST_PAUSE;
                        }
                        tokio::time::sleep(pause).await;
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
        let mut events = (self.caller)(Call { request, client, params_headers: smallvec::SmallVec::new() });
        let acknowledged = async {
            while let Some(event) = events.next().await {
                match event {
                    Event::Notify(message) if message.method() == method::SUBSCRIPTIONS_ACKNOWLEDGED => {
                        return Ok(Filter::read(message.raw(Field::Notifications).unwrap_or(b"{}")));
                    }
                    Event::Fail(fault) => return Err(fault),
                    event if event.is_terminal() => break,
                    _ => {}
                }
            }
            Err(Fault::method_not_found(method::LISTEN))
        };
        let late = || Fault::method_not_found(method::LISTEN);
        let honoured =
            tokio::time::timeout(ACKNOWLEDGE_TIME, acknowledged).await.unwrap_or_else(|_| Err(late()))?;
        Ok(Open { events, asked: wanted.clone(), honoured })
    }
}
