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
pub mod legacy;
pub mod modern;
pub mod options;
pub mod origin;
mod record;
pub mod reply;
pub mod route;
pub mod stream;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use drawbridge_core::event_log::EventRing;
use drawbridge_core::fault::Bounded;
use drawbridge_core::fleet::Peers;
use drawbridge_core::metrics::{Gauges, Metrics};
use drawbridge_core::seal::KeyRing;
use drawbridge_core::{Endpoint, Fault, Rounds, Tasks, request};
use drawbridge_wire::{ProtocolVersion, RpcError, code, header};
use http::request::Parts as Head;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use legacy::Legacy;
use options::FrontOptions;
use origin::Origins;
use reply::{Refusal, with_cors};
use route::Transport;
use stream::OpenStreams;

/// The public face of the gateway. Cheap to clone.
#[derive(Clone)]
pub struct Front(Arc<Inner>);

/// What the faces share.
pub(crate) struct Inner {
    pub(crate) options: FrontOptions,
    pub(crate) endpoints: HashMap<Option<String>, Arc<Endpoint>>,
    pub(crate) tasks: Tasks,
    origins: Origins,
    in_flight: AtomicUsize,
    pub(crate) streams: Arc<OpenStreams>,
    metrics: Arc<Metrics>,
    pub(crate) legacy: Legacy,
    rounds: Arc<Rounds>,
    pub(crate) peers: Peers,
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
    /// The other instances.
    pub peers: Peers,
}

impl Front {
    /// A front of `parts`.
    pub fn new(parts: Parts) -> Self {
        let endpoints = parts
            .endpoints
            .into_iter()
            .map(|endpoint| (endpoint.name().map(ToString::to_string), endpoint))
            .collect();
        let tasks = parts.tasks.clone();
        let legacy = Legacy::new(&parts.options, parts.keys, parts.events, tasks, &parts.peers);
        let inner = Arc::new(Inner {
            origins: Origins::new(&parts.options),
            options: parts.options,
            endpoints,
            tasks: parts.tasks,
            in_flight: AtomicUsize::new(0),
            streams: Arc::default(),
            metrics: parts.metrics,
            legacy,
            rounds: parts.rounds,
            peers: parts.peers,
        });
        legacy::fleet::attend(&inner);
        Self(inner)
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

    /// What is open and under way on this instance. The event log is not the front's.
    pub fn gauges(&self) -> Gauges {
        let inner = &self.0;
        Gauges {
            in_flight: inner.in_flight.load(Ordering::Relaxed),
            streams: inner.streams.by_kind(),
            sessions: inner.legacy.session_count(),
            parked: inner.rounds.count(),
            event_log_bytes: 0,
        }
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
        let origin = match inner.origins.check(request.headers(), request.uri()) {
            Ok(origin) => origin,
            Err(refusal) => return refusal.into_response(),
        };
        if request.method() == Method::OPTIONS {
            return reply::preflight(origin);
        }
        let traced = request.headers().get(TRACEPARENT).and_then(|v| request::Id::of_trace(v.as_bytes()));
        let id = traced.unwrap_or_else(request::Id::fresh);
        let mut response = match inner.admit() {
            Err(fault) => Refusal::unavailable(&fault).into_response(),
            Ok(_admitted) => {
                request::scope(id, inner.clone().serve(request)).await.unwrap_or_else(Refusal::into_response)
            }
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
    fn admit(self: &Arc<Self>) -> Result<Admitted, Fault> {
        let admitted = Admitted(self.clone());
        let limit = self.options.max_in_flight;
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(Fault::Busy { what: Bounded::Requests, limit });
        }
        Ok(admitted)
    }

    async fn serve(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let (head, body) = request.into_parts();
        let route = route::parse(head.uri.path()).ok_or_else(|| Refusal::not_found("no such path"))?;
        let endpoint = self.endpoints.get(&route.endpoint).cloned();
        let endpoint = endpoint.ok_or_else(|| Refusal::not_found("no such endpoint"))?;
        match (route.transport, &head.method) {
            (Transport::StreamableHttp, &Method::POST) => self.post(endpoint, &head, body).await,
            (Transport::StreamableHttp, &(Method::GET | Method::DELETE)) if is_modern(&head) => {
                Err(Refusal::status(StatusCode::METHOD_NOT_ALLOWED, "this protocol version only has POST"))
            }
            (Transport::StreamableHttp, &Method::GET) => {
                legacy::http::get(&self, &endpoint, &head.headers).await
            }
            (Transport::StreamableHttp, &Method::DELETE) => {
                legacy::http::delete(&self, &endpoint, &head.headers).await
            }
            (Transport::Sse, &Method::GET) => legacy::sse::open(&self, &route, &endpoint, &head.headers),
            (Transport::Messages, &Method::POST) => legacy::sse::post(&self, &endpoint, &head, body).await,
            _ => Err(Refusal::status(StatusCode::METHOD_NOT_ALLOWED, "method not allowed here")),
        }
    }

    async fn post(
        self: &Arc<Self>,
        endpoint: Arc<Endpoint>,
        head: &Head,
        body: Body,
    ) -> Result<Response<Body>, Refusal> {
        reply::check_media(&head.headers)?;
        let text = body::read(body, self.options.max_body_bytes).await?;
        let incoming =
            drawbridge_wire::message::Incoming::parse(text, MAX_BATCH).map_err(|e| Refusal::invalid(&e))?;
        if modern::claims(head, &incoming) {
            return modern::post(self, &endpoint, head, incoming).await;
        }
        legacy::http::post(self, &endpoint, head, incoming).await
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
