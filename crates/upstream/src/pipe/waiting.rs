//! The calls that wait on a channel, and how what comes from it finds its call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use drawbridge_core::call::Event;
use drawbridge_wire::Id;
use tokio::sync::oneshot;

use super::{Connection, Pipe};
use crate::answering::Answering;
use crate::inbox::Inbox;
use crate::legacy;

/// A call waiting for its events.
pub(super) struct Waiting {
    pub(super) events: Arc<Inbox>,
    pub(super) done: Option<oneshot::Sender<Event>>,
    /// The client's own progress token.
    pub(super) token: Option<Bytes>,
    /// A listen is not a call that a backend could be asking for.
    pub(super) is_listen: bool,
    /// What was asked because of it and not answered yet.
    pub(super) asked: usize,
    pub(super) answering: Arc<Answering>,
}

/// The next event of a call: those before the answer first, the answer last.
pub(super) async fn next_event(events: &Inbox, done: &mut oneshot::Receiver<Event>) -> Option<Event> {
    loop {
        if let Some(event) = events.take() {
            return Some(event);
        }
        tokio::select! {
            biased;
            () = events.filled() => {}
            last = &mut *done => return last.ok(),
        }
    }
}

pub(super) fn to_call(connection: &Connection, number: u64, event: Event) {
    let calls = connection.calls.lock();
    if let Some(waiting) = calls.get(&number)
        && !waiting.events.put(event)
    {
        tracing::debug!("a notification was dropped: its call's reader is too slow");
    }
}

pub(super) fn finish(waiting: &mut Waiting, event: Event) {
    if let Some(done) = waiting.done.take() {
        // Nobody may be waiting any more.
        let _ = done.send(event);
    }
}

/// The one call in flight, if it is the only one.
pub(super) fn only_call(calls: &HashMap<u64, Waiting>) -> Option<u64> {
    let mut running = calls.iter().filter(|(_, w)| !w.is_listen).map(|(n, _)| *n);
    running.next().filter(|_| running.next().is_none())
}

/// The call that an ask is from: the only one, or the only one that waits for no answer. Notes that it asks.
pub(super) fn asking_call(calls: &mut HashMap<u64, Waiting>) -> Option<u64> {
    let only = only_call(calls);
    let mut free = calls.iter().filter(|(_, w)| !w.is_listen && w.asked == 0).map(|(n, _)| *n);
    let number = only.or_else(|| free.next().filter(|_| free.next().is_none()))?;
    let asking = calls.get_mut(&number)?;
    asking.asked += 1;
    asking.answering.asked();
    Some(number)
}

pub(super) fn number(literal: &[u8]) -> Option<u64> {
    std::str::from_utf8(literal).ok()?.parse().ok()
}

/// The id in the first bytes of a message, where it stands before the result.
pub(super) fn id_in(head: &[u8]) -> Option<u64> {
    let head = std::str::from_utf8(head).ok()?;
    let end = head.find("\"result\"").or_else(|| head.find("\"params\""))?;
    let rest = head[..end].split_once("\"id\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A place among the waiting calls. Dropping it cancels the call at the backend.
pub(super) struct Slot {
    pipe: Arc<Pipe>,
    connection: Arc<Connection>,
    number: u64,
    pub(super) answering: Arc<Answering>,
    pub(super) armed: bool,
}

impl Slot {
    pub(super) fn take(
        pipe: &Arc<Pipe>,
        connection: &Arc<Connection>,
        number: u64,
        token: Option<Bytes>,
        is_listen: bool,
    ) -> (Self, Arc<Inbox>, oneshot::Receiver<Event>) {
        // No channel: one of tokio's has room for many events from the start, and most calls have none.
        let events = Arc::<Inbox>::default();
        let (done, done_rx) = oneshot::channel();
        let answering = Arc::<Answering>::default();
        let excuse = answering.clone();
        let waiting =
            Waiting { events: events.clone(), done: Some(done), token, is_listen, asked: 0, answering };
        // A channel that ended has forgotten its calls; one that joins later would wait for ever.
        let mut calls = connection.calls.lock();
        if !connection.gone.is_cancelled() {
            calls.insert(number, waiting);
        }
        drop(calls);
        let (pipe, connection) = (pipe.clone(), connection.clone());
        let slot = Self { pipe, connection, number, answering: excuse, armed: true };
        (slot, events, done_rx)
    }

    /// The call has ended by itself.
    pub(super) fn forget(mut self) {
        self.armed = false;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connection.calls.lock().remove(&self.number);
        *self.connection.used.lock() = Instant::now();
        if self.armed && !self.connection.gone.is_cancelled() {
            self.connection.abandoned.add(self.number);
            let id = Id::from_number(self.number);
            self.pipe.tell(&self.connection, legacy::cancelled(&id).bytes().clone());
        }
    }
}
