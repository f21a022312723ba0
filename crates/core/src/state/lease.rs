//! Who owns what only one instance can have: a process, a connection, a stream of changes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{InstanceId, Unavailable};

/// Who has a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The owner.
    pub owner: InstanceId,
    /// Rises with each change of the owner: whoever has a lower one has lost it.
    pub token: u64,
}

/// Gives leases. A lease ends after its `ttl`, when it is released, or when it is taken over from an owner that is
/// known not to live any more.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes a lease that nobody has, or renews one's own. Returns who has it now.
    async fn acquire(&self, name: &str, instance: &InstanceId, ttl: Duration) -> Result<Lease, Unavailable>;

    /// Takes a lease from an owner that does not live any more. `lost` is the lease as it was seen; if it is not so
    /// any more, somebody else was faster. Returns who has it now.
    async fn take_over(
        &self,
        name: &str,
        lost: &Lease,
        instance: &InstanceId,
        ttl: Duration,
    ) -> Result<Lease, Unavailable>;

    /// Renews a lease. Returns whether it was still this one.
    async fn renew(&self, name: &str, lease: &Lease, ttl: Duration) -> Result<bool, Unavailable>;

    /// Gives a lease back, if it is still this one.
    async fn release(&self, name: &str, lease: &Lease) -> Result<(), Unavailable>;

    /// Who has a lease.
    async fn holder(&self, name: &str) -> Result<Option<Lease>, Unavailable>;
}

#[derive(Default)]
struct Table {
    leases: HashMap<String, (Lease, Instant)>,
    tokens: u64,
}

impl Table {
    fn current(&mut self, name: &str) -> Option<&mut (Lease, Instant)> {
        if self.leases.get(name).is_some_and(|(_, until)| *until <= Instant::now()) {
            self.leases.remove(name);
        }
        self.leases.get_mut(name)
    }

    fn give(&mut self, name: &str, owner: &InstanceId, ttl: Duration) -> Lease {
        self.tokens += 1;
        let lease = Lease { owner: owner.clone(), token: self.tokens };
        self.leases.insert(name.to_owned(), (lease.clone(), Instant::now() + ttl));
        lease
    }
}

/// Leases in memory.
#[derive(Default)]
pub struct MemoryLeases(Mutex<Table>);

impl MemoryLeases {
    /// Forgets what has expired. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.0.lock().leases.retain(|_, (_, until)| *until > now);
    }
}

#[async_trait]
impl Leases for MemoryLeases {
    async fn acquire(&self, name: &str, instance: &InstanceId, ttl: Duration) -> Result<Lease, Unavailable> {
        let mut table = self.0.lock();
        Ok(match table.current(name) {
            Some((lease, until)) => {
                if lease.owner == *instance {
                    *until = Instant::now() + ttl;
                }
                lease.clone()
            }
            None => table.give(name, instance, ttl),
        })
    }

    async fn take_over(
        &self,
        name: &str,
        lost: &Lease,
        instance: &InstanceId,
        ttl: Duration,
    ) -> Result<Lease, Unavailable> {
        let mut table = self.0.lock();
        match table.current(name) {
            Some((lease, _)) if lease != lost => Ok(lease.clone()),
            _ => Ok(table.give(name, instance, ttl)),
        }
    }

    async fn renew(&self, name: &str, lease: &Lease, ttl: Duration) -> Result<bool, Unavailable> {
        let mut table = self.0.lock();
        let Some((_, until)) = table.current(name).filter(|(current, _)| current == lease) else {
            return Ok(false);
        };
        *until = Instant::now() + ttl;
        Ok(true)
    }

    async fn release(&self, name: &str, lease: &Lease) -> Result<(), Unavailable> {
        let mut table = self.0.lock();
        if table.current(name).is_some_and(|(current, _)| current == lease) {
            table.leases.remove(name);
        }
        Ok(())
    }

    async fn holder(&self, name: &str) -> Result<Option<Lease>, Unavailable> {
        Ok(self.0.lock().current(name).map(|(lease, _)| lease.clone()))
    }
}
