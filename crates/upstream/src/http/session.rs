//! A session with a legacy backend over Streamable HTTP: handshake, calls, the stream of what comes unasked.

mod guards;
mod shared_by_all;
mod taken_up;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::backend::{TakenUp, Unsolicited};
use drawbridge_core::call::{AskKey, Call, Emitter, Event, Events, Reply, Shape, generate};
use drawbridge_core::fault::Deadline;
use drawbridge_core::fleet::Held;
use drawbridge_core::rights::Rights;
use drawbridge_core::{Client, Conversation, Description, Fault};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, ProtocolVersion, code, header};
use http::{HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::aside::RunningCalls;
use super::shared::{COURTESY, Shared, trace_headers};
use crate::answer::{self, Answer, EventStream};
use crate::answering::Answering;
use crate::changes::Filter;
use crate::described::{LegacyConversation, Refused, Replaceable};
use crate::fleet::{Ears, Home};
use crate::legacy::{self, Handshake, Incoming, OpenAsks};
use crate::restore::Restore;
use guards::{CancelGuard, Entered, RunningGuard, TokenGuard};
use shared_by_all::CommonCell;
pub(super) use shared_by_all::attend;

const SESSION_ID: HeaderName = HeaderName::from_static(header::SESSION_ID);
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static(header::PROTOCOL_VERSION);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static(header::LAST_EVENT_ID);

/// How long the first call waits for the stream of unasked messages, which a backend may need to ask on.
const STREAM_HEAD_TIME: Duration = Duration::from_secs(2);
/// How long the stream of unasked messages stays when it has no reader and no call is running.
const STREAM_LINGER: Duration = Duration::from_secs(5);
/// Messages that are no calls and are on their way to the backend at once.
const MAX_TELLING: usize = 32;
/// How often in a row a stream that brings nothing is resumed.
const MAX_EMPTY_RESUMES: u32 = 8;

/// What the backend agreed to, once.
struct Opened {
    id: Option<HeaderValue>,
    handshake: Handshake,
    /// Cancelled when this session is known to be gone.
    gone: CancellationToken,
    /// The stream of unasked messages was asked for.
    streaming: AtomicBool,
    /// It is here.
    has_stream: AtomicBool,
    /// Another instance opened the session, so what its client missed is not known.
    is_adopted: bool,
    /// The log level that calls have set.
    level: Mutex<Option<usize>>,
}

impl Opened {
    fn new(
        id: Option<HeaderValue>,
        handshake: Handshake,
        closed: &CancellationToken,
        is_adopted: bool,
    ) -> Self {
        let gone = closed.child_token();
        Self {
            id,
            handshake,
            gone,
            streaming: AtomicBool::new(false),
            has_stream: AtomicBool::new(false),
            is_adopted,
            level: Mutex::default(),
        }
    }

    fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let version = HeaderValue::from_static(self.handshake.version.as_str());
        let mut headers = Vec::with_capacity(3);
        if self.handshake.version >= ProtocolVersion::V2025_06_18 {
            headers.push((PROTOCOL_VERSION, version));
        }
        headers.extend(self.id.clone().map(|id| (SESSION_ID, id)));
        headers
    }
}

/// One session, opened with the first call and again when the backend has lost it.
pub(super) struct HttpSession {
    shared: Arc<Shared>,
    client: Arc<Client>,
    sink: Mutex<Option<Weak<dyn Unsolicited>>>,
    opened: Mutex<Option<Arc<Opened>>>,
    opening: tokio::sync::Mutex<()>,
    next_id: AtomicU64,
    /// The clients' progress tokens of running calls, by the gateway's.
    tokens: Mutex<HashMap<Bytes, Bytes>>,
    /// Running calls whose client can be asked.
    calls: RunningCalls,
    restore: Restore,
    /// The client has a stream open, so changes are of interest.
    listening: AtomicBool,
    /// Calls that run; the backend may ask because of them.
    running: AtomicUsize,
    /// There was a session before the one that is open: what its listeners missed is not known.
    was_lost: AtomicBool,
    /// There was a stream here that other instances did not know of.
    was_apart: AtomicBool,
    /// Taken by each message on its way to the backend that is no call: one that asks much must not have as many
    /// connections opened to it.
    telling: Semaphore,
    /// Rung when `listening` or `running` may have changed, or who hears.
    interest: Notify,
    /// What other instances know of the session.
    common: CommonCell,
    /// Other instances that hear through this one.
    ears: Arc<Ears>,
    closed: CancellationToken,
}

