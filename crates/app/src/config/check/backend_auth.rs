//! Checks of what the gateway proves itself to a backend with.

mod callers;
mod exchange;

use url::Url;

use crate::config::check::Checker;
use crate::config::check::auth::is_server;
use crate::config::check::backend::{header_name, header_value};
use crate::config::model::{
    BackendAuth, BackendKind, ClientCredentials, Config, TokenSource, UserOAuth, UserSecret,
};
use crate::config::raw::{self, AuthMode, BackendAuthKind, SessionScope};

/// The keys that go with a kind.
fn keys(kind: BackendAuthKind) -> &'static [&'static str] {
    match kind {
        BackendAuthKind::Header => &["header", "value"],
        BackendAuthKind::Basic => &["user", "password"],
        BackendAuthKind::ClientCredentials => {
            &["issuer", "token_endpoint", "client_id", "client_secret", "client_auth", "scopes", "resource"]
        }
        BackendAuthKind::UserOAuth => &["issuer", "client_id", "client_secret", "scopes", "resource"],
        BackendAuthKind::TokenExchange => &[
            "issuer",
            "token_endpoint",
            "client_id",
            "client_secret",
            "client_auth",
            "scopes",
            "resource",
            "audience",
            "subject_token",
        ],
        BackendAuthKind::IdJag => {
            &["issuer", "client_id", "client_secret", "client_auth", "scopes", "resource"]
        }
        BackendAuthKind::UserSecret => &["header", "scheme", "help"],
    }
}

fn written(raw: &raw::BackendAuth) -> Vec<&'static str> {
    let all = [
        ("header", raw.header.is_some()),
        ("scheme", raw.scheme.is_some()),
        ("help", raw.help.is_some()),
        ("value", raw.value.is_some()),
        ("user", raw.user.is_some()),
        ("password", raw.password.is_some()),
        ("issuer", raw.issuer.is_some()),
        ("token_endpoint", raw.token_endpoint.is_some()),
        ("client_id", raw.client_id.is_some()),
        ("client_secret", raw.client_secret.is_some()),
        ("client_auth", raw.client_auth.is_some()),
        ("scopes", raw.scopes.is_some()),
        ("resource", raw.resource.is_some()),
        ("audience", raw.audience.is_some()),
        ("subject_token", raw.subject_token.is_some()),
    ];
    all.into_iter().filter(|(_, is_there)| *is_there).map(|(key, _)| key).collect()
}

/// Checks the credential of the backend at `path`, which is at `url` and gets headers of these names too,
/// by these keys.
pub(super) fn backend_auth<'a>(
    checker: &mut Checker<'_>,
    path: &str,
    mut raw: raw::BackendAuth,
    url: Option<&Url>,
    mut headers: impl Iterator<Item = (&'static str, &'a String)>,
) -> Option<BackendAuth> {
    let path = format!("{path}.auth");
    let own = keys(raw.kind);
    for key in written(&raw).iter().filter(|key| !own.contains(key)) {
        checker.problem(&format!("{path}.{key}"), "this key goes with another kind", "remove the key");
    }
    let mut name = "authorization".to_owned();
    let checked = match raw.kind {
        BackendAuthKind::Header => {
            if let Some(written) = &raw.header {
                name = header_name(checker, &format!("{path}.header"), written)?;
            }
            let value = needed(checker, &path, "value", raw.value.take())?;
            let value = header_value(checker, &format!("{path}.value"), value)?;
            BackendAuth::Header { name: name.clone(), value }
        }
        BackendAuthKind::Basic => {
            let user = needed(checker, &path, "user", raw.user.take())?;
            if user.contains(':') || user.chars().any(char::is_control) {
                let hint = "a user of HTTP Basic has no colon and no control characters";
                checker.problem(&format!("{path}.user"), "not a user", hint);
            }
            let password = needed(checker, &path, "password", raw.password.take())?;
            let password = checker.secret(&format!("{path}.password"), password)?;
            BackendAuth::Basic { user, password }
        }
        BackendAuthKind::ClientCredentials => {
            BackendAuth::ClientCredentials(client_credentials(checker, &path, raw, url)?)
        }
        BackendAuthKind::UserOAuth => BackendAuth::UserOAuth(user_oauth(checker, &path, raw, url)?),
        BackendAuthKind::TokenExchange => {
            BackendAuth::TokenExchange(exchange::token_exchange(checker, &path, raw, url)?)
        }
        BackendAuthKind::IdJag => BackendAuth::IdJag(exchange::id_jag(checker, &path, raw, url)?),
        BackendAuthKind::UserSecret => {
            let secret = user_secret(checker, &path, raw)?;
            name.clone_from(&secret.header);
            BackendAuth::UserSecret(secret)
        }
    };
    if let Some((key, _)) = headers.find(|(_, other)| **other == name) {
        let hint = "keep one of the two";
        checker.problem(&path, format!("`{key}` has the header {name} too"), hint);
    }
    Some(checked)
}

