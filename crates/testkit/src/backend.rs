//! A scripted MCP backend over HTTP, to show faults that no real server can be made to show.
//!
//! Each request is answered by a closure of the test. [`legacy`] and [`modern`] are what an ordinary server of
//! either era would answer; a script uses them for all that it does not care about.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::PATIENCE;

/// A request as the backend got it.
#[derive(Debug, Clone)]
pub struct Request {
    /// `POST`, `GET`, `DELETE`.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub text: Bytes,
    /// The body as JSON; null if it is none.
    pub body: Value,
    /// Cancelled once the answer is complete, or nobody waits for it any more.
    pub over: CancellationToken,
    /// Cancelled only when the gateway let go of the request before its answer was complete.
    pub gone: CancellationToken,
}

impl Request {
    /// The JSON-RPC method; for a response `answer`, for a request without a message the HTTP method.
    pub fn rpc(&self) -> &str {
        match self.body["method"].as_str() {
            Some(method) => method,
            None if self.body.is_object() => "answer",
            None => self.method.as_str(),
        }
    }

    /// The id of the message.
    pub fn id(&self) -> Value {
        self.body["id"].clone()
    }

    /// The `name` of the tool.
    pub fn name(&self) -> &str {
        self.body["params"]["name"].as_str().unwrap_or_default()
    }

    /// A header as text; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// Waits until the gateway has let go of this request.
    pub async fn let_go(&self) {
        tokio::time::timeout(PATIENCE, self.gone.cancelled()).await.unwrap();
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply(Response<Either<Full<Bytes>, Script>>);

impl Reply {
    /// Any status, media type and body.
    pub fn text(status: u16, media: &'static str, body: impl Into<Bytes>) -> Self {
        let mut response = Response::new(Either::Left(Full::new(body.into())));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        if !media.is_empty() {
            response.headers_mut().insert("content-type", HeaderValue::from_static(media));
        }
        Self(response)
    }

    /// A status without a body.
    pub fn status(status: u16) -> Self {
        Self::text(status, "", "")
    }

    /// A JSON document.
    pub fn json(body: &Value) -> Self {
        Self::text(200, "application/json", body.to_string())
    }

    /// The result of `request`.
    pub fn result(request: &Request, result: Value) -> Self {
        Self::json(&json!({ "jsonrpc": "2.0", "id": request.id(), "result": result }))
    }

    /// An error as the answer to `request`, with an HTTP status.
    pub fn error(request: &Request, status: u16, code: i64, message: &str) -> Self {
        let error = json!({ "code": code, "message": message });
        let body = json!({ "jsonrpc": "2.0", "id": request.id(), "error": error });
        Self::text(status, "application/json", body.to_string())
    }

    /// An event stream, written through the second value and ended by dropping it.
    pub fn stream() -> (Self, Stream) {
        Self::open("text/event-stream")
    }

    /// A body of any media type, written piece by piece.
    pub fn open(media: &'static str) -> (Self, Stream) {
        let (sender, pieces) = mpsc::channel(64);
        let mut response = Response::new(Either::Right(Script { pieces, cut: false }));
        response.headers_mut().insert("content-type", HeaderValue::from_static(media));
        (Self(response), Stream(sender))
    }

    /// The same with one more header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.0.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
        self
    }
}

/// Writes the body of an answer.
#[derive(Debug, Clone)]
pub struct Stream(mpsc::Sender<Option<Bytes>>);

impl Stream {
    /// Sends a message as an event. Returns whether somebody still reads.
    pub async fn event(&self, message: &Value) -> bool {
        self.raw(format!("data: {message}\n\n")).await
    }

    /// Sends a message as an event with an id.
    pub async fn event_with_id(&self, id: &str, message: &Value) -> bool {
        self.raw(format!("id: {id}\ndata: {message}\n\n")).await
    }

    /// Sends bytes. Returns whether somebody still reads.
    pub async fn raw(&self, bytes: impl Into<Bytes>) -> bool {
        self.0.send(Some(bytes.into())).await.is_ok()
    }

    /// Breaks the connection without ending the body.
    pub async fn cut(self) {
        let _ = self.0.send(None).await;
    }

    /// Resolves once nobody reads any more, however long that takes.
    pub async fn gone(&self) {
        self.0.closed().await;
    }

