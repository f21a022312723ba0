//! What this instance owns, under leases.
//!
//! A lease names its owner and lasts for long; what decides is whether the owner lives. An owner that was silent for
//! too long looks at each of its leases before it goes on: what another instance has taken meanwhile is lost.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::peers::Peers;
use crate::state::{InstanceId, Lease, Unavailable};

/// How long a lease lasts whose owner does not give it back, as long as that lives.
const LEASE: Duration = Duration::from_secs(600);
/// How often leases are renewed.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(120);
/// How many renewals are on their way together.
const RENEWALS_AT_ONCE: usize = 256;

/// Who has something that only one instance can have.
#[derive(Debug, Clone)]
pub enum Ownership {
    /// This instance; `taken_over` if from one that is gone.
    Mine {
        /// Keeps it.
        held: Arc<Held>,
        /// Whether somebody else had it before.
        taken_over: bool,
    },
    /// Another instance.
    Theirs(InstanceId),
}

/// A lease of this instance. Dropping it gives it back.
pub struct Held {
    peers: Peers,
    name: String,
    lease: Mutex<Lease>,
    lost: CancellationToken,
    /// Cancelled when it is dropped.
    ended: CancellationToken,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("name", &self.name).field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Held {
    /// Makes it last longer. False if it is another instance's by now. One that shared state has forgotten is taken again: it was
    /// nobody's meanwhile.
    async fn renew(&self) -> Result<bool, Unavailable> {
        let (leases, me) = (&self.peers.state().leases, self.peers.instance());
        let lease = self.lease.lock().clone();
        if leases.renew(&self.name, &lease, LEASE).await? {
            return Ok(true);
        }
        let lease = leases.acquire(&self.name, me, LEASE).await?;
        let is_mine = lease.owner == *me;
        if is_mine {
            *self.lease.lock() = lease;
            if self.lost.is_cancelled() {
                // Given back meanwhile.
                self.release();
            }
        }
        Ok(is_mine)
    }

    /// Cancelled when another instance has it now, or may have it.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Gives it back before it is dropped: from now on another instance may have it.
    pub fn give_back(&self) {
        if !self.lost.is_cancelled() {
            self.lost.cancel();
            self.release();
        }
    }

    fn release(&self) {
        let (peers, name, lease) = (self.peers.clone(), self.name.clone(), self.lease.lock().clone());
        self.peers.tasks().spawn("release", async move {
            // Who needs it finds out that nobody has it, or waits for its end.
            let _ = peers.state().leases.release(&name, &lease).await;
        });
    }

    /// Cancelled when nobody here keeps it any more.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ended.cancel();
        if !self.lost.is_cancelled() {
            self.release();
        }
    }
}

/// The leases of an instance.
#[derive(Default)]
pub(super) struct Holdings(Mutex<HashMap<String, Weak<Held>>>);

impl Holdings {
    fn all(&self) -> Vec<Arc<Held>> {
        let mut held = self.0.lock();
        held.retain(|_, held| held.strong_count() > 0);
        held.values().filter_map(Weak::upgrade).collect()
    }

    /// Renews all; what is another's by now is lost. There may be a lease for each client that listens, and whoever
    /// renews says nothing else meanwhile: one after another they would take so long that it is believed to be dead.
    pub(super) async fn renew(&self) {
        let renewals = stream::iter(self.all()).for_each_concurrent(RENEWALS_AT_ONCE, |held| async move {
            if let Ok(false) = held.renew().await {
                tracing::warn!(lease = held.name, "another instance has taken over");
                held.lost.cancel();
                self.0.lock().remove(&held.name);
            }
        });
        renewals.await;
    }
}

