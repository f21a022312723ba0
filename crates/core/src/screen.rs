//! What stands between endpoints and each backend, so that everybody reaches what is theirs and nothing else.
//!
//! - What a caller may not call it does not see: [`items`] filters lists and guards calls, by the caller's
//!   [`Rights`].
//! - Tasks are known to their own callers alone: [`task_ids`].
//! - A backend can have a user open only what the operator trusts it with: [`links`].

mod items;
mod links;
pub(crate) mod task_ids;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, json, method};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use crate::aggregate::last_event;
use crate::backend::{Backend, BackendName, Conversation, Description, Scope, TakenUp, Unsolicited};
use crate::call::{Call, Event, Events, forward, generate, once};
use crate::client::Client;
use crate::fault::Fault;
use crate::glob::Glob;
use crate::rights::Rights;
use crate::seal::KeyRing;
use items::{Asked, reads};
use task_ids::{Given, Handles, may_be_about_tasks};

/// What the operator says about a backend.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Tools that change nothing.
    pub read_tools: Vec<Glob>,
    /// Whether tools that say so of themselves are believed (`annotations.readOnlyHint`).
    pub annotations: bool,
    /// Hosts of the URLs that it may have users open, besides its own.
    pub hosts: Vec<Glob>,
    /// Whether it can tell callers apart, or there is but one.
    pub knows_callers: bool,
}

/// Tools of a backend of which is remembered whether they only read.
const MAX_TOOLS: usize = 10_000;
/// Pages of a list that are read at most.
const MAX_PAGES: usize = 50;

/// A backend with what stands before it.
pub struct Screen {
    inner: Arc<dyn Backend>,
    keys: Arc<KeyRing>,
    trusted: Arc<Trusted>,
}

/// What is believed of a backend, and of its tools.
struct Trusted {
    name: BackendName,
    trust: Trust,
    list_timeout: Duration,
    /// What tools have said of themselves.
    reads: Mutex<HashMap<String, bool>>,
}

impl Trusted {
    /// Whether calling this tool changes nothing, as far as that is known.
    fn reads(&self, name: &str) -> Option<bool> {
        if self.trust.read_tools.iter().any(|pattern| pattern.matches(name)) {
            return Some(true);
        }
        if self.trust.annotations { self.reads.lock().get(name).copied() } else { Some(false) }
    }

    /// Notes what tools say of themselves.
    fn learn(&self, list: &[u8]) {
        if !self.trust.annotations {
            return;
        }
        let mut known = self.reads.lock();
        for tool in json::elements(list).unwrap_or_default() {
            let Some(name) = json::member(tool, "name").and_then(json::decode_string) else { continue };
            if known.len() < MAX_TOOLS || known.contains_key(name.as_ref()) {
                known.insert(name.into_owned(), reads(tool));
            }
        }
    }
}

impl Screen {
    /// Puts it before `inner`, to which `trust` applies; `keys` seal.
    pub fn new(inner: Arc<dyn Backend>, trust: Trust, keys: Arc<KeyRing>) -> Arc<Self> {
        let (name, list_timeout) = (inner.name().clone(), inner.list_timeout());
        let trusted = Arc::new(Trusted { name, trust, list_timeout, reads: Mutex::default() });
        Arc::new(Self { inner, keys, trusted })
    }

    fn handles(&self, client: &Client) -> Handles {
        Handles::of(client, self.inner.name(), &self.keys)
    }
}

#[async_trait]
impl Backend for Screen {
    fn name(&self) -> &BackendName {
        self.inner.name()
    }

