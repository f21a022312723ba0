//! The dialect of the backends that open with `initialize` (2024-11-05 to 2025-11-25).

use bytes::Bytes;
use drawbridge_core::call::{Ask, AskKey, Call, Event, Reply, Resume, Round, Shape};
use drawbridge_core::client::TASKS_EXTENSION;
use drawbridge_core::{Answers, Client, Description, Fault};
use drawbridge_wire::level::severity;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Kind, Message, ProtocolVersion, RpcError, code, json, method};
use smallvec::smallvec;
use tokio::sync::oneshot;

use crate::modern;
use crate::options::Options;

/// Reserved request metadata that only stateless servers read.
const FOREIGN_META: &str = "io.modelcontextprotocol/";

/// The request as this backend gets it: another id, another progress token, no foreign metadata.
pub(crate) fn outgoing(call: &Call, id: &Id) -> Bytes {
    let request = &call.request;
    let has_token = request.raw(Field::MetaProgressToken).is_some();
    let foreign = [
        Field::MetaProtocolVersion,
        Field::MetaClientCapabilities,
        Field::MetaClientInfo,
        Field::MetaLogLevel,
    ];
    // The engine has taken out what these were for.
    let edit = Edit::new(request).id(id).remove(Field::InputResponses).remove(Field::RequestState);
    let edit = if foreign.iter().any(|f| request.raw(*f).is_some()) {
        let drop = |key: &str| key == "progressToken" || key.starts_with(FOREIGN_META);
        let token = [("progressToken", &id.literal()[..])];
        edit.meta(drop, if has_token { &token } else { &[] })
    } else if has_token {
        edit.set(Field::MetaProgressToken, id.literal().clone())
    } else {
        edit
    };
    edit.finish().into_bytes()
}

/// The `initialize` request for `client`.
pub(crate) fn initialize(id: &Id, client: &Client) -> Message {
    let version = client.version.min(ProtocolVersion::LATEST_WITH_INITIALIZE);
    let version = json::encode_string(version.as_str());
    let capabilities = client.capabilities_towards(Answers::Live);
    let info = client.info.clone().unwrap_or_else(|| Bytes::from(drawbridge_core::endpoint::SERVER_INFO));
    let params = json::object([
        ("protocolVersion", version.as_bytes()),
        ("capabilities", &capabilities[..]),
        ("clientInfo", &info[..]),
    ]);
    Message::request(id, method::INITIALIZE, &params)
}

/// The notification that ends the handshake.
pub(crate) fn initialized() -> Message {
    Message::notification(method::INITIALIZED, b"{}")
}

/// Tells the backend that nobody waits for `id` any more.
pub(crate) fn cancelled(id: &Id) -> Message {
    let params =
        json::object([("requestId", &id.literal()[..]), ("reason", b"\"the client cancelled the call\"")]);
    Message::notification(method::CANCELLED, &params)
}

/// What a backend agreed to.
#[derive(Debug, Clone)]
pub(crate) struct Handshake {
    pub(crate) version: ProtocolVersion,
    pub(crate) description: std::sync::Arc<Description>,
}

/// Reads the answer to `initialize`.
pub(crate) fn handshake(answer: &Message, client: &Client, options: &Options) -> Result<Handshake, Fault> {
    if answer.kind() != Kind::Result {
        let why = answer.text(Field::ErrorMessage).unwrap_or_default().into_owned();
        return Err(options.bad_answer(format!("it refuses to initialize: {why}")));
    }
    let result = answer.raw(Field::Result).unwrap_or(b"{}");
    let version = json::member(result, "protocolVersion").and_then(json::decode_string).unwrap_or_default();
    let version = ProtocolVersion::parse(&version)
        .filter(|v| v.has_initialize())
        .ok_or_else(|| options.bad_answer(format!("it wants protocol version \"{version}\"")))?;
    let copy = |key| json::member(result, key).map(Bytes::copy_from_slice);
    let capabilities = copy("capabilities").unwrap_or_else(|| Bytes::from_static(b"{}"));
    let description = Description {
        server_info: copy("serverInfo").unwrap_or_else(|| Bytes::from_static(b"{}")),
        capabilities: towards(client, &capabilities),
        instructions: copy("instructions"),
        meta: copy("_meta"),
        cache: None,
    };
    Ok(Handshake { version, description: std::sync::Arc::new(description) })
}

