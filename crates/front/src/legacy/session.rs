//! What an instance keeps for a session: everything here can be lost without ending the session.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Answering, Ask, AskKey, Event};
use drawbridge_core::event_log::{EventRing, SessionKey, StreamKey};
use drawbridge_core::fleet::Peers;
use drawbridge_core::state::{InstanceId, SharedState};
use drawbridge_core::{Client, Conversing as _, Endpoint, Tasks, request};
use drawbridge_wire::{Id, Message, RpcError, code, method};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::bound::Bound;
use super::encode;

/// The standalone stream's number; streams of calls have others.
pub(super) const STANDALONE: u64 = 0;
/// Messages that wait for a client to open its standalone stream; the oldest go first.
const MAX_WAITING: usize = 256;
/// What a client is told whose endpoint has changed.
const LIST_CHANGES: [&str; 3] =
    [method::TOOLS_LIST_CHANGED, method::PROMPTS_LIST_CHANGED, method::RESOURCES_LIST_CHANGED];
/// Asks that wait for an answer at once, per session.
const MAX_ASKS: usize = 256;

/// A call in flight.
pub(super) struct InFlight {
    pub(super) serial: u64,
    pub(super) id: Id,
    /// Events that came outside of the call and are for its stream.
    inbox: Mutex<VecDeque<Event>>,
    pub(super) waker: AtomicWaker,
    cancelled: AtomicBool,
    /// Somebody resumed its stream, so whoever writes it now must stop.
    displaced: AtomicBool,
    /// The number of its stream, once it has one.
    stream: AtomicU64,
    transport: AtomicU8,
}

/// How the client gets what comes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// As the one answer of its request.
    Json,
    /// On a stream.
    Stream,
    /// Not at all: it went away before there was a stream.
    Gone,
}

