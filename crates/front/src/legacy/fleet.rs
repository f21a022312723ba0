//! Sessions over several instances: what came to one of them and is for another.
//!
//! The id of an ask, of an event and of an HTTP+SSE connection names the instance that has it, so what is for it goes
//! there directly. What names none (a cancellation, another standalone stream) is told to all.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use drawbridge_core::event_log::{Page, SessionKey, StreamKey};
use drawbridge_core::fleet::relay::{frame, serve, unframe};
use drawbridge_core::fleet::{Channel, Service};
use drawbridge_core::rounds::{RETRY, retry_of};
use drawbridge_core::state::{Bus, Heard, InstanceId, NotSent};
use drawbridge_core::{AskKey, Conversing, Endpoint, Fault, request};
use drawbridge_wire::{Id, Message};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::resume::Place;
use super::session::{STANDALONE, Session};
use super::sse::Posted;
use crate::Inner;
use crate::gate::Caller;
use crate::modern::Sessionless;
use crate::reply::Refusal;

/// How long another instance may take to say that it has something.
const PEER_TIME: Duration = Duration::from_secs(5);
/// The topic of what all instances may have to know about a session.
const SESSIONS: &str = "sessions";

const ANSWER: &str = "answer";
const RESUME: &str = "resume";
const POST: &str = "sse-post";

#[derive(Serialize, Deserialize)]
struct AnswerFrame {
    session: String,
    ask: u64,
}

#[derive(Serialize, Deserialize)]
struct PlaceFrame {
    session: String,
    stream: u64,
    seq: u64,
}

/// One step of a stream that is resumed at another instance.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    /// An event.
    Event(u64),
    /// Nothing more is in the stream.
    Finished,
    /// Nothing is known of it.
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct PostFrame {
    endpoint: String,
    principal: String,
    connection: String,
    /// What its caller may.
    #[serde(default)]
    rights: Option<String>,
    /// It is the answer to a message that comes too often.
    #[serde(default)]
    is_answer: bool,
}

#[derive(Serialize, Deserialize)]
struct PostedFrame {
    status: u16,
}

/// What all instances hear about a session.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// The client cancels the request with this id, a JSON literal.
    Cancel { session: String, id: String },
    /// The client has opened its standalone stream at this instance: no other one sends there any more.
    Standalone { session: String, instance: String },
}

fn unreachable(error: NotSent) -> Fault {
    match error {
        NotSent::Gone(instance) => Fault::StateUnavailable { detail: format!("instance {instance} is gone") },
        NotSent::Unavailable(unavailable) => unavailable.into(),
    }
}

/// Passes the answer to an ask of another instance on. Nobody waits at an instance that is gone.
pub(super) async fn pass_answer(
    inner: &Inner,
    session: &Session,
    to: &InstanceId,
    ask: AskKey,
    answer: &Message,
) -> Result<(), Refusal> {
    let body = frame(&AnswerFrame { session: session.key.to_string(), ask: ask.0 }, answer.bytes());
    match inner.peers.request(to, ANSWER, body, PEER_TIME).await {
        Ok(_) | Err(NotSent::Gone(_)) => Ok(()),
        Err(error) => Err(Refusal::unavailable(&unreachable(error))),
    }
}

/// Posts a message to an HTTP+SSE connection of another instance.
pub(super) async fn pass_post(
    inner: &Inner,
    to: &InstanceId,
    endpoint: &Endpoint,
    caller: &Caller,
    connection: &str,
    posted: &Posted,
) -> Result<(), Refusal> {
    let not_found = || Refusal::not_found("session not found; connect again");
    let name = endpoint.name().map(ToString::to_string).unwrap_or_default();
    let principal = caller.principal.as_str().to_owned();
    let (text, is_answer) = match posted {
        Posted::Message(text) => (text, false),
        Posted::Answer(text) => (text, true),
    };
    let rights = request::rights().and_then(|rights| rights.carried());
    let header =
        PostFrame { endpoint: name, principal, connection: connection.to_owned(), rights, is_answer };
    match inner.peers.request(to, POST, frame(&header, text), PEER_TIME).await {
        Ok(answer) => match unframe::<PostedFrame>(&answer) {
            Some((posted, _)) if posted.status == 202 => Ok(()),
            Some((posted, _)) => Err(Refusal::status(
                http::StatusCode::from_u16(posted.status).unwrap_or(http::StatusCode::NOT_FOUND),
                "the session refuses the message",
            )),
            None => Err(not_found()),
        },
        Err(NotSent::Gone(_)) => Err(not_found()),
        // It may have come there all the same, so nobody should be told that trying again is safe.
        Err(NotSent::Unavailable(e)) => {
            tracing::debug!("a message may have come to instance {to}: {e}");
            let detail = "whether it came to the instance that has the connection is not known".to_owned();
            let fault = Fault::OutcomeUnknown { backend: endpoint.backend_names(), detail };
            Err(Refusal::fault(None, &fault))
        }
    }
}

