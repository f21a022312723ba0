//! The dialect of stateless backends (2026-07-28): each request carries version, capabilities and client.

use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::call::{Ask, AskKey, Call, Event, Reply, Resume, Round, Shape};
use drawbridge_core::client::TASKS_EXTENSION;
use drawbridge_core::{Answers, Client, Description, Fault};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Kind, Message, ProtocolVersion, RpcError, code, header, json, method};

use crate::options::Options;
use crate::tasks;

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";
const LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// The version this dialect speaks.
pub(crate) const VERSION: ProtocolVersion = ProtocolVersion::V2026_07_28;

/// The request as this backend gets it: another id, and the metadata of `client` where it is not there yet.
/// `token` replaces the progress token.
pub(crate) fn outgoing(request: &Message, id: &Id, client: &Client, token: Option<&Bytes>) -> Bytes {
    let capabilities = client.capabilities_towards(Answers::ByRetry);
    let edit = Edit::new(request).id(id);
    let has_token = request.raw(Field::MetaProgressToken).is_some();
    let ready = request.text(Field::MetaProtocolVersion).as_deref() == Some(VERSION.as_str())
        && request.raw(Field::MetaClientCapabilities) == Some(&capabilities[..]);
    if ready {
        let edit = match token.filter(|_| has_token) {
            Some(token) => edit.set(Field::MetaProgressToken, token.clone()),
            None => edit,
        };
        return edit.finish().into_bytes();
    }
    let version = json::encode_string(VERSION.as_str());
    let own_token = token.cloned().or_else(|| request.slice(Field::MetaProgressToken));
    let members = [
        (VERSION_KEY, Some(Bytes::from(version))),
        (CAPABILITIES_KEY, Some(capabilities)),
        (CLIENT_KEY, client.info.clone()),
        (LEVEL_KEY, request.slice(Field::MetaLogLevel)),
        ("progressToken", own_token.filter(|_| has_token)),
    ];
    let add: Vec<_> = members.iter().filter_map(|(key, value)| Some((*key, value.as_deref()?))).collect();
    let drop = |key: &str| members.iter().any(|(k, _)| *k == key);
    edit.meta(drop, &add).finish().into_bytes()
}

/// The headers that mirror the body of `request`.
pub(crate) fn headers(request: &Message) -> Vec<(&'static str, String)> {
    let method = request.method();
    let name = header::name_field(&method).and_then(|field| request.text(field));
    let mut headers = vec![
        (header::PROTOCOL_VERSION, VERSION.as_str().to_owned()),
        (header::METHOD, header::encode(&method).into_owned()),
    ];
    headers.extend(name.map(|name| (header::NAME, header::encode(&name).into_owned())));
    headers
}

/// The `server/discover` request for `client`.
pub(crate) fn discover(id: &Id, client: &Client) -> Message {
    let bare = Message::request(id, method::DISCOVER, b"{}");
    let text = outgoing(&bare, id, client, None);
    Message::parse(text).unwrap_or(bare)
}

/// Whether the answer to `server/discover` is that of a server that speaks this dialect.
pub(crate) fn speaks(answer: &Message) -> bool {
    supports(answer, |version| version == VERSION) || is_modern_error(answer)
}

fn supports(answer: &Message, wanted: impl Fn(ProtocolVersion) -> bool) -> bool {
    let versions = answer.raw(Field::Result).and_then(|result| json::member(result, "supportedVersions"));
    let versions = versions.and_then(|raw| json::elements(raw).ok()).unwrap_or_default();
    versions
        .iter()
        .any(|v| json::decode_string(v).and_then(|v| ProtocolVersion::parse(&v)).is_some_and(&wanted))
}

/// Longer than anybody keeps anything.
const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads the result of `server/discover`; `None` if it is none of a server that speaks this version.
pub(crate) fn description(answer: &Message, client: &Client) -> Option<Description> {
    let result = answer.raw(Field::Result)?;
    if !supports(answer, |version| version == VERSION) {
        return None;
    }
    let copy = |key| json::member(result, key).map(Bytes::copy_from_slice);
    let capabilities = copy("capabilities").unwrap_or_else(|| Bytes::from_static(b"{}"));
    let ttl = answer.raw(Field::TtlMs).and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
    let scope = answer.slice(Field::CacheScope).unwrap_or_else(|| Bytes::from_static(b"\"private\""));
    let server_info = answer
        .slice(Field::ResultServerInfo)
        .or_else(|| copy("serverInfo"))
        .unwrap_or_else(|| Bytes::from(drawbridge_core::endpoint::SERVER_INFO));
    Some(Description {
        server_info,
        capabilities: towards(client, &capabilities),
        instructions: copy("instructions"),
        meta: answer.slice(Field::ResultMeta),
        cache: ttl.map(|ms| (Instant::now() + Duration::from_millis(ms).min(MAX_TTL), scope)),
    })
}

