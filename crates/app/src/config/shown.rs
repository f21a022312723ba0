//! The configuration as operators may see it: every value that applies, but for secrets, of which only is told that they
//! are there.
//!
//! Structures are taken apart without `..`, so that a new key can't be forgotten here.

mod auth;
mod backend;
mod policies;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

pub use self::source::{Source, Written};

use super::model::{
    Admin, Audit, Config, Drain, Endpoint, Limits, Log, Otlp, Outbound, Password, Proxy, Public, Rate, Redis,
    Streams, ToolRate,
};

use super::secret::Secret;

/// All values of a configuration, by the keys that a file has for them.
pub(in crate::config) fn shown(config: &Config) -> Vec<(String, Value)> {
    let Config {
        instance_id,
        public,
        admin,
        redis,
        database,
        audit,
        data_dir,
        seal_keys,
        auth,
        clients,
        log,
        otlp,
        limits,
        streams,
        drain,
        outbound,
        backends,
        endpoints,
        policies,
    } = config;
    let mut sheet = Sheet::default();
    sheet.put("instance_id", instance_id);
    self::public(&mut sheet, public);
    admin_listener(&mut sheet, admin);
    shared_state(&mut sheet, redis.as_ref());
    sheet.secret("database.url", database.as_ref());
    audit_trail(&mut sheet, audit);
    sheet.put("data_dir", data_dir);
    for (index, key) in seal_keys.iter().enumerate() {
        sheet.put(&format!("seal.keys[{index}].id"), &key.id);
        sheet.put(&format!("seal.keys[{index}].key"), there());
    }
    auth::auth(&mut sheet, auth);
    auth::clients(&mut sheet, clients);
    let Log { format, level } = log;
    sheet.put("log.format", format);
    sheet.put("log.level", level);
    traces(&mut sheet, otlp.as_ref());
    self::limits(&mut sheet, limits);
    let Streams { keep_alive, retry, sse_after } = streams;
    sheet.span("streams.keep_alive", *keep_alive);
    sheet.span("streams.retry", *retry);
    sheet.span("streams.sse_after", *sse_after);
    let Drain { delay, deadline } = drain;
    sheet.span("drain.delay", *delay);
    sheet.span("drain.deadline", *deadline);
    self::outbound(&mut sheet, outbound);
    for (name, one) in backends {
        backend::backend(&mut sheet, &format!("backends.{name}"), one);
    }
    for (name, Endpoint { backends, selection }) in endpoints {
        sheet.put(&format!("endpoints.{name}.backends"), backends);
        policies::selection(&mut sheet, &format!("endpoints.{name}"), selection);
    }
    match policies {
        Some(rules) => policies::rules(&mut sheet, rules),
        None => sheet.put("policies", Value::Null),
    }
    sheet.0
}

/// Keys and values, in the order of the reference.
#[derive(Default)]
struct Sheet(Vec<(String, Value)>);

impl Sheet {
    fn put(&mut self, key: &str, value: impl Serialize) {
        // What can't be written as JSON is shown as nothing.
        self.0.push((key.to_owned(), serde_json::to_value(value).unwrap_or_default()));
    }

    fn span(&mut self, key: &str, value: Duration) {
        self.put(key, text_of(value));
    }

    fn secret(&mut self, key: &str, value: Option<&Secret>) {
        self.put(key, value.map(told));
    }

    fn secrets(&mut self, key: &str, all: &BTreeMap<String, Secret>) {
        for (name, value) in all {
            self.put(&format!("{key}.{name}"), told(value));
        }
    }

    fn address(&mut self, key: &str, written: Option<&str>) {
        self.put(key, written.map(address));
    }
}

/// That there is a secret, and no more.
fn there() -> Value {
    json!({ "set": true })
}

/// That there is a secret, and in which file.
fn told(secret: &Secret) -> Value {
    match secret.file() {
        None => there(),
        Some(file) => json!({ "set": true, "file": file }),
    }
}

/// A URL without what may be secret in it: user, password, query and fragment.
fn address(written: &str) -> Value {
    let Ok(mut url) = Url::parse(written) else { return there() };
    let has_more = !url.username().is_empty() || url.password().is_some() || url.query().is_some();
    if !has_more && url.fragment().is_none() {
        return json!(written);
    }
    // A URL that can't have a user has none.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(url.query().map(|_| "redacted"));
    url.set_fragment(None);
    json!(url.as_str())
}

/// A duration as a file has it, in the largest unit that says it without rest.
fn text_of(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let fits = units.iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit));
    fits.map_or_else(|| "0s".to_owned(), |(unit, name)| format!("{}{name}", millis / unit))
}

fn public(sheet: &mut Sheet, public: &Public) {
    let Public { listen, url, allowed_origins, allowed_hosts, trusted_proxies } = public;
    sheet.put("public.listen", listen);
    sheet.address("public.url", url.as_ref().map(Url::as_str));
    sheet.put("public.allowed_origins", allowed_origins);
    sheet.put("public.allowed_hosts", allowed_hosts);
    sheet.put("public.trusted_proxies", trusted_proxies.iter().map(ToString::to_string).collect::<Vec<_>>());
}

fn admin_listener(sheet: &mut Sheet, admin: &Admin) {
    let Admin { listen, probes, bootstrap_token } = admin;
    sheet.put("admin.listen", listen);
    sheet.put("admin.probes", probes);
    sheet.secret("admin.bootstrap_token", bootstrap_token.as_ref());
}

