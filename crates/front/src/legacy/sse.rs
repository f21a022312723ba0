//! HTTP+SSE of 2024-11-05: the client holds a stream open and posts its messages to the URL that the stream names
//! first. The connection is the session.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use drawbridge_core::metrics::{Era, Stream};
use drawbridge_core::rights::Rights;
use drawbridge_core::state::InstanceId;
use drawbridge_core::{Endpoint, Principal, request};
use drawbridge_wire::message::Incoming;
use drawbridge_wire::{Kind, Message, Payload, method, sse};
use futures_util::StreamExt as _;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::future::FutureExt as _;

use super::http::{agree, receive};
use super::session::{Session, Transport};
use super::{fleet, handle, resume};
use crate::Inner;
use crate::body;
use crate::gate::{Caller, Kept};
use crate::limits::Plan;
use crate::record::{self, End, Record};
use crate::reply::{self, Refusal};
use crate::route::Route;
use crate::stream::{EventBody, StreamPermit};

/// Messages that were not written yet; a client that reads slower than this loses its connection.
const MAX_QUEUED: usize = 1024;

struct Connection {
    out: mpsc::Sender<Bytes>,
    /// The name of its endpoint.
    endpoint: Option<String>,
    /// Whose it is. To others it does not exist.
    principal: Principal,
    /// The same, as the log names it.
    caller: Option<Arc<request::Caller>>,
    session: Mutex<Option<Arc<Session>>>,
    /// Cloned by whatever has yet to put an answer on the stream.
    answers: Arc<()>,
    /// Ends everything that belongs to the connection.
    closed: tokio_util::sync::CancellationToken,
    /// Its endpoint is gone: it ends when no call is running.
    retired: tokio_util::sync::CancellationToken,
}

impl Connection {
    /// Whether no answer is still to come.
    fn is_quiet(&self) -> bool {
        Arc::strong_count(&self.answers) == 1
    }
}

/// The open connections of this instance, by the id in their URL.
#[derive(Default)]
pub(crate) struct Connections(Mutex<HashMap<String, Arc<Connection>>>);

impl Connections {
    /// Ends the connections to endpoints that are gone, once their calls have ended.
    pub(super) fn retire(&self, is_gone: impl Fn(&Option<String>) -> bool) {
        let connections = self.0.lock();
        let gone = connections.values().filter(|connection| is_gone(&connection.endpoint));
        gone.for_each(|connection| connection.retired.cancel());
    }
}

/// Takes a connection out when its stream is dropped.
struct Open {
    inner: Arc<Inner>,
    id: String,
    connection: Arc<Connection>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.inner.legacy.connections.0.lock().remove(&self.id);
        self.connection.closed.cancel();
        let session = self.connection.session.lock().take();
        if let Some(session) = session {
            session.end_streams();
            self.inner.tasks.spawn("end session", async move { session.close().await });
        }
    }
}

