//! The downstream faces: MCP over HTTP, as hosts speak it.
//!
//! [`Front`] is a service that takes any HTTP request of the public listener. It checks where the request is from
//! ([`origin`]), finds the endpoint ([`route`]), tells the era of the request and gives it to a face: [`legacy`]
//! (sessions, 2024-11-05 to 2025-11-25, both transports) or [`modern`] (stateless, 2026-07-28). A face turns the
//! request into a call of the engine and the events of the call into the answer; neither knows what the backend
//! speaks.
//!
//! Must not know: Redis, SQL, processes, configuration files.

pub mod body;
pub mod gate;
pub mod legacy;
pub mod limits;
pub mod modern;
pub mod options;
pub mod origin;
mod record;
pub mod reply;
pub mod route;
pub mod stream;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Guard};
use axum::Router;
use axum::body::Body;
use drawbridge_auth::challenge::Denial;
use drawbridge_core::event_log::{EventRing, SessionKey};
use drawbridge_core::fault::Bounded;
use drawbridge_core::fleet::Peers;
use drawbridge_core::metrics::{Era, Gauges, Metrics};
use drawbridge_core::rights::Rights;
use drawbridge_core::seal::KeyRing;
use drawbridge_core::state::WithFallback;
use drawbridge_core::trace::{Context, Incoming, Tracer};
use drawbridge_core::{Endpoint, Fault, Rounds, Tasks, request};
use drawbridge_wire::{ProtocolVersion, RpcError, code, header};
use http::header as http_header;
use http::request::Parts as Head;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use gate::{Caller, Gate, Kept, PeerAddress};
use legacy::Legacy;
pub use legacy::SessionOverview;
use limits::{Limiting, Plan};
use options::FrontOptions;
use origin::Origins;
use reply::{Refusal, with_cors};
use route::{Route, Transport};
use stream::OpenStreams;
use tower::ServiceExt as _;

/// The public face of the gateway. Cheap to clone.
#[derive(Clone)]
pub struct Front(Arc<Inner>);

/// What the faces share.
pub(crate) struct Inner {
    live: ArcSwap<Live>,
    pub(crate) tasks: Tasks,
    in_flight: AtomicUsize,
    pub(crate) streams: Arc<OpenStreams>,
    metrics: Arc<Metrics>,
    tracer: Option<Tracer>,
    pub(crate) legacy: Legacy,
    rounds: Arc<Rounds>,
    pub(crate) peers: Peers,
    /// Asks callers who they are, if somebody does.
    gate: Option<Gate>,
    limiting: Limiting,
    /// Answers what is no MCP.
    others: Option<Router>,
    /// What other instances say of sessions is heard.
    pub(crate) is_attending: AtomicBool,
}

/// What the configuration says, and may say otherwise while the gateway runs. Whoever looks sees all of it before or
/// all of it after a change.
pub(crate) struct Live {
    pub(crate) options: FrontOptions,
    origins: Origins,
    endpoints: Endpoints,
}

/// Endpoints by name; the default one has none.
pub(crate) type Endpoints = HashMap<Option<String>, Arc<Endpoint>>;

impl Live {
    fn new(options: FrontOptions, endpoints: Vec<Arc<Endpoint>>) -> Self {
        let named = |endpoint: Arc<Endpoint>| (endpoint.name().map(ToString::to_string), endpoint);
        let endpoints = endpoints.into_iter().map(named).collect();
        Self { origins: Origins::new(&options), options, endpoints }
    }
}

/// The parts that a front is made of.
pub struct Parts {
    /// Limits and times.
    pub options: FrontOptions,
    /// All endpoints; the one without a name is at `/mcp`.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Seals session ids.
    pub keys: Arc<KeyRing>,
    /// Keeps the events of streams for resumption.
    pub events: Arc<EventRing>,
    /// Calls that wait for their clients.
    pub rounds: Arc<Rounds>,
    /// Background work.
    pub tasks: Tasks,
    /// Where answers are counted.
    pub metrics: Arc<Metrics>,
    /// Who records traces, if somebody does.
    pub tracer: Option<Tracer>,
    /// The other instances.
    pub peers: Peers,
    /// Asks callers who they are; without it everybody may come in.
    pub gate: Option<Gate>,
    /// Counts how often requests come.
    pub limiter: WithFallback,
    /// Answers paths at which there is no MCP.
    pub others: Option<Router>,
}

