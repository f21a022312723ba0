//! Appends to the chain of this run.
//!
//! What was not written for sure is looked for before anything else is written: a number is used twice by nobody, since
//! the database refuses that. If the chain is not what this run has made of it, another one is begun.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{SubsecRound as _, TimeDelta, Utc};
use drawbridge_core::metrics;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::keys::{AuditKeys, Statement};
use super::store::{AuditStore, Checkpoint, CheckpointKind, Head};
use super::{AuditEntry, CLOSE, GATEWAY, LOST, OPEN, hash};
use crate::records::{RecordsError, Result, Time};
use crate::signing::SigningError;

/// After so many entries there is a checkpoint, even if it is not time yet.
const MARK_AFTER: i64 = 1000;
/// How many other chains a checkpoint names at most.
const MAX_OTHERS: usize = 64;
/// The first checkpoint of a chain names those that have grown within this time,
const LOOKS_BACK: TimeDelta = TimeDelta::hours(24);
/// and the newest checkpoints, this many.
const LOOKS_AT: u32 = 200;
/// Clocks of instances may differ by this much.
const SKEW: TimeDelta = TimeDelta::minutes(10);

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

/// An entry that has no place yet.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) at: Time,
    pub(super) actor: String,
    pub(super) action: String,
    pub(super) target: String,
    pub(super) outcome: String,
    pub(super) detail: Value,
}

impl Draft {
    fn of_gateway(at: Time, action: &str, target: &str, outcome: &str, detail: Value) -> Self {
        Self {
            at,
            actor: GATEWAY.to_owned(),
            action: action.to_owned(),
            target: target.to_owned(),
            outcome: outcome.to_owned(),
            detail,
        }
    }
}

/// What an append is of: a batch of calls is tried again, whatever else is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Batch {
    Actions,
    Calls,
}

/// A batch of which it is not known whether it was written.
struct Pending {
    number: i64,
    hash: String,
    of: Batch,
    count: u64,
}

/// Where the next entry goes.
struct End {
    chain: String,
    number: i64,
    hash: String,
    /// The number of the last entry that a checkpoint is about.
    marked: i64,
    marked_at: Option<(Instant, Time)>,
    pending: Option<Pending>,
    /// Whether the batch of calls that was not written for sure was found.
    calls_found: Option<bool>,
    /// Why the chain begins, if it is not the first of its run.
    follows: Option<Value>,
}

impl End {
    fn of_new_chain(follows: Option<Value>) -> Self {
        Self {
            chain: crate::fresh_id(),
            number: 0,
            hash: String::new(),
            marked: 0,
            marked_at: None,
            pending: None,
            calls_found: None,
            follows,
        }
    }

    fn head(&self) -> Head {
        Head { chain: self.chain.clone(), number: self.number, hash: self.hash.clone() }
    }
}

/// Who signs, and how often.
struct Signing {
    keys: Arc<AuditKeys>,
    instance: String,
    interval: Duration,
}

/// Appends to the audit trail, one entry after the other.
pub struct AuditTrail {
    store: Arc<dyn AuditStore>,
    signing: Option<Signing>,
    end: Mutex<End>,
    /// Calls and actions that are in no entry, and that no entry speaks of yet.
    lost: Arc<AtomicU64>,
    counted: Arc<metrics::Audit>,
}

impl std::fmt::Debug for AuditTrail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditTrail").finish_non_exhaustive()
    }
}

impl AuditTrail {
    /// A trail in `store`, with a chain of its own that nobody signs.
    pub fn new(store: Arc<dyn AuditStore>) -> Self {
        Self {
            store,
            signing: None,
            end: Mutex::new(End::of_new_chain(None)),
            lost: Arc::default(),
            counted: Arc::default(),
        }
    }

    /// A trail in `store` with a chain of its own, whose checkpoints are signed with `keys`: once in each `interval` in
    /// which something was written. The chain begins with an entry that names this `instance`.
    pub fn signed(
        store: Arc<dyn AuditStore>,
        keys: Arc<AuditKeys>,
        instance: &str,
        interval: Duration,
        counted: Arc<metrics::Audit>,
    ) -> Self {
        let signing = Some(Signing { keys, instance: instance.to_owned(), interval });
        counted.is_kept();
        Self { signing, counted, ..Self::new(store) }
    }

    pub(super) fn lost(&self) -> &Arc<AtomicU64> {
        &self.lost
    }

    pub(super) fn counted(&self) -> &Arc<metrics::Audit> {
        &self.counted
    }

    /// The chain that is being written.
    pub async fn chain(&self) -> String {
        self.end.lock().await.chain.clone()
    }

