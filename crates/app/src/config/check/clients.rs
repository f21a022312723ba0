//! Checks of OAuth clients that the operator names.

use std::collections::BTreeSet;

use drawbridge_auth::jwks::Fixed;
use drawbridge_auth::scope::OFFERED;

use super::auth::{client_secret, is_id, redirect_uris};
use crate::config::check::Checker;
use crate::config::model::{ClientProof, NamedClient};
use crate::config::raw::{self, ClientGrant};
use crate::config::value::SecretSource;

const MAX_ID: usize = 128;

/// Checks all of them.
pub(super) fn clients(checker: &mut Checker<'_>, written: Vec<raw::NamedClient>) -> Vec<NamedClient> {
    let mut clients: Vec<NamedClient> = Vec::new();
    for (index, raw) in written.into_iter().enumerate() {
        let path = format!("auth.clients[{index}]");
        // One with a scheme would be a document.
        let is_legal = is_id(&raw.id) && raw.id.len() <= MAX_ID && !raw.id.contains('/');
        if !is_legal || clients.iter().any(|other| other.id == raw.id) {
            let hint = "give each client a name of its own, such as `nightly`";
            checker.problem(&format!("{path}.id"), "not an id, or there twice", hint);
        }
        let grants: BTreeSet<ClientGrant> = raw.grants.into_iter().collect();
        if grants.is_empty() {
            let hint = "name some of `authorization_code`, `client_credentials`, `id_jag`";
            checker.problem(&format!("{path}.grants"), "a client without a way to get a token", hint);
        }
        let uris = raw.redirect_uris.unwrap_or_default();
        let uris = redirect_uris(checker, &format!("{path}.redirect_uris"), uris);
        if grants.contains(&ClientGrant::AuthorizationCode) && uris.is_empty() {
            let hint = "name where it may be answered: `redirect_uris: [https://app.example.com/callback]`";
            checker.problem(&path, "`authorization_code` needs a redirect URI", hint);
        }
        let scopes = scopes(checker, &format!("{path}.scopes"), raw.scopes);
        let Some(proof) = proof(checker, &path, raw.secret, raw.jwks) else { continue };
        clients.push(NamedClient { id: raw.id, name: raw.name, proof, grants, scopes, redirect_uris: uris });
    }
    clients
}

fn scopes(checker: &mut Checker<'_>, path: &str, written: Option<Vec<String>>) -> Vec<String> {
    let scopes = written.unwrap_or_else(|| OFFERED.map(str::to_owned).into());
    if scopes.is_empty() || scopes.iter().any(|scope| !OFFERED.contains(&scope.as_str())) {
        checker.problem(path, "not scopes of endpoints", format!("use some of {}", OFFERED.join(", ")));
    }
    scopes
}

fn proof(
    checker: &mut Checker<'_>,
    path: &str,
    secret: Option<SecretSource>,
    jwks: Option<SecretSource>,
) -> Option<ClientProof> {
    match (secret, jwks) {
        (Some(secret), None) => {
            client_secret(checker, &format!("{path}.secret"), secret).map(ClientProof::Secret)
        }
        (None, Some(jwks)) => {
            let path = format!("{path}.jwks");
            let keys = checker.secret(&path, jwks)?;
            let set = serde_json::from_str(keys.expose()).ok();
            let usable = set.and_then(|set| Fixed::of(&set).ok()).is_some_and(|keys| !keys.is_empty());
            if !usable {
                let hint =
                    "it is JSON such as `{\"keys\": [...]}`, with public keys for ES256 or RS256 alone";
                checker.problem(&path, "not a set of keys that can be used", hint);
            }
            Some(ClientProof::Keys(keys))
        }
        _ => {
            if !checker.is_incomplete(path) {
                let hint = "give it a `secret` or `jwks`";
                checker.problem(path, "a client needs one thing to prove with who it is", hint);
            }
            None
        }
    }
}
