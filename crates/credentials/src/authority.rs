//! Which authorization server a backend has, and as which client the gateway is known there.
//!
//! A server that was found is pinned in the records: whatever the backend names later, nothing is sent there before the
//! operator has agreed, by naming it in the configuration. The gateway registers once for all users and instances.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use drawbridge_auth::fetch::{Fetch, NotFetched};
use drawbridge_auth::records::RecordsError;
use drawbridge_auth::resource::Origin;
use drawbridge_auth::vault::{Authority, Vault};
use drawbridge_core::seal::{KeyRing, Purpose};
use drawbridge_core::state::{SharedState, Unavailable};
use http::{Request, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;

use crate::server::{self, MAX_BYTES, Metadata, NoServer};
use crate::token::{Assert, ClientIdentity, ClientProof};
use crate::{Secret, printable};

/// Whoever registers has this long, and no other instance registers meanwhile.
const LEASE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(12);
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// A backend at which users have accounts, as the configuration has it.
#[derive(Clone)]
pub struct Site {
    /// The backend's name.
    pub name: String,
    /// Where it is.
    pub url: Url,
    /// Its server, if the operator names one.
    pub issuer: Option<String>,
    /// The gateway's id and secret there, if the operator has registered it.
    pub client: Option<(String, Option<Secret>)>,
    /// What is asked for; empty for what the backend says that it needs.
    pub scopes: Vec<String>,
    /// What tokens are for, in place of what the backend says.
    pub resource: Option<String>,
    /// Reaches what the operator names.
    pub trusted: Arc<dyn Fetch>,
}

/// Why users can't connect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAuthority {
    /// Not now.
    #[error("{0}")]
    Unavailable(String),
    /// What was found is not accepted; an operator has to do something.
    #[error("{0}")]
    Unfit(String),
    /// The backend names another server than before.
    #[error("the backend names another authorization server than before, {0}: name it as `issuer` to agree")]
    NeedsApproval(String),
}

impl From<NoServer> for NoAuthority {
    fn from(why: NoServer) -> Self {
        match why {
            NoServer::Unavailable(why) => Self::Unavailable(why),
            NoServer::Unfit(why) => Self::Unfit(why),
        }
    }
}

impl From<RecordsError> for NoAuthority {
    fn from(error: RecordsError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// What was found, as it is in the records.
#[derive(Serialize, Deserialize)]
struct Found {
    server: Metadata,
    /// What the backend says that its clients need.
    #[serde(default)]
    scopes: Vec<String>,
}

/// A server that users can connect through.
#[derive(Clone)]
pub struct Server {
    /// What it says about itself.
    pub metadata: Metadata,
    /// What tokens of it are for.
    pub resource: String,
    /// What the backend says that its clients need.
    pub scopes: Vec<String>,
    /// Reaches it.
    pub fetch: Arc<dyn Fetch>,
    pinned: Authority,
}

/// Reaches what the operator has named directly, and what that names only if it is public.
struct ByName {
    /// All that is named by what the operator has named.
    trusts_all: bool,
    origin: url::Origin,
    trusted: Arc<dyn Fetch>,
    guarded: Arc<dyn Fetch>,
}

#[async_trait]
impl Fetch for ByName {
    async fn fetch(&self, request: Request<Vec<u8>>, most: usize) -> Result<Response<Vec<u8>>, NotFetched> {
        let url = Url::parse(&request.uri().to_string()).map_err(|error| NotFetched(error.to_string()))?;
        let is_trusted = self.trusts_all || url.origin() == self.origin;
        let fetch = if is_trusted { &self.trusted } else { &self.guarded };
        fetch.fetch(request, most).await
    }
}

/// Where the servers of backends are pinned.
#[derive(Clone)]
pub struct Pins {
    /// The records.
    pub vault: Arc<dyn Vault>,
    /// Reaches what others name.
    pub guarded: Arc<dyn Fetch>,
}

/// Who gets tokens from a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Users, with their browsers.
    Users,
    /// The gateway itself.
    Gateway,
}

/// Knows the servers of backends, and the gateway as a client of them.
pub struct Authorities {
    /// Where they are pinned.
    pub pins: Pins,
    /// Seals the secrets of clients.
    pub ring: Arc<KeyRing>,
    /// Lets one instance register.
    pub state: SharedState,
    /// Under which browsers reach the gateway.
    pub origin: Origin,
    /// What people call the gateway.
    pub name: String,
    /// Proves the gateway to servers that know it by its document.
    pub assert: Option<Assert>,
}

fn secret_place(backend: &str, issuer: &str) -> String {
    format!("v1|{backend}|{issuer}|client_secret")
}

impl Pins {
    fn fetch_for(&self, site: &Site) -> Arc<dyn Fetch> {
        Arc::new(ByName {
            trusts_all: site.issuer.is_some(),
            origin: site.url.origin(),
            trusted: site.trusted.clone(),
            guarded: self.guarded.clone(),
        })
    }

