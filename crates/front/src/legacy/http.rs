//! Streamable HTTP of 2025-03-26 to 2025-11-25: POST, GET and DELETE on one path.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use drawbridge_core::call::Call;
use drawbridge_core::metrics::{Era, Outcome, Stream};
use drawbridge_core::state::InstanceId;
use drawbridge_core::{Answers, AskKey, Client, Conversing, Endpoint, Principal};
use drawbridge_wire::message::{Field, Incoming, Invalid};
use drawbridge_wire::{Kind, Message, Payload, ProtocolVersion, RpcError, code, header, json, method, sse};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::calls::{self, CallMessages, Held, Log, Running};
use super::encode::Out;
use super::session::{STANDALONE, Session, Transport};
use super::{fleet, handle, resume};
use crate::gate::Caller;
use crate::modern::Sessionless;
use crate::record::{self, End, Record};
use crate::reply::{self, Refusal};
use crate::stream::{EventBody, StreamPermit};
use crate::{Inner, MAX_DECLARED_BYTES};

/// The session that a request names; the same words for every id that is no good.
async fn session_of(
    inner: &Inner,
    endpoint: &Arc<Endpoint>,
    caller: &Caller,
    id: &str,
) -> Result<Arc<Session>, Refusal> {
    let found = inner
        .legacy
        .find(endpoint, &caller.principal, id)
        .await
        .map_err(|fault| Refusal::unavailable(&fault))?;
    found.ok_or_else(|| Refusal::not_found("session not found; initialize again"))
}

/// The session id that a request names. One that can't be read is no good, and not the same as none.
fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let unreadable = || Refusal::not_found("session not found; initialize again");
    headers.get(header::SESSION_ID).map(|value| value.to_str().map_err(|_| unreadable())).transpose()
}

/// The same, kept on this instance.
fn kept_session(inner: &Inner, id: &str, session: Arc<Session>) -> Result<Arc<Session>, Refusal> {
    inner.legacy.keep(id, session).map_err(|fault| Refusal::unavailable(&fault))
}

/// Checks the version header: absent, or a version of this era.
fn check_version(headers: &HeaderMap) -> Result<(), Refusal> {
    match reply::version_header(headers) {
        Some(named) if ProtocolVersion::parse(named).is_none() => {
            Err(Refusal::rpc(StatusCode::BAD_REQUEST, None, crate::unsupported_version(named)))
        }
        _ => Ok(()),
    }
}

/// Answers a POST. `refused` are the answers to those messages of a batch that are not among `incoming` any more.
pub(crate) async fn post(
    inner: &Arc<Inner>,
    endpoint: &Arc<Endpoint>,
    head: &Parts,
    caller: &Caller,
    incoming: Incoming,
    refused: Vec<Message>,
) -> Result<Response<Body>, Refusal> {
    check_version(&head.headers)?;
    if let Incoming::One(message) = &incoming
        && message.method() == method::INITIALIZE
        && message.kind() == Kind::Request
    {
        let mut record = Record::begin(endpoint, Era::Legacy, message);
        return match initialize(inner, endpoint, caller, message).await {
            Ok(answer) => {
                record.end(End::OK, answer.status());
                Ok(answer)
            }
            Err(refusal) => Err(record.refused(refusal)),
        };
    }
    let Some(id) = session_id(&head.headers)? else {
        return Box::pin(without_session(inner, endpoint, head, caller, incoming)).await;
    };
    let found = match session_of(inner, endpoint, caller, id).await {
        Ok(session) => {
            session.touch();
            if needs_session(&incoming) { kept_session(inner, id, session) } else { Ok(session) }
        }
        Err(refusal) => Err(refusal),
    };
    let session = found.map_err(|refusal| record::refused(endpoint, Era::Legacy, &incoming, refusal))?;
    let (messages, batch) = match incoming {
        Incoming::One(message) => (vec![Ok(message)], false),
        Incoming::Batch(_) if !session.client().version.has_batches() => return Err(no_batches()),
        Incoming::Batch(messages) => (messages, true),
    };
    take(inner, &session, messages, batch, refused).await
}

/// Whether something of a session has to be remembered for what it sends.
fn needs_session(incoming: &Incoming) -> bool {
    let asks = |m: &Message| m.kind() == Kind::Request && m.method() != method::PING;
    match incoming {
        Incoming::One(message) => asks(message),
        Incoming::Batch(messages) => messages.iter().flatten().any(asks),
    }
}