impl Peers {
    /// Takes what nobody has, or whose owner is gone.
    ///
    /// # Errors
    ///
    /// If shared state can't be reached: then nobody knows whose it is.
    pub async fn own(&self, name: &str) -> Result<Ownership, Unavailable> {
        let known = |holdings: &Holdings| holdings.0.lock().get(name).and_then(Weak::upgrade);
        let not_lost = |held: &Arc<Held>| !held.lost.is_cancelled();
        if let Some(held) = known(self.holdings()).filter(not_lost) {
            return Ok(Ownership::Mine { held, taken_over: false });
        }
        let (leases, me) = (&self.state().leases, self.instance());
        let mut lease = leases.acquire(name, me, LEASE).await?;
        let mut taken_over = false;
        if lease.owner != *me && !self.state().bus.is_alive(&lease.owner).await? {
            lease = leases.take_over(name, &lease, me, LEASE).await?;
            taken_over = true;
        }
        if lease.owner != *me {
            return Ok(Ownership::Theirs(lease.owner));
        }
        let mut holdings = self.holdings().0.lock();
        if let Some(held) = holdings.get(name).and_then(Weak::upgrade).filter(not_lost) {
            return Ok(Ownership::Mine { held, taken_over: false });
        }
        let held = Arc::new(Held {
            peers: self.clone(),
            name: name.to_owned(),
            lease: Mutex::new(lease),
            lost: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        holdings.insert(name.to_owned(), Arc::downgrade(&held));
        Ok(Ownership::Mine { held, taken_over })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::peers::LIFE;
    use crate::state::{Leases, MemoryState};
    use crate::tasks::Tasks;
    use async_trait::async_trait;
    use tokio::time::Instant;

    /// Leases at a store that is a millisecond away.
    struct Far(Arc<dyn Leases>);

    #[async_trait]
    impl Leases for Far {
        async fn acquire(&self, name: &str, by: &InstanceId, ttl: Duration) -> Result<Lease, Unavailable> {
            self.0.acquire(name, by, ttl).await
        }

        async fn take_over(
            &self,
            name: &str,
            lost: &Lease,
            by: &InstanceId,
            ttl: Duration,
        ) -> Result<Lease, Unavailable> {
            self.0.take_over(name, lost, by, ttl).await
        }

        async fn renew(&self, name: &str, lease: &Lease, ttl: Duration) -> Result<bool, Unavailable> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.0.renew(name, lease, ttl).await
        }

        async fn release(&self, name: &str, lease: &Lease) -> Result<(), Unavailable> {
            self.0.release(name, lease).await
        }

        async fn holder(&self, name: &str) -> Result<Option<Lease>, Unavailable> {
            self.0.holder(name).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_with_ten_thousand_leases_has_renewed_them_long_before_it_is_believed_to_be_dead() {
        let mut state = MemoryState::new(0, Duration::ZERO).instance(true);
        state.leases = Arc::new(Far(state.leases));
        let peers = Peers::new(state, Tasks::default());
        let mut held = Vec::new();
        for number in 0..10_000 {
            held.push(peers.own(&number.to_string()).await.unwrap());
        }
        let begun = Instant::now();
        peers.holdings().renew().await;
        assert!(begun.elapsed() < LIFE / 10, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn one_of_two_owns_until_it_is_gone_and_then_has_lost_it() {
        let state = MemoryState::new(0, Duration::ZERO);
        let tasks = Tasks::default();
        let [one, other] = [(), ()].map(|()| Peers::new(state.instance(true), tasks.clone()));
        for peers in [&one, &other] {
            peers.state().bus.announce(Duration::from_secs(60)).await.unwrap();
        }
        let Ownership::Mine { held, taken_over: false } = one.own("x").await.unwrap() else { panic!() };
        assert!(matches!(one.own("x").await.unwrap(), Ownership::Mine { .. }));
        assert!(
            matches!(other.own("x").await.unwrap(), Ownership::Theirs(owner) if owner == *one.instance())
        );
        one.state().bus.leave().await.unwrap();
        let Ownership::Mine { held: theirs, taken_over: true } = other.own("x").await.unwrap() else {
            panic!()
        };
        assert!(!held.lost().is_cancelled());
        one.holdings().renew().await;
        assert!(held.lost().is_cancelled(), "it was silent for too long, and looks before it goes on");
        // Giving back what was lost must not take it from the new owner.
        drop(held);
        other.holdings().renew().await;
        assert!(!theirs.lost().is_cancelled());
        drop(theirs);
        one.state().bus.announce(Duration::from_secs(60)).await.unwrap();
        let released = async {
            while !matches!(one.own("x").await.unwrap(), Ownership::Mine { .. }) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), released).await.unwrap();
    }
}
