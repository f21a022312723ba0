//! A backend that answers as a test says, and keeps all that it was sent.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use drawbridge_wire::{Kind, Message};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    /// The JSON-RPC method; empty if there is none.
    pub(crate) fn rpc(&self) -> String {
        let message = Message::parse(self.body.clone());
        message.map(|message| message.method().into_owned()).unwrap_or_default()
    }

    fn is_request(&self) -> bool {
        Message::parse(self.body.clone()).is_ok_and(|message| message.kind() == Kind::Request)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The literal of the request's id.
    pub(crate) fn id(&self) -> String {
        let message = Message::parse(self.body.clone()).unwrap();
        let id = message.id().map(|id| id.literal().to_vec()).unwrap_or_default();
        String::from_utf8(id).unwrap()
    }
}

/// What a backend does with a request.
pub(crate) enum Does {
    /// Answers with this `result`, in raw JSON.
    Result(String),
    /// Answers with this `error`, in raw JSON, and a status.
    Error(u16, String),
    /// Streams these messages (raw JSON) and then the result.
    Stream(Vec<String>, String),
    /// Streams these messages and stays silent, until the reader goes or the name is released.
    Holds(Vec<String>, &'static str, String),
    /// Answers with these headers and bytes.
    Raw(u16, Vec<(&'static str, String)>, String),
}

impl Does {
    pub(crate) fn result(value: &Value) -> Self {
        Self::Result(value.to_string())
    }
}

/// A tool result of one text.
pub(crate) fn text_result(text: &str) -> Does {
    Does::result(&json!({ "content": [{ "type": "text", "text": text }] }))
}

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;
type Script = Arc<dyn Fn(&Seen) -> Does + Send + Sync>;

struct Inner {
    script: Script,
    seen: Mutex<Vec<Seen>>,
    /// Answers that are held back, by name.
    holds: Mutex<HashMap<&'static str, CancellationToken>>,
    holding: AtomicUsize,
    abandoned: AtomicUsize,
}

/// A running backend; ends when it is dropped.
pub(crate) struct Backend {
    pub(crate) url: String,
    inner: Arc<Inner>,
    _stop: DropGuard,
}

/// Counts a held answer whose reader goes away.
struct Held {
    inner: Arc<Inner>,
    given: bool,
}

impl Held {
    fn given(&mut self) {
        self.given = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.inner.holding.fetch_sub(1, Ordering::SeqCst);
        if !self.given {
            self.inner.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Backend {
    /// A backend whose every answer is the script's.
    pub(crate) async fn start(script: impl Fn(&Seen) -> Does + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let inner = Arc::new(Inner {
            script: Arc::new(script),
            seen: Mutex::default(),
            holds: Mutex::default(),
            holding: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
        });
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (served, stopped, spawner) = (inner.clone(), stop.clone(), tasks.clone());
        tasks.spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                let _ = stream.set_nodelay(true);
                let (inner, stopped) = (served.clone(), stopped.clone());
                let service = service_fn(move |request| serve(inner.clone(), request));
                spawner.spawn(async move {
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let serving = builder.serve_connection(TokioIo::new(stream), service);
                    stopped.run_until_cancelled(serving).await;
                });
            }
        });
        Self { url, inner, _stop: stop.drop_guard() }
    }

    /// A legacy backend: it shakes hands and counts sessions; the script answers requests.
    pub(crate) async fn legacy(
        capabilities: Value,
        script: impl Fn(&Seen) -> Does + Send + Sync + 'static,
    ) -> Self {
        let sessions = AtomicUsize::new(0);
        Self::start(move |seen| match (seen.method.as_str(), seen.rpc().as_str()) {
            ("DELETE", _) => Does::Raw(204, Vec::new(), String::new()),
            ("GET", _) => Does::Raw(405, Vec::new(), String::new()),
            (_, "initialize") => {
                let number = sessions.fetch_add(1, Ordering::SeqCst);
                let version = &seen.json()["params"]["protocolVersion"];
                let result = json!({ "protocolVersion": version, "capabilities": capabilities,
                                     "serverInfo": { "name": "scripted", "version": "1" } });
                let body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.id());
                let headers = vec![("mcp-session-id", format!("s{number}")), JSON];
                Does::Raw(200, headers, body)
            }
            // Of an era that it does not know.
            (_, "server/discover") => {
                Does::Error(400, r#"{"code":-32600,"message":"initialize first"}"#.into())
            }
            _ if !seen.is_request() => Does::Raw(202, Vec::new(), String::new()),
            _ => script(seen),
        })
        .await
    }

    /// A modern backend: it can be discovered; the script answers requests.
    pub(crate) async fn modern(
        capabilities: Value,
        script: impl Fn(&Seen) -> Does + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |seen| match seen.rpc().as_str() {
            "server/discover" => Does::result(&json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                "ttlMs": 60000, "cacheScope": "public",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "scripted", "version": "1" } },
            })),
            _ => script(seen),
        })
        .await
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
    }

    /// The requests so far with this JSON-RPC method.
    pub(crate) fn calls(&self, rpc: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.rpc() == rpc).collect()
    }

    /// Lets the answers that are held under `name` go, now and from now on.
    pub(crate) fn release(&self, name: &'static str) {
        self.inner.holds.lock().unwrap().entry(name).or_default().cancel();
    }

    /// How many answers are held back now.
    pub(crate) fn holding(&self) -> usize {
        self.inner.holding.load(Ordering::SeqCst)
    }

    /// How many held answers lost their reader.
    pub(crate) fn abandoned(&self) -> usize {
        self.inner.abandoned.load(Ordering::SeqCst)
    }
}

