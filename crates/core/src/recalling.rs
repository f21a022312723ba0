//! A backend with a memory: around each [`Backend`] there is one that reads along.
//!
//! It keeps answers that may be kept ([`crate::cache`]) and knows which arguments are mirrored in headers
//! ([`crate::mirrored`]). Endpoints share it, so what one of them hears counts for all.
//!
//! ```text
//! endpoint ── call ──▶ kept? ──▶ headers: built or checked ──▶ backend
//!          ◀── answer ── keep ◀── learn, leave out ◀───────────┘
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, code, json, method};
use futures_util::future::ready;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backend::{Backend, BackendName, Conversation, Description, Scope, TakenUp, Unsolicited};
use crate::cache::{self, Asked, Cache};
use crate::call::{Call, Event, Events, Reply, Shape, forward, generate, once};
use crate::client::{Answers, Client};
use crate::fault::{Deadline, Fault};
use crate::fleet::Peers;
use crate::metrics::{self, Method, Outcome};
use crate::mirrored::{self, Mirrored, Tool};
use crate::rights::Rights;
use crate::state::Heard;
use crate::trace;

/// A list of tools that is read for what it says about headers has at most this many pages.
const MAX_PAGES: usize = 50;
/// A call whose headers seem wrong is judged by a list that is not older than this.
const RECENT: Duration = Duration::from_secs(5);

/// For how long answers of a backend may be kept.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// Answers are kept, and given again.
    pub cache: bool,
    /// How long lists may be kept if the backend does not say, here and by stateless clients.
    pub list_ttl: Duration,
}

impl Default for Keeping {
    /// As long as the backend says.
    fn default() -> Self {
        Self { cache: true, list_ttl: Duration::ZERO }
    }
}

/// A backend with a memory.
pub struct Recalling {
    inner: Arc<dyn Backend>,
    memory: Arc<Memory>,
}

struct Memory {
    name: BackendName,
    list_timeout: Duration,
    mirrored: Mirrored,
    cache: Option<Cache>,
    list_ttl: Duration,
    metrics: Arc<metrics::Backend>,
    /// Requests that the backend has.
    running: AtomicUsize,
    /// Rung when it has none any more.
    quiet: Notify,
    /// Other instances remember too.
    peers: Peers,
    /// When they were told of which change.
    told: Mutex<HashMap<String, Instant>>,
    /// Ends the hearing of changes with the memory.
    _heard: DropGuard,
}

/// Other instances hear of the same change at most this often.
const TELL_EVERY: Duration = Duration::from_millis(100);
const MAX_TOLD: usize = 256;

