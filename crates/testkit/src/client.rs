//! A raw client: it sends what it is told and shows what came back. [`Session`] and [`Modern`] add the headers
//! and members that well-behaved clients of each era send.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use drawbridge_wire::header;
use drawbridge_wire::sse::{Decoder, Event};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{PATIENCE, soon};

/// The version of the modern era.
pub const MODERN: &str = "2026-07-28";
/// The newest version with sessions.
pub const LEGACY: &str = "2025-11-25";

/// Headers as tests write them.
pub type Headers<'a> = &'a [(&'a str, &'a str)];

/// A client with a connection pool of its own; clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    base: String,
    hyper: Hyper<HttpConnector, Full<Bytes>>,
    /// Sent with each request that does not name them itself.
    always: HeaderMap,
}

impl Client {
    /// A client of `base`, such as `http://127.0.0.1:8080`.
    pub fn new(base: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let hyper = Hyper::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self { base: base.to_owned(), hyper, always: HeaderMap::new() }
    }

    /// The same client, of somebody with this bearer token.
    ///
    /// # Panics
    ///
    /// If it is no header.
    #[must_use]
    pub fn bearer(&self, token: &str) -> Self {
        let always = header_map(&[("authorization", &format!("Bearer {token}"))]);
        Self { always, ..self.clone() }
    }

    /// The same with one more header in all requests.
    #[must_use]
    pub fn always(&self, name: &'static str, value: &str) -> Self {
        let mut always = self.always.clone();
        always.insert(name, value.parse().unwrap());
        Self { always, ..self.clone() }
    }

    /// Sends a request with just these headers.
    ///
    /// # Panics
    ///
    /// If there is no answer in time.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: impl Into<Bytes>,
    ) -> Reply {
        self.try_send(method, path, headers, body.into()).await.unwrap()
    }

    /// Like [`Client::send`], for answers that may fail to come.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    ///
    /// # Panics
    ///
    /// If there is no answer in time.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Reply, hyper_util::client::legacy::Error> {
        soon("an answer", self.ask(method, path, headers, body)).await
    }

    /// Like [`Client::try_send`], without a deadline: for answers that may take any time.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    ///
    /// # Panics
    ///
    /// If `path` is none.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Reply, hyper_util::client::legacy::Error> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.base).parse().unwrap();
        *request.headers_mut() = headers.clone();
        for (name, value) in &self.always {
            request.headers_mut().entry(name).or_insert_with(|| value.clone());
        }
        Ok(Reply::new(self.hyper.request(request).await?))
    }

    /// Posts `body` with the headers of every client, and `headers`; an empty value takes a header out.
    pub async fn post(&self, path: &str, headers: Headers<'_>, body: impl Into<Bytes>) -> Reply {
        let usual = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        let mut all = header_map(&usual);
        for (name, value) in header_map(headers) {
            let name = name.unwrap();
            if value.is_empty() { drop(all.remove(name)) } else { drop(all.insert(name, value)) }
        }
        self.send(Method::POST, path, &all, body).await
    }

    /// Opens a stream with GET.
    pub async fn get(&self, path: &str, headers: Headers<'_>) -> Reply {
        let mut all = header_map(&[("accept", "text/event-stream")]);
        all.extend(header_map(headers));
        self.send(Method::GET, path, &all, Bytes::new()).await
    }

    /// Sends a DELETE.
    pub async fn delete(&self, path: &str, headers: Headers<'_>) -> Reply {
        self.send(Method::DELETE, path, &header_map(headers), Bytes::new()).await
    }

    /// Writes `bytes` to a new connection and reads until the peer closes it or is silent for `silence`.
    ///
    /// # Panics
    ///
    /// If there is no connection.
    pub async fn raw(&self, bytes: &[u8], silence: Duration) -> Vec<u8> {
        let address = self.base.strip_prefix("http://").unwrap_or(&self.base);
        let mut stream = soon("a connection", tokio::net::TcpStream::connect(address)).await.unwrap();
        // The peer may close while it is written to.
        let _ = soon("writing", stream.write_all(bytes)).await;
        let mut answer = Vec::new();
        let mut buffer = vec![0; 65536];
        while let Ok(Ok(read @ 1..)) = tokio::time::timeout(silence, stream.read(&mut buffer)).await {
            answer.extend_from_slice(&buffer[..read]);
        }
        answer
    }
}

/// A header map of pairs.
///
/// # Panics
///
/// If a name or value is none.
pub fn header_map(headers: Headers<'_>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    map
}

/// A response that may still be going on.
#[derive(Debug)]
pub struct Reply {
    response: http::Response<Incoming>,
    decoder: Decoder,
    /// All of a stream's bytes so far, comments included.
    seen: BytesMut,
    ready: VecDeque<Event>,
}

