//! The clients of a chaos run: of each era and transport, each with one call at a time, every request of theirs at any
//! instance.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drawbridge_testkit::client::{Modern, Reply, initialize, notification, request};
use drawbridge_wire::header;
use http::Method;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::calls::{Call, HANGS, Outcome, Run};
use super::listeners::{Listener, Listens};
use super::world::{Sent, World};

/// The backends, by name.
const BACKENDS: [&str; 4] = ["http", "modern", "old", "process"];
/// How long it may take until all is well again, once nothing goes wrong any more.
const RECOVERY: Duration = Duration::from_secs(20);
const CAPABILITIES: &str = r#"{ "elicitation": { "form": {} } }"#;

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Streamable HTTP with sessions, of this version.
    Sessions(&'static str),
    /// Streamable HTTP without.
    Stateless,
    /// HTTP+SSE.
    Sse,
}

/// A client.
pub(super) struct Client {
    name: String,
    dialect: Dialect,
    path: &'static str,
    world: Arc<World>,
    run: Arc<Run>,
    rng: StdRng,
    /// Of its session; of its HTTP+SSE connection the path for messages.
    id: String,
    /// The stream of an HTTP+SSE connection.
    stream: Option<Box<Reply>>,
    listener: Option<Listener>,
    last: u64,
}

/// What a message on a call's stream is.
enum Heard {
    Answer(Outcome),
    Ask(Value, String),
    Other,
}

impl Client {
    pub(super) fn new(
        name: String,
        dialect: Dialect,
        path: &'static str,
        world: &Arc<World>,
        run: &Arc<Run>,
        seed: u64,
    ) -> Self {
        let (world, run, rng) = (world.clone(), run.clone(), StdRng::seed_from_u64(seed));
        let (id, stream, listener) = (String::new(), None, None);
        Self { name, dialect, path, world, run, rng, id, stream, listener, last: 0 }
    }