fn no_batches() -> Refusal {
    let error = RpcError::new(code::INVALID_REQUEST, "batches are not part of this protocol version");
    Refusal::rpc(StatusCode::BAD_REQUEST, None, error)
}

/// Answers `initialize` and hands out a session id. Nothing is stored.
pub(super) async fn initialize(
    inner: &Inner,
    endpoint: &Arc<Endpoint>,
    caller: &Caller,
    request: &Message,
) -> Result<Response<Body>, Refusal> {
    let (client, answer) = agree(endpoint, &caller.principal, request).await?;
    let name = endpoint.name().map(ToString::to_string).unwrap_or_default();
    let sealed = inner.legacy.handles.seal(&client, &name).await;
    let id = sealed.map_err(|e| Refusal::unavailable(&e.into()))?;
    let mut response = reply::message(&answer);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(header::SESSION_ID, value);
    }
    Ok(response)
}

/// The client that `initialize` declares.
fn client_of(request: &Message, principal: &Principal, version: ProtocolVersion) -> Client {
    // Copies: a slice would keep the whole body for as long as the session.
    let object = |field| request.raw(field).filter(|raw| raw.starts_with(b"{")).map(Bytes::copy_from_slice);
    Client {
        principal: principal.clone(),
        version,
        capabilities: object(Field::Capabilities).unwrap_or_else(|| Bytes::from_static(b"{}")),
        info: object(Field::ClientInfo),
        answers: Answers::Live,
    }
}

/// What `initialize` comes to: the client and the answer to it.
pub(super) async fn agree(
    endpoint: &Arc<Endpoint>,
    principal: &Principal,
    request: &Message,
) -> Result<(Arc<Client>, Message), Refusal> {
    let id = request.id();
    let bad = |what: &str| {
        Refusal::rpc(StatusCode::BAD_REQUEST, id.clone(), RpcError::new(code::INVALID_PARAMS, what))
    };
    let requested =
        request.text(Field::ProtocolVersion).ok_or_else(|| bad("\"protocolVersion\" must be a string"))?;
    let client = Arc::new(client_of(request, principal, ProtocolVersion::negotiate(&requested)));
    let declared = client.capabilities.len() + client.info.as_ref().map_or(0, Bytes::len);
    if declared > MAX_DECLARED_BYTES {
        return Err(bad(&format!(
            "\"capabilities\" and \"clientInfo\" have more than {MAX_DECLARED_BYTES} bytes"
        )));
    }
    let description = endpoint.describe(&client).await.map_err(|fault| {
        tracing::warn!(error.code = fault.code(), error.message = ?fault.to_string(), "initialize failed");
        Refusal::fault(id.clone(), &fault)
    })?;
    let version = json::encode_string(client.version.as_str());
    let mut members = vec![
        ("protocolVersion", version.as_bytes()),
        ("capabilities", &description.capabilities[..]),
        ("serverInfo", &description.server_info[..]),
    ];
    members.extend(description.instructions.as_deref().map(|text| ("instructions", text)));
    members.extend(description.meta.as_deref().map(|meta| ("_meta", meta)));
    let id = id.clone().ok_or_else(|| bad("\"id\" is missing"))?;
    Ok((client, Message::result(&id, &json::object(members))))
}

/// Methods that mean nothing without a session.
const NEED_SESSION: [&str; 3] =
    [method::SET_LEVEL, method::RESOURCES_SUBSCRIBE, method::RESOURCES_UNSUBSCRIBE];

