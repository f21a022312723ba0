//! The audit trail: who did what, when, and how it ended. Entries of one chain can't be changed or taken out without
//! that being seen: each has a hash over itself and the hash of the one before.
//!
//! An instance begins a chain when it starts. It begins another when an entry was not written for sure: the next one
//! must not stand where that may be.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use chrono::{SubsecRound as _, Utc};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use crate::records::{AuditEntry, Records, RecordsError};

/// Something to be written down. No secret may be in it.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    /// By whom.
    pub actor: &'a str,
    /// What was done, such as `token.create`.
    pub action: &'a str,
    /// To what.
    pub target: &'a str,
    /// How it ended.
    pub outcome: &'a str,
    /// More.
    pub detail: Value,
}

/// Where the next entry goes.
struct End {
    chain: String,
    number: i64,
    hash: String,
}

impl End {
    fn of_new_chain() -> Self {
        Self { chain: crate::fresh_id(), number: 0, hash: String::new() }
    }
}

/// Appends to the audit trail, one entry after the other.
pub struct AuditTrail {
    records: Arc<dyn Records>,
    end: Mutex<End>,
}

impl std::fmt::Debug for AuditTrail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditTrail").finish_non_exhaustive()
    }
}

impl AuditTrail {
    /// A trail in `records`, with a chain of its own.
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self { records, end: Mutex::new(End::of_new_chain()) }
    }

    /// Writes all of `events` down, in their order. They are on disk when this returns.
    ///
    /// # Errors
    ///
    /// If that is not sure.
    pub async fn append(&self, events: &[Event<'_>]) -> Result<(), RecordsError> {
        // The lock is held over the write: entries must arrive in the order of their numbers.
        let mut end = self.end.lock().await;
        let mut entries: Vec<AuditEntry> = Vec::with_capacity(events.len());
        for event in events {
            let before = entries.last().map_or(end.hash.as_str(), |entry| entry.hash.as_str());
            let mut entry = AuditEntry {
                chain: end.chain.clone(),
                number: entries.last().map_or(end.number, |entry| entry.number) + 1,
                at: Utc::now().trunc_subsecs(6),
                actor: event.actor.to_owned(),
                action: event.action.to_owned(),
                target: event.target.to_owned(),
                outcome: event.outcome.to_owned(),
                detail: event.detail.clone(),
                hash: String::new(),
            };
            entry.hash = hash(before, &entry);
            entries.push(entry);
        }
        let Some(last) = entries.last() else { return Ok(()) };
        match self.records.append_audit(&entries).await {
            Ok(()) => {
                end.number = last.number;
                end.hash.clone_from(&last.hash);
                Ok(())
            }
            Err(error) => {
                *end = End::of_new_chain();
                Err(error)
            }
        }
    }
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
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(detail: Value) -> AuditEntry {
        AuditEntry {
            chain: "c".to_owned(),
            number: 1,
            at: Utc::now(),
            actor: "a".to_owned(),
            action: "token.create".to_owned(),
            target: "t".to_owned(),
            outcome: "ok".to_owned(),
            detail,
            hash: String::new(),
        }
    }

    #[test]
    fn the_order_of_members_does_not_matter_and_all_else_does() {
        let one = entry(json!({ "a": 1, "b": { "y": [1, 2], "x": null } }));
        let same = AuditEntry { detail: json!({ "b": { "x": null, "y": [1, 2] }, "a": 1 }), ..one.clone() };
        assert_eq!(hash("", &one), hash("", &same));
        assert_ne!(hash("", &one), hash("0", &one));
        let others = [
            AuditEntry { number: 2, ..one.clone() },
            AuditEntry { actor: "b".to_owned(), ..one.clone() },
            AuditEntry { outcome: "denied".to_owned(), ..one.clone() },
            AuditEntry { detail: json!({ "a": 1, "b": { "y": [2, 1], "x": null } }), ..one.clone() },
        ];
        assert!(others.iter().all(|other| hash("", other) != hash("", &one)));
    }
}
