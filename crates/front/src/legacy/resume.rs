//! Streams that a GET opens: the standalone one, and those of calls that are taken up again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use drawbridge_core::backend::TakenUp;
use drawbridge_core::event_log::{Page, StreamKey};
use drawbridge_core::fleet::Channel;
use drawbridge_core::metrics::Era;
use drawbridge_core::state::InstanceId;
use drawbridge_core::{Conversing as _, Fault, request};
use drawbridge_wire::{Id, Message, Payload, sse};
use futures_util::{Stream, StreamExt as _};

use super::calls::{CallMessages, Held, Log, Running, event_id, stream_of};
use super::fleet::{self, Elsewhere, Step};
use super::session::{STANDALONE, Session, Transport};
use crate::Inner;
use crate::record::Record;
use crate::stream::Source;

/// A place in a stream, as an event id names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Whose stream it is.
    pub(super) instance: InstanceId,
    pub(super) stream: u64,
    pub(super) seq: u64,
    /// The request that the stream answers, if it is one.
    pub(super) id: Option<Id>,
}

/// Reads an event id.
pub(super) fn parse_event_id(id: &str) -> Option<Place> {
    let mut parts = id.split('.');
    let place = Place {
        instance: InstanceId::parse(parts.next()?)?,
        stream: parts.next()?.parse().ok()?,
        seq: parts.next()?.parse().ok()?,
        id: match parts.next() {
            Some(tag) => Some(fleet::id_of(tag)?),
            None => None,
        },
    };
    parts.next().is_none().then_some(place)
}

impl Place {
    /// The id of another event of the same stream.
    fn event_id(&self, seq: u64) -> String {
        let id = event_id(&self.instance, self.stream, seq);
        match self.id.as_ref().and_then(fleet::tag_of) {
            Some(tag) => format!("{id}.{tag}"),
            None => id,
        }
    }

    fn event(&self, seq: u64, text: Bytes) -> Payload {
        sse::encode(Some(&self.event_id(seq)), Payload::from(text))
    }
}

/// The rest of the stream that `place` is in.
pub(super) async fn from(inner: &Arc<Inner>, session: &Arc<Session>, place: &Place) -> Result<Source, Fault> {
    if place.instance == session.instance {
        let key = StreamKey { session: session.key, stream: place.stream };
        let page = session.events.read_after(key, place.seq);
        return Ok(match (place.stream, page) {
            (STANDALONE, page) => standalone(inner, session, replay(place, page)).await,
            (_, Some(_)) => call(session, place.clone()),
            // Forgotten: a stream without a replay, which never carries another stream's messages.
            (_, None) => standalone(inner, session, None).await,
        });
    }
    match fleet::take_up(inner, session, place).await? {
        Elsewhere::Told(channel) if place.stream == STANDALONE => {
            let replay = told(channel, place).await;
            Ok(standalone(inner, session, Some(replay)).await)
        }
        Elsewhere::Told(channel) => Ok(call_elsewhere(inner, session, place.clone(), channel)),
        Elsewhere::Left(page) if place.stream == STANDALONE => {
            Ok(standalone(inner, session, replay(place, page)).await)
        }
        Elsewhere::Left(page) => Ok(remains(inner, session, place, page).await),
    }
}

/// Events that a client gets first, with their ids.
type Replay = VecDeque<(String, Bytes)>;

fn replay(place: &Place, page: Option<Page>) -> Option<Replay> {
    Some(page?.events.into_iter().map(|(seq, text)| (place.event_id(seq), text)).collect())
}

/// What another instance has of a standalone stream.
async fn told(mut channel: Channel, place: &Place) -> Replay {
    let mut replay = Replay::new();
    while let Some((Step::Event(seq), text)) = fleet::next_step(&mut channel).await {
        replay.push_back((place.event_id(seq), text));
    }
    replay
}

/// What an instance that is gone left of a call's stream. If that is not all, the call goes on here where its backend
/// allows that; where not, its end can't be known any more.
async fn remains(inner: &Arc<Inner>, session: &Arc<Session>, place: &Place, page: Option<Page>) -> Source {
    let finished = page.as_ref().is_some_and(|page| page.finished);
    let mut events: VecDeque<Payload> = page
        .into_iter()
        .flat_map(|page| page.events)
        .filter(|(_, text)| !text.is_empty())
        .map(|(seq, text)| place.event(seq, text))
        .collect();
    if !finished
        && let Some(id) = &place.id
        && let Some(rest) = taken_up(inner, session, id).await
    {
        return Box::pin(futures_util::stream::iter(events).chain(rest));
    }
    if !finished && let Some(id) = &place.id {
        let backend = session.endpoint().backend_names();
        let detail = "no instance of the gateway has the call any more".to_owned();
        let fault = Fault::OutcomeUnknown { backend, detail };
        let text = fault.to_rpc_error().to_message(Some(id)).bytes().clone();
        events.push_back(sse::encode(None, Payload::from(text)));
    }
    Box::pin(futures_util::stream::iter(events))
}

