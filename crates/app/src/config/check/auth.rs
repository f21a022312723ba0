//! Checks of who may call, and where that is written down.

use std::time::Duration;

use url::{Host, Url};

use crate::config::check::Checker;
use crate::config::model::{Auth, Config, External, IdJagIssuer, Introspection, Login};
use crate::config::raw::{self, AuthMode};
use crate::config::secret::Secret;
use crate::config::value::{SecretSource, Span};

const DAY: Duration = Duration::from_secs(24 * 3600);
const MIN_BOOTSTRAP: usize = 32;

/// Checks where durable records are.
pub(super) fn database(checker: &mut Checker<'_>, raw: Option<raw::Database>) -> Option<Secret> {
    let url = checker.secret("database.url", raw?.url)?;
    let is_known =
        ["sqlite:", "postgres://", "postgresql://"].iter().any(|scheme| url.expose().starts_with(scheme));
    if !is_known {
        let hint = "write `postgres://USER:PASSWORD@HOST/NAME`, or `sqlite:FILE` for one instance alone";
        checker.problem("database.url", "not the URL of a database that can be used", hint);
    }
    Some(url)
}

/// Checks the first token of the admin API: it must be hard to guess.
pub(super) fn bootstrap_token(checker: &mut Checker<'_>, path: &str, source: SecretSource) -> Option<Secret> {
    let token = checker.secret(path, source)?;
    let text = token.expose();
    let distinct = text.chars().collect::<std::collections::BTreeSet<_>>().len();
    let lower = text.to_ascii_lowercase();
    let is_placeholder = ["changeme", "change-me", "example", "secret", "password", "placeholder"]
        .iter()
        .any(|word| lower.starts_with(word));
    if text.chars().count() < MIN_BOOTSTRAP || distinct < 10 || is_placeholder {
        let hint = "make one with `openssl rand -hex 32`";
        checker.problem(path, "too easy to guess: at least 32 random characters are needed", hint);
        return None;
    }
    Some(token)
}

/// Checks who may call.
pub(super) fn auth(checker: &mut Checker<'_>, raw: raw::Auth, config: &Config) -> Auth {
    let default = Auth::default();
    let registration = raw.registration.unwrap_or_default();
    let auth = Auth {
        mode: raw.mode.unwrap_or(default.mode),
        name: raw.name.filter(|name| !name.is_empty()).unwrap_or(default.name),
        access_token_ttl: span(
            checker,
            "access_token_ttl",
            raw.access_token_ttl,
            default.access_token_ttl,
            DAY,
        ),
        refresh_idle_ttl: span(
            checker,
            "refresh_idle_ttl",
            raw.refresh_idle_ttl,
            default.refresh_idle_ttl,
            DAY * 366,
        ),
        refresh_absolute_ttl: span(
            checker,
            "refresh_absolute_ttl",
            raw.refresh_absolute_ttl,
            default.refresh_absolute_ttl,
            DAY * 3660,
        ),
        refresh_grace: span(checker, "refresh_grace", raw.refresh_grace, default.refresh_grace, DAY / 24),
        registration: registration.dcr.unwrap_or(default.registration),
        client_documents: registration.cimd.unwrap_or(default.client_documents),
        client_document_hosts: hosts(checker, registration.cimd_hosts.unwrap_or_default()),
        redirect_uris: redirect_uris(
            checker,
            "auth.registration.redirect_uris",
            registration.redirect_uris.unwrap_or_default(),
        ),
        login: raw.login.and_then(|login| provider(checker, login)),
        own_tokens: raw.own_tokens.unwrap_or(default.own_tokens),
        id_jag: id_jag(checker, raw.id_jag.unwrap_or_default()),
        introspection_clients: introspection_clients(checker, raw.introspection_clients.unwrap_or_default()),
        external: external(checker, raw.external.unwrap_or_default()),
        step_up: raw.step_up.unwrap_or(default.step_up),
    };
    let listen = config.public.listen;
    match auth.mode {
        AuthMode::None if !listen.ip().is_loopback() && !raw.i_know_this_is_open.unwrap_or(false) => {
            let message =
                format!("anyone who reaches {listen} could call every backend, since auth.mode is `none`");
            let hint = "ask callers for a token (`auth: { mode: embedded }` or `tokens`), listen on 127.0.0.1, or say in \
                        the file `auth: { mode: none, i_know_this_is_open: true }`";
            checker.problem("public.listen", message, hint);
        }
        AuthMode::None => {}
        AuthMode::External => {
            needs_url(checker, config);
            if auth.external.is_empty() && !checker.is_incomplete("auth.external") {
                let hint = "name one: `auth: { external: [{ issuer: https://login.example.com }] }`";
                checker.problem("auth.mode", "the mode `external` needs an issuer of tokens", hint);
            }
        }
        AuthMode::Embedded => needs_url(checker, config),
        AuthMode::Tokens => {}
    }
    if auth.mode != AuthMode::None {
        needs_shared_database(checker, config);
    }
    auth
}

