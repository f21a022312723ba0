//! What becomes of each request of a client: counted, and one line of the log.
//!
//! A [`Record`] is made when a request was read and ends with its answer, or when nobody waits for that any more.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use drawbridge_core::call::Event;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::metrics::{Era, Method, Outcome};
use drawbridge_core::trace::{self, Trace};
use drawbridge_core::{BackendName, Endpoint, request};
use drawbridge_wire::message::{Field, Incoming};
use drawbridge_wire::{Kind, Message, ProtocolVersion, json, method};
use http::StatusCode;

use crate::reply::Refusal;

/// The target of the line that each call has in the log.
const TARGET: &str = "drawbridge::call";
/// Names that clients make up are logged up to this many bytes.
const MAX_NAME_BYTES: usize = 128;

/// One request of a client that is being answered.
pub(crate) struct Record {
    endpoint: Arc<Endpoint>,
    era: Era,
    method: Method,
    begun: Instant,
    /// What is traced of it, if something is.
    span: Option<trace::Open>,
    trace: Option<Arc<Trace>>,
    /// What only the log needs; `None` if it does not want the line.
    words: Option<Words>,
    /// The answer is a stream.
    streamed: bool,
    has_ended: bool,
}

struct Words {
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

    /// The end of a call, if `event` is one.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        let (code, fault) = trace::codes(event);
        Some(Self { outcome: Outcome::of(event)?, code, fault })
    }
}

impl Record {
    /// A request that was just read.
    pub(crate) fn begin(endpoint: &Arc<Endpoint>, era: Era, message: &Message) -> Self {
        let words = tracing::enabled!(target: TARGET, tracing::Level::INFO).then(|| {
            let name = message.slice(Field::Name);
            Words {
                request: request::current(),
                caller: request::caller(),
                method: message.slice(Field::Method).unwrap_or_default(),
                names_something: name.is_some(),
                name: name.or_else(|| message.slice(Field::Uri)),
            }
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
            words,
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
        let Some(words) = &self.words else { return };
        let method = text(&words.method);
        let name = words.name.as_ref().map(|name| text(name));
        let backend = self.endpoint.backend_of(&method, name.as_deref());
        let status = if self.streamed { Some(StatusCode::OK) } else { status };
        let is_tool_error = matches!(end.outcome, Outcome::Ok | Outcome::ToolError)
            .then_some(end.outcome == Outcome::ToolError)
            .filter(|_| self.method == Method::of(method::TOOLS_CALL));
        #[expect(clippy::cast_precision_loss, reason = "microseconds of centuries")]
        let duration_ms = took.as_micros() as f64 / 1000.0;
        request::within(words.request, || {
            tracing::info!(
                target: TARGET,
                outcome = end.outcome.as_str(),
                endpoint.name = self.endpoint.display_name(),
                backend.name = backend.map(BackendName::as_str),
                mcp.method = shortened(&method),
                mcp.name = name.as_deref().filter(|_| words.names_something).map(shortened),
                caller = words.caller.as_ref().map(|caller| caller.name.as_str()),
                client.id = words.caller.as_ref().map(|caller| caller.client.as_str()),
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
    let note = |message: &Message| {
        if message.kind() == Kind::Request {
            let (end, status) = refusal.end();
            Record::begin(endpoint, era, message).end(end, status);
        }
    };
    match incoming {
        Incoming::One(message) => note(message),
        Incoming::Batch(messages) => messages.iter().flatten().for_each(note),
    }
    refusal
}

fn text(raw: &Bytes) -> Cow<'_, str> {
    json::decode_string(raw).unwrap_or_default()
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_BYTES)]
}
