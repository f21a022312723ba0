//! Checks of one backend.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use drawbridge_credentials::caller::{self, BadTemplate, Template};
use drawbridge_upstream::client_certificate::{self, BadCertificate};
use hyper::header::{HeaderName, HeaderValue};
use url::Url;

use crate::config::check::Checker;
use crate::config::check::backend_auth::backend_auth;
use crate::config::check::outbound::bundles;
use crate::config::check::policies::globs;
use crate::config::model::{Backend, BackendKind, ClientCertificate, HttpBackend, StdioBackend};
use crate::config::problem::suggest;
use crate::config::raw;
use crate::config::secret::Secret;
use crate::config::value::{SecretSource, Span};

/// Headers that the gateway itself writes, or that are about a connection, so that a configured value would break a
/// request.
const OWN_HEADERS: [&str; 12] = [
    "accept",
    "connection",
    caller::IDENTITY_HEADER,
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "traceparent",
    "upgrade",
];
const OWN_PREFIXES: [&str; 3] = ["content-", "mcp-", "proxy-"];

/// Who was not told of a change lives with the old list for this long at most.
const LONGEST_LIST_TTL: Duration = Duration::from_secs(24 * 3600);

/// Whether the gateway itself writes a header; its name is in lower case.
fn is_own(name: &str) -> bool {
    OWN_HEADERS.contains(&name) || OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Checks the name of a header that is to be sent.
pub(super) fn header_name(checker: &mut Checker<'_>, path: &str, name: &str) -> Option<String> {
    let Ok(checked) = name.parse::<HeaderName>() else {
        checker.problem(path, "not the name of a header", "use letters, digits and `-`");
        return None;
    };
    if is_own(checked.as_str()) {
        checker.problem(path, "the gateway writes this header itself", "remove the key");
    }
    Some(checked.as_str().to_owned())
}

/// Checks the value of a header that is to be sent.
pub(super) fn header_value(checker: &mut Checker<'_>, path: &str, source: SecretSource) -> Option<Secret> {
    let value = checker.secret(path, source)?;
    if HeaderValue::from_str(value.expose()).is_err() {
        let hint = "remove line breaks and control characters";
        checker.problem(path, "the value can't be sent in a header", hint);
    }
    Some(value)
}

/// Checks the backend at `path`; `None` if it has no usable way to be reached.
pub(in crate::config) fn backend(
    checker: &mut Checker<'_>,
    path: &str,
    mut raw: raw::Backend,
) -> Option<Backend> {
    let kind = match (raw.url.take(), raw.command.take()) {
        (Some(url), None) => {
            refuse_foreign(checker, path, &stdio_keys(&raw), "url", "command");
            BackendKind::Http(http(checker, path, &url, &mut raw)?)
        }
        (None, Some(command)) => {
            refuse_foreign(checker, path, &http_keys(&raw), "command", "url");
            BackendKind::Stdio(stdio(checker, path, command, &mut raw))
        }
        (Some(_), Some(_)) => {
            let hint = "keep `url` for a server reached over HTTP, `command` for one to start";
            checker.problem(path, "a backend has `url` or `command`, not both", hint);
            return None;
        }
        (None, None) if checker.is_incomplete(path) => return None,
        (None, None) => {
            let hint =
                "add `url: https://...` for a server reached over HTTP, or `command: ...` for one to start";
            checker.problem(path, "a backend needs `url` or `command`", hint);
            return None;
        }
    };
    Some(common(checker, path, &raw, kind))
}

fn common(checker: &mut Checker<'_>, path: &str, raw: &raw::Backend, kind: BackendKind) -> Backend {
    let default = Backend::new(kind);
    let list_ttl = raw.list_ttl.map_or(default.list_ttl, |Span(duration)| duration);
    if list_ttl > LONGEST_LIST_TTL {
        let hint = format!("the most is `{}`", humantime::format_duration(LONGEST_LIST_TTL));
        checker.problem(&format!("{path}.list_ttl"), "too long", hint);
    }
    let read_tools = globs(checker, &format!("{path}.read_tools"), raw.read_tools.as_ref());
    let hosts = format!("{path}.elicitation_hosts");
    let elicitation_hosts = globs(checker, &hosts, raw.elicitation_hosts.as_ref());
    let mut deadline = |key: &str, written: Option<Span>, default: Duration| {
        checker.positive(&format!("{path}.{key}"), written, default)
    };
    Backend {
        era: raw.era.unwrap_or(default.era),
        session_scope: raw.session_scope.unwrap_or(default.session_scope),
        era_ttl: deadline("era_ttl", raw.era_ttl, default.era_ttl),
        timeout: deadline("timeout", raw.timeout, default.timeout),
        connect_timeout: deadline("connect_timeout", raw.connect_timeout, default.connect_timeout),
        first_byte_timeout: deadline(
            "first_byte_timeout",
            raw.first_byte_timeout,
            default.first_byte_timeout,
        ),
        idle_timeout: deadline("idle_timeout", raw.idle_timeout, default.idle_timeout),
        list_timeout: deadline("list_timeout", raw.list_timeout, default.list_timeout),
        cache: raw.cache.unwrap_or(default.cache),
        list_ttl,
        read_tools,
        trust_annotations: raw.trust_annotations.unwrap_or(default.trust_annotations),
        elicitation_hosts,
        kind: default.kind,
    }
}

fn http(checker: &mut Checker<'_>, path: &str, url: &str, raw: &mut raw::Backend) -> Option<HttpBackend> {
    let headers = headers(checker, path, raw.headers.take().unwrap_or_default());
    let caller_headers =
        caller_headers(checker, path, raw.caller_headers.take().unwrap_or_default(), &headers);
    let url = backend_url(checker, path, url);
    let certificate = raw.client_certificate.take();
    let client_certificate =
        certificate.and_then(|written| client_certificate(checker, path, written, url.as_ref()));
    let auth = raw.auth.take();
    let auth = auth.and_then(|auth| {
        let fixed = headers.keys().map(|name| ("headers", name));
        let names = fixed.chain(caller_headers.keys().map(|name| ("caller_headers", name)));
        backend_auth(checker, path, auth, url.as_ref(), names)
    });
    let default = HttpBackend::new(url?);
    Some(HttpBackend {
        transport: raw.transport.unwrap_or(default.transport),
        headers,
        caller_headers,
        identity_jwt: raw.identity_jwt.unwrap_or(default.identity_jwt),
        auth,
        client_certificate: client_certificate.map(Box::new),
        ca_bundle: bundles(checker, &format!("{path}.ca_bundle"), raw.ca_bundle.take()),
        ..default
    })
}

/// Checks what the backend at `path` is told of callers, beside the headers that are the same for all.
fn caller_headers(
    checker: &mut Checker<'_>,
    path: &str,
    written: BTreeMap<String, String>,
    fixed: &BTreeMap<String, Secret>,
) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::new();
    for (name, text) in written {
        let path = format!("{path}.caller_headers.{name}");
        let Some(checked) = header_name(checker, &path, &name) else { continue };
        if let Err(why) = Template::parse(&text) {
            let hint = match &why {
                BadTemplate::Fixed => "what is the same for all callers goes into `headers`".to_owned(),
                BadTemplate::Unknown(name) => suggest(name, Template::names()),
                BadTemplate::Open => "write it as `{principal.sub}`".to_owned(),
                BadTemplate::Unsendable => {
                    "remove line breaks, control characters and what is no ASCII".to_owned()
                }
            };
            checker.problem(&path, why.to_string(), hint);
        }
        let is_there = fixed.contains_key(&checked);
        if headers.insert(checked, text).is_some() || is_there {
            let hint = "case makes no difference: keep one of the two";
            checker.problem(&path, "this header is given twice", hint);
        }
    }
    headers
}