    /// Waits until nobody reads any more.
    pub async fn closed(&self) {
        tokio::time::timeout(PATIENCE, self.0.closed()).await.unwrap();
    }
}

/// A body that a test writes.
#[derive(Debug)]
struct Script {
    pieces: mpsc::Receiver<Option<Bytes>>,
    cut: bool,
}

impl Body for Script {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.cut {
            return Poll::Ready(Some(Err(std::io::Error::other("cut by the test"))));
        }
        match std::task::ready!(self.pieces.poll_recv(cx)) {
            Some(Some(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(None) => {
                // What was written before has to leave first.
                self.cut = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }
}

/// A body that says how it ended.
struct Watched<B> {
    body: B,
    ended: bool,
    gone: Option<DropGuard>,
    _over: DropGuard,
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.ended = true;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Watched<B> {
    fn drop(&mut self) {
        if self.ended
            && let Some(gone) = self.gone.take()
        {
            gone.disarm();
        }
    }
}

type Behaviour = Arc<dyn Fn(Request) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync>;

fn boxed<F, Fut>(behave: F) -> Behaviour
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Reply> + Send + 'static,
{
    Arc::new(move |request| Box::pin(behave(request)))
}

struct Shared {
    behave: Mutex<Behaviour>,
    seen: Mutex<Vec<Request>>,
    connections: Mutex<usize>,
    /// Ends the connections that there are.
    cut: Mutex<CancellationToken>,
}

/// A running backend. It ends with this value, and breaks its connections.
pub struct Backend {
    address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    /// Its listener and connections.
    tasks: TaskTracker,
    stop: DropGuard,
}

impl Backend {
    /// Starts one on a free port of loopback.
    pub async fn start<F, Fut>(behave: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        Self::listen("127.0.0.1:0", None, boxed(behave)).await
    }

    /// Starts one that speaks TLS.
    pub async fn start_tls<F, Fut>(tls: Arc<rustls::ServerConfig>, behave: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        Self::listen("127.0.0.1:0", Some(tls), boxed(behave)).await
    }

    /// Ends it and starts another on the same port, with what `behave` does.
    pub async fn restart<F, Fut>(self, behave: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        let address = self.address.to_string();
        self.stop().await;
        Self::listen(&address, None, boxed(behave)).await
    }

    async fn listen(address: &str, tls: Option<Arc<rustls::ServerConfig>>, behave: Behaviour) -> Self {
        let listener = bind(address).await;
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            behave: Mutex::new(behave),
            seen: Mutex::default(),
            connections: Mutex::default(),
            cut: Mutex::default(),
        });
        let stop = CancellationToken::new();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let tasks = TaskTracker::new();
        tasks.spawn(accept(listener, tls, shared.clone(), stop.clone(), tasks.clone()));
        Self { address, scheme, shared, tasks, stop: stop.drop_guard() }
    }

    /// Behaves otherwise from now on.
    pub fn behave<F, Fut>(&self, behave: F)
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        *self.shared.behave.lock().unwrap() = boxed(behave);
    }

    /// Its MCP endpoint.
    pub fn url(&self) -> String {
        self.url_of("/mcp")
    }

    /// The URL of a path of it.
    pub fn url_of(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// Breaks all connections, whatever is going on there; new ones are served.
    pub fn cut_connections(&self) {
        std::mem::take(&mut *self.shared.cut.lock().unwrap()).cancel();
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The requests so far whose [`Request::rpc`] is this.
    pub fn requests_of(&self, rpc: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|r| r.rpc() == rpc).collect()
    }

    /// How many requests there were whose [`Request::rpc`] is this.
    pub fn count(&self, rpc: &str) -> usize {
        self.requests_of(rpc).len()
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        *self.shared.connections.lock().unwrap()
    }

    /// Waits for a request whose [`Request::rpc`] is this; gives the first.
    pub async fn wait_for(&self, rpc: &str) -> Request {
        self.wait_for_nth(rpc, 1).await
    }

    /// Waits until there were `n` requests whose [`Request::rpc`] is this; gives the one numbered `n`.
    pub async fn wait_for_nth(&self, rpc: &str, n: usize) -> Request {
        let found = async {
            loop {
                if let Some(request) = self.requests_of(rpc).into_iter().nth(n - 1) {
                    return request;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| {
            let seen: Vec<String> = self.requests().iter().map(|r| r.rpc().to_owned()).collect();
            panic!("no request number {n} of {rpc}; there were {seen:?}")
        })
    }

    /// Ends it: connections are refused from now on.
    pub async fn stop(self) {
        drop(self.stop);
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Binds; a port that was just freed may need a moment.
async fn bind(address: &str) -> TcpListener {
    let address: SocketAddr = address.parse().unwrap();
    let bound = async {
        loop {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            if socket.bind(address).is_ok()
                && let Ok(listener) = socket.listen(128)
            {
                return listener;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, bound).await.unwrap()
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let accepting = async {
        while let Ok((tcp, _)) = listener.accept().await {
            *shared.connections.lock().unwrap() += 1;
            let (tls, shared, stop) = (tls.clone(), shared.clone(), stop.clone());
            let cut = shared.cut.lock().unwrap().clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = connection(tcp, tls, shared) => {}
                    () = cut.cancelled() => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    };
    stop.run_until_cancelled(accepting).await;
}

async fn connection(tcp: TcpStream, tls: Option<Arc<rustls::ServerConfig>>, shared: Arc<Shared>) {
    tcp.set_nodelay(true).unwrap();
    match tls {
        None => serve(tcp, shared).await,
        Some(tls) => {
            if let Ok(stream) = tokio_rustls::TlsAcceptor::from(tls).accept(tcp).await {
                serve(stream, shared).await;
            }
        }
    }
}

async fn serve(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(request, shared).await) }
    });
    // A connection that breaks is what many a test wants.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
}

async fn answer(
    request: hyper::Request<Incoming>,
    shared: Arc<Shared>,
) -> Response<Watched<Either<Full<Bytes>, Script>>> {
    let (head, body) = request.into_parts();
    let text = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let (over, gone) = (CancellationToken::new(), CancellationToken::new());
    let request = Request {
        method: head.method,
        path: head.uri.to_string(),
        headers: head.headers,
        body: serde_json::from_slice(&text).unwrap_or_default(),
        text,
        over: over.clone(),
        gone: gone.clone(),
    };
    // Dropped with this future too, when the gateway lets go before there is a head.
    let (gone, over) = (Some(gone.drop_guard()), over.drop_guard());
    let behave = shared.behave.lock().unwrap().clone();
    shared.seen.lock().unwrap().push(request.clone());
    let (head, body) = behave(request).await.0.into_parts();
    // A body of known length is not polled to its end.
    let ended = matches!(body, Either::Left(_));
    Response::from_parts(head, Watched { body, ended, gone, _over: over })
}

fn tools() -> Value {
    json!([{ "name": "echo", "description": "Says it again.", "inputSchema": { "type": "object" } }])
}

/// The result of the tool `echo`: one text.
pub fn text_result(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn echo(request: &Request) -> Value {
    text_result(request.body["params"]["arguments"]["text"].as_str().unwrap_or("ok"))
}

/// What an ordinary server of 2025-11-25 answers, with a session called `session`.
pub fn legacy(request: &Request, session: &str) -> Reply {
    let is_known = session.is_empty() || request.header("mcp-session-id") == session;
    match request.rpc() {
        "initialize" => {
            let version = &request.body["params"]["protocolVersion"];
            let result = json!({
                "protocolVersion": version,
                "capabilities": { "tools": { "listChanged": true }, "logging": {}, "resources": { "subscribe": true } },
                "serverInfo": { "name": "scripted", "version": "1" },
            });
            let reply = Reply::result(request, result);
            if session.is_empty() { reply } else { reply.header("mcp-session-id", session) }
        }
        _ if request.header("mcp-session-id").is_empty() && !session.is_empty() => {
            Reply::error(request, 400, -32600, "Bad Request: no session")
        }
        _ if !is_known => Reply::error(request, 404, -32001, "Session not found"),
        "GET" => Reply::status(405),
        "DELETE" => Reply::status(204),
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
            Reply::result(request, json!({}))
        }
        "tools/list" => Reply::result(request, json!({ "tools": tools() })),
        "tools/call" => Reply::result(request, echo(request)),
        "answer" => Reply::status(202),
        rpc if rpc.starts_with("notifications/") => Reply::status(202),
        rpc => Reply::error(request, 200, -32601, &format!("Method not found: {rpc}")),
    }
}

/// What an ordinary server of 2026-07-28 answers.
pub fn modern(request: &Request) -> Reply {
    let complete = |mut result: Value| {
        result["resultType"] = json!("complete");
        Reply::result(request, result)
    };
    match request.rpc() {
        "server/discover" => complete(json!({
            "supportedVersions": ["2026-07-28"],
            "capabilities": { "tools": {} },
            "ttlMs": 60000,
            "cacheScope": "public",
            "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "scripted", "version": "1" } },
        })),
        "tools/list" => complete(json!({ "tools": tools(), "ttlMs": 0, "cacheScope": "private" })),
        "tools/call" => complete(echo(request)),
        "GET" | "DELETE" => Reply::status(405),
        rpc => Reply::error(request, 404, -32601, &format!("Method not found: {rpc}")),
    }
}
