//! What backends are called with.

use std::sync::Arc;

use anyhow::Context as _;
use drawbridge_auth::fetch::Fetch;
use drawbridge_core::BackendName;
use drawbridge_core::accounts::Accounts;
use drawbridge_core::credentials::Credentials;
use drawbridge_credentials::authority::{Site, own_name};
use drawbridge_credentials::caller::{OfCaller, Template};
use drawbridge_credentials::client_credentials::{self, ClientCredentials};
use drawbridge_credentials::fixed::{Fixed, Value};
use drawbridge_upstream::Proof;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Means, collector_options, exchange};
use crate::config::{self, BackendAuth, ClientAuth, Config, TokenSource};
use crate::fetch::Fetcher;

/// What the gateway proves itself to a backend with, and who knows whether users can be named there.
pub(super) fn proof(
    config: &Config,
    name: &BackendName,
    http: &config::HttpBackend,
    means: &Means,
) -> anyhow::Result<(Proof, Option<Arc<dyn Accounts>>)> {
    let mut headers = HeaderMap::new();
    let mut changing = Vec::new();
    for (name, value) in &http.headers {
        if value.may_change() {
            changing.push((name.clone(), Value::Plain(value.live())));
        }
        let mut value = HeaderValue::from_str(value.expose()).with_context(|| {
            format!("the value of header \"{name}\" has characters that HTTP does not allow")
        })?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_bytes(name.as_bytes())?, value);
    }
    let mut beside: Option<Arc<dyn Credentials>> = None;
    let mut accounts: Option<Arc<dyn Accounts>> = None;
    match &http.auth {
        None => {}
        Some(BackendAuth::Header { name, value }) => {
            changing.push((name.clone(), Value::Plain(value.live())))
        }
        Some(BackendAuth::Basic { user, password }) => {
            changing.push(("authorization".to_owned(), Value::Basic(user.clone(), password.live())));
        }
        Some(BackendAuth::ClientCredentials(written)) => {
            beside = Some(Arc::new(client_credentials(config, name, http, written, means)?));
        }
        Some(BackendAuth::UserOAuth(_) | BackendAuth::UserSecret(_)) => {
            let of_users = means.connections()?.of(name.as_str());
            beside = Some(of_users.clone());
            accounts = Some(of_users);
        }
        Some(BackendAuth::TokenExchange(written)) => {
            let exchange = Arc::new(exchange::exchange(config, name, http, written, means)?);
            beside = Some(exchange.clone());
            accounts = Some(exchange);
        }
        Some(BackendAuth::IdJag(written)) => {
            let exchange = Arc::new(exchange::id_jag(config, name, http, written, means)?);
            beside = Some(exchange.clone());
            accounts = Some(exchange);
        }
    }
    if http.identity_jwt || !http.caller_headers.is_empty() {
        beside = Some(Arc::new(of_caller(name, http, beside, means)?));
    }
    let credentials = match beside {
        beside if changing.is_empty() => beside,
        beside => Some(Arc::new(Fixed::new(changing, beside)) as Arc<dyn Credentials>),
    };
    Ok((Proof { headers, credentials }, accounts))
}

/// What the backend is told of callers, beside what `beside` gives.
fn of_caller(
    name: &BackendName,
    http: &config::HttpBackend,
    beside: Option<Arc<dyn Credentials>>,
    means: &Means,
) -> anyhow::Result<OfCaller> {
    let callers = means.callers.clone().context("nobody is asked who they are")?;
    let headers = http.caller_headers.iter().map(|(name, text)| {
        let template = Template::parse(text).with_context(|| format!("the value of header \"{name}\""))?;
        Ok((name.clone(), template))
    });
    let headers = headers.collect::<anyhow::Result<_>>()?;
    let told = OfCaller::new(name.as_str(), headers, callers, beside);
    Ok(if http.identity_jwt { told.signed(own_name(&http.url)) } else { told })
}

pub(super) fn method(written: Option<ClientAuth>) -> client_credentials::Method {
    match written {
        None => client_credentials::Method::Any,
        Some(ClientAuth::Basic) => client_credentials::Method::Basic,
        Some(ClientAuth::Post) => client_credentials::Method::Post,
    }
}

fn client_credentials(
    config: &Config,
    name: &BackendName,
    http: &config::HttpBackend,
    written: &config::ClientCredentials,
    means: &Means,
) -> anyhow::Result<ClientCredentials> {
    let trusted: Arc<dyn Fetch> = Arc::new(server_fetcher(config, http));
    let options = client_credentials::Options {
        name: name.to_string(),
        from: match &written.from {
            TokenSource::Endpoint(url) => client_credentials::From::Endpoint(url.clone()),
            TokenSource::Issuer(issuer) => client_credentials::From::Issuer(issuer.clone()),
            TokenSource::Backend => {
                let pins = means.pins.clone().context("there is no database to pin its server in")?;
                let site = Site {
                    name: name.to_string(),
                    url: http.url.clone(),
                    issuer: None,
                    client: None,
                    scopes: Vec::new(),
                    resource: None,
                    trusted: trusted.clone(),
                };
                client_credentials::From::Backend(Box::new((pins, site)))
            }
        },
        client_id: written.client_id.clone(),
        secret: written.client_secret.live(),
        method: method(written.client_auth),
        scopes: written.scopes.clone(),
        resource: written.resource.clone(),
    };
    let state = means.peers.state().clone();
    Ok(ClientCredentials::new(options, trusted, means.keys.clone(), state, means.tasks.clone()))
}

/// Reaches the authorization server of a backend that the configuration names.
pub(super) fn server_fetcher(config: &Config, http: &config::HttpBackend) -> Fetcher {
    let mut options = collector_options(config);
    options.ca_bundles.extend(http.ca_bundle.iter().cloned());
    Fetcher::new(options)
}