    fn speaks(&self) -> Option<&'static str> {
        self.inner.speaks()
    }

    async fn describe(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        let description = self.inner.describe(client).await?;
        let tasks = json::member(&description.capabilities, "tasks");
        let Some(tasks) = tasks.filter(|_| !self.trusted.trust.knows_callers) else { return Ok(description) };
        // Nobody can tell whose the tasks are that it would list.
        let tasks = json::filter_members(tasks, |key| key != "list");
        let capabilities = json::replace_member(&description.capabilities, "tasks", &tasks);
        Ok(Arc::new(Description { capabilities, ..(*description).clone() }))
    }

    fn open(
        self: Arc<Self>,
        client: &Arc<Client>,
        scope: Scope,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation> {
        let (handles, trusted) = (Arc::new(self.handles(client)), self.trusted.clone());
        let ear = sink.map(|sink| Arc::new(Ear { handles: handles.clone(), trusted: trusted.clone(), sink }));
        let inner_sink = ear.as_ref().map(|ear| {
            let ear: Arc<dyn Unsolicited> = ear.clone();
            Arc::downgrade(&ear)
        });
        let inner = self.inner.clone().open(client, scope, inner_sink);
        Arc::new(Screened { handles, trusted, inner, _ear: ear })
    }

    fn has_task(&self, client: &Client, id: &str) -> bool {
        self.handles(client).open(id).is_some()
    }

    fn reads(&self, tool: &str) -> Option<bool> {
        self.trusted.reads(tool)
    }

    fn list_timeout(&self) -> Duration {
        self.inner.list_timeout()
    }

    fn remind(&self, memory: Weak<dyn Unsolicited>) {
        self.inner.remind(memory);
    }

    fn forget(&self) {
        self.inner.forget();
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// A conversation with what stands before it.
struct Screened {
    handles: Arc<Handles>,
    trusted: Arc<Trusted>,
    inner: Arc<dyn Conversation>,
    /// Lives as long as the conversation, which only has a weak reference.
    _ear: Option<Arc<Ear>>,
}

#[async_trait]
impl Conversation for Screened {
    fn call(self: Arc<Self>, call: Call) -> Events {
        if call.request.method() == method::TASKS_LIST && !self.trusted.trust.knows_callers {
            return once(Event::Fail(Fault::method_not_found(method::TASKS_LIST)));
        }
        if call.rights.is_none() {
            return self.pass(call);
        }
        let tool = (call.request.method() == method::TOOLS_CALL)
            .then(|| call.request.text(Field::Name))
            .flatten()
            .filter(|name| self.trusted.reads(name).is_none());
        if tool.is_none() {
            return self.check(call);
        }
        generate(|emit| async move {
            self.learn(&call).await;
            let silent = Fault::OutcomeUnknown {
                backend: self.trusted.name.to_string(),
                detail: "no answer".to_owned(),
            };
            forward(&emit, self.check(call)).await.unwrap_or(Event::Fail(silent))
        })
    }

    async fn notify(&self, notification: Message) {
        // A request without an id is none that anybody answers, and some servers would do what it says.
        if !notification.method().starts_with("notifications/") {
            tracing::debug!(backend.name = %self.trusted.name, "a client's message is no notification of the protocol");
            return;
        }
        self.inner.notify(self.handles.told(notification)).await;
    }

    fn listen(self: Arc<Self>) {
        self.inner.clone().listen();
    }

    fn stop_listening(&self) {
        self.inner.stop_listening();
    }

    async fn take_up(self: Arc<Self>, id: &Id, rights: Option<Arc<dyn Rights>>) -> Option<TakenUp> {
        let TakenUp { method, events } = self.inner.clone().take_up(id, None).await?;
        let asked = rights.map(|rights| (rights, Asked::of(&method)));
        let (about, is_tool) = (method.clone(), method == method::TOOLS_CALL);
        let events = events.filter_map(move |event| {
            let opened = self.trusted.open(event, is_tool);
            let seen = opened.map(|event| match &asked {
                Some((rights, asked)) => self.trusted.filter(&**rights, asked, event),
                None => event,
            });
            std::future::ready(seen.map(|event| self.handles.event(event, &about, &Given::new())))
        });
        Some(TakenUp { method, events: Box::pin(events) })
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn leave(&self) {
        self.inner.leave().await;
    }
}

impl Screened {
    /// A call of somebody who may not have rights to what it names.
    fn check(self: Arc<Self>, call: Call) -> Events {
        let Some(rights) = call.rights.clone() else { return self.pass(call) };
        match self.trusted.check(&*rights, call) {
            Ok((call, Asked::Call)) => self.pass(call),
            Ok((call, asked)) => {
                let trusted = self.trusted.clone();
                Box::pin(self.pass(call).map(move |event| trusted.filter(&*rights, &asked, event)))
            }
            Err(refused) => once(*refused),
        }
    }

    /// A call that may be made.
    fn pass(self: Arc<Self>, mut call: Call) -> Events {
        let is_tool = call.request.method() == method::TOOLS_CALL;
        if !may_be_about_tasks(&call) {
            let trusted = self.trusted.clone();
            let events = self.inner.clone().call(call);
            return Box::pin(
                events.filter_map(move |event| std::future::ready(trusted.open(event, is_tool))),
            );
        }
        let given = match self.handles.request(&call.client, &call.request) {
            Ok((changed, given)) => {
                call.request = changed.unwrap_or(call.request);
                given
            }
            Err(fault) => return once(Event::Fail(fault)),
        };
        let about = call.request.method().into_owned();
        Box::pin(self.inner.clone().call(call).filter_map(move |event| {
            let opened = self.trusted.open(event, is_tool);
            std::future::ready(opened.map(|event| self.handles.event(event, &about, &given)))
        }))
    }

    /// Reads the backend's list of tools for what they say of themselves, as the client of `call` would.
    async fn learn(&self, call: &Call) {
        let mut cursor: Option<Bytes> = None;
        for _ in 0..MAX_PAGES {
            let meta = call.request.slice(Field::Meta);
            let members = [("_meta", meta.as_deref()), ("cursor", cursor.as_deref())];
            let params = json::object(members.into_iter().filter_map(|(key, value)| Some((key, value?))));
            let request = Message::request(&Id::from_number(0), method::TOOLS_LIST, &params);
            let events = self.inner.clone().call(Call::of_the_gateway(request, call.client.clone()));
            let last = last_event(events, &self.trusted.name, self.trusted.list_timeout).await;
            let Event::Done(reply) = last else { return };
            let Some(result) = reply.message.raw(Field::Result) else { return };
            self.trusted.learn(json::member(result, "tools").unwrap_or(b"[]"));
            cursor = reply.message.slice(Field::NextCursor).filter(|raw| raw.starts_with(b"\""));
            if cursor.is_none() {
                return;
            }
        }
    }
}

/// Hears what comes outside of calls before whoever it is for.
struct Ear {
    handles: Arc<Handles>,
    trusted: Arc<Trusted>,
    sink: Weak<dyn Unsolicited>,
}

impl Unsolicited for Ear {
    fn deliver(&self, event: Event) {
        if let Some(sink) = self.sink.upgrade()
            && let Some(event) = self.trusted.open(event, false)
        {
            sink.deliver(self.handles.event(event, "", &Given::new()));
        }
    }

    fn is_shared(&self) -> bool {
        self.sink.upgrade().is_some_and(|sink| sink.is_shared())
    }
}
