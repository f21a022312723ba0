//! `/metrics`: what the gateway counts, in the text format of Prometheus.
//!
//! The names here are a contract with dashboards and alert rules; `docs/metrics.md` explains each.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use drawbridge_core::metrics::{Direction, Gauges, Histogram, LimitKind, Metrics, Outcome, Port, Stream};
use prometheus::core::Collector as _;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder as _, TextEncoder};

/// Reads the numbers that are not counted but there.
pub type ReadGauges = Arc<dyn Fn() -> Gauges + Send + Sync>;

/// Shows what one gateway counts.
#[derive(Clone)]
pub struct Exporter {
    metrics: Arc<Metrics>,
    gauges: ReadGauges,
    /// Numbers of the whole process.
    process: Arc<ProcessCollector>,
}

impl Exporter {
    /// Shows `metrics`, and what `gauges` reads at that moment.
    pub fn new(metrics: Arc<Metrics>, gauges: ReadGauges) -> Self {
        Self { metrics, gauges, process: Arc::new(ProcessCollector::for_self()) }
    }

    /// The route `/metrics`.
    pub fn routes(self) -> Router {
        Router::new().route("/metrics", get(show)).with_state(self)
    }

    fn families(&self) -> Vec<MetricFamily> {
        let mut all = Families::default();
        requests(&mut all, &self.metrics);
        connections(&mut all, &self.metrics);
        open(&mut all, &(self.gauges)());
        backends(&mut all, &self.metrics);
        redis(&mut all, &self.metrics);
        configuration(&mut all, &self.metrics);
        credentials(&mut all, &self.metrics);
        let gauges = (self.gauges)();
        audit(&mut all, &self.metrics, &gauges);
        database(&mut all, &gauges);
        limits(&mut all, &self.metrics);
        all.0.extend(self.process.collect());
        all.0.sort_by(|a, b| a.name().cmp(b.name()));
        all.0
    }
}

