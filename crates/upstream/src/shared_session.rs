//! A session with a backend that stateless clients share.
//!
//! What only sessions have is put in the form that these clients know: subscriptions are counted, and the last listener
//! of a resource ends the backend's; tasks are those of the extension ([`crate::tasks::session`]).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::scopes::everybody;
use async_trait::async_trait;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Emitter, Event, Events, generate};
use drawbridge_core::{BackendName, Client, Conversation, Fault, Tasks};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, json, method};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use crate::changes::listen::{Caller, Hubs};
use crate::changes::{self, Filter, Listeners};
use crate::described::{LegacyConversation, Refused, Replaceable};
use crate::inbox::Inbox;
use crate::legacy;
use crate::modern;
use crate::tasks::session::SessionTasks;

/// How long the backend may take to say whether it tells of a resource.
const SUBSCRIBE_TIME: Duration = Duration::from_secs(10);

/// A session that several clients share, and those of them who listen.
pub(crate) struct SharedSession {
    session: Arc<dyn LegacyConversation>,
    client: Arc<Client>,
    tasks: Tasks,
    listeners: Arc<Listeners>,
    session_tasks: Arc<SessionTasks>,
    /// How many listeners each resource has that the backend was asked to tell of.
    subscribed: tokio::sync::Mutex<HashMap<String, usize>>,
    /// How many listens are open.
    open: Mutex<usize>,
    /// Those clients with sessions of their own that listen.
    hubs: std::sync::OnceLock<Arc<Hubs>>,
    /// Cloned by each call while it runs.
    calls: Arc<()>,
    /// Kept alive for the session, which holds it weakly.
    ear: Arc<Ear>,
}

/// Takes what the session tells unasked.
struct Ear {
    listeners: Arc<Listeners>,
    tasks: Arc<SessionTasks>,
    /// Whose session it is.
    client: Arc<Client>,
    /// Hears of changes even if nobody listens.
    memory: Option<Weak<dyn Unsolicited>>,
}

impl Unsolicited for Ear {
    fn deliver(&self, event: Event) {
        match event {
            Event::Notify(message) => match message.method().as_ref() {
                method::TASKS_STATUS => {
                    if let Some(id) = message.text(Field::TaskId) {
                        self.tasks.tell(&self.client, &id, &self.listeners);
                    }
                }
                method => {
                    if method == method::TOOLS_LIST_CHANGED {
                        self.tasks.forget_tools();
                    }
                    if let Some(memory) = self.memory.as_ref().and_then(Weak::upgrade) {
                        memory.deliver(Event::Notify(message.clone()));
                    }
                    self.listeners.tell(&message);
                }
            },
            // No call is known to have caused it, and nobody listens for asks.
            Event::Asks(round) => legacy::refuse_round(*round),
            _ => {}
        }
    }

    fn is_shared(&self) -> bool {
        self.client.principal == everybody()
    }
}