/// Clients are sent to the gateway's own URL to log in.
fn needs_url(checker: &mut Checker<'_>, config: &Config) {
    let Some(url) = &config.public.url else {
        if !config.public.listen.ip().is_loopback() {
            let hint = "set `public.url`, such as `https://mcp.example.com`";
            checker.problem("auth.mode", "this mode needs the URL that clients know", hint);
        }
        return;
    };
    if url.scheme() != "https" && !is_near(url) {
        let hint = "use `https`, and let whatever is in front of the gateway speak it";
        checker.problem(
            "public.url",
            "tokens must not travel in clear, and clients refuse to log in there",
            hint,
        );
    }
}

/// Several instances must see the same records.
fn needs_shared_database(checker: &mut Checker<'_>, config: &Config) {
    let is_shared = config.database.as_ref().is_some_and(|url| url.expose().starts_with("postgres"));
    if config.redis.is_some() && !is_shared {
        let hint = "set `database: { url: postgres://... }` (--database)";
        checker.problem(
            "database",
            "instances that share Redis need a database that they share, for tokens and logins",
            hint,
        );
    }
}

fn span(
    checker: &mut Checker<'_>,
    key: &str,
    written: Option<Span>,
    default: Duration,
    most: Duration,
) -> Duration {
    let path = format!("auth.{key}");
    let span = checker.positive(&path, written, default);
    if span > most {
        let hint = format!("the most is `{}`", humantime::format_duration(most));
        checker.problem(&path, "too long", hint);
        return default;
    }
    span
}

/// Checks where clients may be answered.
pub(super) fn redirect_uris(checker: &mut Checker<'_>, path: &str, written: Vec<String>) -> Vec<String> {
    for (index, uri) in written.iter().enumerate() {
        let is_fine = Url::parse(uri)
            .is_ok_and(|url| url.as_str() == uri && url.scheme() == "https" && !uri.contains('*'));
        if !is_fine {
            let hint =
                "write each one in full, such as `https://app.example.com/callback`; there are no wildcards";
            checker.problem(&format!("{path}[{index}]"), "not an https URL in its normal form", hint);
        }
    }
    written
}

/// Checks names of hosts, as they are in URLs.
fn hosts(checker: &mut Checker<'_>, written: Vec<String>) -> Vec<String> {
    for (index, host) in written.iter().enumerate() {
        let url = Url::parse(&format!("https://{host}/"));
        let is_name = url.is_ok_and(
            |url| matches!(url.host(), Some(Host::Domain(name)) if name == host && name.contains('.') && !name.contains('*')),
        );
        if !is_name {
            let hint =
                "write a name alone and in lower case, such as `app.example.com`; there are no wildcards";
            let path = format!("auth.registration.cimd_hosts[{index}]");
            checker.problem(&path, "not the name of a host", hint);
        }
    }
    written
}

fn id_jag(checker: &mut Checker<'_>, written: Vec<raw::IdJag>) -> Vec<IdJagIssuer> {
    let mut providers: Vec<IdJagIssuer> = Vec::new();
    for (index, raw) in written.into_iter().enumerate() {
        let path = format!("auth.id_jag[{index}]");
        let issuer = (&*raw.issuer, raw.jwks_uri.as_deref());
        issuer_of(checker, &path, issuer, providers.iter().any(|other| other.issuer == raw.issuer));
        providers.push(IdJagIssuer { issuer: raw.issuer, jwks_uri: raw.jwks_uri });
    }
    providers
}

/// Checks an issuer of tokens, and where its keys are, if not where its metadata say.
fn issuer_of(
    checker: &mut Checker<'_>,
    path: &str,
    (issuer, jwks_uri): (&str, Option<&str>),
    is_known: bool,
) {
    let is_url = |text: &str| Url::parse(text).is_ok_and(|url| is_server(&url));
    if !is_url(issuer) || is_known {
        let hint = "write it exactly as in its tokens, such as `https://login.example.com`, and once";
        checker.problem(&format!("{path}.issuer"), "not an https URL, or there twice", hint);
    }
    if jwks_uri.is_some_and(|uri| !is_url(uri)) {
        let hint = "leave it out if the issuer's metadata name it";
        checker.problem(&format!("{path}.jwks_uri"), "not an https URL", hint);
    }
}

fn introspection_clients(
    checker: &mut Checker<'_>,
    written: Vec<raw::IntrospectionClient>,
) -> Vec<(String, Secret)> {
    let mut clients: Vec<(String, Secret)> = Vec::new();
    for (index, raw) in written.into_iter().enumerate() {
        let path = format!("auth.introspection_clients[{index}]");
        if !is_id(&raw.id) || clients.iter().any(|(id, _)| *id == raw.id) {
            let hint = "give each service a name of its own, such as `tickets`";
            checker.problem(&format!("{path}.id"), "not an id, or there twice", hint);
        }
        let Some(secret) = client_secret(checker, &format!("{path}.secret"), raw.secret) else { continue };
        clients.push((raw.id, secret));
    }
    clients
}

