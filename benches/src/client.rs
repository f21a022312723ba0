//! One client connection: sends requests one after another and checks every answer.

use std::net::SocketAddr;

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, Bytes};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::backend::{SESSION, VERSION};
use crate::json;
use crate::scenario::{Scenario, Work};
use crate::texts::{self, BURST, CALLABLE, Tool};

/// Answers up to this size are kept whole to be checked; of longer ones the start.
const KEPT: usize = 32 * 1024;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Where requests go.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    /// What the target puts before the names of tools.
    pub(crate) prefix: String,
    /// With which token, if with one.
    pub(crate) token: Option<String>,
}

impl Endpoint {
    pub(crate) fn new(address: SocketAddr, path: &str) -> Self {
        Self { address, path: path.to_owned(), prefix: String::new(), token: None }
    }
}

/// A connection with at most one session.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    path: String,
    prefix: String,
    authorization: Option<HeaderValue>,
    session: Option<HeaderValue>,
    next_id: u64,
    /// Drives the connection; ends with it.
    _driver: JoinSet<()>,
}

/// An answer as far as it is checked.
struct Seen {
    start: Vec<u8>,
    size: usize,
    sse: bool,
}

/// What an iteration met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// The backend answered with JSON and the target with an event stream, or the other way round.
    pub(crate) changed_form: bool,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(endpoint.address).await.context("connect")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("start HTTP")?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // the sender reports what ends it
            let _ended = connection.await;
        });
        let bearer = endpoint.token.as_ref().map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        Ok(Self {
            sender,
            authorization: bearer.transpose()?,
            host: HeaderValue::from_str(&endpoint.address.to_string())?,
            path: endpoint.path.clone(),
            prefix: endpoint.prefix.clone(),
            session: None,
            next_id: 1,
            _driver: driver,
        })
    }

    fn id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
        self.sender.ready().await.context("wait for the connection")?;
        self.sender.send_request(request).await.context("send a request")
    }

    fn request(&self, method: Method, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(&self.path).body(Full::new(body))?;
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    fn legacy(&self, mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
        if let Some(session) = &self.session {
            request.headers_mut().insert(SESSION, session.clone());
            request.headers_mut().insert(VERSION, HeaderValue::from_static(texts::LEGACY));
        }
        request
    }

    fn post(&self, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = self.request(Method::POST, body)?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        Ok(request)
    }

    /// Does one iteration of `scenario` and checks it.
    pub(crate) async fn iterate(&mut self, scenario: &Scenario) -> anyhow::Result<Met> {
        let modern = scenario.modern();
        match scenario.work {
            Work::Call(tool) => self.call(tool, modern).await,
            Work::List => {
                let least = 60_000;
                self.ask("tools/list", modern, least..=least * 4).await
            }
            Work::Discover => self.ask("server/discover", modern, 100..=4_000).await,
            Work::Session => {
                self.initialize().await?;
                let met = self.call(CALLABLE[0], false).await?;
                self.delete().await?;
                Ok(met)
            }
            Work::Abandon => {
                self.initialize().await?;
                Ok(Met::default())
            }
            Work::AbandonAfterCall => {
                self.initialize().await?;
                self.call(CALLABLE[0], false).await
            }
        }
    }

    /// Opens a session and keeps it for what follows.
    pub(crate) async fn initialize(&mut self) -> anyhow::Result<()> {
        self.session = None;
        let id = self.id();
        let request = self.post(texts::initialize(id))?;
        let response = self.send(request).await?;
        self.session = response.headers().get(SESSION).cloned();
        let seen = Seen::read(response).await.context("initialize")?;
        seen.check(id, 50..=8_000, 0).context("initialize")?;
        let request = self.legacy(self.post(texts::initialized())?);
        let response = self.send(request).await?;
        ensure!(response.status() == StatusCode::ACCEPTED, "initialized was answered {}", response.status());
        response.into_body().collect().await?;
        Ok(())
    }

    /// Ends the session.
    pub(crate) async fn delete(&mut self) -> anyhow::Result<()> {
        let request = self.legacy(self.request(Method::DELETE, Bytes::new())?);
        let response = self.send(request).await?;
        ensure!(response.status().is_success(), "DELETE was answered {}", response.status());
        response.into_body().collect().await?;
        self.session = None;
        Ok(())
    }

    /// Calls `tool` once.
    pub(crate) async fn call(&mut self, tool: Tool, modern: bool) -> anyhow::Result<Met> {
        let id = self.id();
        let name = format!("{}{}", self.prefix, tool.name);
        let mut request = self.post(texts::call(id, &name, modern, tool.burst))?;
        if modern {
            self.mirror(&mut request, "tools/call", Some(&name))?;
        } else {
            request = self.legacy(request);
        }
        let response = self.send(request).await?;
        let seen = Seen::read(response).await?;
        let steps = if tool.burst { BURST } else { 0 };
        seen.check(id, tool.size..=tool.size + 1000 + steps * 400, steps)?;
        Ok(Met { changed_form: seen.sse != tool.sse })
    }

    /// Calls `tool`, which asks, as a client without a session, and leaves it waiting.
    pub(crate) async fn park(&mut self, tool: &str) -> anyhow::Result<()> {
        let id = self.id();
        let name = format!("{}{tool}", self.prefix);
        let mut request = self.post(texts::call(id, &name, true, false))?;
        self.mirror(&mut request, "tools/call", Some(&name))?;
        let response = self.send(request).await?;
        let seen = Seen::read(response).await?;
        ensure!(seen.text().contains("input_required"), "not asked: {}", seen.text());
        Ok(())
    }

    fn mirror(
        &self,
        request: &mut Request<Full<Bytes>>,
        method: &'static str,
        name: Option<&str>,
    ) -> anyhow::Result<()> {
        let headers = request.headers_mut();
        headers.insert(VERSION, HeaderValue::from_static(texts::MODERN));
        headers.insert(METHOD, HeaderValue::from_static(method));
        if let Some(name) = name {
            headers.insert(NAME, HeaderValue::from_str(name)?);
        }
        Ok(())
    }

    async fn ask(
        &mut self,
        method: &'static str,
        modern: bool,
        size: std::ops::RangeInclusive<usize>,
    ) -> anyhow::Result<Met> {
        let id = self.id();
        let request = self.plain(id, method, modern)?;
        let response = self.send(request).await?;
        let seen = Seen::read(response).await?;
        seen.check(id, size, 0)?;
        Ok(Met { changed_form: seen.sse })
    }

    fn plain(&self, id: u64, method: &'static str, modern: bool) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = self.post(texts::request(id, method, "", modern, false))?;
        if modern {
            self.mirror(&mut request, method, None)?;
            return Ok(request);
        }
        Ok(self.legacy(request))
    }

    /// Opens the standalone stream of the session.
    pub(crate) async fn listen(&mut self) -> anyhow::Result<Incoming> {
        let mut request = self.legacy(self.request(Method::GET, Bytes::new())?);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = self.send(request).await?;
        ensure!(response.status() == StatusCode::OK, "GET was answered {}", response.status());
        Ok(response.into_body())
    }

    /// Opens a stream that listens to changes of the list of tools, without a session.
    pub(crate) async fn subscribe(&mut self) -> anyhow::Result<Incoming> {
        let id = self.id();
        let mut request = self.post(texts::listen(id))?;
        self.mirror(&mut request, "subscriptions/listen", None)?;
        let response = self.send(request).await?;
        ensure!(response.status() == StatusCode::OK, "listen was answered {}", response.status());
        Ok(response.into_body())
    }

    /// The session that was opened here.
    pub(crate) fn session(&self) -> Option<HeaderValue> {
        self.session.clone()
    }

    /// Goes on in a session that was opened somewhere.
    pub(crate) fn enter(&mut self, session: HeaderValue) {
        self.session = Some(session);
    }

    /// The names of the tools that the target lists.
    pub(crate) async fn tools(&mut self) -> anyhow::Result<Vec<String>> {
        self.initialize().await?;
        let id = self.id();
        let request = self.plain(id, "tools/list", false)?;
        let response = self.send(request).await?;
        ensure!(response.status() == StatusCode::OK, "tools/list was answered {}", response.status());
        let body = response.into_body().collect().await?.to_bytes();
        let json = events(&body).find(|data| json::member(data, "id").is_some()).unwrap_or(&body);
        let answer: serde_json::Value = serde_json::from_slice(json).context("tools/list")?;
        let Some(tools) = answer.pointer("/result/tools").and_then(|tools| tools.as_array()) else {
            bail!("tools/list has no tools: {answer}");
        };
        Ok(tools.iter().filter_map(|tool| tool.get("name")?.as_str()).map(str::to_owned).collect())
    }
}

