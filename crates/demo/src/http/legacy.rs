//! The legacy era over HTTP (MCP 2025-03-26 to 2025-11-25, streamable HTTP): sessions, a stream that the
//! client may hold open with GET, and streams that can be resumed. A client that goes away still wants the
//! answer.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use drawbridge_wire::{Invalid, Kind, Message, ProtocolVersion, RpcError, code, header, method, sse};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::reply::{self, Source};
use super::{accepts, text};
use crate::Demo;
use crate::outlet::{Log, Outlet, Reader};
use crate::session::Session;

/// When a client whose stream broke shall come back.
const RETRY_MS: u64 = 1000;
/// The name of the stream that GET opens.
const PUSH: &str = "push";

type Refusal = Box<Response>;

/// Takes a message of this era.
pub(super) async fn accept(demo: &Demo, headers: &HeaderMap, message: Message) -> Response {
    let id = text(headers, header::SESSION_ID);
    if message.kind() == Kind::Request && message.method() == method::INITIALIZE && id.is_none() {
        return initialize(demo, &message);
    }
    let session = match check_version(headers).and_then(|()| find(demo, id)) {
        Ok(session) => session,
        Err(refusal) => return *refusal,
    };
    match message.kind() {
        Kind::Request if message.method() == method::INITIALIZE => {
            refuse(StatusCode::BAD_REQUEST, "the session is initialized already")
        }
        Kind::Request => {
            let log = session.stream(1);
            session.start(demo, &message, Outlet::Log(Arc::clone(&log))).await;
            answer(&session, log, true).await
        }
        _ => {
            session.accept(message);
            reply::accepted()
        }
    }
}

/// Takes a batch: a feature of 2025-03-26.
pub(super) async fn accept_batch(
    demo: &Demo,
    id: Option<&str>,
    messages: Vec<Result<Message, Invalid>>,
) -> Response {
    let session = match find(demo, id) {
        Ok(session) => session,
        Err(refusal) => return *refusal,
    };
    if !session.version.has_batches() {
        return refuse(StatusCode::BAD_REQUEST, "batches are not part of this version");
    }
    let Ok(messages) = messages.into_iter().collect::<Result<Vec<_>, _>>() else {
        return refuse(StatusCode::BAD_REQUEST, "the batch has an element that is no message");
    };
    let (requests, others): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message.kind() == Kind::Request);
    others.into_iter().for_each(|message| session.accept(message));
    if requests.is_empty() {
        return reply::accepted();
    }
    let log = session.stream(requests.len());
    for request in &requests {
        session.start(demo, request, Outlet::Log(Arc::clone(&log))).await;
    }
    answer(&session, log, false).await
}

/// Opens the stream for what belongs to no request, or goes on with one that broke.
pub(super) async fn get(State(demo): State<Demo>, headers: HeaderMap) -> Response {
    let Some(id) = text(&headers, header::SESSION_ID) else {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "a GET needs a session");
    };
    if is_modern(&headers) {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "this version has no GET");
    }
    if !accepts(&headers, "text/event-stream", "text/*") {
        return refuse(StatusCode::NOT_ACCEPTABLE, "the client has to accept text/event-stream");
    }
    let session = match check_version(&headers).and_then(|()| find(&demo, Some(id))) {
        Ok(session) => session,
        Err(refusal) => return *refusal,
    };
    let found = match text(&headers, header::LAST_EVENT_ID) {
        Some(last) => resume(&session, last),
        None => session.push_log().map(|log| log.read(None)),
    };
    match found {
        Some(reader) => stream(&demo, &session, reader, Vec::new()),
        None => refuse(StatusCode::BAD_REQUEST, "there is no such stream to resume"),
    }
}

/// Ends a session.
pub(super) async fn delete(State(demo): State<Demo>, headers: HeaderMap) -> Response {
    if is_modern(&headers) {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "this version has no DELETE");
    }
    match check_version(&headers).and_then(|()| find(&demo, text(&headers, header::SESSION_ID))) {
        Ok(session) => {
            demo.0.sessions.remove(&session.id);
            reply::no_content()
        }
        Err(refusal) => *refusal,
    }
}

fn initialize(demo: &Demo, request: &Message) -> Response {
    let push = Log::new(PUSH.to_owned(), 1);
    let (session, answer) = Session::open(demo, request, Outlet::Log(push));
    let mut response = reply::json(StatusCode::OK, &answer);
    if let Ok(id) = HeaderValue::from_str(&session.id) {
        response.headers_mut().insert(HeaderName::from_static(header::SESSION_ID), id);
    }
    response
}

/// JSON if the answer comes first, else a stream.
async fn answer(session: &Arc<Session>, log: Arc<Log>, may_be_json: bool) -> Response {
    let mut reader = log.read(None);
    let priming =
        session.version.primes_streams().then(|| sse::encode_priming(&reader.start(), Some(RETRY_MS)));
    match reader.next().await {
        Some((_, message)) if may_be_json && reply::is_answer(&message) => {
            session.forget(&log);
            reply::json(StatusCode::OK, &message)
        }
        first => {
            let first = first.map(|(id, message)| reply::event(Some(&id), &message));
            reply::events(priming.into_iter().chain(first).collect(), Events { reader, stop: None })
        }
    }
}

fn resume(session: &Session, last: &str) -> Option<Reader> {
    let (name, after) = last.rsplit_once('-')?;
    Some(session.find_stream(name)?.read(Some(after.parse().ok()?)))
}

fn stream(demo: &Demo, session: &Session, reader: Reader, mut at_hand: Vec<Bytes>) -> Response {
    if session.version.primes_streams() {
        at_hand.push(sse::encode_priming(&reader.start(), Some(RETRY_MS)));
    }
    reply::events(at_hand, Events { reader, stop: Some(demo.0.stop.clone()) })
}

struct Events {
    reader: Reader,
    /// Ends the stream although nothing was promised to be the last.
    stop: Option<tokio_util::sync::CancellationToken>,
}

impl Source for Events {
    async fn next(&mut self) -> Option<Bytes> {
        let stop = self.stop.clone();
        let stopped = async {
            match &stop {
                Some(stop) => stop.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            next = self.reader.next() => next.map(|(id, message)| reply::event(Some(&id), &message)),
            () = stopped => None,
        }
    }
}

fn find(demo: &Demo, id: Option<&str>) -> Result<Arc<Session>, Refusal> {
    let Some(id) = id else {
        let text = "a session is needed: initialize first, then send mcp-session-id";
        return Err(Box::new(refuse(StatusCode::BAD_REQUEST, text)));
    };
    let session = demo.0.sessions.find(id);
    session.ok_or_else(|| Box::new(refuse(StatusCode::NOT_FOUND, "the session is unknown; initialize again")))
}

/// A version that the header names has to be one of ours; which of them was agreed on at the start.
fn check_version(headers: &HeaderMap) -> Result<(), Refusal> {
    match text(headers, header::PROTOCOL_VERSION) {
        Some(version) if ProtocolVersion::parse(version).is_none() => {
            Err(Box::new(refuse(StatusCode::BAD_REQUEST, "this protocol version is not supported")))
        }
        _ => Ok(()),
    }
}

fn is_modern(headers: &HeaderMap) -> bool {
    text(headers, header::PROTOCOL_VERSION)
        .and_then(ProtocolVersion::parse)
        .is_some_and(|version| !version.has_initialize())
}

fn refuse(status: StatusCode, text: &str) -> Response {
    reply::refuse(status, &RpcError::new(code::INVALID_REQUEST, text), None)
}
