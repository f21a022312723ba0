//! Many calls over one two-way channel of messages: a process's pipes, or an HTTP+SSE connection.
//!
//! A [`Carrier`] makes the channel; [`Pipe`] multiplexes. Nothing on such a channel says which call a message
//! belongs to except the id of an answer and the progress token, so the rest is for the whole conversation: a
//! backend's ask goes to the call in flight if there is exactly one, else to whoever takes what comes unasked.

mod channel;
mod waiting;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Emitter, Event, Events, generate};
use drawbridge_core::fault::{Deadline, Size};
use drawbridge_core::{Answers, Client, Conversation, Description, Fault, Retry, Tasks};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Message, method};
use parking_lot::Mutex;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::abandoned::Abandoned;
use crate::changes::Filter;
use crate::described::{LegacyConversation, Refused, Replaceable};
use crate::legacy::{self, Handshake, OpenAsks};
use crate::modern;
use crate::options::Options;
use crate::restore::Restore;
pub(crate) use channel::{Carrier, Channel, Received, Receiver, Sender};
use waiting::{Slot, Waiting, asking_call, finish, id_in, next_event, number, only_call, to_call};

/// Which dialect is spoken over the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Legacy,
    Modern,
}

struct Connection {
    sender: Arc<dyn Sender>,
    calls: Mutex<HashMap<u64, Waiting>>,
    abandoned: Abandoned,
    used: Mutex<Instant>,
    /// Cancelled when the channel is to be closed, or is.
    gone: CancellationToken,
    why: Mutex<String>,
    handshake: Mutex<Option<Handshake>>,
    /// The log level that calls have set.
    level: Mutex<Option<usize>>,
}

impl Connection {
    fn is_idle(&self) -> bool {
        self.calls.lock().is_empty()
    }
}

/// One conversation over a channel, which is opened with the first call and again after it was lost.
pub(crate) struct Pipe {
    carrier: Arc<dyn Carrier>,
    dialect: Dialect,
    options: Options,
    client: Arc<Client>,
    tasks: Tasks,
    sink: Mutex<Option<Weak<dyn Unsolicited>>>,
    current: Mutex<Option<Arc<Connection>>>,
    opening: tokio::sync::Mutex<()>,
    next_id: AtomicU64,
    restore: Restore,
    /// Somebody listens, so the channel is kept open.
    heard: AtomicBool,
    /// The client takes what comes unasked; so the channel is kept open if it has asked to be told of something.
    has_reader: AtomicBool,
    /// A channel was open before, so what its listeners missed is not known.
    was_open: AtomicBool,
    closed: CancellationToken,
}

