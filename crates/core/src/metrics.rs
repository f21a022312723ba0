//! What a gateway counts: plain counters that the crates add to and operators read.
//!
//! Whoever counts keeps a handle ([`Endpoint`], [`Backend`], [`Redis`]) and adds to it without a look-up, a lock or an
//! allocation. What the numbers are called, and how they are printed, is for whoever shows them. Numbers that are there
//! anyway, such as how many sessions there are, are not counted twice but read when somebody looks ([`Gauges`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI8, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use drawbridge_wire::message::Field;
use drawbridge_wire::{Message, method};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::call::{Event, Resume};
use crate::fault::{Blame, Fault};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many there are now.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// One more, until what it gives is dropped.
    pub fn hold(this: &Arc<Self>) -> Held {
        this.0.fetch_add(1, Ordering::Relaxed);
        Held(this.clone())
    }

    /// How many there are.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of those that a [`Gauge`] counts.
#[derive(Debug)]
pub struct Held(Arc<Gauge>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether something could be reached when it was last tried.
#[derive(Debug)]
pub struct Up(AtomicI8);

impl Default for Up {
    fn default() -> Self {
        Self(AtomicI8::new(-1))
    }
}

impl Up {
    /// It was, or was not, reached.
    pub fn set(&self, is_up: bool) {
        let is_up = i8::from(is_up);
        // Read first: it hardly ever changes, and a write would take the cache line from the other cores.
        if self.0.load(Ordering::Relaxed) != is_up {
            self.0.store(is_up, Ordering::Relaxed);
        }
    }

    /// Whether it was reached; `None` if it was not tried yet.
    pub fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            ..0 => None,
            is_up => Some(is_up != 0),
        }
    }
}

/// How long things took, in buckets.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds in microseconds, rising.
    bounds: &'static [u64],
    /// One more than there are bounds.
    buckets: Box<[AtomicU64]>,
    nanos: AtomicU64,
}

impl Histogram {
    /// Upper bounds for calls, in microseconds: 1 ms to 5 minutes.
    pub const CALLS: &'static [u64] = &[
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        30_000_000,
        60_000_000,
        300_000_000,
    ];

    /// Upper bounds for commands to a store nearby, in microseconds: 100 µs to 2.5 s.
    pub const COMMANDS: &'static [u64] = &[
        100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
        2_500_000,
    ];

    fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, nanos: AtomicU64::new(0) }
    }

    /// Something took this long.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = self.bounds.iter().position(|bound| micros <= *bound).unwrap_or(self.bounds.len());
        self.buckets[place].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The upper bounds in seconds, each with how many took no longer, and then how many there were in all and how
    /// many seconds they took together.
    pub fn read(&self) -> (Vec<(f64, u64)>, u64, f64) {
        let mut count = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            count += bucket.load(Ordering::Relaxed);
            buckets.push((Duration::from_micros(*bound).as_secs_f64(), count));
        }
        count += self.buckets[self.bounds.len()].load(Ordering::Relaxed);
        (buckets, count, Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64())
    }
}

macro_rules! labels {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $value:ident = $label:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $($(#[$meaning])* $value,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$value,)*];

            /// As a label.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$value => $label,)* }
            }
        }
    };
}

labels! {
    /// What became of a request.
    Outcome {
        /// A result.
        Ok = "ok",
        /// The result of a tool that says that it failed.
        ToolError = "tool_error",
        /// A JSON-RPC error.
        RpcError = "rpc_error",
        /// Not taken: wrong in its form, for a session that is none, or too much at once.
        Refused = "refused",
        /// Nobody waits for the answer any more.
        Cancelled = "cancelled",
        /// The backend gave no answer.
        Unavailable = "unavailable",
    }
}

