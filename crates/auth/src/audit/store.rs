//! The port for the audit trail. The adapter is in the crate `sql`.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::AuditEntry;
use crate::records::{Page, Result, Time};

/// An entry by its place and its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Its chain.
    pub chain: String,
    /// Its number there.
    pub number: i64,
    /// Its hash.
    pub hash: String,
}

/// Why a checkpoint was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointKind {
    /// By whoever writes the chain, now and then.
    Mark,
    /// By whoever writes the chain, as the last thing.
    Close,
    /// All entries up to this one may be gone: they were older than what is kept.
    Cut,
}

impl CheckpointKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mark, Self::Close, Self::Cut];

    /// Its name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mark => "mark",
            Self::Close => "close",
            Self::Cut => "cut",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for CheckpointKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A signed statement about a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Which entry it is about, and what its hash is.
    pub head: Head,
    /// Why it was made.
    pub kind: CheckpointKind,
    /// When.
    pub at: Time,
    /// The statement itself, a JSON Web Token that says all of this.
    pub statement: String,
}

/// A key that checkpoints are signed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditKey {
    /// The thumbprint of its public part (RFC 7638, SHA-256).
    pub kid: String,
    /// The private part, sealed.
    pub private: String,
    /// The public part, a JWK.
    pub public: Value,
    /// Since when it signs.
    pub created_at: Time,
}

/// What entries are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditKind {
    /// Actions of administrators, and of the gateway itself.
    Action,
    /// Calls.
    Call,
}

/// Which entries are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of this chain.
    pub chain: Option<String>,
    /// At this time or later.
    pub since: Option<Time>,
    /// Before this time.
    pub until: Option<Time>,
    /// About these things.
    pub kind: Option<AuditKind>,
    /// By this one.
    pub actor: Option<String>,
    /// With this action.
    pub action: Option<String>,
    /// To this.
    pub target: Option<String>,
    /// That ended so.
    pub outcome: Option<String>,
}

/// Keeps the audit trail. Every method waits for a bounded time; what it changes is on disk when it returns.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Appends entries and a checkpoint: all of it or nothing. A number that a chain has already is refused.
    async fn append_audit(&self, entries: &[AuditEntry], checkpoint: Option<&Checkpoint>) -> Result<()>;
    /// Entries in the order of time, then chain and number, after that of `after` (`chain:number`).
    async fn audit(&self, filter: &AuditFilter, after: Option<&str>, limit: u32) -> Result<Page<AuditEntry>>;
    /// Entries of a chain in the order of their numbers, after this one.
    async fn audit_chain(&self, chain: &str, after: i64, limit: u32) -> Result<Vec<AuditEntry>>;
    /// The last entry of a chain.
    async fn audit_head(&self, chain: &str) -> Result<Option<Head>>;
    /// The last entries of chains that have grown since then.
    async fn audit_heads(&self, since: Time) -> Result<Vec<Head>>;
    /// The first chain, in the order of their names, that comes after `after`; also one that has checkpoints alone.
    async fn next_audit_chain(&self, after: &str) -> Result<Option<String>>;

    /// Checkpoints of a chain in the order of numbers, after this one.
    async fn audit_checkpoints(&self, chain: &str, after: i64, limit: u32) -> Result<Vec<Checkpoint>>;
    /// Up to where entries of a chain may be gone.
    async fn audit_cut(&self, chain: &str) -> Result<Option<Checkpoint>>;
    /// The newest checkpoints.
    async fn newest_audit_checkpoints(&self, limit: u32) -> Result<Vec<Checkpoint>>;
    /// Forgets a batch of the entries of a chain up to this number; once there is none, the checkpoints below it too.
    /// Returns how many rows went: none when all are gone.
    async fn cut_audit(&self, chain: &str, number: i64) -> Result<u64>;

    /// Keys, the oldest first.
    async fn audit_keys(&self) -> Result<Vec<AuditKey>>;
    /// Keeps a key, or keeps another sealing of one.
    async fn keep_audit_key(&self, key: &AuditKey) -> Result<()>;
}