/// Opens the stream.
pub(crate) fn open(
    inner: &Arc<Inner>,
    route: &Route,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    if !reply::accepts(headers, "text/event-stream") {
        return Err(Refusal::status(StatusCode::NOT_ACCEPTABLE, "Accept must list text/event-stream"));
    }
    let permit = StreamPermit::take(&inner.streams, Stream::Sse, inner.live().options.max_streams)
        .map_err(|f| Refusal::unavailable(&f))?;
    // It names this instance, to which other ones pass on what is posted there.
    let secret: String = rand::random::<[u8; 24]>().iter().map(|b| format!("{b:02x}")).collect();
    let id = format!("{}-{secret}", inner.peers.instance());
    let path = match &route.endpoint {
        Some(name) => format!("/mcp/{name}/messages"),
        None => "/mcp/messages".to_owned(),
    };
    let (out, mut messages) = mpsc::channel(MAX_QUEUED);
    let connection = Arc::new(Connection {
        out,
        endpoint: route.endpoint.clone(),
        principal: caller.principal.clone(),
        caller: caller.shown(),
        session: Mutex::default(),
        answers: Arc::default(),
        closed: tokio_util::sync::CancellationToken::new(),
        retired: tokio_util::sync::CancellationToken::new(),
    });
    inner.legacy.connections.0.lock().insert(id.clone(), connection.clone());
    let first = sse::encode_named(
        Some("endpoint"),
        None,
        Payload::from(Bytes::from(format!("{path}?sessionId={id}"))),
    );
    let open = Open { inner: inner.clone(), id, connection };
    let (drain, retired) = (inner.tasks.drain_token().clone(), open.connection.retired.clone());
    let mut draining = Box::pin(async move {
        tokio::select! {
            () = drain.cancelled() => {}
            () = retired.cancelled() => {}
        }
    });
    let mut drains = false;
    let source: crate::stream::Source = Box::pin(futures_util::stream::poll_fn(move |cx| {
        loop {
            if open.connection.closed.is_cancelled() {
                return Poll::Ready(None);
            }
            // Seen before the messages: what was sent by whoever is gone by then is among them.
            let is_quiet = open.connection.is_quiet();
            match messages.poll_recv(cx) {
                Poll::Pending => {
                    drains = drains || draining.as_mut().poll(cx).is_ready();
                    // The stream is the only way of a running call's answer.
                    return if drains && is_quiet { Poll::Ready(None) } else { Poll::Pending };
                }
                Poll::Ready(Some(text)) if text.is_empty() => {}
                Poll::Ready(next) => {
                    let event = |text| sse::encode_named(Some("message"), None, Payload::from(text));
                    return Poll::Ready(next.map(event));
                }
            }
        }
    }));
    let opening = BytesMut::from(&first.into_bytes()[..]).freeze();
    Ok(reply::event_stream(EventBody::body(opening, source, &inner.live().options, permit)))
}

/// Takes a message. What it leads to comes on the stream.
pub(crate) async fn post(
    inner: &Arc<Inner>,
    route: &Route,
    head: &Parts,
    caller: &Caller,
    mut plan: Plan<'_>,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    let query = head.uri.query().unwrap_or_default();
    let id = url::form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "sessionId");
    let not_found = || Refusal::not_found("session not found; connect again");
    let (_, id) = id.ok_or_else(not_found)?;
    let owner = id.split_once('-').and_then(|(instance, _)| InstanceId::parse(instance));
    if let Some(owner) = owner.filter(|owner| owner != inner.peers.instance()) {
        let endpoint = inner.endpoint(&route.endpoint).ok_or_else(not_found)?;
        let text = body::read(body, inner.live().options.max_body_bytes).await?;
        let message = parse(text.clone())?;
        let message = match unchallenged(inner, route, caller, &endpoint, message).await {
            Ok(message) => message,
            Err(response) => return Ok(response),
        };
        let posted = match limit(inner, route, &endpoint, &mut plan, message).await {
            Ok(Limited::Allowed(_)) => Posted::Message(text),
            Ok(Limited::Refused(answer)) => Posted::Answer(answer),
            Err(response) => return Ok(response),
        };
        fleet::pass_post(inner, &owner, &endpoint, caller, &id, &posted).await?;
        return Ok(reply::accepted());
    }
    let connection = inner.legacy.connections.0.lock().get(id.as_ref()).cloned();
    let is_theirs = |c: &Arc<Connection>| c.endpoint == route.endpoint && c.principal == caller.principal;
    let connection = connection.filter(is_theirs).ok_or_else(not_found)?;
    let text = body::read(body, inner.live().options.max_body_bytes).await?;
    let message = parse(text)?;
    let endpoint = inner.endpoint(&route.endpoint).ok_or_else(not_found)?;
    let message = match unchallenged(inner, route, caller, &endpoint, message).await {
        Ok(message) => message,
        Err(response) => return Ok(response),
    };
    match limit(inner, route, &endpoint, &mut plan, message).await {
        Ok(Limited::Allowed(message)) => take(inner, &connection, *message)?,
        Ok(Limited::Refused(answer)) => send(&connection, answer),
        Err(response) => return Ok(response),
    }
    Ok(reply::accepted())
}

