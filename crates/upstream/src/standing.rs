//! What a client with a session has set at a stateless backend. The backend keeps nothing, so it is said again with
//! each request (the log level) or listened for (changes).

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Emitter, Event, Events, Reply, Shape, generate};
use drawbridge_core::{Backend, Client, Conversation, Fault, Tasks};
use drawbridge_wire::level::severity;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Message, RpcError, code, json, method};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use crate::changes::Filter;
use crate::changes::listen::{Hubs, Subscription};
use crate::described::{Refused, Replaceable};
use crate::fleet::Home;
use crate::fleet::board::{Board, Settings};
use crate::tasks;

/// The settings of one session.
pub(crate) struct Standing {
    hubs: Arc<Hubs>,
    client: Arc<Client>,
    sink: Option<Weak<dyn Unsolicited>>,
    tasks: Tasks,
    /// Where all instances know what was set, if there are several.
    shared: Option<(Home, Arc<Board>)>,
    loaded: tokio::sync::OnceCell<()>,
    level: Mutex<Option<Bytes>>,
    /// Resources that were subscribed to, wherever that was.
    uris: Mutex<BTreeSet<String>>,
    /// Changes of lists are of interest.
    listening: Mutex<bool>,
    subscription: Mutex<Option<Arc<Subscription>>>,
}

impl Standing {
    pub(crate) fn new(
        hubs: Arc<Hubs>,
        client: Arc<Client>,
        sink: Option<Weak<dyn Unsolicited>>,
        tasks: Tasks,
        shared: Option<(Home, Arc<Board>)>,
    ) -> Arc<Self> {
        let standing = Arc::new(Self {
            hubs,
            client,
            sink,
            tasks,
            shared,
            loaded: tokio::sync::OnceCell::new(),
            level: Mutex::default(),
            uris: Mutex::default(),
            listening: Mutex::default(),
            subscription: Mutex::default(),
        });
        if let Some((home, board)) = &standing.shared {
            board.enter(home, &standing);
        }
        standing
    }

    /// Reads what was set at other instances, once.
    async fn load(&self) {
        if self.shared.is_some() {
            self.loaded.get_or_init(|| self.load_again()).await;
        }
    }

    /// Reads what was set at other instances.
    pub(crate) async fn load_again(&self) {
        let Some((home, board)) = &self.shared else { return };
        match board.read(home).await {
            Ok(settings) => self.apply(settings),
            // It is told when something changes.
            Err(e) => tracing::warn!("what was set in a session is not known: {e}"),
        }
    }

    /// Takes over what was set, here or at another instance.
    pub(crate) fn apply(&self, settings: Settings) {
        *self.level.lock() = settings.level.map(Bytes::from);
        *self.uris.lock() = settings.uris;
        if *self.listening.lock() {
            self.listen_to_resources();
        }
    }

    /// The client's stream is here, so the resources are listened to from here.
    fn listen_to_resources(&self) {
        let uris = self.uris.lock().clone();
        let is_listening = self.subscription.lock().is_some();
        if (is_listening || !uris.is_empty())
            && let Some(subscription) = self.subscription()
        {
            let mut new = Filter::default();
            subscription.change(|filter| {
                new.uris = uris.difference(&filter.uris).cloned().collect();
                filter.uris = uris;
            });
            self.tell_once_heard(subscription, new);
        }
    }

    /// Tells the client that what is listened to from now on may have changed: it was told that it is listened to before
    /// this instance knew of it.
    fn tell_once_heard(&self, subscription: Arc<Subscription>, new: Filter) {
        let Some(sink) = self.sink.clone().filter(|_| !new.is_empty()) else { return };
        self.tasks.spawn("tell once heard", async move {
            subscription.heard(None).await;
            if let Some(sink) = sink.upgrade() {
                new.everything().into_iter().for_each(|message| sink.deliver(Event::Notify(message)));
            }
        });
    }

    /// This client's part in listening, from now on.
    fn subscription(&self) -> Option<Arc<Subscription>> {
        let sink = self.sink.clone()?;
        let mut slot = self.subscription.lock();
        Some(slot.get_or_insert_with(|| Arc::new(self.hubs.subscription(&self.client, sink))).clone())
    }

    /// Changes of the lists that `backend` tells of are of interest.
    pub(crate) fn listen(self: Arc<Self>, backend: Arc<dyn Backend>) {
        *self.listening.lock() = true;
        let tasks = self.tasks.clone();
        tasks.spawn("listen to backend", async move {
            self.load().await;
            let Ok(description) = backend.describe(&self.client).await else { return };
            let lists = Filter::all_lists().offered_by(&description.capabilities);
            // The client may have gone meanwhile.
            let listening = self.listening.lock();
            if *listening
                && !lists.is_empty()
                && let Some(subscription) = self.subscription()
            {
                subscription.change(|filter| filter.add(&lists));
                if self.shared.is_some() {
                    self.tell_once_heard(subscription, lists);
                }
            }
            if *listening && self.shared.is_some() {
                self.listen_to_resources();
            }
        });
    }

    /// Changes of lists are of no interest any more.
    pub(crate) fn stop_listening(&self) {
        let mut listening = self.listening.lock();
        *listening = false;
        if let Some(subscription) = &*self.subscription.lock() {
            let is_shared = self.shared.is_some();
            subscription.change(|filter| {
                *filter = filter.without(&Filter::all_lists());
                if is_shared {
                    filter.uris.clear();
                }
            });
        }
    }

    /// The request as it goes to the backend: it wants messages of the level that the session has set.
    pub(crate) fn said_with(&self, call: Call) -> Call {
        let Some(level) = self.level.lock().clone() else { return call };
        let request = Edit::new(&call.request).set_missing(Field::MetaLogLevel, level).into_message();
        Call { request, ..call }
    }

