//! Connecting an account in a browser: the link, the way to the server and back, and the end of it.

use std::collections::BTreeSet;

use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{RecordsError, Time};
use drawbridge_auth::vault::{Connection, ConnectionStatus};
use drawbridge_core::seal::Purpose;
use oauth2::{AuthUrl, ClientId, CsrfToken, PkceCodeChallenge, RedirectUrl, Scope};
use serde::{Deserialize, Serialize};

use super::{Connections, end_of};
use crate::authority::{For, NoAuthority, Site};
use crate::printable;
use crate::token::{self, Grant, NoToken, OAuthClient};

/// A link is good for this long.
const LINK_TIME: TimeDelta = TimeDelta::minutes(30);

/// What a link says: nothing that could be read by whoever has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// For which user it was made.
    #[serde(rename = "u")]
    pub user: String,
    /// For which backend.
    #[serde(rename = "b")]
    pub backend: String,
    /// When, in seconds since 1970.
    #[serde(rename = "t")]
    at: i64,
    /// As which elicitation it is known.
    #[serde(rename = "n")]
    name: String,
}

/// What a user does at another server, until the browser comes back.
#[derive(Clone, Serialize, Deserialize)]
pub struct Attempt {
    #[serde(rename = "i")]
    issuer: String,
    #[serde(rename = "c")]
    client: String,
    #[serde(rename = "v")]
    verifier: String,
    #[serde(rename = "s")]
    scopes: Vec<String>,
}

/// What comes back with the browser (RFC 6749 § 4.1.2, RFC 9207).
#[derive(Debug, Clone, Copy, Default)]
pub struct CameBack<'a> {
    /// The code.
    pub code: Option<&'a str>,
    /// Or why there is none.
    pub error: Option<&'a str>,
    /// Who answers.
    pub iss: Option<&'a str>,
}

/// Why a user is not connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotConnected {
    /// There is no such backend, or none that users connect at.
    #[error("there is no such backend")]
    NoSite,
    /// Not now.
    #[error("{0}")]
    Unavailable(String),
    /// What the server says is not accepted.
    #[error("{0}")]
    Refused(String),
    /// The user has not agreed.
    #[error("the user has not agreed")]
    Denied,
    /// There is no server that is accepted.
    #[error("{0}")]
    NoServer(String),
}

impl From<NoAuthority> for NotConnected {
    fn from(why: NoAuthority) -> Self {
        match why {
            NoAuthority::Unavailable(why) => Self::Unavailable(why),
            other => Self::NoServer(other.to_string()),
        }
    }
}

impl From<RecordsError> for NotConnected {
    fn from(error: RecordsError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// What there is to show of a backend that users connect at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The backend's name.
    pub backend: String,
    /// Where it is.
    pub host: String,
    /// Whether the user is connected; `None`: never was.
    pub status: Option<ConnectionStatus>,
    /// Since when.
    pub since: Option<Time>,
}

impl Shown {
    /// A backend at `host`, and what of `rows` is for it.
    pub(super) fn of(backend: &str, host: &str, rows: &[Connection]) -> Self {
        let row = rows.iter().find(|row| row.backend == backend);
        Self {
            backend: backend.to_owned(),
            host: host.to_owned(),
            status: row.map(|row| row.status),
            since: row.map(|row| row.created_at),
        }
    }
}

impl Connections {
    /// The link that `sealed` is, if it is not too old.
    pub fn link(&self, sealed: &str) -> Option<Link> {
        let link: Link = serde_json::from_slice(&self.ring.open(Purpose::Connect, sealed)?).ok()?;
        let age = Utc::now().timestamp() - link.at;
        (0..=LINK_TIME.num_seconds()).contains(&age).then_some(link)
    }

    pub(super) fn make_link(&self, user: &str, backend: &str, name: &str) -> String {
        let (user, backend, name) = (user.to_owned(), backend.to_owned(), name.to_owned());
        let link = Link { user, at: Utc::now().timestamp(), name, backend };
        let sealed = self.ring.seal(Purpose::Connect, &serde_json::to_vec(&link).unwrap_or_default());
        self.authorities.origin.join(&format!("/connect/{}?e={sealed}", link.backend))
    }

    /// What there is to show of the backends that have a server.
    pub(super) fn shown_sites(&self, rows: &[Connection]) -> Vec<Shown> {
        let sites = self.sites.read();
        let host = |site: &Site| site.url.host_str().unwrap_or_default().to_owned();
        sites.values().map(|site| Shown::of(&site.name, &host(site), rows)).collect()
    }

    /// What there is to show of one backend: its host, and that of its server.
    ///
    /// # Errors
    ///
    /// If users can't connect there now.
    pub async fn ask(&self, backend: &str) -> Result<(String, String), NotConnected> {
        let site = self.site(backend).ok_or(NotConnected::NoSite)?;
        let server = self.authorities.pins.find(&site, For::Users).await?;
        let endpoint = server.metadata.authorization_endpoint.as_deref().unwrap_or_default();
        let host = |text: &str| {
            let url = url::Url::parse(text).ok();
            url.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
        };
        Ok((site.url.host_str().unwrap_or_default().to_owned(), host(endpoint)))
    }

