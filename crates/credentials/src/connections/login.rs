//! What the identity provider has given when a user logged in. It is kept as what users have at backends is: sealed in
//! the records, renewed by one instance. No backend gets it; it is exchanged for what one takes ([`crate::exchange`]).
//!
//! It is only kept while there is a backend that needs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::Utc;
use drawbridge_auth::records::RecordsError;
use drawbridge_auth::vault::{Connection, ConnectionStatus};
use drawbridge_core::{Fault, Tasks};
use tokio::sync::broadcast;
use url::Url;

use super::{Connections, NotConnected, Opened, Shown, end_of};
use crate::authority::{For, Site};
use crate::token::Tokens;

/// The name that it is kept under, which no backend can have.
pub(super) const LOGIN: &str = "auth.login";

/// Who logs users in, and which backends need what it gives.
#[derive(Default)]
pub(super) struct Logins {
    site: Option<Arc<Site>>,
    /// Where the backends are.
    backends: BTreeMap<String, Url>,
}

/// Who logs users in, as a server that the gateway renews tokens at.
pub fn login_site(site: Site) -> Site {
    // Tokens of a login are for nothing in particular.
    Site { name: LOGIN.to_owned(), resource: Some(String::new()), ..site }
}

/// What a user has logged in with, to be exchanged.
pub(crate) struct Subject(Arc<Opened>);

impl Subject {
    /// Tells it from the ones before and after.
    pub(crate) fn version(&self) -> (&str, i64) {
        (&self.0.row.id, self.0.row.version)
    }

    /// The provider's access token.
    pub(crate) fn access(&self) -> &str {
        &self.0.access
    }

    /// Whether another can be had without the user.
    pub(crate) fn is_renewable(&self) -> bool {
        self.0.refresh.is_some()
    }

    /// Whether it has just been got: another would be no better.
    pub(crate) fn is_young(&self) -> bool {
        (Utc::now() - self.0.row.updated_at).num_seconds() < 60
    }
}

impl Connections {
    /// From now on these backends need what `site` gives when users log in.
    pub fn set_logins(&self, site: Option<Site>, backends: BTreeMap<String, Url>) {
        *self.logins.write() = Logins { site: site.map(Arc::new), backends };
    }

    pub(super) fn login_site(&self, name: &str) -> Option<Arc<Site>> {
        if name == LOGIN { self.logins.read().site.clone() } else { None }
    }

    /// Whether users connect at this backend by logging in.
    pub fn is_by_login(&self, backend: &str) -> bool {
        let logins = self.logins.read();
        logins.site.is_some() && logins.backends.contains_key(backend)
    }

    /// Keeps what a user has just logged in with, if a backend needs it. A login is one without that too.
    pub async fn keep_login(&self, user: &str, tokens: &Tokens) {
        let needed = self.login_site(LOGIN).filter(|_| !self.logins.read().backends.is_empty());
        let Some(site) = needed else { return };
        if let Err(why) = self.keep(user, &site, tokens).await {
            tracing::warn!(
                user.id = user,
                "what the user logged in with is not kept, and they will have to log in again: {why}"
            );
        }
    }

    async fn keep(&self, user: &str, site: &Site, tokens: &Tokens) -> Result<(), NotConnected> {
        let server = self.authorities.pins.find(site, For::Gateway).await?;
        let client = site.client.as_ref().map(|(id, _)| id.clone());
        let mut row = Connection {
            client: client.unwrap_or_default(),
            scopes: tokens.scopes.clone().unwrap_or_default(),
            expires_at: end_of(Utc::now(), tokens.expires_in),
            ..super::sealed::row(user, LOGIN, &server.metadata.issuer)
        };
        self.fill(&mut row, &tokens.access, tokens.refresh.as_deref(), tokens.id_token.as_deref());
        self.vault.put_connection(&row).await?;
        self.tell(user, LOGIN, true).await;
        Ok(())
    }

    /// What a user has logged in with, as it is known, if it is of use.
    ///
    /// # Errors
    ///
    /// If the records can't be read.
    pub(crate) async fn known_subject(&self, user: &str) -> Result<Option<Subject>, Fault> {
        Ok(self.find(user, LOGIN).await?.map(Subject))
    }

    /// What a user has logged in with, renewed if it is due, or was of no use in the version `refused`.
    ///
    /// # Errors
    ///
    /// [`Fault::NotConnected`] if they have to log in again, another if it can't be had now.
    pub(crate) async fn subject(
        self: &Arc<Self>,
        user: &str,
        refused: Option<i64>,
    ) -> Result<Subject, Fault> {
        self.usable(user, LOGIN, refused).await.map(Subject)
    }

    /// The provider's ID token of a login.
    pub(crate) fn id_token_of(&self, subject: &Subject) -> Option<String> {
        let row = &subject.0.row;
        self.unseal(row, "id_token", row.id_token.as_deref()?)
    }

    /// Whether there is something that a user has logged in with.
    ///
    /// # Errors
    ///
    /// If the records can't be read.
    pub async fn has_login(&self, user: &str) -> Result<bool, RecordsError> {
        let row = self.vault.connection(user, LOGIN).await?;
        Ok(row.is_some_and(|row| row.status == ConnectionStatus::Connected))
    }

    /// Where a user logs in for a backend; `name` is what the link is known by.
    pub(crate) fn login_link(&self, user: &str, backend: &str, name: &str) -> String {
        self.make_link(user, backend, name)
    }

    /// Tells whose logins are other ones than before.
    pub(crate) fn login_changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.signal(LOGIN).subscribe()
    }

    /// Where work goes on that nobody waits for.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The host of a backend that users log in for, and that of the provider.
    pub fn login_hosts(&self, backend: &str) -> Option<(String, String)> {
        let logins = self.logins.read();
        let host = |url: &Url| url.host_str().unwrap_or_default().to_owned();
        Some((host(logins.backends.get(backend)?), host(&logins.site.as_ref()?.url)))
    }

    /// What there is to show of the backends that users log in for.
    pub(super) fn shown_logins(&self, rows: &[Connection]) -> Vec<Shown> {
        let row = rows.iter().find(|row| row.backend == LOGIN);
        let logins = self.logins.read();
        let shown = logins.backends.iter().map(|(backend, url)| Shown {
            backend: backend.clone(),
            host: url.host_str().unwrap_or_default().to_owned(),
            status: row.map(|row| row.status),
            since: row.map(|row| row.created_at),
        });
        shown.collect()
    }

    /// The name under which is kept what a user has for a backend.
    pub(super) fn kept_as<'a>(&self, backend: &'a str) -> &'a str {
        if self.is_by_login(backend) { LOGIN } else { backend }
    }

    /// Forgets what a user has logged in with, everywhere, and what was got with it. The provider is told aside.
    ///
    /// # Errors
    ///
    /// If it can't be forgotten.
    pub async fn forget_login(self: &Arc<Self>, user: &str) -> Result<(), NotConnected> {
        let Some(row) = self.vault.remove_connection(user, LOGIN).await? else { return Ok(()) };
        tracing::info!(user.id = user, "what the user logged in with is forgotten");
        self.tell(user, LOGIN, true).await;
        let this = self.clone();
        self.tasks.spawn("revoke a login at its provider", async move { this.revoke_there(row).await });
        Ok(())
    }
}
