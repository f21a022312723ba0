//! Rounds of asks: a backend and a client that answer in different ways are brought together.
//!
//! A backend asks live (its call goes on once it has the answers) or by state (the call ends; sending it again with
//! the answers continues it). A client answers live or by retry. Where the two differ, the engine turns one into the
//! other, whoever the two are:
//!
//! - [`live`]: a round by state becomes live asks; their answers become the next attempt at the same call.
//! - [`Rounds::by_retry`]: live asks become a round by state; the call is parked until the client comes back, and
//!   goes on with the answers. The backend sees one call.
//!
//! A state that the client carries is sealed ([`state`]): it belongs to one principal, one call with its arguments, and
//! expires. A parked call can be claimed once.

#[cfg(test)]
mod model;
mod parked;
mod state;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Kind, Message, RpcError, code, json, method};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::call::{
    Ask, AskKey, Call, Emitter, Event, Events, Reply, Resume, Round, Shape, forward, generate,
};
use crate::endpoint::{Conversing, Endpoint};
use crate::fault::Fault;

pub use parked::{RETRY, Rounds, retry_of};

/// Bounds of calls that ask.
#[derive(Debug, Clone, Copy)]
pub struct RoundOptions {
    /// How long a client may take to answer, and how long a parked call waits for it.
    pub answer_timeout: Duration,
    /// How often one call may ask.
    pub max_rounds: usize,
    /// Calls that wait for their clients at once.
    pub max_parked: usize,
}

impl Default for RoundOptions {
    /// The defaults of the configuration reference.
    fn default() -> Self {
        Self { answer_timeout: Duration::from_secs(600), max_rounds: 16, max_parked: 10_000 }
    }
}

/// Methods whose calls may ask a client that answers by retry (MCP 2026-07-28, multi round-trip requests).
const ASKING: [&str; 3] = [method::TOOLS_CALL, method::PROMPTS_GET, method::RESOURCES_READ];

fn may_ask(call: &Call) -> bool {
    ASKING.contains(&call.request.method().as_ref())
}

/// The first pause before a call is sent again that only asked for that; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Starts a call of a client that answers live.
pub(crate) fn live(endpoint: &Arc<Endpoint>, who: &Arc<dyn Conversing>, call: Call) -> Events {
    if !may_ask(&call) {
        return endpoint.route(who, call);
    }
    let (endpoint, who) = (endpoint.clone(), who.clone());
    let first = endpoint.route(&who, call.clone());
    generate(|emit| async move { run_live(&emit, &endpoint, &who, &call, first).await })
}

async fn run_live(
    emit: &Emitter,
    endpoint: &Arc<Endpoint>,
    who: &Arc<dyn Conversing>,
    call: &Call,
    first: Events,
) -> Event {
    let options = endpoint.rounds().options();
    let mut events = first;
    let mut pause = FIRST_PAUSE;
    for asked in 0.. {
        let last =
            forward(emit, std::mem::replace(&mut events, Box::pin(futures_util::stream::empty()))).await;
        let round = match last {
            Some(Event::Asks(round)) => *round,
            Some(event) => return event,
            None => return Event::Fail(lost(endpoint)),
        };
        // A round that came as an error is one that this client knows what to do about.
        if let Some(error) = round.source.as_ref().filter(|source| source.kind() == Kind::Error) {
            return Event::Done(Reply { message: error.clone(), shape: Shape::Plain });
        }
        let Resume::State(state) = round.resume else { return Event::Fail(lost(endpoint)) };
        if asked == options.max_rounds {
            break;
        }
        let answers = if round.asks.is_empty() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
            None
        } else {
            // Boxed, as all that only calls need which ask: most do not.
            match Box::pin(ask(emit, round.asks, options.answer_timeout)).await {
                Ok(answers) => Some(answers),
                Err(fault) => return Event::Fail(fault),
            }
        };
        let request = retry(&call.request, answers.as_ref(), state);
        events = endpoint.route(who, Call { request, ..call.clone() });
    }
    Event::Fail(Fault::BadAnswer {
        backend: endpoint.backend_names(),
        detail: format!("it asks more than {} times (limits.max_rounds)", options.max_rounds),
    })
}

fn lost(endpoint: &Endpoint) -> Fault {
    Fault::OutcomeUnknown { backend: endpoint.backend_names(), detail: "no answer".to_owned() }
}

/// The same request with the answers of a round and the state that came with it.
fn retry(request: &Message, answers: Option<&Bytes>, state: Option<Bytes>) -> Message {
    let edit = Edit::new(request);
    let edit = match answers {
        Some(answers) => edit.set(Field::InputResponses, answers.clone()),
        None => edit.remove(Field::InputResponses),
    };
    match state {
        Some(state) => edit.set(Field::RequestState, state),
        None => edit.remove(Field::RequestState),
    }
    .into_message()
}

