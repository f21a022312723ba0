//! Events of a call as messages to a stateless client.

use drawbridge_core::call::{Event, Reply, Resume, Round, Shape};
use drawbridge_core::endpoint::SERVER_INFO;
use drawbridge_core::rounds;
use drawbridge_wire::level::severity;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Kind, Message, Payload, RpcError, code, json, method};
use http::StatusCode;

use crate::record::{End, Record};

/// Methods whose results carry cache hints.
const CACHEABLE: [&str; 6] = [
    method::DISCOVER,
    method::TOOLS_LIST,
    method::PROMPTS_LIST,
    method::RESOURCES_LIST,
    method::RESOURCES_TEMPLATES_LIST,
    method::RESOURCES_READ,
];

/// What a client may listen to, and how it is told of it.
const CHANGES: [(&str, &str); 3] = [
    ("toolsListChanged", method::TOOLS_LIST_CHANGED),
    ("promptsListChanged", method::PROMPTS_LIST_CHANGED),
    ("resourcesListChanged", method::RESOURCES_LIST_CHANGED),
];

/// A message for the client.
pub(super) struct Out {
    pub(super) payload: Payload,
    /// The status, if it is the whole answer.
    pub(super) status: StatusCode,
    /// Nothing follows.
    pub(super) terminal: bool,
}

/// Writes the events of one call.
pub(super) struct Encoder {
    id: Id,
    /// The method, raw JSON.
    method: bytes::Bytes,
    is_listen: bool,
    /// What the client listens to, raw JSON.
    listens_to: bytes::Bytes,
    cacheable: bool,
    log_level: Option<usize>,
    /// What the client declares.
    capabilities: bytes::Bytes,
    pub(super) record: Record,
}

impl Encoder {
    pub(super) fn new(request: &Message, id: Id, record: Record) -> Self {
        let method = request.method();
        Self {
            id,
            record,
            method: request.slice(Field::Method).unwrap_or_default(),
            is_listen: method == method::LISTEN,
            listens_to: request.slice(Field::Notifications).unwrap_or_default(),
            cacheable: CACHEABLE.contains(&method.as_ref()),
            capabilities: request.slice(Field::MetaClientCapabilities).unwrap_or_default(),
            log_level: request.text(Field::MetaLogLevel).and_then(|level| severity(&level)),
        }
    }

    /// The event as a message; `None` if the client gets none of it.
    pub(super) fn encode(&mut self, event: Event) -> Option<Out> {
        let end = End::of(&event);
        self.record.hear(&event);
        let out = self.written(event);
        if let (Some(end), Some(out)) = (end, &out) {
            self.record.end(end, out.status);
        }
        out
    }

    fn written(&self, event: Event) -> Option<Out> {
        let out = |payload, terminal| Some(Out { payload, status: StatusCode::OK, terminal });
        match event {
            Event::Notify(message) => out(self.notification(&message)?, false),
            Event::Begun | Event::Paused(_) | Event::Withdraw(_) => None,
            Event::Asks(round) => match round.resume {
                Resume::Live => {
                    refuse(*round);
                    None
                }
                Resume::State(_) => out(self.input_required(&round), true),
            },
            Event::Done(reply) if reply.is_error() => Some(self.error(&reply)),
            Event::Done(reply) => out(self.result(&reply), true),
            Event::Fail(fault) => {
                let method = json::decode_string(&self.method).unwrap_or_default();
                tracing::warn!(
                    error.code = fault.code(), mcp.method = %method, rpc.id = ?String::from_utf8_lossy(self.id.literal()),
                    error.message = ?fault.to_string(), "call failed"
                );
                let error = fault.to_rpc_error();
                let status = status_of(error.code);
                let payload = Payload::from(error.to_message(Some(&self.id)).bytes().clone());
                Some(Out { payload, status, terminal: true })
            }
        }
    }

    /// The result that ends a listen in good order.
    pub(super) fn end_of_listen(&mut self) -> Payload {
        self.record.end(End::OK, StatusCode::OK);
        let meta = json::object([(Field::ResultSubscriptionId.key(), &self.id.literal()[..])]);
        let result = json::object([("resultType", &b"\"complete\""[..]), ("_meta", &meta[..])]);
        Payload::from(Message::result(&self.id, &result).bytes().clone())
    }

    /// That all lists may have changed whose changes the client listens to.
    pub(super) fn all_has_changed(&self) -> Vec<Payload> {
        let wanted = |key| json::member(&self.listens_to, key) == Some(b"true");
        let changed = CHANGES.iter().filter(|(key, _)| wanted(key));
        changed.filter_map(|(_, method)| self.notification(&Message::notification(method, b"{}"))).collect()
    }

    fn notification(&self, message: &Message) -> Option<Payload> {
        if self.is_listen {
            return Some(
                Edit::new(message).set(Field::MetaSubscriptionId, self.id.literal().clone()).finish(),
            );
        }
        let method = message.method();
        let relevant = match method.as_ref() {
            method::LOG_MESSAGE => {
                let level = message.text(Field::Level).and_then(|level| severity(&level));
                self.log_level.zip(level).is_some_and(|(wanted, level)| level >= wanted)
            }
            // Changes belong to listens.
            method::TOOLS_LIST_CHANGED
            | method::PROMPTS_LIST_CHANGED
            | method::RESOURCES_LIST_CHANGED
            | method::RESOURCES_UPDATED
            // Of the other era: the client comes back when its user is done.
            | method::ELICITATION_COMPLETE
            | method::TASKS_STATUS => false,
            _ => true,
        };
        relevant.then(|| Payload::from(message.bytes().clone()))
    }

