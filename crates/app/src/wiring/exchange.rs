//! Backends that get what users have logged in with, exchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use drawbridge_core::BackendName;
use drawbridge_credentials::authority::Site;
use drawbridge_credentials::connections::{Connections, login_site};
use drawbridge_credentials::exchange::{At, Exchange, Options, Redeemed, SubjectToken, Wanted};
use url::Url;

use super::proof::{method, server_fetcher};
use super::{Means, collector_options};
use crate::config::{self, BackendAuth, BackendKind, Config, TokenSource};
use crate::fetch::Fetcher;

/// Tokens of users for a backend.
pub(super) fn exchange(
    config: &Config,
    name: &BackendName,
    http: &config::HttpBackend,
    written: &config::TokenExchange,
    means: &Means,
) -> anyhow::Result<Exchange> {
    let login = config.auth.login.as_ref().context("users log in with no identity provider")?;
    let secret = |secret: Option<&config::Secret>| secret.map(config::Secret::live);
    let options = Options {
        name: name.to_string(),
        at: match &written.from {
            Some(TokenSource::Endpoint(url)) => At::Endpoint(url.clone()),
            Some(TokenSource::Issuer(issuer)) => At::Issuer(issuer.clone()),
            Some(TokenSource::Backend) | None => At::Issuer(login.issuer.clone()),
        },
        client: match &written.client {
            Some((id, of_it)) => (id.clone(), secret(of_it.as_ref())),
            None => (login.client_id.clone(), secret(login.client_secret.as_ref())),
        },
        method: method(written.client_auth),
        wanted: Wanted {
            subject_token: match written.subject_token {
                config::SubjectToken::AccessToken => SubjectToken::Access,
                config::SubjectToken::IdToken => SubjectToken::Id,
            },
            audience: written.audience.clone(),
            resource: written.resource.clone(),
            scopes: written.scopes.clone(),
        },
        redeemed: None,
    };
    let fetch = Arc::new(server_fetcher(config, http));
    Ok(Exchange::new(options, fetch, means.connections()?.clone()))
}

/// Tokens of users that a server of the backend's gives for what the identity provider says.
pub(super) fn id_jag(
    config: &Config,
    name: &BackendName,
    http: &config::HttpBackend,
    written: &config::IdJag,
    means: &Means,
) -> anyhow::Result<Exchange> {
    let login = config.auth.login.as_ref().context("users log in with no identity provider")?;
    let secret = |secret: Option<&config::Secret>| secret.map(config::Secret::live);
    let options = Options {
        name: name.to_string(),
        at: At::Issuer(login.issuer.clone()),
        client: (login.client_id.clone(), secret(login.client_secret.as_ref())),
        method: method(None),
        wanted: Wanted {
            subject_token: SubjectToken::Id,
            audience: None,
            resource: written.resource.clone(),
            scopes: written.scopes.clone(),
        },
        redeemed: Some(Redeemed {
            issuer: written.issuer.clone(),
            client: (written.client_id.clone(), secret(written.client_secret.as_ref())),
            method: method(written.client_auth),
        }),
    };
    let fetch = Arc::new(server_fetcher(config, http));
    Ok(Exchange::new(options, fetch, means.connections()?.clone()))
}

/// Lets `connections` know which backends need what users log in with.
pub(crate) fn set_logins(connections: &Connections, config: &Config) {
    let backends = config.backends.iter().filter_map(|(name, backend)| {
        let BackendKind::Http(http) = &backend.kind else { return None };
        let is_by_login = matches!(http.auth, Some(BackendAuth::TokenExchange(_) | BackendAuth::IdJag(_)));
        is_by_login.then(|| (name.clone(), http.url.clone()))
    });
    let backends: BTreeMap<String, Url> = backends.collect();
    let site = config.auth.login.as_ref().filter(|_| !backends.is_empty()).and_then(|login| {
        Some(login_site(Site {
            name: String::new(),
            url: Url::parse(&login.issuer).ok()?,
            issuer: Some(login.issuer.clone()),
            client: Some((login.client_id.clone(), login.client_secret.as_ref().map(config::Secret::live))),
            scopes: Vec::new(),
            resource: None,
            trusted: Arc::new(Fetcher::new(collector_options(config))),
        }))
    });
    connections.set_logins(site, backends);
}
