//! The messages of calls: merged, kept going when the client is gone, logged for its return.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use drawbridge_core::call::{Call, Event, Events};
use drawbridge_core::event_log::StreamKey;
use drawbridge_core::{Conversing, Tasks};
use drawbridge_wire::{Id, Message, Payload, sse};
use futures_util::{Stream, StreamExt as _};

use super::encode::{self, Out};
use super::session::{InFlight, Session, Transport};
use crate::record::{End, Record};

/// One call of a session, as the messages it is to the client.
pub(super) struct CallMessages {
    session: Arc<Session>,
    pub(super) call: Arc<InFlight>,
    method: String,
    events: Events,
    ready: VecDeque<Out>,
    ended: bool,
    record: Record,
}

impl CallMessages {
    /// Starts the call that `request` asks for.
    pub(super) fn start(session: &Arc<Session>, request: Message, record: Record) -> Option<Self> {
        let id = request.id()?;
        let method = request.method().into_owned();
        let who: Arc<dyn Conversing> = session.clone();
        let client = session.client().clone();
        let call = Call { request, client, params_headers: smallvec::SmallVec::new() };
        let in_flight = session.begin(id);
        let events = session.endpoint.call(&who, call);
        Some(Self::new(session, in_flight, method, events, record))
    }

    /// A call that was started elsewhere.
    pub(super) fn of(session: &Arc<Session>, id: Id, method: String, events: Events, record: Record) -> Self {
        Self::new(session, session.begin(id), method, events, record)
    }

    fn new(
        session: &Arc<Session>,
        call: Arc<InFlight>,
        method: String,
        events: Events,
        record: Record,
    ) -> Self {
        let (session, ready) = (session.clone(), VecDeque::new());
        Self { session, call, method, events, ready, ended: false, record }
    }

    /// Notes the end of the call.
    fn note(&mut self, end: End) {
        let transport = self.call.transport();
        if transport == Transport::Stream {
            self.record.streams();
        }
        self.record.end(end, (transport == Transport::Json).then_some(http::StatusCode::OK));
    }
}

impl Stream for CallMessages {
    type Item = Out;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Out>> {
        let this = &mut *self;
        loop {
            if let Some(out) = this.ready.pop_front() {
                this.ended |= out.terminal;
                return Poll::Ready(Some(out));
            }
            this.call.waker.register(cx.waker());
            // A cancelled call has no answer.
            if this.ended || this.call.is_cancelled() {
                return Poll::Ready(None);
            }
            let event: Event = match this.call.take() {
                Some(event) => event,
                None => match std::task::ready!(this.events.poll_next_unpin(cx)) {
                    Some(event) => event,
                    None => return Poll::Ready(None),
                },
            };
            if matches!(event, Event::Begun | Event::Paused(_))
                && !this.session.client().version.primes_streams()
            {
                // Without an event to resume from there is nothing to gain from an early stream.
                continue;
            }
            let end = End::of(&event);
            this.ready.extend(encode::event(&this.session, &this.call, &this.method, event));
            if let Some(end) = end {
                this.note(end);
            }
        }
    }
}

impl Drop for CallMessages {
    fn drop(&mut self) {
        self.session.finish(&self.call);
        if self.call.transport() == Transport::Stream {
            self.record.streams();
        }
    }
}

/// Several calls of one POST, which may be a batch.
pub(super) struct Running {
    calls: futures_util::stream::SelectAll<CallMessages>,
    /// The calls' entries, while they run.
    pub(super) in_flight: Vec<Arc<InFlight>>,
}

impl Running {
    pub(super) fn new(calls: Vec<CallMessages>) -> Self {
        let in_flight = calls.iter().map(|c| c.call.clone()).collect();
        Self { calls: futures_util::stream::select_all(calls), in_flight }
    }
}

/// Where the messages of a stream are logged.
#[derive(Clone)]
pub(super) struct Log {
    pub(super) session: Arc<Session>,
    pub(super) key: StreamKey,
    seq: u64,
}

