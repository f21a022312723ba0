//! Events as messages to a client with a session.

use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::call::{Event, Reply, Resume, Shape};
use drawbridge_core::{Client, Conversing as _, Fault};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Kind, Message, Payload, code, json, method};
use smallvec::SmallVec;

use super::session::{InFlight, Session};

/// Whether a client said that it answers `method`.
pub(super) fn can_answer(client: &Client, method: &str) -> bool {
    let capability = match method {
        method::ELICITATION_CREATE => "elicitation",
        method::SAMPLING_CREATE_MESSAGE => "sampling",
        method::ROOTS_LIST => "roots",
        // Tasks that the client runs; anything else is between the two of them.
        m if m.starts_with("tasks/") => "tasks",
        _ => return true,
    };
    json::member(&client.capabilities, capability).is_some()
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
}

/// The messages that an event of a call is to the client.
pub(super) fn event(session: &Session, call: &InFlight, method: &str, event: Event) -> SmallVec<[Out; 1]> {
    let more = |payload| Out { payload, terminal: false, pause: None };
    let last = |payload| Out { payload, terminal: true, pause: None };
    let one = |out| SmallVec::from_iter([out]);
    match event {
        Event::Begun => one(more(Payload::default())),
        Event::Paused(delay) => one(Out { pause: Some(delay), ..more(Payload::default()) }),
        Event::Notify(message) => one(more(Payload::from(notification(&message)))),
        Event::Withdraw(key) => {
            let known = session.withdraw(key).then(|| more(Payload::from(withdrawal(&session.ask_id(key)))));
            known.into_iter().collect()
        }
        Event::Asks(round) if matches!(round.resume, Resume::State(_)) => {
            let backends: Vec<_> = session.endpoint.backends().iter().map(|b| b.name().as_str()).collect();
            let backend = backends.join(" or ");
            one(last(failure(call, &Fault::NeedsInput { backend })))
        }
        Event::Asks(round) => round
            .asks
            .into_iter()
            .filter_map(|ask| session.enter_ask(ask, Some(call.serial)))
            .map(|request| more(Payload::from(request.bytes().clone())))
            .collect(),
        Event::Done(reply) => one(last(answer(&call.id, method, &reply))),
        Event::Fail(fault) => {
            tracing::warn!(
                error.code = fault.code(), mcp.method = method, rpc.id = ?call.id.literal(), client = %session.client().principal.as_str(),
                error.message = ?fault.to_string(), "call failed"
            );
            one(last(failure(call, &fault)))
        }
    }
}

fn failure(call: &InFlight, fault: &Fault) -> Payload {
    Payload::from(fault.to_rpc_error().to_message(Some(&call.id)).bytes().clone())
}

/// A result without what this era does not have, or an error with the code that it has here.
fn answer(id: &Id, method: &str, reply: &Reply) -> Payload {
    let message = &reply.message;
    let edit = Edit::new(message).id(id);
    if reply.shape == Shape::Plain {
        return edit.finish();
    }
    if message.kind() == Kind::Result {
        return edit.remove(Field::ResultType).remove(Field::TtlMs).remove(Field::CacheScope).finish();
    }
    let is_missing_resource =
        method == method::RESOURCES_READ && message.error_code() == code::INVALID_PARAMS;
    let names_uri = message.raw(Field::ErrorData).is_some_and(|data| json::member(data, "uri").is_some());
    let code = match message.error_code() {
        _ if is_missing_resource && names_uri => code::RESOURCE_NOT_FOUND,
        code::MISSING_CLIENT_CAPABILITY => code::INTERNAL_ERROR,
        _ => return edit.finish(),
    };
    edit.set(Field::ErrorCode, code.to_string()).finish()
}