impl Outcome {
    /// What became of a call that ends with `event`; `None` if it goes on.
    pub fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Done(reply) if reply.is_error() => Some(Self::RpcError),
            Event::Done(reply) if is_tool_error(&reply.message) => Some(Self::ToolError),
            Event::Done(_) => Some(Self::Ok),
            Event::Asks(round) => matches!(round.resume, Resume::State(_)).then_some(Self::Ok),
            Event::Fail(fault) => Some(Self::of_fault(fault)),
            Event::Begun | Event::Paused(_) | Event::Notify(_) | Event::Withdraw(_) => None,
        }
    }

    /// What a fault is to whoever asked.
    pub fn of_fault(fault: &Fault) -> Self {
        match fault.blame() {
            Blame::Caller if matches!(fault, Fault::RateLimited { .. }) => Self::Refused,
            Blame::Caller => Self::RpcError,
            Blame::Gateway => Self::Refused,
            Blame::Backend => Self::Unavailable,
        }
    }
}

/// Whether a result says that the tool has failed.
pub fn is_tool_error(result: &Message) -> bool {
    result.raw(Field::ResultIsError) == Some(b"true")
}

labels! {
    /// How a client speaks.
    Era {
        /// With sessions.
        Legacy = "legacy",
        /// Without.
        Modern = "modern",
    }
}

labels! {
    /// What an open stream to a client is for.
    Stream {
        /// The answer to a call.
        Call = "call",
        /// What comes outside of calls, in a session.
        Standalone = "standalone",
        /// Changes that a client without a session listens to.
        Listen = "listen",
        /// The one stream of HTTP+SSE.
        Sse = "sse",
    }
}

labels! {
    /// Which part of the shared state.
    Port {
        /// What changes in sessions.
        Sessions = "sessions",
        /// Events of streams.
        Events = "events",
        /// What was ended.
        Revocations = "revocations",
        /// Messages between instances.
        Bus = "bus",
        /// Who owns what.
        Leases = "leases",
        /// What may happen once.
        Claims = "claims",
        /// How often something may happen.
        Limiter = "limiter",
    }
}

labels! {
    /// The way of a message between instances.
    Direction {
        /// To others.
        Sent = "sent",
        /// From others.
        Received = "received",
    }
}

/// The methods that are told apart, the most frequent first; the last stands for all others.
const METHODS: [&str; 21] = [
    method::TOOLS_CALL,
    method::TOOLS_LIST,
    method::INITIALIZE,
    method::DISCOVER,
    method::PING,
    method::PROMPTS_LIST,
    method::PROMPTS_GET,
    method::RESOURCES_LIST,
    method::RESOURCES_READ,
    method::RESOURCES_TEMPLATES_LIST,
    method::RESOURCES_SUBSCRIBE,
    method::RESOURCES_UNSUBSCRIBE,
    method::COMPLETE,
    method::SET_LEVEL,
    method::LISTEN,
    method::TASKS_GET,
    method::TASKS_UPDATE,
    method::TASKS_CANCEL,
    method::TASKS_RESULT,
    method::TASKS_LIST,
    "other",
];

/// A method as a label: one that MCP has, or "other", so that clients can't make up labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method(u8);

impl Method {
    const OTHER: usize = METHODS.len() - 1;

    /// The label for a method.
    pub fn of(name: &str) -> Self {
        let place = METHODS[..Self::OTHER].iter().position(|known| *known == name).unwrap_or(Self::OTHER);
        #[expect(clippy::cast_possible_truncation, reason = "there are some twenty methods")]
        Self(place as u8)
    }

    /// As a label.
    pub fn as_str(self) -> &'static str {
        METHODS[usize::from(self.0)]
    }

    /// Whether it goes on for as long as the client wants, so that its duration says nothing about the gateway.
    pub fn lasts(self) -> bool {
        self.as_str() == method::LISTEN
    }
}

/// What became of requests of one kind.
#[derive(Debug)]
pub struct Requests {
    outcomes: [Counter; Outcome::ALL.len()],
    /// How long they took; of those that last as long as somebody wants there is nothing here.
    pub duration: Histogram,
}

impl Default for Requests {
    fn default() -> Self {
        Self { outcomes: Default::default(), duration: Histogram::new(Histogram::CALLS) }
    }
}

impl Requests {
    /// How many had this outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].get()
    }

    fn add(&self, outcome: Outcome, took: Option<Duration>) {
        self.outcomes[outcome as usize].inc();
        if let Some(took) = took {
            self.duration.observe(took);
        }
    }
}