/// What a kind can't be without.
fn needed<T>(checker: &mut Checker<'_>, path: &str, key: &str, value: Option<T>) -> Option<T> {
    if value.is_none() && !checker.is_incomplete(path) {
        checker.problem(path, format!("this kind needs `{key}`"), format!("add `{key}`"));
    }
    value
}

fn client_credentials(
    checker: &mut Checker<'_>,
    path: &str,
    raw: raw::BackendAuth,
    url: Option<&Url>,
) -> Option<ClientCredentials> {
    let from = token_source(checker, path, raw.token_endpoint, raw.issuer)?;
    let client_id = needed(checker, path, "client_id", raw.client_id)?;
    let secret = needed(checker, path, "client_secret", raw.client_secret)?;
    Some(ClientCredentials {
        client_id,
        client_secret: checker.secret(&format!("{path}.client_secret"), secret)?,
        client_auth: raw.client_auth,
        scopes: scopes(checker, path, raw.scopes),
        // What the backend says of itself is better than its URL.
        resource: match (&from, raw.resource) {
            (TokenSource::Backend, None) => None,
            (_, written) => resource(checker, path, written, url),
        },
        from,
    })
}

/// Where tokens are: where the backend says, if nothing is written.
fn token_source(
    checker: &mut Checker<'_>,
    path: &str,
    endpoint: Option<String>,
    issuer: Option<String>,
) -> Option<TokenSource> {
    Some(match (endpoint, issuer) {
        (Some(endpoint), None) => {
            server_url(checker, &format!("{path}.token_endpoint"), &endpoint);
            TokenSource::Endpoint(endpoint)
        }
        (None, Some(issuer)) => {
            server_url(checker, &format!("{path}.issuer"), &issuer);
            TokenSource::Issuer(issuer)
        }
        (Some(_), Some(_)) => {
            let hint = "keep `issuer` where the server has metadata, `token_endpoint` where it has none";
            checker.problem(path, "tokens are at `token_endpoint` or where `issuer` says, not both", hint);
            return None;
        }
        (None, None) => TokenSource::Backend,
    })
}

fn user_oauth(
    checker: &mut Checker<'_>,
    path: &str,
    raw: raw::BackendAuth,
    url: Option<&Url>,
) -> Option<UserOAuth> {
    if let Some(issuer) = &raw.issuer {
        server_url(checker, &format!("{path}.issuer"), issuer);
    }
    if raw.client_secret.is_some() && raw.client_id.is_none() {
        checker.problem(&format!("{path}.client_secret"), "a secret without an id", "add `client_id`");
    }
    let secret = raw.client_secret;
    let client_secret = match secret {
        Some(source) => Some(checker.secret(&format!("{path}.client_secret"), source)?),
        None => None,
    };
    let written = raw.resource;
    let resource = written.map(|written| resource(checker, path, Some(written), url).unwrap_or_default());
    let scopes = scopes(checker, path, raw.scopes);
    Some(UserOAuth { issuer: raw.issuer, client_id: raw.client_id, client_secret, scopes, resource })
}

