//! A tiny client: one connection per request, JSON in and out.

use std::time::Duration;

use bytes::Bytes;
use drawbridge_demo::Demo;
use drawbridge_wire::sse::{Decoder, Event};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Hyper;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const MODERN: &str = "2026-07-28";

/// A server that ends with the test.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) demo: Demo,
    pub(crate) tasks: TaskTracker,
    hyper: Hyper<HttpConnector, Full<Bytes>>,
    _stop: DropGuard,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let tasks = TaskTracker::new();
        let demo = Demo::new(tasks.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let (served, stopped) = (demo.clone(), stop.clone().cancelled_owned());
        tasks.spawn(async move { served.serve(listener, stopped).await.unwrap() });
        let hyper = Hyper::builder(TokioExecutor::new()).build_http();
        Self { address, demo, tasks, hyper, _stop: stop.drop_guard() }
    }

    pub(crate) async fn send(&self, verb: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut request = hyper::Request::builder().method(verb).uri(format!("{}{path}", self.address));
        request = request.header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let answer = self.hyper.request(request.body(Full::new(body)).unwrap());
        let response = tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap();
        Reply { decoder: Decoder::new(64 << 20), response }
    }

    pub(crate) async fn post(&self, headers: &[(&str, &str)], body: &Value) -> Reply {
        self.send("POST", "/mcp", headers, body).await
    }

    /// A modern request with all headers that belong to it.
    pub(crate) async fn modern(&self, body: &Value) -> Reply {
        let params = &body["params"];
        let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default();
        let method = body["method"].as_str().unwrap();
        let headers = [("mcp-protocol-version", MODERN), ("mcp-method", method), ("mcp-name", name)];
        self.post(&headers[..if name.is_empty() { 2 } else { 3 }], body).await
    }
}

/// A response that may still be going on.
pub(crate) struct Reply {
    response: hyper::Response<Incoming>,
    decoder: Decoder,
}

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> String {
        let value = self.response.headers().get(name);
        value.map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type") == "text/event-stream"
    }

    pub(crate) async fn json(self) -> Value {
        assert_eq!(self.header("content-type"), "application/json");
        let body = self.response.into_body().collect();
        let body = tokio::time::timeout(PATIENCE, body).await.unwrap().unwrap();
        serde_json::from_slice(&body.to_bytes()).unwrap()
    }

    /// The next event; none at the end of the stream.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        assert!(self.is_stream());
        loop {
            if let Some(event) = self.decoder.next_event().unwrap() {
                return Some(event);
            }
            let frame = self.response.body_mut().frame();
            let frame = tokio::time::timeout(PATIENCE, frame).await.unwrap()?.unwrap();
            self.decoder.feed(frame.into_data().unwrap());
        }
    }

    /// The next message of the stream.
    pub(crate) async fn message(&mut self) -> Value {
        loop {
            let event = self.event().await.expect("the stream ended");
            if !event.data.is_empty() {
                return serde_json::from_slice(&event.data).unwrap();
            }
        }
    }

    /// All messages of the stream, to its end.
    pub(crate) async fn messages(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(event) = self.event().await {
            if !event.data.is_empty() {
                messages.push(serde_json::from_slice(&event.data).unwrap());
            }
        }
        messages
    }
}

pub(crate) fn meta(capabilities: Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": { "name": "tiny", "version": "1" },
    })
}

pub(crate) fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
}

pub(crate) fn initialize(version: &str, capabilities: Value) -> Value {
    let params = json!({ "protocolVersion": version, "capabilities": capabilities,
                         "clientInfo": { "name": "tiny", "version": "1" } });
    request(0, "initialize", params)
}

pub(crate) fn methods(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["method"].as_str().unwrap_or("result")).collect()
}

pub(crate) fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}