async fn show(State(exporter): State<Exporter>) -> Response {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    match encoder.encode(&exporter.families(), &mut text) {
        Ok(()) => ([(header::CONTENT_TYPE, encoder.format_type().to_owned())], text).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

fn requests(all: &mut Families, metrics: &Metrics) {
    let mut counts = Vec::new();
    let mut durations = Vec::new();
    for (endpoint, counters) in metrics.endpoints() {
        for (era, method, requests) in counters.read() {
            let labels = [("endpoint", &*endpoint), ("method", method.as_str()), ("era", era.as_str())];
            for outcome in Outcome::ALL {
                let count = requests.count(*outcome);
                if count > 0 {
                    let [endpoint, method, era] = labels;
                    counts.push(counter(&[endpoint, method, era, ("outcome", outcome.as_str())], count));
                }
            }
            if !method.lasts() {
                durations.push(histogram(&labels, &requests.duration));
            }
        }
    }
    all.counters("drawbridge_requests_total", "Requests of clients that have ended.", counts);
    let help = "From the reading of a request to the end of its answer.";
    all.histograms("drawbridge_request_duration_seconds", help, durations);
    let responses = metrics.responses.read();
    let responses = responses.map(|(status, count)| counter(&[("status", &status.to_string())], count));
    all.counters("drawbridge_http_responses_total", "HTTP answers to clients.", responses.collect());
}

fn connections(all: &mut Families, metrics: &Metrics) {
    let counted = &metrics.connections;
    let open = usize::try_from(counted.open.get()).unwrap_or_default();
    all.gauge("drawbridge_open_connections", "Connections of clients that are open.", number(open));
    let refused = vec![counter(&[], counted.refused.get())];
    all.counters(
        "drawbridge_connections_refused_total",
        "Connections of clients that were one too many.",
        refused,
    );
}

fn open(all: &mut Families, gauges: &Gauges) {
    all.gauge(
        "drawbridge_in_flight_requests",
        "Requests whose answer has not begun.",
        number(gauges.in_flight),
    );
    let streams = Stream::ALL.iter().zip(gauges.streams);
    let streams = streams.map(|(kind, count)| gauge(&[("kind", kind.as_str())], number(count))).collect();
    all.gauges("drawbridge_open_streams", "Event streams that are open to clients.", streams);
    let help = "Sessions that this instance keeps something for.";
    all.gauge("drawbridge_sessions", help, number(gauges.sessions));
    all.gauge("drawbridge_parked_calls", "Calls that wait for their clients.", number(gauges.parked));
    let help = "Events in memory that clients may still fetch.";
    all.gauge("drawbridge_event_log_bytes", help, number(gauges.event_log_bytes));
}

fn backends(all: &mut Families, metrics: &Metrics) {
    let (mut counts, mut durations, mut up) = (Vec::new(), Vec::new(), Vec::new());
    let (mut processes, mut starts) = (Vec::new(), Vec::new());
    let (mut credentials, mut ends) = (Vec::new(), Vec::new());
    for (backend, counters) in metrics.backends() {
        let own = ("backend", &*backend);
        for outcome in Outcome::ALL {
            let count = counters.requests.count(*outcome);
            if count > 0 {
                counts.push(counter(&[own, ("outcome", outcome.as_str())], count));
            }
        }
        durations.push(histogram(&[own], &counters.requests.duration));
        credentials.push(counter(&[own], counters.credential_failures.get()));
        up.extend(counters.up.get().map(|is_up| gauge(&[own], f64::from(is_up))));
        #[expect(clippy::cast_precision_loss, reason = "a time in seconds")]
        ends.extend(counters.certificate_end().map(|end| gauge(&[own], end as f64)));
        if let Some(counted) = counters.processes() {
            #[expect(clippy::cast_precision_loss, reason = "a machine has fewer processes")]
            processes.push(gauge(&[own], counted.running.get() as f64));
            starts.push(counter(&[own], counted.starts.get()));
        }
    }
    all.counters("drawbridge_backend_requests_total", "Requests sent to backends that have ended.", counts);
    let help = "From the sending of a request to the end of its answer.";
    all.histograms("drawbridge_backend_request_duration_seconds", help, durations);
    let help = "Whether a backend answered when it was last asked something.";
    all.gauges("drawbridge_backend_up", help, up);
    all.gauges("drawbridge_backend_processes", "Processes of stdio backends that run.", processes);
    let help = "Processes of stdio backends that were started.";
    all.counters("drawbridge_backend_process_starts_total", help, starts);
    let help = "Times that there was no credential for a backend, or that it took none.";
    all.counters("drawbridge_backend_credential_failures_total", help, credentials);
    let help = "When the client certificate of a backend ends, as Unix time.";
    all.gauges("drawbridge_backend_client_certificate_expiry_timestamp_seconds", help, ends);
}

/// Nothing, as long as there was no word of Redis.
fn redis(all: &mut Families, metrics: &Metrics) {
    let redis = &metrics.redis;
    let Some(is_up) = redis.up.get() else { return };
    let help = "Whether Redis answered when it was last asked something.";
    all.gauge("drawbridge_redis_up", help, f64::from(is_up));
    let (mut durations, mut errors) = (Vec::new(), Vec::new());
    for port in Port::ALL {
        let (commands, labels) = (redis.port(*port), [("port", port.as_str())]);
        durations.push(histogram(&labels, &commands.duration));
        errors.push(counter(&labels, commands.errors.get()));
    }
    let help = "From the sending of a command to its answer.";
    all.histograms("drawbridge_redis_command_duration_seconds", help, durations);
    all.counters("drawbridge_redis_errors_total", "Commands that failed or took too long.", errors);
    let bus = Direction::ALL
        .iter()
        .map(|direction| counter(&[("direction", direction.as_str())], redis.bus(*direction).get()));
    all.counters("drawbridge_bus_messages_total", "Messages between instances.", bus.collect());
}

fn configuration(all: &mut Families, metrics: &Metrics) {
    let counted = &metrics.configuration;
    let reloads = [("applied", &counted.applied), ("refused", &counted.refused)];
    let reloads = reloads.map(|(result, count)| counter(&[("result", result)], count.get())).into();
    all.counters("drawbridge_config_reloads_total", "Times that the configuration was read anew.", reloads);
    let at = counted.applied_at();
    if at > Duration::ZERO {
        let help = "When a configuration was last applied, as Unix time.";
        all.gauge("drawbridge_config_last_reload_success_timestamp_seconds", help, at.as_secs_f64());
    }
    let version = gauge(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    all.gauges("drawbridge_build_info", "The version that runs, as a label.", vec![version]);
}

fn credentials(all: &mut Families, metrics: &Metrics) {
    let counted = &metrics.credentials;
    let results = [
        ("accepted", &counted.accepted),
        ("missing", &counted.missing),
        ("refused", &counted.refused),
        ("forbidden", &counted.forbidden),
        ("unavailable", &counted.unavailable),
        ("limited", &counted.limited),
    ];
    let results = results.map(|(result, count)| counter(&[("result", result)], count.get())).into();
    all.counters("drawbridge_credentials_total", "Credentials of requests, and what came of them.", results);
}

fn limits(all: &mut Families, metrics: &Metrics) {
    let counted = &metrics.limits;
    let refused = LimitKind::ALL.iter();
    let refused = refused.map(|kind| counter(&[("limit", kind.as_str())], counted.refused(*kind).get()));
    all.counters("drawbridge_limited_total", "Requests and calls that came too often.", refused.collect());
    let help = "Requests for which this instance counted alone.";
    all.counters("drawbridge_limits_degraded_total", help, vec![counter(&[], counted.degraded.get())]);
}

/// Nothing, where there is no trail.
fn audit(all: &mut Families, metrics: &Metrics, gauges: &Gauges) {
    let counted = &metrics.audit;
    if !counted.has_trail() {
        return;
    }
    let one = |count| vec![counter(&[], count)];
    all.counters(
        "drawbridge_audit_entries_total",
        "Entries written into the audit trail.",
        one(counted.written.get()),
    );
    let help = "Calls and actions that are in no entry of the audit trail.";
    all.counters("drawbridge_audit_lost_total", help, one(counted.lost.get()));
    let help = "Times that a chain was not swept because it does not hold.";
    all.counters("drawbridge_audit_broken_chains_total", help, one(counted.broken.get()));
    all.gauge("drawbridge_audit_queue", "Calls that wait to be written down.", number(gauges.audit_queue));
}

/// Nothing, where there is no database.
fn database(all: &mut Families, gauges: &Gauges) {
    if let Some(is_up) = gauges.database_up {
        let help = "Whether the database was read within the last seconds.";
        all.gauge("drawbridge_database_up", help, f64::from(is_up));
    }
    if let Some(is_current) = gauges.revocations_current {
        let help = "Whether all that was revoked is known, without which no caller is let in.";
        all.gauge("drawbridge_revocations_current", help, f64::from(is_current));
    }
}

#[derive(Default)]
struct Families(Vec<MetricFamily>);

impl Families {
    /// Adds a family, unless it is empty.
    fn add(&mut self, kind: MetricType, name: &str, help: &str, metrics: Vec<Metric>) {
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.0.push(family);
    }

    fn counters(&mut self, name: &str, help: &str, metrics: Vec<Metric>) {
        self.add(MetricType::COUNTER, name, help, metrics);
    }

    fn gauges(&mut self, name: &str, help: &str, metrics: Vec<Metric>) {
        self.add(MetricType::GAUGE, name, help, metrics);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, vec![gauge(&[], value)]);
    }

    fn histograms(&mut self, name: &str, help: &str, metrics: Vec<Metric>) {
        self.add(MetricType::HISTOGRAM, name, help, metrics);
    }
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

fn counter(labels: &[(&str, &str)], count: u64) -> Metric {
    let (mut metric, mut counter) = (labelled(labels), proto::Counter::default());
    #[expect(clippy::cast_precision_loss, reason = "the format has only such numbers")]
    counter.set_value(count as f64);
    metric.set_counter(counter);
    metric
}

fn gauge(labels: &[(&str, &str)], value: f64) -> Metric {
    let (mut metric, mut gauge) = (labelled(labels), proto::Gauge::default());
    gauge.set_value(value);
    metric.set_gauge(gauge);
    metric
}

fn histogram(labels: &[(&str, &str)], counted: &Histogram) -> Metric {
    let (buckets, count, sum) = counted.read();
    let buckets = buckets.into_iter().map(|(bound, count)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(count);
        bucket
    });
    let (mut metric, mut histogram) = (labelled(labels), proto::Histogram::default());
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(count);
    histogram.set_sample_sum(sum);
    metric.set_histogram(histogram);
    metric
}

#[expect(clippy::cast_precision_loss, reason = "the format has only such numbers")]
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use drawbridge_core::Fault;
    use drawbridge_core::metrics::{Era, Method};

    use super::*;

    #[test]
    fn what_is_counted_is_shown_under_the_names_of_the_contract() {
        let metrics = Arc::<Metrics>::default();
        let (method, took) = (Method::of("tools/call"), Duration::from_millis(3));
        metrics.endpoint("one").ended(Era::Modern, method, Outcome::ToolError, took);
        metrics.responses.count(200);
        metrics.backend("b").as_program().starts.inc();
        metrics.backend("b").up.set(true);
        metrics.redis.up.set(false);
        metrics.redis.bus(Direction::Sent).inc();
        metrics.configuration.is_applied();
        metrics.audit.is_kept();
        metrics.audit.lost.add(3);
        metrics.backend("b").failed(&Fault::Refused { backend: "b".to_owned(), status: 401 });
        metrics.backend("b").failed(&Fault::Draining);
        let (database_up, revocations_current) = (Some(false), Some(true));
        let gauges = Gauges { audit_queue: 2, streams: [1, 2, 3, 4], sessions: 7, ..Gauges::default() };
        let gauges = Gauges { database_up, revocations_current, ..gauges };
        let exporter = Exporter::new(metrics, Arc::new(move || gauges));
        let text = TextEncoder::new().encode_to_string(&exporter.families()).unwrap();
        for line in [
            r#"drawbridge_requests_total{endpoint="one",method="tools/call",era="modern",outcome="tool_error"} 1"#,
            r#"drawbridge_request_duration_seconds_bucket{endpoint="one",method="tools/call",era="modern",le="0.005"} 1"#,
            r#"drawbridge_request_duration_seconds_sum{endpoint="one",method="tools/call",era="modern"} 0.003"#,
            r#"drawbridge_http_responses_total{status="200"} 1"#,
            r#"drawbridge_open_streams{kind="listen"} 3"#,
            "drawbridge_sessions 7",
            r#"drawbridge_backend_up{backend="b"} 1"#,
            r#"drawbridge_backend_processes{backend="b"} 0"#,
            r#"drawbridge_backend_process_starts_total{backend="b"} 1"#,
            "drawbridge_redis_up 0",
            r#"drawbridge_redis_errors_total{port="leases"} 0"#,
            r#"drawbridge_bus_messages_total{direction="sent"} 1"#,
            r#"drawbridge_config_reloads_total{result="refused"} 0"#,
            "drawbridge_audit_lost_total 3",
            "drawbridge_audit_queue 2",
            "drawbridge_database_up 0",
            "drawbridge_revocations_current 1",
            r#"drawbridge_backend_credential_failures_total{backend="b"} 1"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("drawbridge_config_last_reload_success_timestamp_seconds 1"), "{text}");
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
    }
}
