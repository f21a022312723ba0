//! A call and its events: what downstream and upstream faces exchange.
//!
//! ```text
//! face of the client            engine                 face of the backend
//!        ── Call { request } ──────────────────────────────▶
//!        ◀── Notify | Asks(round) | Withdraw | Done | Fail ──
//!        ── answer to a live ask (its reply channel) ──────▶
//!        ── dropping the stream: cancel ───────────────────▶
//! ```
//!
//! The payloads are JSON-RPC messages as their sender wrote them. Faces change only what belongs to their own
//! hop: ids, progress tokens, the metadata of their dialect.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use drawbridge_wire::{Kind, Message};
use futures_util::Stream;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::client::Client;
use crate::fault::Fault;
use crate::request;
use crate::rights::Rights;
use crate::trace::Trace;

/// A request of a client on its way to a backend.
#[derive(Debug, Clone)]
pub struct Call {
    /// The request as the client wrote it.
    pub request: Message,
    /// Who sent it.
    pub client: Arc<Client>,
    /// HTTP headers that mirror tool arguments (`Mcp-Param-*`), to be relayed with the request.
    pub params_headers: SmallVec<[(String, String); 0]>,
    /// What is traced of it, if something is.
    pub trace: Option<Arc<Trace>>,
    /// What its caller may; everything where nobody was asked.
    pub rights: Option<Arc<dyn Rights>>,
}

impl Call {
    /// A request that nothing more is known of, of the caller whose request is being worked on.
    pub fn new(request: Message, client: Arc<Client>) -> Self {
        Self { rights: request::rights(), ..Self::of_the_gateway(request, client) }
    }

    /// One that the gateway makes for itself, on behalf of nobody.
    pub fn of_the_gateway(request: Message, client: Arc<Client>) -> Self {
        Self { request, client, params_headers: SmallVec::new(), trace: None, rights: None }
    }
}

/// The stream of a call's events. Dropping it before the terminal event cancels the call.
pub type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// Something that happens to a call, or, outside any call, on the stream of a conversation.
#[derive(Debug)]
pub enum Event {
    /// The backend answers with a stream, so it may take its time and have more to say before the answer.
    Begun,
    /// The backend has let go of its stream and goes on later: a client that can come back may do so after this
    /// long, and its connection is free meanwhile.
    Paused(Duration),
    /// A notification for the client.
    Notify(Message),
    /// The backend wants something from the client. Terminal if it says [`Resume::State`].
    Asks(Box<Round>),
    /// The backend takes back a live ask.
    Withdraw(AskKey),
    /// The answer. Terminal.
    Done(Reply),
    /// There is no answer. Terminal.
    Fail(Fault),
}

impl Event {
    /// Whether nothing follows.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Done(_) | Self::Fail(_) => true,
            Self::Asks(round) => matches!(round.resume, Resume::State(_)),
            Self::Begun | Self::Paused(_) | Self::Notify(_) | Self::Withdraw(_) => false,
        }
    }
}

/// An answer of a backend.
#[derive(Debug, Clone)]
pub struct Reply {
    /// A result or an error; its id is the one that the gateway used upstream.
    pub message: Message,
    /// What the members of the result are.
    pub shape: Shape,
}

impl Reply {
    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.message.kind() == Kind::Error
    }
}

/// Whether a result says about itself what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All members are the backend's own.
    Plain,
    /// `resultType`, `ttlMs` and `cacheScope` are about the result.
    Marked,
    /// The same, of a result that was kept: of its `ttlMs` this is left.
    Aged(Duration),
    /// [`Shape::Plain`], and the configuration says that it may be kept for this long, by whom it is for.
    Lasting(Duration),
}

impl Shape {
    /// Whether nothing in the result is about the result.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Plain | Self::Lasting(_))
    }
}

/// What a backend asks at one moment of a call.
#[derive(Debug)]
pub struct Round {
    /// The asks; may be empty where the backend only wants to be called again.
    pub asks: SmallVec<[Ask; 1]>,
    /// How the call goes on once they are answered.
    pub resume: Resume,
    /// The message in which the round came, where it came as one.
    pub source: Option<Message>,
}

/// How a call goes on after a round of asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The backend waits: each ask has a reply channel, and this stream goes on.
    Live,
    /// The call has ended; sending it again with the answers and this state (raw JSON) continues it.
    State(Option<Bytes>),
}

/// One thing that a backend wants from the client: elicitation, sampling, roots.
#[derive(Debug)]
pub struct Ask {
    /// Names the ask within this gateway.
    pub key: AskKey,
    /// A request; its id is the backend's (live) or its key in the round.
    pub request: Message,
    /// Takes the client's response; dropping it means there will be none. `None` if the round resumes by state.
    pub reply: Option<Answering>,
}

/// Takes the client's response to a live ask. Dropping it means that there will be none.
pub struct Answering {
    to: oneshot::Sender<Message>,
    before: Option<Box<dyn FnOnce(Message) -> Message + Send + Sync>>,
}

