//! The tokens of a connection, which are sealed wherever they are kept.

use std::collections::BTreeSet;

use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{RecordsError, Time};
use drawbridge_auth::vault::{Connection, ConnectionStatus};
use drawbridge_core::credentials::Credential;
use drawbridge_core::seal::Purpose;

use super::Connections;

/// A token is renewed when less than this is left of it, or a tenth of its life.
const MARGIN: TimeDelta = TimeDelta::seconds(60);
/// How many connections are sealed anew at a time.
const RESEAL: u32 = 100;

/// A connection with its tokens.
pub(super) struct Opened {
    pub(super) row: Connection,
    pub(super) access: String,
    pub(super) refresh: Option<String>,
}

/// A connection of a user that nothing is in yet.
pub(super) fn row(user: &str, backend: &str, issuer: &str) -> Connection {
    let now = Utc::now();
    Connection {
        id: drawbridge_auth::fresh_id(),
        user: user.to_owned(),
        backend: backend.to_owned(),
        issuer: issuer.to_owned(),
        resource: String::new(),
        client: String::new(),
        scopes: BTreeSet::new(),
        wanted: BTreeSet::new(),
        access: String::new(),
        refresh: None,
        id_token: None,
        expires_at: None,
        status: ConnectionStatus::Connected,
        version: 1,
        last_error: None,
        created_at: now,
        updated_at: now,
    }
}

impl Opened {
    pub(super) fn credential(&self) -> Credential {
        Credential::bearer(&self.access, &self.version())
    }

    /// Tells it from the ones before and after.
    pub(super) fn version(&self) -> String {
        format!("{}:{}", self.row.id, self.row.version)
    }

    /// Whether its token can be sent.
    pub(super) fn is_good(&self, now: Time) -> bool {
        self.row.expires_at.is_none_or(|end| now < end)
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.row.expires_at.is_some_and(|end| {
            let life = end - self.row.updated_at;
            // A token that lives no longer than the margin would always be due.
            let margin = MARGIN.min(life / 2).max(life / 10);
            end - now < margin
        })
    }
}

/// What seals a token of a connection: nothing else opens it, so a row that is copied is of no use.
fn place(user: &str, backend: &str, issuer: &str, column: &str) -> String {
    format!("v1|{user}|{backend}|{issuer}|{column}")
}

impl Connections {
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

    pub(super) fn unseal(&self, row: &Connection, column: &str, sealed: &str) -> Option<String> {
        let place = place(&row.user, &row.backend, &row.issuer, column);
        String::from_utf8(self.ring.open_for(Purpose::Vault, &place, sealed)?).ok()
    }

    /// Puts tokens into a row, sealed.
    pub(super) fn fill(
        &self,
        row: &mut Connection,
        access: &str,
        refresh: Option<&str>,
        id_token: Option<&str>,
    ) {
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

    pub(super) fn open(&self, row: Connection) -> Option<Opened> {
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
}
