//! Whether the trail is what was written: entries follow from each other, checkpoints are signed and say what is there,
//! and no chain is gone or shorter than another one has seen it.
//!
//! The trail may grow and be swept meanwhile. So what others have seen of a chain is read before the chain is, and
//! checkpoints before the entries that they are about.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;

use super::keys::Trust;
use super::store::{AuditStore, Checkpoint, CheckpointKind, Head};
use super::{AuditEntry, LOST, UNSIGNED_ACTOR, hash};
use crate::records::Result;

/// How much is read at once.
const ENTRIES: u32 = 500;
const CHECKPOINTS: u32 = 200;
/// No more findings are listed.
const MAX_FINDINGS: usize = 1000;
/// Of each chain so much of what others have seen is remembered.
const MAX_SEEN: usize = 1000;
/// A chain that is swept while it is read is read again so often.
const ATTEMPTS: usize = 3;

/// What to go by.
#[derive(Debug, Default)]
pub struct Verify {
    /// Whose signatures are believed.
    pub trust: Trust,
    /// Only this chain is gone through.
    pub chain: Option<String>,
    /// Entries that were kept elsewhere: the trail must have them, or say that they were too old.
    pub kept: Vec<Head>,
}

/// Something about the trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub chain: String,
    /// At which entry, if at one.
    pub number: Option<i64>,
    /// What.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names of chains are what the database says.
        let chain = self.chain.escape_debug();
        match self.number {
            Some(number) => write!(f, "chain {chain}, entry {number}: {}", self.what),
            None => write!(f, "chain {chain}: {}", self.what),
        }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// How many chains there are.
    pub chains: u64,
    /// How many entries.
    pub entries: u64,
    /// How many checkpoints that hold.
    pub checkpoints: u64,
    /// What is not as it was written.
    pub findings: Vec<Finding>,
    /// More of that, which is not listed.
    pub unlisted: u64,
    /// What is as it may be, and worth knowing.
    pub notes: Vec<Finding>,
    /// Where the chains end.
    pub heads: Vec<Head>,
}

impl Report {
    fn found(&mut self, chain: &str, number: impl Into<Option<i64>>, what: impl Into<String>) {
        if self.findings.len() >= MAX_FINDINGS {
            self.unlisted += 1;
            return;
        }
        self.findings.push(Finding { chain: chain.to_owned(), number: number.into(), what: what.into() });
    }

    fn note(&mut self, chain: &str, number: impl Into<Option<i64>>, what: impl Into<String>) {
        if self.notes.len() < MAX_FINDINGS {
            self.notes.push(Finding { chain: chain.to_owned(), number: number.into(), what: what.into() });
        }
    }

    /// Whether the trail is what was written, as far as can be told.
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
    }
}

/// What somebody has seen of an entry.
struct Seen {
    hash: String,
    by: String,
}

/// By number.
type AllSeen = BTreeMap<i64, Vec<Seen>>;

/// Goes through the trail.
///
/// # Errors
///
/// If it can't be read.
pub async fn verify(store: &dyn AuditStore, by: &Verify) -> Result<Report> {
    let mut all = All { store, trust: &by.trust, seen: HashMap::new(), report: Report::default() };
    for head in &by.kept {
        all.see(head, "was kept elsewhere");
    }
    let mut after = String::new();
    while let Some(chain) = store.next_audit_chain(&after).await? {
        all.hear(&chain).await?;
        after = chain;
    }
    let mut there = HashSet::new();
    let mut after = String::new();
    while let Some(chain) = store.next_audit_chain(&after).await? {
        there.insert(chain.clone());
        if by.chain.as_ref().is_none_or(|only| *only == chain) {
            all.chain(&chain).await?;
        }
        after = chain;
    }
    let mut gone: Vec<(String, i64, String)> = Vec::new();
    for (chain, seen) in &all.seen {
        let last = seen.last_key_value().and_then(|(number, seen)| Some((*number, seen.first()?.by.clone())));
        let is_meant = by.chain.as_ref().is_none_or(|only| only == chain);
        if let Some((number, by)) = last.filter(|_| is_meant && !there.contains(chain)) {
            gone.push((chain.clone(), number, by));
        }
    }
    gone.sort();
    for (chain, number, by) in gone {
        all.report.found(&chain, None, format!("it is gone as a whole; its entry {number} {by}"));
    }
    Ok(all.report)
}

struct All<'a> {
    store: &'a dyn AuditStore,
    trust: &'a Trust,
    /// What was seen of each chain.
    seen: HashMap<String, AllSeen>,
    report: Report,
}