impl Answering {
    /// Gives the response. Returns whether somebody still waits for it.
    pub fn send(self, response: Message) -> bool {
        let response = match self.before {
            Some(change) => change(response),
            None => response,
        };
        self.to.send(response).is_ok()
    }

    /// Whether nobody waits for a response any more.
    pub fn is_closed(&self) -> bool {
        self.to.is_closed()
    }

    /// Resolves when nobody waits for a response any more.
    pub fn closed(&mut self) -> impl Future<Output = ()> + '_ {
        self.to.closed()
    }

    /// The same, for responses that are changed on their way.
    #[must_use]
    pub fn through(self, change: impl FnOnce(Message) -> Message + Send + Sync + 'static) -> Self {
        let before: Box<dyn FnOnce(Message) -> Message + Send + Sync> = match self.before {
            Some(next) => Box::new(move |response| next(change(response))),
            None => Box::new(change),
        };
        Self { to: self.to, before: Some(before) }
    }
}

impl From<oneshot::Sender<Message>> for Answering {
    fn from(to: oneshot::Sender<Message>) -> Self {
        Self { to, before: None }
    }
}

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answering").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// Names a live ask, unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AskKey(pub u64);

impl AskKey {
    /// A key that was not given before.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Hands the events of a [`generate`]d stream to its reader.
#[derive(Debug, Clone)]
pub struct Emitter(Arc<Mutex<Option<Event>>>);

impl Emitter {
    /// Gives one event; resolves once the reader has it.
    ///
    /// No async function: that would keep room for the event twice, in each call that waits.
    pub fn emit(&self, event: Event) -> impl Future<Output = ()> + Send + '_ {
        let mut event = Some(event);
        std::future::poll_fn(move |_| {
            let mut slot = self.0.lock();
            if slot.is_some() {
                return Poll::Pending;
            }
            match event.take() {
                // The reader finds it when this poll returns, and polls again for the next.
                Some(event) => {
                    *slot = Some(event);
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        })
    }
}

pin_project_lite::pin_project! {
    struct Generated<F> {
        #[pin]
        work: F,
        slot: Arc<Mutex<Option<Event>>>,
        ended: bool,
    }
}

impl<F: Future<Output = Event>> Stream for Generated<F> {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        match this.work.poll(cx) {
            Poll::Ready(last) => {
                *this.ended = true;
                Poll::Ready(Some(last))
            }
            Poll::Pending => {
                let given = this.slot.lock().take();
                given.map_or(Poll::Pending, |event| Poll::Ready(Some(event)))
            }
        }
    }
}

/// A stream from a piece of work that emits events and ends with the terminal one. The work runs only while the
/// stream is read and is dropped with it.
pub fn generate<F>(work: impl FnOnce(Emitter) -> F) -> Events
where
    F: Future<Output = Event> + Send + 'static,
{
    let slot = Arc::new(Mutex::new(None));
    let work = work(Emitter(slot.clone()));
    Box::pin(Generated { work, slot, ended: false })
}

/// Emits the events of another stream; returns its terminal one. No async function, for the reason of
/// [`Emitter::emit`].
pub fn forward(emit: &Emitter, mut events: Events) -> impl Future<Output = Option<Event>> + Send + '_ {
    std::future::poll_fn(move |cx| {
        if emit.0.lock().is_some() {
            // Something else was emitted beside; the reader has still to take it, and polls again then.
            return Poll::Pending;
        }
        match std::task::ready!(events.as_mut().poll_next(cx)) {
            Some(event) if !event.is_terminal() => {
                *emit.0.lock() = Some(event);
                Poll::Pending
            }
            last => Poll::Ready(last),
        }
    })
}

/// A stream that is one event.
pub fn once(event: Event) -> Events {
    Box::pin(futures_util::stream::once(std::future::ready(event)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;

    #[test]
    fn what_is_emitted_has_room_in_a_call_once() {
        let emit = Emitter(Arc::default());
        let emitting = emit.emit(Event::Begun);
        assert!(size_of_val(&emitting) <= size_of::<Event>() + 16, "{}", size_of_val(&emitting));
        let forwarding = forward(&emit, once(Event::Begun));
        assert!(size_of_val(&forwarding) <= 32, "{}", size_of_val(&forwarding));
    }

    #[tokio::test]
    async fn generated_events_come_in_order_and_end_with_the_terminal_one() {
        let note = |n: u32| Message::notification("n", format!("{{\"n\":{n}}}").as_bytes());
        let events = generate(|emit| async move {
            for n in 0..3 {
                emit.emit(Event::Notify(note(n))).await;
                tokio::task::yield_now().await;
            }
            Event::Fail(Fault::Draining)
        });
        let events: Vec<_> = events.collect().await;
        assert_eq!(events.len(), 4);
        assert!(matches!(&events[2], Event::Notify(m) if m.bytes().ends_with(b"{\"n\":2}}")));
        assert!(events[3].is_terminal());
    }
}