    /// Writes all of `events` down, in their order. They are on disk when this returns.
    ///
    /// # Errors
    ///
    /// If that is not sure.
    pub async fn append(&self, events: &[Event<'_>]) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        let drafts = events.iter().map(|event| Draft {
            at: Utc::now(),
            actor: event.actor.to_owned(),
            action: event.action.to_owned(),
            target: event.target.to_owned(),
            outcome: event.outcome.to_owned(),
            detail: event.detail.clone(),
        });
        // The lock is held over the write: entries must arrive in the order of their numbers.
        let mut end = self.end.lock().await;
        let done = match self.settle(&mut end).await {
            Ok(()) => self.write(&mut end, drafts.collect(), Batch::Actions, None).await,
            Err(error) => {
                self.count_lost(events.len() as u64);
                return Err(error);
            }
        };
        if done.is_err() && end.pending.is_none() {
            self.count_lost(events.len() as u64);
        }
        done
    }

    /// Begins the chain, if nothing has begun it yet.
    ///
    /// # Errors
    ///
    /// If that is not sure. It is done with the first entry then.
    pub async fn open(&self) -> Result<()> {
        let mut end = self.end.lock().await;
        self.settle(&mut end).await?;
        if end.number > 0 || self.signing.is_none() {
            return Ok(());
        }
        self.write(&mut end, Vec::new(), Batch::Actions, None).await
    }

    /// Writes a batch of calls down. One that failed before and `is_again` tried may be there already.
    pub(super) async fn append_calls(&self, drafts: &[Draft], is_again: bool) -> Result<()> {
        let mut end = self.end.lock().await;
        self.settle(&mut end).await?;
        let found = end.calls_found.take();
        if is_again && found == Some(true) {
            return Ok(());
        }
        self.write(&mut end, drafts.to_vec(), Batch::Calls, None).await
    }

    /// Signs what was written since the last checkpoint, if it is time. To be called now and then.
    ///
    /// # Errors
    ///
    /// If that was not possible.
    pub async fn mark(&self) -> Result<()> {
        let mut end = self.end.lock().await;
        self.settle(&mut end).await?;
        let has_lost = self.lost.load(Ordering::Acquire) > 0;
        if end.number == 0 || (end.number == end.marked && !has_lost) || !self.is_due(&end, 0) {
            return Ok(());
        }
        self.write(&mut end, Vec::new(), Batch::Actions, None).await
    }

    /// Ends the chain. What comes after begins another.
    ///
    /// # Errors
    ///
    /// If that was not possible: then the chain has no end that its run has signed.
    pub async fn close(&self) -> Result<()> {
        let mut end = self.end.lock().await;
        self.settle(&mut end).await?;
        if end.number == 0 || self.signing.is_none() {
            return Ok(());
        }
        let last = Draft::of_gateway(Utc::now(), CLOSE, &self.instance(), "ok", json!({}));
        self.write(&mut end, vec![last], Batch::Actions, Some(CheckpointKind::Close)).await?;
        *end = End::of_new_chain(Some(json!({ "chain": end.chain, "why": "entries after its end" })));
        Ok(())
    }

    fn instance(&self) -> String {
        self.signing.as_ref().map(|signing| signing.instance.clone()).unwrap_or_default()
    }

    fn is_due(&self, end: &End, more: i64) -> bool {
        let Some(signing) = &self.signing else { return false };
        end.number + more - end.marked >= MARK_AFTER
            || end.marked_at.is_none_or(|(at, _)| at.elapsed() >= signing.interval)
    }

    /// Finds out what has become of a batch that was not written for sure.
    async fn settle(&self, end: &mut End) -> Result<()> {
        let Some(pending) = &end.pending else { return Ok(()) };
        let there = self.store.audit_head(&end.chain).await?;
        let there = there.unwrap_or_else(|| Head { number: 0, hash: String::new(), ..end.head() });
        let is_found = (there.number, &there.hash) == (pending.number, &pending.hash);
        let (of, count) = (pending.of, pending.count);
        if !is_found && of == Batch::Actions {
            // They will not come any more.
            self.count_lost(count);
        }
        if !is_found && there != end.head() {
            tracing::error!(
                audit.chain = end.chain,
                audit.number = end.number,
                "the chain of the audit trail is not what this instance has written; another one is begun"
            );
            let head = end.head();
            let follows = json!({ "chain": head.chain, "number": head.number, "hash": head.hash,
                "why": "it is not what this run has written" });
            *end = End::of_new_chain(Some(follows));
        } else {
            end.pending = None;
            (end.number, end.hash) = (there.number, there.hash);
        }
        if of == Batch::Calls {
            end.calls_found = Some(is_found);
        }
        Ok(())
    }

    fn count_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::AcqRel);
        self.counted.lost.add(count);
    }

    async fn write(
        &self,
        end: &mut End,
        drafts: Vec<Draft>,
        of: Batch,
        last: Option<CheckpointKind>,
    ) -> Result<()> {
        let count = drafts.len() as u64;
        // What comes before them in the chain comes before them in time.
        let at = drafts.iter().map(|draft| draft.at).min().unwrap_or_else(Utc::now);
        let mut all = Vec::with_capacity(drafts.len() + 2);
        if end.number == 0 && self.signing.is_some() {
            let version = env!("CARGO_PKG_VERSION");
            let mut detail = json!({ "version": version });
            if let Some(follows) = &end.follows {
                detail["follows"] = follows.clone();
            }
            all.push(Draft::of_gateway(at, OPEN, &self.instance(), "ok", detail));
        }
        let lost = self.lost.swap(0, Ordering::AcqRel);
        if lost > 0 {
            all.push(Draft::of_gateway(at, LOST, "", "lost", json!({ "entries": lost })));
        }
        all.extend(drafts);
        let done = self.write_all(end, all, of, count, last).await;
        if done.is_err() && lost > 0 {
            self.lost.fetch_add(lost, Ordering::AcqRel);
        }
        done
    }

    async fn write_all(
        &self,
        end: &mut End,
        drafts: Vec<Draft>,
        of: Batch,
        count: u64,
        last: Option<CheckpointKind>,
    ) -> Result<()> {
        let mut entries: Vec<AuditEntry> = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let before = entries.last().map_or(end.hash.as_str(), |entry| entry.hash.as_str());
            let mut entry = AuditEntry {
                chain: end.chain.clone(),
                number: entries.last().map_or(end.number, |entry| entry.number) + 1,
                at: draft.at.trunc_subsecs(6),
                actor: draft.actor,
                action: draft.action,
                target: draft.target,
                outcome: draft.outcome,
                detail: draft.detail,
                hash: String::new(),
            };
            entry.hash = hash(before, &entry);
            entries.push(entry);
        }
        let head = entries.last().map_or_else(
            || end.head(),
            |entry| Head { chain: entry.chain.clone(), number: entry.number, hash: entry.hash.clone() },
        );
        let more = head.number - end.number;
        let checkpoint = match (&self.signing, last) {
            (Some(signing), Some(kind)) => Some(self.checkpoint(signing, end, head.clone(), kind).await?),
            (Some(signing), None) if self.is_due(end, more) => {
                Some(self.checkpoint(signing, end, head.clone(), CheckpointKind::Mark).await?)
            }
            _ => None,
        };
        if entries.is_empty() && checkpoint.is_none() {
            return Ok(());
        }
        match self.store.append_audit(&entries, checkpoint.as_ref()).await {
            Ok(()) => {
                self.counted.written.add(entries.len() as u64);
                if let Some(checkpoint) = checkpoint {
                    end.marked = head.number;
                    end.marked_at = Some((Instant::now(), checkpoint.at));
                    tell(&checkpoint);
                }
                (end.number, end.hash) = (head.number, head.hash);
                Ok(())
            }
            Err(error) => {
                if !entries.is_empty() {
                    end.pending = Some(Pending { number: head.number, hash: head.hash, of, count });
                }
                Err(error)
            }
        }
    }

    async fn checkpoint(
        &self,
        signing: &Signing,
        end: &End,
        head: Head,
        kind: CheckpointKind,
    ) -> Result<Checkpoint> {
        let others = self.others(end).await?;
        let at = Utc::now().timestamp_micros();
        let statement = Statement { kind, head, at, others };
        signing.keys.sign(statement).await.map_err(|error| match error {
            SigningError::Records(error) => error,
            SigningError::Key(_) => RecordsError::Refused(error.to_string()),
        })
    }

    /// The ends of other chains, so that one that is gone, or shorter than it was, is missed.
    async fn others(&self, end: &End) -> Result<Vec<Head>> {
        let mut ends: HashMap<String, Head> = HashMap::new();
        let since = match end.marked_at {
            Some((_, at)) => at - SKEW,
            None => {
                for checkpoint in self.store.newest_audit_checkpoints(LOOKS_AT).await? {
                    keep_last(&mut ends, checkpoint.head);
                }
                Utc::now() - LOOKS_BACK
            }
        };
        let heads = self.store.audit_heads(since).await?;
        heads.into_iter().for_each(|head| keep_last(&mut ends, head));
        ends.remove(&end.chain);
        let mut others: Vec<Head> = ends.into_values().collect();
        // Names of chains are in the order of time.
        others.sort_unstable_by(|a, b| b.chain.cmp(&a.chain));
        others.truncate(MAX_OTHERS);
        Ok(others)
    }
}

fn keep_last(ends: &mut HashMap<String, Head>, head: Head) {
    match ends.get_mut(&head.chain) {
        Some(known) if known.number >= head.number => {}
        Some(known) => *known = head,
        None => {
            ends.insert(head.chain.clone(), head);
        }
    }
}

/// The log is somewhere else than the database, so whoever changes the one has not changed the other.
fn tell(checkpoint: &Checkpoint) {
    tracing::info!(
        audit.chain = checkpoint.head.chain,
        audit.number = checkpoint.head.number,
        audit.hash = checkpoint.head.hash,
        audit.kind = checkpoint.kind.as_str(),
        "checkpoint of the audit trail"
    );
}