impl InFlight {
    pub(super) fn take(&self) -> Option<Event> {
        self.inbox.lock().pop_front()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Whether the connection that reads the call has lost it to another; true once.
    pub(super) fn take_displaced(&self) -> bool {
        self.displaced.swap(false, Ordering::AcqRel)
    }

    pub(super) fn is(&self, transport: Transport) {
        self.transport.store(transport as u8, Ordering::Relaxed);
    }

    pub(super) fn transport(&self) -> Transport {
        match self.transport.load(Ordering::Relaxed) {
            0 => Transport::Json,
            1 => Transport::Stream,
            _ => Transport::Gone,
        }
    }

    pub(super) fn set_stream(&self, stream: u64) {
        self.stream.store(stream, Ordering::Release);
    }
}

/// The stream that belongs to no call.
#[derive(Default)]
struct Standalone {
    seq: u64,
    waiting: VecDeque<(u64, Bytes)>,
    /// Which opening of the stream is the receiver; 0: none is open.
    receiver: u64,
    openings: u64,
    /// The client has opened another one at another instance since.
    moved: bool,
    /// So many openings were told to all instances, and not heard back yet. All hear them in the same order.
    announced: usize,
}

impl Standalone {
    /// Whether the client has such a stream, or had one and may come back to it, here.
    fn is_here(&self) -> bool {
        self.openings > 0 && !self.moved
    }
}

struct Pending {
    reply: Answering,
    /// The call on whose stream it was asked.
    serial: Option<u64>,
}

#[derive(Default)]
struct State {
    in_flight: Vec<Arc<InFlight>>,
    asks: HashMap<AskKey, Pending>,
    standalone: Standalone,
}

/// A session on this instance.
pub struct Session {
    pub(super) key: SessionKey,
    client: Arc<Client>,
    /// Who came with it first, for operators.
    pub(super) caller: Option<Arc<request::Caller>>,
    bound: Mutex<Arc<Bound>>,
    pub(super) instance: InstanceId,
    pub(super) peers: Peers,
    pub(super) events: Arc<EventRing>,
    state: Mutex<State>,
    used: Mutex<Instant>,
    standalone_waker: AtomicWaker,
    ended: AtomicBool,
}

impl Session {
    pub(super) fn new(
        key: SessionKey,
        client: Arc<Client>,
        endpoint: Arc<Endpoint>,
        peers: Peers,
        events: Arc<EventRing>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            key,
            bound: Mutex::new(Arc::new(Bound::new(endpoint, client.clone(), key, me.clone()))),
            client,
            caller: request::caller(),
            instance: peers.instance().clone(),
            peers,
            events,
            state: Mutex::default(),
            used: Mutex::new(Instant::now()),
            standalone_waker: AtomicWaker::new(),
            ended: AtomicBool::new(false),
        })
    }

    /// Who the client is.
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// What the session has at its endpoint.
    pub(super) fn bound(&self) -> Arc<Bound> {
        self.bound.lock().clone()
    }

    /// Its endpoint.
    pub(super) fn endpoint(&self) -> Arc<Endpoint> {
        self.bound.lock().endpoint.clone()
    }

    /// Whether it is a session of this endpoint, or of the one that had its place before.
    pub(super) fn belongs_to(&self, endpoint: &Arc<Endpoint>) -> bool {
        let bound = self.bound.lock();
        Arc::ptr_eq(&bound.endpoint, endpoint) || bound.endpoint.name() == endpoint.name()
    }

    /// Goes on at the endpoint that has taken the place of its own. The client is told that all lists may have
    /// changed, if it listens.
    pub(super) fn move_to(&self, endpoint: &Arc<Endpoint>, tasks: &Tasks) {
        let left = {
            let mut bound = self.bound.lock();
            // A request that has begun before the change must not bring the session back.
            if Arc::ptr_eq(&bound.endpoint, endpoint) || endpoint.replaced().is_cancelled() {
                return;
            }
            let next = Arc::new(bound.moved_to(endpoint, tasks));
            std::mem::replace(&mut *bound, next)
        };
        drop(left);
        let (listens, is_here) = {
            let state = self.state.lock();
            (state.standalone.receiver != 0, state.standalone.is_here())
        };
        if listens {
            self.bound().listen();
        }
        if is_here {
            for changed in LIST_CHANGES {
                self.deliver(Event::Notify(Message::notification(changed, b"{}")));
            }
        }
    }

    /// The session is no more, since its endpoint is not. Calls that run go on.
    pub(super) fn retire(&self, tasks: &Tasks) {
        self.ended.store(true, Ordering::Release);
        self.standalone_waker.wake();
        self.bound().leave(tasks);
    }

    pub(super) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// For how long nothing has used the session; `None` while something does.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let state = self.state.lock();
        let busy = !state.in_flight.is_empty() || state.standalone.receiver != 0;
        (!busy).then(|| self.used.lock().elapsed())
    }

    /// How long ago it was last used.
    pub(super) fn unused_for(&self) -> Duration {
        self.used.lock().elapsed()
    }

    /// Calls that run, and whether the standalone stream is open here.
    pub(super) fn load(&self) -> (usize, bool) {
        let state = self.state.lock();
        (state.in_flight.len(), state.standalone.receiver != 0)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends its streams.
    pub(super) fn end_streams(&self) {
        self.ended.store(true, Ordering::Release);
        self.standalone_waker.wake();
        for call in &self.state.lock().in_flight {
            call.cancelled.store(true, Ordering::Release);
            call.waker.wake();
        }
    }

    /// Ends its conversations with backends.
    pub(super) async fn close(&self) {
        for conversation in self.bound().take() {
            conversation.close().await;
        }
    }

    /// Ends also those that only other instances have begun, which may be gone, and forgets what all knew.
    pub(super) async fn close_everywhere(&self, state: &SharedState) {
        let bound = self.bound();
        let conversations = (0..bound.endpoint.backends().len()).map(|index| bound.conversation(index));
        let ended = conversations.map(|conversation| async move { conversation.close().await });
        futures_util::future::join_all(ended).await;
        if let Err(e) = state.sessions.take(self.key).await {
            tracing::debug!("what was known of an ended session stays for its time: {e}");
        }
    }

    /// The stream of the call of the request `id`, if that runs here and has one.
    pub(super) fn stream_of(&self, id: &Id) -> Option<u64> {
        let state = self.state.lock();
        let call = state.in_flight.iter().find(|call| call.id == *id)?;
        Some(call.stream.load(Ordering::Acquire)).filter(|stream| *stream != STANDALONE)
    }

    /// Leaves them to other instances.
    pub(super) async fn leave(&self) {
        for conversation in self.bound().take() {
            conversation.leave().await;
        }
    }

    /// Enters a call. Serial numbers are unique among all instances, and all runs of each, so they can name its stream too:
    /// copies of streams of one session are found by them.
    pub(super) fn begin(&self, id: Id) -> Arc<InFlight> {
        static NEXT: LazyLock<AtomicU64> =
            LazyLock::new(|| AtomicU64::new((u64::from(rand::random::<u32>() | 1) << 31) + STANDALONE));
        let call = Arc::new(InFlight {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            id,
            inbox: Mutex::default(),
            waker: AtomicWaker::new(),
            cancelled: AtomicBool::new(false),
            displaced: AtomicBool::new(false),
            stream: AtomicU64::new(STANDALONE),
            transport: AtomicU8::new(Transport::Json as u8),
        });
        self.state.lock().in_flight.push(call.clone());
        self.touch();
        call
    }

    /// A call has ended: what waited for it waits no more.
    pub(super) fn finish(&self, call: &InFlight) {
        let mut state = self.state.lock();
        state.in_flight.retain(|c| c.serial != call.serial);
        state.asks.retain(|_, pending| pending.serial != Some(call.serial));
        drop(state);
        self.touch();
    }

    /// Cancels the calls with this id; equal ids in flight are all meant.
    pub(super) fn cancel(&self, id: &Id) {
        let id = id.canonical();
        for call in self.state.lock().in_flight.iter().filter(|c| c.id.canonical() == id) {
            call.cancelled.store(true, Ordering::Release);
            call.waker.wake();
        }
    }

    /// Takes the stream of a call away from the connection that has it.
    pub(super) fn displace(&self, stream: u64) {
        let state = self.state.lock();
        if let Some(call) = state.in_flight.iter().find(|c| c.stream.load(Ordering::Acquire) == stream) {
            call.displaced.store(true, Ordering::Release);
            call.waker.wake();
        }
    }

    /// The id under which a client is asked.
    pub(super) fn ask_id(&self, key: AskKey) -> Id {
        Id::from_text(&format!("{}-{}", self.instance, key.0))
    }

    /// Enters an ask; returns the request for the client, or refuses it if the client did not declare that it can
    /// answer or has too many to answer already.
    pub(super) fn enter_ask(&self, ask: Ask, serial: Option<u64>) -> Option<Message> {
        let reply = ask.reply?;
        let request = encode::ask(&self.client, &ask.request, &self.ask_id(ask.key));
        let mut state = self.state.lock();
        let Some(request) = request.filter(|_| state.asks.len() < MAX_ASKS) else {
            drop(state);
            let what = format!("the client does not offer {}", ask.request.method());
            let error = RpcError::new(code::METHOD_NOT_FOUND, what);
            reply.send(error.to_message(ask.request.id().as_ref()));
            return None;
        };
        state.asks.insert(ask.key, Pending { reply, serial });
        Some(request)
    }

    /// Takes the client's response to an ask; one that nobody waits for is ignored. Gives back one that is for another
    /// instance.
    pub(super) fn answer(&self, response: Message) -> Option<(InstanceId, AskKey, Message)> {
        self.touch();
        let id = response.id()?;
        let text = id.text()?.into_owned();
        let (instance, key) = text.split_once('-')?;
        let key = AskKey(key.parse().ok()?);
        if instance != self.instance.as_str() {
            return Some((InstanceId::parse(instance)?, key, response));
        }
        self.take_answer(key, response);
        None
    }

    /// Takes the response to an ask of this instance.
    pub(super) fn take_answer(&self, key: AskKey, response: Message) {
        let pending = self.state.lock().asks.remove(&key);
        if let Some(pending) = pending {
            // The call may have ended meanwhile.
            pending.reply.send(response);
        }
    }

    /// Forgets an ask that the backend took back. Returns whether the client was asked.
    pub(super) fn withdraw(&self, key: AskKey) -> bool {
        self.state.lock().asks.remove(&key).is_some()
    }

    /// Passes a notification of the client on to all backends that are in conversation.
    pub(super) async fn notify(&self, notification: Message) {
        self.touch();
        for conversation in self.bound().conversations() {
            conversation.notify(notification.clone()).await;
        }
    }

    /// Opens the standalone stream: the opening becomes the receiver, an older one ends. `replay` is what the
    /// client has seen, if it resumes.
    pub(super) fn open_standalone(&self, seen: Option<u64>) -> u64 {
        let opening = {
            let mut state = self.state.lock();
            let standalone = &mut state.standalone;
            standalone.openings += 1;
            standalone.moved = false;
            standalone.receiver = standalone.openings;
            if let Some(seen) = seen {
                standalone.waiting.retain(|(seq, _)| *seq > seen);
            }
            standalone.openings
        };
        self.standalone_waker.wake();
        self.touch();
        self.bound().listen();
        opening
    }

    /// All instances are told that the standalone stream is here.
    pub(super) fn announce(&self) {
        self.state.lock().standalone.announced += 1;
    }

    /// What was told has come back, or can't.
    pub(super) fn hear_own(&self) {
        let standalone = &mut self.state.lock().standalone;
        standalone.announced = standalone.announced.saturating_sub(1);
    }

    /// Another instance says that the standalone stream is there. If this one has said so too and not heard it yet, it
    /// has said it later.
    pub(super) fn displace_by_word(&self) {
        if self.state.lock().standalone.announced == 0 {
            self.displace_standalone();
        }
    }

    /// The client has opened its standalone stream at another instance: what waits here goes there, if it asks for it.
    pub(super) fn displace_standalone(&self) {
        {
            let mut state = self.state.lock();
            if state.standalone.openings == 0 || state.standalone.moved {
                return;
            }
            let Standalone { seq, openings, announced, .. } = state.standalone;
            let waiting = VecDeque::new();
            state.standalone = Standalone { seq, waiting, receiver: 0, openings, moved: true, announced };
            self.stop_listening();
        }
        self.standalone_waker.wake();
        self.touch();
    }

    /// The number of the latest message of the standalone stream.
    pub(super) fn standalone_seq(&self) -> u64 {
        let state = self.state.lock();
        let waiting = state.standalone.waiting.len() as u64;
        state.standalone.seq - waiting
    }

    /// Closes an opening of the standalone stream.
    pub(super) fn close_standalone(&self, opening: u64) {
        let mut state = self.state.lock();
        let was_receiver = state.standalone.receiver == opening;
        if was_receiver {
            state.standalone.receiver = 0;
            // Before somebody opens another one.
            self.stop_listening();
        }
        drop(state);
        self.touch();
    }

    fn stop_listening(&self) {
        self.bound().conversations().iter().for_each(|conversation| conversation.stop_listening());
    }

    /// The next message of the standalone stream: `Err` when this opening is not the receiver any more.
    pub(super) fn next_standalone(
        &self,
        opening: u64,
        cx: &std::task::Context<'_>,
    ) -> Result<Option<(u64, Bytes)>, Displaced> {
        self.standalone_waker.register(cx.waker());
        let mut state = self.state.lock();
        if state.standalone.receiver != opening || self.is_ended() {
            // The new receiver has to be woken in this one's place.
            drop(state);
            self.standalone_waker.wake();
            return Err(Displaced);
        }
        Ok(state.standalone.waiting.pop_front())
    }

    fn put_standalone(&self, state: &mut State, text: Bytes) {
        let standalone = &mut state.standalone;
        standalone.seq += 1;
        let key = StreamKey { session: self.key, stream: STANDALONE };
        self.events.append(key, standalone.seq, text.clone());
        if standalone.waiting.len() == MAX_WAITING {
            standalone.waiting.pop_front();
        }
        standalone.waiting.push_back((standalone.seq, text));
    }
}

