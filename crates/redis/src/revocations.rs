//! What was revoked: one stream for all instances, of which each has a copy in memory.

mod follower;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::revocation::{MemoryRevocations, Revocations};
use drawbridge_core::state::Unavailable;
use parking_lot::Mutex;
use tokio::sync::broadcast;

pub(crate) use self::follower::Follower;
use crate::hub::Hub;
use crate::request::{Request, millis};
use crate::scripts;

/// Entries of the stream; the oldest go first.
const MAX_ENTRIES: usize = 1_000_000;
/// Revocations that wait until Redis is back. If there are more, the copy is compared with the stream instead.
const MAX_UNWRITTEN: usize = 10_000;

/// What was read is current for so long.
const CURRENT: Duration = Duration::from_secs(1);

/// What is not in the stream yet.
#[derive(Default)]
struct Unwritten {
    /// Until when each is revoked.
    entries: HashMap<SessionKey, Instant>,
    /// There are more, which only the copy has.
    overflow: bool,
}

/// The copy of this instance, and what it has that the stream does not.
#[derive(Default)]
pub(crate) struct Local {
    copy: MemoryRevocations,
    unwritten: Mutex<Unwritten>,
    /// When the stream was last read to its end.
    heard: Mutex<Option<Instant>>,
}

impl Local {
    /// Whether what was revoked before this instance came is known here.
    pub(crate) fn was_read(&self) -> bool {
        self.heard.lock().is_some()
    }

    fn remember(&self, session: SessionKey, until: Instant) {
        let mut unwritten = self.unwritten.lock();
        if unwritten.entries.len() >= MAX_UNWRITTEN && !unwritten.entries.contains_key(&session) {
            unwritten.overflow = true;
        } else {
            unwritten.entries.insert(session, until);
        }
    }
}

/// The revocations.
pub(crate) struct RedisRevocations {
    pub(crate) hub: Arc<Hub>,
    pub(crate) local: Arc<Local>,
}

/// Enters a session into the stream.
fn entry(key: &str, session: &SessionKey, for_how_long: Duration) -> Request {
    let request = Request::script(&scripts::REVOKE, &[key]);
    request.arg(&session.0[..]).arg(millis(for_how_long)).arg(MAX_ENTRIES)
}

#[async_trait]
impl Revocations for RedisRevocations {
    async fn revoke(&self, session: SessionKey, for_how_long: Duration) -> Result<(), Unavailable> {
        self.local.copy.enter(session, for_how_long);
        // Before it is tried: whoever waits for this may give up.
        self.local.remember(session, Instant::now() + for_how_long);
        let request = entry(&self.hub.keys.revocations(), &session, for_how_long).again();
        self.hub.call("revocations", request).await?;
        self.local.unwritten.lock().entries.remove(&session);
        Ok(())
    }

    fn is_revoked(&self, session: &SessionKey) -> bool {
        self.local.copy.is_revoked(session)
    }

    fn is_current(&self) -> bool {
        self.local.heard.lock().is_some_and(|at| at.elapsed() <= CURRENT)
    }

    fn follow(&self) -> broadcast::Receiver<SessionKey> {
        self.local.copy.follow()
    }
}
