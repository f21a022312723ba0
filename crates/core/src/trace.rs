//! Traces: a span for each request of a client, and one for each request that a backend gets because of it.
//!
//! A request is traced if somebody collects spans, and either the client says that its part of the trace is recorded or,
//! where it says nothing, the request is among those that are sampled. The context comes from the client (W3C Trace
//! Context: in headers, or in `_meta`, which wins) and goes on to the backend. Where nobody collects, there is nothing of
//! this but a look at an empty [`Option`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Message, json, method};
use smallvec::SmallVec;

use crate::call::Event;
use crate::fault::Fault;
use crate::metrics::{Method, Outcome};
use crate::request;

/// Texts from outside are recorded up to this many bytes.
const MAX_TEXT_BYTES: usize = 128;
/// What a client may say in `tracestate` (W3C Trace Context § tracestate limits).
const MAX_STATE_BYTES: usize = 512;

/// Names a place in a trace: a span, and whether it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    /// The flags; the lowest bit says that it is recorded.
    flags: u8,
    /// What tracing systems keep for themselves, as it came.
    state: Option<Arc<str>>,
}

impl Context {
    /// Reads `traceparent` and `tracestate`.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let trace = request::Id::of_trace(parent.as_bytes())?;
        let span = u64::from_str_radix(parent.get(36..52)?, 16).ok().filter(|span| *span != 0)?;
        let flags = u8::from_str_radix(parent.get(53..55)?, 16).ok()?;
        let state = state.filter(|state| !state.is_empty() && state.len() <= MAX_STATE_BYTES);
        Some(Self { trace: trace.bytes(), span: span.to_be_bytes(), flags, state: state.map(Arc::from) })
    }

    /// What the `_meta` of a request says.
    fn of_meta(request: &Message) -> Option<Self> {
        Self::parse(&request.text(Field::MetaTraceparent)?, request.text(Field::MetaTracestate).as_deref())
    }

    /// Whether it is recorded.
    pub fn is_recorded(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The value of `tracestate`, if there is one.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The same trace, at a span of its own.
    fn child(&self) -> Self {
        Self { span: fresh_span(), ..self.clone() }
    }
}

/// The value of `traceparent`.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.span));
        // What the flags of later versions mean is not known.
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags & 1)
    }
}

fn fresh_span() -> [u8; 8] {
    rand::random::<u64>().max(1).to_be_bytes()
}

/// What side of a request a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request of a client.
    Server,
    /// A request to a backend.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
}

/// A span that has ended.
#[derive(Debug, Clone)]
pub struct Span {
    /// Its place.
    pub context: Context,
    /// The span that it is part of.
    pub parent: Option<[u8; 8]>,
    /// Whether that one is the client's.
    pub is_parent_remote: bool,
    /// What side it is about.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// When it began.
    pub begun: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// More about it, by names of the semantic conventions.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether it failed.
    pub has_failed: bool,
}

/// Takes spans that have ended.
pub trait Collector: Send + Sync {
    /// Takes one. Must not block; what can't be kept is lost.
    fn take(&self, span: Span);
}

/// Decides what is recorded, and by whom.
#[derive(Clone)]
pub struct Tracer {
    collector: Arc<dyn Collector>,
    /// Traces that begin here are recorded if a part of their id is below this; `None`: all.
    below: Option<u64>,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("below", &self.below).finish_non_exhaustive()
    }
}

impl Tracer {
    /// Records `share` (0 to 1) of the traces that begin here.
    pub fn new(collector: Arc<dyn Collector>, share: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 2^63")]
        let below = (share < 1.0).then(|| (share.max(0.0) * (1u64 << 63) as f64) as u64);
        Self { collector, below }
    }

