//! A call that runs at another instance than the one its client came to.
//!
//! The two faces of the call stay what they are; between them its events and the answers to its asks go over a
//! [`Channel`], each as one frame: a short JSON header, then the bytes of the message that it carries, if any. Ending
//! the channel cancels the call.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use drawbridge_wire::{Message, ProtocolVersion};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::peers::{Channel, Peers};
use crate::call::{
    Answering, Ask, AskKey, Call, Event, Events, Reply, Resume, Round, Shape, forward, generate,
};
use crate::client::{Answers, Client, Principal, Subject};
use crate::fault::Fault;
use crate::state::{InstanceId, NotSent};

/// What a frame is, beside the message that it carries.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Header {
    Begun,
    /// Milliseconds.
    Paused(u64),
    Notify,
    Asks(Asked),
    Withdraw(u64),
    Done(Form),
    Fail(Fault),
    /// From the client's side: the answer to the ask with this key.
    Answer(u64),
    /// From the client's side: there will be none.
    NoAnswer(u64),
    /// The other side does not have what the call is for.
    Elsewhere,
}

#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    /// Key and request of each.
    asks: Vec<(u64, String)>,
    live: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    Plain,
    Marked,
    /// Milliseconds.
    Aged(u64),
    /// Milliseconds.
    Lasting(u64),
}

impl From<Shape> for Form {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::Plain => Self::Plain,
            Shape::Marked => Self::Marked,
            Shape::Aged(left) => Self::Aged(millis(left)),
            Shape::Lasting(left) => Self::Lasting(millis(left)),
        }
    }
}

impl From<Form> for Shape {
    fn from(form: Form) -> Self {
        match form {
            Form::Plain => Self::Plain,
            Form::Marked => Self::Marked,
            Form::Aged(left) => Self::Aged(Duration::from_millis(left)),
            Form::Lasting(left) => Self::Lasting(Duration::from_millis(left)),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A header and what follows it, as one frame.
pub fn frame(header: &impl Serialize, tail: &[u8]) -> Bytes {
    let header = serde_json::to_vec(header).unwrap_or_default();
    let mut out = BytesMut::with_capacity(4 + header.len() + tail.len());
    out.put_u32(u32::try_from(header.len()).unwrap_or_default());
    out.put_slice(&header);
    out.put_slice(tail);
    out.freeze()
}

/// The header of a frame and what follows it; `None` if it is not one of these.
pub fn unframe<T: DeserializeOwned>(bytes: &Bytes) -> Option<(T, Bytes)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (header, tail) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)?;
    Some((serde_json::from_slice(header).ok()?, bytes.slice_ref(tail)))
}

/// A client, between instances.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientFrame {
    #[serde(rename = "p")]
    principal: String,
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    subject: Option<Subject>,
    #[serde(rename = "v")]
    version: String,
    #[serde(rename = "c")]
    capabilities: String,
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    info: Option<String>,
    #[serde(rename = "r")]
    by_retry: bool,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl From<&Client> for ClientFrame {
    fn from(client: &Client) -> Self {
        Self {
            principal: client.principal.as_str().to_owned(),
            subject: client.principal.subject().cloned(),
            version: client.version.to_string(),
            capabilities: text(&client.capabilities),
            info: client.info.as_deref().map(text),
            by_retry: client.answers == Answers::ByRetry,
        }
    }
}

impl ClientFrame {
    /// The client; `None` if its version is not known here.
    pub fn read(self) -> Option<Client> {
        let principal = Principal::named(&self.principal);
        Some(Client {
            principal: match self.subject {
                Some(subject) => principal.of(subject),
                None => principal,
            },
            version: ProtocolVersion::parse(&self.version)?,
            capabilities: self.capabilities.into(),
            info: self.info.map(Into::into),
            answers: if self.by_retry { Answers::ByRetry } else { Answers::Live },
        })
    }
}

/// A call, between instances, but for the request itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallFrame {
    client: ClientFrame,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
}

impl From<&Call> for CallFrame {
    fn from(call: &Call) -> Self {
        Self { client: (&*call.client).into(), headers: call.params_headers.to_vec() }
    }
}

impl CallFrame {
    /// The call of `request`.
    pub fn read(self, request: Bytes) -> Option<Call> {
        let client = std::sync::Arc::new(self.client.read()?);
        let request = Message::parse(request).ok()?;
        Some(Call { params_headers: self.headers.into_iter().collect(), ..Call::new(request, client) })
    }
}

fn asked(round: &Round) -> Asked {
    let asks = round.asks.iter().map(|ask| (ask.key.0, text(ask.request.bytes()))).collect();
    let (live, state) = match &round.resume {
        Resume::Live => (true, None),
        Resume::State(state) => (false, state.as_deref().map(text)),
    };
    Asked { asks, live, state, source: round.source.as_ref().map(|source| text(source.bytes())) }
}

