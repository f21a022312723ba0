//! From the raw model to a checked configuration: rules that one key alone can't state.
//!
//! Checks never stop at the first fault: each reports to the [`Checker`] and goes on with a default.

mod audit;
mod auth;
mod backend;
mod backend_auth;
mod clients;
mod endpoint;
mod outbound;
mod policies;
mod public;
mod rate;
mod redis;
mod tracing;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use tracing_subscriber::filter::LevelFilter;

pub(super) use self::backend::backend;
pub(super) use self::endpoint::{endpoints, name_fault};

use super::model::{Admin, Config, Drain, Limits, Log, Streams};
use super::position::{Position, Positions, is_within};
use super::problem::{Notice, Problem, suggest};
use super::raw;
use super::secret::{self, SealKey, Secret};
use super::value::{ByteSize, SecretSource, Span};

/// Base64 with or without `=` at the end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Collects the problems of one file, each with its place.
pub(super) struct Checker<'a> {
    pub(super) file: &'a str,
    pub(super) positions: &'a Positions,
    /// Keys that a flag or its environment variable has set, and the name of that flag.
    pub(super) flags: &'a BTreeMap<&'static str, &'static str>,
    pub(super) env: &'a HashMap<String, String>,
    pub(super) problems: Vec<Problem>,
    pub(super) notices: Vec<Notice>,
    left_out: Vec<String>,
}

impl<'a> Checker<'a> {
    /// A checker that has found nothing yet.
    pub(super) fn new(
        file: &'a str,
        positions: &'a Positions,
        flags: &'a BTreeMap<&'static str, &'static str>,
        env: &'a HashMap<String, String>,
    ) -> Self {
        let (problems, notices, left_out) = (Vec::new(), Vec::new(), Vec::new());
        Self { file, positions, flags, env, problems, notices, left_out }
    }

    /// Adds the faults of form; what is at fault was left out.
    pub(super) fn add_faults_of_form(&mut self, faults: Vec<Problem>, left_out: Vec<String>) {
        self.problems.extend(faults);
        self.left_out = left_out;
    }

    /// Whether something in the mapping at `path` was left out, so that what it lacks may have been there.
    pub(super) fn is_incomplete(&self, path: &str) -> bool {
        self.left_out.iter().any(|gone| is_within(gone, path))
    }

    /// What was found, in the order of the file.
    pub(super) fn finish(mut self) -> (Vec<Problem>, Vec<Notice>) {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        self.notices.sort_by_key(|notice| (notice.line, notice.column));
        (self.problems, self.notices)
    }

    /// Reports a problem with the key at `path`.
    pub(super) fn problem(&mut self, path: &str, message: impl Into<String>, hint: impl Into<String>) {
        let (file, line, column) = match self.flags.get(path) {
            Some(flag) => (*flag, 0, 0),
            None => {
                let Position { line, column } = self.positions.of(path);
                (self.file, line, column)
            }
        };
        self.problems.push(Problem {
            file: file.to_owned(),
            line,
            column,
            path: path.to_owned(),
            message: message.into(),
            hint: Some(hint.into()),
        });
    }

    /// Tells something about the key at `path` that is no fault.
    pub(super) fn notice(&mut self, path: &str, message: impl Into<String>) {
        let Position { line, column } = self.positions.of(path);
        let message = message.into();
        self.notices.push(Notice { file: self.file.to_owned(), line, column, message });
    }

    /// Tells that a value still holds `${`: in quotes it is not replaced, which may not be what was meant.
    pub(super) fn notice_literal_variable(&mut self, path: &str, value: &str) {
        if value.contains("${") {
            self.notice(path, format!("{path}: `${{...}}` in quotes is passed on as it is"));
        }
    }

    /// The value of a secret, or a problem that names its key.
    pub(super) fn secret(&mut self, path: &str, source: SecretSource) -> Option<Secret> {
        match source {
            SecretSource::Literal(value) => {
                self.notice_literal_variable(path, &value);
                Some(Secret::new(value))
            }
            SecretSource::Env(name) => {
                let value = self.env.get(&name).map(Secret::new);
                if value.is_none() {
                    let message = format!("environment variable {name} is not set");
                    self.problem(path, message, format!("set {name} where the gateway is started"));
                }
                value
            }
            SecretSource::File(file) => match secret::read(&file) {
                Ok(value) => Some(Secret::of_file(value, file)),
                Err(error) => {
                    let message = format!("can't read the secret from {}: {error}", file.display());
                    self.problem(path, message, "check the path and who may read it");
                    None
                }
            },
        }
    }