impl Seen {
    async fn read(response: Response<Incoming>) -> anyhow::Result<Self> {
        let status = response.status();
        let sse = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        let mut body = response.into_body();
        let mut seen = Self { start: Vec::new(), size: 0, sse };
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.context("read an answer")?.into_data() else { continue };
            let room = KEPT.saturating_sub(seen.size).min(data.remaining());
            seen.start.extend_from_slice(&data[..room]);
            seen.size += data.remaining();
        }
        ensure!(status == StatusCode::OK, "answered {status}: {}", seen.text());
        Ok(seen)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.start).chars().take(300).collect()
    }

    /// Checks the id, the size, and the number of progress notifications before the answer.
    fn check(&self, id: u64, size: std::ops::RangeInclusive<usize>, steps: usize) -> anyhow::Result<()> {
        ensure!(size.contains(&self.size), "the answer has {} bytes: {}", self.size, self.text());
        let id = id.to_string();
        let is_answer = |message: &[u8]| json::member(message, "id") == Some(id.as_bytes());
        if !self.sse {
            ensure!(is_answer(&self.start), "the answer lacks id {id}: {}", self.text());
            ensure!(json::member(&self.start, "error").is_none(), "an error: {}", self.text());
            return Ok(());
        }
        let (mut answered, mut progress) = (false, 0);
        for data in events(&self.start) {
            if is_answer(data) {
                ensure!(json::member(data, "error").is_none(), "an error: {}", self.text());
                answered = true;
            } else if json::text(data, "method") == Some(b"notifications/progress") {
                ensure!(!answered, "progress after the answer");
                progress += 1;
            }
        }
        // of a stream longer than what is kept, the start of the answer is enough
        ensure!(answered || self.size > KEPT, "no event answers id {id}: {}", self.text());
        ensure!(progress == steps, "{progress} instead of {steps} progress notifications");
        Ok(())
    }
}

/// The `data` of each event that has it on one line.
pub(crate) fn events(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    stream.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:")).map(<[u8]>::trim_ascii)
}