/// What is posted to a connection.
pub(super) enum Posted {
    /// A message of the client.
    Message(Bytes),
    /// The answer to one that comes too often.
    Answer(Bytes),
}

enum Limited {
    Allowed(Box<Message>),
    /// The answer, which belongs on the stream.
    Refused(Bytes),
}

/// Whether a message may come now; else what its POST is answered, or what goes on the stream.
async fn limit(
    inner: &Inner,
    route: &Route,
    endpoint: &Arc<Endpoint>,
    plan: &mut Plan<'_>,
    message: Message,
) -> Result<Limited, Response<Body>> {
    let incoming = Incoming::One(message);
    match inner.limiting.after(plan, &incoming, &inner.metrics.limits).await {
        Ok(limited) => match record::without_limited(endpoint, Era::Legacy, incoming, limited) {
            Ok((Incoming::One(message), _)) => Ok(Limited::Allowed(Box::new(message))),
            Ok((Incoming::Batch(_), _)) => Err(reply::accepted()),
            Err(refusal) => Ok(Limited::Refused(refusal.message().bytes().clone())),
        },
        Err(too_often) => {
            let kept = Kept::TooOften(too_often.retry_after);
            let response = inner.turn_away(&kept, route.endpoint.as_deref());
            record::turned_away(endpoint, Era::Legacy, &incoming, response.status());
            Err(response)
        }
    }
}

/// The message, unless its caller is to get a scope for it first.
async fn unchallenged(
    inner: &Inner,
    route: &Route,
    caller: &Caller,
    endpoint: &Arc<Endpoint>,
    message: Message,
) -> Result<Message, Response<Body>> {
    let incoming = Incoming::One(message);
    match (inner.challenge(caller, endpoint, &incoming).await, incoming) {
        (None, Incoming::One(message)) => Ok(message),
        (None, Incoming::Batch(_)) => Err(reply::accepted()),
        (Some(kept), incoming) => {
            let response = inner.turn_away(&kept, route.endpoint.as_deref());
            record::turned_away(endpoint, Era::Legacy, &incoming, response.status());
            Err(response)
        }
    }
}

/// Takes a message that another instance passes on. Returns the status for its client.
pub(super) fn take_passed(
    inner: &Arc<Inner>,
    (endpoint, principal, rights): (&str, &str, Option<Arc<dyn Rights>>),
    id: &str,
    posted: Posted,
) -> StatusCode {
    let connection = inner.legacy.connections.0.lock().get(id).cloned();
    let belongs = |c: &Arc<Connection>| {
        c.endpoint.as_deref().unwrap_or_default() == endpoint && c.principal.as_str() == principal
    };
    let Some(connection) = connection.filter(belongs) else { return StatusCode::NOT_FOUND };
    let text = match posted {
        Posted::Message(text) => text,
        Posted::Answer(answer) => {
            send(&connection, answer);
            return StatusCode::ACCEPTED;
        }
    };
    let caller = connection.caller.clone();
    match parse(text)
        .and_then(|message| request::passed(caller, rights, || take(inner, &connection, message)))
    {
        Ok(()) => StatusCode::ACCEPTED,
        Err(refusal) => refusal.into_response().status(),
    }
}

fn parse(text: Bytes) -> Result<Message, Refusal> {
    match Incoming::parse(text, 1).map_err(|e| Refusal::invalid(&e))? {
        Incoming::One(message) => Ok(message),
        Incoming::Batch(_) => {
            Err(Refusal::status(StatusCode::BAD_REQUEST, "batches are not part of this transport"))
        }
    }
}

