//! What the configuration says about the authorization server.

use chrono::TimeDelta;
use drawbridge_auth::records::SecretHash;

/// Who may register a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// Anybody, at any `https` address or on the user's machine.
    Open,
    /// Known hosts, programs on the user's machine, and addresses that the operator has named.
    Curated,
    /// Nobody.
    Closed,
}

/// Which clients may describe themselves by a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientDocumentOptions {
    /// Whether documents of any host are accepted, those of known hosts, or none.
    pub policy: Registration,
    /// Hosts whose documents are accepted beside those of known ones.
    pub hosts: Vec<String>,
}

/// Times and policies.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long an access token is good for.
    pub access_token_ttl: TimeDelta,
    /// How long a refresh token is good for that is not used.
    pub refresh_idle_ttl: TimeDelta,
    /// How long a grant is good for, however often it is refreshed.
    pub refresh_absolute_ttl: TimeDelta,
    /// For how long after its use a refresh token is answered as it was then.
    pub refresh_grace: TimeDelta,
    /// Who may register.
    pub registration: Registration,
    /// Which clients need not register.
    pub client_documents: ClientDocumentOptions,
    /// Who may ask about tokens: ids, and the hashes of secrets.
    pub introspection_clients: Vec<(String, SecretHash)>,
    /// Redirect URIs that are accepted beside those of known hosts.
    pub redirect_uris: Vec<String>,
    /// What people call this gateway.
    pub resource_name: String,
    /// Whether users make tokens of their own.
    pub own_tokens: bool,
    /// Groups of which a user must have one to be let in; empty for all users.
    pub allowed_groups: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access_token_ttl: TimeDelta::hours(1),
            refresh_idle_ttl: TimeDelta::days(30),
            refresh_absolute_ttl: TimeDelta::days(180),
            refresh_grace: TimeDelta::seconds(120),
            registration: Registration::Curated,
            client_documents: ClientDocumentOptions { policy: Registration::Curated, hosts: Vec::new() },
            introspection_clients: Vec::new(),
            redirect_uris: Vec::new(),
            resource_name: "Drawbridge".to_owned(),
            own_tokens: false,
            allowed_groups: Vec::new(),
        }
    }
}