/// Forgets what other instances say has changed.
async fn hear_elsewhere(memory: Weak<Memory>) {
    loop {
        let Some((bus, topic)) = memory.upgrade().map(|m| (m.peers.state().bus.clone(), m.topic())) else {
            return;
        };
        if let Ok(mut changes) = bus.subscribe(&topic).await {
            while let Some(heard) = changes.next().await {
                let Some(memory) = memory.upgrade() else { return };
                match heard {
                    Heard::Message(text) => {
                        if let Ok(message) = Message::parse(text) {
                            memory.forget(&message);
                        }
                    }
                    Heard::Missed => memory.forget_all(),
                }
            }
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

impl Recalling {
    /// Gives `inner` a memory, which keeps answers as `keeping` says. What is sent to `inner` is counted in `metrics`.
    pub fn new(
        inner: Arc<dyn Backend>,
        keeping: Keeping,
        peers: &Peers,
        metrics: Arc<metrics::Backend>,
    ) -> Arc<Self> {
        let ended = CancellationToken::new();
        let memory = Memory {
            name: inner.name().clone(),
            list_timeout: inner.list_timeout(),
            mirrored: Mirrored::new(inner.name().clone()),
            cache: keeping.cache.then(Cache::default),
            list_ttl: keeping.list_ttl,
            metrics,
            running: AtomicUsize::new(0),
            quiet: Notify::new(),
            peers: peers.clone(),
            told: Mutex::default(),
            _heard: ended.clone().drop_guard(),
        };
        let memory = Arc::new(memory);
        let reminded: Weak<Memory> = Arc::downgrade(&memory);
        inner.remind(reminded);
        if peers.state().is_fleet {
            let hearing = hear_elsewhere(Arc::downgrade(&memory));
            peers.spawn("hear of changes", hearing.with_cancellation_token_owned(ended).map(drop));
        }
        Arc::new(Self { inner, memory })
    }
}

impl Recalling {
    /// Resolves when the backend has no request that it has not answered.
    pub async fn quiet(&self) {
        let memory = &self.memory;
        loop {
            let quiet = memory.quiet.notified();
            if memory.running.load(Ordering::Acquire) == 0 {
                return;
            }
            quiet.await;
        }
    }
}

#[async_trait]
impl Backend for Recalling {
    fn name(&self) -> &BackendName {
        self.inner.name()
    }

    async fn describe(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        let description = self.inner.describe(client).await;
        if let Err(fault) = &description {
            self.memory.metrics.failed(fault);
        }
        match &description {
            Err(fault) if is_unreachable(fault) => self.memory.metrics.up.set(false),
            // It may be one that was kept, so it says nothing against what calls found.
            Ok(_) if self.memory.metrics.up.get().is_none() => self.memory.metrics.up.set(true),
            _ => {}
        }
        description
    }

    fn open(
        self: Arc<Self>,
        client: &Arc<Client>,
        scope: Scope,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation> {
        let memory = self.memory.clone();
        let listener = sink.map(|sink| Arc::new(Listener { memory: memory.clone(), sink }));
        let inner_sink = listener.as_ref().map(|listener| {
            let listener: Arc<dyn Unsolicited> = listener.clone();
            Arc::downgrade(&listener)
        });
        let inner = self.inner.clone().open(client, scope, inner_sink);
        Arc::new(Talk { memory, inner, _listener: listener })
    }

    fn list_timeout(&self) -> Duration {
        self.inner.list_timeout()
    }

    fn speaks(&self) -> Option<&'static str> {
        self.inner.speaks()
    }

    fn forget(&self) {
        self.memory.forget_all();
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Hears what comes outside of calls before whoever it is for.
struct Listener {
    memory: Arc<Memory>,
    sink: Weak<dyn Unsolicited>,
}

impl Unsolicited for Listener {
    fn is_shared(&self) -> bool {
        self.sink.upgrade().is_some_and(|sink| sink.is_shared())
    }

    fn deliver(&self, event: Event) {
        self.memory.hear(&event);
        if let Some(sink) = self.sink.upgrade() {
            sink.deliver(event);
        }
    }
}

/// Told of changes that nobody listens for.
impl Unsolicited for Memory {
    fn deliver(&self, event: Event) {
        self.hear(&event);
    }
}

impl Memory {
    fn hear(&self, event: &Event) {
        let Event::Notify(message) = event else { return };
        self.forget(message);
        if self.peers.state().is_fleet && is_change(message) {
            self.tell(message);
        }
    }

    fn forget(&self, message: &Message) {
        if let Some(cache) = &self.cache {
            cache.heard(message);
        }
        if self.mirrored.any() && message.method() == method::TOOLS_LIST_CHANGED {
            self.mirrored.forget();
        }
    }

    fn forget_all(&self) {
        if let Some(cache) = &self.cache {
            cache.clear();
        }
        self.mirrored.forget();
    }

    fn topic(&self) -> String {
        format!("changes:{}", self.name)
    }

    /// Tells the other instances of a change, unless they have just heard of it.
    fn tell(&self, message: &Message) {
        let about = format!("{} {}", message.method(), message.text(Field::Uri).unwrap_or_default());
        let now = Instant::now();
        {
            let mut told = self.told.lock();
            if told.len() >= MAX_TOLD {
                told.retain(|_, at| now.duration_since(*at) < TELL_EVERY);
            }
            if told.get(&about).is_some_and(|at| now.duration_since(*at) < TELL_EVERY) {
                return;
            }
            told.insert(about, now);
        }
        let (bus, topic, text) = (self.peers.state().bus.clone(), self.topic(), message.bytes().clone());
        self.peers.tasks().spawn("tell of a change", async move {
            // Who is not told keeps what it has until its time is over.
            if let Err(e) = bus.publish(&topic, text).await {
                tracing::debug!("other instances were not told of a change: {e}");
            }
        });
    }
}

/// Whether a notification says that something is not what it was.
fn is_change(message: &Message) -> bool {
    matches!(
        message.method().as_ref(),
        method::TOOLS_LIST_CHANGED
            | method::PROMPTS_LIST_CHANGED
            | method::RESOURCES_LIST_CHANGED
            | method::RESOURCES_UPDATED
    )
}

/// A conversation that is read along.
struct Talk {
    memory: Arc<Memory>,
    inner: Arc<dyn Conversation>,
    /// Lives as long as the conversation, which only has a weak reference.
    _listener: Option<Arc<Listener>>,
}

#[async_trait]
impl Conversation for Talk {
    fn call(self: Arc<Self>, call: Call) -> Events {
        if call.request.method() == method::TOOLS_CALL {
            return self.tool(call);
        }
        match self.memory.cache.as_ref().map_or(Asked::Nothing, |cache| cache.ask(&call)) {
            Asked::Kept(reply) => {
                if call.request.method() == method::TOOLS_LIST && mirrored::is_annotated(&reply.message) {
                    self.memory.mirrored.relearn(&call.client.profile(), &call.request, &reply.message);
                }
                once(Event::Done(reply))
            }
            Asked::Missed(ticket) => {
                let memory = self.memory.clone();
                let mut ticket = Some(ticket);
                Box::pin(self.read(call).inspect(move |event| {
                    if let (Event::Done(reply), Some(cache)) = (event, &memory.cache)
                        && let Some(ticket) = ticket.take()
                    {
                        cache.keep(ticket, reply);
                    }
                }))
            }
            Asked::Nothing => self.read(call),
        }
    }

    async fn notify(&self, notification: Message) {
        self.inner.notify(notification).await;
    }

    async fn take_up(self: Arc<Self>, id: &Id, rights: Option<Arc<dyn Rights>>) -> Option<TakenUp> {
        self.inner.clone().take_up(id, rights).await
    }

    fn listen(self: Arc<Self>) {
        self.inner.clone().listen();
    }

    fn stop_listening(&self) {
        self.inner.stop_listening();
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn leave(&self) {
        self.inner.leave().await;
    }
}

impl Talk {
    /// Any call but one of a tool.
    fn read(&self, mut call: Call) -> Events {
        let memory = self.memory.clone();
        let may_last = cache::may_last(&call);
        let mut sent = Sent::new(&memory, &mut call);
        if call.request.method() != method::TOOLS_LIST {
            return Box::pin(self.inner.clone().call(call).map(move |event| {
                sent.see(&event);
                memory.hear(&event);
                match own_hop(&memory, event) {
                    Event::Done(reply) if may_last => Event::Done(cache::lasting(reply, memory.list_ttl)),
                    event => event,
                }
            }));
        }
        let (profile, answers, request) = (call.client.profile(), call.client.answers, call.request.clone());
        Box::pin(self.inner.clone().call(call).map(move |event| {
            sent.see(&event);
            memory.hear(&event);
            match own_hop(&memory, event) {
                Event::Done(reply) if !reply.is_error() => {
                    let reply = memory.mirrored.listed(&profile, answers, &request, reply);
                    let reply = if may_last { cache::lasting(reply, memory.list_ttl) } else { reply };
                    Event::Done(reply)
                }
                event => event,
            }
        }))
    }

    /// The call of a tool. Without headers and where no tool has annotations, nothing is done for it.
    fn tool(self: Arc<Self>, call: Call) -> Events {
        if self.memory.mirrored.any() || mirrored::has_headers(&call) {
            return generate(|emit| async move {
                match self.prepare(call).await {
                    Ok(call) => {
                        let events = self.clone().send(call);
                        forward(&emit, events).await.unwrap_or_else(|| Event::Fail(self.memory.silent()))
                    }
                    Err(fault) => Event::Fail(fault),
                }
            });
        }
        self.send(call)
    }

    /// Sends the call of a tool. If the backend refuses its headers, nothing was done yet, and it may be sent again.
    fn send(self: Arc<Self>, mut call: Call) -> Events {
        let at = Instant::now();
        let mut again = Some(call.clone());
        let mut sent = Sent::new(&self.memory, &mut call);
        Box::pin(self.inner.clone().call(call).flat_map(move |event| {
            sent.see(&event);
            self.memory.hear(&event);
            if matches!(event, Event::Notify(_) | Event::Asks(_)) {
                // Something was done.
                again = None;
            }
            match again.take_if(|_| matches!(&event, Event::Done(reply) if is_refusal(reply))) {
                Some(call) => self.clone().recover(call, event, at).left_stream(),
                None => stream::once(ready(own_hop(&self.memory, event))).right_stream(),
            }
        }))
    }

    /// Gives a call the headers that mirror its arguments, or checks those that it has.
    async fn prepare(&self, mut call: Call) -> Result<Call, Fault> {
        let name = call.request.text(Field::Name).unwrap_or_default().into_owned();
        let profile = call.client.profile();
        let find = || self.memory.mirrored.find(&profile, &name);
        let mut tool = find();
        if call.client.answers == Answers::Live {
            if let Tool::Annotated(arguments) = tool {
                call.params_headers = arguments.headers(&call.request)?.into();
            }
            return Ok(call);
        }
        if tool == Tool::Unknown && mirrored::has_headers(&call) {
            self.learn(&call, Instant::now()).await;
            tool = find();
        }
        let Tool::Annotated(arguments) = &tool else { return Ok(call) };
        if arguments.check(&call).is_ok() {
            return Ok(call);
        }
        // The tool may have changed meanwhile, and the client know.
        let now = Instant::now();
        self.learn(&call, now.checked_sub(RECENT).unwrap_or(now)).await;
        match find() {
            Tool::Annotated(arguments) => arguments.check(&call).map(|()| call),
            Tool::Plain | Tool::Unknown => Ok(call),
        }
    }

    /// After a backend has refused the headers of a call: finds out what it wants, and sends the call again if that is
    /// something else.
    fn recover(self: Arc<Self>, mut call: Call, refusal: Event, sent: Instant) -> Events {
        generate(move |emit| async move {
            let name = call.request.text(Field::Name).unwrap_or_default().into_owned();
            self.learn(&call, sent).await;
            let tool = self.memory.mirrored.find(&call.client.profile(), &name);
            let own = || own_hop(&self.memory, refusal);
            let Tool::Annotated(arguments) = tool else { return own() };
            if call.client.answers == Answers::ByRetry {
                return arguments.check(&call).map_or_else(Event::Fail, |()| own());
            }
            let headers = match arguments.headers(&call.request) {
                Ok(headers) if headers[..] == call.params_headers[..] => return own(),
                Ok(headers) => headers.into(),
                Err(fault) => return Event::Fail(fault),
            };
            let mut again = Sent::new(&self.memory, &mut call);
            let events = self.inner.clone().call(Call { params_headers: headers, ..call });
            let memory = self.memory.clone();
            let events = events.inspect(move |event| {
                again.see(event);
                memory.hear(event);
            });
            let last = forward(&emit, Box::pin(events)).await;
            last.map_or_else(|| Event::Fail(self.memory.silent()), |event| own_hop(&self.memory, event))
        })
    }

    /// Reads the backend's list of tools as the client of `call` would, unless that was done since `since`. What comes
    /// of it is in the memory.
    async fn learn(&self, call: &Call, since: Instant) {
        let profile = call.client.profile();
        let mirrored = &self.memory.mirrored;
        let reading = async {
            let _turn = mirrored.learning.lock().await;
            if mirrored.is_learnt(&profile, since) {
                return;
            }
            let mut cursor: Option<Bytes> = None;
            for _ in 0..MAX_PAGES {
                let meta = call.request.slice(Field::Meta);
                let members = [("_meta", meta.as_deref()), ("cursor", cursor.as_deref())];
                let params = json::object(members.into_iter().filter_map(|(key, value)| Some((key, value?))));
                let request = Message::request(&Id::from_number(0), method::TOOLS_LIST, &params);
                let asked = Call::new(request, call.client.clone());
                let mut events = self.read(asked);
                let last = loop {
                    match events.next().await {
                        Some(event) if !event.is_terminal() => {}
                        last => break last,
                    }
                };
                let Some(Event::Done(reply)) = last else { break };
                cursor = reply.message.slice(Field::NextCursor).filter(|raw| raw.starts_with(b"\""));
                if cursor.is_none() {
                    break;
                }
            }
            mirrored.asked(&profile);
        };
        if tokio::time::timeout(self.memory.list_timeout, reading).await.is_err() {
            tracing::warn!(backend.name = %self.memory.name, "no list of tools in time to know their headers by");
            mirrored.asked(&profile);
        }
    }
}

/// A request that the backend has, to be counted when it ends.
struct Sent {
    memory: Arc<Memory>,
    span: Option<trace::Open>,
    at: Instant,
    lasts: bool,
    has_ended: bool,
}

impl Sent {
    /// A call that goes to the backend now; if it is traced, with that in it.
    fn new(memory: &Arc<Memory>, call: &mut Call) -> Self {
        let span = call.trace.take().and_then(|trace| {
            let (span, next, request) = trace::sent(&trace, &call.request, memory.name.as_str());
            (call.trace, call.request) = (Some(next), request);
            span
        });
        let lasts = Method::of(&call.request.method()).lasts();
        memory.running.fetch_add(1, Ordering::AcqRel);
        Self { memory: memory.clone(), span, at: Instant::now(), lasts, has_ended: false }
    }

    /// Looks at what comes of it.
    fn see(&mut self, event: &Event) {
        let Some(outcome) = Outcome::of(event).filter(|_| !self.has_ended) else { return };
        self.end(outcome, trace::codes(event));
        if let Event::Fail(fault) = event {
            self.memory.metrics.failed(fault);
        }
        match event {
            Event::Done(_) | Event::Asks(_) => self.memory.metrics.up.set(true),
            Event::Fail(fault) if is_unreachable(fault) => self.memory.metrics.up.set(false),
            _ => {}
        }
    }

    fn end(&mut self, outcome: Outcome, (code, fault): (Option<i64>, Option<&'static str>)) {
        self.has_ended = true;
        if let Some(mut span) = self.span.take() {
            span.set_outcome(outcome, code, fault);
            span.end(outcome, self.at.elapsed());
        }
        self.memory.metrics.ended(outcome, (!self.lasts).then(|| self.at.elapsed()));
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Outcome::Cancelled, (None, None));
        }
        if self.memory.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.memory.quiet.notify_waiters();
        }
    }
}

/// Whether a fault says that the backend is not there.
fn is_unreachable(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Unreachable { .. }
            | Fault::NotStarted { .. }
            | Fault::Timeout { deadline: Deadline::Connect | Deadline::Start, .. }
    )
}

impl Memory {
    fn silent(&self) -> Fault {
        Fault::OutcomeUnknown { backend: self.name.to_string(), detail: "no answer".to_owned() }
    }
}

/// Whether a backend refuses the headers of a request. Backends that mark nothing give the code another meaning.
fn is_refusal(reply: &Reply) -> bool {
    reply.shape != Shape::Plain && reply.message.error_code() == code::HEADER_MISMATCH
}

/// What is wrong between the gateway and the backend is not for the client.
fn own_hop(memory: &Memory, event: Event) -> Event {
    match event {
        Event::Done(reply) if is_refusal(&reply) => Event::Fail(Fault::BadAnswer {
            backend: memory.name.to_string(),
            detail: reply.message.text(Field::ErrorMessage).unwrap_or_default().into_owned(),
        }),
        event => event,
    }
}

#[cfg(test)]
mod tests;