/// Tells the opener of a channel that what it wants is not here.
pub async fn elsewhere(channel: &Channel) {
    // If that is lost, the channel ends all the same.
    let _ = channel.send(frame(&Header::Elsewhere, b"")).await;
}

/// Sends the events of a call over a channel, and takes the answers to its asks from there, until one of the two ends.
pub async fn serve(channel: Channel, events: Events) {
    let _running = channel.call();
    tell(channel, events).await;
}

/// The same of what comes outside of calls, which is nothing to wait for.
pub async fn tell(mut channel: Channel, mut events: Events) {
    let mut asks: HashMap<u64, Answering> = HashMap::new();
    loop {
        tokio::select! {
            event = events.next() => {
                let Some(event) = event else { return };
                let ends = event.is_terminal();
                let frame = match event {
                    Event::Begun => frame(&Header::Begun, b""),
                    Event::Paused(delay) => frame(&Header::Paused(millis(delay)), b""),
                    Event::Notify(message) => frame(&Header::Notify, message.bytes()),
                    Event::Withdraw(key) => {
                        asks.remove(&key.0);
                        frame(&Header::Withdraw(key.0), b"")
                    }
                    Event::Asks(round) => {
                        let header = Header::Asks(asked(&round));
                        asks.extend(round.asks.into_iter().filter_map(|ask| Some((ask.key.0, ask.reply?))));
                        frame(&header, b"")
                    }
                    Event::Done(reply) => frame(&Header::Done(reply.shape.into()), reply.message.bytes()),
                    Event::Fail(fault) => frame(&Header::Fail(fault), b""),
                };
                if channel.send(frame).await.is_err() {
                    return;
                }
                if ends {
                    // The other side ends the channel once it has read that.
                    while channel.receive().await.is_some() {}
                    return;
                }
            }
            answer = channel.receive() => {
                let Some(answer) = answer else { return };
                match unframe(&answer) {
                    Some((Header::Answer(key), message)) => {
                        if let Some((reply, message)) = asks.remove(&key).zip(Message::parse(message).ok()) {
                            // The call may have ended meanwhile.
                            reply.send(message);
                        }
                    }
                    Some((Header::NoAnswer(key), _)) => drop(asks.remove(&key)),
                    _ => {}
                }
            }
        }
    }
}

/// Runs a call at another instance: `body` tells its `service` which. `gone` is what to say if that is not there (any
/// more).
pub fn open(peers: Peers, to: InstanceId, service: &'static str, body: Bytes, gone: Fault) -> Events {
    generate(|emit| async move {
        let channel = match peers.open(&to, service, body).await {
            Ok(channel) => channel,
            Err(NotSent::Gone(_)) => return Event::Fail(gone),
            Err(NotSent::Unavailable(e)) => return Event::Fail(e.into()),
        };
        let lost = move |_| Event::Fail(gone);
        forward(&emit, receive(channel, lost)).await.unwrap_or(Event::Fail(Fault::Draining))
    })
}

/// How a relayed call ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The other side does not have what the call is for, and has done nothing.
    Elsewhere,
    /// The other side, or the way to it, is gone.
    Gone,
}

/// The events of a call that runs at the other end of `channel`. `lost` says what to make of it when they end too soon.
pub fn receive(channel: Channel, lost: impl FnOnce(Lost) -> Event + Send + 'static) -> Events {
    generate(|emit| async move {
        let mut channel = channel;
        let mut answers = FuturesUnordered::new();
        // The keys of the other side, by ours.
        let mut keys: HashMap<u64, AskKey> = HashMap::new();
        loop {
            let received = tokio::select! {
                received = channel.receive() => received,
                Some((theirs, answer)) = answers.next(), if !answers.is_empty() => {
                    let answer: Option<Message> = answer;
                    keys.remove(&theirs);
                    let frame = match answer {
                        Some(answer) => frame(&Header::Answer(theirs), answer.bytes()),
                        None => frame(&Header::NoAnswer(theirs), b""),
                    };
                    if channel.send(frame).await.is_err() {
                        return lost(Lost::Gone);
                    }
                    continue;
                }
            };
            let Some(received) = received else { return lost(Lost::Gone) };
            let Some((header, tail)) = unframe(&received) else { return lost(Lost::Gone) };
            match header {
                Header::Begun => emit.emit(Event::Begun).await,
                Header::Paused(delay) => emit.emit(Event::Paused(Duration::from_millis(delay))).await,
                Header::Notify => {
                    if let Ok(message) = Message::parse_trusting(tail) {
                        emit.emit(Event::Notify(message)).await;
                    }
                }
                Header::Withdraw(theirs) => {
                    if let Some(key) = keys.remove(&theirs) {
                        emit.emit(Event::Withdraw(key)).await;
                    }
                }
                Header::Asks(asked) => {
                    let Some(mut round) = round(&asked) else { return lost(Lost::Gone) };
                    if !asked.live {
                        return Event::Asks(Box::new(round));
                    }
                    for (ask, (theirs, _)) in round.asks.iter_mut().zip(&asked.asks) {
                        let (reply, answer) = oneshot::channel();
                        ask.reply = Some(reply.into());
                        keys.insert(*theirs, ask.key);
                        let theirs = *theirs;
                        answers.push(async move { (theirs, answer.await.ok()) });
                    }
                    emit.emit(Event::Asks(Box::new(round))).await;
                }
                Header::Done(form) => {
                    let Ok(message) = Message::parse_trusting(tail) else { return lost(Lost::Gone) };
                    return Event::Done(Reply { message, shape: form.into() });
                }
                Header::Fail(fault) => return Event::Fail(fault),
                Header::Elsewhere => return lost(Lost::Elsewhere),
                Header::Answer(_) | Header::NoAnswer(_) => {}
            }
        }
    })
}

