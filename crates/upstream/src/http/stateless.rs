//! Calls to a stateless backend: a POST each, and nothing is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use drawbridge_core::call::{Call, Emitter, Event, generate};
use drawbridge_core::fault::Deadline;
use drawbridge_core::{Client, Description, Fault};
use drawbridge_wire::{Id, Kind, Message, code, method};
use http::{HeaderName, HeaderValue, StatusCode};

use super::era;
use super::shared::{Shared, trace_headers};
use crate::answer::{self, Answer, EventStream};
use crate::changes::listen::{self, Caller};
use crate::modern;

/// Why a call has no terminal event.
pub(super) enum Stop {
    /// The backend does not speak this dialect (any more); nothing was executed.
    NotModern,
    /// Something failed.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn next_id() -> Id {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Id::from_number(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Asks the backend what it is; `None` if it does not speak this dialect.
pub(super) async fn discover(shared: &Shared, client: &Client) -> Result<Option<Description>, Fault> {
    let request = modern::discover(&next_id(), client);
    let response = shared.post(&client.principal, &era::headers(&request), request.bytes().clone()).await?;
    let message = match answer::read(response, &shared.options).await? {
        Answer::Message(_, message) => message,
        Answer::Stream(mut stream) => loop {
            match stream.next_message(&shared.options).await? {
                Some(message) if message.kind() == Kind::Notification => {}
                Some(message) => break message,
                None => return Err(shared.options.outcome_unknown("the stream ended")),
            }
        },
        Answer::Accepted | Answer::Other(_) => return Ok(None),
    };
    Ok(modern::description(&message, client))
}

/// Starts calls that are not those of one client.
pub(super) fn caller(shared: &Arc<Shared>) -> Caller {
    let shared = shared.clone();
    Arc::new(move |call| {
        let shared = shared.clone();
        generate(|emit| async move {
            match run(&shared, &emit, &call).await {
                Ok(event) => event,
                Err(Stop::Fault(fault)) => Event::Fail(fault),
                Err(Stop::NotModern) => listen::not_stateless(),
            }
        })
    })
}

/// Runs a call to its terminal event.
pub(super) async fn run(shared: &Shared, emit: &Emitter, call: &Call) -> Result<Event, Stop> {
    if call.request.method() == method::LISTEN {
        return exchange(shared, emit, call).await;
    }
    let limit = shared.options.timeout;
    let ran = tokio::time::timeout(limit, exchange(shared, emit, call)).await;
    ran.unwrap_or_else(|_| Err(shared.options.late(Deadline::Total).into()))
}

/// Sends a call and follows its answer.
async fn exchange(shared: &Shared, emit: &Emitter, call: &Call) -> Result<Event, Stop> {
    let id = next_id();
    let mut headers = era::headers(&call.request);
    headers.extend(call.params_headers.iter().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
    }));
    headers.extend(trace_headers(call));
    let text = modern::outgoing(&call.request, &id, &call.client, None);
    let response = shared.post(&call.client.principal, &headers, text).await?;
    match answer::read(response, &shared.options).await? {
        Answer::Message(status, message) if is_foreign(status, &message) => Err(Stop::NotModern),
        Answer::Message(_, message) => terminal(shared, message, &id),
        Answer::Stream(stream) => {
            // A listen is meant to be quiet and to last.
            let is_listen = call.request.method() == method::LISTEN;
            let stream = if is_listen { stream.patient() } else { *stream };
            follow(shared, emit, stream, &id).await
        }
        Answer::Accepted => Err(shared.options.bad_answer("it accepts a request and answers nothing").into()),
        Answer::Other(StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => {
            Err(Stop::NotModern)
        }
        // The call may have been executed all the same, as where a proxy lost patience.
        Answer::Other(status) => Err(shared.options.bad_answer(format!("HTTP {status}")).into()),
    }
}

/// Whether a refusal is that of a server which waits for a handshake.
fn is_foreign(status: StatusCode, message: &Message) -> bool {
    let session_wanted = message.kind() == Kind::Error
        && !(-32700..=-32601).contains(&message.error_code())
        && !modern::is_modern_error(message);
    let version_lost = message.error_code() == code::UNSUPPORTED_PROTOCOL_VERSION;
    (status == StatusCode::BAD_REQUEST || status == StatusCode::NOT_FOUND) && session_wanted || version_lost
}

fn terminal(shared: &Shared, message: Message, id: &Id) -> Result<Event, Stop> {
    if !answer::is_for(&message, id) {
        return Err(shared.options.bad_answer("its answer is not one to the request that it got").into());
    }
    modern::incoming(message, shared.options.name.as_str())
        .filter(Event::is_terminal)
        .ok_or_else(|| shared.options.bad_answer("its answer is neither a result nor an error").into())
}

async fn follow(shared: &Shared, emit: &Emitter, mut stream: EventStream, id: &Id) -> Result<Event, Stop> {
    let options = &shared.options;
    while let Some(message) = stream.next_message(options).await? {
        let is_answer = matches!(message.kind(), Kind::Result | Kind::Error);
        if is_answer && !answer::is_for(&message, id) {
            continue;
        }
        match modern::incoming(message, options.name.as_str()) {
            Some(event) if event.is_terminal() => return Ok(event),
            Some(event) => emit.emit(event).await,
            None => {
                tracing::warn!(backend.name = %options.name, "a stateless backend sent a request, which it must not");
            }
        }
    }
    Err(options.outcome_unknown("the stream ended without an answer").into())
}
