//! Checks of tokens that are got with what users have logged in with.

use url::Url;

use super::{needed, resource, scopes, server_url, token_source};
use crate::config::check::Checker;
use crate::config::model::{Backend, BackendAuth, BackendKind, Config, IdJag, TokenExchange, TokenSource};
use crate::config::raw::{self, AuthMode};

pub(super) fn token_exchange(
    checker: &mut Checker<'_>,
    path: &str,
    raw: raw::BackendAuth,
    url: Option<&Url>,
) -> Option<TokenExchange> {
    let from = token_source(checker, path, raw.token_endpoint, raw.issuer)?;
    // Where nothing is written it is not the backend that says it.
    let from = Some(from).filter(|from| *from != TokenSource::Backend);
    if raw.client_secret.is_some() && raw.client_id.is_none() {
        checker.problem(&format!("{path}.client_secret"), "a secret without an id", "add `client_id`");
    }
    let secret = match raw.client_secret {
        Some(source) => Some(checker.secret(&format!("{path}.client_secret"), source)?),
        None => None,
    };
    let audience = raw.audience.filter(|audience| !audience.is_empty());
    // Servers that know a backend by a name mostly know no URLs.
    let resource = match (raw.resource, &audience) {
        (None, Some(_)) => None,
        (written, _) => resource(checker, path, written, url),
    };
    Some(TokenExchange {
        from,
        client: raw.client_id.map(|id| (id, secret)),
        client_auth: raw.client_auth,
        subject_token: raw.subject_token.unwrap_or_default(),
        audience,
        resource,
        scopes: scopes(checker, path, raw.scopes),
    })
}

pub(super) fn id_jag(
    checker: &mut Checker<'_>,
    path: &str,
    raw: raw::BackendAuth,
    url: Option<&Url>,
) -> Option<IdJag> {
    let issuer = needed(checker, path, "issuer", raw.issuer);
    if let Some(issuer) = &issuer {
        server_url(checker, &format!("{path}.issuer"), issuer);
    }
    let client_id = needed(checker, path, "client_id", raw.client_id);
    let client_secret = match raw.client_secret {
        Some(source) => Some(checker.secret(&format!("{path}.client_secret"), source)?),
        None => None,
    };
    Some(IdJag {
        issuer: issuer?,
        client_id: client_id?,
        client_secret,
        client_auth: raw.client_auth,
        scopes: scopes(checker, path, raw.scopes),
        resource: resource(checker, path, raw.resource, url),
    })
}

/// Checks that users log in with an identity provider where that is what a backend needs, and that nobody else gets the
/// gateway's secret at it.
pub(super) fn login(checker: &mut Checker<'_>, config: &Config, name: &str, backend: &Backend) {
    let BackendKind::Http(http) = &backend.kind else { return };
    let Some(BackendAuth::TokenExchange(_) | BackendAuth::IdJag(_)) = &http.auth else { return };
    let path = format!("backends.{name}.auth");
    let Some(login) = &config.auth.login else {
        if config.auth.mode == AuthMode::Embedded && !checker.is_incomplete("auth.login") {
            let hint = "name the identity provider that users log in with: `auth: { mode: embedded, login: { issuer: \
                        https://login.example.com, client_id: drawbridge } }`";
            checker.problem(&format!("{path}.kind"), "users have nothing that could be exchanged", hint);
        }
        return;
    };
    let Some(BackendAuth::TokenExchange(exchange)) = &http.auth else { return };
    let is_elsewhere = match &exchange.from {
        None => false,
        Some(TokenSource::Issuer(issuer)) => *issuer != login.issuer,
        Some(_) => true,
    };
    if is_elsewhere && exchange.client.is_none() {
        let message = "this kind needs `client_id` at a server that users don't log in with";
        checker.problem(&path, message, "add `client_id`, as the gateway is known at that server");
    }
}