    /// A duration that must not be 0.
    pub(super) fn positive(&mut self, path: &str, written: Option<Span>, default: Duration) -> Duration {
        match written {
            Some(Span(duration)) if duration.is_zero() => {
                self.problem(
                    path,
                    "must be longer than 0",
                    "name a duration such as `30s`, or remove the key",
                );
                default
            }
            Some(Span(duration)) => duration,
            None => default,
        }
    }
}

/// Checks everything but the endpoints, which need the backends of all files.
pub(super) fn file(checker: &mut Checker<'_>, file: raw::File) -> (Config, BTreeMap<String, raw::Endpoint>) {
    let instance_id = instance_id(checker, file.instance_id);
    let mut config = Config { instance_id, ..Config::default() };
    config.public = public::public(checker, file.public.unwrap_or_default());
    config.admin = admin(checker, file.admin.unwrap_or_default());
    addresses(checker, &config);
    config.data_dir = file.data_dir.unwrap_or(config.data_dir);
    let seal = file.seal.unwrap_or_default();
    config.redis = redis::redis(checker, file.redis, &seal);
    config.seal_keys = seal_keys(checker, seal);
    config.database = auth::database(checker, file.database);
    let mut auth = file.auth.unwrap_or_default();
    config.clients = clients::clients(checker, auth.clients.take().unwrap_or_default());
    config.auth = auth::auth(checker, auth, &config);
    config.audit = audit::audit(checker, file.audit, &config);
    config.log = log(checker, file.log.unwrap_or_default());
    config.otlp = tracing::otlp(checker, file.tracing.unwrap_or_default());
    config.limits = limits(checker, file.limits.unwrap_or_default());
    config.streams = streams(checker, &file.streams.unwrap_or_default());
    config.drain = drain(&file.drain.unwrap_or_default(), config.redis.is_some());
    config.outbound = outbound::outbound(checker, file.outbound.unwrap_or_default());
    for (name, raw) in file.backends.unwrap_or_default() {
        let path = format!("backends.{name}");
        if let Some(fault) = name_fault(&name) {
            checker.problem(&path, fault.message, fault.hint);
        }
        if let Some(checked) = backend(checker, &path, raw) {
            config.backends.insert(name, checked);
        }
    }
    backend_auth::all(checker, &config);
    config.policies = policies::policies(checker, file.policies, config.auth.mode);
    (config, file.endpoints.unwrap_or_default())
}

fn admin(checker: &mut Checker<'_>, raw: raw::Admin) -> Admin {
    let default = Admin::default();
    let bootstrap_token = raw
        .bootstrap_token
        .and_then(|source| auth::bootstrap_token(checker, "admin.bootstrap_token", source));
    let admin = Admin { listen: raw.listen.unwrap_or(default.listen), probes: raw.probes, bootstrap_token };
    if !admin.listen.ip().is_loopback() {
        let hint = "listen on 127.0.0.1; for orchestrators and metrics set `admin.probes: 0.0.0.0:9091`";
        checker.problem(
            "admin.listen",
            "not all of this listener asks for a credential, so it stays on loopback",
            hint,
        );
    }
    admin
}

/// Each listener needs an address of its own.
fn addresses(checker: &mut Checker<'_>, config: &Config) {
    let mut taken = vec![("public.listen", config.public.listen)];
    let others = [("admin.listen", Some(config.admin.listen)), ("admin.probes", config.admin.probes)];
    for (path, address) in others {
        let Some(address) = address else { continue };
        if let Some((key, other)) = taken.iter().find(|(_, other)| collide(address, *other)) {
            let hint = "choose another port for one of them; 0 takes a free one";
            checker.problem(path, format!("{address} can't be had beside {key} at {other}"), hint);
        }
        taken.push((path, address));
    }
}

/// Whether two listeners can't have these addresses at a time.
fn collide(one: SocketAddr, two: SocketAddr) -> bool {
    let (a, b) = (one.ip(), two.ip());
    // `[::]` takes the addresses of both families.
    let is_all_of = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    one.port() != 0 && one.port() == two.port() && (a == b || is_all_of(a, b) || is_all_of(b, a))
}

fn instance_id(checker: &mut Checker<'_>, id: Option<String>) -> Option<String> {
    let id = id?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if id.is_empty() || id.len() > 64 || !id.bytes().all(allowed) {
        let hint = "use 1 to 64 letters, digits, `.`, `_` or `-`";
        checker.problem("instance_id", "not a usable name", hint);
    }
    Some(id)
}