/// What of a backend's capabilities works for `client`: tasks are told to a stateless one in the form of the extension.
fn towards(client: &Client, capabilities: &Bytes) -> Bytes {
    if client.answers == Answers::Live {
        return capabilities.clone();
    }
    let kept = json::filter_members(capabilities, |key| key != "tasks");
    if json::at(capabilities, &["tasks", "requests", "tools", "call"]).is_none() {
        return kept;
    }
    let extensions = json::member(&kept, "extensions").unwrap_or(b"{}");
    let extensions = json::replace_member(extensions, TASKS_EXTENSION, b"{}");
    json::replace_member(&kept, "extensions", &extensions)
}

/// Live asks of a backend, so that it can take them back.
#[derive(Debug, Default)]
pub(crate) struct OpenAsks(Vec<(Id, AskKey)>);

impl OpenAsks {
    fn add(&mut self, id: Id, key: AskKey) {
        // Answered asks are not taken out; the list of one stream stays short all the same.
        const KEEP: usize = 64;
        if self.0.len() == KEEP {
            self.0.remove(0);
        }
        self.0.push((id, key));
    }

    fn find(&self, literal: &Bytes) -> Option<AskKey> {
        let id = Id::from_literal(literal.clone())?.canonical();
        // An id that was used before means the last that was asked under it.
        self.0.iter().rev().find(|(i, _)| *i == id).map(|(_, key)| *key)
    }
}

/// Refuses a round that no call is known to have caused, and that nobody takes otherwise.
pub(crate) fn refuse_round(round: Round) {
    for ask in round.asks {
        if let (Some(reply), Some(id)) = (ask.reply, ask.request.id()) {
            let what =
                "the client can't be asked now: no call in flight is known to have caused this request";
            // The backend may have gone meanwhile.
            reply.send(RpcError::new(code::METHOD_NOT_FOUND, what).to_message(Some(&id)));
        }
    }
}

/// The request that sets a session's log level, if `call` wants messages below `current` and the backend has any.
pub(crate) fn set_level(
    call: &Call,
    current: &mut Option<usize>,
    handshake: &Handshake,
    id: &Id,
) -> Option<Message> {
    let level = call.request.text(Field::MetaLogLevel)?;
    let wanted = severity(&level)?;
    let enough = current.is_some_and(|current| current <= wanted);
    if enough || json::member(&handshake.description.capabilities, "logging").is_none() {
        return None;
    }
    *current = Some(wanted);
    let level = json::encode_string(&level);
    Some(Message::request(id, method::SET_LEVEL, &json::object([("level", level.as_bytes())])))
}

/// A message of the backend, understood.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The answer to the request with this id.
    Answer(Id, Reply),
    /// For the client.
    Event(Event),
    /// For the client; and when its answer is there, it goes to the backend under this id.
    Asked(Box<Round>, Id, oneshot::Receiver<Message>),
    /// A ping, with what to answer.
    Ping(Message),
    /// Nothing to do.
    Nothing,
}