    /// Whether the session wants a notification that comes with its call: others may have set a lower level.
    fn wants(&self, notification: &Message) -> bool {
        if notification.method() != method::LOG_MESSAGE {
            return true;
        }
        let wanted =
            self.level.lock().as_deref().and_then(json::decode_string).and_then(|level| severity(&level));
        let level = notification.text(Field::Level).and_then(|level| severity(&level));
        wanted.zip(level).is_none_or(|(wanted, level)| level >= wanted)
    }

    /// The answer to a request that only sets something; `None` if the backend is to be asked.
    pub(crate) async fn answer(&self, backend: &dyn Backend, call: &Call) -> Option<Event> {
        self.load().await;
        let request = &call.request;
        match request.method().as_ref() {
            method::SET_LEVEL => {
                let level = request.text(Field::Level).filter(|level| severity(level).is_some());
                let Some(level) = level else {
                    return Some(Event::Fail(Fault::invalid_params("\"level\" must be a log level")));
                };
                let level = json::encode_string(&level);
                if let Some((home, board)) = &self.shared
                    && let Err(fault) = board.change(home, |s| s.level = Some(level.clone())).await
                {
                    return Some(Event::Fail(fault));
                }
                *self.level.lock() = Some(Bytes::from(level));
                Some(done())
            }
            method::RESOURCES_SUBSCRIBE => {
                Some(self.subscribe(backend, request).await.unwrap_or_else(Event::Fail))
            }
            method::RESOURCES_UNSUBSCRIBE => {
                let uri = request.text(Field::Uri).unwrap_or_default();
                if let Some((home, board)) = &self.shared
                    && let Err(fault) = board.change(home, |s| s.uris.retain(|known| *known != *uri)).await
                {
                    return Some(Event::Fail(fault));
                }
                if let Some(subscription) = &*self.subscription.lock() {
                    subscription.change(|filter| {
                        filter.uris.remove(uri.as_ref());
                    });
                }
                Some(done())
            }
            _ => None,
        }
    }

    async fn subscribe(&self, backend: &dyn Backend, request: &Message) -> Result<Event, Fault> {
        let uri =
            request.text(Field::Uri).ok_or_else(|| Fault::invalid_params("\"uri\" must be a string"))?;
        let mut wanted = Filter::default();
        wanted.uris.insert(uri.clone().into_owned());
        let description = backend.describe(&self.client).await?;
        let subscription =
            self.subscription().filter(|_| !wanted.offered_by(&description.capabilities).is_empty());
        let subscription =
            subscription.ok_or_else(|| Fault::method_not_found(method::RESOURCES_SUBSCRIBE))?;
        if subscription.subscribe(&uri).await? {
            if let Some((home, board)) = &self.shared {
                let settings = board.change(home, |s| s.uris.extend([uri.to_string()])).await?;
                self.apply(settings);
                if !*self.listening.lock() {
                    // The client hears at another instance, or will.
                    subscription.change(|filter| filter.uris.clear());
                }
            }
            return Ok(done());
        }
        let message = format!("backend \"{}\" does not tell of changes of {uri}", backend.name());
        Err(Fault::Rpc(RpcError::new(code::INTERNAL_ERROR, message)))
    }

    /// The end of a call: where the backend has made a task of it, that of the task, unless the client knows tasks.
    pub(crate) async fn awaited(&self, emit: &Emitter, call: &Call, event: Event) -> Event {
        match &event {
            Event::Done(reply) if !call.client.knows_tasks_extension() => match tasks::created(reply) {
                Some(id) => {
                    Box::pin(tasks::drive(emit, self.hubs.caller(), &self.tasks, call, reply, &id)).await
                }
                None => event,
            },
            _ => event,
        }
    }

    /// Forgets what was set.
    pub(crate) fn close(&self) {
        *self.listening.lock() = false;
        *self.subscription.lock() = None;
    }
}

/// An empty result.
fn done() -> Event {
    Event::Done(Reply { message: Message::result(&Id::from_number(0), b"{}"), shape: Shape::Plain })
}

/// A session in front of a conversation that all clients share.
pub(crate) struct StandingConversation {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) everybody: Arc<dyn Replaceable>,
    pub(crate) standing: Arc<Standing>,
}

#[async_trait]
impl Conversation for StandingConversation {
    fn call(self: Arc<Self>, call: Call) -> Events {
        self.call_or_refuse(call, Refused::default())
    }

    async fn notify(&self, notification: Message) {
        self.everybody.notify(notification).await;
    }

    fn listen(self: Arc<Self>) {
        self.standing.clone().listen(self.backend.clone());
    }

    fn stop_listening(&self) {
        self.standing.stop_listening();
    }

    async fn close(&self) {
        self.standing.close();
    }
}

impl Replaceable for StandingConversation {
    fn call_or_refuse(self: Arc<Self>, call: Call, refused: Refused) -> Events {
        generate(|emit| async move {
            if let Some(event) = self.standing.answer(&*self.backend, &call).await {
                return event;
            }
            let call = self.standing.said_with(call);
            let lost = || Fault::OutcomeUnknown {
                backend: self.backend.name().to_string(),
                detail: "no answer".to_owned(),
            };
            let mut events = self.everybody.clone().call_or_refuse(call.clone(), refused);
            let mut last = None;
            while let Some(event) = events.next().await {
                match event {
                    event if event.is_terminal() => {
                        last = Some(event);
                        break;
                    }
                    Event::Notify(message) if !self.standing.wants(&message) => {}
                    event => emit.emit(event).await,
                }
            }
            self.standing.awaited(&emit, &call, last.unwrap_or_else(|| Event::Fail(lost()))).await
        })
    }
}