/// Checks what the backend at `path`, which is at `url`, is shown in TLS.
fn client_certificate(
    checker: &mut Checker<'_>,
    path: &str,
    written: raw::ClientCertificate,
    url: Option<&Url>,
) -> Option<ClientCertificate> {
    let path = format!("{path}.client_certificate");
    if url.is_some_and(|url| url.scheme() != "https") {
        let hint = "it is shown in TLS: write the `url` with https, or remove the key";
        checker.problem(&path, "there is no TLS with this backend", hint);
    }
    let certificate = checker.secret(&format!("{path}.certificate"), written.certificate);
    let key = checker.secret(&format!("{path}.key"), written.key);
    let checked = ClientCertificate { certificate: certificate?, key: key? };
    match client_certificate::check(checked.certificate.expose(), checked.key.expose()) {
        Ok(validity) if validity.contains(SystemTime::now()) => {}
        Ok(validity) => {
            let message = format!("{path}.certificate: the client certificate is not good now: {validity}");
            checker.notice(&format!("{path}.certificate"), message);
        }
        Err(why) => {
            let (path, hint) = match why {
                BadCertificate::EncryptedKey => (
                    format!("{path}.key"),
                    "take the password off with `openssl pkey -in key.pem -out open.pem`",
                ),
                BadCertificate::OthersKey => (
                    format!("{path}.key"),
                    "the key goes with the first certificate: look which of the two is another's",
                ),
                why if why.is_of_key() => (
                    format!("{path}.key"),
                    "name the file as `{ file: /path/key.pem }`, or the variable that has its text",
                ),
                _ => (
                    format!("{path}.certificate"),
                    "name the file as `{ file: /path/certificate.pem }`, or the variable that has its text",
                ),
            };
            checker.problem(&path, why.to_string(), hint);
        }
    }
    Some(checked)
}

