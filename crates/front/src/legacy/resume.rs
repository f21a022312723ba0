//! Streams that a GET opens: the standalone one, and those of calls that are taken up again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use drawbridge_core::event_log::{Page, StreamKey};
use drawbridge_wire::{Payload, sse};
use futures_util::Stream;

use super::calls::event_id;
use super::session::{STANDALONE, Session};
use crate::stream::Source;

/// A place in a stream, as an event id names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) stream: u64,
    pub(super) seq: u64,
}

/// Reads an event id of this run of this instance.
pub(super) fn parse_event_id(instance: &str, id: &str) -> Option<Place> {
    let mut parts = id.split('.');
    let place = (parts.next()? == instance)
        .then(|| Some(Place { stream: parts.next()?.parse().ok()?, seq: parts.next()?.parse().ok()? }))
        .flatten()?;
    parts.next().is_none().then_some(place)
}

/// Closes its opening of the standalone stream when it is dropped.
struct Opening {
    session: Arc<Session>,
    number: u64,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.session.close_standalone(self.number);
    }
}

/// The messages of the standalone stream from now on.
pub(super) fn standalone_messages(session: &Arc<Session>) -> Pin<Box<dyn Stream<Item = Bytes> + Send>> {
    let number = session.open_standalone(None);
    let opening = Opening { session: session.clone(), number };
    Box::pin(futures_util::stream::poll_fn(move |cx| {
        match opening.session.next_standalone(opening.number, cx) {
            Ok(Some((_, text))) => Poll::Ready(Some(text)),
            Ok(None) => Poll::Pending,
            Err(_displaced) => Poll::Ready(None),
        }
    }))
}

/// The standalone stream, after a replay of what came after `seen`.
pub(super) fn standalone(session: &Arc<Session>, seen: Option<(u64, Page)>) -> Source {
    let mut replay: VecDeque<(u64, Bytes)> = VecDeque::new();
    let mut last = seen.as_ref().map(|(seq, _)| *seq);
    if let Some((_, page)) = seen {
        replay.extend(page.events);
        last = replay.back().map(|(seq, _)| *seq).or(last);
    }
    let number = session.open_standalone(last);
    let opening = Opening { session: session.clone(), number };
    Box::pin(futures_util::stream::poll_fn(move |cx| {
        let session = &opening.session;
        let event = |seq: u64, text: Bytes| {
            let id = event_id(&session.instance, STANDALONE, seq);
            Poll::Ready(Some(sse::encode(Some(&id), Payload::from(text))))
        };
        if let Some((seq, text)) = replay.pop_front() {
            return event(seq, text);
        }
        match session.next_standalone(opening.number, cx) {
            Ok(Some((seq, text))) => event(seq, text),
            Ok(None) => Poll::Pending,
            Err(_displaced) => Poll::Ready(None),
        }
    }))
}

/// The rest of a call's stream after `place`, read from the log to its end.
pub(super) fn call(session: &Arc<Session>, place: Place) -> Source {
    let key = StreamKey { session: session.key, stream: place.stream };
    session.displace(place.stream);
    let session = session.clone();
    let start = (place.seq, VecDeque::new(), false);
    Box::pin(futures_util::stream::unfold(start, move |(mut seq, mut page, mut finished)| {
        let session = session.clone();
        async move {
            loop {
                if let Some((number, text)) = page.pop_front() {
                    let id = event_id(&session.instance, key.stream, number);
                    let payload = sse::encode(Some(&id), Payload::from(text));
                    return Some((payload, (number, page, finished)));
                }
                if finished {
                    return None;
                }
                let next = session.events.read_after(key, seq)?;
                finished = next.finished;
                page.extend(next.events.into_iter().filter(|(_, text): &(u64, Bytes)| !text.is_empty()));
                if page.is_empty() && !finished {
                    session.events.changed(key, seq).await;
                }
                seq = page.back().map_or(seq, |(number, _)| *number);
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_event_ids_are_places() {
        let id = event_id("0a1b", 7, 3);
        assert_eq!(parse_event_id("0a1b", &id), Some(Place { stream: 7, seq: 3 }));
        for bad in ["", "0a1b", "0a1b.7", "ffff.7.3", "0a1b.7.3.1", "0a1b.x.3", "0a1b.-1.3"] {
            assert_eq!(parse_event_id("0a1b", bad), None, "{bad}");
        }
    }
}