/// The rest of a call that an instance had that is gone, as a stream of this one.
async fn taken_up(inner: &Arc<Inner>, session: &Arc<Session>, id: &Id) -> Option<Source> {
    if let Some(stream) = session.stream_of(id) {
        // Its client was here before, and comes back with what it had from the instance that is gone.
        let place = Place { instance: session.instance.clone(), stream, seq: 0, id: Some(id.clone()) };
        return Some(call(session, place));
    }
    let bound = session.bound();
    for index in 0..bound.endpoint.backends().len() {
        let Some(TakenUp { method, events }) =
            bound.conversation(index).take_up(id, bound.endpoint.here(request::rights())).await
        else {
            continue;
        };
        let request = Message::request(id, &method, b"{}");
        let mut record = Record::begin(&bound.endpoint, Era::Legacy, &request);
        record.of_session(&session.key, session.client().version);
        let messages = CallMessages::of(session, id.clone(), method, events, record);
        let mut held = Held::new(Running::new(vec![messages]), inner.tasks.clone());
        held.is(Transport::Stream);
        let stream = held.first_serial()?;
        held.log(Log::new(session, stream, Some(id)));
        return Some(stream_of(held));
    }
    None
}

/// The rest of a call's stream, told by the instance that has it.
fn call_elsewhere(inner: &Arc<Inner>, session: &Arc<Session>, place: Place, channel: Channel) -> Source {
    let (inner, session) = (inner.clone(), session.clone());
    let told = Told { inner, session, place, channel: Some(channel), left: None };
    Box::pin(futures_util::stream::unfold(told, async |mut told| {
        let payload = told.next().await?;
        Some((payload, told))
    }))
}

struct Told {
    inner: Arc<Inner>,
    session: Arc<Session>,
    place: Place,
    channel: Option<Channel>,
    /// What it left, once it is gone.
    left: Option<Source>,
}

impl Told {
    async fn next(&mut self) -> Option<Payload> {
        if let Some(channel) = &mut self.channel {
            match fleet::next_step(channel).await {
                Some((Step::Event(seq), text)) => {
                    self.place.seq = seq;
                    return Some(self.place.event(seq, text));
                }
                Some((Step::Finished, _)) => return None,
                Some((Step::Unknown, _)) | None => {
                    self.channel = None;
                    let page = fleet::left(&self.inner, &self.session, &self.place).await;
                    let page = page.ok().flatten();
                    self.left = Some(remains(&self.inner, &self.session, &self.place, page).await);
                }
            }
        }
        self.left.as_mut()?.next().await
    }
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

/// The standalone stream, after a replay of what the client has not seen.
pub(super) async fn standalone(inner: &Inner, session: &Arc<Session>, replay: Option<Replay>) -> Source {
    let mut replay = replay.unwrap_or_default();
    let own = replay.iter().filter_map(|(id, _)| parse_event_id(id));
    let seen = own.filter(|place| place.instance == session.instance).map(|place| place.seq).last();
    let number = session.open_standalone(seen);
    fleet::tell_standalone(inner, session).await;
    let opening = Opening { session: session.clone(), number };
    Box::pin(futures_util::stream::poll_fn(move |cx| {
        let session = &opening.session;
        let event = |id: &str, text: Bytes| Poll::Ready(Some(sse::encode(Some(id), Payload::from(text))));
        if let Some((id, text)) = replay.pop_front() {
            return event(&id, text);
        }
        match session.next_standalone(opening.number, cx) {
            Ok(Some((seq, text))) => event(&event_id(&session.instance, STANDALONE, seq), text),
            Ok(None) => Poll::Pending,
            Err(_displaced) => Poll::Ready(None),
        }
    }))
}

/// The rest of a call's stream after `place`, read from the log to its end.
fn call(session: &Arc<Session>, place: Place) -> Source {
    let key = StreamKey { session: session.key, stream: place.stream };
    session.displace(place.stream);
    let session = session.clone();
    let start = (place.seq, VecDeque::new(), false);
    let place = Arc::new(place);
    Box::pin(futures_util::stream::unfold(start, move |(mut seq, mut page, mut finished)| {
        let (session, place) = (session.clone(), place.clone());
        async move {
            loop {
                if let Some((number, text)) = page.pop_front() {
                    return Some((place.event(number, text), (number, page, finished)));
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
    fn event_ids_name_a_place_and_junk_does_not() {
        let instance = InstanceId::parse("00000000deadbeef").unwrap();
        let place = |id: Option<Id>| Place { instance: instance.clone(), stream: 7, seq: 3, id };
        assert_eq!(parse_event_id(&event_id(&instance, 7, 3)), Some(place(None)));
        let tagged = place(Some(Id::from_text("a.b")));
        assert_eq!(parse_event_id(&tagged.event_id(3)), Some(tagged));
        let own = "00000000deadbeef";
        for bad in ["", "x.7.3", "deadbeef.7.3", ".7.3", "7", own] {
            assert_eq!(parse_event_id(bad), None, "{bad}");
        }
        for rest in ["7", "7.x", "x.3", "-1.3", "7.3.!", "7.3.e30", "7.3.MQ.1"] {
            assert_eq!(parse_event_id(&format!("{own}.{rest}")), None, "{rest}");
        }
    }
}