/// Another stream is the receiver now.
pub(super) struct Displaced;

impl Unsolicited for Session {
    /// An ask goes to the call in flight if there is just one, since a backend asks because it was called; all
    /// else goes to the standalone stream, or waits for it, or, if the client has none, to the call in flight.
    fn deliver(&self, event: Event) {
        let mut state = self.state.lock();
        let only = (state.in_flight.len() == 1).then(|| state.in_flight[0].clone());
        let to_call = match &event {
            Event::Asks(_) | Event::Withdraw(_) => only,
            _ => only.filter(|_| !state.standalone.is_here()),
        };
        if let Some(call) = to_call {
            drop(state);
            let mut inbox = call.inbox.lock();
            if inbox.len() < MAX_WAITING {
                inbox.push_back(event);
            }
            drop(inbox);
            call.waker.wake();
            return;
        }
        match event {
            Event::Notify(message) => {
                let text = encode::notification(&message);
                self.put_standalone(&mut state, text);
            }
            Event::Asks(round) => {
                drop(state);
                let asks: Vec<Bytes> = round
                    .asks
                    .into_iter()
                    .filter_map(|ask| self.enter_ask(ask, None))
                    .map(|request| request.bytes().clone())
                    .collect();
                state = self.state.lock();
                asks.into_iter().for_each(|text| self.put_standalone(&mut state, text));
            }
            Event::Withdraw(key) => {
                drop(state);
                if self.withdraw(key) {
                    let text = encode::withdrawal(&self.ask_id(key));
                    self.put_standalone(&mut self.state.lock(), text);
                }
                self.standalone_waker.wake();
                return;
            }
            Event::Begun | Event::Paused(_) | Event::Done(_) | Event::Fail(_) => {}
        }
        drop(state);
        self.standalone_waker.wake();
    }
}
