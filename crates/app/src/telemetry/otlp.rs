//! Traces go to a collector, by OTLP over HTTP or gRPC.
//!
//! Spans that have ended wait in a queue; a task takes them out in batches. If the collector is slow or away, spans are
//! lost, and calls go on as they would without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use axum::body::Bytes;
use drawbridge_core::Tasks;
use drawbridge_core::trace::{Collector, Kind, Span, Tracer, Value};
use drawbridge_upstream::http::Target;
use drawbridge_upstream::{Outbound, OutboundOptions};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::{
    Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;

use crate::config::{Otlp, OtlpProtocol};

/// Spans that wait for the collector; what comes on top is lost.
const MAX_WAITING: usize = 4096;
/// Spans that are sent together.
const MAX_BATCH: usize = 512;
/// A span waits this long for others.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// The collector gets this long for a batch.
const PATIENCE: Duration = Duration::from_secs(10);
/// At the end, what waits is sent if that takes no longer.
pub(crate) const FAREWELL: Duration = Duration::from_secs(3);
/// The most of an answer that is read.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Where traces go, below the collector's URL (OTLP § HTTP).
const PATH: &str = "/v1/traces";

/// The way to the collector.
#[derive(Debug)]
struct Client(Outbound);

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.0.send(request.map(Full::new)).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}

/// Takes spans for the task that sends them.
struct Queue {
    spans: mpsc::Sender<Span>,
    lost: Arc<AtomicU64>,
}

impl Collector for Queue {
    fn take(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Starts to send what the tracer that it gives records, until `tasks` drain.
///
/// # Errors
///
/// If the collector can't be spoken to as configured.
pub(crate) fn start(config: &Otlp, outbound: &OutboundOptions, tasks: &Tasks) -> anyhow::Result<Tracer> {
    let exporter = exporter(config, outbound).context("tracing.otlp")?;
    let (spans, waiting) = mpsc::channel(MAX_WAITING);
    let lost = Arc::<AtomicU64>::default();
    let sending = Sending { exporter, lost: lost.clone(), is_away: false };
    let draining = tasks.clone();
    tasks.spawn("send traces", async move { sending.run(waiting, &draining).await });
    Ok(Tracer::new(Arc::new(Queue { spans, lost }), config.sample))
}

fn exporter(config: &Otlp, outbound: &OutboundOptions) -> anyhow::Result<SpanExporter> {
    let headers = config.headers.iter().map(|(name, value)| (name.clone(), value.expose().to_owned()));
    let mut exporter = match config.protocol {
        OtlpProtocol::Http => {
            let base = config.endpoint.as_str().trim_end_matches('/');
            let endpoint = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
            let target = Target::parse(&endpoint)?;
            let client = Client(Outbound::new(target.uri(), outbound)?);
            let http = SpanExporter::builder().with_http().with_http_client(client);
            let http =
                http.with_protocol(Protocol::HttpBinary).with_endpoint(endpoint).with_timeout(PATIENCE);
            http.with_headers(headers.collect()).build()?
        }
        OtlpProtocol::Grpc => {
            let mut metadata = HeaderMap::new();
            for (name, value) in headers {
                metadata.insert(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(&value)?);
            }
            let metadata = MetadataMap::from_headers(metadata);
            let grpc = SpanExporter::builder().with_tonic().with_metadata(metadata);
            grpc.with_endpoint(config.endpoint.as_str()).with_timeout(PATIENCE).build()?
        }
    };
    let own = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_service_name(config.service_name.clone()).with_attribute(own);
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

struct Sending {
    exporter: SpanExporter,
    lost: Arc<AtomicU64>,
    /// The last batch could not be sent.
    is_away: bool,
}

impl Sending {
    async fn run(mut self, mut waiting: mpsc::Receiver<Span>, tasks: &Tasks) {
        let scope =
            InstrumentationScope::builder("drawbridge").with_version(env!("CARGO_PKG_VERSION")).build();
        let mut batch = Vec::with_capacity(MAX_BATCH);
        loop {
            let drains = tokio::select! {
                read = waiting.recv_many(&mut batch, MAX_BATCH) => read == 0,
                () = tasks.draining() => true,
            };
            if drains {
                break;
            }
            let full = async {
                while batch.len() < MAX_BATCH && waiting.recv_many(&mut batch, MAX_BATCH).await > 0 {}
            };
            tokio::select! {
                _ = tokio::time::timeout(MAX_WAIT, full) => {}
                () = tasks.draining() => {}
            }
            self.send(&mut batch, &scope).await;
        }
        while let Ok(span) = waiting.try_recv() {
            batch.push(span);
        }
        let _ = tokio::time::timeout(FAREWELL, self.send(&mut batch, &scope)).await;
    }

    async fn send(&mut self, batch: &mut Vec<Span>, scope: &InstrumentationScope) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len();
        let spans = batch.drain(..).map(|span| data(span, scope)).collect();
        let sent = tokio::time::timeout(PATIENCE, self.exporter.export(spans)).await;
        let outcome = match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_late) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        match outcome {
            Ok(()) => {
                let lost = self.lost.swap(0, Ordering::Relaxed);
                if lost > 0 || self.is_away {
                    tracing::warn!(spans.lost = lost, "traces are sent again");
                }
                self.is_away = false;
            }
            Err(e) => {
                self.lost.fetch_add(count as u64, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(error.message = ?e, "traces can't be sent to the collector, and are lost");
                }
            }
        }
    }
}

fn data(span: Span, scope: &InstrumentationScope) -> SpanData {
    let context = &span.context;
    let state = context.state().and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    let span_context = SpanContext::new(
        TraceId::from_bytes(context.trace),
        SpanId::from_bytes(context.span),
        TraceFlags::SAMPLED,
        false,
        state,
    );
    let attribute = |(key, value)| match value {
        Value::Text(text) => KeyValue::new(key, text.into_owned()),
        Value::Number(number) => KeyValue::new(key, number),
    };
    SpanData {
        span_context,
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: span.is_parent_remote,
        span_kind: match span.kind {
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
        },
        name: span.name.into(),
        start_time: span.begun,
        end_time: span.begun + span.took,
        attributes: span.attributes.into_iter().map(attribute).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: if span.has_failed { Status::error("") } else { Status::Unset },
        instrumentation_scope: scope.clone(),
    }
}