/// Asks the client live and waits for all answers; the `inputResponses` that they make.
async fn ask(emit: &Emitter, asks: SmallVec<[Ask; 1]>, limit: Duration) -> Result<Bytes, Fault> {
    let mut waiting = Vec::with_capacity(asks.len());
    let mut live = SmallVec::new();
    for ask in asks {
        let (reply, answer) = oneshot::channel();
        waiting.push((ask.key, ask.request.clone(), answer));
        live.push(Ask { reply: Some(reply.into()), ..ask });
    }
    emit.emit(Event::Asks(Box::new(Round { asks: live, resume: Resume::Live, source: None }))).await;
    let until = tokio::time::Instant::now() + limit;
    let mut answers = Vec::with_capacity(waiting.len());
    let mut waiting = waiting.into_iter();
    let mut failed = None;
    for (key, request, answer) in waiting.by_ref() {
        let answered = match tokio::time::timeout_at(until, answer).await {
            // Dropped: the client is not there to be asked.
            Ok(answered) => answer_of(&request, answered.ok().as_ref()),
            Err(_late) => {
                emit.emit(Event::Withdraw(key)).await;
                Err(Fault::NoAnswer { asked: request.method().into_owned() })
            }
        };
        match answered {
            Ok(result) => answers.push((key_of(&request), result)),
            Err(fault) => {
                failed = Some(fault);
                break;
            }
        }
    }
    let Some(fault) = failed else {
        return Ok(json::object(answers.iter().map(|(key, result)| (key.as_str(), &result[..]))));
    };
    for (key, ..) in waiting {
        emit.emit(Event::Withdraw(key)).await;
    }
    Err(fault)
}

/// The key of an ask in its round.
fn key_of(ask: &Message) -> String {
    ask.id().and_then(|id| id.text().map(std::borrow::Cow::into_owned)).unwrap_or_default()
}

/// The result in a client's answer. An elicitation that fails counts as one that the user closed; where there is no
/// such result, the call can't go on.
pub fn answer_of(ask: &Message, answer: Option<&Message>) -> Result<Bytes, Fault> {
    if let Some(result) = answer.and_then(|answer| answer.slice(Field::Result)) {
        return Ok(result);
    }
    let asked = ask.method();
    if asked == method::ELICITATION_CREATE {
        return Ok(Bytes::from_static(br#"{"action":"cancel"}"#));
    }
    let Some(error) = answer else { return Err(Fault::NoAnswer { asked: asked.into_owned() }) };
    let said = error.text(Field::ErrorMessage).unwrap_or_default().into_owned();
    Err(Fault::ClientRefused { asked: asked.into_owned(), said })
}

/// Whether `result` is an answer to `ask` in its outer form. What is in a form or a message is for the backend to judge.
pub fn is_answer(ask: &Message, result: &[u8]) -> bool {
    if !result.starts_with(b"{") {
        return false;
    }
    let member = |key| json::member(result, key);
    match ask.method().as_ref() {
        method::ELICITATION_CREATE => {
            let action = member("action").and_then(json::decode_string);
            matches!(action.as_deref(), Some("accept" | "decline" | "cancel"))
                && member("content").is_none_or(|content| content.starts_with(b"{") || content == b"null")
        }
        method::SAMPLING_CREATE_MESSAGE => {
            member("role").is_some_and(|role| role.starts_with(b"\""))
                && member("content")
                    .is_some_and(|content| content.starts_with(b"{") || content.starts_with(b"["))
        }
        method::ROOTS_LIST => member("roots").is_some_and(|roots| roots.starts_with(b"[")),
        _ => true,
    }
}

/// Answers a live ask that will have no answer: as a user would who closes the form, or by an error.
fn give_up(ask: Ask, why: &str) {
    let Some((reply, id)) = ask.reply.zip(ask.request.id()) else { return };
    let answer = match ask.request.method().as_ref() {
        method::ELICITATION_CREATE => Message::result(&id, br#"{"action":"cancel"}"#),
        method::SAMPLING_CREATE_MESSAGE => RpcError::new(code::REJECTED, why).to_message(Some(&id)),
        _ => RpcError::new(code::INTERNAL_ERROR, why).to_message(Some(&id)),
    };
    // The call may have ended meanwhile.
    reply.send(answer);
}

/// A request as it stands in a result that asks, without what only requests of their own have.
pub fn embedded(ask: &Message) -> Bytes {
    let method = json::encode_string(&ask.method());
    let params = ask.raw(Field::Params).map(|params| match ask.method().as_ref() {
        // The key of the ask tells it apart.
        method::ELICITATION_CREATE => json::filter_members(params, |key| key != "elicitationId"),
        _ => Bytes::copy_from_slice(params),
    });
    let members = [("method", Some(method.as_bytes())), ("params", params.as_deref())];
    json::object(members.into_iter().filter_map(|(key, value)| Some((key, value?))))
}

/// Answers a live ask that the client did not say it can answer.
pub fn refuse(ask: Ask) {
    let Some((reply, id)) = ask.reply.zip(ask.request.id()) else { return };
    let what = format!("the client does not offer {}", ask.request.method());
    reply.send(RpcError::new(code::METHOD_NOT_FOUND, what).to_message(Some(&id)));
}

/// A live ask that the client knows by a key of its round.
struct Pending {
    key: String,
    ask: Ask,
}

impl Pending {
    fn withdrawn_by(&self, key: AskKey) -> bool {
        self.ask.key == key
    }

    /// The ask as a client that answers by retry gets it.
    fn shown(&self) -> Ask {
        let request = Edit::new(&self.ask.request).id(&Id::from_text(&self.key)).into_message();
        Ask { key: self.ask.key, request, reply: None }
    }

    /// Gives the backend the result that the client sent.
    fn answer(self, result: &[u8]) {
        if let Some((reply, id)) = self.ask.reply.zip(self.ask.request.id()) {
            reply.send(Message::result(&id, result));
        }
    }
}
