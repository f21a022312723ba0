//! Whom a request is from, as far as it was found out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use drawbridge_core::Principal;
use drawbridge_core::request::Caller;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::records::Time;
use crate::revoking::RevocationKey;
use crate::scope::Scopes;

/// Whether somebody acts or something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A person, or what acts for one.
    User,
    /// A program of its own.
    Service,
}

impl Kind {
    /// Its name in logs and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Service => "service",
        }
    }
}

/// Which credential it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// An issued token, by id.
    Token(String),
    /// An access token of a grant, by the grant's id, and the refresh token that it came with.
    Grant {
        /// The grant.
        id: String,
        /// The refresh token.
        refresh: Option<String>,
    },
    /// An access token of another issuer.
    External,
}

impl Credential {
    /// Its name in records: its id, and nothing by which anybody is let in.
    pub fn shown(&self) -> String {
        match self {
            Self::Token(id) => format!("token:{id}"),
            Self::Grant { id, .. } => format!("grant:{id}"),
            Self::External => "external".to_owned(),
        }
    }
}

/// Whom a request is from, by which credential, and what that allows.
#[derive(Debug, Clone)]
pub struct Identity {
    /// What all state is bound to: of one caller with one client at one resource. See [`context`].
    pub principal: Principal,
    /// Who vouches for the subject.
    pub issuer: String,
    /// The user's id, or the service's name.
    pub subject: String,
    /// What the subject is.
    pub kind: Kind,
    /// The `client_id`, or `pat:` and the id of the first token of a chain.
    pub client: String,
    /// Both, as the log says them.
    pub caller: Arc<Caller>,
    /// By which it was found out.
    pub credential: Credential,
    /// What it allows.
    pub scopes: Scopes,
    /// Who the subject of a user is at the issuer that vouches for it, where the records know.
    pub known_as: Option<String>,
    /// The groups of the subject.
    pub groups: BTreeSet<String>,
    /// When the credential ends.
    pub expires_at: Option<Time>,
    /// From where it is accepted; empty for everywhere.
    pub networks: Vec<IpNet>,
    /// What must not have been revoked.
    pub keys: Vec<RevocationKey>,
}

impl Identity {
    /// Whether it is accepted from `address`.
    pub fn may_come_from(&self, address: Option<IpAddr>) -> bool {
        self.networks.is_empty()
            || address.is_some_and(|address| {
                self.networks.iter().any(|network| network.contains(&address.to_canonical()))
            })
    }
}

/// How the log names a subject, its client and its credential.
pub fn shown(kind: Kind, subject: &str, client: &str, credential: &Credential) -> Arc<Caller> {
    Arc::new(Caller {
        name: format!("{}:{subject}", kind.as_str()),
        client: client.to_owned(),
        credential: credential.shown(),
    })
}

/// The principal of `subject` with `client` at `resource`: not of the bytes of a token, which change when it is
/// refreshed, and not of what it allows. Another client of the same user is another one, so that what came by a weaker
/// credential is not joined to what came by a stronger.
pub fn context(issuer: &str, subject: &str, client: &str, resource: &str, kind: Kind) -> Principal {
    let mut hash = Sha256::new();
    for part in ["v1", issuer, subject, client, resource, kind.as_str()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let name: String = digest[..16].iter().map(|b| format!("{b:02x}")).collect();
    Principal::named(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_another_in_any_part_is_another_principal() {
        let of = |parts: [&str; 4], kind| context(parts[0], parts[1], parts[2], parts[3], kind);
        let all = [
            of(["i", "s", "c", "r"], Kind::User),
            of(["i", "s", "c", "r"], Kind::Service),
            of(["is", "", "c", "r"], Kind::User),
            of(["", "is", "c", "r"], Kind::User),
            of(["i", "s", "cr", ""], Kind::User),
            of(["i", "s", "c", "r2"], Kind::User),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(all[n + 1..].iter().all(|other| other != one), "{n}");
        }
        assert_eq!(of(["i", "s", "c", "r"], Kind::User), all[0]);
    }
}