/// What is counted of an endpoint.
#[derive(Debug, Default)]
pub struct Endpoint {
    requests: [[OnceLock<Box<Requests>>; METHODS.len()]; Era::ALL.len()],
}

impl Endpoint {
    /// A request of a client has ended after this long.
    pub fn ended(&self, era: Era, method: Method, outcome: Outcome, took: Duration) {
        let requests = self.requests[era as usize][usize::from(method.0)].get_or_init(Box::default);
        requests.add(outcome, (!method.lasts()).then_some(took));
    }

    /// All that was counted.
    pub fn read(&self) -> impl Iterator<Item = (Era, Method, &Requests)> {
        Era::ALL.iter().zip(&self.requests).flat_map(|(era, methods)| {
            methods.iter().zip(0..).filter_map(|(requests, place)| {
                requests.get().map(|requests| (*era, Method(place), &**requests))
            })
        })
    }
}

/// What is counted of a backend.
#[derive(Debug, Default)]
pub struct Backend {
    /// Requests that were sent to it.
    pub requests: Requests,
    /// Whether it answers at all.
    pub up: Up,
    /// Times that there was no credential for it, or that it did not take one.
    pub credential_failures: Counter,
    /// What went wrong there last.
    trouble: Mutex<Option<Trouble>>,
    /// Those of a backend that is a program; `None` of others.
    processes: OnceLock<Processes>,
    /// What it is shown in TLS, as long as that is used.
    certificate: Mutex<Option<Weak<dyn Ends>>>,
}

/// Something that is good up to some time, which may change.
pub trait Ends: std::fmt::Debug + Send + Sync {
    /// That time, in seconds of Unix time.
    fn end(&self) -> i64;
}

/// What is counted of a program's processes.
#[derive(Debug, Default, Clone)]
pub struct Processes {
    /// Those that run.
    pub running: Arc<Gauge>,
    /// Those that were started.
    pub starts: Arc<Counter>,
}

/// What went wrong at a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// When.
    pub at: SystemTime,
    /// The code of the fault.
    pub code: &'static str,
    /// What it says.
    pub message: String,
    /// What an operator can do.
    pub advice: &'static str,
}

impl Backend {
    /// Something went wrong. What is not the backend's is not kept.
    pub fn failed(&self, fault: &Fault) {
        if matches!(fault, Fault::NoCredential { .. } | Fault::Refused { .. }) {
            self.credential_failures.inc();
        }
        let Some(advice) = fault.advice() else { return };
        let message = fault.to_string();
        let trouble = Trouble { at: SystemTime::now(), code: fault.code(), message, advice };
        *self.trouble.lock() = Some(trouble);
    }

    /// What went wrong last.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().clone()
    }

    /// It is shown this certificate.
    pub fn shows(&self, certificate: Weak<dyn Ends>) {
        *self.certificate.lock() = Some(certificate);
    }

    /// When the certificate ends that it is shown, if it is shown one.
    pub fn certificate_end(&self) -> Option<i64> {
        let certificate = self.certificate.lock().as_ref()?.upgrade()?;
        Some(certificate.end())
    }

    /// A request to it has ended, after this long if that says something about the backend.
    pub fn ended(&self, outcome: Outcome, took: Option<Duration>) {
        self.requests.add(outcome, took);
    }

    /// The counters of its processes: it is a program.
    pub fn as_program(&self) -> &Processes {
        self.processes.get_or_init(Processes::default)
    }

    /// The counters of its processes, if it is a program.
    pub fn processes(&self) -> Option<&Processes> {
        self.processes.get()
    }
}

/// What is counted of the commands for one part of the shared state.
#[derive(Debug)]
pub struct Commands {
    /// How long they took.
    pub duration: Histogram,
    /// Those that failed.
    pub errors: Counter,
}

impl Default for Commands {
    fn default() -> Self {
        Self { duration: Histogram::new(Histogram::COMMANDS), errors: Counter::default() }
    }
}

