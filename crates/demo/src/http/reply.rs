//! Responses: one JSON message, or a stream of events.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use drawbridge_wire::{Id, Kind, Message, RpcError, sse};
use futures_util::stream::{self, StreamExt as _};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};

/// Quiet streams get a comment this often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// One message.
pub(super) fn json(status: StatusCode, message: &Message) -> Response {
    let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, headers, Body::from(message.bytes().clone())).into_response()
}

/// An error instead of what was asked for.
pub(super) fn refuse(status: StatusCode, error: &RpcError, id: Option<&Id>) -> Response {
    json(status, &error.to_message(id))
}

/// Accepted, nothing to say.
pub(super) fn accepted() -> Response {
    StatusCode::ACCEPTED.into_response()
}

/// Done, nothing to say.
pub(super) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// Where the events of a stream come from.
pub(super) trait Source: Send + 'static {
    /// The next event, encoded; none at the end. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// A stream of events: those at hand, then what `source` gives, with keep-alives between them.
pub(super) fn events(at_hand: Vec<Bytes>, source: impl Source) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (X_ACCEL_BUFFERING, HeaderValue::from_static("no")),
    ];
    let later = stream::unfold(source, async |mut source| {
        match tokio::time::timeout(KEEP_ALIVE, source.next()).await {
            Ok(event) => event.map(|event| (event, source)),
            Err(_) => Some((sse::KEEP_ALIVE, source)),
        }
    });
    let all = stream::iter(at_hand).chain(later).map(Ok::<_, Infallible>);
    (headers, Body::from_stream(all)).into_response()
}

/// One message as an event.
pub(super) fn event(id: Option<&str>, message: &Message) -> Bytes {
    sse::encode(id, message.bytes().clone().into()).into_bytes()
}

/// Whether a message ends the stream of a request.
pub(super) fn is_answer(message: &Message) -> bool {
    matches!(message.kind(), Kind::Result | Kind::Error)
}