/// Tells all instances that a request is cancelled.
pub(super) fn tell_cancel(inner: &Inner, session: &Session, id: &Id) {
    if !inner.peers.state().is_fleet {
        return;
    }
    let id = String::from_utf8_lossy(id.literal()).into_owned();
    let (bus, word) =
        (inner.peers.state().bus.clone(), Word::Cancel { session: session.key.to_string(), id });
    inner.tasks.spawn_within("tell instances", async move {
        tell(&*bus, &word).await;
    });
}

/// Tells all instances that the standalone stream of a session is here.
///
/// Resolves once they are: what is told of the client's next one, wherever that is, comes after it.
pub(super) async fn tell_standalone(inner: &Inner, session: &Session) {
    if !inner.peers.state().is_fleet {
        return;
    }
    let instance = inner.peers.instance().to_string();
    session.announce();
    let word = Word::Standalone { session: session.key.to_string(), instance };
    if !tell(&*inner.peers.state().bus, &word).await {
        session.hear_own();
    }
}

async fn tell(bus: &dyn Bus, word: &Word) -> bool {
    let told = bus.publish(SESSIONS, frame(word, b"")).await;
    if let Err(e) = &told {
        tracing::warn!("other instances were not told about a session: {e}");
    }
    told.is_ok()
}