impl Pipe {
    pub(crate) fn new(
        carrier: Arc<dyn Carrier>,
        dialect: Dialect,
        options: Options,
        client: Arc<Client>,
        tasks: Tasks,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            carrier,
            dialect,
            options,
            client,
            tasks,
            sink: Mutex::new(sink),
            current: Mutex::new(None),
            opening: tokio::sync::Mutex::default(),
            next_id: AtomicU64::new(1),
            restore: Restore::default(),
            heard: AtomicBool::new(false),
            has_reader: AtomicBool::new(false),
            was_open: AtomicBool::new(false),
            closed: CancellationToken::new(),
        })
    }

    /// Ends the channel if no call is running, to make room for another. Returns since when it was idle, or
    /// `None` if it is busy, is listened to, or there is no channel.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        if self.is_heard() {
            return None;
        }
        let current = self.current.lock();
        let connection = current.as_ref()?;
        connection.is_idle().then(|| *connection.used.lock())
    }

    /// Closes the channel; the next call opens another.
    pub(crate) fn hang_up(&self) {
        if let Some(connection) = self.current.lock().take() {
            connection.gone.cancel();
        }
    }

    fn next_number(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<Connection>, Fault> {
        let usable = |slot: &Option<Arc<Connection>>| slot.clone().filter(|c| !c.gone.is_cancelled());
        if let Some(connection) = usable(&self.current.lock()) {
            return Ok(connection);
        }
        let _turn = self.opening.lock().await;
        if let Some(connection) = usable(&self.current.lock()) {
            return Ok(connection);
        }
        if self.closed.is_cancelled() {
            return Err(Fault::Draining);
        }
        let channel = self.carrier.connect(self.dialect).await?;
        let connection = Arc::new(Connection {
            sender: channel.sender,
            calls: Mutex::default(),
            abandoned: Abandoned::default(),
            used: Mutex::new(Instant::now()),
            gone: self.closed.child_token(),
            why: Mutex::default(),
            handshake: Mutex::default(),
            level: Mutex::default(),
        });
        let (pipe, reading) = (self.clone(), connection.clone());
        self.tasks.spawn("read backend", async move { pipe.read(reading, channel.receiver).await });
        // Whatever happens until the handshake is done must not leave the channel behind.
        let unfinished = connection.gone.clone().drop_guard();
        if self.dialect == Dialect::Legacy {
            self.shake_hands(&connection).await?;
        }
        unfinished.disarm();
        *self.current.lock() = Some(connection.clone());
        if self.was_open.swap(true, Ordering::AcqRel) {
            self.tell_everything(&connection);
        }
        Ok(connection)
    }

    /// Tells whoever listens that all may have changed that the backend tells of.
    fn tell_everything(&self, connection: &Connection) {
        let sink = self.sink.lock().as_ref().and_then(Weak::upgrade);
        let handshake = connection.handshake.lock();
        let (Some(sink), Some(handshake)) = (sink, handshake.as_ref()) else { return };
        let mut filter = Filter::all_lists().offered_by(&handshake.description.capabilities);
        filter.uris = self.restore.subscriptions();
        filter.everything().into_iter().for_each(|message| sink.deliver(Event::Notify(message)));
    }

    /// Whether the channel is to be open without a call too: somebody waits for what comes unasked.
    fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Acquire)
            || (self.has_reader.load(Ordering::Acquire) && !self.restore.subscriptions().is_empty())
    }

    /// Opens the channel again for those who listen, later and later if that fails.
    fn reopen_for_listeners(self: &Arc<Self>) {
        let pipe = self.clone();
        let work = async move {
            let mut pause = Duration::from_millis(500);
            while pipe.is_heard() {
                tokio::time::sleep(pause).await;
                if pipe.open().await.is_ok() {
                    return;
                }
                pause = (pause * 2).min(Duration::from_secs(30));
            }
        };
        let (closed, drain) = (self.closed.clone(), self.tasks.drain_token().clone());
        self.tasks.spawn("listen again", async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = drain.cancelled() => {}
                () = work => {}
            }
        });
    }

    async fn shake_hands(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<(), Fault> {
        let number = self.next_number();
        let request = legacy::initialize(&Id::from_number(number), &self.client);
        let (mut slot, _events, done) = Slot::take(self, connection, number, None, false);
        // A handshake must not be cancelled (MCP 2025-11-25, cancellation § behavior).
        slot.armed = false;
        let answer = async {
            connection.sender.send(request.bytes().clone()).await?;
            match done.await {
                Ok(Event::Done(reply)) => Ok(reply.message),
                Ok(Event::Fail(fault)) => Err(fault),
                _ => Err(self.not_started(connection)),
            }
        };
        let late = || self.options.late(Deadline::Start);
        let answer = tokio::time::timeout(self.options.start_timeout, answer).await.map_err(|_| late())??;
        drop(slot);
        let handshake = legacy::handshake(&answer, &self.client, &self.options)?;
        *connection.handshake.lock() = Some(handshake);
        connection.sender.send(legacy::initialized().bytes().clone()).await?;
        for message in self.restore.messages(|| Id::from_number(self.next_number())) {
            connection.sender.send(message).await?;
        }
        Ok(())
    }

    fn not_started(&self, connection: &Connection) -> Fault {
        Fault::NotStarted { backend: self.options.name.to_string(), detail: connection.why.lock().clone() }
    }

    /// Reads the channel until it ends, is to be closed, or was idle for too long.
    async fn read(self: Arc<Self>, connection: Arc<Connection>, mut receiver: Box<dyn Receiver>) {
        let mut asks = OpenAsks::default();
        let why = loop {
            let idle = self.until_idle(&connection);
            let received = tokio::select! {
                received = receiver.receive() => received,
                () = connection.gone.cancelled() => break "the gateway ended it".to_owned(),
                () = idle => break "it was idle".to_owned(),
            };
            match received {
                Received::Message(text) => self.received(&connection, &mut asks, text),
                Received::TooLarge(head) => self.too_large(&connection, &head),
                Received::Closed(why) => break why,
            }
        };
        tracing::info!(backend.name = %self.options.name, "backend connection ended: {why}");
        *connection.why.lock() = why;
        connection.gone.cancel();
        connection.calls.lock().clear();
        self.forget_connection(&connection);
        receiver.close(&*self.carrier).await;
        if self.dialect == Dialect::Legacy && !self.closed.is_cancelled() && self.is_heard() {
            self.reopen_for_listeners();
        }
    }

    fn forget_connection(&self, connection: &Arc<Connection>) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, connection)) {
            *current = None;
        }
    }

    async fn until_idle(&self, connection: &Connection) {
        let Some(limit) = self.carrier.idle_stop() else { return std::future::pending().await };
        loop {
            let idle = connection.is_idle() && !self.is_heard();
            let idle_for = if idle { connection.used.lock().elapsed() } else { Duration::ZERO };
            if idle_for >= limit {
                return;
            }
            tokio::time::sleep((limit - idle_for).max(Duration::from_millis(50))).await;
        }
    }

    /// Fails the call whose answer was too large, if the start of it tells the id.
    fn too_large(&self, connection: &Connection, head: &Bytes) {
        let number = id_in(head);
        tracing::warn!(backend.name = %self.options.name, "a message over the size limit was dropped");
        let waiting = number.and_then(|n| connection.calls.lock().remove(&n));
        match waiting {
            Some(mut waiting) => finish(&mut waiting, Event::Fail(self.options.too_large(Size::Line))),
            // Its id comes after the result: if one call runs, it is that one's.
            None => {
                let mut calls = connection.calls.lock();
                if let Some(number) = only_call(&calls)
                    && let Some(mut waiting) = calls.remove(&number)
                {
                    finish(&mut waiting, Event::Fail(self.options.too_large(Size::Line)));
                }
            }
        }
    }

    fn received(self: &Arc<Self>, connection: &Arc<Connection>, asks: &mut OpenAsks, text: Bytes) {
        let message = match Message::parse_trusting(text) {
            Ok(message) => message,
            Err(invalid) => {
                tracing::warn!(backend.name = %self.options.name, "the backend sent something that is not MCP: {invalid}");
                return;
            }
        };
        match self.dialect {
            Dialect::Legacy => self.received_legacy(connection, asks, message),
            Dialect::Modern => self.received_modern(connection, message),
        }
    }

    fn received_legacy(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        asks: &mut OpenAsks,
        message: Message,
    ) {
        let about = (message.method() == method::PROGRESS)
            .then(|| message.raw(Field::ProgressToken).and_then(number))
            .flatten();
        let own = |_: &Bytes| about.and_then(|n| connection.calls.lock().get(&n)?.token.clone());
        match legacy::incoming(message, asks, own) {
            legacy::Incoming::Answer(id, reply) => self.answered(connection, &id, Event::Done(reply)),
            legacy::Incoming::Event(event) => match about {
                Some(number) => to_call(connection, number, event),
                None => self.unasked(connection, event),
            },
            legacy::Incoming::Asked(round, id, answer) => {
                let is_doubtful = self.is_shared() && connection.abandoned.are_there();
                let asker = if is_doubtful { None } else { asking_call(&mut connection.calls.lock()) };
                let (pipe, connection_) = (self.clone(), connection.clone());
                self.tasks.spawn_within("answer ask", async move {
                    let deliver = async {
                        let text = legacy::answer(&id, answer).await;
                        if let Some(number) = asker
                            && let Some(waiting) = connection_.calls.lock().get_mut(&number)
                        {
                            waiting.asked -= 1;
                            waiting.answering.answered();
                        }
                        if let Err(fault) = connection_.sender.send(text).await {
                            tracing::warn!(backend.name = %pipe.options.name, error.code = fault.code(), error.message = ?fault.to_string(), "an answer was not delivered");
                        }
                    };
                    // A backend that does not read ends the wait with its connection.
                    deliver.with_cancellation_token(&connection_.gone).await;
                });
                match asker {
                    Some(number) => to_call(connection, number, Event::Asks(round)),
                    None => self.unasked(connection, Event::Asks(round)),
                }
            }
            legacy::Incoming::Ping(pong) => self.tell(connection, pong.bytes().clone()),
            legacy::Incoming::Nothing => {}
        }
    }

    fn received_modern(&self, connection: &Connection, message: Message) {
        let subject =
            [Field::MetaSubscriptionId, Field::ProgressToken].into_iter().find_map(|f| message.raw(f));
        let subject = subject.and_then(number);
        let id = message.id();
        let token = message.raw(Field::ProgressToken).is_some();
        let Some(event) = modern::incoming(message, self.options.name.as_str()) else { return };
        if event.is_terminal() {
            if let Some(id) = id {
                self.answered(connection, &id, event);
            }
            return;
        }
        let only = only_call(&connection.calls.lock());
        let Some(number) = subject.or(only) else { return };
        let own = connection.calls.lock().get(&number).and_then(|w| w.token.clone());
        match (event, own) {
            (Event::Notify(message), Some(own)) if token => {
                let message = Edit::new(&message).set(Field::ProgressToken, own).into_message();
                to_call(connection, number, Event::Notify(message));
            }
            (event, _) => to_call(connection, number, event),
        }
    }

    fn answered(&self, connection: &Connection, id: &Id, event: Event) {
        let number = number(id.literal());
        match number.and_then(|n| connection.calls.lock().remove(&n)) {
            Some(mut waiting) => finish(&mut waiting, event),
            None => number.into_iter().for_each(|n| connection.abandoned.answered(n)),
        }
        *connection.used.lock() = Instant::now();
    }

    /// Whether several clients use this conversation.
    fn is_shared(&self) -> bool {
        self.sink.lock().as_ref().and_then(Weak::upgrade).is_some_and(|sink| sink.is_shared())
    }

    /// Takes what belongs to no call in particular. A client that takes nothing unasked gets log messages with the one
    /// call that runs, or not at all.
    fn unasked(&self, connection: &Connection, event: Event) {
        let sink = self.sink.lock().as_ref().and_then(Weak::upgrade);
        match (event, sink) {
            (Event::Notify(message), _)
                if self.client.answers == Answers::ByRetry && message.method() == method::LOG_MESSAGE =>
            {
                let only = only_call(&connection.calls.lock());
                if let Some(number) = only {
                    to_call(connection, number, Event::Notify(message));
                }
            }
            (event, Some(sink)) => sink.deliver(event),
            (Event::Asks(round), None) => legacy::refuse_round(*round),
            (_, None) => {}
        }
    }

    fn tell(self: &Arc<Self>, connection: &Arc<Connection>, text: Bytes) {
        let connection = connection.clone();
        self.tasks.spawn_within("tell backend", async move {
            // A backend that does not read will be noticed by its calls.
            let _ = tokio::time::timeout(Duration::from_secs(5), connection.sender.send(text)).await;
        });
    }

    async fn run(self: &Arc<Self>, emit: &Emitter, call: &Call) -> Result<Event, Fault> {
        let is_listen = call.request.method() == method::LISTEN;
        let mut attempt = 0;
        let (connection, slot, events, mut done) = loop {
            // Boxed, so that a call that waits keeps no room for what was before it.
            let connection = Box::pin(self.open()).await?;
            let number = self.next_number();
            let token = call.request.slice(Field::MetaProgressToken);
            let (slot, events, done) = Slot::take(self, &connection, number, token, is_listen);
            if call.request.raw(Field::MetaLogLevel).is_some() {
                Box::pin(self.set_level(call, &connection)).await;
            }
            match connection.sender.send(self.outgoing(call, number)).await {
                Ok(()) => break (connection, slot, events, done),
                // It was not delivered, so a fresh channel may have it.
                Err(fault) if attempt == 0 && fault.retry() == Retry::Safe => {
                    slot.forget();
                    connection.gone.cancel();
                    attempt += 1;
                }
                Err(fault) => return Err(fault),
            }
        };
        // A listen is meant to be quiet and to last.
        let mut limit = if is_listen { Duration::MAX } else { self.options.first_byte_timeout };
        let mut deadline = Deadline::FirstByte;
        loop {
            let next = tokio::time::timeout(limit, next_event(&events, &mut done)).await;
            let next = match next {
                // Not the backend is silent, its client is.
                Err(_) if slot.answering.excuses(limit) => continue,
                next => next.map_err(|_| self.options.late(deadline))?,
            };
            match next {
                Some(event) if event.is_terminal() => {
                    slot.forget();
                    return Ok(match event {
                        Event::Done(reply) if self.dialect == Dialect::Legacy => {
                            legacy::answered(call, reply)
                        }
                        event => modern::permitted(call, event, &self.options),
                    });
                }
                Some(event) => emit.emit(event).await,
                None => {
                    slot.forget();
                    let why = connection.why.lock().clone();
                    return Err(self.options.outcome_unknown(why));
                }
            }
            if !is_listen {
                limit = self.options.idle_timeout;
                deadline = Deadline::Idle;
            }
        }
    }

    /// Makes sure that a backend with sessions logs what `call` wants to see. Its answer says nothing of interest.
    async fn set_level(&self, call: &Call, connection: &Connection) {
        let request = {
            let handshake = connection.handshake.lock();
            let Some(handshake) = handshake.as_ref() else { return };
            let id = Id::from_number(self.next_number());
            legacy::set_level(call, &mut connection.level.lock(), handshake, &id)
        };
        if let Some(request) = request {
            // The call that follows tells if the backend does not read.
            let _ = connection.sender.send(request.bytes().clone()).await;
        }
    }

    fn outgoing(&self, call: &Call, number: u64) -> Bytes {
        let id = Id::from_number(number);
        match self.dialect {
            Dialect::Legacy => legacy::outgoing(call, &id),
            Dialect::Modern => modern::outgoing(&call.request, &id, &call.client, Some(id.literal())),
        }
    }
}