impl Log {
    /// A log for the stream whose number is `stream`.
    pub(super) fn new(session: &Arc<Session>, stream: u64) -> Self {
        Self { session: session.clone(), key: StreamKey { session: session.key, stream }, seq: 0 }
    }

    /// The id of the event with number `seq`.
    pub(super) fn event_id(&self, seq: u64) -> String {
        event_id(&self.session.instance, self.key.stream, seq)
    }

    /// Logs a message; returns it as an event.
    fn write(&mut self, payload: Payload) -> Payload {
        self.seq += 1;
        let text = payload.into_bytes();
        self.session.events.append(self.key, self.seq, text.clone());
        sse::encode(Some(&self.event_id(self.seq)), Payload::from(text))
    }
}

/// An event id: which run of which instance, which stream, which place in it.
pub(super) fn event_id(instance: &str, stream: u64, seq: u64) -> String {
    format!("{instance}.{stream}.{seq}")
}

/// Holds calls whose client may go away: then they run to their end, logged if there is a log.
pub(super) struct Held {
    running: Option<Running>,
    log: Option<Log>,
    tasks: Tasks,
}

impl Held {
    pub(super) fn new(running: Running, tasks: Tasks) -> Self {
        Self { running: Some(running), log: None, tasks }
    }

    /// How the client gets what comes of these calls.
    pub(super) fn is(&self, transport: Transport) {
        self.running.iter().flat_map(|running| &running.in_flight).for_each(|call| call.is(transport));
    }

    /// The number that names the stream of these calls.
    pub(super) fn first_serial(&self) -> Option<u64> {
        self.running.as_ref()?.in_flight.first().map(|call| call.serial)
    }

    /// From now on messages are events of a stream that can be resumed.
    pub(super) fn log(&mut self, log: Log) {
        if let Some(running) = &self.running {
            running.in_flight.iter().for_each(|call| call.set_stream(log.key.stream));
        }
        // The stream exists from its first event on, even if that carries nothing.
        log.session.events.append(log.key, 0, Bytes::new());
        self.log = Some(log);
    }

    /// A message as an event, logged.
    pub(super) fn write(&mut self, payload: Payload) -> Payload {
        match &mut self.log {
            Some(log) => log.write(payload),
            None => sse::encode(None, payload),
        }
    }

    /// The next message.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Out>> {
        let Some(running) = &mut self.running else { return Poll::Ready(None) };
        let displaced = running.in_flight.iter().any(|call| call.take_displaced());
        if displaced {
            self.hand_over();
            return Poll::Ready(None);
        }
        let next = running.calls.poll_next_unpin(cx);
        if let Poll::Ready(None) = next {
            self.running = None;
            if let Some(log) = &self.log {
                log.session.events.finish(log.key);
            }
        }
        next
    }

    /// Lets the calls run on in the background.
    fn hand_over(&mut self) {
        let (Some(mut running), mut log) = (self.running.take(), self.log.take()) else { return };
        for call in &running.in_flight {
            if call.transport() == Transport::Json {
                call.is(Transport::Gone);
            }
        }
        self.tasks.spawn_within("finish call", async move {
            while let Some(out) = running.calls.next().await {
                if let Some(log) = &mut log
                    && !out.payload.is_empty()
                {
                    log.write(out.payload);
                }
            }
            if let Some(log) = &log {
                log.session.events.finish(log.key);
            }
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// The rest of held calls as a stream of events. Where the backend has let go of its stream, so does this one: the
/// calls go on without it, and the client comes back for the rest (MCP 2025-11-25, transports § polling).
pub(super) fn stream_of(mut held: Held) -> crate::stream::Source {
    Box::pin(futures_util::stream::poll_fn(move |cx| {
        loop {
            let Some(out) = std::task::ready!(held.poll_message(cx)) else { return Poll::Ready(None) };
            if let Some(delay) = out.pause.filter(|_| held.log.is_some()) {
                held.hand_over();
                return Poll::Ready(Some(Payload::from(sse::encode_retry(delay.as_millis()))));
            }
            if !out.payload.is_empty() {
                return Poll::Ready(Some(held.write(out.payload)));
            }
        }
    }))
}