/// What is counted where shared state is in Redis.
#[derive(Debug, Default)]
pub struct Redis {
    /// Whether it answers; unknown where there is none.
    pub up: Up,
    commands: [Commands; Port::ALL.len()],
    bus: [Counter; Direction::ALL.len()],
}

impl Redis {
    /// The counters of a port.
    pub fn port(&self, port: Port) -> &Commands {
        &self.commands[port as usize]
    }

    /// The counter of messages on the bus.
    pub fn bus(&self, direction: Direction) -> &Counter {
        &self.bus[direction as usize]
    }
}

/// What is counted of the configuration.
#[derive(Debug, Default)]
pub struct Configuration {
    /// Reloads after which the new one applied.
    pub applied: Counter,
    /// Reloads after which the old one went on.
    pub refused: Counter,
    /// When one was applied last, in milliseconds since 1970.
    at: AtomicU64,
}

impl Configuration {
    /// A configuration has been applied just now.
    pub fn is_applied(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.at.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// When one was applied last, as time since 1970.
    pub fn applied_at(&self) -> Duration {
        Duration::from_millis(self.at.load(Ordering::Relaxed))
    }
}

/// Most statuses that HTTP has.
const STATUSES: usize = 600;

/// Answers by HTTP status.
#[derive(Debug)]
pub struct Responses(Box<[Counter]>);

impl Default for Responses {
    fn default() -> Self {
        Self((0..STATUSES).map(|_| Counter::default()).collect())
    }
}

impl Responses {
    /// There was an answer with this status.
    pub fn count(&self, status: u16) {
        if let Some(counter) = self.0.get(usize::from(status)) {
            counter.inc();
        }
    }

    /// All statuses that there were.
    pub fn read(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().map(Counter::get).enumerate().filter(|(_, count)| *count > 0)
    }
}

/// What came of looking at credentials.
#[derive(Debug, Default)]
pub struct Credentials {
    /// Somebody was let in.
    pub accepted: Counter,
    /// There was no credential.
    pub missing: Counter,
    /// It was none, or no longer.
    pub refused: Counter,
    /// It was good, and not for that.
    pub forbidden: Counter,
    /// It could not be told.
    pub unavailable: Counter,
    /// It was good, and came too often.
    pub limited: Counter,
}

labels! {
    /// What there may be only so many requests of in a time.
    LimitKind {
        /// A caller.
        Caller = "caller",
        /// A token.
        Token = "token",
        /// An endpoint.
        Endpoint = "endpoint",
        /// A tool, or several.
        Tool = "tool",
    }
}

/// What is counted of limits.
#[derive(Debug, Default)]
pub struct Limits {
    refused: [Counter; LimitKind::ALL.len()],
    /// Requests for which this instance counted alone, since shared state was away.
    pub degraded: Counter,
}

impl Limits {
    /// The counter of requests and calls that came too often for a limit.
    pub fn refused(&self, kind: LimitKind) -> &Counter {
        &self.refused[kind as usize]
    }
}

/// What is counted of the audit trail.
#[derive(Debug, Default)]
pub struct Audit {
    /// Entries that are on disk.
    pub written: Counter,
    /// Calls and actions of which there is no entry.
    pub lost: Counter,
    /// Chains that the sweep has left alone because they do not hold.
    pub broken: Counter,
    has_trail: AtomicBool,
}

impl Audit {
    /// There is a trail.
    pub fn is_kept(&self) {
        self.has_trail.store(true, Ordering::Relaxed);
    }

    /// Whether there is one.
    pub fn has_trail(&self) -> bool {
        self.has_trail.load(Ordering::Relaxed)
    }
}

/// What is counted of connections of clients.
#[derive(Debug, Default)]
pub struct Connections {
    /// Those that are open.
    pub open: Arc<Gauge>,
    /// Those that were one too many.
    pub refused: Counter,
}

/// What is counted by one gateway.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections of clients.
    pub connections: Connections,
    /// Credentials of clients.
    pub credentials: Credentials,
    /// Answers to clients.
    pub responses: Responses,
    /// Shared state.
    pub redis: Redis,
    /// The configuration.
    pub configuration: Configuration,
    /// The audit trail.
    pub audit: Arc<Audit>,
    /// How often things may happen.
    pub limits: Limits,
    endpoints: Mutex<BTreeMap<String, Arc<Endpoint>>>,
    backends: Mutex<BTreeMap<String, Arc<Backend>>>,
}

