//! The modern era over HTTP (MCP 2026-07-28, streamable HTTP): every request stands alone, headers mirror the
//! body, and a client that goes away does not want the answer.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Kind, Message, RpcError, code, header, method};
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use super::reply::{self, Source};
use super::text;
use crate::Demo;
use crate::call::{Call, Caller};
use crate::features::tools;
use crate::modern::{Envelope, check_version};
use crate::outlet::{Outlet, PIPE};

/// Takes a message of this era.
pub(super) async fn accept(demo: &Demo, headers: &HeaderMap, message: Message) -> Response {
    let id = match (message.kind(), message.id()) {
        (Kind::Request, Some(id)) => id,
        (Kind::Notification, _) => return reply::accepted(),
        _ => {
            let error = RpcError::new(code::INVALID_REQUEST, "clients send no responses in this version");
            return reply::refuse(StatusCode::BAD_REQUEST, &error, None);
        }
    };
    match check(headers, &message) {
        Ok(envelope) => serve(demo, envelope, &message, id).await,
        Err(error) => reply::refuse(StatusCode::BAD_REQUEST, &error, Some(&id)),
    }
}

async fn serve(demo: &Demo, envelope: Envelope, request: &Message, id: Id) -> Response {
    let (sender, mut receiver) = mpsc::channel(PIPE);
    let call = Call::new(demo, Caller::Modern(Arc::new(envelope)), request, id.clone(), Outlet::Pipe(sender));
    // Dropped with the response, or with this future: either way the client is gone.
    let guard = call.cancelled.clone().drop_guard();
    call.spawn();
    match receiver.recv().await {
        Some(answer) if reply::is_answer(&answer) => reply::json(status_of(&answer), &answer),
        Some(first) => reply::events(vec![reply::event(None, &first)], Messages { receiver, _guard: guard }),
        None => {
            let error = RpcError::new(code::INTERNAL_ERROR, "the request was not answered");
            reply::refuse(StatusCode::INTERNAL_SERVER_ERROR, &error, Some(&id))
        }
    }
}

fn status_of(answer: &Message) -> StatusCode {
    match answer.error_code() {
        _ if answer.kind() == Kind::Result => StatusCode::OK,
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY | code::UNSUPPORTED_PROTOCOL_VERSION => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}

struct Messages {
    receiver: mpsc::Receiver<Message>,
    _guard: DropGuard,
}

impl Source for Messages {
    async fn next(&mut self) -> Option<Bytes> {
        Some(reply::event(None, &self.receiver.recv().await?))
    }
}

/// The checks of a request, in the order in which clients expect their errors.
fn check(headers: &HeaderMap, request: &Message) -> Result<Envelope, RpcError> {
    let by_header = text(headers, header::PROTOCOL_VERSION);
    let by_body = request.text(Field::MetaProtocolVersion);
    if let (Some(by_header), Some(by_body)) = (by_header, &by_body)
        && by_header != by_body
    {
        return Err(mismatch("mcp-protocol-version differs from the version in the body"));
    }
    let envelope = Envelope::read(request)?;
    let by_header = by_header.ok_or_else(|| mismatch("the header mcp-protocol-version is missing"))?;
    check_version(by_header)?;
    let method = request.method();
    check_mirror(headers, header::METHOD, &method)?;
    if let Some(name) = header::name_field(&method).and_then(|field| request.text(field)) {
        check_mirror(headers, header::NAME, &name)?;
    }
    if method == method::TOOLS_CALL {
        check_arguments(headers, request)?;
    }
    Ok(envelope)
}

fn mismatch(text: impl Into<String>) -> RpcError {
    RpcError::new(code::HEADER_MISMATCH, text)
}

/// Whether the header `name` says the same as the body, `expected`.
fn check_mirror(headers: &HeaderMap, name: &str, expected: &str) -> Result<(), RpcError> {
    let value = text(headers, name).ok_or_else(|| mismatch(format!("the header {name} is missing")))?;
    let value = header::decode(value).map_err(|bad| mismatch(format!("the header {name}: {bad}")))?;
    if value == expected { Ok(()) } else { Err(mismatch(format!("the header {name} differs from the body"))) }
}

/// Whether arguments that are mirrored in headers are.
fn check_arguments(headers: &HeaderMap, request: &Message) -> Result<(), RpcError> {
    let arguments: Value =
        request.raw(Field::Arguments).and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or_default();
    for (argument, suffix) in tools::mirrored(&request.text(Field::Name).unwrap_or_default()) {
        let name = format!("{}{}", header::PARAM_PREFIX, suffix.to_ascii_lowercase());
        match &arguments[&argument] {
            Value::Null if headers.contains_key(&name) => {
                return Err(mismatch(format!("the header {name} has no argument")));
            }
            Value::Null => {}
            Value::String(expected) => check_mirror(headers, &name, expected)?,
            other => check_mirror(headers, &name, &other.to_string())?,
        }
    }
    Ok(())
}
