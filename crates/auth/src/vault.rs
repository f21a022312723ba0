//! The port for what users have at other servers: their tokens, sealed, and where these are from. The adapter is in the
//! crate `sql`. Nothing here can be read without the keys, and nothing of one row opens in another.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;
use serde_json::Value;

use crate::records::{Result, Time};

/// The authorization server that a backend was found to have. It stays so until an operator says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The backend's name.
    pub backend: String,
    /// The server's name, exactly.
    pub issuer: String,
    /// What its tokens for the backend are for.
    pub resource: String,
    /// What it says about itself.
    pub metadata: Value,
    /// The other server that the backend named since, which an operator has to agree to.
    pub found: Option<String>,
    /// The gateway's id there, once it has registered.
    pub client_id: Option<String>,
    /// Its secret there, sealed.
    pub client_secret: Option<String>,
    /// Since when.
    pub pinned_at: Time,
}

/// Whether a user's tokens are of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionStatus {
    /// They are.
    Connected,
    /// The server takes them no more: the user has to agree again.
    NeedsReauth,
    /// They don't allow enough: the user has to agree to more.
    NeedsScope,
}

impl ConnectionStatus {
    /// Its name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::NeedsReauth => "needs_reauth",
            Self::NeedsScope => "needs_scope",
        }
    }

    /// The status of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Connected, Self::NeedsReauth, Self::NeedsScope].into_iter().find(|one| one.as_str() == name)
    }
}

/// What a user has at another server, for one backend.
#[derive(Clone, PartialEq, Eq)]
pub struct Connection {
    /// Opaque.
    pub id: String,
    /// The user's id.
    pub user: String,
    /// The backend's name.
    pub backend: String,
    /// Who has issued the tokens.
    pub issuer: String,
    /// What they are for.
    pub resource: String,
    /// As which client the gateway got them.
    pub client: String,
    /// What they allow.
    pub scopes: BTreeSet<String>,
    /// What else the backend wants them to allow.
    pub wanted: BTreeSet<String>,
    /// The access token, sealed.
    pub access: String,
    /// The refresh token, sealed.
    pub refresh: Option<String>,
    /// The ID token, sealed.
    pub id_token: Option<String>,
    /// Until when the access token is good, if that is known.
    pub expires_at: Option<Time>,
    /// Whether all that is of use.
    pub status: ConnectionStatus,
    /// Counts up with each change.
    pub version: i64,
    /// What went wrong last, for people.
    pub last_error: Option<String>,
    /// Since when the user has it.
    pub created_at: Time,
    /// When the tokens are from.
    pub updated_at: Time,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Connection");
        shown.field("user", &self.user).field("backend", &self.backend).field("status", &self.status);
        shown.field("version", &self.version).finish_non_exhaustive()
    }
}

/// Whose turn it is to renew a connection.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Who takes it: an instance.
    pub by: &'a str,
    /// When.
    pub now: Time,
    /// Until when nobody else may, unless it is given back before.
    pub until: Time,
}

/// What users have at other servers.
#[async_trait]
pub trait Vault: Send + Sync {
    /// The authorization server of a backend.
    async fn authority(&self, backend: &str) -> Result<Option<Authority>>;
    /// Keeps the server of a backend that has none. Returns the one that it has now.
    async fn pin_authority(&self, authority: &Authority) -> Result<Authority>;
    /// Puts another server in the place of the one whose issuer is `before`. Returns the one that it has now.
    async fn replace_authority(&self, before: &str, authority: &Authority) -> Result<Option<Authority>>;
    /// Notes which other server a backend names now, or that it names its own again.
    async fn note_authority(&self, backend: &str, found: Option<&str>) -> Result<()>;
    /// Keeps the gateway's id and sealed secret at a server, unless there is one. Returns the server as it is now.
    async fn register_at(
        &self,
        backend: &str,
        issuer: &str,
        client: &str,
        secret: Option<&str>,
    ) -> Result<Option<Authority>>;
    /// Forgets the gateway's id at a server, if it is this one.
    async fn forget_client(&self, backend: &str, issuer: &str, client: &str) -> Result<()>;

    /// What a user has for a backend.
    async fn connection(&self, user: &str, backend: &str) -> Result<Option<Connection>>;
    /// All that a user has, by backend.
    async fn connections(&self, user: &str) -> Result<Vec<Connection>>;
    /// Keeps what a user has for a backend in the place of what there was. Returns it, with its version.
    async fn put_connection(&self, connection: &Connection) -> Result<Connection>;
    /// Keeps what became of a connection that still has the version which `connection` has, and gives the turn back.
    /// Returns whether it had.
    async fn change_connection(&self, connection: &Connection) -> Result<bool>;
    /// Takes the turn to renew a connection that still has this version. Returns whether that could be had.
    async fn take_turn(&self, id: &str, version: i64, turn: Turn<'_>) -> Result<bool>;
    /// Gives it back.
    async fn give_back(&self, id: &str, by: &str) -> Result<()>;
    /// Forgets what a user has for a backend. Returns it.
    async fn remove_connection(&self, user: &str, backend: &str) -> Result<Option<Connection>>;
    /// Connections whose tokens are not sealed by the key with this id, at most `limit` of them.
    async fn sealed_before(&self, key: &str, limit: u32) -> Result<Vec<Connection>>;
}