impl Front {
    /// A front of `parts`.
    pub fn new(parts: Parts) -> Self {
        let tasks = parts.tasks.clone();
        let legacy = Legacy::new(&parts.options, parts.keys, parts.events, tasks, &parts.peers);
        let inner = Arc::new(Inner {
            live: ArcSwap::from_pointee(Live::new(parts.options, parts.endpoints)),
            tasks: parts.tasks,
            in_flight: AtomicUsize::new(0),
            streams: Arc::default(),
            metrics: parts.metrics,
            tracer: parts.tracer,
            legacy,
            rounds: parts.rounds,
            is_attending: AtomicBool::new(!parts.peers.state().is_fleet),
            peers: parts.peers,
            gate: parts.gate,
            limiting: Limiting::new(parts.limiter),
            others: parts.others,
        });
        legacy::fleet::attend(&inner);
        Self(inner)
    }

    /// Goes by another configuration from now on. Calls go on where they are; sessions and listeners of an endpoint that
    /// is another one now move to it, or are told to come back.
    pub fn apply(&self, options: FrontOptions, endpoints: Vec<Arc<Endpoint>>) {
        let inner = &self.0;
        inner.legacy.limit(&options);
        if let Some(gate) = &inner.gate {
            gate.verifier.set_needs_users(options.rules.need_users());
        }
        let new = Arc::new(Live::new(options, endpoints));
        let old = inner.live.swap(new.clone());
        for (name, endpoint) in &old.endpoints {
            if !new.endpoints.get(name).is_some_and(|other| Arc::ptr_eq(other, endpoint)) {
                endpoint.replaced().cancel();
            }
        }
        inner.legacy.follow(&new.endpoints);
    }

    /// The largest section of headers that a request may have, in bytes.
    pub fn max_header_bytes(&self) -> usize {
        self.0.live().options.max_header_bytes
    }

    /// How many connections of clients may be open.
    pub fn max_connections(&self) -> usize {
        self.0.live().options.max_connections
    }

    /// Whether it has begun to hear what other instances say of sessions.
    pub fn is_attending(&self) -> bool {
        self.0.is_attending.load(Ordering::Acquire)
    }

    /// Ends what was not used for long. To be called now and then.
    pub fn sweep(&self) {
        self.0.legacy.sweep();
    }

    /// Ends calls whose clients took too long to answer. To be called often: they have been told when.
    pub fn sweep_rounds(&self) {
        self.0.rounds.sweep();
    }

    /// How many sessions this instance keeps something for, and how many streams are open.
    pub fn load(&self) -> (usize, usize) {
        (self.0.legacy.session_count(), self.0.streams.count())
    }

    /// Up to `most` of the sessions that this instance keeps something for, by their keys, behind the key `after`.
    pub fn sessions(&self, after: Option<SessionKey>, most: usize) -> Vec<SessionOverview> {
        self.0.legacy.overview(after, most)
    }

    /// Ends a session for good, at all instances.
    pub async fn end_session(&self, key: SessionKey) {
        self.0.legacy.end(key).await;
    }

    /// What is open and under way on this instance. The event log is not the front's.
    pub fn gauges(&self) -> Gauges {
        let inner = &self.0;
        Gauges {
            in_flight: inner.in_flight.load(Ordering::Relaxed),
            streams: inner.streams.by_kind(),
            sessions: inner.legacy.session_count(),
            parked: inner.rounds.count(),
            ..Gauges::default()
        }
    }

    /// Waits until the clients of calls that wait for answers have come back, to other instances, for `limit` at most.
    pub async fn finish(&self, limit: std::time::Duration) {
        self.0.rounds.finish(limit).await;
    }

    /// Ends all sessions' conversations with backends; the sessions themselves can be taken up elsewhere.
    pub async fn close(&self) {
        self.0.rounds.close().await;
        self.0.legacy.close().await;
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let response = self.answer(request).await;
        self.0.metrics.responses.count(response.status().as_u16());
        Ok(response)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let inner = &self.0;
        if let Some(others) = inner.others.as_ref().filter(|_| !route::is_mcp(request.uri().path())) {
            return inner.answer_other(others, request).await;
        }
        let origin = match inner.live().origins.check(request.headers(), request.uri()) {
            Ok(origin) => origin,
            Err(refusal) => return refusal.into_response(),
        };
        if request.method() == Method::OPTIONS {
            return reply::preflight(origin);
        }
        let traced = request.headers().get(TRACEPARENT).and_then(|v| request::Id::of_trace(v.as_bytes()));
        let id = traced.unwrap_or_else(request::Id::fresh);
        let trace = inner.tracer.as_ref().map(|tracer| {
            let headers = request.headers();
            let context = reply::text(headers, TRACEPARENT.as_str())
                .and_then(|parent| Context::parse(parent, reply::text(headers, "tracestate")));
            Arc::new(Incoming { tracer: tracer.clone(), headers: context })
        });
        let mut response = match inner.admit() {
            Err(fault) => Refusal::unavailable(&fault).into_response(),
            Ok(_admitted) => request::traced(id, trace, inner.clone().serve(request))
                .await
                .unwrap_or_else(Refusal::into_response),
        };
        if let Ok(id) = HeaderValue::from_bytes(&id.digits()) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        with_cors(response, origin)
    }
}