    /// Whether a trace that begins here is recorded. All who sample by the id of the trace think the same.
    fn samples(&self, trace: [u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = trace;
        self.below.is_none_or(|below| (u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1) < below)
    }
}

/// What is known of an HTTP request before its message is read.
#[derive(Debug)]
pub struct Incoming {
    /// Who records.
    pub tracer: Tracer,
    /// What its headers say.
    pub headers: Option<Context>,
}

/// A request on its way, as whoever sends it on has to know.
#[derive(Debug)]
pub struct Trace {
    tracer: Tracer,
    /// Where the next span belongs.
    context: Context,
}

impl Trace {
    /// What goes to the backend.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

/// A span that has not ended.
#[derive(Debug)]
pub struct Open {
    tracer: Tracer,
    context: Context,
    parent: Option<[u8; 8]>,
    is_parent_remote: bool,
    kind: Kind,
    begun: SystemTime,
    name: String,
    attributes: Vec<(&'static str, Value)>,
}

/// The span of a client's request that was just read, if it is traced, and what goes on with the request.
pub fn begin(incoming: &Incoming, request: &Message) -> (Option<Open>, Option<Arc<Trace>>) {
    let tracer = &incoming.tracer;
    let parent = Context::of_meta(request).or_else(|| incoming.headers.clone());
    let context = match &parent {
        Some(parent) if parent.is_recorded() => parent.child(),
        // It is passed on as it came.
        Some(parent) => {
            let trace = Trace { tracer: tracer.clone(), context: parent.clone() };
            return (None, Some(Arc::new(trace)));
        }
        None => {
            let trace = request::current().unwrap_or_else(request::Id::fresh).bytes();
            if !tracer.samples(trace) {
                return (None, None);
            }
            Context { trace, span: fresh_span(), flags: 1, state: None }
        }
    };
    let span = Open::new(tracer, context.clone(), parent.map(|p| p.span), Kind::Server, request);
    (Some(span), Some(Arc::new(Trace { tracer: tracer.clone(), context })))
}

/// The span of a request to a backend, if it is traced, and the request with the context in it.
pub fn sent(trace: &Arc<Trace>, request: &Message, backend: &str) -> (Option<Open>, Arc<Trace>, Message) {
    let (span, next) = if trace.context.is_recorded() {
        let context = trace.context.child();
        let mut span =
            Open::new(&trace.tracer, context.clone(), Some(trace.context.span), Kind::Client, request);
        span.is_parent_remote = false;
        span.set("drawbridge.backend.name", backend.to_owned());
        (Some(span), Arc::new(Trace { tracer: trace.tracer.clone(), context }))
    } else {
        (None, trace.clone())
    };
    let context = next.context();
    let parent = context.to_string();
    // What the client has put there itself is not written again, and what is no object is the backend's to judge.
    let is_there = request.text(Field::MetaTraceparent).as_deref() == Some(&*parent);
    if is_there || request.raw(Field::Meta).is_some_and(|meta| !meta.starts_with(b"{")) {
        return (span, next, request.clone());
    }
    let (parent, state) = (json::encode_string(&parent), context.state().map(json::encode_string));
    let keys = [Field::MetaTraceparent.key(), Field::MetaTracestate.key()];
    let values = [Some(&parent), state.as_ref()];
    let add: SmallVec<[(&str, &[u8]); 2]> =
        keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?.as_bytes()))).collect();
    let request = Edit::new(request).meta(|key| keys.contains(&key), &add).into_message();
    (span, next, request)
}

impl Open {
    fn new(
        tracer: &Tracer,
        context: Context,
        parent: Option<[u8; 8]>,
        kind: Kind,
        request: &Message,
    ) -> Self {
        let written = request.method();
        let known = Method::of(&written);
        let mut span = Self {
            tracer: tracer.clone(),
            context,
            is_parent_remote: parent.is_some(),
            parent,
            kind,
            begun: SystemTime::now(),
            name: known.as_str().to_owned(),
            attributes: Vec::with_capacity(12),
        };
        span.set("mcp.method.name", shortened(&written));
        let target = match &*written {
            method::TOOLS_CALL => Some("gen_ai.tool.name"),
            method::PROMPTS_GET => Some("gen_ai.prompt.name"),
            _ => None,
        };
        if let Some((key, name)) = target.zip(request.text(Field::Name)) {
            let name = shortened(&name);
            span.name = format!("{} {name}", span.name);
            span.set(key, name);
        }
        if written == method::TOOLS_CALL {
            span.set("gen_ai.operation.name", "execute_tool");
        }
        if let Some(id) = request.id().filter(|_| kind == Kind::Server) {
            let text = id.text().unwrap_or_else(|| String::from_utf8_lossy(id.literal()));
            span.set("jsonrpc.request.id", shortened(&text));
        }
        span
    }

    /// Adds an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Cow<'static, str>>) {
        self.attributes.push((key, Value::Text(value.into())));
    }

    /// Adds an attribute that is a number.
    pub fn set_number(&mut self, key: &'static str, value: i64) {
        self.attributes.push((key, Value::Number(value)));
    }

    /// Adds how a request has ended: `code` is that of an error, `fault` the one behind it.
    pub fn set_outcome(&mut self, outcome: Outcome, code: Option<i64>, fault: Option<&'static str>) {
        if let Some(code) = code {
            self.set("rpc.response.status_code", code.to_string());
        }
        let error: Cow<'static, str> = match (outcome, fault, code) {
            (Outcome::Ok, ..) => return,
            (Outcome::ToolError, ..) => "tool_error".into(),
            (Outcome::Cancelled, ..) => "cancelled".into(),
            (_, Some(fault), _) => fault.into(),
            (_, None, Some(code)) => code.to_string().into(),
            (outcome, None, None) => outcome.as_str().into(),
        };
        self.set("error.type", error);
    }

    /// Ends the span with `outcome`.
    pub fn end(self, outcome: Outcome, took: Duration) {
        let Self { tracer, context, parent, is_parent_remote, kind, begun, name, attributes } = self;
        let has_failed = outcome != Outcome::Ok;
        tracer.collector.take(Span {
            context,
            parent,
            is_parent_remote,
            kind,
            name,
            begun,
            took,
            attributes,
            has_failed,
        });
    }
}

