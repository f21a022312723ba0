//! Events as messages to a client with a session.

use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::call::{Event, Reply, Shape};
use drawbridge_core::{Client, Fault};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Kind, Message, Payload, RpcError, code, json, method};
use smallvec::SmallVec;

use super::downgrade;
use super::session::{InFlight, Session};

/// A request of a backend as the client gets it, under `id`; `None` if it did not say that it answers such requests, or
/// its version has no way to say this one.
pub(super) fn ask(client: &Client, request: &Message, id: &Id) -> Option<Message> {
    let declared = match request.method().as_ref() {
        method::ELICITATION_CREATE | method::SAMPLING_CREATE_MESSAGE | method::ROOTS_LIST => {
            client.declares(request)
        }
        // Tasks that the client runs; anything else is between the two of them.
        m if m.starts_with("tasks/") => json::member(&client.capabilities, "tasks").is_some(),
        _ => true,
    };
    declared.then(|| downgrade::ask(request, client.version, id)).flatten()
}

/// A notification for the client.
pub(super) fn notification(message: &Message) -> Bytes {
    Edit::new(message).remove(Field::MetaSubscriptionId).finish().into_bytes()
}

/// Tells the client that an ask needs no answer any more.
pub(super) fn withdrawal(id: &Id) -> Bytes {
    let params = json::object([("requestId", &id.literal()[..])]);
    Message::notification(method::CANCELLED, &params).bytes().clone()
}

/// A message for the stream of a call.
pub(super) struct Out {
    /// The message; empty if there is none yet, and the answer is to be a stream.
    pub(super) payload: Payload,
    /// Nothing follows.
    pub(super) terminal: bool,
    /// The client may go and come back after this long.
    pub(super) pause: Option<Duration>,
    /// It is a request, whose answer may come to another instance.
    pub(super) asks: bool,
}

/// The messages that an event of a call is to the client.
pub(super) fn event(session: &Session, call: &InFlight, method: &str, event: Event) -> SmallVec<[Out; 1]> {
    let more = |payload| Out { payload, terminal: false, pause: None, asks: false };
    let last = |payload| Out { payload, terminal: true, pause: None, asks: false };
    let one = |out| SmallVec::from_iter([out]);
    match event {
        Event::Begun => one(more(Payload::default())),
        Event::Paused(delay) => one(Out { pause: Some(delay), ..more(Payload::default()) }),
        Event::Notify(message) => one(more(Payload::from(notification(&message)))),
        Event::Withdraw(key) => {
            let known = session.withdraw(key).then(|| more(Payload::from(withdrawal(&session.ask_id(key)))));
            known.into_iter().collect()
        }
        Event::Asks(round) => round
            .asks
            .into_iter()
            .filter_map(|ask| session.enter_ask(ask, Some(call.serial)))
            .map(|request| Out { asks: true, ..more(Payload::from(request.bytes().clone())) })
            .collect(),
        Event::Done(reply) => one(last(answer(session.client(), &call.id, method, &reply))),
        Event::Fail(fault @ Fault::ConnectFirst { .. }) => {
            tracing::info!(
                mcp.method = method, rpc.id = ?String::from_utf8_lossy(call.id.literal()), client = %session.client().principal.as_str(),
                "the user is asked to connect an account"
            );
            one(last(failure(call, &fault)))
        }
        Event::Fail(fault) => {
            tracing::warn!(
                error.code = fault.code(), mcp.method = method, rpc.id = ?String::from_utf8_lossy(call.id.literal()), client = %session.client().principal.as_str(),
                error.message = ?fault.to_string(), "call failed"
            );
            one(last(failure(call, &fault)))
        }
    }
}

fn failure(call: &InFlight, fault: &Fault) -> Payload {
    Payload::from(error_of(fault).to_message(Some(&call.id)).bytes().clone())
}

/// A fault as this era says it (MCP 2025-11-25, elicitation § URL mode).
fn error_of(fault: &Fault) -> RpcError {
    let Fault::ConnectFirst { link, .. } = fault else { return fault.to_rpc_error() };
    let asks = json::array([&link.elicitation()[..]]);
    RpcError::new(code::URL_ELICITATION_REQUIRED, fault.to_string())
        .with_data(json::object([("elicitations", &asks[..])]))
}

/// A result without what this era does not have, or an error with the code that it has here.
fn answer(client: &Client, id: &Id, method: &str, reply: &Reply) -> Payload {
    let message = &reply.message;
    if message.kind() == Kind::Error {
        return error(client, id, method, reply);
    }
    let edit = Edit::new(message).id(id);
    if reply.shape.is_plain() {
        return edit.finish();
    }
    let raw = message.raw(Field::Result).unwrap_or_default();
    match downgrade::result(method, raw, client.version) {
        None => edit.remove(Field::ResultType).remove(Field::TtlMs).remove(Field::CacheScope).finish(),
        Some(result) => {
            let own = |key: &str| !matches!(key, "resultType" | "ttlMs" | "cacheScope");
            edit.set(Field::Result, json::filter_members(&result, own)).finish()
        }
    }
}

fn error(client: &Client, id: &Id, method: &str, reply: &Reply) -> Payload {
    let message = &reply.message;
    let edit = Edit::new(message).id(id);
    let names_uri = || message.raw(Field::ErrorData).is_some_and(|data| json::member(data, "uri").is_some());
    match message.error_code() {
        code::INVALID_PARAMS
            if reply.shape == Shape::Marked && method == method::RESOURCES_READ && names_uri() =>
        {
            edit.set(Field::ErrorCode, code::RESOURCE_NOT_FOUND.to_string()).finish()
        }
        code::MISSING_CLIENT_CAPABILITY if reply.shape == Shape::Marked => failed(id, method, message),
        code::URL_ELICITATION_REQUIRED if !knows_urls(client) => failed(id, method, message),
        _ => edit.finish(),
    }
}

/// Whether a client knows what to do about the error that asks for URLs to be opened.
fn knows_urls(client: &Client) -> bool {
    client.version.has_url_elicitation() && json::at(&client.capabilities, &["elicitation", "url"]).is_some()
}

/// An error that the client has no code for: of a tool it is for the model to read, else for the program.
fn failed(id: &Id, method: &str, error: &Message) -> Payload {
    let mut text = error.text(Field::ErrorMessage).unwrap_or_default().into_owned();
    if let Some(needed) =
        error.raw(Field::ErrorData).and_then(|data| json::member(data, "requiredCapabilities"))
    {
        text = format!("{text} (it needs the client capabilities {})", String::from_utf8_lossy(needed));
    }
    if method != method::TOOLS_CALL {
        let error = RpcError::new(code::INTERNAL_ERROR, text);
        return Payload::from(error.to_message(Some(id)).bytes().clone());
    }
    let text = json::encode_string(&text);
    let block = json::object([("type", &b"\"text\""[..]), ("text", text.as_bytes())]);
    let content = json::array([&block[..]]);
    let result = json::object([("content", &content[..]), ("isError", b"true")]);
    Payload::from(Message::result(id, &result).bytes().clone())
}