/// Some hosts never send the session id back. What needs no session is answered all the same, by a conversation
/// that clients of the same kind share.
async fn without_session(
    inner: &Arc<Inner>,
    endpoint: &Arc<Endpoint>,
    head: &Parts,
    caller: &Caller,
    incoming: Incoming,
) -> Result<Response<Body>, Refusal> {
    let version = reply::version_header(&head.headers)
        .and_then(ProtocolVersion::parse)
        .filter(|v| v.has_initialize())
        .unwrap_or(ProtocolVersion::V2025_03_26);
    let needed = |id| {
        let error = RpcError::new(
            code::INVALID_REQUEST,
            "the Mcp-Session-Id header that initialize handed out is missing",
        );
        Refusal::rpc(StatusCode::BAD_REQUEST, id, error)
    };
    let message = match incoming {
        Incoming::One(message) => message,
        Incoming::Batch(_) if !version.has_batches() => return Err(no_batches()),
        Incoming::Batch(_) => return Err(needed(None)),
    };
    let id = message.id();
    match message.kind() {
        Kind::Notification if message.method() == method::INITIALIZED => return Ok(reply::accepted()),
        Kind::Request => {}
        _ => return Err(needed(None)),
    }
    let mut record = Record::begin(endpoint, Era::Legacy, &message);
    if NEED_SESSION.contains(&message.method().as_ref()) {
        return Err(record.refused(needed(id)));
    }
    let client = Arc::new(Client {
        principal: caller.principal.clone(),
        version,
        capabilities: Bytes::from_static(b"{}"),
        info: None,
        answers: Answers::Live,
    });
    let session = Session::new(
        handle::key(""),
        client.clone(),
        endpoint.clone(),
        inner.peers.clone(),
        inner.legacy.events.clone(),
    );
    let Some(id) = id else { return Err(needed(None)) };
    if message.method() == method::PING {
        record.end(End::OK, StatusCode::OK);
        return Ok(reply::message(&Message::result(&id, b"{}")));
    }
    let who: Arc<dyn Conversing> =
        Arc::new(Sessionless { client: client.clone(), endpoint: endpoint.clone() });
    let call = Call { trace: record.trace(), ..Call::new(message.clone(), client) };
    let events = endpoint.call(&who, call);
    let messages = CallMessages::of(&session, id, message.method().into_owned(), events, record);
    respond(inner, Held::new(Running::new(vec![messages]), inner.tasks.clone()), 1, false, None).await
}

/// Takes the messages of one POST of a session. A `batch` is answered by one, even if it has one message.
async fn take(
    inner: &Arc<Inner>,
    session: &Arc<Session>,
    messages: Vec<Result<Message, Invalid>>,
    batch: bool,
    mut answered: Vec<Message>,
) -> Result<Response<Body>, Refusal> {
    let mut calls = Vec::new();
    for message in messages {
        match message {
            Err(invalid) => answered.push(invalid.to_rpc_error().to_message(invalid.id.as_ref())),
            Ok(message) => match receive(inner, session, message)? {
                Received::Call(call) => calls.push(*call),
                Received::Answer(answer) => answered.push(*answer),
                Received::Elsewhere(passed) => {
                    let (to, ask, answer) = *passed;
                    fleet::pass_answer(inner, session, &to, ask, &answer).await?;
                }
                Received::Nothing => {}
            },
        }
    }
    if calls.is_empty() {
        return Ok(match answered.as_slice() {
            [] => reply::accepted(),
            [answer] if !batch => reply::message(answer),
            answers => reply::json(
                StatusCode::OK,
                Payload::from(json::array(answers.iter().map(|m| &m.bytes()[..]))),
            ),
        });
    }
    let count = calls.len();
    let held = Held::new(Running::new(calls), inner.tasks.clone());
    let early = answered.into_iter().map(|m| Payload::from(m.bytes().clone())).collect();
    respond(inner, held, count, batch, Some((session, early))).await
}

pub(super) enum Received {
    Call(Box<CallMessages>),
    Answer(Box<Message>),
    /// The client's answer to an ask of another instance.
    Elsewhere(Box<(InstanceId, AskKey, Message)>),
    Nothing,
}

/// Takes one message of a client in a session, over either transport.
pub(super) fn receive(inner: &Inner, session: &Arc<Session>, message: Message) -> Result<Received, Refusal> {
    match message.kind() {
        Kind::Result | Kind::Error => {
            if let Some(passed) = session.answer(message) {
                return Ok(Received::Elsewhere(Box::new(passed)));
            }
        }
        Kind::Notification => match message.method().as_ref() {
            method::INITIALIZED => {}
            method::CANCELLED => {
                if let Some(id) = message.slice(Field::RequestId).and_then(drawbridge_wire::Id::from_literal)
                {
                    session.cancel(&id);
                    fleet::tell_cancel(inner, session, &id);
                }
            }
            _ => {
                let session = session.clone();
                inner.tasks.spawn_within("notify backends", async move { session.notify(message).await });
            }
        },
        Kind::Request => {
            let id = message.id();
            let mut record = Record::begin(&session.endpoint(), Era::Legacy, &message);
            record.of_session(&session.key, session.client().version);
            let mut refused = |error: RpcError| {
                record.end(End::error(Outcome::Refused, error.code), StatusCode::OK);
                Box::new(error.to_message(id.as_ref()))
            };
            return Ok(match message.method().as_ref() {
                method::PING => {
                    record.end(End::OK, StatusCode::OK);
                    let answer = id.as_ref().map(|id| Message::result(id, b"{}"));
                    answer.map_or(Received::Nothing, |answer| Received::Answer(Box::new(answer)))
                }
                method::INITIALIZE => {
                    let what = "initialize must come alone, to open a session";
                    Received::Answer(refused(RpcError::new(code::INVALID_REQUEST, what)))
                }
                // A method of the other era; answering it from a session would mix the two.
                method::DISCOVER | method::LISTEN => {
                    let error = RpcError::new(
                        code::METHOD_NOT_FOUND,
                        format!("method not found: {}", message.method()),
                    );
                    Received::Answer(refused(error))
                }
                _ => match CallMessages::start(session, message, record) {
                    Some(call) => Received::Call(Box::new(call)),
                    None => Received::Nothing,
                },
            });
        }
    }
    Ok(Received::Nothing)
}