fn take(inner: &Arc<Inner>, connection: &Arc<Connection>, message: Message) -> Result<(), Refusal> {
    let session = connection.session.lock().clone();
    match session {
        None if message.method() == method::INITIALIZE && message.kind() == Kind::Request => {
            let endpoint = inner.endpoint(&connection.endpoint);
            let endpoint = endpoint.ok_or_else(|| Refusal::not_found("no such endpoint"))?;
            initialize(inner, connection, endpoint, message);
        }
        None if message.method() == method::PING => answer_ping(connection, &message),
        None => return Err(Refusal::status(StatusCode::BAD_REQUEST, "initialize first")),
        Some(session) => dispatch(inner, connection, &session, message)?,
    }
    Ok(())
}

fn answer_ping(connection: &Connection, message: &Message) {
    if let Some(id) = message.id() {
        send(connection, Message::result(&id, b"{}").bytes().clone());
    }
}

/// Puts a message on the stream; a client that does not read is let go.
fn send(connection: &Connection, text: Bytes) {
    if connection.out.try_send(text).is_err() {
        connection.closed.cancel();
    }
}

fn initialize(inner: &Arc<Inner>, connection: &Arc<Connection>, endpoint: Arc<Endpoint>, message: Message) {
    let (inner_, connection, answers) = (inner.clone(), connection.clone(), connection.answers.clone());
    let mut record = Record::begin(&endpoint, Era::Legacy, &message);
    record.streams();
    let caller = request::caller();
    let agreeing = async move {
        match agree(&endpoint, &connection.principal, &message).await {
            Ok((client, answer)) => {
                let key = handle::key(&format!("sse {:x}", rand::random::<u128>()));
                let legacy = &inner_.legacy;
                let session =
                    Session::new(key, client, endpoint.clone(), inner_.peers.clone(), legacy.events.clone());
                inner_.legacy.enter(&session, None);
                // The endpoint may have been replaced meanwhile.
                if let Some(endpoint) = inner_.endpoint(&connection.endpoint) {
                    session.move_to(&endpoint, &inner_.tasks);
                }
                *connection.session.lock() = Some(session.clone());
                record.end(End::OK, None);
                send(&connection, answer.bytes().clone());
                follow_standalone(&inner_, &connection, &session);
            }
            Err(refusal) => send(&connection, record.refused(refusal).message().bytes().clone()),
        }
        drop(answers);
        send(&connection, Bytes::new());
    };
    inner.tasks.spawn_within("initialize", async move {
        request::of(caller, None, agreeing).await;
    });
}

/// What comes outside of calls goes to the one stream that there is.
fn follow_standalone(inner: &Arc<Inner>, connection: &Arc<Connection>, session: &Arc<Session>) {
    let mut messages = resume::standalone_messages(session);
    let connection = connection.clone();
    inner.tasks.spawn("standalone stream", async move {
        let closed = connection.closed.clone();
        let follow = async {
            while let Some(text) = messages.next().await {
                send(&connection, text);
            }
        };
        follow.with_cancellation_token(&closed).await;
    });
}

fn dispatch(
    inner: &Arc<Inner>,
    connection: &Arc<Connection>,
    session: &Arc<Session>,
    message: Message,
) -> Result<(), Refusal> {
    let (call, answer) = receive(inner, session, message)?.split();
    if let Some(answer) = answer {
        send(connection, answer.bytes().clone());
    }
    let Some(mut call) = call else { return Ok(()) };
    call.call.is(Transport::Stream);
    let (connection, answers) = (connection.clone(), connection.answers.clone());
    inner.tasks.spawn_within("call", async move {
        let closed = connection.closed.clone();
        let run = async {
            while let Some(out) = call.next().await {
                if !out.payload.is_empty() {
                    send(&connection, out.payload.into_bytes());
                }
            }
        };
        // Closing the connection ends the session, and with it the call.
        run.with_cancellation_token(&closed).await;
        drop((call, answers));
        // A stream that waits for the last call to end looks again.
        send(&connection, Bytes::new());
    });
    Ok(())
}
