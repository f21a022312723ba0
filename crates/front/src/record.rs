//! What becomes of each request of a client: counted, one line of the log, and an entry of the audit trail.
//!
//! A [`Record`] is made when a request was read and ends with its answer, or when nobody waits for that any more.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use drawbridge_core::audit::{CallRecord, Part, Payload, Words};
use drawbridge_core::call::Event;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::metrics::{Era, Method, Outcome};
use drawbridge_core::trace::{self, Trace};
use drawbridge_core::{BackendName, Endpoint, request};
use drawbridge_wire::message::{Field, Incoming};
use drawbridge_wire::{Kind, Message, ProtocolVersion, json, method};
use http::StatusCode;

use crate::limits::TooOften;
use crate::reply::Refusal;

/// The target of the line that each call has in the log.
const TARGET: &str = "drawbridge::call";
/// Names that clients make up are logged up to this many bytes.
const MAX_NAME_BYTES: usize = 128;
/// And those of resources are noted up to this many.
const MAX_URI_BYTES: usize = 256;

/// One request of a client that is being answered.
pub(crate) struct Record {
    endpoint: Arc<Endpoint>,
    era: Era,
    method: Method,
    begun: Instant,
    /// What is traced of it, if something is.
    span: Option<trace::Open>,
    trace: Option<Arc<Trace>>,
    /// What only the log and the audit trail need; `None` if neither wants it.
    said: Option<Said>,
    /// What is noted of the payloads, if they are wanted.
    payload: Option<Box<Payload>>,
    /// The answer is a stream.
    streamed: bool,
    has_ended: bool,
}

struct Said {
    is_logged: bool,
    /// A stream may be dropped where nobody knows whose it was.
    request: Option<request::Id>,
    /// Whom it is from.
    caller: Option<Arc<request::Caller>>,
    /// Raw JSON.
    method: Bytes,
    /// The name or, if it has none, the URI of what is called, raw JSON.
    name: Option<Bytes>,
    names_something: bool,
}

/// How a request ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    outcome: Outcome,
    /// The code, if it ends with an error.
    code: Option<i64>,
    /// The code of the fault behind the error, if there is one.
    fault: Option<&'static str>,
}

impl End {
    /// A result.
    pub(crate) const OK: Self = Self { outcome: Outcome::Ok, code: None, fault: None };

    /// An error.
    pub(crate) fn error(outcome: Outcome, code: i64) -> Self {
        Self { outcome, code: Some(code), fault: None }
    }

    /// The same, with the code of the fault behind it.
    pub(crate) fn because_of(self, fault: Option<&'static str>) -> Self {
        Self { fault, ..self }
    }

    /// The end of a call, if `event` is one.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        let (code, fault) = trace::codes(event);
        Some(Self { outcome: Outcome::of(event)?, code, fault })
    }
}

impl Record {
    /// A request that was just read.
    pub(crate) fn begin(endpoint: &Arc<Endpoint>, era: Era, message: &Message) -> Self {
        let is_logged = tracing::enabled!(target: TARGET, tracing::Level::INFO);
        let audit = endpoint.audit();
        let said = (is_logged || audit.is_some()).then(|| {
            let name = message.slice(Field::Name);
            Said {
                is_logged,
                request: request::current(),
                caller: request::caller(),
                method: message.slice(Field::Method).unwrap_or_default(),
                names_something: name.is_some(),
                name: name.or_else(|| message.slice(Field::Uri)),
            }
        });
        let payload = audit.and_then(|audit| audit.payload_limit()).map(|limit| {
            let params = message.raw(Field::Params).map(|raw| Part::of(raw, limit));
            Box::new(Payload { request: params, answer: None })
        });
        let (span, trace) =
            request::incoming().map_or((None, None), |incoming| trace::begin(&incoming, message));
        let mut record = Self {
            span,
            trace,
            endpoint: endpoint.clone(),
            era,
            method: Method::of(&message.method()),
            begun: Instant::now(),
            said,
            payload,
            streamed: false,
            has_ended: false,
        };
        if let Some(version) = message.text(Field::MetaProtocolVersion) {
            record.note("mcp.protocol.version", || shortened(&version).to_owned());
        }
        record
    }