impl All<'_> {
    fn see(&mut self, head: &Head, by: &str) {
        let seen = self.seen.entry(head.chain.clone()).or_default();
        let is_last = seen.last_key_value().is_none_or(|(number, _)| *number < head.number);
        if seen.len() >= MAX_SEEN && is_last {
            seen.pop_last();
        }
        if seen.len() < MAX_SEEN || is_last {
            let at = seen.entry(head.number).or_default();
            if !at.iter().any(|one| one.hash == head.hash) {
                at.push(Seen { hash: head.hash.clone(), by: by.to_owned() });
            }
        }
    }

    /// Reads what the checkpoints of a chain say of others.
    async fn hear(&mut self, chain: &str) -> Result<()> {
        let mut after = 0;
        loop {
            let page = page(self.store, chain, after).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.head.number;
            for checkpoint in &page {
                let Ok(said) = self.trust.check(checkpoint) else { continue };
                let by =
                    format!("was seen when chain {} was signed at {}", chain.escape_debug(), checkpoint.at);
                said.others.iter().for_each(|head| self.see(head, &by));
            }
        }
    }

    async fn chain(&mut self, chain: &str) -> Result<()> {
        self.report.chains += 1;
        for attempt in 1.. {
            let mut walk = Walk::new(self.store, chain);
            walk.begin(self.trust).await?;
            let cut = walk.number;
            walk.go(self.trust, self.seen.get(chain)).await?;
            let is_swept = attempt < ATTEMPTS
                && walk.has_gap_at_begin
                && self.store.audit_cut(chain).await?.is_some_and(|now| now.head.number > cut);
            if !is_swept {
                walk.report_into(&mut self.report);
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Checkpoints after a number: all of each number that there is one of.
async fn page(store: &dyn AuditStore, chain: &str, after: i64) -> Result<Vec<Checkpoint>> {
    let mut page = store.audit_checkpoints(chain, after, CHECKPOINTS).await?;
    if page.len() >= CHECKPOINTS as usize
        && let Some(last) = page.last().map(|checkpoint| checkpoint.head.number)
    {
        page.retain(|checkpoint| checkpoint.head.number < last);
    }
    Ok(page)
}

/// What is signed of an entry.
struct Signed {
    hash: String,
    what: String,
}

/// One way through a chain.
struct Walk<'a> {
    store: &'a dyn AuditStore,
    chain: &'a str,
    /// The last entry that was passed, and its hash if that is known.
    number: i64,
    hash: Option<String>,
    ahead: VecDeque<AuditEntry>,
    signed: BTreeMap<i64, Vec<Signed>>,
    /// The last entry that a checkpoint is about.
    marked: i64,
    closed: Option<i64>,
    has_gap_at_begin: bool,
    is_by_hand: bool,
    report: Report,
}

impl<'a> Walk<'a> {
    fn new(store: &'a dyn AuditStore, chain: &'a str) -> Self {
        Self {
            store,
            chain,
            number: 0,
            hash: Some(String::new()),
            ahead: VecDeque::new(),
            signed: BTreeMap::new(),
            marked: 0,
            closed: None,
            has_gap_at_begin: false,
            is_by_hand: true,
            report: Report::default(),
        }
    }

    fn found(&mut self, number: impl Into<Option<i64>>, what: impl Into<String>) {
        self.report.found(self.chain, number, what);
    }

    /// Begins behind what was too old, if somebody has signed that it was.
    async fn begin(&mut self, trust: &Trust) -> Result<()> {
        let Some(cut) = self.store.audit_cut(self.chain).await? else { return Ok(()) };
        match trust.check(&cut) {
            Ok(_) => {
                self.report.checkpoints += 1;
                self.number = cut.head.number;
                self.marked = cut.head.number;
                self.hash = Some(cut.head.hash);
            }
            Err(why) => self.found(cut.head.number, format!("the checkpoint (cut) is not believed: {why}")),
        }
        Ok(())
    }

    async fn go(&mut self, trust: &Trust, seen: Option<&AllSeen>) -> Result<()> {
        let (begin, mut after) = (self.number, self.number);
        loop {
            let page = page(self.store, self.chain, after).await?;
            let Some(last) = page.last().map(|checkpoint| checkpoint.head.number) else { break };
            after = last;
            page.into_iter().for_each(|checkpoint| self.take(checkpoint, trust));
            self.pass_until(last, begin, seen).await?;
        }
        self.pass_until(i64::MAX, begin, seen).await?;
        let last = self.number;
        for (number, signed) in std::mem::take(&mut self.signed) {
            for one in signed {
                self.found(number, format!("{}, but the chain ends at {last}", one.what));
            }
        }
        if let Some((number, seen)) = seen.and_then(|seen| seen.last_key_value())
            && *number > last
            && let Some(seen) = seen.first()
        {
            self.found(*number, format!("it {}, but the chain ends at {last}", seen.by));
        }
        Ok(())
    }

    fn take(&mut self, checkpoint: Checkpoint, trust: &Trust) {
        let (number, kind, at) = (checkpoint.head.number, checkpoint.kind, checkpoint.at);
        match trust.check(&checkpoint) {
            Ok(_) => {
                self.report.checkpoints += 1;
                self.marked = self.marked.max(number);
                if kind == CheckpointKind::Close {
                    self.closed = Some(number);
                }
                let what = format!("it was signed ({kind}) at {at}");
                self.signed.entry(number).or_default().push(Signed { hash: checkpoint.head.hash, what });
            }
            Err(why) => self.found(number, format!("the checkpoint ({kind}) is not believed: {why}")),
        }
    }

    /// Goes through the entries up to this one.
    async fn pass_until(&mut self, last: i64, begin: i64, seen: Option<&AllSeen>) -> Result<()> {
        while self.number < last {
            let Some(entry) = self.next().await? else { return Ok(()) };
            self.pass(entry, begin, seen);
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<AuditEntry>> {
        if self.ahead.is_empty() {
            self.ahead = self.store.audit_chain(self.chain, self.number, ENTRIES).await?.into();
        }
        Ok(self.ahead.pop_front())
    }

    fn pass(&mut self, entry: AuditEntry, begin: i64, seen: Option<&AllSeen>) {
        let number = entry.number;
        if number != self.number + 1 {
            let (first, last) = (self.number + 1, number - 1);
            let what = if first == last {
                "it is missing".to_owned()
            } else {
                format!("it and all up to {last} are missing")
            };
            let signed =
                if self.number == begin { ", and nobody has signed that they were too old" } else { "" };
            self.found(first, format!("{what}{signed}"));
            self.has_gap_at_begin |= self.number == begin;
            self.hash = None;
            // What is signed of them is not there.
            self.signed.retain(|at, _| *at >= number);
        }
        if self.hash.as_ref().is_some_and(|before| hash(before, &entry) != entry.hash) {
            self.found(number, "it does not follow from the entry before it: one of the two was changed");
        }
        for signed in self.signed.remove(&number).unwrap_or_default() {
            if signed.hash != entry.hash {
                self.found(number, format!("{}, and was another one then", signed.what));
            }
        }
        for seen in seen.and_then(|seen| seen.get(&number)).into_iter().flatten() {
            if seen.hash != entry.hash {
                self.found(number, format!("it {}, and was another one then", seen.by));
            }
        }
        if self.closed.is_some_and(|closed| number > closed) {
            self.found(number, "it comes after the end of its chain");
        }
        if entry.action == LOST {
            let lost = &entry.detail["entries"];
            self.report.note(self.chain, number, format!("{lost} entries before it were lost"));
        }
        self.is_by_hand &= entry.actor == UNSIGNED_ACTOR;
        self.report.entries += 1;
        self.number = number;
        self.hash = Some(entry.hash);
    }

    fn report_into(mut self, all: &mut Report) {
        let unsigned = self.number - self.marked;
        if self.report.checkpoints == 0 && self.number > 0 {
            if self.is_by_hand {
                let what = "it is of the command line on the database itself, where nobody signs";
                self.report.note(self.chain, None, what);
            } else {
                self.found(
                    None,
                    "it has no checkpoint that is believed: nothing proves that it is what was written",
                );
            }
        } else if self.closed.is_none() && self.report.entries > 0 {
            let what = format!(
                "it has no closing checkpoint: its instance runs, or was killed; its last {unsigned} entries are not signed"
            );
            self.report.note(self.chain, None, what);
        }
        all.entries += self.report.entries;
        all.checkpoints += self.report.checkpoints;
        all.unlisted += self.report.unlisted;
        for finding in self.report.findings {
            all.found(&finding.chain, finding.number, finding.what);
        }
        for note in self.report.notes {
            all.note(&note.chain, note.number, note.what);
        }
        if self.number > 0 {
            let hash = self.hash.unwrap_or_default();
            all.heads.push(Head { chain: self.chain.to_owned(), number: self.number, hash });
        }
    }
}
