//! HTTP answers: the one place that turns faults and refusals into status codes.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::body::Body;
use drawbridge_core::Fault;
use drawbridge_core::fault::{Blame, Retry, whole_seconds};
use drawbridge_core::metrics::Outcome;
use drawbridge_wire::message::Invalid;
use drawbridge_wire::{Id, Message, Payload, RpcError, code, header as mcp};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::body::Pieces;
use crate::record::End;

/// A request that is answered by an HTTP error, with a JSON-RPC error as its body.
#[derive(Debug, Clone)]
pub struct Refusal {
    status: StatusCode,
    error: RpcError,
    id: Option<Id>,
    /// In seconds.
    retry_after: Option<NonZeroU32>,
    outcome: Outcome,
    /// The code of the fault behind it, if there is one.
    fault: Option<&'static str>,
}

impl Refusal {
    /// A refusal that is about HTTP; the body says what to do.
    pub fn status(status: StatusCode, message: &str) -> Self {
        Self::rpc(status, None, RpcError::new(code::INVALID_REQUEST, message))
    }

    /// The refusal for a path, endpoint or session that does not exist. Says nothing about what does.
    pub fn not_found(message: &str) -> Self {
        Self::status(StatusCode::NOT_FOUND, message)
    }

    /// A JSON-RPC error to the request `id`.
    pub fn rpc(status: StatusCode, id: Option<Id>, error: RpcError) -> Self {
        Self { status, error, id, retry_after: None, outcome: Outcome::Refused, fault: None }
    }

    /// The refusal for a body that is not a message.
    pub fn invalid(invalid: &Invalid) -> Self {
        Self::rpc(StatusCode::BAD_REQUEST, invalid.id.clone(), invalid.to_rpc_error())
    }

    /// The refusal when the gateway can't take the request now.
    pub fn unavailable(fault: &Fault) -> Self {
        let retry_after = match fault.retry() {
            Retry::After(wait) => seconds(wait),
            _ => None,
        };
        Self { retry_after, ..Self::rpc(StatusCode::SERVICE_UNAVAILABLE, None, fault.to_rpc_error()) }
    }

    /// The refusal for a request that a fault prevents before it is a call.
    pub fn fault(id: Option<Id>, fault: &Fault) -> Self {
        let status = match (fault.blame(), fault) {
            (Blame::Gateway, _) => StatusCode::SERVICE_UNAVAILABLE,
            (Blame::Backend, Fault::Timeout { .. }) => StatusCode::GATEWAY_TIMEOUT,
            (Blame::Backend, _) => StatusCode::BAD_GATEWAY,
            (Blame::Caller, _) => StatusCode::OK,
        };
        let retry_after = match (fault, fault.retry()) {
            (Fault::RateLimited { .. }, Retry::After(wait)) => seconds(wait),
            _ => None,
        };
        let code = Some(fault.code()).filter(|code| *code != "rpc");
        let refusal = Self::rpc(status, None, fault.to_rpc_error());
        Self { id, retry_after, outcome: Outcome::of_fault(fault), fault: code, ..refusal }
    }

    /// How it ends the request that it is the answer to.
    pub(crate) fn end(&self) -> (End, StatusCode) {
        (End::error(self.outcome, self.error.code).because_of(self.fault), self.status)
    }

    /// The message in it.
    pub fn message(&self) -> Message {
        self.error.to_message(self.id.as_ref())
    }

    /// The answer.
    pub fn into_response(self) -> Response<Body> {
        let message = self.message();
        let mut response = json(self.status, Payload::from(message.bytes().clone()));
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.get()));
        }
        response
    }
}

/// A time for `Retry-After`: one second at least.
fn seconds(wait: Duration) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(whole_seconds(wait)).unwrap_or(u32::MAX).max(1))
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// A JSON answer.
pub fn json(status: StatusCode, payload: Payload) -> Response<Body> {
    let mut response = Response::new(Pieces::body(payload));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// The JSON answer that is `message`.
pub fn message(message: &Message) -> Response<Body> {
    json(StatusCode::OK, Payload::from(message.bytes().clone()))
}

/// "Accepted", without a body.
pub fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// A stream of events.
pub fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, EVENT_STREAM);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Refuses bodies that are not JSON and clients that take no answer the gateway gives.
pub fn check_media(headers: &HeaderMap) -> Result<(), Refusal> {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_json = content_type.is_none_or(|v| {
        let essence = v.split(|b| *b == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
    });
    if !is_json {
        return Err(Refusal::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"));
    }
    if accepts(headers, "application/json") || accepts(headers, "text/event-stream") {
        return Ok(());
    }
    Err(Refusal::status(
        StatusCode::NOT_ACCEPTABLE,
        "Accept must list application/json and text/event-stream",
    ))
}

/// Whether `Accept` allows a media type. A request without the header takes anything.
pub fn accepts(headers: &HeaderMap, media: &str) -> bool {
    let mut given = headers.get_all(header::ACCEPT).iter().peekable();
    if given.peek().is_none() {
        return true;
    }
    let family = media.split('/').next().unwrap_or_default();
    given.filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).any(|range| {
        let range = range.split(';').next().unwrap_or_default().trim();
        range == "*/*"
            || range.eq_ignore_ascii_case(media)
            || range.strip_suffix("/*").is_some_and(|f| f.eq_ignore_ascii_case(family))
    })
}

const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, accept, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name, last-event-id, *",
);
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "mcp-session-id, mcp-protocol-version, www-authenticate, retry-after, x-request-id",
);

/// The answer to a browser that asks what it may send.
pub fn preflight(origin: Option<HeaderValue>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    with_cors(response, origin)
}

/// Lets the page of an accepted origin read the answer.
pub fn with_cors(mut response: Response<Body>, origin: Option<HeaderValue>) -> Response<Body> {
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// A header's text, if it has one that is readable.
pub fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|v| v.to_str().ok())
}

/// The protocol version that a request's header names, if it has one.
pub fn version_header(headers: &HeaderMap) -> Option<&str> {
    text(headers, mcp::PROTOCOL_VERSION).map(|v| v.trim_matches([' ', '\t']))
}