/// Takes what other instances tell and ask, in the background.
pub(crate) fn attend(inner: &Arc<Inner>) {
    let peers = &inner.peers;
    if !peers.state().is_fleet {
        return;
    }
    for name in [ANSWER, RESUME, POST, RETRY] {
        peers.serve(name, Arc::new(Desk { inner: Arc::downgrade(inner), name }));
    }
    let weak = Arc::downgrade(inner);
    let bus = peers.state().bus.clone();
    peers.spawn("hear of sessions", async move {
        loop {
            if let Ok(mut words) = bus.subscribe(SESSIONS).await {
                if let Some(inner) = weak.upgrade() {
                    inner.is_attending.store(true, Ordering::Release);
                }
                while let Some(heard) = words.next().await {
                    let Some(inner) = weak.upgrade() else { return };
                    // What was missed was a cancellation, at worst: the call goes on, and its answer is not waited for.
                    if let Heard::Message(word) = heard {
                        hear(&inner, &word);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let weak = Arc::downgrade(inner);
    let mut ended = inner.legacy.revocations.follow();
    peers.spawn("hear of ended sessions", async move {
        loop {
            let next = ended.recv().await;
            let Some(inner) = weak.upgrade() else { return };
            match next {
                Ok(session) => inner.legacy.forget(session),
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => inner.legacy.forget_revoked(),
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            }
        }
    });
}

fn hear(inner: &Arc<Inner>, word: &Bytes) {
    match unframe::<Word>(word) {
        Some((Word::Cancel { session, id }, _)) => {
            if let Some((session, id)) = inner.legacy.by_key(&session).zip(Id::from_literal(id.into())) {
                session.cancel(&id);
            }
        }
        Some((Word::Standalone { session, instance }, _)) => {
            let Some(session) = inner.legacy.by_key(&session) else { return };
            if instance == inner.peers.instance().as_str() {
                session.hear_own();
            } else {
                session.displace_by_word();
            }
        }
        None => {}
    }
}

/// Where other instances bring what is for this one.
struct Desk {
    inner: Weak<Inner>,
    name: &'static str,
}

#[async_trait]
impl Service for Desk {
    async fn accept(&self, opening: Bytes, channel: Channel) {
        let Some(inner) = self.inner.upgrade() else { return };
        match self.name {
            ANSWER => answer(&inner, &opening, &channel).await,
            RESUME => resume(&inner, &opening, channel).await,
            POST => post(&inner, opening, &channel).await,
            _ => retry(&inner, &opening, channel).await,
        }
    }
}

async fn answer(inner: &Inner, opening: &Bytes, channel: &Channel) {
    if let Some((asked, message)) = unframe::<AnswerFrame>(opening)
        && let Some(session) = inner.legacy.by_key(&asked.session)
        && let Ok(message) = Message::parse(message)
    {
        session.take_answer(AskKey(asked.ask), message);
    }
    // Whoever asks waits for a word, whatever came of it.
    let _ = channel.send(Bytes::new()).await;
}

/// Gives a stream of this instance to another one, to which its client has come.
async fn resume(inner: &Inner, opening: &Bytes, mut channel: Channel) {
    let Some((place, _)) = unframe::<PlaceFrame>(opening) else { return };
    let Some(session) = SessionKey::parse(&place.session) else { return };
    let key = StreamKey { session, stream: place.stream };
    let here = inner.legacy.by_key(&place.session);
    if let Some(here) = &here {
        if place.stream == STANDALONE { here.displace_standalone() } else { here.displace(place.stream) }
    }
    let events = &inner.legacy.events;
    let mut seq = place.seq;
    loop {
        let Some(page) = events.read_after(key, seq) else {
            let _ = channel.send(frame(&Step::Unknown, b"")).await;
            return;
        };
        for (number, text) in page.events.iter().filter(|(_, text)| !text.is_empty()) {
            if channel.send(frame(&Step::Event(*number), text)).await.is_err() {
                return;
            }
        }
        seq = page.events.last().map_or(seq, |(number, _)| *number);
        // What comes on the standalone stream from now on comes to the other instance.
        if page.finished || place.stream == STANDALONE {
            let _ = channel.send(frame(&Step::Finished, b"")).await;
            return;
        }
        tokio::select! {
            () = events.changed(key, seq) => {}
            // The client has gone, or come back elsewhere: nothing is ever sent the other way.
            _ = channel.receive() => return,
        }
    }
}

async fn post(inner: &Arc<Inner>, opening: Bytes, channel: &Channel) {
    let Some((to, text)) = unframe::<PostFrame>(&opening) else { return };
    let posted = if to.is_answer { Posted::Answer(text) } else { Posted::Message(text) };
    let rights = to.rights.as_deref().and_then(|rights| inner.rights_carried(rights));
    let from = (&to.endpoint[..], &to.principal[..], rights);
    let status = super::sse::take_passed(inner, from, &to.connection, posted);
    let _ = channel.send(frame(&PostedFrame { status: status.as_u16() }, b"")).await;
}

/// Goes on with a call that is parked here, and whose client came to another instance.
async fn retry(inner: &Arc<Inner>, opening: &Bytes, channel: Channel) {
    let Some((name, mut call, rights)) = retry_of(opening) else { return };
    call.rights = rights.and_then(|rights| inner.rights_carried(&rights));
    let name = Some(name).filter(|name| !name.is_empty());
    let Some(endpoint) = inner.endpoint(&name) else { return };
    let who: Arc<dyn Conversing> =
        Arc::new(Sessionless { client: call.client.clone(), endpoint: endpoint.clone() });
    serve(channel, endpoint.call(&who, call)).await;
}

/// The rest of a stream that another instance has, or had.
pub(super) enum Elsewhere {
    /// It tells.
    Told(Channel),
    /// It is gone, and left this.
    Left(Option<Page>),
}

/// Takes up a stream of another instance.
pub(super) async fn take_up(inner: &Inner, session: &Session, place: &Place) -> Result<Elsewhere, Fault> {
    let asked = PlaceFrame { session: session.key.to_string(), stream: place.stream, seq: place.seq };
    match inner.peers.reach(&place.instance, RESUME, frame(&asked, b"")).await {
        Ok(channel) => Ok(Elsewhere::Told(channel)),
        Err(NotSent::Gone(_)) => Ok(Elsewhere::Left(left(inner, session, place).await?)),
        Err(error) => Err(unreachable(error)),
    }
}

/// What an instance that is gone left of a stream.
pub(super) async fn left(inner: &Inner, session: &Session, place: &Place) -> Result<Option<Page>, Fault> {
    let key = StreamKey { session: session.key, stream: place.stream };
    Ok(inner.peers.state().events.read_after(key, place.seq).await?)
}

/// The next step of a stream that another instance tells.
pub(super) async fn next_step(channel: &mut Channel) -> Option<(Step, Bytes)> {
    unframe(&channel.receive().await?)
}

/// The longest request id that event ids carry.
const MAX_ID_BYTES: usize = 64;

/// The id of a request as the end of an event id, so that an instance which knows nothing else of a call can say that
/// its outcome is unknown.
pub(super) fn tag_of(id: &Id) -> Option<String> {
    let literal = id.literal();
    (literal.len() <= MAX_ID_BYTES).then(|| URL_SAFE_NO_PAD.encode(literal))
}

/// The request id at the end of an event id.
pub(super) fn id_of(tag: &str) -> Option<Id> {
    let literal = URL_SAFE_NO_PAD.decode(tag).ok().filter(|literal| literal.len() <= MAX_ID_BYTES)?;
    Id::from_literal(literal.into())
}