impl Received {
    /// The call, or the answer that is there already.
    pub(super) fn split(self) -> (Option<CallMessages>, Option<Message>) {
        match self {
            Self::Call(call) => (Some(*call), None),
            Self::Answer(answer) => (None, Some(*answer)),
            Self::Elsewhere(..) | Self::Nothing => (None, None),
        }
    }
}

/// Answers with JSON if the answers come soon and nothing comes before them, else with a stream.
async fn respond(
    inner: &Arc<Inner>,
    mut held: Held,
    count: usize,
    batch: bool,
    session: Option<(&Arc<Session>, Vec<Payload>)>,
) -> Result<Response<Body>, Refusal> {
    let mut ready = Vec::new();
    let mut before_answers = None;
    let mut asked = false;
    let early = session.as_ref().map_or(0, |(_, early)| early.len());
    let all_terminal = async {
        loop {
            match std::future::poll_fn(|cx| held.poll_message(cx)).await {
                Some(Out { payload, terminal: true, .. }) => {
                    ready.push(payload);
                    if ready.len() == count {
                        return Some(true);
                    }
                }
                Some(out) => {
                    asked = out.asks;
                    before_answers = Some(out.payload).filter(|payload| !payload.is_empty());
                    return None;
                }
                // The rest was cancelled.
                None => return Some(!ready.is_empty()),
            }
        }
    };
    let outcome = tokio::time::timeout(inner.live().options.sse_after, all_terminal).await;
    let (session, mut answers) = session.map_or((None, Vec::new()), |(s, early)| (Some(s), early));
    answers.append(&mut ready);
    if let Ok(Some(answered)) = outcome {
        // Whoever cancels a call gets no answer to it.
        if !answered && early == 0 {
            return Ok(reply::event_stream(Body::empty()));
        }
        return Ok(reply::json(StatusCode::OK, joined(answers, batch)));
    }
    let Ok(permit) = StreamPermit::take(&inner.streams, Stream::Call, inner.live().options.max_streams)
    else {
        return Ok(without_stream(held, session, before_answers, answers, batch).await);
    };
    held.is(Transport::Stream);
    answers.extend(before_answers);
    let mut opening = bytes::BytesMut::from(&b":\n\n"[..]);
    if let Some(session) = session {
        let stream = held.first_serial().unwrap_or(STANDALONE);
        let log = Log::new(session, stream, held.only_id());
        if session.client().version.primes_streams() {
            let retry = u64::try_from(inner.live().options.retry.as_millis()).ok();
            opening.extend_from_slice(&sse::encode_priming(&log.event_id(0), retry));
        }
        held.log(log);
        // It has taken its time already, or its client's answer may come to another instance.
        if outcome.is_err() || asked {
            held.spill();
        }
    }
    for payload in answers {
        held.write(payload).pieces().iter().for_each(|piece| opening.extend_from_slice(piece));
    }
    let body = EventBody::body(opening.freeze(), calls::stream_of(held), &inner.live().options, permit);
    Ok(reply::event_stream(body))
}