fn round(asked: &Asked) -> Option<Round> {
    let parse = |text: &str| Message::parse(Bytes::copy_from_slice(text.as_bytes())).ok();
    let ask = |(_, request): &(u64, String)| {
        Some(Ask { key: AskKey::next(), request: parse(request)?, reply: None })
    };
    let resume = if asked.live {
        Resume::Live
    } else {
        Resume::State(asked.state.as_ref().map(|state| Bytes::copy_from_slice(state.as_bytes())))
    };
    let source = match &asked.source {
        Some(source) => Some(parse(source)?),
        None => None,
    };
    Some(Round { asks: asked.asks.iter().map(ask).collect::<Option<_>>()?, resume, source })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use drawbridge_wire::Id;
    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;
    use crate::client::SubjectKind;
    use crate::fault::Bounded;
    use crate::fleet::{Peers, Service};
    use crate::state::MemoryState;
    use crate::tasks::Tasks;

    #[test]
    fn who_calls_is_told_to_the_instance_that_runs_it() {
        let client = |principal: Principal| Client {
            principal,
            version: ProtocolVersion::V2025_11_25,
            capabilities: Bytes::from_static(b"{}"),
            info: None,
            answers: Answers::Live,
        };
        let subject = |kind| Subject { kind, id: "u1".to_owned(), client: "c1".to_owned() };
        let kinds = [SubjectKind::User, SubjectKind::Service, SubjectKind::External];
        let asked = kinds.map(|kind| Principal::named("p").of(subject(kind)));
        for principal in asked.into_iter().chain([Principal::anonymous()]) {
            let written = frame(&ClientFrame::from(&client(principal.clone())), b"");
            let (read, _) = unframe::<ClientFrame>(&written).unwrap();
            let read = read.read().unwrap().principal;
            assert_eq!((&read, read.subject()), (&principal, principal.subject()));
            assert_eq!(read.user(), principal.user());
        }
        assert_eq!(Principal::named("p").of(subject(SubjectKind::Service)).user(), None);
    }

    /// Runs one call, whose events it was given.
    struct Runs(Mutex<Option<Events>>);

    #[async_trait]
    impl Service for Runs {
        async fn accept(&self, opening: Bytes, channel: Channel) {
            assert_eq!(opening, "call");
            let events = self.0.lock().take();
            match events {
                Some(events) => serve(channel, events).await,
                None => elsewhere(&channel).await,
            }
        }
    }

    /// The events of a call that runs at another instance.
    async fn relayed(events: Option<Events>) -> (Events, [Peers; 2]) {
        let state = MemoryState::new(0, Duration::ZERO);
        let tasks = Tasks::default();
        let [here, there] = [(), ()].map(|()| Peers::new(state.instance(true), tasks.clone()));
        there.serve("run", Arc::new(Runs(Mutex::new(events))));
        for peers in [&here, &there] {
            peers.run();
            while !peers.has_announced() {
                tokio::task::yield_now().await;
            }
        }
        let channel = here.open(there.instance(), "run", Bytes::from_static(b"call")).await.unwrap();
        let lost = |lost| Event::Fail(Fault::invalid_params(format!("{lost:?}")));
        (receive(channel, lost), [here, there])
    }

    fn message(text: &'static str) -> Message {
        Message::parse(Bytes::from_static(text.as_bytes())).unwrap()
    }

    const NOTE: &str = r#"{ "jsonrpc":"2.0", "method":"notifications/message","params":{"data":1.50}}"#;
    const RESULT: &str = r#"{"jsonrpc":"2.0","id":7,"result":{"b":1e3, "a":"é"}}"#;
    const ASK: &str = r#"{"jsonrpc":"2.0","id":"x","method":"elicitation/create","params":{}}"#;

    #[tokio::test]
    async fn events_and_answers_come_through_as_they_are() {
        let (answered, heard) = oneshot::channel();
        let call = generate(|emit| async move {
            emit.emit(Event::Begun).await;
            emit.emit(Event::Paused(Duration::from_millis(5))).await;
            emit.emit(Event::Notify(message(NOTE))).await;
            let (reply, answer) = oneshot::channel();
            let ask = |reply: oneshot::Sender<Message>| Ask {
                key: AskKey::next(),
                request: message(ASK),
                reply: Some(reply.into()),
            };
            let round = |reply| Round {
                asks: [ask(reply)].into_iter().collect(),
                resume: Resume::Live,
                source: None,
            };
            emit.emit(Event::Asks(Box::new(round(reply)))).await;
            let first = answer.await.ok();
            let (reply, answer) = oneshot::channel();
            emit.emit(Event::Asks(Box::new(round(reply)))).await;
            // Whoever drops the channel gives no answer.
            let _ = answered.send((first, answer.await.ok()));
            Event::Done(Reply { message: message(RESULT), shape: Shape::Aged(Duration::from_secs(3)) })
        });
        let (mut events, _peers) = relayed(Some(call)).await;
        assert!(matches!(events.next().await, Some(Event::Begun)));
        assert!(
            matches!(events.next().await, Some(Event::Paused(delay)) if delay == Duration::from_millis(5))
        );
        assert!(matches!(events.next().await, Some(Event::Notify(note)) if note.bytes() == NOTE));
        let Some(Event::Asks(mut round)) = events.next().await else { panic!() };
        assert_eq!(round.asks[0].request.bytes(), ASK);
        let answer = Message::result(&Id::from_text("x"), b"{}");
        assert!(round.asks[0].reply.take().unwrap().send(answer.clone()));
        let Some(Event::Asks(second)) = events.next().await else { panic!() };
        drop(second);
        let Some(Event::Done(reply)) = events.next().await else { panic!() };
        assert_eq!(
            (reply.message.bytes(), reply.shape),
            (&Bytes::from(RESULT), Shape::Aged(Duration::from_secs(3)))
        );
        let (first, none) = heard.await.unwrap();
        assert_eq!(first.unwrap().bytes(), answer.bytes());
        assert!(none.is_none());
    }

    #[tokio::test]
    async fn what_is_elsewhere_is_told_apart_from_what_is_lost() {
        let (mut events, _peers) = relayed(None).await;
        assert!(matches!(events.next().await, Some(Event::Fail(fault)) if fault.to_string() == "Elsewhere"));
        let (mut events, _peers) = relayed(Some(Box::pin(futures_util::stream::empty()))).await;
        assert!(matches!(events.next().await, Some(Event::Fail(fault)) if fault.to_string() == "Gone"));
    }

    #[tokio::test]
    async fn dropping_a_relayed_call_cancels_it() {
        struct Tells(Option<oneshot::Sender<()>>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.take().unwrap().send(());
            }
        }
        let (cancelled, heard) = oneshot::channel();
        let tells = Tells(Some(cancelled));
        let call = generate(|emit| async move {
            let _tells = tells;
            emit.emit(Event::Begun).await;
            std::future::pending().await
        });
        let (mut events, _peers) = relayed(Some(call)).await;
        assert!(matches!(events.next().await, Some(Event::Begun)));
        drop(events);
        tokio::time::timeout(Duration::from_secs(5), heard).await.unwrap().unwrap();
    }

    #[test]
    fn faults_survive_the_way() {
        let backend = || "b".to_owned();
        for fault in [
            Fault::Unreachable { backend: backend(), detail: "d".into() },
            Fault::Timeout { backend: backend(), deadline: crate::fault::Deadline::Idle },
            Fault::TooLarge { backend: backend(), size: crate::fault::Size::Line, limit: 7 },
            Fault::Busy { what: Bounded::Queue, limit: 3 },
            Fault::Draining,
            Fault::NotParked { why: crate::fault::Unparked::Busy(9) },
            Fault::Rpc(drawbridge_wire::RpcError::new(-32050, "m").with_data(r#"{"a": 1}"#)),
        ] {
            let (read, _) = unframe::<Header>(&frame(&Header::Fail(fault.clone()), b"")).unwrap();
            assert!(matches!(read, Header::Fail(read) if read == fault));
        }
    }

    proptest! {
        #[test]
        fn junk_is_no_frame(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            // It must not panic, whatever comes.
            let _ = unframe::<Header>(&Bytes::from(bytes));
        }
    }
}