    /// What goes on with the call that the request is.
    pub(crate) fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.clone()
    }

    /// The request is one of a session.
    pub(crate) fn of_session(&mut self, key: &SessionKey, version: ProtocolVersion) {
        self.note("mcp.session.id", || key.to_string());
        self.note("mcp.protocol.version", || version.as_str().to_owned());
    }

    fn note(&mut self, key: &'static str, value: impl FnOnce() -> String) {
        if let Some(span) = &mut self.span {
            span.set(key, value());
        }
    }

    /// Takes note of what an event says, if it ends the call and what is said is wanted.
    pub(crate) fn hear(&mut self, event: &Event) {
        let limit = self.endpoint.audit().and_then(|audit| audit.payload_limit());
        let (Some(payload), Some(limit), Event::Done(reply)) = (&mut self.payload, limit, event) else {
            return;
        };
        let answer = if reply.is_error() { Field::Error } else { Field::Result };
        payload.answer = reply.message.raw(answer).map(|raw| Part::of(raw, limit));
    }

    /// The answer comes, or would have come, on a stream.
    pub(crate) fn streams(&mut self) {
        self.streamed = true;
    }

    /// The request has been answered. `status` is that of an answer which is no stream, if somebody got it.
    pub(crate) fn end(&mut self, end: End, status: impl Into<Option<StatusCode>>) {
        self.close(end, status.into());
    }

    /// The request is answered by a refusal.
    pub(crate) fn refused(mut self, refusal: Refusal) -> Refusal {
        let (end, status) = refusal.end();
        self.close(end, Some(status));
        refusal
    }

    fn close(&mut self, end: End, status: Option<StatusCode>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let took = self.begun.elapsed();
        self.endpoint.metrics().ended(self.era, self.method, end.outcome, took);
        if let Some(mut span) = self.span.take() {
            span.set("drawbridge.endpoint.name", self.endpoint.display_name().to_owned());
            span.set("network.protocol.name", "http");
            if let Some(status) = if self.streamed { Some(StatusCode::OK) } else { status } {
                span.set_number("http.response.status_code", i64::from(status.as_u16()));
            }
            span.set_outcome(end.outcome, end.code, end.fault);
            span.end(end.outcome, took);
        }
        let Some(said) = &self.said else { return };
        let method = text(&said.method);
        let name = said.name.as_ref().map(|name| text(name));
        let backend = self.endpoint.backend_of(&method, name.as_deref());
        let status = if self.streamed { Some(StatusCode::OK) } else { status };
        if let Some(audit) = self.endpoint.audit() {
            let payload = self.payload.take();
            let uri = name.as_deref().filter(|_| !said.names_something).map(plain);
            let noted = uri.as_deref().or_else(|| name.as_deref().map(shortened));
            audit.note(CallRecord {
                ended_at: SystemTime::now(),
                took,
                request: said.request,
                caller: said.caller.clone(),
                endpoint: self.endpoint.name().cloned(),
                backend: backend.cloned(),
                era: self.era,
                words: Words::new(shortened(&method), noted),
                outcome: end.outcome,
                code: end.code,
                fault: end.fault,
                status: status.map(|status| status.as_u16()),
                streamed: self.streamed,
                payload,
            });
        }
        if !said.is_logged {
            return;
        }
        let is_tool_error = matches!(end.outcome, Outcome::Ok | Outcome::ToolError)
            .then_some(end.outcome == Outcome::ToolError)
            .filter(|_| self.method == Method::of(method::TOOLS_CALL));
        #[expect(clippy::cast_precision_loss, reason = "microseconds of centuries")]
        let duration_ms = took.as_micros() as f64 / 1000.0;
        request::within(said.request, || {
            tracing::info!(
                target: TARGET,
                outcome = end.outcome.as_str(),
                endpoint.name = self.endpoint.display_name(),
                backend.name = backend.map(BackendName::as_str),
                mcp.method = shortened(&method),
                mcp.name = name.as_deref().filter(|_| said.names_something).map(shortened),
                caller = said.caller.as_ref().map(|caller| caller.name.as_str()),
                client.id = said.caller.as_ref().map(|caller| caller.client.as_str()),
                client.era = self.era.as_str(),
                duration_ms,
                http.status = status.map(|status| status.as_u16()),
                http.stream = self.streamed,
                rpc.error_code = end.code,
                error.code = end.fault,
                tool.is_error = is_tool_error,
                "call"
            );
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Nobody waits any more.
        self.close(End { outcome: Outcome::Cancelled, code: None, fault: None }, None);
    }
}

/// Notes that all requests in what a client sent are refused.
pub(crate) fn refused(endpoint: &Arc<Endpoint>, era: Era, incoming: &Incoming, refusal: Refusal) -> Refusal {
    let (end, status) = refusal.end();
    all_end(endpoint, era, incoming, end, status);
    refusal
}

/// What a client sent, without the calls that come too often, and the answers to those. One that came alone is an error.
pub(crate) fn without_limited(
    endpoint: &Arc<Endpoint>,
    era: Era,
    incoming: Incoming,
    limited: Vec<(usize, TooOften)>,
) -> Result<(Incoming, Vec<Message>), Refusal> {
    if limited.is_empty() {
        return Ok((incoming, Vec::new()));
    }
    let refuse = |message: &Message, too_often: TooOften| {
        let refusal = Refusal::fault(message.id(), &too_often.fault());
        Record::begin(endpoint, era, message).refused(refusal)
    };
    let messages = match incoming {
        Incoming::One(message) => match limited.first() {
            Some((_, too_often)) => return Err(refuse(&message, *too_often)),
            None => return Ok((Incoming::One(message), Vec::new())),
        },
        Incoming::Batch(messages) => messages,
    };
    let mut limited = limited.into_iter().peekable();
    let (mut rest, mut answers) = (Vec::new(), Vec::new());
    for (place, message) in messages.into_iter().enumerate() {
        match (limited.next_if(|(limited, _)| *limited == place), message) {
            (Some((_, too_often)), Ok(message)) => answers.push(refuse(&message, too_often).message()),
            (_, message) => rest.push(message),
        }
    }
    Ok((Incoming::Batch(rest), answers))
}

/// Notes that all requests in what a client sent are not let in.
pub(crate) fn turned_away(endpoint: &Arc<Endpoint>, era: Era, incoming: &Incoming, status: StatusCode) {
    let end = End { outcome: Outcome::Refused, code: None, fault: None };
    all_end(endpoint, era, incoming, end, status);
}

fn all_end(endpoint: &Arc<Endpoint>, era: Era, incoming: &Incoming, end: End, status: StatusCode) {
    let note = |message: &Message| {
        if message.kind() == Kind::Request {
            Record::begin(endpoint, era, message).end(end, status);
        }
    };
    match incoming {
        Incoming::One(message) => note(message),
        Incoming::Batch(messages) => messages.iter().flatten().for_each(note),
    }
}

fn text(raw: &Bytes) -> Cow<'_, str> {
    json::decode_string(raw).unwrap_or_default()
}

/// A URI without what may be a secret in it: user and password, query, fragment.
fn plain(uri: &str) -> String {
    let end = uri.find(['?', '#']).unwrap_or(uri.len());
    let (scheme, rest) = match uri[..end].split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, &uri[..end]),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').filter(|_| scheme.is_some()).map_or(authority, |(_, host)| host);
    let plain = scheme.map_or_else(|| format!("{host}{path}"), |scheme| format!("{scheme}://{host}{path}"));
    plain[..plain.floor_char_boundary(MAX_URI_BYTES)].to_owned()
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_uri_is_noted_without_what_may_be_secret() {
        for (uri, noted) in [
            ("https://u:hunter2@a.example/b?token=hunter2#hunter2", "https://a.example/b"),
            ("file:///etc/hosts", "file:///etc/hosts"),
            ("demo:note@home", "demo:note@home"),
            ("ui://a/b@c", "ui://a/b@c"),
            ("x", "x"),
        ] {
            assert_eq!(plain(uri), noted);
        }
        assert!(plain(&"ü".repeat(500)).len() <= super::MAX_URI_BYTES);
    }
}
