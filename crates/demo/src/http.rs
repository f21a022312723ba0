//! The server over HTTP: one URL for both eras, and the two of the 2024-11-05 transport.

mod legacy;
mod modern;
mod reply;
pub(crate) mod sse;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use drawbridge_wire::message::{Field, Incoming};
use drawbridge_wire::{Message, RpcError, code, header};
use http::header::{ACCEPT, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, StatusCode, Uri};

use crate::Demo;
use crate::link::MAX_BATCH;

const MAX_BODY: usize = 16 << 20;

pub(crate) fn router(demo: Demo) -> Router {
    Router::new()
        .route("/mcp", post(accept).get(legacy::get).delete(legacy::delete))
        .route("/sse", get(sse::open))
        .route("/messages", post(sse::accept))
        .layer(from_fn(check_origin))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(demo)
}

/// Takes a POST of either era: how the message speaks decides.
async fn accept(State(demo): State<Demo>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refusal) = check_media(&headers) {
        return *refusal;
    }
    let claims = |version: &str| crate::modern::claims(version);
    let version = text(&headers, header::PROTOCOL_VERSION);
    let by_header = version.is_some_and(claims);
    let session = text(&headers, header::SESSION_ID);
    match Incoming::parse(body, MAX_BATCH) {
        Err(invalid) => {
            let answer = invalid.to_rpc_error().to_message(invalid.id.as_ref());
            reply::json(StatusCode::BAD_REQUEST, &answer)
        }
        Ok(Incoming::Batch(_)) if by_header => reply::refuse(
            StatusCode::BAD_REQUEST,
            &RpcError::new(code::INVALID_REQUEST, "batches are not part of this version"),
            None,
        ),
        Ok(Incoming::Batch(messages)) => legacy::accept_batch(&demo, session, messages).await,
        Ok(Incoming::One(message)) => {
            let by_body = message.text(Field::MetaProtocolVersion).map(|version| claims(&version));
            if by_body == Some(true) || by_header && is_modern_header(version, session, &message) {
                modern::accept(&demo, &headers, message).await
            } else {
                legacy::accept(&demo, &headers, message).await
            }
        }
    }
}

/// Whether the version header alone makes a request modern: an unknown version does not inside a session.
fn is_modern_header(version: Option<&str>, session: Option<&str>, message: &Message) -> bool {
    let known = version.and_then(drawbridge_wire::ProtocolVersion::parse).is_some();
    known || session.is_none() && message.method() != drawbridge_wire::method::INITIALIZE
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn check_media(headers: &HeaderMap) -> Result<(), Box<Response>> {
    let refuse = |status, text| {
        let error = RpcError::new(code::INVALID_REQUEST, text);
        Err(Box::new(reply::refuse(status, &error, None)))
    };
    let content_type = text(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    if !content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content-type is application/json");
    }
    let json = accepts(headers, "application/json", "application/*");
    let stream = accepts(headers, "text/event-stream", "text/*");
    if !(json && stream) {
        let text = "the client has to accept application/json and text/event-stream";
        return refuse(StatusCode::NOT_ACCEPTABLE, text);
    }
    Ok(())
}

fn accepts(headers: &HeaderMap, exact: &str, family: &str) -> bool {
    let mut values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    values.peek().is_none()
        || values.flat_map(|value| value.split(',')).any(|range| {
            let range = range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            range == exact || range == family || range == "*/*"
        })
}

/// Web pages of other sites must not use the server through a browser (transports § Security Warning).
async fn check_origin(request: Request, next: Next) -> Response {
    let origin = request.headers().get(ORIGIN);
    if origin.is_none_or(|origin| origin.to_str().is_ok_and(is_loopback)) {
        return next.run(request).await;
    }
    let error = RpcError::new(code::INVALID_REQUEST, "this origin is not allowed");
    reply::refuse(StatusCode::FORBIDDEN, &error, None)
}

fn is_loopback(origin: &str) -> bool {
    let uri = origin.parse::<Uri>().ok();
    uri.as_ref().and_then(Uri::host).is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_machine_are_let_in() {
        for good in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"] {
            assert!(is_loopback(good), "{good}");
        }
        for bad in ["http://localhost.example.com", "https://example.com", "null", "http://127.0.0.1.nip.io"]
        {
            assert!(!is_loopback(bad), "{bad}");
        }
    }
}
