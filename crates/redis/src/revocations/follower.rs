//! Follows the stream of revocations: first what is missing there is written, then what is missing here is read.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drawbridge_core::event_log::SessionKey;

use super::{Local, entry};
use crate::reader::{Conversation, Entry, Stopped, read};
use crate::request::Request;

/// Entries of a page when the stream is read from its beginning.
const PAGE: usize = 1000;
/// What many instances would write at once is written by the first of them, and read by the others.
const LONGEST_HESITATION: Duration = Duration::from_millis(300);
/// The id before every other.
const BEGINNING: &str = "0-0";

/// Entries that are written at a time.
const BATCH: usize = 500;

/// Follows the stream.
pub(crate) struct Follower {
    key: String,
    local: Arc<Local>,
    /// The last entry that was read.
    last: String,
    /// An entry between two that were read is missing.
    has_gap: bool,
    /// What this instance knows and the stream does not: whom, and until when.
    missing: Vec<(SessionKey, Instant)>,
    /// The server's clock: so many ms since 1970 at this time of ours.
    clock: (u64, Instant),
}

impl Follower {
    pub(crate) fn new(key: String, local: Arc<Local>) -> Self {
        let (last, clock) = (BEGINNING.to_owned(), (0, Instant::now()));
        Self { key, local, last, has_gap: false, missing: Vec::new(), clock }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn last(&self) -> &str {
        &self.last
    }

    pub(crate) async fn begin(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        let (seconds, micros): (u64, u64) = read(conversation.ask(&Request::plain("TIME")).await?)?;
        self.clock = (seconds * 1000 + micros / 1000, Instant::now());
        self.look_after(conversation).await?;
        let asked = Instant::now();
        self.read_rest(conversation, |_| ()).await?;
        self.heard(asked);
        Ok(())
    }

    pub(crate) fn has_work(&self) -> bool {
        self.has_gap || !self.missing.is_empty()
    }

    /// Writes what waits, and looks whether the stream still has what was read from it.
    pub(crate) async fn look_after(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        self.write_waiting(conversation).await?;
        if self.has_gap || self.local.unwritten.lock().overflow || !self.has_last(conversation).await? {
            self.compare(conversation).await?;
        }
        // Some at a time: others wait for this connection.
        let some = self.missing.len().saturating_sub(BATCH)..;
        self.write(conversation, &self.missing[some.clone()]).await?;
        self.missing.truncate(some.start);
        Ok(())
    }

    /// Takes entries that were read.
    pub(crate) fn take(&mut self, entries: Vec<Entry>) {
        self.enter(entries, |_| ());
    }

    /// All that was in the stream at this time was read, unless a gap was found in it.
    pub(crate) fn heard(&self, at: Instant) {
        if !self.has_gap {
            *self.local.heard.lock() = Some(at);
        }
    }

    pub(crate) fn sweep(&self) {
        self.local.copy.sweep();
        let now = Instant::now();
        self.local.unwritten.lock().entries.retain(|_, until| *until > now);
    }

    async fn write_waiting(&self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        let waiting: Vec<(SessionKey, Instant)> = {
            let unwritten = self.local.unwritten.lock();
            unwritten.entries.iter().map(|(session, until)| (*session, *until)).collect()
        };
        for some in waiting.chunks(BATCH) {
            self.write(conversation, some).await?;
            let mut unwritten = self.local.unwritten.lock();
            some.iter().for_each(|(session, _)| {
                unwritten.entries.remove(session);
            });
        }
        Ok(())
    }

    async fn write(
        &self,
        conversation: &Conversation<'_>,
        entries: &[(SessionKey, Instant)],
    ) -> Result<(), Stopped> {
        let now = Instant::now();
        let left = entries.iter().filter_map(|(session, until)| {
            let left = until.checked_duration_since(now)?;
            Some(entry(&self.key, session, left))
        });
        conversation.tell_all(&left.collect::<Vec<_>>()).await
    }

    /// Whether the last entry that was read is still there. If not, the stream was emptied, or Redis has come back with
    /// an older one (or the entry has expired, which can't be told apart and costs only a comparison).
    async fn has_last(&self, conversation: &Conversation<'_>) -> Result<bool, Stopped> {
        if self.last == BEGINNING {
            return Ok(true);
        }
        let request = Request::command("XRANGE", &self.key).arg(&self.last).arg(&self.last);
        let found: Vec<Entry> = read(conversation.ask(&request).await?)?;
        Ok(!found.is_empty())
    }

    /// Reads the stream from its beginning, and finds what only this instance knows.
    async fn compare(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        tokio::time::sleep(LONGEST_HESITATION.mul_f64(rand::random_range(0.0..1.0))).await;
        self.last = BEGINNING.to_owned();
        self.has_gap = false;
        self.local.unwritten.lock().overflow = false;
        let mut there = HashSet::new();
        self.read_rest(conversation, |session| {
            there.insert(session);
        })
        .await?;
        let now = Instant::now();
        let known = self.local.copy.entries().into_iter();
        let missing = known.filter(|(session, _)| !there.contains(session));
        self.missing = missing.map(|(session, left)| (session, now + left)).collect();
        if !self.missing.is_empty() {
            let count = self.missing.len();
            tracing::warn!(
                count,
                "Redis has lost revocations that this instance knows; they are written again"
            );
        }
        Ok(())
    }

    /// Reads page by page until the end.
    async fn read_rest(
        &mut self,
        conversation: &Conversation<'_>,
        mut see: impl FnMut(SessionKey),
    ) -> Result<(), Stopped> {
        loop {
            let request = Request::command("XRANGE", &self.key);
            let request = request.arg(format!("({}", self.last)).arg("+").arg("COUNT").arg(PAGE);
            let page: Vec<Entry> = read(conversation.ask(&request).await?)?;
            let is_last = page.len() < PAGE;
            self.enter(page, &mut see);
            if is_last {
                return Ok(());
            }
        }
    }

    fn enter(&mut self, entries: Vec<Entry>, mut see: impl FnMut(SessionKey)) {
        let now = self.clock.0 + u64::try_from(self.clock.1.elapsed().as_millis()).unwrap_or(u64::MAX / 2);
        for (id, fields) in entries {
            let last = std::mem::replace(&mut self.last, id);
            let Some(Revoked { session, ends, before }) = parse(&fields) else { continue };
            self.has_gap |= last != BEGINNING && before != last.as_bytes();
            see(session);
            if let Some(left) = ends.checked_sub(now).filter(|left| *left > 0) {
                self.local.copy.enter(session, Duration::from_millis(left));
            }
        }
    }
}

/// An entry.
struct Revoked<'a> {
    session: SessionKey,
    /// In ms since 1970, by the server's clock.
    ends: u64,
    /// The id of the entry before it.
    before: &'a [u8],
}

fn parse(fields: &[(Vec<u8>, Vec<u8>)]) -> Option<Revoked<'_>> {
    let field = |name: &str| {
        fields.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice())
    };
    let session = SessionKey(field("k")?.try_into().ok()?);
    let ends = std::str::from_utf8(field("u")?).ok()?.parse().ok()?;
    Some(Revoked { session, ends, before: field("p")? })
}