fn seal_keys(checker: &mut Checker<'_>, seal: raw::Seal) -> Vec<SealKey> {
    let mut keys: Vec<SealKey> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for (index, raw) in seal.keys.unwrap_or_default().into_iter().enumerate() {
        let path = format!("seal.keys[{index}]");
        if raw.id.is_empty() || !seen.insert(raw.id.clone()) {
            let hint = "give each key a name of its own, such as `k2`";
            checker.problem(&format!("{path}.id"), "the name is empty or used twice", hint);
        }
        let path = format!("{path}.key");
        let Some(secret) = checker.secret(&path, raw.key) else {
            continue;
        };
        match seal_key_bytes(&secret) {
            Some(bytes) => keys.push(SealKey::new(raw.id, bytes)),
            None => {
                checker.problem(&path, "not 32 bytes in base64", "make one with `openssl rand -base64 32`")
            }
        }
    }
    keys
}

fn seal_key_bytes(secret: &Secret) -> Option<[u8; 32]> {
    BASE64.decode(secret.expose().trim()).ok()?.try_into().ok()
}

fn log(checker: &mut Checker<'_>, log: raw::Log) -> Log {
    let default = Log::default();
    let level = log.level.unwrap_or(default.level);
    if tracing_subscriber::EnvFilter::builder().parse(&level).is_err() {
        let hint = "use a level such as `info`, or `info,drawbridge_upstream=debug`";
        checker.problem("log.level", "not a log filter", hint);
    } else if let Some(word) = unknown_level(&level) {
        let hint = suggest(word, LEVELS);
        checker.problem("log.level", format!("there is no level `{word}`"), hint);
    }
    Log { format: log.format.unwrap_or(default.format), level }
}

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// A word of a filter that stands where a level should. The logger takes it for a module of which all is to be logged,
/// and then logs nothing of the others.
fn unknown_level(filter: &str) -> Option<&str> {
    if filter.contains(['{', '[']) {
        return None;
    }
    let mut words = filter.split(',').map(str::trim);
    words.find(|word| !word.is_empty() && !word.contains('=') && word.parse::<LevelFilter>().is_err())
}

fn limits(checker: &mut Checker<'_>, raw: raw::Limits) -> Limits {
    let default = Limits::default();
    let size = |written: Option<ByteSize>, default| written.map_or(default, |ByteSize(bytes)| bytes);
    let count = |written: Option<NonZeroUsize>, default| written.map_or(default, NonZeroUsize::get);
    Limits {
        max_body_bytes: size(raw.max_body_bytes, default.max_body_bytes),
        max_header_bytes: size(raw.max_header_bytes, default.max_header_bytes),
        max_result_bytes: size(raw.max_result_bytes, default.max_result_bytes),
        max_event_bytes: size(raw.max_event_bytes, default.max_event_bytes),
        max_line_bytes: size(raw.max_line_bytes, default.max_line_bytes),
        max_connections: count(raw.max_connections, default.max_connections),
        max_sessions: count(raw.max_sessions, default.max_sessions),
        max_streams: count(raw.max_streams, default.max_streams),
        session_idle: checker.positive("limits.session_idle", raw.session_idle, default.session_idle),
        event_log_bytes: size(raw.event_log_bytes, default.event_log_bytes),
        event_log_ttl: checker.positive("limits.event_log_ttl", raw.event_log_ttl, default.event_log_ttl),
        max_processes: count(raw.max_processes, default.max_processes),
        max_in_flight: count(raw.max_in_flight, default.max_in_flight),
        answer_timeout: checker.positive("limits.answer_timeout", raw.answer_timeout, default.answer_timeout),
        max_rounds: count(raw.max_rounds, default.max_rounds),
        max_parked_calls: count(raw.max_parked_calls, default.max_parked_calls),
        caller_requests_per_minute: raw.caller_requests_per_minute,
        caller_burst: raw.caller_burst,
        token: raw.token.map(|rate| rate::rate(checker, "limits.token", &rate)),
        endpoints: rate::endpoints(checker, raw.endpoints.unwrap_or_default()),
        tools: rate::tools(checker, raw.tools.unwrap_or_default()),
    }
}

fn streams(checker: &mut Checker<'_>, raw: &raw::Streams) -> Streams {
    let default = Streams::default();
    Streams {
        keep_alive: checker.positive("streams.keep_alive", raw.keep_alive, default.keep_alive),
        retry: raw.retry.map_or(default.retry, |Span(duration)| duration),
        sse_after: raw.sse_after.map_or(default.sse_after, |Span(duration)| duration),
    }
}

fn drain(raw: &raw::Drain, is_fleet: bool) -> Drain {
    let default = Drain::default();
    // One instance alone has no balancer that could send requests elsewhere.
    let delay = if is_fleet { Duration::from_secs(3) } else { default.delay };
    Drain {
        delay: raw.delay.map_or(delay, |Span(duration)| duration),
        deadline: raw.deadline.map_or(default.deadline, |Span(duration)| duration),
    }
}
