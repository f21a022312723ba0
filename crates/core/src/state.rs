//! State that the instances of one gateway share.
//!
//! Seven ports, each with an adapter in memory here, for a gateway of one instance, and one over Redis in its own
//! crate. The same contract suite runs over all of them. All of this state may be lost without losing what a user made:
//! sessions live on in their ids.
//!
//! | port | what for |
//! |---|---|
//! | [`SessionState`] | what changes after `initialize`: sessions at backends, what was set there |
//! | [`EventLog`] | events that a client may come back for at another instance |
//! | [`Revocations`] | what was ended and must not come back |
//! | [`Bus`] | messages to one instance, or to all that care |
//! | [`Leases`] | who owns what only one instance can have |
//! | [`Claims`] | what may happen only once |
//! | [`Limiter`] | how often something may happen |
//!
//! Whatever waits for one of them has a deadline of the adapter's: a port answers or says [`Unavailable`].

pub mod bus;
pub mod claim;
pub mod lease;
pub mod limiter;
pub mod session;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use bus::{Bus, Heard, MemoryBus, NotSent, Receipt, Subscription};
pub use claim::{Claims, MemoryClaims};
pub use lease::{Lease, Leases, MemoryLeases};
pub use limiter::{Limiter, MemoryLimiter, Quota, Take, Taken, Verdict, WithFallback};
pub use session::{MemorySessionState, SessionState};

use crate::event_log::{EventLog, MemoryEventLog};
use crate::revocation::{MemoryRevocations, Revocations};

/// Shared state can't be reached, or took too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shared state is unavailable: {0}")]
pub struct Unavailable(pub String);

/// Names one run of one instance: whoever starts again is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(Arc<str>);

impl InstanceId {
    /// A name that no other run has.
    pub fn fresh() -> Self {
        Self(Arc::from(format!("{:016x}", rand::random::<u64>())))
    }

    /// Reads a name; `None` if it is none that [`InstanceId::fresh`] makes.
    pub fn parse(text: &str) -> Option<Self> {
        let legal = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        legal.then(|| Self(Arc::from(text)))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The seven ports of one instance, and its name on the bus.
#[derive(Clone)]
pub struct SharedState {
    /// This instance.
    pub instance: InstanceId,
    /// Whether there can be other instances. If not, nothing needs to be told to them.
    pub is_fleet: bool,
    /// What changes in sessions.
    pub sessions: Arc<dyn SessionState>,
    /// Events that clients may come back for.
    pub events: Arc<dyn EventLog>,
    /// What was ended.
    pub revocations: Arc<dyn Revocations>,
    /// Messages between instances.
    pub bus: Arc<dyn Bus>,
    /// Who owns what.
    pub leases: Arc<dyn Leases>,
    /// What may happen once.
    pub claims: Arc<dyn Claims>,
    /// How often something may happen.
    pub limiter: Arc<dyn Limiter>,
}

/// State of a gateway that has all its instances in this process.
#[derive(Clone)]
pub struct MemoryState {
    sessions: Arc<MemorySessionState>,
    events: Arc<MemoryEventLog>,
    revocations: Arc<MemoryRevocations>,
    bus: MemoryBus,
    leases: Arc<MemoryLeases>,
    claims: Arc<MemoryClaims>,
    limiter: Arc<MemoryLimiter>,
}

impl MemoryState {
    /// State whose event log holds at most `event_log_bytes`, each stream for `event_log_ttl`.
    pub fn new(event_log_bytes: usize, event_log_ttl: Duration) -> Self {
        Self {
            sessions: Arc::default(),
            events: Arc::new(MemoryEventLog::new(event_log_bytes, event_log_ttl)),
            revocations: Arc::default(),
            bus: MemoryBus::default(),
            leases: Arc::default(),
            claims: Arc::default(),
            limiter: Arc::default(),
        }
    }

    /// The state as one of several instances sees it (`is_fleet`), or the only one.
    pub fn instance(&self, is_fleet: bool) -> SharedState {
        let instance = InstanceId::fresh();
        SharedState {
            is_fleet,
            sessions: self.sessions.clone(),
            events: self.events.clone(),
            revocations: self.revocations.clone(),
            bus: Arc::new(self.bus.end(instance.clone())),
            leases: self.leases.clone(),
            claims: self.claims.clone(),
            limiter: self.limiter.clone(),
            instance,
        }
    }

    /// Forgets what has expired. To be called now and then.
    pub fn sweep(&self) {
        self.sessions.sweep();
        self.events.sweep();
        self.revocations.sweep();
        self.leases.sweep();
        self.claims.sweep();
        self.limiter.sweep();
    }
}