/// What of a backend's capabilities works for `client`: tasks are agreed per request, by those who know the extension.
fn towards(client: &Client, capabilities: &Bytes) -> Bytes {
    let extensions = json::member(capabilities, "extensions").filter(|_| client.answers == Answers::Live);
    match extensions.map(|raw| json::filter_members(raw, |key| key != TASKS_EXTENSION)) {
        Some(kept) if kept.len() > b"{}".len() => json::replace_member(capabilities, "extensions", &kept),
        Some(_) => json::filter_members(capabilities, |key| key != "extensions"),
        None => capabilities.clone(),
    }
}

/// Whether an error says that the backend speaks this dialect.
pub(crate) fn is_modern_error(error: &Message) -> bool {
    matches!(
        error.error_code(),
        code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY | code::UNSUPPORTED_PROTOCOL_VERSION
    )
}

/// A message of the backend, as an event. `None` for what it must not send or nobody waits for.
pub(crate) fn incoming(message: Message, backend: &str) -> Option<Event> {
    match message.kind() {
        Kind::Notification => Some(Event::Notify(message)),
        Kind::Result if message.text(Field::ResultType).as_deref() == Some("input_required") => {
            Some(Event::Asks(Box::new(round(message))))
        }
        Kind::Result => Some(Event::Done(Reply { message, shape: Shape::Marked })),
        Kind::Error => Some(error(message, backend)),
        // Servers of this version must not send requests.
        Kind::Request => None,
    }
}

/// Errors about the hop between gateway and backend stay there. (Whose headers are wrong is for the engine to find out.)
fn error(message: Message, backend: &str) -> Event {
    match message.error_code() {
        code::UNSUPPORTED_PROTOCOL_VERSION => Event::Fail(Fault::BadAnswer {
            backend: backend.to_owned(),
            detail: message.text(Field::ErrorMessage).unwrap_or_default().into_owned(),
        }),
        _ => Event::Done(Reply { message, shape: Shape::Marked }),
    }
}

fn round(message: Message) -> Round {
    let requests =
        message.raw(Field::InputRequests).and_then(|raw| json::members(raw).ok()).unwrap_or_default();
    let asks = requests.iter().map(|(key, request)| Ask {
        key: AskKey::next(),
        request: tasks::embedded(key, request),
        reply: None,
    });
    let asks = asks.collect();
    let state = message.slice(Field::ResultState);
    Round { asks, resume: Resume::State(state), source: Some(message) }
}

/// Methods that may be answered by asking.
const ASKING: [&str; 3] = [method::TOOLS_CALL, method::PROMPTS_GET, method::RESOURCES_READ];

/// The same event, or a fault in its place if it asks where it must not, or for what the client did not declare
/// (MCP 2026-07-28, multi round-trip requests).
pub(crate) fn permitted(call: &Call, event: Event, options: &Options) -> Event {
    let Event::Asks(round) = &event else { return event };
    if round.resume == Resume::Live {
        return event;
    }
    if !may_ask(call) {
        let method = call.request.method();
        return Event::Fail(options.bad_answer(format!("it asks for input in answer to {method}")));
    }
    match round.asks.iter().find(|ask| !call.client.declares(&ask.request)) {
        Some(ask) => {
            let asked = ask.request.method();
            Event::Fail(options.bad_answer(format!("it sends {asked}, which the client did not declare")))
        }
        None => event,
    }
}

/// Whether the answer to a call may be that its client is asked something.
pub(crate) fn may_ask(call: &Call) -> bool {
    ASKING.contains(&call.request.method().as_ref())
}

/// The answer of a backend that does not speak this dialect.
pub(crate) fn not_spoken() -> Reply {
    let what = format!("it does not speak {}", VERSION.as_str());
    let error = RpcError::new(code::UNSUPPORTED_PROTOCOL_VERSION, what);
    Reply { message: error.to_message(Some(&Id::from_number(0))), shape: Shape::Marked }
}

/// The result of a listen that is over.
pub(crate) fn end_of_listen() -> Reply {
    let meta = json::object([(Field::ResultSubscriptionId.key(), &b"\"\""[..])]);
    let result = json::object([("resultType", &b"\"complete\""[..]), ("_meta", &meta[..])]);
    Reply { message: Message::result(&Id::from_number(0), &result), shape: Shape::Marked }
}

/// The acknowledgement of a listen of which this is honoured.
pub(crate) fn acknowledged(honoured: &[u8]) -> Event {
    let params = json::object([("notifications", honoured)]);
    Event::Notify(Message::notification(method::SUBSCRIPTIONS_ACKNOWLEDGED, &params))
}