#[async_trait]
impl Conversation for Pipe {
    fn call(self: Arc<Self>, call: Call) -> Events {
        let is_listen = call.request.method() == method::LISTEN;
        let limit = if is_listen { Duration::MAX } else { self.options.timeout };
        generate(|emit| async move {
            let ran = tokio::time::timeout(limit, self.run(&emit, &call)).await;
            let outcome = ran.unwrap_or_else(|_| Err(self.options.late(Deadline::Total)));
            if let Ok(Event::Done(reply)) = &outcome {
                self.restore.note(&call.request, reply);
            }
            outcome.unwrap_or_else(Event::Fail)
        })
    }

    async fn notify(&self, notification: Message) {
        let connection = self.current.lock().clone();
        if self.dialect == Dialect::Legacy
            && let Some(connection) = connection
        {
            let text = notification.bytes().clone();
            let _ = tokio::time::timeout(Duration::from_secs(5), connection.sender.send(text)).await;
        }
    }

    fn listen(self: Arc<Self>) {
        if self.dialect == Dialect::Modern {
            return;
        }
        self.has_reader.store(true, Ordering::Release);
        let pipe = self.clone();
        self.tasks.spawn_within("open backend", async move {
            if let Err(fault) = pipe.open().await {
                tracing::warn!(backend.name = %pipe.options.name, error.code = fault.code(), "not opened: {fault}");
            }
        });
    }

