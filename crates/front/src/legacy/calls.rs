//! The messages of calls: merged, kept going when the client is gone, logged for its return.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use drawbridge_core::call::{Call, Event, Events};
use drawbridge_core::event_log::StreamKey;
use drawbridge_core::state::InstanceId;
use drawbridge_core::{Conversing, Tasks};
use drawbridge_wire::{Id, Message, Payload, sse};
use futures_util::future::Either;
use futures_util::stream::{SelectAll, select_all};
use futures_util::{Stream, StreamExt as _};

use super::bound::Bound;
use super::encode::{self, Out};
use super::fleet;
use super::session::{InFlight, Session, Transport};
use super::spill::{self, Spill};
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
    /// Kept until the end of the call.
    bound: Option<Arc<Bound>>,
}

impl CallMessages {
    /// Starts the call that `request` asks for.
    pub(super) fn start(session: &Arc<Session>, request: Message, record: Record) -> Option<Self> {
        let id = request.id()?;
        let method = request.method().into_owned();
        let bound = session.bound();
        let who: Arc<dyn Conversing> = bound.clone();
        let client = session.client().clone();
        let call = Call { trace: record.trace(), ..Call::new(request, client) };
        let in_flight = session.begin(id);
        let events = bound.endpoint.call(&who, call);
        let mut messages = Self::new(session, in_flight, method, events, record);
        messages.bound = Some(bound);
        Some(messages)
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
        Self { session, call, method, events, ready, ended: false, record, bound: None }
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
            this.record.hear(&event);
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
    /// One, as nearly always, or several.
    calls: Either<CallMessages, SelectAll<CallMessages>>,
    /// The calls' entries, while they run.
    pub(super) in_flight: Vec<Arc<InFlight>>,
}

impl Running {
    pub(super) fn new(mut calls: Vec<CallMessages>) -> Self {
        let in_flight = calls.iter().map(|c| c.call.clone()).collect();
        let only = if calls.len() == 1 { calls.pop() } else { None };
        Self { calls: only.map_or_else(|| Either::Right(select_all(calls)), Either::Left), in_flight }
    }
}

/// Where the messages of a stream are logged.
pub(super) struct Log {
    pub(super) session: Arc<Session>,
    pub(super) key: StreamKey,
    /// The end of event ids: the request that the stream answers, if it is one.
    tag: Option<String>,
    seq: u64,
    /// Copies the events, once they may be wanted elsewhere.
    spill: Option<Spill>,
}

impl Log {
    /// A log for the stream whose number is `stream`.
    pub(super) fn new(session: &Arc<Session>, stream: u64, id: Option<&Id>) -> Self {
        let key = StreamKey { session: session.key, stream };
        Self { session: session.clone(), key, tag: id.and_then(fleet::tag_of), seq: 0, spill: None }
    }

    /// The id of the event with number `seq`.
    pub(super) fn event_id(&self, seq: u64) -> String {
        let id = event_id(&self.session.instance, self.key.stream, seq);
        match &self.tag {
            Some(tag) => format!("{id}.{tag}"),
            None => id,
        }
    }

    /// Logs a message; returns it as an event.
    fn write(&mut self, payload: Payload) -> Payload {
        self.seq += 1;
        let text = payload.into_bytes();
        self.session.events.append(self.key, self.seq, text.clone());
        if let Some(spill) = &self.spill
            && !spill.event(self.seq, text.clone())
        {
            self.spill = None;
        }
        sse::encode(Some(&self.event_id(self.seq)), Payload::from(text))
    }
}

impl Log {
    /// Copies the events, from the first on, to where other instances find them.
    fn spill(&mut self, tasks: &Tasks) {
        let state = self.session.peers.state();
        if self.spill.is_some() || !state.is_fleet {
            return;
        }
        let before = self.session.events.read_after(self.key, 0);
        if let Some(before) = before {
            self.spill = Some(Spill::start(state.clone(), self.key, before.events, tasks));
        }
    }

    /// Nothing follows.
    fn finish(&mut self) {
        self.session.events.finish(self.key);
        if let Some(spill) = self.spill.take() {
            spill.finish();
        }
    }
}

/// An event id: which run of which instance, which stream, which place in it. Of a call's stream, also which request.
pub(super) fn event_id(instance: &InstanceId, stream: u64, seq: u64) -> String {
    format!("{instance}.{stream}.{seq}")
}

/// Holds calls whose client may go away: then they run to their end, logged if there is a log.
pub(super) struct Held {
    running: Option<Running>,
    log: Option<Log>,
    /// When its events are to be copied.
    spill_at: Option<Pin<Box<tokio::time::Sleep>>>,
    tasks: Tasks,
}

impl Held {
    pub(super) fn new(running: Running, tasks: Tasks) -> Self {
        Self { running: Some(running), log: None, spill_at: None, tasks }
    }

    /// How the client gets what comes of these calls.
    pub(super) fn is(&self, transport: Transport) {
        self.running.iter().flat_map(|running| &running.in_flight).for_each(|call| call.is(transport));
    }

    /// The number that names the stream of these calls.
    pub(super) fn first_serial(&self) -> Option<u64> {
        self.running.as_ref()?.in_flight.first().map(|call| call.serial)
    }

    /// The request that these calls answer, if it is one.
    pub(super) fn only_id(&self) -> Option<&Id> {
        match self.running.as_ref()?.in_flight.as_slice() {
            [call] => Some(&call.id),
            _ => None,
        }
    }

    /// From now on messages are events of a stream that can be resumed.
    pub(super) fn log(&mut self, log: Log) {
        if let Some(running) = &self.running {
            running.in_flight.iter().for_each(|call| call.set_stream(log.key.stream));
        }
        // The stream exists from its first event on, even if that carries nothing.
        log.session.events.append(log.key, 0, Bytes::new());
        if log.session.peers.state().is_fleet {
            self.spill_at = Some(Box::pin(tokio::time::sleep(spill::AFTER)));
        }
        self.log = Some(log);
    }

    /// Copies the events to where other instances find them.
    pub(super) fn spill(&mut self) {
        self.spill_at = None;
        if let Some(log) = &mut self.log {
            log.spill(&self.tasks);
        }
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
            if let Some(log) = &mut self.log {
                log.finish();
            }
        }
        next
    }

    /// Lets the calls run on in the background. Those that have ended were written to their client, as far as can be
    /// known: there is nothing to copy.
    fn hand_over(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        self.spill();
        let mut log = self.log.take();
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
            if let Some(log) = &mut log {
                log.finish();
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
            if held.spill_at.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                held.spill();
            }
            let Some(out) = std::task::ready!(held.poll_message(cx)) else { return Poll::Ready(None) };
            if out.asks {
                held.spill();
            }
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
