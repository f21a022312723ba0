//! Checks of where traces go.

use url::Url;

use crate::config::check::Checker;
use crate::config::model::Otlp;
use crate::config::raw::{self, OtlpProtocol};

/// The variable of OpenTelemetry that names a collector.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The one that names the service.
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const PATH: &str = "tracing.otlp.endpoint";

/// Checks the collector of traces, if one is named in the file or in the environment.
pub(super) fn otlp(checker: &mut Checker<'_>, raw: raw::Tracing) -> Option<Otlp> {
    let raw = raw.otlp.unwrap_or_default();
    let in_environment = |name: &str| checker.env.get(name).filter(|value| !value.is_empty()).cloned();
    let service_name = in_environment(SERVICE_NAME).unwrap_or_else(|| "drawbridge".to_owned());
    let written = raw.endpoint.or_else(|| in_environment(ENDPOINT));
    let protocol = raw.protocol.unwrap_or_default();
    let sample = raw.sample.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&sample) {
        checker.problem("tracing.otlp.sample", "not a share", "write a number from 0 to 1, such as `0.1`");
    }
    let mut headers = std::collections::BTreeMap::new();
    for (name, source) in raw.headers.unwrap_or_default() {
        let path = format!("tracing.otlp.headers.{name}");
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            checker.problem(&path, "not the name of a header", "use letters, digits and `-`");
        }
        if let Some(value) = checker.secret(&path, source) {
            if http::HeaderValue::from_str(value.expose()).is_err() {
                checker.problem(&path, "not the value of a header", "use visible characters in one line");
            }
            headers.insert(name, value);
        }
    }
    let endpoint = endpoint(checker, &written?, protocol)?;
    Some(Otlp { endpoint, protocol, headers, sample, service_name })
}

fn endpoint(checker: &mut Checker<'_>, written: &str, protocol: OtlpProtocol) -> Option<Url> {
    let url = Url::parse(written).ok().filter(Url::has_host);
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https"));
    if url.is_none() {
        let hint = "write it as `http://HOST:4318`, or with `protocol: grpc` as `http://HOST:4317`";
        checker.problem(PATH, "not the URL of a collector", hint);
    }
    let url = url?;
    if protocol == OtlpProtocol::Grpc && url.scheme() == "https" {
        checker.problem(PATH, "gRPC is spoken without TLS", "use `protocol: http`, or a collector nearby");
    }
    Some(url)
}