fn user_secret(checker: &mut Checker<'_>, path: &str, raw: raw::BackendAuth) -> Option<UserSecret> {
    let (header, usual) = match &raw.header {
        Some(written) => (header_name(checker, &format!("{path}.header"), written)?, None),
        None => ("authorization".to_owned(), Some("Bearer".to_owned())),
    };
    let is_scheme = |scheme: &str| scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b));
    if let Some(scheme) = raw.scheme.as_deref().filter(|scheme| !is_scheme(scheme)) {
        let hint = "one word, such as `Bearer` or `Token`, or \"\" for nothing";
        checker.problem(&format!("{path}.scheme"), format!("not a scheme: `{scheme}`"), hint);
    }
    let is_page = |url: Url| {
        let is_web = matches!(url.scheme(), "https" | "http") && url.has_host();
        is_web && url.username().is_empty() && url.password().is_none()
    };
    if let Some(help) = &raw.help
        && !Url::parse(help).is_ok_and(is_page)
    {
        let hint = "write the https URL of the page at which users get a key, without user and password";
        checker.problem(&format!("{path}.help"), "not a URL", hint);
    }
    let scheme = raw.scheme.or(usual).filter(|scheme| !scheme.is_empty());
    Some(UserSecret { header, scheme, help: raw.help })
}

/// Checks that users can log in where they are to have accounts at backends, and share no session there; and that there
/// is a place where the servers are pinned which backends name.
pub(super) fn all(checker: &mut Checker<'_>, config: &Config) {
    for (name, backend) in &config.backends {
        let BackendKind::Http(http) = &backend.kind else { continue };
        let Some(BackendAuth::ClientCredentials(own)) = &http.auth else { continue };
        if own.from == TokenSource::Backend && config.auth.mode == AuthMode::None {
            let hint = "add `issuer: https://login.example.com`";
            let path = format!("backends.{name}.auth");
            let message = "this kind needs `issuer` or `token_endpoint` where there is no database";
            checker.problem(&path, message, hint);
        }
    }
    for (name, backend) in config.backends.iter().filter(|(_, backend)| backend.is_personal()) {
        if config.auth.mode != AuthMode::Embedded {
            let hint = "users log in in a browser: set `auth: { mode: embedded }`";
            let path = format!("backends.{name}.auth.kind");
            checker.problem(&path, "users have accounts only where the gateway logs them in", hint);
        }
        if backend.session_scope == SessionScope::Shared {
            let path = format!("backends.{name}.session_scope");
            let hint = "remove the key, or use `principal`";
            checker.problem(&path, "users with accounts of their own can't share a session", hint);
        }
        exchange::login(checker, config, name, backend);
    }
    callers::all(checker, config);
}

/// Checks the URL of a server that secrets are sent to.
fn server_url(checker: &mut Checker<'_>, path: &str, written: &str) {
    let url = Url::parse(written).ok();
    if !url.is_some_and(|url| is_server(&url)) {
        let hint = "secrets are sent there: write an https URL without user and password, such as \
                    `https://login.example.com`";
        checker.problem(path, "not an https URL", hint);
    }
}

fn scopes(checker: &mut Checker<'_>, path: &str, written: Option<Vec<String>>) -> Vec<String> {
    let scopes = written.unwrap_or_default();
    let is_scope = |scope: &String| {
        !scope.is_empty() && scope.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\')
    };
    for (index, scope) in scopes.iter().enumerate().filter(|(_, scope)| !is_scope(scope)) {
        let path = format!("{path}.scopes[{index}]");
        checker.problem(&path, format!("not a scope: `{scope}`"), "write each one by itself");
    }
    scopes
}

/// What tokens are for: the backend's URL, or what is written; nothing if that is empty.
fn resource(
    checker: &mut Checker<'_>,
    path: &str,
    written: Option<String>,
    url: Option<&Url>,
) -> Option<String> {
    let Some(written) = written else { return url.map(drawbridge_credentials::authority::own_name) };
    let is_name =
        |url: &Url| url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    if !written.is_empty() && !Url::parse(&written).as_ref().is_ok_and(is_name) {
        let hint = "write the URL that the server knows the backend by, without user, password and fragment, or \"\" if it \
                    knows none";
        checker.problem(&format!("{path}.resource"), "not a URL", hint);
    }
    Some(written).filter(|written| !written.is_empty())
}