/// One request that is being answered.
struct Admitted(Arc<Inner>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    /// What the configuration says now.
    pub(crate) fn live(&self) -> Guard<Arc<Live>> {
        self.live.load()
    }

    /// The endpoint of this name, if there is one now.
    pub(crate) fn endpoint(&self, name: &Option<String>) -> Option<Arc<Endpoint>> {
        self.live().endpoints.get(name).cloned()
    }

    /// What a caller may whose request came to another instance.
    pub(crate) fn rights_carried(&self, carried: &str) -> Option<Arc<dyn Rights>> {
        Some(Arc::new(self.live().options.rules.allow_carried(carried)?))
    }

    /// Tells a caller who lacks a scope for what it sends how to get that, in the way of HTTP: not more often than once a
    /// minute, so that no host asks its user again and again for what the user doesn't give.
    pub(crate) async fn challenge(
        &self,
        caller: &Caller,
        endpoint: &Endpoint,
        incoming: &drawbridge_wire::message::Incoming,
    ) -> Option<Kept> {
        let rights = request::rights()?;
        let scope = Caller::lacks(&rights, endpoint, incoming)?;
        if rights.challenge(scope).is_some() {
            return None;
        }
        let key = format!("challenge:{}:{scope}", caller.token_key()?);
        self.limiting.may_challenge(&key).await.then_some(Kept::Out(Denial::Scope(scope)))
    }

    fn admit(self: &Arc<Self>) -> Result<Admitted, Fault> {
        let admitted = Admitted(self.clone());
        let limit = self.live().options.most_in_flight(self.streams.count());
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(Fault::Busy { what: Bounded::Requests, limit });
        }
        Ok(admitted)
    }

    /// Answers what is no MCP: other pages may read some of it, which is for it to say.
    async fn answer_other(&self, others: &Router, mut request: Request<Body>) -> Response<Body> {
        if let Err(refusal) = self.live().origins.check_host(request.headers(), request.uri()) {
            return refusal.into_response();
        }
        if let Some(address) = self.client_address(&request) {
            request.extensions_mut().insert(PeerAddress(address));
        }
        let answered: Result<_, Infallible> = others.clone().oneshot(request).await;
        answered.unwrap_or_else(|never| match never {})
    }

    fn client_address(&self, request: &Request<Body>) -> Option<IpAddr> {
        let peer = request.extensions().get::<PeerAddress>().copied();
        gate::client_address(peer, request.headers(), &self.live().options.trusted_proxies)
    }

    /// The answer to a request that does not come in.
    fn turn_away(&self, kept: &Kept, endpoint: Option<&str>) -> Response<Body> {
        let counted = &self.metrics.credentials;
        match kept {
            Kept::Out(Denial::None) => counted.missing.inc(),
            Kept::Out(Denial::Invalid | Denial::Several) => counted.refused.inc(),
            Kept::Out(Denial::Scope(_)) => counted.forbidden.inc(),
            Kept::Unknown => counted.unavailable.inc(),
            Kept::TooOften(_) => counted.limited.inc(),
        }
        let discovery = self.gate.as_ref().and_then(|gate| gate.discovery.as_ref());
        gate::turn_away(kept, discovery, endpoint)
    }

    async fn serve(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let address = self.gate.as_ref().and_then(|_| self.client_address(&request));
        let (mut head, body) = request.into_parts();
        let route = route::parse(head.uri.path()).ok_or_else(|| Refusal::not_found("no such path"))?;
        let endpoint =
            self.endpoint(&route.endpoint).ok_or_else(|| Refusal::not_found("no such endpoint"))?;
        let caller = match &self.gate {
            Some(gate) => gate.admit(&head.headers, route.endpoint.as_deref(), address).await,
            None => Ok(Caller::anonymous()),
        };
        let caller = match caller {
            Ok(caller) => caller,
            Err(kept) => return Ok(self.turn_away(&kept, route.endpoint.as_deref())),
        };
        let limits = self.live().options.limits.clone();
        let mut plan = Plan::of(&limits, &caller, endpoint.display_name());
        let may_call = head.method == Method::POST;
        let counted = &self.metrics.limits;
        if let Err(refused) = self.limiting.before(&mut plan, &head.headers, may_call, counted).await {
            return Ok(self.turn_away(&Kept::TooOften(refused.retry_after), route.endpoint.as_deref()));
        }
        let Some(gate) = &self.gate else {
            return self.route(&route, &endpoint, &head, &caller, plan, body).await;
        };
        self.metrics.credentials.accepted.inc();
        head.headers.remove(http_header::AUTHORIZATION);
        let name = (route.endpoint.as_deref(), endpoint.display_name());
        let rules = self.live().options.rules.clone();
        let rights = caller.rights(&rules, name, address, &head.headers, gate.discovery.as_ref());
        let work = self.route(&route, &endpoint, &head, &caller, plan, body);
        let response = request::of(caller.shown(), rights, work).await?;
        Ok(gate.guard(&caller, response))
    }

    async fn route(
        self: &Arc<Self>,
        route: &Route,
        endpoint: &Arc<Endpoint>,
        head: &Head,
        caller: &Caller,
        plan: Plan<'_>,
        body: Body,
    ) -> Result<Response<Body>, Refusal> {
        match (route.transport, &head.method) {
            (Transport::StreamableHttp, &Method::POST) => {
                self.post(endpoint, route, head, caller, plan, body).await
            }
            (Transport::StreamableHttp, &(Method::GET | Method::DELETE)) if is_modern(head) => {
                Err(Refusal::status(StatusCode::METHOD_NOT_ALLOWED, "this protocol version only has POST"))
            }
            (Transport::StreamableHttp, &Method::GET) => {
                legacy::http::get(self, endpoint, caller, &head.headers).await
            }
            (Transport::StreamableHttp, &Method::DELETE) => {
                legacy::http::delete(self, endpoint, caller, &head.headers).await
            }
            (Transport::Sse, &Method::GET) => legacy::sse::open(self, route, caller, &head.headers),
            (Transport::Messages, &Method::POST) => {
                legacy::sse::post(self, route, head, caller, plan, body).await
            }
            _ => Err(Refusal::status(StatusCode::METHOD_NOT_ALLOWED, "method not allowed here")),
        }
    }

    async fn post(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        route: &Route,
        head: &Head,
        caller: &Caller,
        mut plan: Plan<'_>,
        body: Body,
    ) -> Result<Response<Body>, Refusal> {
        reply::check_media(&head.headers)?;
        let text = body::read(body, self.live().options.max_body_bytes).await?;
        let incoming =
            drawbridge_wire::message::Incoming::parse(text, MAX_BATCH).map_err(|e| Refusal::invalid(&e))?;
        let is_modern = modern::claims(head, &incoming);
        let era = if is_modern { Era::Modern } else { Era::Legacy };
        let limited = match self.limiting.after(&mut plan, &incoming, &self.metrics.limits).await {
            Ok(limited) => limited,
            Err(refused) => {
                let kept = Kept::TooOften(refused.retry_after);
                let response = self.turn_away(&kept, route.endpoint.as_deref());
                record::turned_away(endpoint, era, &incoming, response.status());
                return Ok(response);
            }
        };
        if let Some(kept) = self.challenge(caller, endpoint, &incoming).await {
            let response = self.turn_away(&kept, route.endpoint.as_deref());
            record::turned_away(endpoint, era, &incoming, response.status());
            return Ok(response);
        }
        let (incoming, refused) = record::without_limited(endpoint, era, incoming, limited)?;
        if is_modern {
            return modern::post(self, endpoint, head, caller, incoming).await;
        }
        legacy::http::post(self, endpoint, head, caller, incoming, refused).await
    }
}

/// Where a client finds the id that the log has for its request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What a client may say about itself, in bytes: it is kept for as long as its session.
pub(crate) const MAX_DECLARED_BYTES: usize = 64 * 1024;

/// The most messages in a batch.
const MAX_BATCH: usize = 100;

fn is_modern(head: &Head) -> bool {
    let version = head.headers.get(header::PROTOCOL_VERSION).and_then(|v| v.to_str().ok());
    version.and_then(ProtocolVersion::parse).is_some_and(|v| !v.has_initialize())
}

/// The error for a version that the gateway does not speak.
pub(crate) fn unsupported_version(requested: &str) -> RpcError {
    let supported: Vec<String> = ProtocolVersion::ALL.iter().rev().map(|v| format!("\"{v}\"")).collect();
    let requested_json = drawbridge_wire::json::encode_string(requested);
    RpcError::new(code::UNSUPPORTED_PROTOCOL_VERSION, format!("unsupported protocol version: {requested}"))
        .with_data(format!(r#"{{"supported":[{}],"requested":{requested_json}}}"#, supported.join(",")))
}
