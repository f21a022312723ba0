//! OAuth clients that the operator has named in the configuration: with a secret or keys of their own, and what they may.
//! They come and go while the gateway runs, and what they were given goes with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::Utc;
use parking_lot::RwLock;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::fetch::NotFetched;
use crate::jwks::Fixed;
use crate::jwt::KeySource;
use crate::records::SecretHash;
use crate::revoking::{RevocationKey, Revocations};
use crate::scope::Scopes;

/// A way for a client to get tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientGrant {
    /// A user lets it, in a browser.
    AuthorizationCode,
    /// For itself.
    ClientCredentials,
    /// An identity provider lets it act for a user.
    IdJag,
}

/// What a client proves with who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientProof {
    /// A secret, of which this is the hash.
    Secret(SecretHash),
    /// Keys that it signs with, as a JWK Set.
    Keys(Value),
}

/// A client as the configuration has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientEntry {
    /// Its `client_id`.
    pub id: String,
    /// What people read.
    pub name: Option<String>,
    /// What it proves with who it is.
    pub proof: ClientProof,
    /// How it gets tokens.
    pub grants: BTreeSet<ClientGrant>,
    /// What it may be allowed at most.
    pub scopes: Scopes,
    /// Where it may be answered.
    pub redirect_uris: Vec<String>,
}

/// A client that there is now.
pub struct NamedClient {
    /// As the configuration has it.
    pub entry: ClientEntry,
    /// What it signs is looked at with these.
    pub keys: Option<Arc<dyn KeySource>>,
    /// Tells the entry from what it was before. All that the client is given names it.
    pub version: i64,
}

impl std::fmt::Debug for NamedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedClient").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl NamedClient {
    /// The client of an entry.
    ///
    /// # Errors
    ///
    /// If its keys are none that can be used.
    pub fn of(entry: ClientEntry) -> Result<Self, NotFetched> {
        let keys = match &entry.proof {
            ClientProof::Secret(_) => None,
            ClientProof::Keys(set) => {
                let keys = Fixed::of(set)?;
                if keys.is_empty() {
                    return Err(NotFetched("there is no key in it that can be used".to_owned()));
                }
                Some(Arc::new(keys) as Arc<dyn KeySource>)
            }
        };
        let version = version(&entry);
        Ok(Self { entry, keys, version })
    }

    fn key(&self) -> RevocationKey {
        RevocationKey::client(&self.entry.id, self.version)
    }
}

fn version(entry: &ClientEntry) -> i64 {
    let ClientEntry { id, name: _, proof, grants, scopes, redirect_uris } = entry;
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(id.as_bytes());
    match proof {
        ClientProof::Secret(secret) => add(&secret.0),
        ClientProof::Keys(keys) => add(keys.to_string().as_bytes()),
    }
    add(format!("{grants:?}").as_bytes());
    add(scopes.to_string().as_bytes());
    redirect_uris.iter().for_each(|uri| add(uri.as_bytes()));
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    // What JSON carries through whichever library.
    i64::from_be_bytes(first) & 0x001f_ffff_ffff_ffff
}

/// The clients of the configuration that applies.
pub struct NamedClients {
    by_id: RwLock<BTreeMap<String, Arc<NamedClient>>>,
    revocations: Arc<Revocations>,
}

impl std::fmt::Debug for NamedClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedClients").field("clients", &self.by_id.read().len()).finish_non_exhaustive()
    }
}

impl NamedClients {
    /// None yet.
    pub fn new(revocations: Arc<Revocations>) -> Self {
        Self { by_id: RwLock::default(), revocations }
    }

    /// From now on there are these. What those that are gone or were changed have been given is no longer good here.
    pub fn set(&self, clients: Vec<NamedClient>) {
        let new = clients.into_iter().map(|client| (client.entry.id.clone(), Arc::new(client))).collect();
        let mut by_id = self.by_id.write();
        let old: BTreeMap<String, Arc<NamedClient>> = std::mem::replace(&mut *by_id, new);
        let keys: Vec<RevocationKey> = by_id.values().map(|client| client.key()).collect();
        drop(by_id);
        let gone: Vec<RevocationKey> =
            old.values().map(|client| client.key()).filter(|key| !keys.contains(key)).collect();
        self.revocations.set_left_out(&gone, &keys, Utc::now());
    }

    /// The client with this id.
    pub fn get(&self, id: &str) -> Option<Arc<NamedClient>> {
        self.by_id.read().get(id).cloned()
    }

    /// What names what a client was given, if the client is the same as then.
    pub(crate) fn key(&self, id: &str, version: i64) -> Option<RevocationKey> {
        self.get(id).filter(|client| client.version == version).map(|client| client.key())
    }

    /// Whether there is one that gets tokens in this way.
    pub fn any(&self, grant: ClientGrant) -> bool {
        self.by_id.read().values().any(|client| client.entry.grants.contains(&grant))
    }
}
