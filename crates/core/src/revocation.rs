//! The port for what must not be accepted any more although its handle is genuine: ended sessions.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::event_log::SessionKey;

/// Remembers what was revoked. Asking is a local look-up in every adapter; telling reaches all instances.
pub trait Revocations: Send + Sync {
    /// Revokes a session for as long as its handle could be presented.
    fn revoke(&self, session: SessionKey, for_how_long: Duration);

    /// Whether it was revoked.
    fn is_revoked(&self, session: &SessionKey) -> bool;
}

/// More than this many are not kept: the ones that would end first go first.
const MAX_ENTRIES: usize = 500_000;

#[derive(Debug, Default)]
struct Entries {
    until: HashMap<SessionKey, Instant, ahash::RandomState>,
    order: BTreeMap<(Instant, SessionKey), ()>,
}

/// The revocations in memory.
#[derive(Debug, Default)]
pub struct MemoryRevocations(Mutex<Entries>);

impl MemoryRevocations {
    /// Forgets what has expired. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut entries = self.0.lock();
        while let Some((&(until, key), ())) = entries.order.first_key_value()
            && until <= now
        {
            entries.order.pop_first();
            entries.until.remove(&key);
        }
    }
}

impl Revocations for MemoryRevocations {
    fn revoke(&self, session: SessionKey, for_how_long: Duration) {
        let until = Instant::now() + for_how_long;
        let mut entries = self.0.lock();
        if let Some(old) = entries.until.insert(session, until) {
            entries.order.remove(&(old, session));
        }
        entries.order.insert((until, session), ());
        if entries.order.len() > MAX_ENTRIES
            && let Some(((_, key), ())) = entries.order.pop_first()
        {
            entries.until.remove(&key);
        }
    }

    fn is_revoked(&self, session: &SessionKey) -> bool {
        self.0.lock().until.contains_key(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_session_stays_revoked_until_its_handle_is_worthless() {
        let log = MemoryRevocations::default();
        let key = |n| SessionKey([n; 16]);
        log.revoke(key(1), Duration::from_secs(60));
        log.revoke(key(2), Duration::ZERO);
        log.sweep();
        assert!(log.is_revoked(&key(1)));
        assert!(!log.is_revoked(&key(2)));
        assert!(!log.is_revoked(&key(3)));
    }
}