fn shared_state(sheet: &mut Sheet, redis: Option<&Redis>) {
    let Some(Redis { url: _, user, password, ca_bundle, prefix, timeout }) = redis else {
        return sheet.put("redis.url", Value::Null);
    };
    // It may have a password.
    sheet.put("redis.url", there());
    sheet.put("redis.user", user);
    let password = password.as_ref().map(|password| match password {
        Password::Fixed(secret) => told(secret),
        Password::File(file) => json!({ "set": true, "file": file }),
    });
    sheet.put("redis.password", password);
    sheet.put("redis.ca_bundle", ca_bundle);
    sheet.put("redis.prefix", prefix);
    sheet.span("redis.timeout", *timeout);
}

fn audit_trail(sheet: &mut Sheet, audit: &Audit) {
    let Audit { calls, retention, payloads, redact, max_payload_bytes, queue, checkpoint_interval } = audit;
    sheet.put("audit.calls", calls);
    sheet.put("audit.retention", retention.map_or_else(|| "forever".to_owned(), text_of));
    sheet.put("audit.payloads", if *payloads { "redacted" } else { "off" });
    sheet.put("audit.redact", redact);
    sheet.put("audit.max_payload_bytes", max_payload_bytes);
    sheet.put("audit.queue", queue);
    sheet.span("audit.checkpoint_interval", *checkpoint_interval);
}

fn traces(sheet: &mut Sheet, otlp: Option<&Otlp>) {
    let Some(Otlp { endpoint, protocol, headers, sample, service_name }) = otlp else {
        return sheet.put("tracing.otlp.endpoint", Value::Null);
    };
    sheet.address("tracing.otlp.endpoint", Some(endpoint.as_str()));
    sheet.put("tracing.otlp.protocol", protocol);
    sheet.secrets("tracing.otlp.headers", headers);
    sheet.put("tracing.otlp.sample", sample);
    sheet.put("tracing.otlp.service_name", service_name);
}

fn limits(sheet: &mut Sheet, limits: &Limits) {
    let Limits {
        max_body_bytes,
        max_header_bytes,
        max_result_bytes,
        max_event_bytes,
        max_line_bytes,
        max_connections,
        max_sessions,
        max_streams,
        session_idle,
        event_log_bytes,
        event_log_ttl,
        max_processes,
        max_in_flight,
        answer_timeout,
        max_rounds,
        max_parked_calls,
        caller_requests_per_minute,
        caller_burst,
        token,
        endpoints,
        tools,
    } = limits;
    for (key, number) in [
        ("limits.max_body_bytes", max_body_bytes),
        ("limits.max_header_bytes", max_header_bytes),
        ("limits.max_result_bytes", max_result_bytes),
        ("limits.max_event_bytes", max_event_bytes),
        ("limits.max_line_bytes", max_line_bytes),
        ("limits.max_connections", max_connections),
        ("limits.max_sessions", max_sessions),
        ("limits.max_streams", max_streams),
        ("limits.event_log_bytes", event_log_bytes),
        ("limits.max_processes", max_processes),
        ("limits.max_in_flight", max_in_flight),
        ("limits.max_rounds", max_rounds),
        ("limits.max_parked_calls", max_parked_calls),
    ] {
        sheet.put(key, number);
    }
    sheet.span("limits.session_idle", *session_idle);
    sheet.span("limits.event_log_ttl", *event_log_ttl);
    sheet.span("limits.answer_timeout", *answer_timeout);
    sheet.put("limits.caller_requests_per_minute", caller_requests_per_minute);
    sheet.put("limits.caller_burst", caller_burst);
    match token {
        Some(one) => rate(sheet, "limits.token", *one),
        None => sheet.put("limits.token", Value::Null),
    }
    for (name, one) in endpoints {
        rate(sheet, &format!("limits.endpoints.{name}"), *one);
    }
    for (index, ToolRate { name, rate: often, is_per_caller, endpoint }) in tools.iter().enumerate() {
        let key = format!("limits.tools[{index}]");
        sheet.put(&format!("{key}.name"), name.as_str());
        rate(sheet, &key, *often);
        sheet.put(&format!("{key}.per"), if *is_per_caller { "caller" } else { "all" });
        sheet.put(&format!("{key}.endpoint"), endpoint);
    }
}

fn rate(sheet: &mut Sheet, key: &str, Rate { requests, window, burst }: Rate) {
    sheet.put(&format!("{key}.requests"), requests);
    sheet.span(&format!("{key}.window"), window);
    sheet.put(&format!("{key}.burst"), burst);
}

fn outbound(sheet: &mut Sheet, outbound: &Outbound) {
    let Outbound { ca_bundle, proxy, allow_networks } = outbound;
    sheet.put("outbound.ca_bundle", bundles(ca_bundle));
    match proxy {
        Some(Proxy { https, http, no_proxy }) => {
            // One URL of a file is for both.
            sheet.secret("outbound.proxy.url", https.as_ref().or(http.as_ref()));
            sheet.put("outbound.proxy.no_proxy", no_proxy);
        }
        None => sheet.put("outbound.proxy", "none"),
    }
    sheet.put("outbound.allow_networks", allow_networks);
}

fn bundles(files: &[PathBuf]) -> Vec<&PathBuf> {
    files.iter().collect()
}
