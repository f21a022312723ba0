//! The audit trail: who did what, when, and how it ended. It is made of chains, one for each run of an instance: each
//! entry has a hash over itself and the hash of the one before. Checkpoints, which are signed, say what the hash of an
//! entry was, and what the ends of other chains were then.
//!
//! ```text
//! chain of a run   audit.open ── entry ── entry ── entry ── ... ── audit.close
//! checkpoints          ▲                    ▲                          ▲
//! ```
//!
//! Actions of administrators are on disk before they are answered ([`AuditTrail::append`]). Calls are written by a task of
//! their own ([`CallLog`]); what it can't take is counted, and how many that were is an entry too.
//!
//! Start reading at [`trail`], then [`verify`].

mod calls;
mod keys;
mod redact;
mod retention;
mod store;
mod trail;
mod verify;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::records::Time;

pub use calls::{CallLog, CallOptions, CallWriter};
pub use keys::{AuditKeys, Statement, Trust};
pub use redact::{BadRule, Redactor};
pub use retention::{Swept, sweep};
pub use store::{AuditFilter, AuditKey, AuditKind, AuditStore, Checkpoint, CheckpointKind, Head};
pub use trail::{AuditTrail, Event};
pub use verify::{Finding, Report, Verify, verify};

/// What the actions of calls begin with, so that no method of a client can look like an action of an administrator.
pub const CALL: &str = "mcp:";
/// Whom entries about the trail itself are from.
pub const GATEWAY: &str = "gateway";
/// Whom entries are from that are made without a gateway, and so without its key.
pub const UNSIGNED_ACTOR: &str = "cli";
/// The first entry of a run of an instance.
pub const OPEN: &str = "audit.open";
/// The last one of a run that has ended in order.
pub const CLOSE: &str = "audit.close";
/// Says how many entries were lost before it.
pub const LOST: &str = "audit.lost";

/// An entry of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Whose chain.
    pub chain: String,
    /// Counts up from 1 in a chain.
    pub number: i64,
    /// When.
    pub at: Time,
    /// By whom.
    pub actor: String,
    /// What was done, such as `token.create` or `mcp:tools/call`.
    pub action: String,
    /// To what.
    pub target: String,
    /// How it ended.
    pub outcome: String,
    /// More.
    pub detail: Value,
    /// Over the entry and the hash before it, in hexadecimal form.
    pub hash: String,
}

/// The hash of an entry after one with the hash `before`, which is empty for the first of a chain.
pub fn hash(before: &str, entry: &AuditEntry) -> String {
    let fields = serde_json::json!({
        "chain": entry.chain,
        "number": entry.number,
        "at": entry.at.timestamp_micros(),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "outcome": entry.outcome,
        "detail": entry.detail,
    });
    let mut digest = Sha256::new();
    digest.update(before);
    digest.update("\n");
    digest.update(canonical(&fields));
    digest.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// JSON whose members are in the order of their names, without spaces.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<&String, &Value> = members.iter().collect();
            let members = members
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
