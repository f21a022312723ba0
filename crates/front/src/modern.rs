//! The stateless face (MCP 2026-07-28): each POST carries all there is to know.

mod check;
mod encode;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use drawbridge_core::backend::Scope;
use drawbridge_core::call::{Call, Event, Events};
use drawbridge_core::metrics::{Era, Stream};
use drawbridge_core::{Answers, Client, Conversation, Conversing, Endpoint, Principal};
use drawbridge_wire::message::{Field, Incoming};
use drawbridge_wire::{Kind, Message, ProtocolVersion, code, header, json, method, sse};
use futures_util::StreamExt as _;
use http::request::Parts;
use http::{Response, StatusCode};

use crate::Inner;
use crate::gate::Caller;
use crate::record::{self, Record};
use crate::reply::{self, Refusal};
use crate::stream::{EventBody, StreamPermit};
use encode::{Encoder, Out};

/// Whether a POST is one of this face: it claims a version that is not of the legacy era.
pub(crate) fn claims(head: &Parts, incoming: &Incoming) -> bool {
    let is_legacy =
        |version: &str| ProtocolVersion::parse(version).is_some_and(ProtocolVersion::has_initialize);
    let header = reply::version_header(&head.headers);
    let own = match incoming {
        Incoming::One(message) => message.text(Field::MetaProtocolVersion),
        Incoming::Batch(_) => None,
    };
    match (own, header) {
        (Some(own), _) => !is_legacy(&own),
        (None, Some(header)) => !is_legacy(header),
        (None, None) => false,
    }
}

/// Somebody without a session.
pub(crate) struct Sessionless {
    pub(crate) client: Arc<Client>,
    pub(crate) endpoint: Arc<Endpoint>,
}

impl Conversing for Sessionless {
    fn client(&self) -> &Arc<Client> {
        &self.client
    }

    fn conversation(&self, index: usize) -> Arc<dyn Conversation> {
        self.endpoint.backends()[index].clone().open(&self.client, Scope::Profile, None)
    }
}

/// Answers a POST.
pub(crate) async fn post(
    inner: &Arc<Inner>,
    endpoint: &Arc<Endpoint>,
    head: &Parts,
    caller: &Caller,
    incoming: Incoming,
) -> Result<Response<Body>, Refusal> {
    let Incoming::One(message) = incoming else {
        let error = drawbridge_wire::RpcError::new(
            code::INVALID_REQUEST,
            "batches are not part of this protocol version",
        );
        return Err(Refusal::rpc(StatusCode::BAD_REQUEST, None, error));
    };
    match message.kind() {
        Kind::Request => {}
        // A client has nothing to notify here; cancelling is closing the stream.
        Kind::Notification => return Ok(reply::accepted()),
        Kind::Result | Kind::Error => {
            let error = drawbridge_wire::RpcError::new(
                code::INVALID_REQUEST,
                "clients send no responses in this protocol version",
            );
            return Err(Refusal::rpc(StatusCode::BAD_REQUEST, None, error));
        }
    }
    let mut record = Record::begin(endpoint, Era::Modern, &message);
    let client = match check::request(&message, &head.headers, &caller.principal) {
        Ok(client) => Arc::new(client),
        Err(refusal) => return Err(record.refused(refusal)),
    };
    if message.method() == method::DISCOVER {
        return match discover(endpoint, &client, &message).await {
            Ok(answer) => {
                record.end(record::End::OK, answer.status());
                Ok(answer)
            }
            Err(refusal) => Err(record.refused(refusal)),
        };
    }
    call(inner, endpoint, client, message, &head.headers, record).await
}

/// Answers `server/discover` with what the endpoint is to this client, in the versions of the gateway.
async fn discover(
    endpoint: &Arc<Endpoint>,
    client: &Arc<Client>,
    request: &Message,
) -> Result<Response<Body>, Refusal> {
    let id = request.id();
    let description = endpoint.describe(client).await.map_err(|fault| {
        tracing::warn!(error.code = fault.code(), error.message = ?fault.to_string(), "discover failed");
        Refusal::fault(id.clone(), &fault)
    })?;
    let versions: Vec<String> = ProtocolVersion::ALL.iter().rev().map(|v| format!("\"{v}\"")).collect();
    let versions = format!("[{}]", versions.join(","));
    let meta = description.meta.clone().unwrap_or_else(|| Bytes::from_static(b"{}"));
    let meta = json::replace_member(&meta, Field::ResultServerInfo.key(), &description.server_info);
    let (ttl, scope) = match &description.cache {
        Some((until, scope)) => {
            let left = until.saturating_duration_since(Instant::now());
            (left.as_millis().to_string(), scope.clone())
        }
        None => ("0".to_owned(), Bytes::from_static(b"\"private\"")),
    };
    let mut members = vec![
        ("resultType", &b"\"complete\""[..]),
        ("supportedVersions", versions.as_bytes()),
        ("capabilities", &description.capabilities[..]),
    ];
    if let Some(instructions) = &description.instructions {
        members.push(("instructions", instructions));
    }
    members.extend([("ttlMs", ttl.as_bytes()), ("cacheScope", &scope[..]), ("_meta", &meta[..])]);
    let id = id.ok_or_else(|| Refusal::status(StatusCode::BAD_REQUEST, "no id"))?;
    Ok(reply::message(&Message::result(&id, &json::object(members))))
}