    /// Where the browser of a user goes to connect at a backend. `state` seals what has to come back.
    ///
    /// # Errors
    ///
    /// If the user can't connect there now.
    pub async fn begin(
        &self,
        user: &str,
        backend: &str,
        state: impl FnOnce(Attempt) -> String,
    ) -> Result<String, NotConnected> {
        let site = self.site(backend).ok_or(NotConnected::NoSite)?;
        let server = self.authorities.pins.find(&site, For::Users).await?;
        let client = self.authorities.client(&site, &server).await?;
        let mut scopes: BTreeSet<String> = match site.scopes.is_empty() {
            true => server.scopes.iter().cloned().collect(),
            false => site.scopes.iter().cloned().collect(),
        };
        // Who agreed before agrees to no less.
        if let Some(row) = self.vault.connection(user, backend).await?
            && row.status == ConnectionStatus::NeedsScope
        {
            scopes.extend(row.scopes);
            scopes.extend(row.wanted);
        }
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let attempt = Attempt {
            issuer: server.metadata.issuer.clone(),
            client: client.id.clone(),
            verifier: verifier.secret().clone(),
            scopes: scopes.iter().cloned().collect(),
        };
        let unfit = |_| NotConnected::NoServer("the server's authorization endpoint is not a URL".to_owned());
        let endpoint = server.metadata.authorization_endpoint.clone().unwrap_or_default();
        let redirect = RedirectUrl::new(self.authorities.redirect_uri(backend)).map_err(unfit)?;
        let library = OAuthClient::new(ClientId::new(client.id))
            .set_auth_uri(AuthUrl::new(endpoint).map_err(unfit)?)
            .set_redirect_uri(redirect);
        let state = state(attempt);
        let mut request = library
            .authorize_url(|| CsrfToken::new(state))
            .add_scopes(scopes.into_iter().map(Scope::new))
            .set_pkce_challenge(challenge);
        if !server.resource.is_empty() {
            request = request.add_extra_param("resource", server.resource.clone());
        }
        Ok(request.url().0.into())
    }

    /// Keeps what a user's browser has brought back.
    ///
    /// # Errors
    ///
    /// If it is nothing that is accepted.
    pub async fn finish(
        &self,
        user: &str,
        backend: &str,
        attempt: &Attempt,
        came: CameBack<'_>,
    ) -> Result<(), NotConnected> {
        let refused = |why: &str| NotConnected::Refused(why.to_owned());
        let site = self.site(backend).ok_or(NotConnected::NoSite)?;
        let server = self.authorities.pins.known(&site).await?;
        let server = server.filter(|server| server.metadata.issuer == attempt.issuer);
        let server = server.ok_or_else(|| refused("the backend's server is another one now"))?;
        // Another server's code must not be shown to this one (RFC 9207).
        match came.iss {
            Some(iss) if iss != attempt.issuer => return Err(refused("the answer is another server's")),
            None if server.metadata.authorization_response_iss_parameter_supported => {
                return Err(refused("the answer does not say which server it is from"));
            }
            _ => {}
        }
        match came.error {
            Some("access_denied") => return Err(NotConnected::Denied),
            Some(error) => return Err(refused(&format!("the server says {}", printable(error)))),
            None => {}
        }
        let code = came.code.ok_or_else(|| refused("the answer has no code"))?;
        let client =
            self.authorities.known_client(&site, &server).filter(|client| client.id == attempt.client);
        let client = client.ok_or_else(|| refused("the gateway is another client there now"))?;
        let redirect = self.authorities.redirect_uri(backend);
        let grant = Grant::Code { code, verifier: &attempt.verifier, redirect: &redirect };
        let resource = Some(&*server.resource).filter(|resource| !resource.is_empty());
        let asked = token::request(&server.fetch, &server.metadata, &client, grant, &[], resource).await;
        let tokens = match asked {
            Ok(tokens) => tokens,
            Err(NoToken::Unavailable(why)) => return Err(NotConnected::Unavailable(why)),
            Err(why) => {
                if why.is_of_client() && site.client.is_none() {
                    self.authorities.forget_client(&site, &server, &client).await;
                }
                return Err(refused(&why.to_string()));
            }
        };
        let mut row = Connection {
            resource: server.resource.clone(),
            client: client.id,
            scopes: tokens.scopes.unwrap_or_else(|| attempt.scopes.iter().cloned().collect()),
            expires_at: end_of(Utc::now(), tokens.expires_in),
            ..super::sealed::row(user, backend, &attempt.issuer)
        };
        self.fill(&mut row, &tokens.access, tokens.refresh.as_deref(), tokens.id_token.as_deref());
        self.vault.put_connection(&row).await?;
        tracing::info!(backend.name = backend, user.id = user, "connected");
        self.tell(user, backend, true).await;
        Ok(())
    }

    /// Forgets what a user has at a backend, and tells the server so, if that can be.
    ///
    /// # Errors
    ///
    /// If it can't be forgotten.
    pub async fn disconnect(&self, user: &str, backend: &str) -> Result<(), NotConnected> {
        let kept_as = self.kept_as(backend);
        let Some(row) = self.vault.remove_connection(user, kept_as).await? else { return Ok(()) };
        tracing::info!(backend.name = backend, user.id = user, "disconnected");
        self.tell(user, kept_as, true).await;
        self.revoke_there(row).await;
        Ok(())
    }

    /// Tells the server of a connection that its tokens are no longer needed, if that can be.
    pub(super) async fn revoke_there(&self, row: Connection) {
        let parties = self.parties(&row).await;
        if let (Ok((_, server, client)), Some(opened)) = (parties, self.open(row))
            && let Some(endpoint) = &server.metadata.revocation_endpoint
        {
            let (token, hint) = match &opened.refresh {
                Some(refresh) => (refresh, "refresh_token"),
                None => (&opened.access, "access_token"),
            };
            let form = [("token", &**token), ("token_type_hint", hint)];
            let told = token::post_form(&*server.fetch, &server.metadata, &client, endpoint, &form).await;
            match told {
                Ok(answer) if answer.status().is_success() => {}
                Ok(answer) => tracing::warn!("a token is not revoked at its server: {}", answer.status()),
                Err(error) => tracing::warn!("a token is not revoked at its server: {error}"),
            }
        }
    }
}