pub(crate) const JSON: (&str, String) = ("content-type", String::new());

async fn serve(inner: Arc<Inner>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(response(400, &[], one(Bytes::new())));
    };
    let seen = Seen { method: head.method, headers: head.headers, body: body.to_bytes() };
    inner.seen.lock().unwrap().push(seen.clone());
    let json = [JSON];
    let stream = [("content-type", "text/event-stream".to_owned())];
    let answer = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.id());
    Ok(match (inner.script)(&seen) {
        Does::Result(result) => response(200, &json, one(answer(&result))),
        Does::Error(status, error) => {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, seen.id());
            response(status, &json, one(text))
        }
        Does::Stream(messages, result) => {
            let all = messages.into_iter().chain([answer(&result)]);
            let text: String = all.map(|message| format!("data: {message}\n\n")).collect();
            response(200, &stream, one(text))
        }
        Does::Holds(messages, name, result) => {
            let text: String = messages.into_iter().map(|message| format!("data: {message}\n\n")).collect();
            let last = format!("data: {}\n\n", answer(&result));
            let token = inner.holds.lock().unwrap().entry(name).or_default().clone();
            inner.holding.fetch_add(1, Ordering::SeqCst);
            let mut held = Held { inner: inner.clone(), given: false };
            let rest = futures_util::stream::once(async move {
                token.cancelled().await;
                held.given();
                Ok(Frame::data(Bytes::from(last)))
            });
            let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from(text)))]);
            response(200, &stream, first.chain(rest).boxed())
        }
        Does::Raw(status, headers, body) => response(status, &headers, one(body)),
    })
}

fn one(body: impl Into<Bytes>) -> BoxStream<'static, Result<Frame<Bytes>, Infallible>> {
    futures_util::stream::iter([Ok(Frame::data(body.into()))]).boxed()
}

fn response(
    status: u16,
    headers: &[(&'static str, String)],
    body: BoxStream<'static, Result<Frame<Bytes>, Infallible>>,
) -> Response<Body> {
    let mut response = Response::new(StreamBody::new(body));
    *response.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        let value = if value.is_empty() { "application/json" } else { value };
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}