async fn call(
    inner: &Arc<Inner>,
    endpoint: &Arc<Endpoint>,
    client: Arc<Client>,
    request: Message,
    headers: &http::HeaderMap,
    record: Record,
) -> Result<Response<Body>, Refusal> {
    let id = request.id().ok_or_else(|| Refusal::status(StatusCode::BAD_REQUEST, "no id"))?;
    let is_listen = request.method() == method::LISTEN;
    let kind = if is_listen { Stream::Listen } else { Stream::Call };
    let permit = |inner: &Inner| {
        StreamPermit::take(&inner.streams, kind, inner.live().options.max_streams)
            .map_err(|fault| Refusal::unavailable(&fault))
    };
    let listening = match is_listen.then(|| permit(inner)).transpose() {
        Ok(listening) => listening,
        Err(refusal) => return Err(record.refused(refusal)),
    };
    let trace = record.trace();
    let mut encoder = Encoder::new(&request, id, record);
    let params_headers = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with(header::PARAM_PREFIX))
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect();
    let who: Arc<dyn Conversing> =
        Arc::new(Sessionless { client: client.clone(), endpoint: endpoint.clone() });
    let call = Call { params_headers, trace, ..Call::new(request, client) };
    let mut events = endpoint.call(&who, call);
    let wait = tokio::time::sleep(inner.live().options.sse_after);
    tokio::pin!(wait);
    let mut first = None;
    loop {
        tokio::select! {
            biased;
            event = events.next() => match event {
                Some(event) => match encoder.encode(event) {
                    Some(Out { payload, status, terminal: true }) => return Ok(reply::json(status, payload)),
                    Some(out) => { first = Some(out.payload); break }
                    None => {}
                },
                None => return Err(Refusal::status(StatusCode::BAD_GATEWAY, "the call has no answer")),
            },
            () = &mut wait => break,
        }
    }
    let permit = match listening {
        Some(permit) => permit,
        None => match permit(inner) {
            Ok(permit) => permit,
            Err(_full) => return without_stream(encoder, events).await,
        },
    };
    encoder.record.streams();
    let mut opening = bytes::BytesMut::from(&b":\n\n"[..]);
    if let Some(payload) = first {
        sse::encode(None, payload).pieces().iter().for_each(|piece| opening.extend_from_slice(piece));
    }
    let source = stream_of(inner, encoder, events, is_listen.then(|| endpoint.clone()));
    Ok(reply::event_stream(EventBody::body(opening.freeze(), source, &inner.live().options, permit)))
}

/// Waits for the answer where no stream is free for what comes before it. The call runs already: to refuse it now would
/// invite the client to run it again.
async fn without_stream(mut encoder: Encoder, mut events: Events) -> Result<Response<Body>, Refusal> {
    while let Some(event) = events.next().await {
        if let Some(Out { payload, status, terminal: true }) = encoder.encode(event) {
            return Ok(reply::json(status, payload));
        }
    }
    Err(Refusal::status(StatusCode::BAD_GATEWAY, "the call has no answer"))
}

/// The rest of a call as events. Dropping it drops the call, which cancels it. A listen, to the endpoint `listened`, is
/// ended in good order when the gateway drains or the endpoint is replaced.
fn stream_of(
    inner: &Arc<Inner>,
    mut encoder: Encoder,
    mut events: Events,
    listened: Option<Arc<Endpoint>>,
) -> crate::stream::Source {
    let mut ends = listened.map(|endpoint| {
        let (drain, replaced) = (inner.tasks.drain_token().clone(), endpoint.replaced().clone());
        Box::pin(async move {
            tokio::select! {
                () = drain.cancelled() => End::Drain,
                () = replaced.cancelled() => End::Replaced,
            }
        })
    });
    let mut last = VecDeque::new();
    let mut ended = false;
    Box::pin(futures_util::stream::poll_fn(move |cx| {
        loop {
            if let Some(payload) = last.pop_front() {
                return Poll::Ready(Some(sse::encode(None, payload)));
            }
            if ended {
                return Poll::Ready(None);
            }
            if let Some(Poll::Ready(end)) = ends.as_mut().map(|ends| ends.as_mut().poll(cx)) {
                ended = true;
                if end == End::Replaced {
                    last.extend(encoder.all_has_changed());
                }
                last.push_back(encoder.end_of_listen());
                continue;
            }
            let event: Option<Event> = std::task::ready!(events.poll_next_unpin(cx));
            let Some(event) = event else { return Poll::Ready(None) };
            if let Some(out) = encoder.encode(event) {
                ended = out.terminal;
                return Poll::Ready(Some(sse::encode(None, out.payload)));
            }
        }
    }))
}

/// Why a listen ends, if not by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Drain,
    /// The endpoint is another one now.
    Replaced,
}

/// The client of a checked request.
fn client_of(message: &Message, principal: &Principal) -> Client {
    let copy = |field| message.raw(field).map(Bytes::copy_from_slice);
    Client {
        principal: principal.clone(),
        version: ProtocolVersion::V2026_07_28,
        // Copies: both may be kept with a shared session, and a slice would keep the whole body.
        capabilities: copy(Field::MetaClientCapabilities).unwrap_or_else(|| Bytes::from_static(b"{}")),
        info: copy(Field::MetaClientInfo),
        answers: Answers::ByRetry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_keeps_nothing_of_the_body_that_declared_it() {
        let meta = r#"{"io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"x"}}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{meta}}}}}"#);
        let body = Bytes::from(text.into_bytes());
        let message = Message::parse(body.clone()).unwrap();
        let client = client_of(&message, &Principal::anonymous());
        drop(message);
        assert_eq!(client.capabilities, r#"{"roots":{}}"#);
        assert_eq!(client.info.as_deref(), Some(&br#"{"name":"x"}"#[..]));
        assert!(body.is_unique(), "a slice would keep all of it");
    }
}