    fn server(&self, site: &Site, pinned: Authority) -> Result<Server, NoAuthority> {
        let found: Found = serde_json::from_value(pinned.metadata.clone())
            .map_err(|_| NoAuthority::Unfit("what is kept of the server can't be read".to_owned()))?;
        Ok(Server {
            metadata: found.server,
            resource: pinned.resource.clone(),
            scopes: found.scopes,
            fetch: self.fetch_for(site),
            pinned,
        })
    }

    /// The server of a backend as it was pinned, without asking anybody; `None` if it has none yet, or the configuration
    /// names another.
    ///
    /// # Errors
    ///
    /// If the records can't be read.
    pub async fn known(&self, site: &Site) -> Result<Option<Server>, NoAuthority> {
        let Some(pinned) = self.vault.authority(&site.name).await? else { return Ok(None) };
        let is_other = site.issuer.as_ref().is_some_and(|issuer| *issuer != pinned.issuer);
        if is_other { Ok(None) } else { self.server(site, pinned).map(Some) }
    }

    /// The server of a backend, by asking the backend and the server.
    ///
    /// # Errors
    ///
    /// If there is none that is accepted.
    pub async fn find(&self, site: &Site, whom: For) -> Result<Server, NoAuthority> {
        let fetch = self.fetch_for(site);
        let pinned = self.vault.authority(&site.name).await?;
        let (issuer, resource, scopes) = match &site.issuer {
            Some(issuer) => (issuer.clone(), own_name(&site.url), Vec::new()),
            None => self.named(site, &*fetch, pinned.as_ref()).await?,
        };
        let metadata = match (server::metadata(&*fetch, &issuer).await, &pinned) {
            (Ok(metadata), _) => metadata,
            // It may be down for a moment; what it said before still holds.
            (Err(NoServer::Unavailable(_)), Some(pinned)) if pinned.issuer == issuer => {
                return self.server(site, pinned.clone());
            }
            (Err(why), _) => return Err(why.into()),
        };
        if whom == For::Users {
            is_usable(&metadata)?;
        }
        let found = Found { server: metadata, scopes };
        let mut fresh = Authority {
            backend: site.name.clone(),
            issuer: issuer.clone(),
            resource: site.resource.clone().unwrap_or(resource),
            metadata: serde_json::to_value(found).unwrap_or_default(),
            found: None,
            client_id: None,
            client_secret: None,
            pinned_at: Utc::now(),
        };
        let now = match pinned {
            None => self.vault.pin_authority(&fresh).await?,
            Some(before) => {
                if before.issuer == issuer {
                    // The gateway stays the client that it is there.
                    (fresh.client_id, fresh.client_secret) = (before.client_id, before.client_secret);
                    fresh.pinned_at = before.pinned_at;
                } else {
                    tracing::warn!(
                        backend.name = site.name,
                        "its authorization server is {issuer} now, as the configuration says, and was {}",
                        before.issuer
                    );
                }
                self.vault.replace_authority(&before.issuer, &fresh).await?.unwrap_or(fresh)
            }
        };
        if now.issuer != issuer {
            return Err(NoAuthority::Unavailable("another instance has found another server".to_owned()));
        }
        self.server(site, now)
    }

