//! Tasks: calls that a backend takes on and answers later.
//!
//! Both eras have them, in different forms: 2025-11-25 as part of the protocol, asked for by the client; 2026-07-28 as an
//! extension, decided by the server. A client that knows the form of its backend talks to it as it is. For a client
//! that knows no tasks, or those of the other era which can't be told to it, the task is [`drive`]n here, and the call
//! has an answer like any other. For a stateless client that knows the extension, tasks of a session are put in its form
//! by [`session`].

pub(crate) mod session;

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::call::{Ask, AskKey, Call, Emitter, Event, Reply, Resume, Round, Shape};
use drawbridge_core::{Fault, Tasks, rounds};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Message, RpcError, code, json, method};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::changes::listen::Caller;

/// How often a task is looked at whose backend does not say.
const POLL: Duration = Duration::from_secs(1);
const MIN_POLL: Duration = Duration::from_millis(50);
const MAX_POLL: Duration = Duration::from_secs(30);
/// How often in a row looking at a task may fail before its call does.
const MAX_FAILURES: u32 = 5;

/// The id of the task that a result of a stateless backend is instead of an answer.
pub(crate) fn created(reply: &Reply) -> Option<String> {
    let message = &reply.message;
    let is_task = reply.shape == Shape::Marked && message.text(Field::ResultType).as_deref() == Some("task");
    let id = json::member(message.raw(Field::Result).filter(|_| is_task)?, "taskId")?;
    json::decode_string(id).map(std::borrow::Cow::into_owned)
}

fn poll_interval(result: &[u8]) -> Duration {
    let ms =
        json::member(result, "pollIntervalMs").and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    ms.map_or(POLL, Duration::from_millis).clamp(MIN_POLL, MAX_POLL)
}

/// A task of a stateless backend on its way to an answer. Dropping it before that cancels the task.
struct Driven<'a> {
    caller: &'a Caller,
    tasks: &'a Tasks,
    call: &'a Call,
    id: Bytes,
    ended: bool,
}

impl Driven<'_> {
    fn request(&self, method: &str, more: Option<(&str, &[u8])>) -> Call {
        let meta = self
            .call
            .request
            .raw(Field::MetaLogLevel)
            .map(|level| json::object([("io.modelcontextprotocol/logLevel", level)]));
        let members = [("taskId", &self.id[..])].into_iter().chain(more);
        let members = members.chain(meta.as_deref().map(|meta| ("_meta", meta)));
        let request = Message::request(&Id::from_number(1), method, &json::object(members));
        Call::new(request, self.call.client.clone())
    }

    async fn ask(&self, method: &str, more: Option<(&str, &[u8])>) -> Result<Message, Fault> {
        let mut events = (self.caller)(self.request(method, more));
        while let Some(event) = events.next().await {
            match event {
                Event::Done(reply) => return Ok(reply.message),
                Event::Fail(fault) => return Err(fault),
                _ => {}
            }
        }
        Err(Fault::OutcomeUnknown { backend: String::new(), detail: "no answer".to_owned() })
    }
}

impl Drop for Driven<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut events = (self.caller)(self.request(method::TASKS_CANCEL, None));
        self.tasks.spawn("cancel task", async move {
            let told = async { while events.next().await.is_some() {} };
            let _ = tokio::time::timeout(Duration::from_secs(5), told).await;
        });
    }
}

/// Follows the task `id` of a stateless backend to its end, as the answer to `call`. What it asks for is asked live.
pub(crate) async fn drive(
    emit: &Emitter,
    caller: &Caller,
    tasks: &Tasks,
    call: &Call,
    created: &Reply,
    id: &str,
) -> Event {
    let first = &created.message;
    let id = Bytes::from(json::encode_string(id));
    let mut task = Driven { caller, tasks, call, id, ended: false };
    let mut pause = poll_interval(first.raw(Field::Result).unwrap_or_default());
    let mut asked = HashSet::new();
    let mut answers = FuturesUnordered::new();
    let mut failures = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Some((key, result)) = answers.next(), if !answers.is_empty() => {
                let result: Bytes = match result {
                    Ok(result) => result,
                    Err(fault) => return Event::Fail(fault),
                };
                let responses = json::object([(String::as_str(&key), &result[..])]);
                // If it was not delivered, the task says so by asking for it still.
                let _ = task.ask(method::TASKS_UPDATE, Some(("inputResponses", &responses))).await;
                pause = MIN_POLL;
                continue;
            }
        }
        let state = match task.ask(method::TASKS_GET, None).await {
            Ok(state) if state.kind() == drawbridge_wire::Kind::Result => state,
            Ok(error) => {
                task.ended = true;
                return Event::Done(Reply { message: late(&error), shape: Shape::Marked });
            }
            Err(fault) => {
                failures += 1;
                if failures > MAX_FAILURES {
                    return Event::Fail(fault);
                }
                continue;
            }
        };
        failures = 0;
        let result = state.raw(Field::Result).unwrap_or_default();
        pause = poll_interval(result);
        if let Some(event) = ended(result) {
            task.ended = true;
            return event;
        }
        let requests = json::member(result, "inputRequests").and_then(|raw| json::members(raw).ok());
        let mut asks = SmallVec::new();
        for (key, request) in requests.unwrap_or_default() {
            if asked.insert(key.clone().into_owned()) {
                let (reply, answer) = oneshot::channel();
                let request = embedded(&key, request);
                asks.push(Ask { key: AskKey::next(), request: request.clone(), reply: Some(reply.into()) });
                let key = key.into_owned();
                answers.push(async move {
                    let answer = answer.await.ok();
                    (key, rounds::answer_of(&request, answer.as_ref()))
                });
            }
        }
        if !asks.is_empty() {
            emit.emit(Event::Asks(Box::new(Round { asks, resume: Resume::Live, source: None }))).await;
        }
    }
}

/// A request as it stands in an answer, as a message under its key.
pub(crate) fn embedded(key: &str, request: &[u8]) -> Message {
    let asked = json::member(request, "method").and_then(json::decode_string).unwrap_or_default();
    let params = json::member(request, "params").unwrap_or(b"{}");
    Message::request(&Id::from_text(key), &asked, params)
}

/// The end that a task has come to.
fn ended(result: &[u8]) -> Option<Event> {
    let id = Id::from_number(0);
    let status = json::member(result, "status").and_then(json::decode_string)?;
    let message = match status.as_ref() {
        "completed" => Message::result(&id, json::member(result, "result").unwrap_or(b"{}")),
        "failed" => error_of(json::member(result, "error").unwrap_or(b"{}")).to_message(Some(&id)),
        "cancelled" => RpcError::new(code::INTERNAL_ERROR, "the task was cancelled").to_message(Some(&id)),
        _ => return None,
    };
    Some(Event::Done(Reply { message: late(&message), shape: Shape::Marked }))
}

/// An answer that comes after the task was begun. That headers are refused means that nothing was done, so this answer
/// can't say it.
fn late(message: &Message) -> Message {
    if message.error_code() != code::HEADER_MISMATCH {
        return message.clone();
    }
    Edit::new(message).set(Field::ErrorCode, code::INTERNAL_ERROR.to_string()).into_message()
}

/// A JSON-RPC error object, read.
fn error_of(raw: &[u8]) -> RpcError {
    let code = json::member(raw, "code").and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    let message =
        json::member(raw, "message").and_then(json::decode_string).unwrap_or("the task failed".into());
    let error = RpcError::new(code.unwrap_or(code::INTERNAL_ERROR), message);
    match json::member(raw, "data") {
        Some(data) => error.with_data(Bytes::copy_from_slice(data)),
        None => error,
    }
}