fn backend_url(checker: &mut Checker<'_>, path: &str, written: &str) -> Option<Url> {
    let path = format!("{path}.url");
    let url = Url::parse(written).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    checker.notice_literal_variable(&path, written);
    let Some(mut url) = url else {
        let hint = match written.contains("${") {
            true => "`${NAME}` in quotes is not replaced: leave the quotes out",
            false => "write it in full, such as `https://tickets.internal/mcp`",
        };
        checker.problem(&path, "not an http or https URL", hint);
        return None;
    };
    if !url.username().is_empty() || url.password().is_some() {
        let hint = "move them to `headers`, as `Authorization: { env: NAME }`";
        checker.problem(&path, "user and password can't be part of a URL", hint);
        return None;
    }
    url.set_fragment(None);
    Some(url)
}

fn headers(
    checker: &mut Checker<'_>,
    path: &str,
    written: BTreeMap<String, SecretSource>,
) -> BTreeMap<String, Secret> {
    let mut headers = BTreeMap::new();
    for (name, source) in written {
        let path = format!("{path}.headers.{name}");
        let Some(checked) = header_name(checker, &path, &name) else { continue };
        if let SecretSource::Literal(text) = &source
            && text.contains("{principal.")
        {
            let hint = "what is of the caller goes into `caller_headers`";
            checker.problem(&path, "these headers are the same for all callers", hint);
        }
        let Some(value) = header_value(checker, &path, source) else { continue };
        if headers.insert(checked, value).is_some() {
            checker.problem(
                &path,
                "this header is given twice",
                "case makes no difference: keep one of the two",
            );
        }
    }
    headers
}

fn stdio(checker: &mut Checker<'_>, path: &str, command: String, raw: &mut raw::Backend) -> StdioBackend {
    let default = StdioBackend::new(command);
    if default.command.is_empty() || default.command.contains('\0') {
        checker.problem(&format!("{path}.command"), "not a program", "name the program to start");
    }
    checker.notice_literal_variable(&format!("{path}.command"), &default.command);
    if let Some(cwd) = raw.cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
        let message = format!("{} is not a directory", cwd.display());
        checker.problem(&format!("{path}.cwd"), message, "create it, or name another one");
    }
    let mut deadline = |key: &str, written: Option<Span>, default: Duration| {
        checker.positive(&format!("{path}.{key}"), written, default)
    };
    let idle_stop = deadline("idle_stop", raw.idle_stop, default.idle_stop);
    let queue_timeout = deadline("queue_timeout", raw.queue_timeout, default.queue_timeout);
    let start_timeout = deadline("start_timeout", raw.start_timeout, default.start_timeout);
    let stop_grace = raw.stop_grace.map_or(default.stop_grace, |Span(duration)| duration);
    let env = variables(checker, path, raw.env.take().unwrap_or_default());
    let search = env.get("PATH").map(Secret::expose).or(checker.env.get("PATH").map(String::as_str));
    if !is_there(&default.command, raw.cwd.as_deref(), search) {
        let command = &default.command;
        let message = format!("{path}.command: there is no program `{command}` here: is it installed?");
        checker.notice(&format!("{path}.command"), message);
    }
    StdioBackend {
        args: args(checker, path, raw.args.take().unwrap_or_default()),
        env,
        cwd: raw.cwd.take(),
        max_processes: raw.max_processes.map_or(default.max_processes, std::num::NonZeroUsize::get),
        idle_stop,
        max_queue: raw.max_queue.unwrap_or(default.max_queue),
        queue_timeout,
        start_timeout,
        stop_grace,
        command: default.command,
    }
}

