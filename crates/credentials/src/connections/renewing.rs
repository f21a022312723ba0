//! Renewing what is due or was refused.
//!
//! The turn to renew is in the records and not in shared state: there it is as safe as what it is about. It only saves
//! requests; what decides is the version. Whoever waits for a renewal may go, the renewal goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use drawbridge_auth::vault::{Connection, ConnectionStatus, Turn};
use drawbridge_core::Fault;
use tokio::time::Instant;

use super::sealed::Opened;
use super::{Connections, MAX_KNOWN, busy, end_of, unavailable};
use crate::token::{self, Grant, Tokens};

/// Whoever renews has this long, which is longer than a server gets to answer.
const TURN: TimeDelta = TimeDelta::seconds(20);
/// How long one waits for whoever renews.
const PATIENCE: Duration = Duration::from_secs(12);
const LOOK_EVERY: Duration = Duration::from_millis(150);
/// A server that gives no token is left alone for this long, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

impl Connections {
    /// What a user has, renewed if it is due or was refused as the version `refused`.
    pub(super) async fn usable(
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
        self.demand(
            opened,
            ConnectionStatus::NeedsReauth,
            BTreeSet::new(),
            "it is refused or over, and can't be renewed",
        )
        .await
    }

    /// The user has to do something. Never returns a connection.
    pub(super) async fn demand(
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
        let until = Instant::now() + PATIENCE;
        let mut turn = self.turns.enter(format!("{user}:{backend}"));
        // It saves requests: whoever has waited too long for it looks at the records without it.
        let _ = tokio::time::timeout_at(until, turn.wait()).await;
        self.renew_in_turn(user, backend, refused, until).await
    }