impl Reply {
    fn new(response: http::Response<Incoming>) -> Self {
        Self { response, decoder: Decoder::new(64 << 20), seen: BytesMut::new(), ready: VecDeque::new() }
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// A header's value.
    ///
    /// # Panics
    ///
    /// If it is not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    /// All headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Whether it is an event stream.
    pub fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// The whole body.
    ///
    /// # Panics
    ///
    /// If it does not end in time.
    pub async fn bytes(self) -> Bytes {
        soon("the body", self.response.into_body().collect()).await.unwrap().to_bytes()
    }

    /// The whole body, however long it takes; none if it is cut.
    pub async fn try_bytes(self) -> Option<Bytes> {
        Some(self.response.into_body().collect().await.ok()?.to_bytes())
    }

    /// The whole body as text.
    ///
    /// # Panics
    ///
    /// If it is not UTF-8.
    pub async fn text(self) -> String {
        String::from_utf8(self.bytes().await.to_vec()).unwrap()
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If it is something else.
    pub async fn json(self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "status {}", self.status());
        serde_json::from_slice(&self.bytes().await).unwrap()
    }

    /// Takes the next bytes of the stream; false at its end.
    async fn read(&mut self) -> bool {
        match self.response.body_mut().frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.seen.extend_from_slice(&data);
                    self.decoder.feed(data);
                    while let Some(event) = self.decoder.next_event().unwrap() {
                        self.ready.push_back(event);
                    }
                }
                true
            }
            Some(Err(_)) | None => false,
        }
    }

    /// All of the stream's bytes that were read, comments included.
    pub fn seen(&self) -> &[u8] {
        &self.seen
    }

    /// Reads until the stream's bytes fulfil `condition`, within `deadline`; says whether they do.
    pub async fn reads(&mut self, deadline: Duration, mut condition: impl FnMut(&[u8]) -> bool) -> bool {
        let reading = async {
            while !condition(&self.seen) {
                if !self.read().await {
                    return condition(&self.seen);
                }
            }
            true
        };
        tokio::time::timeout(deadline, reading).await.unwrap_or(false)
    }

    /// The next event within `deadline`: `Err` if none came, `Ok(None)` at the end of the stream.
    ///
    /// # Errors
    ///
    /// If the deadline passes.
    ///
    /// # Panics
    ///
    /// If this is no stream.
    pub async fn event_within(
        &mut self,
        deadline: Duration,
    ) -> Result<Option<Event>, tokio::time::error::Elapsed> {
        assert!(self.is_stream(), "status {}: no stream", self.status());
        tokio::time::timeout(deadline, async {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    return Some(event);
                }
                if !self.read().await {
                    return None;
                }
            }
        })
        .await
    }

    /// The next event; none at the end of the stream.
    ///
    /// # Panics
    ///
    /// If nothing comes in time.
    pub async fn event(&mut self) -> Option<Event> {
        match self.event_within(PATIENCE).await {
            Ok(event) => event,
            Err(_) => panic!("no event within {PATIENCE:?} after {}", String::from_utf8_lossy(&self.seen)),
        }
    }

    /// The next event that carries a message, with its id.
    ///
    /// # Panics
    ///
    /// If the stream ends first.
    pub async fn message_event(&mut self) -> (Option<String>, Value) {
        loop {
            let event = self.event().await;
            let event = event.unwrap_or_else(|| panic!("it ended: {}", String::from_utf8_lossy(&self.seen)));
            if !event.data.is_empty() {
                let id = event.id.map(|id| String::from_utf8(id.to_vec()).unwrap());
                return (id, serde_json::from_slice(&event.data).unwrap());
            }
        }
    }

    /// The next message of a stream.
    pub async fn message(&mut self) -> Value {
        self.message_event().await.1
    }

    /// All messages: of a stream to its end, or the one of a JSON body.
    ///
    /// # Panics
    ///
    /// If a message is none.
    pub async fn messages(mut self) -> Vec<Value> {
        if !self.is_stream() {
            return vec![self.json().await];
        }
        let mut messages = Vec::new();
        while let Some(event) = self.event().await {
            if !event.data.is_empty() {
                messages.push(serde_json::from_slice(&event.data).unwrap());
            }
        }
        messages
    }

    /// The last message: the answer.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub async fn answer(self) -> Value {
        let status = self.status();
        self.messages().await.pop().unwrap_or_else(|| panic!("no message in the answer ({status})"))
    }

    /// The bytes of the answer: the body, or the data of a stream's last event.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub async fn answer_bytes(mut self) -> Bytes {
        if !self.is_stream() {
            return self.bytes().await;
        }
        let mut last = None;
        while let Some(event) = self.event().await {
            last = Some(event.data).filter(|data| !data.is_empty()).or(last);
        }
        last.expect("a message")
    }
}

/// A JSON-RPC request.
pub fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
}

/// A JSON-RPC notification.
pub fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// The request `initialize`.
pub fn initialize(version: &str, capabilities: Value) -> Value {
    let params = json!({ "protocolVersion": version, "capabilities": capabilities,
                         "clientInfo": { "name": "testkit", "version": "1" } });
    request(0, "initialize", params)
}

/// The text of a tool's answer.
///
/// # Panics
///
/// If it has none.
pub fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}

