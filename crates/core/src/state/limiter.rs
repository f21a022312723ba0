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

/// One that is to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    /// Under which key.
    pub key: String,
    /// How often it may happen there.
    pub quota: Quota,
}

/// What a limiter says of several that are to be taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// All of them may happen.
    Allowed,
    /// One of them may not happen yet.
    Refused {
        /// Which one: of several the one that takes longest.
        place: usize,
        /// After this long it may.
        retry_after: Duration,
    },
}

/// Counts what happens under a key.
#[async_trait]
pub trait Limiter: Send + Sync {
    /// Whether one more may happen under `key`; counts it if so.
    async fn take(&self, key: &str, quota: Quota) -> Result<Verdict, Unavailable>;

    /// Whether one more may happen under all keys of a group; counts it under each of them if so, and under none if not.
    /// So for each group, in their order. If the first one is refused, that is all that is said, and no other is counted.
    ///
    /// It is one question, however many there are. Where keys are on several nodes of a cluster, what another node
    /// refuses may be counted all the same.
    async fn take_groups(&self, groups: &[Vec<Take>]) -> Result<Vec<Taken>, Unavailable>;
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

type Keys = HashMap<String, Instant>;

/// What is said of one more under `key`, and when it would be unused again after that: the theoretical arrival time,
/// when all that was allowed would have come evenly.
fn look(keys: &Keys, key: &str, quota: Quota, now: Instant) -> (Verdict, Instant) {
    let next = keys.get(key).copied().filter(|next| *next > now).unwrap_or(now);
    let ahead = next - now;
    let tolerance = quota.interval.saturating_mul(quota.burst.max(1) - 1);
    if ahead > tolerance {
        return (Verdict::Refused { retry_after: ahead - tolerance }, next);
    }
    let left = (tolerance - ahead).as_nanos() / quota.interval.as_nanos().max(1);
    (Verdict::Allowed { remaining: u32::try_from(left).unwrap_or(u32::MAX) }, next + quota.interval)
}

#[async_trait]
impl Limiter for MemoryLimiter {
    async fn take(&self, key: &str, quota: Quota) -> Result<Verdict, Unavailable> {
        let mut keys = self.0.lock();
        let (verdict, next) = look(&keys, key, quota, Instant::now());
        if let Verdict::Allowed { .. } = verdict {
            keys.insert(key.to_owned(), next);
        }
        Ok(verdict)
    }

    async fn take_groups(&self, groups: &[Vec<Take>]) -> Result<Vec<Taken>, Unavailable> {
        let now = Instant::now();
        let mut keys = self.0.lock();
        let mut all = Vec::with_capacity(groups.len());
        for group in groups {
            let mut taken = Taken::Allowed;
            let mut nexts = Vec::with_capacity(group.len());
            for (place, take) in group.iter().enumerate() {
                let (verdict, next) = look(&keys, &take.key, take.quota, now);
                nexts.push(next);
                if let Verdict::Refused { retry_after } = verdict {
                    taken = taken.or_later(place, retry_after);
                }
            }
            if taken == Taken::Allowed {
                group.iter().zip(nexts).for_each(|(take, next)| {
                    keys.insert(take.key.clone(), next);
                });
            }
            all.push(taken);
            if all.len() == 1 && taken != Taken::Allowed {
                break;
            }
        }
        Ok(all)
    }
}

impl Taken {
    /// The same, where another one may happen after `retry_after` only.
    #[must_use]
    pub fn or_later(self, place: usize, retry_after: Duration) -> Self {
        match self {
            Self::Refused { retry_after: other, .. } if other >= retry_after => self,
            _ => Self::Refused { place, retry_after },
        }
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
        self.sweep();
        self.local.take(key, quota).await.unwrap_or(Verdict::Allowed { remaining: 0 })
    }

    /// The same for [groups](Limiter::take_groups); and whether that is said by this instance alone.
    pub async fn take_groups(&self, groups: &[Vec<Take>]) -> (Vec<Taken>, bool) {
        if let Ok(taken) = self.shared.take_groups(groups).await {
            return (taken, false);
        }
        self.sweep();
        (self.local.take_groups(groups).await.unwrap_or_default(), true)
    }

    fn sweep(&self) {
        if self.taken.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_AFTER) {
            self.local.sweep();
        }
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

    #[tokio::test]
    async fn a_group_is_counted_as_a_whole_or_not_at_all() {
        let limiter = MemoryLimiter::default();
        let hour = Duration::from_secs(3600);
        let take = |key: &str, burst| Take { key: key.to_owned(), quota: Quota { interval: hour, burst } };
        let groups = [vec![take("a", 3), take("b", 2)], vec![take("c", 1)], vec![take("d", 9), take("c", 1)]];
        let taken = limiter.take_groups(&groups).await.unwrap();
        assert_eq!(&taken[..2], [Taken::Allowed; 2]);
        assert!(matches!(taken[2], Taken::Refused { place: 1, .. }));
        assert_eq!(limiter.take_groups(&groups[..1]).await.unwrap(), [Taken::Allowed]);
        // The first is refused now, and nothing else is counted.
        let taken = limiter.take_groups(&[groups[0].clone(), vec![take("e", 1)]]).await.unwrap();
        assert!(matches!(taken[..], [Taken::Refused { place: 1, .. }]));
        for (key, burst) in [("a", 3), ("d", 1), ("e", 1)] {
            let quota = Quota { interval: hour, burst };
            assert_eq!(limiter.take(key, quota).await.unwrap(), Verdict::Allowed { remaining: 0 }, "{key}");
        }
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
