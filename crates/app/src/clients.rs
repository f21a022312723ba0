//! The OAuth clients that the configuration names.

use anyhow::Context as _;
use drawbridge_auth::named_clients::{ClientEntry, ClientGrant, ClientProof, NamedClient};
use drawbridge_auth::scope::Scopes;
use drawbridge_auth::token;

use crate::config::{self, Config};

/// The clients of a configuration.
///
/// # Errors
///
/// If the keys of one can't be used.
pub(crate) fn named_clients(config: &Config) -> anyhow::Result<Vec<NamedClient>> {
    config.clients.iter().map(named_client).collect()
}

fn named_client(client: &config::NamedClient) -> anyhow::Result<NamedClient> {
    let proof = match &client.proof {
        config::ClientProof::Secret(secret) => ClientProof::Secret(token::hash(secret.expose())),
        config::ClientProof::Keys(keys) => {
            ClientProof::Keys(serde_json::from_str(keys.expose()).context("auth.clients: jwks")?)
        }
    };
    let grants = client.grants.iter().map(|grant| match grant {
        config::ClientGrant::AuthorizationCode => ClientGrant::AuthorizationCode,
        config::ClientGrant::ClientCredentials => ClientGrant::ClientCredentials,
        config::ClientGrant::IdJag => ClientGrant::IdJag,
    });
    let entry = ClientEntry {
        id: client.id.clone(),
        name: client.name.clone(),
        proof,
        grants: grants.collect(),
        scopes: Scopes::new(client.scopes.iter().cloned()),
        redirect_uris: client.redirect_uris.clone(),
    };
    NamedClient::of(entry).context("auth.clients: jwks")
}
