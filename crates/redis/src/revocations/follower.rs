//! Follows the stream of revocations: first what is missing there is written, then what is missing here is read.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drawbridge_core::event_log::SessionKey;
use redis::{FromRedisValue, Value};

use super::{Local, entry};
use crate::reader::{Conversation, Entry, Stopped};
use crate::request::Request;

/// Entries of a page when the stream is read from its beginning.
const PAGE: usize = 1000;
/// What many instances would write at once is written by the first of them, and read by the others.
const LONGEST_HESITATION: Duration = Duration::from_millis(300);
/// The id before every other.
const BEGINNING: &str = "0-0";

/// Follows the stream.
pub(crate) struct Follower {
    key: String,
    local: Arc<Local>,
    /// The last entry that was read.
    last: String,
    /// The server's clock: so many ms since 1970 at this time of ours.
    clock: (u64, Instant),
}

impl Follower {
    pub(crate) fn new(key: String, local: Arc<Local>) -> Self {
        Self { key, local, last: BEGINNING.to_owned(), clock: (0, Instant::now()) }
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
        self.read_rest(conversation, |_| ()).await
    }

    /// Writes what waits, and looks whether the stream still has what was read from it.
    pub(crate) async fn look_after(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        self.write_waiting(conversation).await?;
        let overflow = self.local.unwritten.lock().overflow;
        if overflow || !self.has_last(conversation).await? {
            self.compare(conversation).await?;
        }
        Ok(())
    }

    /// Takes entries that were read.
    pub(crate) fn take(&mut self, entries: Vec<Entry>) {
        self.enter(entries, |_| ());
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
        for (session, until) in waiting {
            let left = until.saturating_duration_since(Instant::now());
            conversation.ask(&entry(&self.key, &session, left)).await?;
            self.local.unwritten.lock().entries.remove(&session);
        }
        Ok(())
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

    /// Reads the stream from its beginning, and writes what only this instance knows.
    async fn compare(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        tracing::warn!("the revocations in Redis are not those that were there; writing what is missing");
        tokio::time::sleep(LONGEST_HESITATION.mul_f64(rand::random_range(0.0..1.0))).await;
        self.last = BEGINNING.to_owned();
        let mut there = HashSet::new();
        self.read_rest(conversation, |session| {
            there.insert(session);
        })
        .await?;
        for (session, left) in self.local.copy.entries() {
            if !there.contains(&session) {
                conversation.ask(&entry(&self.key, &session, left)).await?;
            }
        }
        self.local.unwritten.lock().overflow = false;
        self.read_rest(conversation, |_| ()).await
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
            self.last = id;
            let Some((session, ends)) = parse(&fields) else { continue };
            see(session);
            if let Some(left) = ends.checked_sub(now).filter(|left| *left > 0) {
                self.local.copy.enter(session, Duration::from_millis(left));
            }
        }
    }
}

fn parse(fields: &[(String, Vec<u8>)]) -> Option<(SessionKey, u64)> {
    let field =
        |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_slice());
    let session = SessionKey(field("k")?.try_into().ok()?);
    let ends = std::str::from_utf8(field("u")?).ok()?.parse().ok()?;
    Some((session, ends))
}

fn read<T: FromRedisValue>(answer: Value) -> Result<T, Stopped> {
    redis::from_redis_value(answer).map_err(|error| Stopped::Answer(error.to_string()))
}