/// Waits for the answers where no stream is free for what comes before them. The calls run already: to refuse them now
/// would invite the client to run them again.
async fn without_stream(
    mut held: Held,
    session: Option<&Arc<Session>>,
    first: Option<Payload>,
    mut answers: Vec<Payload>,
    batch: bool,
) -> Response<Body> {
    let drop_message = |payload: Payload| {
        let ask = Message::parse(payload.into_bytes()).ok().filter(|message| message.kind() == Kind::Request);
        if let (Some(session), Some(ask)) = (session, ask) {
            let error = RpcError::new(code::INTERNAL_ERROR, "the client can't be asked now");
            // It is an ask of this instance.
            let _ = session.answer(error.to_message(ask.id().as_ref()));
        }
    };
    first.into_iter().for_each(drop_message);
    while let Some(out) = std::future::poll_fn(|cx| held.poll_message(cx)).await {
        if out.terminal { answers.push(out.payload) } else { drop_message(out.payload) }
    }
    if answers.is_empty() {
        return reply::event_stream(Body::empty());
    }
    reply::json(StatusCode::OK, joined(answers, batch))
}

fn joined(mut answers: Vec<Payload>, batch: bool) -> Payload {
    if !batch && answers.len() == 1 {
        return answers.swap_remove(0);
    }
    let answers: Vec<Bytes> = answers.into_iter().map(Payload::into_bytes).collect();
    Payload::from(json::array(answers.iter().map(|a| &a[..])))
}

/// Answers a GET: the standalone stream, or the rest of the stream that `Last-Event-ID` names.
pub(crate) async fn get(
    inner: &Arc<Inner>,
    endpoint: &Arc<Endpoint>,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    check_version(headers)?;
    if !reply::accepts(headers, "text/event-stream") {
        return Err(Refusal::status(StatusCode::NOT_ACCEPTABLE, "Accept must list text/event-stream"));
    }
    let Some(id) = session_id(headers)? else {
        return Err(Refusal::status(
            StatusCode::METHOD_NOT_ALLOWED,
            "a stream needs the Mcp-Session-Id that initialize hands out; clients of 2024-11-05 use the path ending in /sse",
        ));
    };
    let session = kept_session(inner, id, session_of(inner, endpoint, caller, id).await?)?;
    let place = reply::text(headers, header::LAST_EVENT_ID).and_then(resume::parse_event_id);
    let kind = match &place {
        Some(place) if place.stream != STANDALONE => Stream::Call,
        _ => Stream::Standalone,
    };
    let permit = StreamPermit::take(&inner.streams, kind, inner.live().options.max_streams)
        .map_err(|f| Refusal::unavailable(&f))?;
    let mut opening = bytes::BytesMut::from(&b":\n\n"[..]);
    let source = match &place {
        Some(place) => resume::from(inner, &session, place).await.map_err(|f| Refusal::unavailable(&f))?,
        None => resume::standalone(inner, &session, None).await,
    };
    if place.is_none() && session.client().version.primes_streams() {
        let retry = u64::try_from(inner.live().options.retry.as_millis()).ok();
        let first = calls::event_id(&session.instance, STANDALONE, session.standalone_seq());
        opening.extend_from_slice(&sse::encode_priming(&first, retry));
    }
    let source = until_drain(inner, source);
    Ok(reply::event_stream(EventBody::body(opening.freeze(), source, &inner.live().options, permit)))
}

/// The same stream, ended when the gateway drains: the client comes back to another instance.
fn until_drain(inner: &Inner, source: crate::stream::Source) -> crate::stream::Source {
    use futures_util::StreamExt as _;
    Box::pin(source.take_until(inner.tasks.drain_token().clone().cancelled_owned()))
}

/// Answers a DELETE: the session is over.
pub(crate) async fn delete(
    inner: &Inner,
    endpoint: &Arc<Endpoint>,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    check_version(headers)?;
    let Some(id) = session_id(headers)? else {
        return Err(Refusal::status(StatusCode::BAD_REQUEST, "the Mcp-Session-Id header is missing"));
    };
    let session = session_of(inner, endpoint, caller, id).await?;
    inner.legacy.end(session.key).await;
    let state = inner.peers.state();
    if state.is_fleet {
        let state = state.clone();
        inner.tasks.spawn("end session everywhere", async move { session.close_everywhere(&state).await });
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_keeps_nothing_of_the_body_that_declared_it() {
        let params =
            r#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"x"}}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#);
        let body = Bytes::from(text.into_bytes());
        let message = Message::parse(body.clone()).unwrap();
        let client = client_of(&message, &Principal::anonymous(), ProtocolVersion::V2025_11_25);
        drop(message);
        assert_eq!(client.capabilities, r#"{"roots":{}}"#);
        assert_eq!(client.info.as_deref(), Some(&br#"{"name":"x"}"#[..]));
        assert!(body.is_unique(), "a slice would keep all of it");
    }
}