    async fn renew_in_turn(
        &self,
        user: &str,
        backend: &str,
        refused: Option<i64>,
        until: Instant,
    ) -> Result<Arc<Opened>, Fault> {
        let none = || Fault::NotConnected { backend: backend.to_owned() };
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
            let is_ours = taken.map_err(|error| unavailable(backend, &error))?;
            if is_ours {
                if let Some(done) = self.renew_now(&opened, was_refused).await? {
                    return Ok(done);
                }
            } else if let Some(opened) = may_use(&opened) {
                return Ok(opened);
            }
            if Instant::now() >= until {
                return Err(busy(backend, "others renew the token and are not done"));
            }
            if !is_ours {
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
    pub(super) fn is_forced(&self, row: &Connection) -> bool {
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
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use drawbridge_auth::fetch::{Fetch, NotFetched};
    use drawbridge_auth::records::RecordsError;
    use drawbridge_auth::resource::Origin;
    use drawbridge_auth::vault::{Authority, Vault};
    use drawbridge_core::Tasks;
    use drawbridge_core::seal::{KeyRing, SealKey};
    use drawbridge_core::state::MemoryState;
    use http::{Request, Response};
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::authority::{Authorities, Pins, Site};

    const ISSUER: &str = "https://id.example";

    /// Records in which a connection is another one each time that it is looked at.
    struct Restless(Mutex<Connection>);

    #[async_trait]
    impl Vault for Restless {
        async fn authority(&self, backend: &str) -> Result<Option<Authority>, RecordsError> {
            Ok(Some(Authority {
                backend: backend.to_owned(),
                issuer: ISSUER.to_owned(),
                resource: String::new(),
                metadata: json!({ "server": { "issuer": ISSUER, "token_endpoint": format!("{ISSUER}/token") } }),
                found: None,
                client_id: None,
                client_secret: None,
                pinned_at: Utc::now(),
            }))
        }

        async fn pin_authority(&self, authority: &Authority) -> Result<Authority, RecordsError> {
            Ok(authority.clone())
        }

        async fn replace_authority(&self, _: &str, _: &Authority) -> Result<Option<Authority>, RecordsError> {
            Ok(None)
        }

        async fn note_authority(&self, _: &str, _: Option<&str>) -> Result<(), RecordsError> {
            Ok(())
        }

        async fn register_at(
            &self,
            _: &str,
            _: &str,
            _: &str,
            _: Option<&str>,
        ) -> Result<Option<Authority>, RecordsError> {
            Ok(None)
        }

        async fn forget_client(&self, _: &str, _: &str, _: &str) -> Result<(), RecordsError> {
            Ok(())
        }

        async fn connection(&self, _: &str, _: &str) -> Result<Option<Connection>, RecordsError> {
            let mut row = self.0.lock();
            row.version += 1;
            Ok(Some(row.clone()))
        }

        async fn connections(&self, _: &str) -> Result<Vec<Connection>, RecordsError> {
            Ok(Vec::new())
        }

        async fn put_connection(&self, connection: &Connection) -> Result<Connection, RecordsError> {
            Ok(connection.clone())
        }

        async fn change_connection(&self, _: &Connection) -> Result<bool, RecordsError> {
            Ok(false)
        }

        async fn take_turn(&self, _: &str, _: i64, _: Turn<'_>) -> Result<bool, RecordsError> {
            Ok(true)
        }

        async fn give_back(&self, _: &str, _: &str) -> Result<(), RecordsError> {
            Ok(())
        }

        async fn remove_connection(&self, _: &str, _: &str) -> Result<Option<Connection>, RecordsError> {
            Ok(None)
        }

        async fn sealed_before(&self, _: &str, _: u32) -> Result<Vec<Connection>, RecordsError> {
            Ok(Vec::new())
        }
    }

    /// A server that takes a second for each token.
    struct Slow;

    #[async_trait]
    impl Fetch for Slow {
        async fn fetch(&self, _: Request<Vec<u8>>, _: usize) -> Result<Response<Vec<u8>>, NotFetched> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let tokens = json!({ "access_token": "a", "token_type": "Bearer", "expires_in": 3600 });
            let response = Response::builder().header("content-type", "application/json");
            Ok(response.body(tokens.to_string().into()).unwrap())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_changed_under_each_renewal_holds_its_calls_up_no_longer_than_others_do() {
        let now = Utc::now();
        let row = Connection {
            id: "c".to_owned(),
            user: "ann".to_owned(),
            backend: "gh".to_owned(),
            issuer: ISSUER.to_owned(),
            resource: String::new(),
            client: "gateway".to_owned(),
            scopes: BTreeSet::new(),
            wanted: BTreeSet::new(),
            access: String::new(),
            refresh: None,
            id_token: None,
            expires_at: Some(now - TimeDelta::seconds(1)),
            status: ConnectionStatus::Connected,
            version: 1,
            last_error: None,
            created_at: now,
            updated_at: now - TimeDelta::hours(1),
        };
        let vault = Arc::new(Restless(Mutex::new(row)));
        let key = SealKey { id: "k".to_owned(), secret: [7; 32] };
        let connections = Connections::new(
            Authorities {
                pins: Pins { vault: vault.clone(), guarded: Arc::new(Slow) },
                ring: Arc::new(KeyRing::new(&[key]).unwrap()),
                state: MemoryState::new(1 << 20, Duration::from_secs(60)).instance(false),
                origin: Origin::of(&"https://gw.example".parse().unwrap()),
                name: "the gateway".to_owned(),
                assert: None,
            },
            Tasks::default(),
        );
        connections.set_sites(vec![Site {
            name: "gh".to_owned(),
            url: "https://gh.example/mcp".parse().unwrap(),
            issuer: Some(ISSUER.to_owned()),
            client: Some(("gateway".to_owned(), None)),
            scopes: Vec::new(),
            resource: None,
            trusted: Arc::new(Slow),
        }]);
        connections.fill(&mut vault.0.lock(), "old", Some("refresh"), None);
        let begun = Instant::now();
        let usable =
            tokio::time::timeout(Duration::from_secs(60), connections.usable("ann", "gh", None)).await;
        let Err(fault) = usable.unwrap() else { panic!("nothing was kept") };
        assert_eq!(fault.code(), "no_credential", "{fault}");
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
    }
}
