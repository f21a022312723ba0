//! Credentials that are none, by the address that they come from. The hosts of one vendor share a few addresses, so
//! that an address which has failed too often is not shut out: only what fails is answered differently, and what is
//! not known yet is looked up a few at a time.

use std::net::IpAddr;
use std::time::Duration;

use drawbridge_core::state::limiter::network;
use drawbridge_core::state::{Quota, Verdict, WithFallback};
use moka::future::Cache;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::Refused;

/// Invalid credentials that an address may send in a minute.
const PER_MINUTE: u32 = 300;
/// Look-ups at once for all addresses that have failed too often.
const LOOKUPS: usize = 4;
/// A look-up waits for its turn this long.
const TURN: Duration = Duration::from_secs(1);
/// Addresses that are remembered to have failed too often.
const MAX_ADDRESSES: u64 = 10_000;

/// Counts what fails.
pub(super) struct Failures {
    limiter: WithFallback,
    /// Until when an address has failed too often.
    over: Cache<IpAddr, Instant>,
    lookups: Semaphore,
}

impl Failures {
    pub(super) fn new(limiter: WithFallback) -> Self {
        Self {
            limiter,
            over: Cache::builder().max_capacity(MAX_ADDRESSES).time_to_live(Duration::from_secs(60)).build(),
            lookups: Semaphore::new(LOOKUPS),
        }
    }

    /// How long it takes until `address` may fail again.
    async fn over(&self, address: Option<IpAddr>) -> Option<Duration> {
        let until = self.over.get(&network(address?)).await?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Waits until a credential from `address` may be looked up, which is at once unless it has failed too often.
    pub(super) async fn turn(&self, address: Option<IpAddr>) -> Result<Option<SemaphorePermit<'_>>, Refused> {
        if self.over(address).await.is_none() {
            return Ok(None);
        }
        let turn = tokio::time::timeout(TURN, self.lookups.acquire()).await;
        turn.ok().and_then(Result::ok).map(Some).ok_or(Refused::TooOften(TURN))
    }

    /// Counts one credential from `address` that was refused because of `why`, and says how to refuse it.
    pub(super) async fn count(&self, address: Option<IpAddr>, why: &'static str) -> Refused {
        let Some(address) = address.map(network) else { return Refused::Invalid(why) };
        if let Some(left) = self.over(Some(address)).await {
            return Refused::TooOften(left);
        }
        let quota = Quota { interval: Duration::from_secs(60) / PER_MINUTE, burst: PER_MINUTE };
        match self.limiter.take(&format!("credential:{address}"), quota).await {
            Verdict::Allowed { .. } => Refused::Invalid(why),
            Verdict::Refused { retry_after } => {
                // Whole seconds are what a client is told.
                let wait = retry_after.max(Duration::from_secs(1));
                if self.over.get(&address).await.is_none() {
                    tracing::warn!(
                        client.address = %address,
                        "too many invalid credentials from one address: they are answered with 429 for now"
                    );
                }
                self.over.insert(address, Instant::now() + wait).await;
                Refused::TooOften(wait)
            }
        }
    }
}
