//! What changes in a session after `initialize`, by field.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::Unavailable;
use crate::event_log::SessionKey;

/// Fields of sessions. All fields of one session end together, `ttl` after the last call that named one.
#[async_trait]
pub trait SessionState: Send + Sync {
    /// The value of a field.
    async fn get(&self, session: SessionKey, field: &str) -> Result<Option<Bytes>, Unavailable>;

    /// Sets a field that has no value. Returns the value that it has now, which is another's if that came first.
    async fn put_if_absent(
        &self,
        session: SessionKey,
        field: &str,
        value: Bytes,
        ttl: Duration,
    ) -> Result<Bytes, Unavailable>;

    /// Replaces the value `old` of a field. Returns whether it had that value.
    async fn replace(
        &self,
        session: SessionKey,
        field: &str,
        old: &[u8],
        new: Bytes,
        ttl: Duration,
    ) -> Result<bool, Unavailable>;

    /// Takes the value `old` out of a field. Returns whether it had that value.
    async fn remove(&self, session: SessionKey, field: &str, old: &[u8]) -> Result<bool, Unavailable>;

    /// Says that the session is in use. Returns how long it would have lasted; `None` if there is nothing of it.
    async fn touch(&self, session: SessionKey, ttl: Duration) -> Result<Option<Duration>, Unavailable>;

    /// Takes all fields.
    async fn take(&self, session: SessionKey) -> Result<Vec<(String, Bytes)>, Unavailable>;
}

struct Entry {
    fields: Vec<(String, Bytes)>,
    until: Instant,
}

/// The state in memory.
#[derive(Default)]
pub struct MemorySessionState(Mutex<HashMap<SessionKey, Entry, ahash::RandomState>>);

impl MemorySessionState {
    /// Forgets what has expired. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut sessions = self.0.lock();
        sessions.retain(|_, entry| entry.until > now);
        if sessions.capacity() > 1024 && sessions.len() < sessions.capacity() / 4 {
            sessions.shrink_to_fit();
        }
    }

    /// How many sessions it knows.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Works on a session that has not expired.
    fn with<T>(&self, session: SessionKey, work: impl FnOnce(Option<&mut Entry>) -> T) -> T {
        let mut sessions = self.0.lock();
        if sessions.get(&session).is_some_and(|entry| entry.until <= Instant::now()) {
            sessions.remove(&session);
        }
        work(sessions.get_mut(&session))
    }
}

#[async_trait]
impl SessionState for MemorySessionState {
    async fn get(&self, session: SessionKey, field: &str) -> Result<Option<Bytes>, Unavailable> {
        Ok(self.with(session, |entry| {
            let (_, value) = entry?.fields.iter().find(|(name, _)| name == field)?;
            Some(value.clone())
        }))
    }

    async fn put_if_absent(
        &self,
        session: SessionKey,
        field: &str,
        value: Bytes,
        ttl: Duration,
    ) -> Result<Bytes, Unavailable> {
        self.with(session, |_| ());
        let until = Instant::now() + ttl;
        let mut sessions = self.0.lock();
        let entry = sessions.entry(session).or_insert(Entry { fields: Vec::new(), until });
        entry.until = until;
        if let Some((_, kept)) = entry.fields.iter().find(|(name, _)| name == field) {
            return Ok(kept.clone());
        }
        entry.fields.push((field.to_owned(), value.clone()));
        Ok(value)
    }

    async fn replace(
        &self,
        session: SessionKey,
        field: &str,
        old: &[u8],
        new: Bytes,
        ttl: Duration,
    ) -> Result<bool, Unavailable> {
        Ok(self.with(session, |entry| {
            let Some(entry) = entry else { return false };
            let Some((_, value)) = entry.fields.iter_mut().find(|(name, v)| name == field && *v == old)
            else {
                return false;
            };
            *value = new;
            entry.until = Instant::now() + ttl;
            true
        }))
    }

    async fn remove(&self, session: SessionKey, field: &str, old: &[u8]) -> Result<bool, Unavailable> {
        let mut sessions = self.0.lock();
        let Some(entry) = sessions.get_mut(&session).filter(|entry| entry.until > Instant::now()) else {
            return Ok(false);
        };
        let before = entry.fields.len();
        entry.fields.retain(|(name, value)| !(name == field && value == old));
        let removed = entry.fields.len() < before;
        if entry.fields.is_empty() {
            sessions.remove(&session);
        }
        Ok(removed)
    }

    async fn touch(&self, session: SessionKey, ttl: Duration) -> Result<Option<Duration>, Unavailable> {
        Ok(self.with(session, |entry| {
            let entry = entry?;
            let left = entry.until.saturating_duration_since(Instant::now());
            entry.until = Instant::now() + ttl;
            Some(left)
        }))
    }

    async fn take(&self, session: SessionKey) -> Result<Vec<(String, Bytes)>, Unavailable> {
        self.with(session, |_| ());
        Ok(self.0.lock().remove(&session).map(|entry| entry.fields).unwrap_or_default())
    }
}