    /// The server that a backend names, its own name in tokens, and the scopes that it says are needed.
    async fn named(
        &self,
        site: &Site,
        fetch: &dyn Fetch,
        pinned: Option<&Authority>,
    ) -> Result<(String, String, Vec<String>), NoAuthority> {
        let found = server::resource(fetch, &site.url, None).await?;
        let Some(found) = found else {
            let why = "the backend names no authorization server: name it as `issuer`";
            return Err(NoAuthority::Unfit(why.to_owned()));
        };
        let all = found.authorization_servers;
        let issuer = match pinned.filter(|pinned| all.contains(&pinned.issuer)) {
            Some(pinned) => pinned.issuer.clone(),
            None => match &all[..] {
                [one] => one.clone(),
                [] => return Err(NoAuthority::Unfit("the backend names no authorization server".to_owned())),
                _ => {
                    let why = "the backend names several authorization servers: name one of them as `issuer`";
                    return Err(NoAuthority::Unfit(why.to_owned()));
                }
            },
        };
        if let Some(pinned) = pinned {
            if pinned.issuer != issuer {
                self.vault.note_authority(&site.name, Some(&issuer)).await?;
                let shown = printable(&issuer);
                tracing::error!(
                    backend.name = site.name,
                    "it names the authorization server {shown} now, and named {} before: nobody can connect until the \
                     configuration names one of them as `issuer`",
                    pinned.issuer
                );
                return Err(NoAuthority::NeedsApproval(shown));
            }
            if pinned.found.is_some() {
                self.vault.note_authority(&site.name, None).await?;
            }
        }
        Ok((issuer, found.resource, found.scopes_supported))
    }
}

impl Authorities {
    /// Where servers send browsers back to: for each backend elsewhere, so that none can be taken for another.
    pub fn redirect_uri(&self, backend: &str) -> String {
        self.origin.join(&format!("/connect/callback/{backend}"))
    }

    /// Where the gateway describes itself as a client, which is its id where that is understood.
    pub fn document_url(&self) -> Option<String> {
        let can_be = self.origin.is_secure() && self.assert.is_some();
        can_be.then(|| self.origin.join("/oauth/client-metadata.json"))
    }

    /// What it says there (OAuth Client ID Metadata Document), for these backends.
    pub fn document(&self, backends: &[String]) -> Option<Value> {
        let url = self.document_url()?;
        let redirects: Vec<String> = backends.iter().map(|backend| self.redirect_uri(backend)).collect();
        Some(json!({
            "client_id": url,
            "client_name": self.name,
            "client_uri": self.origin.as_str(),
            "redirect_uris": redirects,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "private_key_jwt",
            "token_endpoint_auth_signing_alg": "ES256",
            "jwks_uri": self.origin.join("/jwks.json"),
        }))
    }

    /// As which client the gateway is known at a server: the configured one, by its document, as it has registered, or by
    /// registering now.
    ///
    /// # Errors
    ///
    /// If it is not known there and can't register.
    pub async fn client(&self, site: &Site, server: &Server) -> Result<ClientIdentity, NoAuthority> {
        if let Some(client) = self.known_client(site, server) {
            return Ok(client);
        }
        let Some(endpoint) = &server.metadata.registration_endpoint else {
            let why = "the server lets nobody register: register the gateway there, and name its `client_id`";
            return Err(NoAuthority::Unfit(why.to_owned()));
        };
        let lease_of = format!("register:{}", site.name);
        let until = Instant::now() + PATIENCE;
        let lease = loop {
            match self.state.leases.acquire(&lease_of, &self.state.instance, LEASE).await {
                Ok(lease) if lease.owner == self.state.instance => break Some(lease),
                Ok(_) if Instant::now() >= until => {
                    return Err(NoAuthority::Unavailable(
                        "another instance registers and is not done".to_owned(),
                    ));
                }
                Ok(_) => tokio::time::sleep(LOOK_EVERY).await,
                // The records let one of those win who register.
                Err(Unavailable(_)) => break None,
            }
        };
        let registered = self.register(site, server, endpoint).await;
        if let Some(lease) = lease
            && let Err(Unavailable(why)) = self.state.leases.release(&lease_of, &lease).await
        {
            tracing::debug!("a lease ends by itself: {why}");
        }
        registered
    }

    /// The same without registering.
    pub fn known_client(&self, site: &Site, server: &Server) -> Option<ClientIdentity> {
        if let Some((id, secret)) = &site.client {
            return Some(ClientIdentity::with_secret(id, secret.clone(), &server.metadata));
        }
        let takes_documents = server.metadata.client_id_metadata_document_supported;
        if takes_documents
            && server.metadata.takes("private_key_jwt")
            && let (Some(id), Some(assert)) = (self.document_url(), &self.assert)
        {
            return Some(ClientIdentity { id, proof: ClientProof::Key(assert.clone()) });
        }
        self.registered(&server.pinned, &server.metadata)
    }