/// Understands a message of the backend. `token` gives the client's own progress token for one that the
/// gateway made.
pub(crate) fn incoming(
    message: Message,
    asks: &mut OpenAsks,
    token: impl Fn(&Bytes) -> Option<Bytes>,
) -> Incoming {
    match message.kind() {
        Kind::Result | Kind::Error => match message.id() {
            Some(id) => Incoming::Answer(id, Reply { message, shape: Shape::Plain }),
            None => Incoming::Nothing,
        },
        Kind::Request => request(message, asks),
        Kind::Notification => match message.method().as_ref() {
            method::PROGRESS => {
                let own = message.slice(Field::ProgressToken).and_then(|raw| token(&raw));
                own.map_or(Incoming::Nothing, |own| {
                    Incoming::Event(Event::Notify(
                        Edit::new(&message).set(Field::ProgressToken, own).into_message(),
                    ))
                })
            }
            method::CANCELLED => {
                let key = message.slice(Field::RequestId).and_then(|raw| asks.find(&raw));
                key.map_or(Incoming::Nothing, |key| Incoming::Event(Event::Withdraw(key)))
            }
            _ => Incoming::Event(Event::Notify(message)),
        },
    }
}

fn request(message: Message, asks: &mut OpenAsks) -> Incoming {
    let Some(id) = message.id() else { return Incoming::Nothing };
    if message.method() == method::PING {
        return Incoming::Ping(Message::result(&id, b"{}"));
    }
    // It waits for its client, and its id with it, for as long as that takes.
    let message = message.detached();
    let Some(id) = message.id() else { return Incoming::Nothing };
    let key = AskKey::next();
    let (reply, answer) = oneshot::channel();
    asks.add(id.canonical(), key);
    let ask = Ask { key, request: message, reply: Some(reply.into()) };
    let round = Round { asks: smallvec![ask], resume: Resume::Live, source: None };
    Incoming::Asked(Box::new(round), id, answer)
}

/// The answer to `call` as an event. An error which says that the user has to open a URL first is a round of asks:
/// once the user has, the call is simply sent again (MCP 2025-11-25, elicitation § URL mode).
pub(crate) fn answered(call: &Call, reply: Reply) -> Event {
    if reply.message.error_code() != code::URL_ELICITATION_REQUIRED || !modern::may_ask(call) {
        return Event::Done(reply);
    }
    let elicitations =
        reply.message.raw(Field::ErrorData).and_then(|data| json::member(data, "elicitations"));
    let elicitations = elicitations.and_then(|raw| json::elements(raw).ok()).unwrap_or_default();
    let asks: smallvec::SmallVec<[Ask; 1]> = elicitations
        .iter()
        .zip(1..=MAX_URLS)
        .map(|(params, number)| {
            let key = Id::from_text(&format!("url-{number}"));
            let params = json::replace_member(params, "mode", b"\"url\"");
            let request = Message::request(&key, method::ELICITATION_CREATE, &params);
            Ask { key: AskKey::next(), request, reply: None }
        })
        .collect();
    if asks.is_empty() || !asks.iter().all(|ask| call.client.declares(&ask.request)) {
        return Event::Done(reply);
    }
    Event::Asks(Box::new(Round { asks, resume: Resume::State(None), source: Some(reply.message) }))
}

/// At most this many URLs of one error are passed on.
const MAX_URLS: usize = 32;

/// The client's answer as the backend gets it: under the backend's id, and an error if there is none.
pub(crate) async fn answer(id: &Id, answer: oneshot::Receiver<Message>) -> Bytes {
    match answer.await {
        Ok(message) => Edit::new(&message).id(id).finish().into_bytes(),
        Err(_) => RpcError::new(code::INTERNAL_ERROR, "the client gave no answer")
            .to_message(Some(id))
            .bytes()
            .clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_that_waits_keeps_nothing_of_the_buffer_that_it_came_in() {
        let text = br#"{"jsonrpc":"2.0","id":"ask","method":"elicitation/create","params":{}}"#;
        let buffer = Bytes::from([&text[..], &[b' '; 8192]].concat());
        let message = Message::parse(buffer.slice(..text.len())).unwrap();
        let mut asks = OpenAsks::default();
        let asked = incoming(message, &mut asks, |_| None);
        assert!(matches!(asked, Incoming::Asked(..)));
        assert!(buffer.is_unique());
        assert!(asks.find(&Bytes::from_static(b"\"ask\"")).is_some());
    }
}
