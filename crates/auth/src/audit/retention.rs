//! Forgets what is older than is kept. Before anything goes it is gone through, and somebody signs how far: what does not
//! hold stays, so that it is found.

use chrono::Utc;
use drawbridge_core::metrics;

use super::keys::{AuditKeys, Statement, Trust};
use super::store::{AuditStore, CheckpointKind, Head};
use super::{UNSIGNED_ACTOR, hash};
use crate::records::{Result, Time};
use crate::signing::SigningError;

/// How much is read at once.
const ENTRIES: u32 = 500;
const CHECKPOINTS: u32 = 100;
/// So many entries are gone through for one cut, more only if there is no checkpoint among them.
const MAX_CUT: i64 = 20_000;

/// What came of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many rows went.
    pub rows: u64,
    /// How many chains were left alone because they do not hold.
    pub broken: u64,
}

/// Forgets entries from before `before`, up to a checkpoint of each chain, and chains that ended before. `own` is the
/// chain of this run, which goes on.
///
/// # Errors
///
/// If the records can't be had.
pub async fn sweep(
    store: &dyn AuditStore,
    keys: &AuditKeys,
    before: Time,
    own: &str,
    counted: &metrics::Audit,
) -> Result<Swept, SigningError> {
    let trust = keys.trust().await?;
    let mut swept = Swept::default();
    let mut after = String::new();
    while let Some(chain) = store.next_audit_chain(&after).await? {
        let sweep = Sweep { store, keys, trust: &trust, before, chain: &chain, is_own: chain == own };
        loop {
            match sweep.once().await? {
                Step::Cut(rows) => swept.rows += rows,
                Step::Nothing => break,
                Step::Broken(number, why) => {
                    tracing::error!(
                        audit.chain = chain,
                        audit.number = number,
                        "the audit trail does not hold, and is not swept: {why}; see `drawbridge audit verify`"
                    );
                    counted.broken.inc();
                    swept.broken += 1;
                    break;
                }
            }
        }
        after = chain;
    }
    Ok(swept)
}

enum Step {
    Cut(u64),
    Nothing,
    /// At which entry.
    Broken(i64, String),
}

struct Sweep<'a> {
    store: &'a dyn AuditStore,
    keys: &'a AuditKeys,
    trust: &'a Trust,
    before: Time,
    chain: &'a str,
    is_own: bool,
}

impl Sweep<'_> {
    async fn once(&self) -> Result<Step, SigningError> {
        let mut base = Head { chain: self.chain.to_owned(), number: 0, hash: String::new() };
        let mut rows = 0;
        if let Some(cut) = self.store.audit_cut(self.chain).await? {
            if let Err(why) = self.trust.check(&cut) {
                return Ok(Step::Broken(cut.head.number, why));
            }
            base = cut.head;
            // Another sweep may have been interrupted.
            rows += self.cut(base.number).await?;
        }
        let page = self.store.audit_checkpoints(self.chain, base.number, CHECKPOINTS).await?;
        let is_unmarked = page.is_empty();
        let mut old = Vec::new();
        for checkpoint in page.into_iter().take_while(|checkpoint| checkpoint.at < self.before) {
            if let Err(why) = self.trust.check(&checkpoint) {
                return Ok(Step::Broken(checkpoint.head.number, why));
            }
            old.push(checkpoint.head);
        }
        let near = old.iter().rposition(|head| head.number - base.number <= MAX_CUT).unwrap_or(0);
        old.truncate(near + 1);
        if old.is_empty() {
            // What a run has not signed goes when all of it is too old.
            match self.dead_end(&base).await? {
                Some((head, false)) if is_unmarked => {
                    return Ok(Step::Broken(head.number, "it has no checkpoint".to_owned()));
                }
                Some((head, true)) if is_unmarked => old.push(head),
                _ => return Ok(if rows > 0 { Step::Cut(rows) } else { Step::Nothing }),
            }
        }
        let Some(last) = old.last().cloned() else { return Ok(Step::Nothing) };
        if let Err((number, why)) = self.go_through(base, &old).await? {
            return Ok(Step::Broken(number, why));
        }
        let at = Utc::now().timestamp_micros();
        let said = Statement { kind: CheckpointKind::Cut, head: last.clone(), at, others: Vec::new() };
        let cut = self.keys.sign(said).await?;
        self.store.append_audit(&[], Some(&cut)).await?;
        Ok(Step::Cut(rows + self.cut(last.number).await?))
    }

    async fn cut(&self, number: i64) -> Result<u64> {
        let mut rows = 0;
        loop {
            match self.store.cut_audit(self.chain, number).await? {
                0 => return Ok(rows),
                more => rows += more,
            }
        }
    }

    /// The end of a chain that nobody writes any more, if it has grown since `base` and is too old; and whether it may be
    /// without a checkpoint.
    async fn dead_end(&self, base: &Head) -> Result<Option<(Head, bool)>> {
        if self.is_own {
            return Ok(None);
        }
        let Some(head) = self.store.audit_head(self.chain).await? else { return Ok(None) };
        if head.number <= base.number {
            return Ok(None);
        }
        let last = self.store.audit_chain(self.chain, head.number - 1, 1).await?;
        let last = last.first().filter(|entry| entry.at < self.before);
        Ok(last.map(|entry| (head, base.number > 0 || entry.actor == UNSIGNED_ACTOR)))
    }

    /// Whether the entries behind `base` follow from each other, and are those that `signed` says.
    async fn go_through(
        &self,
        base: Head,
        signed: &[Head],
    ) -> Result<std::result::Result<(), (i64, String)>> {
        let Some(last) = signed.last() else { return Ok(Ok(())) };
        let mut signed = signed.iter().peekable();
        let Head { mut number, hash: mut before, .. } = base;
        while number < last.number {
            let entries = self.store.audit_chain(self.chain, number, ENTRIES).await?;
            if entries.is_empty() {
                return Ok(Err((number + 1, "it is missing".to_owned())));
            }
            for entry in entries.into_iter().take_while(|entry| entry.number <= last.number) {
                if entry.number != number + 1 {
                    return Ok(Err((number + 1, "it is missing".to_owned())));
                }
                if hash(&before, &entry) != entry.hash {
                    return Ok(Err((entry.number, "it does not follow from the entry before it".to_owned())));
                }
                number = entry.number;
                before = entry.hash;
                while let Some(head) = signed.next_if(|head| head.number == number) {
                    if head.hash != before {
                        return Ok(Err((number, "it is not the one that was signed".to_owned())));
                    }
                }
            }
        }
        Ok(Ok(()))
    }
}
