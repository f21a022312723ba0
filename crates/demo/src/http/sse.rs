//! The transport of 2024-11-05: a stream that carries everything to the client, and a URL that takes
//! everything from it. The stream is the session.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use drawbridge_wire::{Message, RpcError, code, sse};
use http::{HeaderMap, StatusCode, Uri};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::accepts;
use super::reply::{self, Source};
use crate::link::Link;
use crate::outlet::PIPE;
use crate::{Demo, random_name};

const MAX_LINKS: usize = 1000;

/// Connections that are open, by the name in their URL.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashMap<String, Arc<Link>>>);

/// Opens a connection and tells where to send messages.
pub(super) async fn open(State(demo): State<Demo>, headers: HeaderMap) -> Response {
    if !accepts(&headers, "text/event-stream", "text/*") {
        return refuse(StatusCode::NOT_ACCEPTABLE, "the client has to accept text/event-stream");
    }
    let (sender, receiver) = mpsc::channel(PIPE);
    let name = random_name();
    {
        let mut links = demo.0.links.0.lock();
        if links.len() >= MAX_LINKS {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many connections");
        }
        links.insert(name.clone(), Arc::new(Link::new(&demo, sender, false)));
    }
    let endpoint = Bytes::from(format!("/messages?sessionId={name}"));
    let first = sse::encode_named(Some("endpoint"), None, endpoint.into()).into_bytes();
    reply::events(vec![first], Connection { demo, name, receiver })
}

/// Takes a message; the answer goes to the stream.
pub(super) async fn accept(State(demo): State<Demo>, uri: Uri, body: Bytes) -> Response {
    let name = uri.query().into_iter().flat_map(|query| query.split('&'));
    let name = name.filter_map(|pair| pair.strip_prefix("sessionId=")).next().unwrap_or_default();
    let link = demo.0.links.0.lock().get(name).cloned();
    let Some(link) = link else {
        return refuse(StatusCode::NOT_FOUND, "there is no such connection; open /sse first");
    };
    link.receive(body).await;
    reply::accepted()
}

fn refuse(status: StatusCode, text: &str) -> Response {
    reply::refuse(status, &RpcError::new(code::INVALID_REQUEST, text), None)
}

struct Connection {
    demo: Demo,
    name: String,
    receiver: mpsc::Receiver<Message>,
}

impl Source for Connection {
    async fn next(&mut self) -> Option<Bytes> {
        // cancel-safe: a message is received or not.
        let message = tokio::select! {
            biased;
            message = self.receiver.recv() => message?,
            () = self.demo.0.stop.cancelled() => return None,
        };
        Some(sse::encode_named(Some("message"), None, message.bytes().clone().into()).into_bytes())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let link = self.demo.0.links.0.lock().remove(&self.name);
        drop(link);
    }
}
