//! How often something may happen, over all instances: the generic cell rate algorithm.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Unavailable;

/// How often: `burst` at once, and one more each `interval`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The time in which one more is allowed.
    pub interval: Duration,
    /// How many may come at once; at least 1.
    pub burst: u32,
}

/// What a limiter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may happen; so many more may at once.
    Allowed {
        /// How many more.
        remaining: u32,
    },
    /// It may not happen yet.
    Refused {
        /// After this long it may.
        retry_after: Duration,
    },
}

/// Counts what happens under a key.
#[async_trait]
pub trait Limiter: Send + Sync {
    /// Whether one more may happen under `key`; counts it if so.
    async fn take(&self, key: &str, quota: Quota) -> Result<Verdict, Unavailable>;
}

/// A limiter in memory.
#[derive(Default)]
pub struct MemoryLimiter(Mutex<HashMap<String, Instant>>);

impl MemoryLimiter {
    /// Forgets keys that are as if they had never been used. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.0.lock().retain(|_, next| *next > now);
    }
}

#[async_trait]
impl Limiter for MemoryLimiter {
    async fn take(&self, key: &str, quota: Quota) -> Result<Verdict, Unavailable> {
        let now = Instant::now();
        let mut keys = self.0.lock();
        // The theoretical arrival time: when all that was allowed would have come evenly.
        let next = keys.get(key).copied().filter(|next| *next > now).unwrap_or(now);
        let ahead = next - now;
        let tolerance = quota.interval.saturating_mul(quota.burst.max(1) - 1);
        if ahead > tolerance {
            return Ok(Verdict::Refused { retry_after: ahead - tolerance });
        }
        keys.insert(key.to_owned(), next + quota.interval);
        let left = (tolerance - ahead).as_nanos() / quota.interval.as_nanos().max(1);
        Ok(Verdict::Allowed { remaining: u32::try_from(left).unwrap_or(u32::MAX) })
    }
}

/// What of an address one user has: all of an IPv4 address, the network (`/64`) of an IPv6 one. Limits by address
/// count by it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let mut segments = v6.segments();
            segments[4..].fill(0);
            IpAddr::from(segments)
        }
        v4 => v4,
    }
}

/// So many takes after another, what is as if it had never been used is forgotten.
const SWEEP_AFTER: u32 = 1024;

/// A limiter in shared state, and one of this instance alone while that is away.
pub struct WithFallback {
    shared: Arc<dyn Limiter>,
    local: MemoryLimiter,
    taken: AtomicU32,
}

impl std::fmt::Debug for WithFallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithFallback").finish_non_exhaustive()
    }
}

impl WithFallback {
    /// Asks `shared` as long as that answers.
    pub fn new(shared: Arc<dyn Limiter>) -> Self {
        Self { shared, local: MemoryLimiter::default(), taken: AtomicU32::new(0) }
    }

    /// Whether one more may happen under `key`; counts it if so.
    pub async fn take(&self, key: &str, quota: Quota) -> Verdict {
        if let Ok(verdict) = self.shared.take(key, quota).await {
            return verdict;
        }
        if self.taken.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_AFTER) {
            self.local.sweep();
        }
        self.local.take(key, quota).await.unwrap_or(Verdict::Allowed { remaining: 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, proptest};
    use proptest::prop_assert_eq;

    use super::*;

    /// The same rule as a bucket that is filled as time goes by: in nanoseconds, of which each take costs an interval.
    struct Bucket {
        level: u128,
        size: u128,
        interval: u128,
    }

    impl Bucket {
        fn new(quota: Quota) -> Self {
            let interval = quota.interval.as_nanos();
            let size = interval * u128::from(quota.burst.max(1));
            Self { level: size, size, interval }
        }

        fn wait(&mut self, time: Duration) {
            self.level = (self.level + time.as_nanos()).min(self.size);
        }

        fn take(&mut self) -> Verdict {
            match self.level.checked_sub(self.interval) {
                Some(level) => {
                    self.level = level;
                    Verdict::Allowed { remaining: u32::try_from(level / self.interval).unwrap() }
                }
                None => {
                    let missing = u64::try_from(self.interval - self.level).unwrap();
                    Verdict::Refused { retry_after: Duration::from_nanos(missing) }
                }
            }
        }
    }

    #[test]
    fn a_user_with_many_addresses_of_one_network_is_one() {
        let of = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
    }

    proptest! {
        #[test]
        fn it_does_what_a_bucket_does(
            interval in 1_u64..5000,
            burst in 0_u32..6,
            steps in prop::collection::vec((0_u64..8000, 0_usize..3), 1..60),
        ) {
            let quota = Quota { interval: Duration::from_millis(interval), burst };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let limiter = MemoryLimiter::default();
                let mut buckets = [(); 3].map(|()| Bucket::new(quota));
                for (wait, key) in steps {
                    let wait = Duration::from_millis(wait);
                    tokio::time::advance(wait).await;
                    buckets.iter_mut().for_each(|bucket| bucket.wait(wait));
                    limiter.sweep();
                    let verdict = limiter.take(&key.to_string(), quota).await.unwrap();
                    prop_assert_eq!(verdict, buckets[key].take());
                }
                Ok(())
            })?;
        }
    }
}
