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
//! Here is what is known of them, and what instances tell each other; `linking.rs` is the browser's way, `renewing.rs` that
//! of tokens, `pasted.rs` that of keys, `sealed.rs` how they are kept, `of_users.rs` what the engine and the face of a backend see.

mod linking;
mod login;
mod of_users;
mod pasted;
mod renewing;
mod sealed;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta};
use drawbridge_auth::records::{RecordsError, Time};
use drawbridge_auth::vault::{Connection, ConnectionStatus, Vault};
use drawbridge_core::seal::KeyRing;
use drawbridge_core::state::{Heard, SharedState, Unavailable};
use drawbridge_core::{Fault, Tasks};
use futures_util::StreamExt as _;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::authority::{Authorities, Server, Site};
use crate::token::ClientIdentity;
use crate::turns::Turns;

pub use linking::{Attempt, CameBack, Link, NotConnected, Shown};
use login::Logins;
pub(crate) use login::Subject;
pub use login::login_site;
pub use of_users::OfUsers;
pub use pasted::{KeySite, key_in};
use sealed::Opened;

/// What is known here of a connection is looked up again after this long: another instance may have been heard of too
/// late. That there is none is only known for a moment.
const KNOWN: Duration = Duration::from_secs(30);
const UNKNOWN: Duration = Duration::from_millis(500);
const MAX_KNOWN: usize = 10_000;
/// What instances tell each other.
const TOPIC: &str = "accounts";
/// Changes that somebody who listens may be behind.
const MAX_BEHIND: usize = 256;
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

/// The connections of all users at all backends.
pub struct Connections {
    /// Knows servers.
    pub authorities: Authorities,
    vault: Arc<dyn Vault>,
    ring: Arc<KeyRing>,
    state: SharedState,
    tasks: Tasks,
    sites: RwLock<BTreeMap<String, Arc<Site>>>,
    keys: RwLock<BTreeMap<String, Arc<KeySite>>>,
    logins: RwLock<Logins>,
    known: Mutex<HashMap<(String, String), Known>>,
    turns: Turns,
    resting: Mutex<HashMap<String, (Instant, Duration)>>,
    /// Versions of connections that are there because the one before was refused.
    forced: Mutex<HashMap<String, i64>>,
    signals: Mutex<HashMap<String, broadcast::Sender<Arc<str>>>>,
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
            keys: RwLock::default(),
            logins: RwLock::default(),
            known: Mutex::default(),
            turns: Turns::default(),
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

    /// Whether users connect at the backend of this name, in whichever way.
    pub fn is_known(&self, backend: &str) -> bool {
        self.sites.read().contains_key(backend)
            || self.keys.read().contains_key(backend)
            || self.is_by_login(backend)
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
        let opened = row.filter(|row| self.is_of_use(row)).and_then(|row| self.open(row)).map(Arc::new);
        Ok(self.remember(key, opened))
    }

    /// Whether a connection is good where its backend is, and with the server that it has.
    fn is_of_use(&self, row: &Connection) -> bool {
        let is_good_there = match self.key_site(&row.backend) {
            Some(site) => row.issuer == site.place(),
            None => {
                let issuer = self.site(&row.backend).and_then(|site| site.issuer.clone());
                issuer.map_or(!pasted::is_place(&row.issuer), |issuer| issuer == row.issuer)
            }
        };
        row.status == ConnectionStatus::Connected && is_good_there
    }

    fn remember(&self, key: (String, String), opened: Option<Arc<Opened>>) -> Option<Arc<Opened>> {
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, Known { opened: opened.clone(), at: Instant::now() });
        opened
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
