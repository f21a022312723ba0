//! A backend that costs as little as it can: both eras on one URL, answers prepared as bytes, no state.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut as _, Bytes, BytesMut};
use clap::ValueEnum;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use tokio::sync::mpsc;

use crate::body::Parts;
use crate::json;
use crate::net::{self, Asked};
use crate::process;
use crate::texts::{self, Answer, CALLABLE, Tool};

/// The session header.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// The version header.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// A `POST` here makes the backend tell all its open streams that the list of tools has changed.
pub(crate) const CHANGE: &str = "/change";

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
/// Answers up to this size are sent as one piece.
const ONE_PIECE: usize = 64 * 1024;

/// Which eras a backend serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Eras {
    /// Both on one URL.
    Both,
    /// Sessions only.
    Legacy,
    /// Per-request metadata only.
    Modern,
}

struct Backend {
    eras: Eras,
    calls: Vec<(Tool, Answer)>,
    list: Answer,
    initialize: Answer,
    discover: Answer,
    sessions: AtomicU64,
    /// How often the list of tools has changed.
    changes: AtomicU64,
    streams: Mutex<Vec<Listener>>,
}

/// A stream that is told of changes.
struct Listener {
    /// The id of the request that opened it, if it was one.
    subscription: Option<String>,
    to: mpsc::UnboundedSender<Bytes>,
}

/// Serves `listen`.
pub(crate) fn serve(listen: SocketAddr, eras: Eras, cores: usize) -> anyhow::Result<()> {
    let versions: &[&str] =
        if eras == Eras::Modern { &[texts::MODERN] } else { &[texts::MODERN, texts::LEGACY] };
    let backend = Arc::new(Backend {
        eras,
        calls: CALLABLE.iter().map(|tool| (*tool, texts::text_answer(tool.size))).collect(),
        list: texts::list_answer(),
        initialize: texts::initialize_answer(),
        discover: texts::discover_answer(versions),
        sessions: AtomicU64::new(1),
        changes: AtomicU64::new(0),
        streams: Mutex::default(),
    });
    net::serve(listen, cores, move || {
        let backend = backend.clone();
        service_fn(move |request| {
            let backend = backend.clone();
            async move { Ok::<_, Infallible>(backend.answer(request).await) }
        })
    })
}

impl Backend {
    async fn answer(&self, request: Asked) -> Response<Parts> {
        let modern = request.headers().get(VERSION).is_some_and(|v| v == texts::MODERN);
        let in_session = request.headers().contains_key(SESSION);
        match *request.method() {
            Method::POST if request.uri().path() == CHANGE => return self.change(),
            Method::POST => {}
            Method::GET if in_session && self.eras != Eras::Modern => {
                return self.listen(None, Bytes::from_static(b": open\n\n"));
            }
            Method::DELETE if in_session && self.eras != Eras::Modern => return status(StatusCode::OK),
            _ => {
                let mut refused = status(StatusCode::METHOD_NOT_ALLOWED);
                refused.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                return refused;
            }
        }
        let Ok(body) = request.into_body().collect().await else {
            return status(StatusCode::BAD_REQUEST);
        };
        self.post(&body.to_bytes(), modern, in_session)
    }

