//! The port for what must not be accepted any more although its handle is genuine: ended sessions.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::event_log::SessionKey;
use crate::state::Unavailable;

/// Remembers what was revoked. Asking is a local look-up in every adapter; telling reaches all instances.
#[async_trait]
pub trait Revocations: Send + Sync {
    /// Revokes a session for as long as its handle could be presented. Here it is revoked at once, whatever is
    /// returned; if that is an error, other instances don't know of it yet, and hear of it as soon as that is possible.
    async fn revoke(&self, session: SessionKey, for_how_long: Duration) -> Result<(), Unavailable>;

    /// Whether it was revoked.
    fn is_revoked(&self, session: &SessionKey) -> bool;

    /// Whether all that others have revoked up to a second ago is known here.
    fn is_current(&self) -> bool;

    /// What is revoked from now on, here and elsewhere. Whoever is too slow may miss some, and should ask about all
    /// that it has.
    fn follow(&self) -> broadcast::Receiver<SessionKey>;
}

/// So many revocations may wait for somebody who [follows](Revocations::follow).
const FOLLOW_CAPACITY: usize = 4096;

/// More than this many are not kept: the ones that would end first go first.
const MAX_ENTRIES: usize = 500_000;

#[derive(Debug, Default)]
struct Entries {
    until: HashMap<SessionKey, Instant, ahash::RandomState>,
    order: BTreeMap<(Instant, SessionKey), ()>,
}

/// The revocations that an instance knows: all of them where it is the only one, a copy of the log else.
#[derive(Debug)]
pub struct MemoryRevocations {
    entries: Mutex<Entries>,
    followers: broadcast::Sender<SessionKey>,
}

impl Default for MemoryRevocations {
    fn default() -> Self {
        Self { entries: Mutex::default(), followers: broadcast::channel(FOLLOW_CAPACITY).0 }
    }
}

impl MemoryRevocations {
    /// Forgets what has expired. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        while let Some((&(until, key), ())) = entries.order.first_key_value()
            && until <= now
        {
            entries.order.pop_first();
            entries.until.remove(&key);
        }
    }
}

impl MemoryRevocations {
    /// Enters a revocation and tells those who follow, unless it is known: then the later end counts.
    pub fn enter(&self, session: SessionKey, for_how_long: Duration) {
        let until = Instant::now() + for_how_long;
        let mut entries = self.entries.lock();
        let known = entries.until.get(&session).copied();
        if let Some(old) = known {
            if old >= until {
                return;
            }
            entries.order.remove(&(old, session));
        }
        entries.until.insert(session, until);
        entries.order.insert((until, session), ());
        if entries.order.len() > MAX_ENTRIES
            && let Some(((_, key), ())) = entries.order.pop_first()
        {
            entries.until.remove(&key);
        }
        drop(entries);
        if known.is_none() {
            // Nobody may follow.
            let _ = self.followers.send(session);
        }
    }

    /// All that is revoked, and for how long still.
    pub fn entries(&self) -> Vec<(SessionKey, Duration)> {
        let now = Instant::now();
        let entries = self.entries.lock();
        let left = entries.until.iter().map(|(key, until)| (*key, until.saturating_duration_since(now)));
        left.filter(|(_, left)| !left.is_zero()).collect()
    }
}

#[async_trait]
impl Revocations for MemoryRevocations {
    async fn revoke(&self, session: SessionKey, for_how_long: Duration) -> Result<(), Unavailable> {
        self.enter(session, for_how_long);
        Ok(())
    }

    fn is_revoked(&self, session: &SessionKey) -> bool {
        self.entries.lock().until.contains_key(session)
    }

    fn is_current(&self) -> bool {
        true
    }

    fn follow(&self) -> broadcast::Receiver<SessionKey> {
        self.followers.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_session_stays_revoked_until_its_handle_is_worthless() {
        let log = MemoryRevocations::default();
        let key = |n| SessionKey([n; 16]);
        log.enter(key(1), Duration::from_secs(60));
        log.enter(key(2), Duration::ZERO);
        log.sweep();
        assert!(log.is_revoked(&key(1)));
        assert!(!log.is_revoked(&key(2)));
        assert!(!log.is_revoked(&key(3)));
    }
    #[test]
    fn what_is_revoked_again_is_told_once_and_lasts_longer() {
        let log = MemoryRevocations::default();
        let mut follower = log.follow();
        let key = SessionKey([1; 16]);
        log.enter(key, Duration::from_secs(60));
        log.enter(key, Duration::from_secs(30));
        log.enter(key, Duration::from_secs(90));
        assert_eq!(follower.try_recv(), Ok(key));
        assert!(follower.try_recv().is_err());
        let entries = log.entries();
        assert!(entries.len() == 1 && entries[0].1 > Duration::from_secs(60), "{entries:?}");
    }
}