impl SharedSession {
    pub(crate) fn new(
        session: Arc<dyn LegacyConversation>,
        client: Arc<Client>,
        tasks: Tasks,
        memory: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<Self> {
        let listeners = Arc::<Listeners>::default();
        let session_tasks = SessionTasks::new(session.clone(), tasks.clone());
        let ear = Arc::new(Ear {
            listeners: listeners.clone(),
            tasks: session_tasks.clone(),
            client: client.clone(),
            memory,
        });
        let sink: Weak<dyn Unsolicited> = Arc::downgrade(&(ear.clone() as Arc<dyn Unsolicited>));
        session.attach(sink);
        Arc::new(Self {
            session,
            client,
            tasks,
            listeners,
            session_tasks,
            subscribed: tokio::sync::Mutex::default(),
            open: Mutex::default(),
            hubs: std::sync::OnceLock::new(),
            calls: Arc::default(),
            ear,
        })
    }

    /// Where clients with sessions of their own subscribe.
    pub(crate) fn hubs(self: &Arc<Self>, backend: &BackendName) -> Arc<Hubs> {
        let made = || {
            let me = Arc::downgrade(self);
            let caller: Caller = Arc::new(move |call| match me.upgrade() {
                Some(session) => session.call(call),
                None => drawbridge_core::call::once(Event::Fail(Fault::Draining)),
            });
            Arc::new(Hubs::new(backend, caller, self.tasks.clone()))
        };
        self.hubs.get_or_init(made).clone()
    }

    /// Whether a call runs, or waits for its client, or somebody listens.
    pub(crate) fn is_busy(&self) -> bool {
        Arc::strong_count(&self.calls) > 1
    }

    /// The events of a call, which keep the session busy until they are dropped. What changes is for all that listen, also
    /// where the backend says it in a call.
    fn counted(&self, events: Events) -> Events {
        let (running, ear) = (self.calls.clone(), self.ear.clone());
        Box::pin(events.inspect(move |event| {
            let _ = &running;
            if let Event::Notify(message) = event
                && changes::is_change(message)
            {
                ear.deliver(Event::Notify(message.clone()));
            }
        }))
    }

    async fn listen(self: Arc<Self>, emit: &Emitter, call: &Call) -> Result<Event, Fault> {
        let wanted = Filter::of(&call.request)?;
        if !wanted.task_ids.is_empty() {
            call.client.need_tasks_extension()?;
        }
        *self.open.lock() += 1;
        let mut listening =
            Listening { shared: self.clone(), number: None, filter: Filter::default(), asking: None };
        let description = self.session.clone().hear().await?;
        let offered = wanted.offered_by(&description.capabilities);
        let inbox = Arc::new(Inbox::default());
        let to: Weak<dyn Unsolicited> = Arc::downgrade(&(inbox.clone() as Arc<dyn Unsolicited>));
        inbox.stands_for(Arc::new(offered.clone()));
        // Entered before the backend is asked, so that no update falls in between.
        listening.number = Some(self.listeners.enter(offered.clone(), to));
        for uri in &offered.uris {
            listening.asking = Some(uri.clone());
            if self.subscribe(uri).await {
                listening.filter.uris.insert(uri.clone());
            }
            listening.asking = None;
        }
        let mut honoured = offered;
        honoured.uris.clone_from(&listening.filter.uris);
        if let Some(number) = listening.number {
            self.listeners.set(number, honoured.clone());
        }
        emit.emit(modern::acknowledged(&honoured.write())).await;
        inbox.beside(emit, std::future::pending()).await
    }

    /// Counts a listener of `uri`; asks the backend if it is the first. Returns whether the backend tells of it.
    async fn subscribe(&self, uri: &str) -> bool {
        let mut subscribed = self.subscribed.lock().await;
        if let Some(count) = subscribed.get_mut(uri) {
            *count += 1;
            return true;
        }
        let done = self.request(method::RESOURCES_SUBSCRIBE, uri).await;
        if done {
            subscribed.insert(uri.to_owned(), 1);
        }
        done
    }

    async fn unsubscribe(&self, uri: &str) {
        let mut subscribed = self.subscribed.lock().await;
        let Some(count) = subscribed.get_mut(uri) else { return };
        *count -= 1;
        if *count == 0 {
            subscribed.remove(uri);
            self.request(method::RESOURCES_UNSUBSCRIBE, uri).await;
        }
    }

    /// Ends what may have come of a subscription that was asked for and whose answer nobody waited for.
    async fn unsubscribe_if_uncounted(&self, uri: &str) {
        let subscribed = self.subscribed.lock().await;
        if !subscribed.contains_key(uri) {
            self.request(method::RESOURCES_UNSUBSCRIBE, uri).await;
        }
    }

    async fn request(&self, method: &str, uri: &str) -> bool {
        let uri = json::encode_string(uri);
        let request = Message::request(&Id::from_number(0), method, &json::object([("uri", uri.as_bytes())]));
        let client = self.client.clone();
        let call = Call::new(request, client);
        let mut events = self.session.clone().call(call);
        let done = async {
            while let Some(event) = events.next().await {
                if let Event::Done(reply) = event {
                    return !reply.is_error();
                }
            }
            false
        };
        // Other listeners wait their turn meanwhile.
        tokio::time::timeout(SUBSCRIBE_TIME, done).await.unwrap_or(false)
    }
}

/// A listen while it is open.
struct Listening {
    shared: Arc<SharedSession>,
    number: Option<u64>,
    filter: Filter,
    /// The resource that the backend is being asked for.
    asking: Option<String>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        if let Some(number) = self.number {
            shared.listeners.leave(number);
        }
        let last = {
            let mut open = shared.open.lock();
            *open -= 1;
            *open == 0
        };
        if last {
            shared.session.stop_listening();
        }
        let uris = std::mem::take(&mut self.filter.uris);
        let asking = self.asking.take();
        if !uris.is_empty() || asking.is_some() {
            let tasks = shared.tasks.clone();
            tasks.spawn("end subscriptions", async move {
                for uri in &uris {
                    shared.unsubscribe(uri).await;
                }
                if let Some(uri) = asking {
                    shared.unsubscribe_if_uncounted(&uri).await;
                }
            });
        }
    }
}

#[async_trait]
impl Conversation for SharedSession {
    fn call(self: Arc<Self>, call: Call) -> Events {
        self.call_or_refuse(call, Refused::default())
    }

    async fn notify(&self, notification: Message) {
        self.session.notify(notification).await;
    }

    fn listen(self: Arc<Self>) {}

    fn stop_listening(&self) {}

    async fn close(&self) {
        self.session.close().await;
    }

    async fn leave(&self) {
        self.session.leave().await;
    }
}

impl Replaceable for SharedSession {
    fn call_or_refuse(self: Arc<Self>, call: Call, refused: Refused) -> Events {
        let shared = self.clone();
        let events = match call.request.method().as_ref() {
            method::LISTEN => return self.listen_or_refuse(call, refused),
            method::TOOLS_CALL => self.session_tasks.clone().call_tool(call, refused),
            tasks if tasks.starts_with("tasks/") => self.session_tasks.clone().about_task(call),
            _ => self.session.clone().call_or_refuse(call, refused),
        };
        shared.counted(events)
    }
}

impl SharedSession {
    fn listen_or_refuse(self: Arc<Self>, call: Call, refused: Refused) -> Events {
        generate(|emit| async move {
            let outcome = self.listen(&emit, &call).await;
            // There was no session to listen in.
            if let Err(Fault::BadAnswer { .. }) = &outcome {
                refused.set();
            }
            outcome.unwrap_or_else(Event::Fail)
        })
    }
}
