//! What users have at other servers: connected once in a browser, kept sealed in the records, renewed when it is due.
//!
//! ```text
//! a request ─▶ known here? ─▶ due? ─▶ send
//!                              └─▶ renew: one task of one instance (its turn is in the records)
//!                                   ok ─▶ keep, if nobody else has changed it meanwhile (its version)
//!                                   invalid_grant ─▶ the user has to connect again
//!                                   else ─▶ use what is there while it is good, and try again later
//! 401 ─▶ renew once ─▶ 401 again ─▶ the user has to connect again
//! 403 insufficient_scope ─▶ the user has to agree to more
//! ```
//!
//! The turn is in the records and not in shared state: there it is as safe as what it is about. It only saves requests;
//! what decides is the version. Whoever waits for a renewal may go, the renewal goes on.

mod login;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use drawbridge_auth::records::{RecordsError, Time};
use drawbridge_auth::vault::{Connection, ConnectionStatus, Turn, Vault};
use drawbridge_core::accounts::Accounts;
use drawbridge_core::credentials::{Credential, Credentials, Refusal};
use drawbridge_core::seal::{KeyRing, Purpose};
use drawbridge_core::state::{Heard, SharedState, Unavailable};
use drawbridge_core::{Fault, Principal, Tasks};
use futures_util::StreamExt as _;
use oauth2::{AuthUrl, ClientId, CsrfToken, PkceCodeChallenge, RedirectUrl, Scope};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio::time::Instant;

use self::login::Logins;
pub(crate) use self::login::Subject;
pub use self::login::login_site;
use crate::authority::{Authorities, For, NoAuthority, Server, Site};
use crate::printable;
use crate::token::{self, ClientIdentity, Grant, NoToken, OAuthClient, Tokens};

/// What is known here of a connection is looked up again after this long: another instance may have been heard of too
/// late. That there is none is only known for a moment.
const KNOWN: Duration = Duration::from_secs(30);
const UNKNOWN: Duration = Duration::from_millis(500);
const MAX_KNOWN: usize = 10_000;
/// Whoever renews has this long, which is longer than a server gets to answer.
const TURN: TimeDelta = TimeDelta::seconds(20);
/// How long one waits for whoever renews.
const PATIENCE: Duration = Duration::from_secs(12);
const LOOK_EVERY: Duration = Duration::from_millis(150);
/// A token is renewed when less than this is left of it, or a tenth of its life.
const MARGIN: TimeDelta = TimeDelta::seconds(60);
/// A server that gives no token is left alone for this long, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A link is good for this long.
const LINK_TIME: TimeDelta = TimeDelta::minutes(30);
/// What instances tell each other.
const TOPIC: &str = "accounts";
/// Changes that somebody who listens may be behind.
const MAX_BEHIND: usize = 256;
/// How many connections are sealed anew at a time.
const RESEAL: u32 = 100;

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

/// A connection with its tokens.
struct Opened {
    row: Connection,
    access: String,
    refresh: Option<String>,
}

impl Opened {
    fn credential(&self) -> Credential {
        Credential::bearer(&self.access, &format!("{}:{}", self.row.id, self.row.version))
    }

    /// Whether its token can be sent.
    fn is_good(&self, now: Time) -> bool {
        self.row.expires_at.is_none_or(|end| now < end)
    }

    fn is_due(&self, now: Time) -> bool {
        self.row.expires_at.is_some_and(|end| {
            let life = end - self.row.updated_at;
            // A token that lives no longer than the margin would always be due.
            let margin = MARGIN.min(life / 2).max(life / 10);
            end - now < margin
        })
    }
}

struct Known {
    opened: Option<Arc<Opened>>,
    at: Instant,
}