    fn input_required(&self, round: &Round) -> Payload {
        match &round.source {
            Some(source) if source.kind() == Kind::Result => Edit::new(source).id(&self.id).finish(),
            _ => {
                let asks: Vec<_> = round
                    .asks
                    .iter()
                    .map(|ask| {
                        let key = ask.request.id().and_then(|id| id.text().map(std::borrow::Cow::into_owned));
                        (key.unwrap_or_default(), rounds::embedded(&ask.request))
                    })
                    .collect();
                let asks = json::object(asks.iter().map(|(key, ask)| (key.as_str(), &ask[..])));
                let mut members =
                    vec![("resultType", &b"\"input_required\""[..]), ("inputRequests", &asks[..])];
                if let Resume::State(Some(state)) = &round.resume {
                    members.push(("requestState", state));
                }
                Payload::from(Message::result(&self.id, &json::object(members)).bytes().clone())
            }
        }
    }

    fn result(&self, reply: &Reply) -> Payload {
        let message = &reply.message;
        let mut edit = Edit::new(message).id(&self.id);
        if message.kind() == Kind::Result
            && message.raw(Field::Result).is_some_and(|raw| raw.starts_with(b"{"))
        {
            if self.is_listen && message.raw(Field::ResultSubscriptionId).is_some() {
                edit = edit.set(Field::ResultSubscriptionId, self.id.literal().clone());
            } else if !self.is_listen {
                edit = edit.set_missing(Field::ResultServerInfo, SERVER_INFO);
            }
            if reply.shape.is_plain() {
                edit = edit.set(Field::ResultType, "\"complete\"");
            } else {
                edit = edit.set_missing(Field::ResultType, "\"complete\"");
            }
            edit = match reply.shape {
                Shape::Lasting(left) => {
                    edit.set(Field::TtlMs, left.as_millis().to_string()).set(Field::CacheScope, "\"private\"")
                }
                Shape::Aged(left) => edit
                    .set(Field::TtlMs, left.as_millis().to_string())
                    .set_missing(Field::CacheScope, "\"private\""),
                _ if self.cacheable => {
                    edit.set_missing(Field::TtlMs, "0").set_missing(Field::CacheScope, "\"private\"")
                }
                _ => edit,
            };
        }
        edit.finish()
    }

    /// Whether the client did not declare what an error says is missing; else the error is about the gateway's hop.
    fn lacks_what(&self, error: &Message) -> bool {
        let needed = error.raw(Field::ErrorData).and_then(|data| json::member(data, "requiredCapabilities"));
        let needed = needed.and_then(|raw| json::members(raw).ok()).unwrap_or_default();
        let has = |declared: &[u8], key: &str, parts: &[u8]| {
            json::member(declared, key).is_some_and(|own| {
                let parts = json::members(parts).unwrap_or_default();
                parts.iter().all(|(part, _)| json::member(own, part).is_some())
            })
        };
        needed.iter().any(|(key, parts)| !has(&self.capabilities, key, parts))
    }

    /// Errors of the legacy era have other codes here.
    fn error(&self, reply: &Reply) -> Out {
        let message = &reply.message;
        let code = match message.error_code() {
            code::RESOURCE_NOT_FOUND => code::INVALID_PARAMS,
            code::URL_ELICITATION_REQUIRED => code::INTERNAL_ERROR,
            code::MISSING_CLIENT_CAPABILITY if !self.lacks_what(message) => code::INTERNAL_ERROR,
            code if reply.shape.is_plain() && (-32099..=-32000).contains(&code) => code::INTERNAL_ERROR,
            code if is_undefined(code) => code::INTERNAL_ERROR,
            code => code,
        };
        let edit = Edit::new(message).id(&self.id);
        let edit =
            if code == message.error_code() { edit } else { edit.set(Field::ErrorCode, code.to_string()) };
        Out { payload: edit.finish(), status: status_of(code), terminal: true }
    }
}

/// Whether a code is one that only the specification may give, and has not given.
fn is_undefined(error: i64) -> bool {
    let given = [code::HEADER_MISMATCH, code::MISSING_CLIENT_CAPABILITY, code::UNSUPPORTED_PROTOCOL_VERSION];
    (-32099..=-32020).contains(&error) && !given.contains(&error)
}

/// The status of an error that is the whole answer.
fn status_of(error: i64) -> StatusCode {
    match error {
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY | code::UNSUPPORTED_PROTOCOL_VERSION => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}

/// Answers live asks for a client that has no way to.
fn refuse(round: Round) {
    for ask in round.asks {
        let error = RpcError::new(code::METHOD_NOT_FOUND, "this client can't be asked");
        if let (Some(reply), Some(id)) = (ask.reply, ask.request.id()) {
            // The backend may have gone meanwhile.
            reply.send(error.to_message(Some(&id)));
        }
    }
}