/// Where the ids of a session's requests begin. Instances that use one session must not use the same ids in it.
fn first_id(shared: &Shared) -> u64 {
    if shared.options.peers.state().is_fleet {
        // Every number of up to 53 bits survives the way through JSON.
        return (u64::from(rand::random::<u32>()) << 20) + 1;
    }
    1
}

impl HttpSession {
    pub(super) fn new(
        shared: Arc<Shared>,
        client: Arc<Client>,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<Self> {
        let first = first_id(&shared);
        Arc::new(Self {
            shared,
            client,
            sink: Mutex::new(sink),
            opened: Mutex::new(None),
            opening: tokio::sync::Mutex::default(),
            next_id: AtomicU64::new(first),
            tokens: Mutex::default(),
            calls: RunningCalls::default(),
            restore: Restore::default(),
            listening: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            was_lost: AtomicBool::new(false),
            was_apart: AtomicBool::new(false),
            telling: Semaphore::new(MAX_TELLING),
            interest: Notify::new(),
            common: CommonCell::default(),
            ears: Arc::default(),
            closed: CancellationToken::new(),
        })
    }

    fn next_id(&self) -> Id {
        Id::from_number(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn sink(&self) -> Option<Arc<dyn Unsolicited>> {
        self.sink.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Whether somebody is there to take what comes unasked, and may have to.
    fn wants_stream(&self) -> bool {
        (self.client.can_be_asked() && self.running.load(Ordering::Acquire) > 0)
            || (self.listening.load(Ordering::Acquire) && self.sink().is_some())
    }

    /// The session if it is open, with its stream if one is wanted.
    fn ready(&self) -> Option<Arc<Opened>> {
        let opened = self.opened.lock().clone().filter(|_| self.is_settled())?;
        (opened.streaming.load(Ordering::Acquire) || !self.wants_stream()).then_some(opened)
    }

    /// The session, by a handshake if there is none.
    async fn open(self: &Arc<Self>) -> Result<Arc<Opened>, Fault> {
        if let Some(opened) = self.ready() {
            return Ok(opened);
        }
        let _turn = self.opening.lock().await;
        if let Some(opened) = self.ready() {
            return Ok(opened);
        }
        if self.closed.is_cancelled() {
            return Err(Fault::Draining);
        }
        let known = self.opened.lock().clone();
        let home = self.home();
        let opened = match (known, &home) {
            (known, Some(home)) if !self.is_settled() => Box::pin(self.open_for_all(home, known)).await?,
            (Some(opened), _) => opened,
            (None, _) => self.open_anew().await?,
        };
        *self.opened.lock() = Some(opened.clone());
        if self.wants_stream() && !opened.streaming.swap(true, Ordering::AcqRel) {
            match &home {
                Some(home) => Box::pin(self.start_shared_stream(home, &opened)).await,
                None => self.start_stream(&opened, None).await,
            }
            if opened.is_adopted && self.listening.load(Ordering::Acquire) {
                self.was_lost.store(true, Ordering::Release);
            }
        }
        if self.was_lost.swap(false, Ordering::AcqRel) {
            self.tell_everything(&opened);
        }
        Ok(opened)
    }

    /// A new session, in which is set what was set in the one before.
    async fn open_anew(self: &Arc<Self>) -> Result<Arc<Opened>, Fault> {
        let opened = Arc::new(self.shake_hands().await?);
        self.set_again(&opened).await;
        Ok(opened)
    }

    /// Tells whoever listens that all may have changed that the backend tells of.
    fn tell_everything(&self, opened: &Opened) {
        let Some(sink) = self.sink() else { return };
        self.everything(opened).into_iter().for_each(|message| sink.deliver(Event::Notify(message)));
    }

    /// That all may have changed that the backend tells of.
    fn everything(&self, opened: &Opened) -> Vec<Message> {
        let mut filter = Filter::all_lists().offered_by(&opened.handshake.description.capabilities);
        filter.uris = self.restore.subscriptions();
        filter.everything()
    }

    /// Opens the session again for those who listen, when nothing else does.
    fn reopen_for_listeners(self: &Arc<Self>) {
        let session = self.clone();
        let work = async move {
            let mut pause = Duration::from_secs(1);
            while session.listening.load(Ordering::Acquire) && Box::pin(session.open()).await.is_err() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(30));
            }
        };
        let (closed, drain) = (self.closed.clone(), self.shared.tasks.drain_token().clone());
        self.shared.tasks.spawn("listen again", async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = drain.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Sets what the client had set in the session that this one follows.
    async fn set_again(&self, opened: &Opened) {
        for message in self.restore.messages(|| self.next_id()) {
            let sent = self.shared.post(&self.client.principal, &opened.headers(), message).await;
            if let Ok(response) = sent {
                let _ = answer::read(response, &self.shared.options).await;
            }
        }
    }

    async fn shake_hands(&self) -> Result<Opened, Fault> {
        let options = &self.shared.options;
        let request = legacy::initialize(&self.next_id(), &self.client);
        let response = self.shared.post(&self.client.principal, &[], request.bytes().clone()).await?;
        let id = response.headers().get(SESSION_ID).cloned();
        let message = match answer::read(response, options).await? {
            Answer::Message(_, message) => message,
            Answer::Stream(mut stream) => loop {
                match stream.next_message(options).await? {
                    Some(message) if message.id().is_some() => break message,
                    Some(_) => {}
                    None => {
                        return Err(options.bad_answer("its stream ended before the answer to initialize"));
                    }
                }
            },
            Answer::Accepted => return Err(options.bad_answer("it does not answer initialize")),
            Answer::Other(status) if status.is_server_error() => {
                return Err(options.unreachable(format!("HTTP {status}")));
            }
            Answer::Other(status) => return Err(options.bad_answer(format!("HTTP {status} to initialize"))),
        };
        let handshake = legacy::handshake(&message, &self.client, options)?;
        let opened = Opened::new(id, handshake, &self.closed, false);
        let initialized = legacy::initialized().bytes().clone();
        let told = self.shared.post(&self.client.principal, &opened.headers(), initialized).await?;
        answer::read(told, options).await?;
        Ok(opened)
    }

    /// The backend does not know the session any more.
    fn lost(&self, opened: &Arc<Opened>) {
        let mut current = self.opened.lock();
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, opened)) {
            *current = None;
            self.was_lost.store(true, Ordering::Release);
            self.note_lost(opened);
        }
        opened.gone.cancel();
    }

    /// The session after it was lost. A backend that refuses to open it again has never got the call.
    async fn open_again(self: &Arc<Self>, refused: &Refused) -> Result<Arc<Opened>, Fault> {
        let opened = self.open().await;
        if let Err(Fault::BadAnswer { .. }) = &opened {
            refused.set();
        }
        opened
    }

    /// Runs a call, and emits what is asked aside because of it.
    async fn run(self: &Arc<Self>, emit: &Emitter, call: &Call, refused: &Refused) -> Result<Event, Fault> {
        let id = self.next_id();
        let entered = self.client.can_be_asked().then(|| Entered::new(self, &id));
        // Boxed, so that there is room for it once.
        let exchange = Box::pin(self.exchange(emit, call, id, refused));
        match &entered {
            Some(entered) => entered.inbox.beside(emit, exchange).await,
            None => exchange.await,
        }
    }

    async fn exchange(
        self: &Arc<Self>,
        emit: &Emitter,
        call: &Call,
        id: Id,
        refused: &Refused,
    ) -> Result<Event, Fault> {
        let text = legacy::outgoing(call, &id);
        self.touch(&self.shared.tasks);
        let _running = RunningGuard::new(self);
        let _token = call.request.slice(Field::MetaProgressToken).map(|own| TokenGuard::new(self, &id, own));
        // What is rare is boxed, so that the calls of an open session keep no room for it.
        let mut opened = match self.ready() {
            Some(opened) => opened,
            None => Box::pin(self.open_again(refused)).await?,
        };
        if call.request.raw(Field::MetaLogLevel).is_some() {
            Box::pin(self.set_level(call, &opened)).await;
        }
        let mut cancel = CancelGuard::new(self, &opened, &id);
        // Boxed too: most calls are answered at once, and those that wait keep no room for how they were sent.
        let mut answer = Box::pin(self.send_call(&opened, call, text.clone())).await?;
        if is_session_lost(&answer, &opened) {
            // Unknown session: the call was not started, so a new session may have it.
            self.lost(&opened);
            cancel.disarm();
            opened = Box::pin(self.open_again(refused)).await?;
            cancel = CancelGuard::new(self, &opened, &id);
            answer = Box::pin(self.send_call(&opened, call, text)).await?;
        }
        let event = match answer {
            Answer::Message(status, message) if is_of_the_other_era(status, &message) => {
                refused.set();
                let why = message.text(Field::ErrorMessage).unwrap_or_default();
                Err(self.shared.options.bad_answer(format!("it refuses the protocol of its session: {why}")))
            }
            Answer::Message(_, message) => self.answered(call, message, &id),
            Answer::Stream(stream) => {
                emit.emit(Event::Begun).await;
                let said = self.say_where_it_stands(call, &id);
                let stream = Box::new(stream.marked(said.as_ref().map(|said| &said.mark)));
                let reply = self.follow(emit, stream, &opened, &id).await;
                reply.map(|reply| legacy::answered(call, reply))
            }
            Answer::Accepted => {
                Err(self.shared.options.bad_answer("it accepts a request and answers nothing"))
            }
            Answer::Other(status) => Err(self.shared.options.bad_answer(format!("HTTP {status}"))),
        };
        // Only a call that may still run needs to be cancelled.
        if !matches!(event, Err(Fault::Timeout { .. } | Fault::TooLarge { .. })) {
            cancel.disarm();
        }
        event
    }

    /// Makes sure that the backend logs what `call` wants to see. What others in this session don't want is left out
    /// on the way to them.
    async fn set_level(&self, call: &Call, opened: &Opened) {
        let request = legacy::set_level(call, &mut opened.level.lock(), &opened.handshake, &self.next_id());
        if let Some(request) = request {
            let _ = tokio::time::timeout(COURTESY, self.send(opened, request.bytes().clone())).await;
        }
    }

    async fn send_call(&self, opened: &Opened, call: &Call, text: Bytes) -> Result<Answer, Fault> {
        let mut headers = opened.headers();
        headers.extend(trace_headers(call));
        let response = self.shared.post(&self.client.principal, &headers, text).await?;
        answer::read(response, &self.shared.options).await
    }

    async fn send(&self, opened: &Opened, text: Bytes) -> Result<Answer, Fault> {
        let response = self.shared.post(&self.client.principal, &opened.headers(), text).await?;
        answer::read(response, &self.shared.options).await
    }

    fn answered(&self, call: &Call, message: Message, id: &Id) -> Result<Event, Fault> {
        if !answer::is_for(&message, id) {
            return Err(self.shared.options.bad_answer("its answer is not one to the request that it got"));
        }
        Ok(legacy::answered(call, Reply { message, shape: Shape::Plain }))
    }

    /// Reads the stream of a call to its answer, resuming it where the backend allows that.
    async fn follow(
        self: &Arc<Self>,
        emit: &Emitter,
        mut stream: Box<EventStream>,
        opened: &Arc<Opened>,
        id: &Id,
    ) -> Result<Reply, Fault> {
        let options = &self.shared.options;
        let mut asks = OpenAsks::default();
        let answering = Arc::<Answering>::default();
        let mut empty = 0;
        loop {
            loop {
                let message = match stream.next_message(options).await {
                    // Not the backend is silent, its client is.
                    Err(Fault::Timeout { deadline: Deadline::Idle, .. })
                        if answering.excuses(options.idle_timeout) =>
                    {
                        continue;
                    }
                    next => next?,
                };
                let Some(message) = message else { break };
                empty = 0;
                match legacy::incoming(message, &mut asks, |token| self.own_token(token)) {
                    Incoming::Answer(answered, reply) if answered == *id => return Ok(reply),
                    Incoming::Answer(..) | Incoming::Nothing => {}
                    Incoming::Event(event) => emit.emit(event).await,
                    Incoming::Asked(round, ask, answer) => {
                        answering.asked();
                        self.answer_later(opened, ask, answer, AskedBy::Stream(answering.clone()));
                        emit.emit(Event::Asks(round)).await;
                    }
                    Incoming::Ping(pong) => self.tell(opened, pong.bytes().clone()),
                }
            }
            let lost = || options.outcome_unknown("its stream ended without an answer");
            let (last, delay) = stream.resumption().filter(|_| empty < MAX_EMPTY_RESUMES).ok_or_else(lost)?;
            empty += 1;
            emit.emit(Event::Paused(delay)).await;
            tokio::time::sleep(delay).await;
            let mut headers = opened.headers();
            headers.push((LAST_EVENT_ID, HeaderValue::from_maybe_shared(last).map_err(|_| lost())?));
            let asked = self.shared.get(&self.client.principal, &headers, options.first_byte_timeout);
            let response = match Box::pin(asked).await {
                Ok(response) => response,
                // The backend may be on its way back.
                Err(Fault::Unreachable { .. }) => continue,
                Err(fault) => return Err(fault),
            };
            let next = EventStream::of(response, options).ok_or_else(lost)?;
            *stream = next.going_on_from(*stream);
        }
    }

    fn own_token(&self, token: &Bytes) -> Option<Bytes> {
        self.tokens.lock().get(token).cloned()
    }

    /// Sends the client's answer to an ask once it is there.
    fn answer_later(
        self: &Arc<Self>,
        opened: &Arc<Opened>,
        id: Id,
        answer: tokio::sync::oneshot::Receiver<Message>,
        asker: AskedBy,
    ) {
        let (session, opened) = (self.clone(), opened.clone());
        self.shared.tasks.spawn_within("answer ask", async move {
            let answered = legacy::answer(&id, answer).with_cancellation_token(&opened.gone).await;
            let Some(text) = answered else { return };
            match asker {
                AskedBy::Stream(answering) => answering.answered(),
                AskedBy::Aside(Some(key)) => session.calls.answered(key),
                AskedBy::Aside(None) => {}
            }
            // Boxed, so that an answer that is waited for takes no room for its way.
            Box::pin(session.deliver_to_backend(&opened, text)).await;
        });
    }

    fn tell(self: &Arc<Self>, opened: &Arc<Opened>, text: Bytes) {
        let (session, opened) = (self.clone(), opened.clone());
        self.shared
            .tasks
            .spawn_within("tell backend", async move { session.deliver_to_backend(&opened, text).await });
    }

    async fn deliver_to_backend(&self, opened: &Opened, text: Bytes) {
        let sent = tokio::time::timeout(COURTESY * 6, async {
            let _turn = self.telling.acquire().await;
            self.send(opened, text).await
        })
        .await;
        if !matches!(sent, Ok(Ok(_))) {
            tracing::warn!(backend.name = %self.shared.options.name, "a message to the backend was not delivered");
        }
    }

    /// Opens the stream of unasked messages and reads it in the background. Waits for its head, so that a
    /// backend which asks on it finds it there.
    async fn start_stream(self: &Arc<Self>, opened: &Arc<Opened>, held: Option<Arc<Held>>) {
        let stream = match self.shared.get(&self.client.principal, &opened.headers(), STREAM_HEAD_TIME).await
        {
            // It may be on its way back.
            Err(_) => None,
            Ok(response) if response.status().is_server_error() => None,
            Ok(response) if response.status() == StatusCode::NOT_FOUND && opened.id.is_some() => {
                self.lost(opened);
                if self.listening.load(Ordering::Acquire) {
                    self.reopen_for_listeners();
                }
                return;
            }
            Ok(response) => match EventStream::of(response, &self.shared.options) {
                Some(stream) => Some(stream.patient()),
                // The backend offers no such stream.
                None => return,
            },
        };
        let (session, opened) = (self.clone(), opened.clone());
        let name = self.shared.options.name.clone();
        let key = self.home().map(|home| tracing::field::display(home.key()));
        tracing::debug!(backend.name = %name, session.key = key, owned = held.is_some(), open = stream.is_some(), "backend stream begins");
        opened.has_stream.store(true, Ordering::Release);
        self.shared.tasks.spawn("backend stream", async move {
            let gone = opened.gone.clone();
            let drain = session.shared.tasks.drain_token().clone();
            let (again, missed) = tokio::select! {
                () = gone.cancelled() => (true, false),
                () = drain.cancelled() => (false, false),
                () = session.until_unwanted() => (true, false),
                // It is another instance's, through which to hear from now on.
                () = shared_by_all::lost(held.as_deref()) => (true, true),
                () = session.until_shared(held.is_some()) => (true, true),
                // Either the backend offers no such stream any more, or the session is gone.
                () = Box::pin(session.read_stream(stream, &opened)) => (gone.is_cancelled(), false),
            };
            opened.has_stream.store(false, Ordering::Release);
            session.ears.end_all();
            opened.streaming.store(false, Ordering::Release);
            drop(held);
            tracing::debug!(backend.name = %name, session.key = key, again, missed, "backend stream ends");
            if again && session.listening.load(Ordering::Acquire) {
                session.was_lost.fetch_or(missed, Ordering::AcqRel);
                session.reopen_for_listeners();
            }
        });
    }

    /// Resolves when nobody listens and no call runs, and that has lasted: a stream costs a connection, which an
    /// abandoned session must not keep.
    async fn until_unwanted(&self) {
        loop {
            let changed = self.interest.notified();
            let wanted = || {
                self.listening.load(Ordering::Acquire)
                    || self.running.load(Ordering::Acquire) > 0
                    || !self.ears.is_empty()
            };
            if wanted() {
                changed.await;
            } else if tokio::time::timeout(STREAM_LINGER, changed).await.is_err() && !wanted() {
                return;
            }
        }
    }

    /// Reads the stream, and opens it again whenever it has ended, or could not be opened yet.
    async fn read_stream(self: &Arc<Self>, stream: Option<EventStream>, opened: &Arc<Opened>) {
        let options = &self.shared.options;
        let mut asks = OpenAsks::default();
        let mut failures = 0u32;
        let mut stream = match stream {
            Some(stream) => stream,
            None => match Box::pin(self.reopen_stream(None, &mut failures, opened)).await {
                Some(stream) => stream,
                None => return,
            },
        };
        loop {
            loop {
                match stream.next_message(options).await {
                    Ok(Some(message)) => {
                        failures = 0;
                        self.unasked(message, &mut asks, opened);
                    }
                    Ok(None) => break,
                    Err(fault) => {
                        tracing::warn!(backend.name = %options.name, error.code = fault.code(), "backend stream: {fault}");
                        break;
                    }
                }
            }
            let resumable = stream.resumption();
            match Box::pin(self.reopen_stream(resumable, &mut failures, opened)).await {
                Some(next) => stream = next,
                None => return,
            }
        }
    }

    /// Opens the stream again after it has ended, later and later if that fails; `None` if there is to be none.
    async fn reopen_stream(
        self: &Arc<Self>,
        resumable: Option<(Bytes, Duration)>,
        failures: &mut u32,
        opened: &Arc<Opened>,
    ) -> Option<EventStream> {
        let options = &self.shared.options;
        loop {
            let pause = resumable.as_ref().map_or(Duration::from_secs(1), |(_, delay)| *delay);
            let pause = pause.saturating_mul(2u32.saturating_pow((*failures).min(5)));
            tokio::time::sleep(pause.min(Duration::from_secs(30))).await;
            *failures += 1;
            let mut headers = opened.headers();
            let last = resumable.as_ref().and_then(|(id, _)| HeaderValue::from_maybe_shared(id.clone()).ok());
            headers.extend(last.map(|last| (LAST_EVENT_ID, last)));
            match self.shared.get(&self.client.principal, &headers, options.first_byte_timeout).await {
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    self.lost(opened);
                    return None;
                }
                Ok(response) if response.status().is_client_error() => return None,
                Ok(response) => {
                    if let Some(next) = EventStream::of(response, options) {
                        if resumable.is_none() {
                            // Whatever was sent meanwhile is lost, for other instances too.
                            for message in self.everything(opened) {
                                self.told(Event::Notify(message));
                            }
                        }
                        return Some(next.patient().after(resumable));
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn unasked(self: &Arc<Self>, message: Message, asks: &mut OpenAsks, opened: &Arc<Opened>) {
        match legacy::incoming(message, asks, |token| self.own_token(token)) {
            Incoming::Event(event) => self.told(event),
            Incoming::Asked(round, id, answer) => {
                let key = round.asks.first().map(|ask| ask.key);
                self.answer_later(opened, id, answer, AskedBy::Aside(key));
                self.told(Event::Asks(round));
            }
            Incoming::Ping(pong) => self.tell(opened, pong.bytes().clone()),
            Incoming::Answer(..) | Incoming::Nothing => {}
        }
    }
}

/// Whether an answer says that the backend does not know the session.
fn is_session_lost(answer: &Answer, opened: &Opened) -> bool {
    let status = match answer {
        Answer::Message(status, _) | Answer::Other(status) => *status,
        Answer::Accepted | Answer::Stream(_) => return false,
    };
    status == StatusCode::NOT_FOUND && opened.id.is_some()
}

/// Whether a request was refused for what a session's requests are: it was replaced by a server without sessions.
fn is_of_the_other_era(status: StatusCode, answer: &Message) -> bool {
    let about_this_hop = [code::HEADER_MISMATCH, code::UNSUPPORTED_PROTOCOL_VERSION];
    status == StatusCode::BAD_REQUEST && about_this_hop.contains(&answer.error_code())
}

/// On which stream an ask came.
enum AskedBy {
    /// That of a call.
    Stream(Arc<Answering>),
    /// That of what comes unasked.
    Aside(Option<AskKey>),
}

#[async_trait]
impl Conversation for HttpSession {
    fn call(self: Arc<Self>, call: Call) -> Events {
        self.call_or_refuse(call, Refused::default())
    }

    async fn notify(&self, notification: Message) {
        let Some(opened) = self.opened.lock().clone() else { return };
        self.deliver_to_backend(&opened, notification.bytes().clone()).await;
    }

    async fn take_up(self: Arc<Self>, id: &Id, _: Option<Arc<dyn Rights>>) -> Option<TakenUp> {
        self.take_up_call(id).await
    }

    fn listen(self: Arc<Self>) {
        self.listening.store(true, Ordering::Release);
        self.interest.notify_waiters();
        for event in self.ears.take_kept() {
            if let Some(sink) = self.sink() {
                sink.deliver(event);
            }
        }
        let session = self.clone();
        self.shared.tasks.spawn_within("open backend stream", async move {
            if let Err(fault) = session.open().await {
                tracing::warn!(backend.name = %session.shared.options.name, error.code = fault.code(), "backend stream: {fault}");
            }
        });
    }

    fn stop_listening(&self) {
        self.listening.store(false, Ordering::Release);
        self.interest.notify_waiters();
    }

    async fn close(&self) {
        self.closed.cancel();
        let here = self.opened.lock().take();
        let opened = match (here, self.home()) {
            // Whoever opened it may be gone.
            (None, Some(home)) => self.opened_elsewhere(&home).await,
            (here, _) => here,
        };
        if let Some(opened) = opened
            && self.is_ours_to_end(&opened).await
        {
            self.end_at_backend(&opened).await;
        }
    }

    async fn leave(&self) {
        match self.home() {
            Some(home) if !home.is_idle().await => self.closed.cancel(),
            _ => self.close().await,
        }
    }
}

#[async_trait]
impl LegacyConversation for HttpSession {
    async fn handshake(self: Arc<Self>) -> Result<Arc<Description>, Fault> {
        Ok(self.open().await?.handshake.description.clone())
    }

    fn attach(&self, sink: Weak<dyn Unsolicited>) {
        *self.sink.lock() = Some(sink);
    }

    async fn hear(self: Arc<Self>) -> Result<Arc<Description>, Fault> {
        self.listening.store(true, Ordering::Release);
        self.interest.notify_waiters();
        self.handshake().await
    }

    fn settle(self: Arc<Self>, home: Home) {
        self.at_home(home);
    }
}

impl Replaceable for HttpSession {
    fn call_or_refuse(self: Arc<Self>, call: Call, refused: Refused) -> Events {
        generate(|emit| async move {
            let limit = self.shared.options.timeout;
            let ran = tokio::time::timeout(limit, self.run(&emit, &call, &refused)).await;
            let outcome = ran.unwrap_or_else(|_| Err(self.shared.options.late(Deadline::Total)));
            if let Ok(Event::Done(reply)) = &outcome
                && self.restore.note(&call.request, reply)
            {
                self.share_settings(&call.request);
            }
            outcome.unwrap_or_else(Event::Fail)
        })
    }
}