/// A session of the legacy era.
#[derive(Debug, Clone)]
pub struct Session {
    /// Its client.
    pub client: Client,
    /// The path of the endpoint.
    pub path: String,
    /// Its id.
    pub id: String,
    /// The version that was agreed on.
    pub version: String,
    /// The answer to `initialize`.
    pub answer: Value,
    /// The last id that was used.
    pub last: Arc<AtomicU64>,
}

impl Session {
    /// Shakes hands.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub async fn open(client: &Client, path: &str, version: &str, capabilities: Value) -> Self {
        let reply = client.post(path, &[], initialize(version, capabilities).to_string()).await;
        assert_eq!(reply.status(), 200);
        let id = reply.header("mcp-session-id").expect("a session id").to_owned();
        let answer = reply.answer().await;
        let version = answer["result"]["protocolVersion"].as_str().expect("a version").to_owned();
        let (client, path) = (client.clone(), path.to_owned());
        let session = Self { client, path, id, version, answer, last: Arc::default() };
        let accepted = session.notify("notifications/initialized", json!({})).await;
        assert_eq!(accepted.status(), 202);
        session
    }

    /// The headers of its requests.
    pub fn headers(&self) -> [(&str, &str); 2] {
        [(header::SESSION_ID, &self.id), (header::PROTOCOL_VERSION, &self.version)]
    }

    /// An id that was not used in this session.
    pub fn next_id(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Posts a body.
    pub async fn post(&self, body: impl Into<Bytes>) -> Reply {
        self.client.post(&self.path, &self.headers(), body).await
    }

    /// Sends a request; its answer may go on.
    pub async fn request(&self, method: &str, params: Value) -> Reply {
        self.post(request(self.next_id(), method, params).to_string()).await
    }

    /// Sends a request and gives the answer's message.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        self.request(method, params).await.answer().await
    }

    /// Calls a tool.
    pub async fn tool(&self, name: &str, arguments: Value) -> Value {
        self.call("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &str, params: Value) -> Reply {
        self.post(notification(method, params).to_string()).await
    }

    /// Opens the standalone stream, or takes one up after the event `last`.
    pub async fn get(&self, last: Option<&str>) -> Reply {
        let mut headers = self.headers().to_vec();
        headers.extend(last.map(|id| (header::LAST_EVENT_ID, id)));
        self.client.get(&self.path, &headers).await
    }

    /// Ends the session.
    pub async fn delete(&self) -> Reply {
        self.client.delete(&self.path, &self.headers()).await
    }
}

/// A client of the modern era.
#[derive(Debug, Clone)]
pub struct Modern {
    /// Its client.
    pub client: Client,
    /// The path of the endpoint.
    pub path: String,
    /// What it declares with each request.
    pub capabilities: Value,
    last: Arc<AtomicU64>,
}

impl Modern {
    /// A client of the endpoint at `path`.
    pub fn new(client: &Client, path: &str, capabilities: Value) -> Self {
        Self { client: client.clone(), path: path.to_owned(), capabilities, last: Arc::default() }
    }

    /// A request with the metadata of this era; members of `params._meta` that are there stay.
    ///
    /// # Panics
    ///
    /// If `params` is no object.
    pub fn body(&self, method: &str, mut params: Value) -> Value {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let given = params["_meta"].take();
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            "io.modelcontextprotocol/clientInfo": { "name": "testkit", "version": "1" },
        });
        for (key, value) in given.as_object().into_iter().flatten() {
            meta[key] = value.clone();
        }
        params["_meta"] = meta;
        request(id, method, params)
    }

    /// The headers that mirror `body`.
    pub fn headers(body: &Value) -> Vec<(String, String)> {
        let method = body["method"].as_str().unwrap_or_default();
        let mut headers = vec![(header::PROTOCOL_VERSION, MODERN), (header::METHOD, method)];
        let params = &body["params"];
        let name = params["name"].as_str().or(params["uri"].as_str()).or(params["taskId"].as_str());
        headers.extend(name.map(|name| (header::NAME, name)));
        headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Posts `body` with the headers that belong to it, and `more`, which win; an empty value takes one out.
    pub async fn post_with(&self, body: &Value, more: Headers<'_>) -> Reply {
        let own = Self::headers(body);
        let mut headers: Vec<(&str, &str)> = own
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(name, _)| !more.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)))
            .collect();
        headers.extend(more.iter().filter(|(_, value)| !value.is_empty()));
        self.client.post(&self.path, &headers, body.to_string()).await
    }

    /// Sends a request; its answer may go on.
    pub async fn request(&self, method: &str, params: Value) -> Reply {
        self.post_with(&self.body(method, params), &[]).await
    }

    /// Sends a request and gives the answer's message.
    pub async fn call(&self, method: &str, params: Value) -> Value {
        self.request(method, params).await.answer().await
    }

    /// Calls a tool.
    pub async fn tool(&self, name: &str, arguments: Value) -> Value {
        self.call("tools/call", json!({ "name": name, "arguments": arguments })).await
    }
}