    fn registered(&self, pinned: &Authority, metadata: &Metadata) -> Option<ClientIdentity> {
        let id = pinned.client_id.as_ref()?;
        let secret = match &pinned.client_secret {
            None => None,
            Some(sealed) => {
                let place = secret_place(&pinned.backend, &pinned.issuer);
                let plain = self.ring.open_for(Purpose::Vault, &place, sealed)?;
                Some(Secret::fixed(&String::from_utf8(plain).ok()?))
            }
        };
        Some(ClientIdentity::with_secret(id, secret, metadata))
    }

    async fn register(
        &self,
        site: &Site,
        server: &Server,
        endpoint: &str,
    ) -> Result<ClientIdentity, NoAuthority> {
        let metadata = &server.metadata;
        // Whoever had the lease before may have been done.
        if let Some(pinned) = self.pins.vault.authority(&site.name).await?
            && pinned.issuer == metadata.issuer
            && let Some(client) = self.registered(&pinned, metadata)
        {
            return Ok(client);
        }
        let methods = ["client_secret_basic", "client_secret_post", "none"];
        let method = methods.into_iter().find(|method| metadata.takes(method)).unwrap_or("none");
        let asked = json!({
            "client_name": self.name,
            "client_uri": self.origin.as_str(),
            "redirect_uris": [self.redirect_uri(&site.name)],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "application_type": "web",
        });
        let request = Request::post(endpoint)
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .body(asked.to_string().into_bytes())
            .map_err(|error| NoAuthority::Unfit(error.to_string()))?;
        let answered = server.fetch.fetch(request, MAX_BYTES).await;
        let answered = answered.map_err(|NotFetched(why)| NoAuthority::Unavailable(why))?;
        let status = answered.status();
        if status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS {
            return Err(NoAuthority::Unavailable(format!("the server answers a registration with {status}")));
        }
        let answer: Value = serde_json::from_slice(answered.body()).unwrap_or_default();
        let Some(id) = answer["client_id"].as_str().filter(|_| status.is_success()) else {
            let why = answer["error"].as_str().map(printable).unwrap_or_default();
            return Err(NoAuthority::Unfit(format!(
                "the server refuses to register the gateway ({status} {why})"
            )));
        };
        let place = secret_place(&site.name, &metadata.issuer);
        let secret = answer["client_secret"].as_str();
        let secret = secret.map(|secret| self.ring.seal_for(Purpose::Vault, &place, secret.as_bytes()));
        tracing::info!(backend.name = site.name, "registered at {}", metadata.issuer);
        let kept = self.pins.vault.register_at(&site.name, &metadata.issuer, id, secret.as_deref()).await?;
        let kept = kept.filter(|kept| kept.issuer == metadata.issuer);
        kept.and_then(|kept| self.registered(&kept, metadata)).ok_or_else(|| {
            NoAuthority::Unavailable(
                "the backend's server has changed while the gateway registered".to_owned(),
            )
        })
    }

    /// The server does not know the gateway any more: it registers anew with the next user who connects.
    pub(crate) async fn forget_client(&self, site: &Site, server: &Server, client: &ClientIdentity) {
        let forgotten = self.pins.vault.forget_client(&site.name, &server.metadata.issuer, &client.id).await;
        if let Err(error) = forgotten {
            tracing::warn!(backend.name = site.name, "a client is not forgotten: {error}");
        }
    }
}

/// Whether users can connect through a server safely.
fn is_usable(metadata: &Metadata) -> Result<(), NoAuthority> {
    let issuer = &metadata.issuer;
    if metadata.authorization_endpoint.is_none() {
        return Err(NoAuthority::Unfit(format!("{issuer} has no authorization endpoint")));
    }
    if !metadata.code_challenge_methods_supported.iter().any(|method| method == "S256") {
        return Err(NoAuthority::Unfit(format!("{issuer} does not say that it supports PKCE with S256")));
    }
    Ok(())
}

/// The name of a backend as a resource, where it has no metadata that say one: its URL without query and fragment.
pub fn own_name(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let text = String::from(url);
    text.strip_suffix('/').map(str::to_owned).unwrap_or(text)
}