/// What instances tell each other of a connection.
#[derive(Debug, Serialize, Deserialize)]
struct Word {
    #[serde(rename = "u")]
    user: String,
    #[serde(rename = "b")]
    backend: String,
    /// Whether it can be used now and could not before, or the other way round.
    #[serde(rename = "c")]
    is_change: bool,
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

/// The connections of all users at all backends.
pub struct Connections {
    /// Knows servers.
    pub authorities: Authorities,
    vault: Arc<dyn Vault>,
    ring: Arc<KeyRing>,
    state: SharedState,
    tasks: Tasks,
    sites: RwLock<BTreeMap<String, Arc<Site>>>,
    logins: RwLock<Logins>,
    known: Mutex<HashMap<(String, String), Known>>,
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    resting: Mutex<HashMap<String, (Instant, Duration)>>,
    /// Versions of connections that are there because the one before was refused.
    forced: Mutex<HashMap<String, i64>>,
    signals: Mutex<HashMap<String, broadcast::Sender<Arc<str>>>>,
}

/// What seals a token of a connection: nothing else opens it, so a row that is copied is of no use.
fn place(user: &str, backend: &str, issuer: &str, column: &str) -> String {
    format!("v1|{user}|{backend}|{issuer}|{column}")
}

impl Connections {
    /// Connections through `authorities`, whose records and state they share. Renewals are among `tasks`.
    pub fn new(authorities: Authorities, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            vault: authorities.pins.vault.clone(),
            ring: authorities.ring.clone(),
            state: authorities.state.clone(),
            authorities,
            tasks,
            sites: RwLock::default(),
            logins: RwLock::default(),
            known: Mutex::default(),
            turns: Mutex::default(),
            resting: Mutex::default(),
            forced: Mutex::default(),
            signals: Mutex::default(),
        })
    }

    /// The backends that users connect at, from now on.
    pub fn set_sites(&self, sites: Vec<Site>) {
        *self.sites.write() = sites.into_iter().map(|site| (site.name.clone(), Arc::new(site))).collect();
        self.known.lock().clear();
    }

    /// Their names.
    pub fn backends(&self) -> Vec<String> {
        self.sites.read().keys().cloned().collect()
    }

    fn site(&self, backend: &str) -> Option<Arc<Site>> {
        let site = self.sites.read().get(backend).cloned();
        site.or_else(|| self.login_site(backend))
    }

    /// Credentials of users for the backend of this name, and what the engine wants to know of them.
    pub fn of(self: &Arc<Self>, backend: &str) -> Arc<OfUsers> {
        Arc::new(OfUsers { connections: self.clone(), backend: backend.to_owned() })
    }

    fn signal(&self, backend: &str) -> broadcast::Sender<Arc<str>> {
        let mut signals = self.signals.lock();
        signals.entry(backend.to_owned()).or_insert_with(|| broadcast::Sender::new(MAX_BEHIND)).clone()
    }

    /// Tells all instances, this one first, that something is another than before.
    async fn tell(&self, user: &str, backend: &str, is_change: bool) {
        let word = Word { user: user.to_owned(), backend: backend.to_owned(), is_change };
        self.hear(&word);
        if self.state.is_fleet {
            let text = Bytes::from(serde_json::to_vec(&word).unwrap_or_default());
            if let Err(Unavailable(why)) = self.state.bus.publish(TOPIC, text).await {
                tracing::warn!("other instances hear of an account later: {why}");
            }
        }
    }

    fn hear(&self, word: &Word) {
        self.known.lock().remove(&(word.user.clone(), word.backend.clone()));
        if word.is_change {
            // Nobody may listen.
            let _ = self.signal(&word.backend).send(Arc::from(&*word.user));
        }
    }

    /// Hears what other instances tell, until the gateway stops.
    pub async fn attend(self: Arc<Self>) {
        if !self.state.is_fleet {
            return;
        }
        loop {
            if let Ok(mut words) = self.state.bus.subscribe(TOPIC).await {
                // Whatever was said meanwhile was not heard.
                self.known.lock().clear();
                while let Some(heard) = words.next().await {
                    match heard {
                        Heard::Message(text) => {
                            if let Ok(word) = serde_json::from_slice::<Word>(&text) {
                                self.hear(&word);
                            }
                        }
                        Heard::Missed => self.known.lock().clear(),
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Seals with the first key what others have sealed. Returns how many connections that were.
    ///
    /// # Errors
    ///
    /// If the records can't be had.
    pub async fn seal_anew(&self) -> Result<usize, RecordsError> {
        let mut count = 0;
        for row in self.vault.sealed_before(self.ring.sealing(), RESEAL).await? {
            let Some(opened) = self.open(row) else { continue };
            let id_token = opened
                .row
                .id_token
                .as_deref()
                .and_then(|sealed| self.unseal(&opened.row, "id_token", sealed));
            let mut fresh = opened.row.clone();
            self.fill(&mut fresh, &opened.access, opened.refresh.as_deref(), id_token.as_deref());
            count += usize::from(self.vault.change_connection(&fresh).await?);
        }
        Ok(count)
    }

    fn unseal(&self, row: &Connection, column: &str, sealed: &str) -> Option<String> {
        let place = place(&row.user, &row.backend, &row.issuer, column);
        String::from_utf8(self.ring.open_for(Purpose::Vault, &place, sealed)?).ok()
    }

    /// Puts tokens into a row, sealed.
    fn fill(&self, row: &mut Connection, access: &str, refresh: Option<&str>, id_token: Option<&str>) {
        let seal = |column: &str, plain: &str| {
            let place = place(&row.user, &row.backend, &row.issuer, column);
            self.ring.seal_for(Purpose::Vault, &place, plain.as_bytes())
        };
        let sealed = (
            seal("access", access),
            refresh.map(|t| seal("refresh", t)),
            id_token.map(|t| seal("id_token", t)),
        );
        (row.access, row.refresh, row.id_token) = sealed;
    }

    fn open(&self, row: Connection) -> Option<Opened> {
        let access = self.unseal(&row, "access", &row.access);
        let refresh = row.refresh.as_deref().map(|sealed| self.unseal(&row, "refresh", sealed));
        match (access, refresh) {
            (Some(access), None) => Some(Opened { row, access, refresh: None }),
            (Some(access), Some(Some(refresh))) => Some(Opened { row, access, refresh: Some(refresh) }),
            _ => {
                tracing::error!(
                    backend.name = row.backend,
                    user.id = row.user,
                    "what is kept of a connection can't be opened: its key is gone, or somebody has changed it"
                );
                None
            }
        }
    }

    /// What a user has at a backend, if it is of use.
    async fn find(&self, user: &str, backend: &str) -> Result<Option<Arc<Opened>>, Fault> {
        let key = (user.to_owned(), backend.to_owned());
        {
            let known = self.known.lock();
            if let Some(known) = known.get(&key) {
                let fresh = if known.opened.is_some() { KNOWN } else { UNKNOWN };
                if known.at.elapsed() < fresh {
                    return Ok(known.opened.clone());
                }
            }
        }
        let row = self.vault.connection(user, backend).await.map_err(|error| unavailable(backend, &error))?;
        let site = self.site(backend);
        let is_of_use = |row: &Connection| {
            let issuer = site.as_ref().and_then(|site| site.issuer.as_ref());
            row.status == ConnectionStatus::Connected && issuer.is_none_or(|issuer| *issuer == row.issuer)
        };
        let opened = row.filter(is_of_use).and_then(|row| self.open(row)).map(Arc::new);
        Ok(self.remember(key, opened))
    }

    fn remember(&self, key: (String, String), opened: Option<Arc<Opened>>) -> Option<Arc<Opened>> {
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, Known { opened: opened.clone(), at: Instant::now() });
        opened
    }

    /// What a user has, renewed if it is due or was refused as the version `refused`.
    async fn usable(
        self: &Arc<Self>,
        user: &str,
        backend: &str,
        refused: Option<i64>,
    ) -> Result<Arc<Opened>, Fault> {
        let none = || Fault::NotConnected { backend: backend.to_owned() };
        let opened = self.find(user, backend).await?.ok_or_else(none)?;
        let (now, was_refused) = (Utc::now(), refused == Some(opened.row.version));
        if !was_refused && !opened.is_due(now) {
            return Ok(opened);
        }
        if opened.refresh.is_none() {
            return if !was_refused && opened.is_good(now) { Ok(opened) } else { self.lapse(&opened).await };
        }
        let (told, renewed) = tokio::sync::oneshot::channel();
        let (this, user, backend) = (self.clone(), user.to_owned(), backend.to_owned());
        self.tasks.spawn("renew a connection", async move {
            // Nobody may wait any more.
            let _ = told.send(this.renew(&user, &backend, refused).await);
        });
        renewed.await.unwrap_or(Err(Fault::Draining))
    }

    /// A connection that can't be renewed and is over.
    async fn lapse(&self, opened: &Opened) -> Result<Arc<Opened>, Fault> {
        self.demand(opened, ConnectionStatus::NeedsReauth, BTreeSet::new(), "the token has ended").await
    }

    /// The user has to do something. Never returns a connection.
    async fn demand(
        &self,
        opened: &Opened,
        status: ConnectionStatus,
        wanted: BTreeSet<String>,
        why: &str,
    ) -> Result<Arc<Opened>, Fault> {
        let (user, backend) = (&opened.row.user, &opened.row.backend);
        let changed = Connection { status, wanted, last_error: Some(why.to_owned()), ..opened.row.clone() };
        let changed =
            self.vault.change_connection(&changed).await.map_err(|error| unavailable(backend, &error))?;
        if changed {
            tracing::info!(backend.name = backend, user.id = user, status = status.as_str(), "{why}");
            self.tell(user, backend, true).await;
        } else {
            self.known.lock().remove(&(user.clone(), backend.clone()));
        }
        Err(Fault::NotConnected { backend: backend.clone() })
    }

    /// Renews what a user has, or waits for whoever does.
    async fn renew(&self, user: &str, backend: &str, refused: Option<i64>) -> Result<Arc<Opened>, Fault> {
        let turn = self.turns.lock().entry(format!("{user}:{backend}")).or_default().clone();
        let _turn = turn.lock().await;
        let renewed = self.renew_in_turn(user, backend, refused).await;
        let mut turns = self.turns.lock();
        // Nobody but this table and this task.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        renewed
    }

    async fn renew_in_turn(
        &self,
        user: &str,
        backend: &str,
        refused: Option<i64>,
    ) -> Result<Arc<Opened>, Fault> {
        let none = || Fault::NotConnected { backend: backend.to_owned() };
        let until = Instant::now() + PATIENCE;
        loop {
            let row =
                self.vault.connection(user, backend).await.map_err(|error| unavailable(backend, &error))?;
            let row = row.filter(|row| row.status == ConnectionStatus::Connected).ok_or_else(none)?;
            let opened = Arc::new(self.open(row).ok_or_else(none)?);
            let (now, was_refused) = (Utc::now(), refused == Some(opened.row.version));
            if !was_refused && !opened.is_due(now) {
                let key = (user.to_owned(), backend.to_owned());
                return Ok(self.remember(key, Some(opened.clone())).unwrap_or(opened));
            }
            let may_use =
                |opened: &Arc<Opened>| (!was_refused && opened.is_good(now)).then(|| opened.clone());
            if self.is_resting(&opened.row.id) {
                return may_use(&opened).ok_or_else(|| busy(backend, "its server gives no token"));
            }
            let by = self.state.instance.as_str();
            let turn = Turn { by, now, until: now + TURN };
            let taken = self.vault.take_turn(&opened.row.id, opened.row.version, turn).await;
            if taken.map_err(|error| unavailable(backend, &error))? {
                if let Some(done) = self.renew_now(&opened, was_refused).await? {
                    return Ok(done);
                }
            } else if let Some(opened) = may_use(&opened) {
                return Ok(opened);
            } else {
                if Instant::now() >= until {
                    return Err(busy(backend, "another instance renews the token and is not done"));
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    fn note_forced(&self, row: &Connection, was_refused: bool) {
        let mut forced = self.forced.lock();
        if forced.len() >= MAX_KNOWN {
            forced.clear();
        }
        if was_refused {
            forced.insert(row.id.clone(), row.version);
        } else {
            forced.remove(&row.id);
        }
    }

    /// Whether a connection was renewed because it was refused, and not changed since.
    fn is_forced(&self, row: &Connection) -> bool {
        self.forced.lock().get(&row.id) == Some(&row.version)
    }

    fn is_resting(&self, id: &str) -> bool {
        self.resting.lock().get(id).is_some_and(|(until, _)| Instant::now() < *until)
    }

    fn rest(&self, id: &str) {
        let mut resting = self.resting.lock();
        let now = Instant::now();
        resting.retain(|_, (until, pause)| now < *until + *pause);
        let pause = resting.get(id).map_or(BACK_OFF.0, |(_, pause)| (*pause * 2).min(BACK_OFF.1));
        resting.insert(id.to_owned(), (now + pause, pause));
    }

    /// Asks the server, whose turn it is. `None` if somebody else has changed the connection meanwhile.
    async fn renew_now(&self, opened: &Arc<Opened>, was_refused: bool) -> Result<Option<Arc<Opened>>, Fault> {
        let row = &opened.row;
        let backend = &row.backend;
        let give_back = async || {
            if let Err(error) = self.vault.give_back(&row.id, self.state.instance.as_str()).await {
                tracing::debug!("a turn ends by itself: {error}");
            }
        };
        let failed = async |why: String| {
            tracing::warn!(backend.name = backend, user.id = row.user, "a token is not renewed: {why}");
            self.rest(&row.id);
            give_back().await;
            match !was_refused && opened.is_good(Utc::now()) {
                true => Ok(Some(opened.clone())),
                false => Err(busy(backend, "its server gives no token")),
            }
        };
        let Some(refresh) = &opened.refresh else {
            return failed("there is none to renew with".to_owned()).await;
        };
        let (site, server, client) = match self.parties(row).await {
            Ok(parties) => parties,
            Err(why) => return failed(why.to_string()).await,
        };
        let resource = Some(&*row.resource).filter(|resource| !resource.is_empty());
        let asked =
            token::request(&server.fetch, &server.metadata, &client, Grant::Refresh(refresh), &[], resource);
        match asked.await {
            Ok(tokens) => {
                let fresh = self.renewed(row, refresh, tokens);
                // Nothing stands between the answer and this: what the server gave is lost if it is not kept.
                let kept = self.vault.change_connection(&fresh).await;
                if !kept.map_err(|error| unavailable(backend, &error))? {
                    return Ok(None);
                }
                self.resting.lock().remove(&row.id);
                tracing::debug!(backend.name = backend, user.id = row.user, "a token was renewed");
                self.tell(&row.user, backend, false).await;
                let fresh = Connection { version: fresh.version + 1, ..fresh };
                self.note_forced(&fresh, was_refused);
                let Some(opened) = self.open(fresh).map(Arc::new) else { return Ok(None) };
                self.remember((row.user.clone(), backend.clone()), Some(opened.clone()));
                Ok(Some(opened))
            }
            Err(why) if why.is_invalid_grant() => {
                // Whoever has changed it meanwhile may have used the token up.
                let said = "the server takes the connection no more";
                let status = ConnectionStatus::NeedsReauth;
                let now = self.vault.connection(&row.user, backend).await;
                if now.ok().flatten().is_some_and(|now| now.version != row.version) {
                    return Ok(None);
                }
                self.demand(opened, status, BTreeSet::new(), said).await.map(Some)
            }
            Err(why) if why.is_of_client() => {
                tracing::error!(
                    backend.name = backend,
                    "{} does not know the gateway as {} any more: nobody's connection can be renewed ({why})",
                    server.metadata.issuer,
                    client.id
                );
                if site.client.is_none() {
                    self.authorities.forget_client(&site, &server, &client).await;
                }
                failed(why.to_string()).await
            }
            Err(why) => failed(why.to_string()).await,
        }
    }

    /// The backend, the server and the client of a connection, if they are still those that it was made with.
    async fn parties(&self, row: &Connection) -> Result<(Arc<Site>, Server, ClientIdentity), NotConnected> {
        let site = self.site(&row.backend).ok_or(NotConnected::NoSite)?;
        let server = self.authorities.pins.known(&site).await?;
        let server = server.filter(|server| server.metadata.issuer == row.issuer);
        let server = server
            .ok_or_else(|| NotConnected::NoServer("the backend's server is another one now".to_owned()))?;
        let client = self.authorities.known_client(&site, &server).filter(|client| client.id == row.client);
        let client = client
            .ok_or_else(|| NotConnected::NoServer("the gateway is another client there now".to_owned()))?;
        Ok((site, server, client))
    }

    /// A connection with new tokens. What the server leaves out stays as it is.
    fn renewed(&self, row: &Connection, refresh: &str, tokens: Tokens) -> Connection {
        let old_id = row.id_token.as_deref().and_then(|sealed| self.unseal(row, "id_token", sealed));
        let mut fresh = row.clone();
        let refresh = tokens.refresh.as_deref().unwrap_or(refresh);
        let id_token = tokens.id_token.as_deref().or(old_id.as_deref());
        self.fill(&mut fresh, &tokens.access, Some(refresh), id_token);
        fresh.scopes = tokens.scopes.unwrap_or(fresh.scopes);
        fresh.updated_at = Utc::now();
        fresh.expires_at = end_of(fresh.updated_at, tokens.expires_in);
        fresh.last_error = None;
        fresh
    }

    /// The link that `sealed` is, if it is not too old.
    pub fn link(&self, sealed: &str) -> Option<Link> {
        let link: Link = serde_json::from_slice(&self.ring.open(Purpose::Connect, sealed)?).ok()?;
        let age = Utc::now().timestamp() - link.at;
        (0..=LINK_TIME.num_seconds()).contains(&age).then_some(link)
    }

    fn make_link(&self, user: &str, backend: &str, name: &str) -> String {
        let (user, backend, name) = (user.to_owned(), backend.to_owned(), name.to_owned());
        let link = Link { user, at: Utc::now().timestamp(), name, backend };
        let sealed = self.ring.seal(Purpose::Connect, &serde_json::to_vec(&link).unwrap_or_default());
        self.authorities.origin.join(&format!("/connect/{}?e={sealed}", link.backend))
    }

    /// What users connect at, and what `user` has there.
    ///
    /// # Errors
    ///
    /// If the records can't be read.
    pub async fn shown(&self, user: &str) -> Result<Vec<Shown>, RecordsError> {
        let rows = self.vault.connections(user).await?;
        let sites: Vec<Arc<Site>> = self.sites.read().values().cloned().collect();
        let shown = sites.into_iter().map(|site| {
            let row = rows.iter().find(|row| row.backend == site.name);
            Shown {
                backend: site.name.clone(),
                host: site.url.host_str().unwrap_or_default().to_owned(),
                status: row.map(|row| row.status),
                since: row.map(|row| row.created_at),
            }
        });
        Ok(shown.chain(self.shown_logins(&rows)).collect())
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
        let now = Utc::now();
        let mut row = Connection {
            id: drawbridge_auth::fresh_id(),
            user: user.to_owned(),
            backend: backend.to_owned(),
            issuer: attempt.issuer.clone(),
            resource: server.resource.clone(),
            client: client.id,
            scopes: tokens.scopes.unwrap_or_else(|| attempt.scopes.iter().cloned().collect()),
            wanted: BTreeSet::new(),
            access: String::new(),
            refresh: None,
            id_token: None,
            expires_at: end_of(now, tokens.expires_in),
            status: ConnectionStatus::Connected,
            version: 1,
            last_error: None,
            created_at: now,
            updated_at: now,
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
    async fn revoke_there(&self, row: Connection) {
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

fn end_of(now: Time, life: Option<Duration>) -> Option<Time> {
    let end = now.checked_add_signed(TimeDelta::from_std(life?).ok()?)?;
    // What the records can keep.
    Some(end.min(DateTime::from_timestamp(32_503_680_000, 0)?))
}

fn unavailable(backend: &str, error: &RecordsError) -> Fault {
    tracing::warn!(backend.name = backend, "connections can't be looked up: {error}");
    busy(backend, "the gateway's records are unavailable")
}

fn busy(backend: &str, detail: &str) -> Fault {
    Fault::NoCredential { backend: backend.to_owned(), detail: detail.to_owned() }
}

/// The scopes that a challenge says are missing (RFC 6750 § 3).
fn missing_scopes(challenge: &str) -> Option<BTreeSet<String>> {
    let of = |name: &str| {
        let at = challenge.find(&format!("{name}=\""))? + name.len() + 2;
        challenge[at..].split('"').next()
    };
    let is_about_scope = of("error") == Some("insufficient_scope");
    is_about_scope.then(|| {
        let scopes = of("scope").unwrap_or_default().split(' ').filter(|scope| !scope.is_empty());
        scopes.map(str::to_owned).take(64).collect()
    })
}

/// What users have at one backend.
pub struct OfUsers {
    connections: Arc<Connections>,
    backend: String,
}

impl OfUsers {
    fn user<'a>(&self, whom: &'a Principal) -> Result<&'a str, Fault> {
        whom.user().ok_or_else(|| Fault::NotConnected { backend: self.backend.clone() })
    }
}

#[async_trait]
impl Credentials for OfUsers {
    async fn find(&self, whom: &Principal) -> Result<Credential, Fault> {
        let user = self.user(whom)?;
        Ok(self.connections.usable(user, &self.backend, None).await?.credential())
    }

    async fn refused(
        &self,
        whom: &Principal,
        credential: &Credential,
        refusal: &Refusal,
    ) -> Result<Option<Credential>, Fault> {
        let (user, connections) = (self.user(whom)?, &self.connections);
        let Some(opened) = connections.find(user, &self.backend).await? else {
            return Err(Fault::NotConnected { backend: self.backend.clone() });
        };
        let is_this = opened.credential().id() == credential.id();
        if refusal.status == 403 {
            let wanted = refusal.challenge.as_deref().and_then(missing_scopes);
            return match wanted.filter(|_| is_this) {
                Some(wanted) => {
                    let why = "the backend wants more than the user has agreed to";
                    let demanded = connections.demand(&opened, ConnectionStatus::NeedsScope, wanted, why);
                    demanded.await.map(|_| None)
                }
                None => Ok(None),
            };
        }
        if !is_this {
            return Ok(Some(opened.credential()));
        }
        if connections.is_forced(&opened.row) {
            let why = "the backend refuses a token that was just renewed";
            let status = ConnectionStatus::NeedsReauth;
            return connections.demand(&opened, status, BTreeSet::new(), why).await.map(|_| None);
        }
        let renewed = connections.usable(user, &self.backend, Some(opened.row.version)).await?;
        Ok(Some(renewed.credential()))
    }
}

#[async_trait]
impl Accounts for OfUsers {
    async fn is_connected(&self, whom: &Principal) -> Result<bool, Fault> {
        match whom.user() {
            Some(user) => Ok(self.connections.find(user, &self.backend).await?.is_some()),
            None => Ok(false),
        }
    }

    fn link(&self, whom: &Principal, name: &str) -> Option<String> {
        Some(self.connections.make_link(whom.user()?, &self.backend, name))
    }

    fn changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.connections.signal(&self.backend).subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_says_which_scopes_are_missing() {
        let set = |all: &[&str]| Some(all.iter().map(|one| (*one).to_owned()).collect::<BTreeSet<_>>());
        let of = missing_scopes;
        assert_eq!(of(r#"Bearer error="insufficient_scope", scope="a b""#), set(&["a", "b"]));
        assert_eq!(of(r#"Bearer error="insufficient_scope""#), set(&[]));
        assert_eq!(of(r#"Bearer error="invalid_token", scope="a b""#), None);
        assert_eq!(of("Basic"), None);
    }
}
