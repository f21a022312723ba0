//! What the engine and the face of a backend want to know of the connections of its users.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use drawbridge_auth::vault::ConnectionStatus;
use drawbridge_core::accounts::Accounts;
use drawbridge_core::credentials::{Credential, Credentials, Refusal};
use drawbridge_core::{Fault, Principal};
use tokio::sync::broadcast;

use super::Connections;

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
    pub(super) connections: Arc<Connections>,
    pub(super) backend: String,
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
        let opened = self.connections.usable(user, &self.backend, None).await?;
        Ok(self.connections.credential(&opened))
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
        let is_this = opened.version() == credential.id();
        if refusal.status == 403 {
            // A key has no scopes to agree to.
            let has_scopes = connections.key_site(&self.backend).is_none();
            let challenge = refusal.challenge.as_deref().filter(|_| has_scopes);
            let wanted = challenge.and_then(missing_scopes);
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
            return Ok(Some(connections.credential(&opened)));
        }
        if connections.is_forced(&opened.row) {
            let why = "the backend refuses a token that was just renewed";
            let status = ConnectionStatus::NeedsReauth;
            return connections.demand(&opened, status, BTreeSet::new(), why).await.map(|_| None);
        }
        let renewed = connections.usable(user, &self.backend, Some(opened.row.version)).await?;
        Ok(Some(connections.credential(&renewed)))
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