    /// The channel carries everything or nothing, and may be closed when it is idle.
    fn stop_listening(&self) {
        self.heard.store(false, Ordering::Release);
        self.has_reader.store(false, Ordering::Release);
    }

    async fn close(&self) {
        self.closed.cancel();
        self.hang_up();
    }
}

impl Replaceable for Pipe {
    fn call_or_refuse(self: Arc<Self>, call: Call, _refused: Refused) -> Events {
        self.call(call)
    }
}

#[async_trait]
impl LegacyConversation for Pipe {
    async fn handshake(self: Arc<Self>) -> Result<Arc<Description>, Fault> {
        let connection = self.open().await?;
        let handshake = connection.handshake.lock().clone();
        handshake.map(|h| h.description).ok_or_else(|| self.options.bad_answer("it did not shake hands"))
    }

    fn attach(&self, sink: Weak<dyn Unsolicited>) {
        *self.sink.lock() = Some(sink);
    }

    async fn hear(self: Arc<Self>) -> Result<Arc<Description>, Fault> {
        self.heard.store(true, Ordering::Release);
        self.handshake().await
    }
}

/// Asks what the backend is; the message of the answer.
pub(crate) async fn ask(
    pipe: Arc<dyn LegacyConversation>,
    options: &Options,
    client: &Arc<Client>,
    request: Message,
) -> Result<Message, Fault> {
    let call = Call::new(request, client.clone());
    let mut events = pipe.call(call);
    let answer = async {
        while let Some(event) = futures_util::StreamExt::next(&mut events).await {
            match event {
                Event::Done(reply) => return Ok(reply.message),
                Event::Fail(fault) => return Err(fault),
                _ => {}
            }
        }
        Err(options.outcome_unknown("no answer"))
    };
    let answered = tokio::time::timeout(options.start_timeout, answer).await;
    answered.unwrap_or_else(|_| Err(options.late(Deadline::Start)))
}