/// The code of an error that a call ends with, and of the fault behind it.
pub fn codes(event: &Event) -> (Option<i64>, Option<&'static str>) {
    match event {
        Event::Done(reply) if reply.is_error() => (Some(reply.message.error_code()), None),
        Event::Fail(Fault::Rpc(error)) => (Some(error.code), None),
        Event::Fail(fault) => (Some(drawbridge_wire::code::INTERNAL_ERROR), Some(fault.code())),
        _ => (None, None),
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use drawbridge_wire::Id;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Span>>);

    impl Collector for Kept {
        fn take(&self, span: Span) {
            self.0.lock().push(span);
        }
    }

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const UNRECORDED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn call(params: &str) -> Message {
        Message::request(&Id::from_number(7), method::TOOLS_CALL, params.as_bytes())
    }

    fn incoming(share: f64, headers: Option<&str>) -> (Arc<Kept>, Incoming) {
        let kept = Arc::<Kept>::default();
        let tracer = Tracer::new(kept.clone(), share);
        (kept, Incoming { tracer, headers: headers.and_then(|h| Context::parse(h, Some("a=b"))) })
    }

    #[test]
    fn a_context_is_read_and_written() {
        let context = Context::parse(PARENT, Some("a=b")).unwrap();
        assert_eq!((context.to_string().as_str(), context.state()), (PARENT, Some("a=b")));
        assert!(context.is_recorded() && !Context::parse(UNRECORDED, None).unwrap().is_recorded());
        let later = PARENT.replacen("00-", "01-", 1) + "-more";
        assert_eq!(Context::parse(&later, None).unwrap().to_string(), PARENT);
        for bad in ["", "00-x", &PARENT.replace("00f067aa0ba902b7", "0000000000000000")] {
            assert_eq!(Context::parse(bad, None), None, "{bad}");
        }
        assert_eq!(Context::parse(PARENT, Some(&"x".repeat(600))).unwrap().state(), None);
    }

    #[test]
    fn what_is_in_meta_wins_over_headers() {
        let own = "00-11111111111111111111111111111111-2222222222222222-01";
        let request = call(&format!(r#"{{"name":"x","_meta":{{"traceparent":"{own}"}}}}"#));
        let (kept, incoming) = incoming(0.0, Some(PARENT));
        let (span, trace) = begin(&incoming, &request);
        let (sent_span, next, request) = sent(&trace.unwrap(), &request, "b");
        sent_span.unwrap().end(Outcome::ToolError, Duration::ZERO);
        span.unwrap().end(Outcome::Ok, Duration::ZERO);
        let spans = kept.0.lock();
        let [client, server] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((server.parent, server.is_parent_remote), (Some([0x22; 8]), true));
        assert_eq!((client.parent, client.is_parent_remote), (Some(server.context.span), false));
        assert!(server.context.trace == [0x11; 16] && client.context.trace == [0x11; 16]);
        assert_eq!(
            (server.name.as_str(), server.has_failed, client.has_failed),
            ("tools/call x", false, true)
        );
        assert_eq!(request.text(Field::MetaTraceparent).as_deref(), Some(&*client.context.to_string()));
        assert_eq!(next.context(), &client.context);
    }

    #[test]
    fn what_is_not_recorded_is_passed_on_as_it_came() {
        let text = format!(r#"{{"_meta":{{"traceparent":"{UNRECORDED}"}},"name":"x"}}"#);
        let (_, incoming_) = incoming(1.0, None);
        let request = call(&text);
        let (span, trace) = begin(&incoming_, &request);
        let (sent_span, _, same) = sent(&trace.unwrap(), &request, "b");
        assert!(span.is_none() && sent_span.is_none());
        assert_eq!(same.bytes(), request.bytes());
        // From the headers it goes to where stdio servers find it too.
        let (_, incoming_) = incoming(1.0, Some(UNRECORDED));
        let (_, trace) = begin(&incoming_, &call(r#"{"name":"x"}"#));
        let (_, _, request) = sent(&trace.unwrap(), &call(r#"{"name":"x"}"#), "b");
        assert_eq!(request.text(Field::MetaTraceparent).as_deref(), Some(UNRECORDED));
        assert_eq!(request.text(Field::MetaTracestate).as_deref(), Some("a=b"));
    }

    #[test]
    fn a_share_of_the_traces_is_sampled() {
        for (share, least, most) in [(0.0, 0, 0), (0.25, 180, 320), (1.0, 1000, 1000)] {
            let (_, incoming) = incoming(share, None);
            let request = call(r#"{"name":"x"}"#);
            let sampled = (0..1000).filter(|_| begin(&incoming, &request).1.is_some()).count();
            assert!((least..=most).contains(&sampled), "{share}: {sampled}");
        }
    }
}