/// Whether a program can be found as it will be looked for: in the `search` path, unless it has a slash. Where there
/// is no such path nothing can be said.
fn is_there(command: &str, cwd: Option<&Path>, search: Option<&str>) -> bool {
    let is_program = |file: &Path| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if command.contains('/') {
        return is_program(&cwd.unwrap_or(Path::new("")).join(command));
    }
    search.is_none_or(|search| std::env::split_paths(search).any(|dir| is_program(&dir.join(command))))
}

fn args(checker: &mut Checker<'_>, path: &str, args: Vec<String>) -> Vec<String> {
    for (index, arg) in args.iter().enumerate() {
        let path = format!("{path}.args[{index}]");
        checker.notice_literal_variable(&path, arg);
        if arg.contains('\0') {
            checker.problem(&path, "holds a zero byte", "remove it");
        }
    }
    args
}

fn variables(
    checker: &mut Checker<'_>,
    path: &str,
    written: BTreeMap<String, SecretSource>,
) -> BTreeMap<String, Secret> {
    let mut variables = BTreeMap::new();
    for (name, source) in written {
        let path = format!("{path}.env.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            checker.problem(&path, "not the name of a variable", "remove `=`, or name the variable");
        }
        let Some(value) = checker.secret(&path, source) else {
            continue;
        };
        if value.expose().contains('\0') {
            checker.problem(&path, "holds a zero byte", "remove it");
        }
        variables.insert(name, value);
    }
    variables
}

fn refuse_foreign(checker: &mut Checker<'_>, path: &str, keys: &[&str], has: &str, needs: &str) {
    for key in keys {
        let message = format!("this key goes with `{needs}`, but this backend has `{has}`");
        checker.problem(&format!("{path}.{key}"), message, "remove the key");
    }
}

/// The keys of HTTP backends that are written.
fn http_keys(raw: &raw::Backend) -> Vec<&'static str> {
    written(&[
        ("transport", raw.transport.is_some()),
        ("headers", raw.headers.is_some()),
        ("auth", raw.auth.is_some()),
        ("caller_headers", raw.caller_headers.is_some()),
        ("identity_jwt", raw.identity_jwt.is_some()),
        ("client_certificate", raw.client_certificate.is_some()),
        ("ca_bundle", raw.ca_bundle.is_some()),
    ])
}

/// The keys of stdio backends that are written.
fn stdio_keys(raw: &raw::Backend) -> Vec<&'static str> {
    written(&[
        ("args", raw.args.is_some()),
        ("env", raw.env.is_some()),
        ("cwd", raw.cwd.is_some()),
        ("max_processes", raw.max_processes.is_some()),
        ("idle_stop", raw.idle_stop.is_some()),
        ("max_queue", raw.max_queue.is_some()),
        ("queue_timeout", raw.queue_timeout.is_some()),
        ("start_timeout", raw.start_timeout.is_some()),
        ("stop_grace", raw.stop_grace.is_some()),
    ])
}

fn written(keys: &[(&'static str, bool)]) -> Vec<&'static str> {
    keys.iter().filter(|(_, present)| *present).map(|(key, _)| *key).collect()
}