impl Metrics {
    /// The counters of the endpoint called `name`, the same for each who asks.
    pub fn endpoint(&self, name: &str) -> Arc<Endpoint> {
        self.endpoints.lock().entry(name.to_owned()).or_default().clone()
    }

    /// The counters of the backend called `name`, the same for each who asks.
    pub fn backend(&self, name: &str) -> Arc<Backend> {
        self.backends.lock().entry(name.to_owned()).or_default().clone()
    }

    /// Forgets the endpoints and backends that are gone: only those that are named are kept.
    pub fn retain(&self, endpoint: impl Fn(&str) -> bool, backend: impl Fn(&str) -> bool) {
        self.endpoints.lock().retain(|name, _| endpoint(name));
        self.backends.lock().retain(|name, _| backend(name));
    }

    /// The counters of all endpoints, by name.
    pub fn endpoints(&self) -> Vec<(String, Arc<Endpoint>)> {
        self.endpoints.lock().iter().map(|(name, counters)| (name.clone(), counters.clone())).collect()
    }

    /// The counters of all backends, by name.
    pub fn backends(&self) -> Vec<(String, Arc<Backend>)> {
        self.backends.lock().iter().map(|(name, counters)| (name.clone(), counters.clone())).collect()
    }
}

/// Numbers that are read when somebody looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests of clients that are being answered; a stream counts as answered once it has begun.
    pub in_flight: usize,
    /// Open streams to clients, by [`Stream`].
    pub streams: [usize; Stream::ALL.len()],
    /// Sessions that this instance keeps something for.
    pub sessions: usize,
    /// Calls that wait for their clients.
    pub parked: usize,
    /// Bytes of events that clients may still fetch.
    pub event_log_bytes: usize,
    /// Calls that wait to be written into the audit trail.
    pub audit_queue: usize,
    /// Whether the database was read within the last seconds, if there is one.
    pub database_up: Option<bool>,
    /// Whether all that was revoked is known here, if anything can be.
    pub revocations_current: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let histogram = Histogram::new(&[1_000, 5_000]);
        for micros in [0, 1_000, 1_001, 5_000, 1_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        assert_eq!(histogram.read(), (vec![(0.001, 2), (0.005, 4)], 5, 1.007_001));
    }

    #[test]
    fn a_method_that_mcp_does_not_have_is_another() {
        for known in [method::TOOLS_CALL, method::TASKS_LIST, method::LISTEN] {
            assert_eq!(Method::of(known).as_str(), known);
        }
        for unknown in ["other", "", "tools/call2", "TOOLS/CALL"] {
            assert_eq!(Method::of(unknown).as_str(), "other", "{unknown}");
        }
    }

    #[test]
    fn what_was_never_counted_is_not_shown() {
        let (metrics, took) = (Metrics::default(), Duration::from_millis(3));
        let counters = metrics.endpoint("one");
        assert_eq!(counters.read().count(), 0);
        counters.ended(Era::Modern, Method::of(method::TOOLS_CALL), Outcome::ToolError, took);
        counters.ended(Era::Modern, Method::of(method::LISTEN), Outcome::Cancelled, took);
        let seen: Vec<_> = metrics
            .endpoint("one")
            .read()
            .map(|(era, method, requests)| (era, method.as_str(), requests.duration.read().1))
            .collect();
        assert_eq!(seen, [(Era::Modern, method::TOOLS_CALL, 1), (Era::Modern, method::LISTEN, 0)]);
        assert_eq!(metrics.backend("one").up.get(), None);
        metrics.retain(|name| name != "one", |_| true);
        assert_eq!((metrics.endpoints().len(), metrics.backends().len()), (0, 1));
    }

    #[test]
    fn one_is_counted_for_as_long_as_it_is_held() {
        let gauge = Arc::<Gauge>::default();
        let held = Gauge::hold(&gauge);
        assert_eq!(gauge.get(), 1);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }
}