/// Whether it can be the id of a client, which HTTP Basic carries before a colon.
pub(super) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b':')
}

/// Checks what a client proves itself with here: nobody may guess it.
pub(super) fn client_secret(checker: &mut Checker<'_>, path: &str, source: SecretSource) -> Option<Secret> {
    let secret = checker.secret(path, source)?;
    if secret.expose().chars().count() < MIN_BOOTSTRAP {
        let hint = "make one with `openssl rand -hex 32`";
        checker.problem(path, "too short: at least 32 characters are needed", hint);
    }
    Some(secret)
}

fn external(checker: &mut Checker<'_>, written: Vec<raw::External>) -> Vec<External> {
    let mut issuers: Vec<External> = Vec::new();
    for (index, raw) in written.into_iter().enumerate() {
        let path = format!("auth.external[{index}]");
        let is_url = |text: &str| Url::parse(text).is_ok_and(|url| is_server(&url));
        let issuer = (&*raw.issuer, raw.jwks_uri.as_deref());
        issuer_of(checker, &path, issuer, issuers.iter().any(|other| other.issuer == raw.issuer));
        let or = |written: Option<Vec<String>>, default: &[&str]| {
            written.unwrap_or_else(|| default.iter().map(|one| (*one).to_owned()).collect())
        };
        let algorithms = or(raw.algorithms, &["RS256", "ES256"]);
        let known: Vec<String> =
            drawbridge_auth::jwt::ALGORITHMS.iter().map(|one| format!("{one:?}")).collect();
        for (n, algorithm) in algorithms.iter().enumerate() {
            if !known.contains(algorithm) {
                let hint = format!("use one of {}", known.join(", "));
                checker.problem(
                    &format!("{path}.algorithms[{n}]"),
                    "not an algorithm that is accepted",
                    hint,
                );
            }
        }
        let max_lifetime = checker.positive(&format!("{path}.max_lifetime"), raw.max_lifetime, DAY);
        let introspection = raw.introspection.and_then(|asked| {
            let path = format!("{path}.introspection");
            if !is_url(&asked.url) {
                let hint = "write the issuer's `introspection_endpoint`, as its metadata name it";
                checker.problem(&format!("{path}.url"), "not an https URL", hint);
            }
            if issuers.iter().any(|other| other.introspection.is_some()) {
                let hint =
                    "a token that is no JSON Web Token does not say whom to ask: name one issuer for these";
                checker.problem(&path, "another issuer is asked already", hint);
            }
            let client_secret = checker.secret(&format!("{path}.client_secret"), asked.client_secret)?;
            Some(Introspection { url: asked.url, client_id: asked.client_id, client_secret })
        });
        issuers.push(External {
            introspection,
            issuer: raw.issuer,
            audiences: or(raw.audiences, &[]),
            algorithms,
            types: or(raw.types, &["at+jwt"]).iter().map(|typ| typ.to_ascii_lowercase()).collect(),
            jwks_uri: raw.jwks_uri,
            client_ids: or(raw.client_ids, &[]),
            max_lifetime,
            groups_claim: raw.groups_claim.unwrap_or_else(|| "groups".to_owned()),
        });
    }
    issuers
}

/// Whether a server is on this machine, so that nobody listens in between.
pub(super) fn is_near(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        host == "localhost"
            || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

/// Whether secrets can be sent to a server, whose URL is in messages and documents that anybody can read.
pub(super) fn is_server(url: &Url) -> bool {
    let is_private = url.scheme() == "https" || url.scheme() == "http" && is_near(url);
    is_private && url.username().is_empty() && url.password().is_none() && url.fragment().is_none()
}

fn provider(checker: &mut Checker<'_>, raw: raw::Login) -> Option<Login> {
    let url = Url::parse(&raw.issuer).ok().filter(is_server);
    if url.is_none() {
        let hint = "write it exactly as the provider's metadata do, such as `https://login.example.com`";
        checker.problem("auth.login.issuer", "not a URL", hint);
    }
    let serves_anybody = ["/common", "/organizations", "/consumers"];
    if serves_anybody.iter().any(|tenant| raw.issuer.contains(tenant)) {
        let hint = "name your own tenant's issuer";
        checker.problem("auth.login.issuer", "this provider would let users of any tenant in", hint);
    }
    let secret = raw.client_secret.and_then(|source| checker.secret("auth.login.client_secret", source));
    let strings = |written: Option<Vec<String>>, default: &[&str]| {
        written.unwrap_or_else(|| default.iter().map(|one| (*one).to_owned()).collect())
    };
    Some(Login {
        issuer: raw.issuer,
        client_id: raw.client_id,
        client_secret: secret,
        scopes: strings(raw.scopes, &["openid", "email", "profile"]),
        groups_claim: raw.groups_claim.unwrap_or_else(|| "groups".to_owned()),
        allowed_groups: strings(raw.allowed_groups, &[]),
    })
}