    fn post(&self, body: &[u8], modern: bool, in_session: bool) -> Response<Parts> {
        let Some(method) = json::text(body, "method") else {
            return status(StatusCode::BAD_REQUEST);
        };
        let Some(id) = json::member(body, "id") else {
            return status(StatusCode::ACCEPTED);
        };
        let served = match self.eras {
            Eras::Both => true,
            Eras::Legacy => !modern,
            Eras::Modern => modern,
        };
        if !served {
            // As servers of each era answer the other's clients.
            let error = match self.eras {
                Eras::Legacy => r#"{"code":-32000,"message":"Bad Request: Server not initialized"}"#,
                _ => r#"{"code":-32022,"message":"unsupported protocol version"}"#,
            };
            return failed(StatusCode::BAD_REQUEST, id, error);
        }
        if !modern && method == b"initialize" {
            let mut response = reply_json(id, self.initialize.tail(false));
            let session = format!("bench-{:016x}", self.sessions.fetch_add(1, Ordering::Relaxed));
            if let Ok(session) = HeaderValue::from_str(&session) {
                response.headers_mut().insert(SESSION, session);
            }
            return response;
        }
        if !modern && !in_session {
            return failed(StatusCode::BAD_REQUEST, id, r#"{"code":-32000,"message":"no session"}"#);
        }
        match method {
            b"tools/call" => self.call(body, id, modern),
            b"tools/list" => reply_json(id, self.list.tail(modern)),
            b"subscriptions/listen" if modern => {
                let id = String::from_utf8_lossy(id).into_owned();
                let first = texts::acknowledged(&id);
                self.listen(Some(id), first)
            }
            b"server/discover" if modern => reply_json(id, self.discover.tail(true)),
            b"ping" if !modern => reply_json(id, Bytes::from_static(br#","result":{}}"#)),
            _ => {
                let code = if modern { StatusCode::NOT_FOUND } else { StatusCode::OK };
                failed(code, id, r#"{"code":-32601,"message":"method not found"}"#)
            }
        }
    }

    /// Opens a stream that begins with `first`, and is told of changes.
    fn listen(&self, subscription: Option<String>, first: Bytes) -> Response<Parts> {
        let (to, more) = mpsc::unbounded_channel();
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.push(Listener { subscription, to });
        reply(EVENTS, Parts::live([first], more))
    }

    /// Tells all streams of a change, and answers with its number, when it was told and to how many.
    fn change(&self) -> Response<Parts> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let at = process::clock();
        streams
            .retain(|stream| stream.to.send(texts::changed(number, stream.subscription.as_deref())).is_ok());
        let told = format!(r#"{{"number":{number},"at":{at},"streams":{}}}"#, streams.len());
        reply(JSON, Parts::sized([told.into()]))
    }

    fn call(&self, body: &[u8], id: &[u8], modern: bool) -> Response<Parts> {
        let params = json::member(body, "params").unwrap_or_default();
        let name = json::text(params, "name").unwrap_or_default();
        if name == texts::ASKING.as_bytes() && !modern {
            return reply(EVENTS, Parts::open([Bytes::from_static(texts::ASK.as_bytes())]));
        }
        let Some((tool, answer)) = self.calls.iter().find(|(tool, _)| tool.name.as_bytes() == name) else {
            return failed(StatusCode::OK, id, r#"{"code":-32602,"message":"unknown tool"}"#);
        };
        if !tool.sse {
            return reply_json(id, answer.tail(modern));
        }
        let tail = answer.tail(modern);
        let mut last = BytesMut::with_capacity(tail.len() + id.len() + 64);
        last.put_slice(b"event: message\ndata: ");
        last.put_slice(&texts::head(id, 0));
        last.put_slice(&tail);
        last.put_slice(b"\n\n");
        let token = json::member(params, "_meta").and_then(|meta| json::member(meta, "progressToken"));
        let events = match token {
            Some(token) if tool.burst => {
                (1..=texts::BURST).map(|step| texts::progress(token, step)).collect()
            }
            _ => Vec::new(),
        };
        reply(EVENTS, Parts::events(events.into_iter().chain([last.freeze()])))
    }
}

fn status(code: StatusCode) -> Response<Parts> {
    let mut response = Response::new(Parts::empty());
    *response.status_mut() = code;
    response
}

fn reply(content_type: HeaderValue, body: Parts) -> Response<Parts> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn reply_json(id: &[u8], tail: Bytes) -> Response<Parts> {
    if tail.len() > ONE_PIECE {
        return reply(JSON, Parts::sized([texts::head(id, 0).freeze(), tail]));
    }
    let mut whole = texts::head(id, tail.len());
    whole.put_slice(&tail);
    reply(JSON, Parts::sized([whole.freeze()]))
}

fn failed(code: StatusCode, id: &[u8], error: &str) -> Response<Parts> {
    let mut response = reply_json(id, format!(r#","error":{error}}}"#).into());
    *response.status_mut() = code;
    response
}