    /// Calls until it is told to end.
    pub(super) async fn live(&mut self, stop: &CancellationToken) {
        self.open().await;
        while !stop.is_cancelled() {
            let backend = self.any_backend();
            let ms = *[0, 0, 30, 200, 900, 1800].choose(&mut self.rng).unwrap();
            let asks = self.can_be_asked() && self.rng.random_bool(0.3);
            self.call(backend, ms, asks).await;
            if self.rng.random_bool(0.04) {
                self.close().await;
                self.open().await;
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..60))).await;
        }
    }

    /// Each of its backends has to answer soon, now that nothing goes wrong.
    pub(super) async fn is_served(&mut self) {
        let path = self.path;
        for backend in BACKENDS.into_iter().filter(|name| path == "/mcp" || path == path_of(name)) {
            let begun = Instant::now();
            for asks in [false, true] {
                let asks = asks && self.can_be_asked();
                while self.call(backend, 30, asks).await != Outcome::Answered {
                    if begun.elapsed() > RECOVERY {
                        self.run.wrong(&format!("{} is not answered by {backend} any more", self.name));
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// What hears of its changes, if its backends tell of any.
    pub(super) fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    /// Whether one of its backends tells of changes.
    pub(super) fn has_changes(&self) -> bool {
        ["/mcp", "/mcp/http", "/mcp/modern"].contains(&self.path)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Elicitation is not in the oldest versions.
    fn can_be_asked(&self) -> bool {
        !matches!(self.dialect, Dialect::Sse | Dialect::Sessions("2025-03-26"))
    }

    fn any_backend(&mut self) -> &'static str {
        let own = BACKENDS.into_iter().find(|name| path_of(name) == self.path);
        own.unwrap_or_else(|| BACKENDS.choose(&mut self.rng).unwrap())
    }

    async fn call(&mut self, backend: &'static str, ms: u64, asks: bool) -> Outcome {
        self.last += 1;
        let call = self.run.call(format!("{}-{}", self.name, self.last), backend, ms, asks);
        let outcome = match self.dialect {
            Dialect::Sessions(_) => self.call_in_session(&call).await,
            Dialect::Stateless => self.call_stateless(&call).await,
            Dialect::Sse => self.call_over_sse(&call).await,
        };
        call.ended(outcome.clone());
        outcome
    }

    fn params(&self, call: &Call) -> Value {
        let tool = if self.path == "/mcp" { format!("{}__work", call.backend) } else { "work".to_owned() };
        let arguments = json!({ "call": call.name, "ms": call.ms, "ask": call.asks });
        json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": call.name } })
    }

    async fn post(&mut self, path: &str, headers: &[(&str, &str)], message: &Value) -> Sent {
        self.world.send(&mut self.rng, Method::POST, path, headers, message.to_string()).await
    }

    // Sessions

    fn headers(&self) -> Vec<(String, String)> {
        match self.dialect {
            Dialect::Sessions(version) => vec![
                (header::SESSION_ID.to_owned(), self.id.clone()),
                (header::PROTOCOL_VERSION.to_owned(), version.to_owned()),
            ],
            _ => Vec::new(),
        }
    }

    /// Opens a session or a connection, and begins to listen.
    pub(super) async fn open(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < HANGS {
            let is_open = match self.dialect {
                Dialect::Sessions(version) => self.initialize(version).await,
                Dialect::Stateless => true,
                Dialect::Sse => self.connect().await,
            };
            if is_open {
                let listens = match self.dialect {
                    Dialect::Sessions(_) => Listens::Session(self.headers()),
                    Dialect::Stateless => Listens::Stateless,
                    Dialect::Sse => return,
                };
                let seed = self.rng.random();
                self.listener =
                    Some(Listener::start(&self.name, self.path, listens, &self.world, &self.run, seed));
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.run.wrong(&format!("{} can't connect", self.name));
    }

    async fn initialize(&mut self, version: &str) -> bool {
        let hello = initialize(version, serde_json::from_str(CAPABILITIES).unwrap());
        let Sent::Answered(_, reply) = self.post(self.path, &[], &hello).await else { return false };
        if reply.status() != 200 {
            return false;
        }
        self.id = reply.header("mcp-session-id").unwrap().to_owned();
        let initialized = notification("notifications/initialized", json!({}));
        let sent = self.post_in_session(&initialized).await;
        matches!(sent, Sent::Answered(_, reply) if reply.status() == 202)
    }

    async fn post_in_session(&mut self, message: &Value) -> Sent {
        let headers = self.headers();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        self.post(self.path, &headers, message).await
    }

    /// Ends its session.
    pub(super) async fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.stop().await;
        }
        self.stream = None;
        if !matches!(self.dialect, Dialect::Sessions(_)) {
            return;
        }
        let begun = Instant::now();
        let headers = self.headers();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        while begun.elapsed() < HANGS {
            let sent = self.world.send(&mut self.rng, Method::DELETE, self.path, &headers, "").await;
            // 404: it was ended by one whose answer was lost.
            if matches!(sent, Sent::Answered(_, reply) if matches!(reply.status(), 204 | 404)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.run.wrong(&format!("{} can't end its session", self.name));
    }

    async fn call_in_session(&mut self, call: &Arc<Call>) -> Outcome {
        let id = json!(call.name);
        let message = request(id.clone(), "tools/call", self.params(call));
        let cancels = call.ms > 500 && self.rng.random_bool(0.1);
        let mut reply = match self.post_in_session(&message).await {
            Sent::Answered(number, reply) => {
                call.note(&format!("instance {number} answers {}", reply.status()));
                reply
            }
            Sent::Lost(number) => {
                call.note(&format!("instance {number} is lost"));
                return Outcome::Lost;
            }
            Sent::Nobody => return Outcome::Refused("no instance takes a connection".to_owned()),
        };
        let begun = Instant::now();
        let mut last = None;
        loop {
            if !reply.is_stream() {
                return self.whole(call, *reply).await;
            }
            while let Ok(Some(event)) = reply.event_within(HANGS).await {
                last = event.id.map(|id| String::from_utf8(id.to_vec()).unwrap()).or(last);
                if event.data.is_empty() {
                    continue;
                }
                match self.hear(call, &id, &serde_json::from_slice(&event.data).unwrap()) {
                    Heard::Answer(outcome) => return outcome,
                    Heard::Ask(ask, name) => self.answer(call, &ask, &name).await,
                    Heard::Other => {}
                }
                if cancels {
                    let params = json!({ "requestId": id, "reason": "chaos" });
                    self.post_in_session(&notification("notifications/cancelled", params)).await;
                    return Outcome::Cancelled;
                }
            }
            // It ended too early: back for the rest.
            let Some(last) = &last else { return Outcome::Lost };
            loop {
                if begun.elapsed() > HANGS {
                    call.wrong("it hangs");
                    return Outcome::Unknown("hangs".to_owned());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                let mut headers = self.headers();
                headers.push((header::LAST_EVENT_ID.to_owned(), last.clone()));
                let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
                let sent = self.world.send(&mut self.rng, Method::GET, self.path, &headers, "").await;
                if let Sent::Answered(number, back) = sent {
                    call.note(&format!("back at {number} after {last}: {}", back.status()));
                    if back.status() != 503 {
                        reply = back;
                        break;
                    }
                }
            }
        }
    }

    /// An answer that is no stream.
    async fn whole(&self, call: &Arc<Call>, reply: Reply) -> Outcome {
        let status = reply.status();
        let Ok(body) = tokio::time::timeout(HANGS, reply.try_bytes()).await else {
            call.wrong("its answer hangs");
            return Outcome::Lost;
        };
        let Some(body) = body else { return Outcome::Lost };
        match serde_json::from_slice::<Value>(&body) {
            Ok(answer) if answer["result"].is_object() || answer["error"].is_object() => call.judge(&answer),
            _ => {
                call.wrong(&format!("status {status} with {}", String::from_utf8_lossy(&body)));
                Outcome::Unknown(format!("status {status}"))
            }
        }
    }

    fn hear(&self, call: &Arc<Call>, id: &Value, message: &Value) -> Heard {
        let params = &message["params"];
        // On the one stream of an HTTP+SSE connection comes also what was given up for lost.
        let late = |name: &Value| {
            let prefix = format!("{}-", self.name);
            self.dialect == Dialect::Sse && name.as_str().is_some_and(|name| name.starts_with(&prefix))
        };
        match message["method"].as_str() {
            None if message["id"] == *id || message["error"].is_object() && message["id"].is_null() => {
                Heard::Answer(call.judge(message))
            }
            None if late(&message["id"]) => Heard::Other,
            None => {
                call.wrong(&format!("an answer to another: {message}"));
                Heard::Other
            }
            Some("elicitation/create") => {
                let name = params["message"].as_str().unwrap_or_default().to_owned();
                call.note(&format!("asked for {name}"));
                // Stateless clients of one principal share processes and connections: what a call asks that was given up
                // may come with the one that runs.
                let may_be = self.dialect == Dialect::Stateless && call.backend != "modern";
                if !may_be && !name.starts_with(&format!("{}-", self.name)) {
                    call.wrong(&format!("an ask for another: {message}"));
                }
                Heard::Ask(message["id"].clone(), name)
            }
            Some("notifications/progress") if late(&params["progressToken"]) => Heard::Other,
            Some("notifications/progress") if params["progressToken"] != call.name.as_str() => {
                call.wrong(&format!("the progress of another: {message}"));
                Heard::Other
            }
            Some(_) => Heard::Other,
        }
    }

    /// Answers an ask in its session, until it is taken.
    async fn answer(&mut self, call: &Arc<Call>, ask: &Value, name: &str) {
        let path = if self.dialect == Dialect::Sse { self.id.clone() } else { self.path.to_owned() };
        let headers = self.headers();
        answer(&self.world, &mut self.rng, &path, &headers, ask, name).await;
        call.note("its ask was answered");
    }

    // Stateless

    async fn call_stateless(&mut self, call: &Arc<Call>) -> Outcome {
        let modern = Modern::new(
            &drawbridge_testkit::client::Client::new(""),
            self.path,
            serde_json::from_str(CAPABILITIES).unwrap(),
        );
        let params = self.params(call);
        let (mut params, first) = (params.clone(), params);
        let begun = Instant::now();
        let cancels = call.ms > 500 && self.rng.random_bool(0.1);
        loop {
            let mut message = modern.body("tools/call", params.clone());
            message["id"] = json!(call.name);
            let headers = Modern::headers(&message);
            let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
            let answer = match self.post(self.path, &headers, &message).await {
                Sent::Answered(number, reply) => {
                    call.note(&format!("instance {number} answers {}", reply.status()));
                    match self.stateless_answer(call, *reply, cancels).await {
                        Ok(answer) => answer,
                        Err(outcome) => return outcome,
                    }
                }
                Sent::Lost(number) => {
                    call.note(&format!("instance {number} is lost"));
                    return Outcome::Lost;
                }
                Sent::Nobody if params == first => {
                    return Outcome::Refused("no instance takes a connection".to_owned());
                }
                Sent::Nobody => Value::Null,
            };
            if answer["result"]["resultType"] == "input_required" {
                let mut answers = json!({});
                for (key, ask) in answer["result"]["inputRequests"].as_object().unwrap() {
                    let asked = json!({ "id": key, "method": ask["method"], "params": ask["params"] });
                    if let Heard::Ask(_, name) = self.hear(call, &Value::Null, &asked) {
                        let content = json!({ "call": format!("yes-{name}") });
                        answers[key] = json!({ "action": "accept", "content": content });
                    }
                }
                params = first.clone();
                params["requestState"] = answer["result"]["requestState"].clone();
                params["inputResponses"] = answers;
                continue;
            }
            // A retry that was not taken may be sent again.
            if params != first && (answer.is_null() || answer["error"]["data"]["retry"] == "safe") {
                if begun.elapsed() > HANGS / 2 {
                    return Outcome::Unknown("nobody took the retry".to_owned());
                }
                call.note(&format!("the retry was not taken: {answer}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            return call.judge(&answer);
        }
    }

    /// The message that ends a request.
    async fn stateless_answer(
        &self,
        call: &Arc<Call>,
        mut reply: Reply,
        cancels: bool,
    ) -> Result<Value, Outcome> {
        if !reply.is_stream() {
            let status = reply.status();
            let Ok(body) = tokio::time::timeout(HANGS, reply.try_bytes()).await else {
                call.wrong("its answer hangs");
                return Err(Outcome::Lost);
            };
            let body = body.ok_or(Outcome::Lost)?;
            return serde_json::from_slice(&body).map_err(|_| {
                call.wrong(&format!("status {status} with {}", String::from_utf8_lossy(&body)));
                Outcome::Unknown(format!("status {status}"))
            });
        }
        let id = json!(call.name);
        loop {
            match reply.event_within(HANGS).await {
                Err(_) => {
                    call.wrong("its stream hangs");
                    return Err(Outcome::Lost);
                }
                Ok(None) => return Err(Outcome::Lost),
                Ok(Some(event)) if event.data.is_empty() => {}
                Ok(Some(event)) => {
                    let message: Value = serde_json::from_slice(&event.data).unwrap();
                    if message["method"].is_null() && message["id"] == id {
                        return Ok(message);
                    }
                    self.hear(call, &id, &message);
                    if cancels {
                        return Err(Outcome::Cancelled);
                    }
                }
            }
        }
    }

    // HTTP+SSE

    async fn connect(&mut self) -> bool {
        let path = format!("{}/sse", self.path);
        let sent = self.world.send(&mut self.rng, Method::GET, &path, &[], "").await;
        let Sent::Answered(_, mut stream) = sent else { return false };
        if !stream.is_stream() {
            return false;
        }
        let Ok(Some(first)) = stream.event_within(HANGS).await else { return false };
        self.id = String::from_utf8(first.data.to_vec()).unwrap();
        self.stream = Some(stream);
        let hello = initialize("2024-11-05", serde_json::from_str(CAPABILITIES).unwrap());
        let messages = self.id.clone();
        let sent = self.post(&messages, &[], &hello).await;
        if !matches!(sent, Sent::Answered(_, reply) if reply.status() == 202) {
            return false;
        }
        let Ok(Some(answer)) = self.stream.as_mut().unwrap().event_within(HANGS).await else { return false };
        if !serde_json::from_slice::<Value>(&answer.data).is_ok_and(|answer| answer["result"].is_object()) {
            return false;
        }
        let initialized = notification("notifications/initialized", json!({}));
        let sent = self.post(&messages, &[], &initialized).await;
        matches!(sent, Sent::Answered(_, reply) if reply.status() == 202)
    }

    async fn call_over_sse(&mut self, call: &Arc<Call>) -> Outcome {
        let id = json!(call.name);
        let message = request(id.clone(), "tools/call", self.params(call));
        if self.stream.is_none() {
            self.open().await;
        }
        let messages = self.id.clone();
        match self.post(&messages, &[], &message).await {
            Sent::Answered(number, reply) => {
                let status = reply.status();
                call.note(&format!("instance {number} answers {status}"));
                if status == 404 {
                    self.stream = None;
                    return Outcome::Refused("the connection is gone".to_owned());
                }
                if status != 202 {
                    return self.whole(call, *reply).await;
                }
            }
            Sent::Lost(_) => {
                // Whether it was taken shows on the stream; this client goes on with another.
                self.stream = None;
                return Outcome::Lost;
            }
            Sent::Nobody => return Outcome::Refused("no instance takes a connection".to_owned()),
        }
        loop {
            let Some(stream) = &mut self.stream else { return Outcome::Lost };
            match stream.event_within(HANGS).await {
                Err(_) => {
                    call.wrong("its connection hangs");
                    self.stream = None;
                }
                Ok(None) => self.stream = None,
                Ok(Some(event)) if event.data.is_empty() => {}
                Ok(Some(event)) => {
                    match self.hear(call, &id, &serde_json::from_slice(&event.data).unwrap()) {
                        Heard::Answer(outcome) => return outcome,
                        Heard::Ask(ask, name) => self.answer(call, &ask, &name).await,
                        Heard::Other => {}
                    }
                }
            }
        }
    }
}

/// Answers an ask about the call `name`, until an instance takes that.
pub(super) async fn answer(
    world: &World,
    rng: &mut StdRng,
    path: &str,
    headers: &[(String, String)],
    ask: &Value,
    name: &str,
) {
    let content = json!({ "call": format!("yes-{name}") });
    let answer = json!({ "jsonrpc": "2.0", "id": ask, "result": { "action": "accept", "content": content } });
    let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(15) {
        let sent = world.send(rng, Method::POST, path, &headers, answer.to_string()).await;
        if matches!(sent, Sent::Answered(_, reply) if reply.status() != 503) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn path_of(backend: &str) -> String {
    format!("/mcp/{backend}")
}
