//! How often something may happen, over all instances: the generic cell rate algorithm.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;

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
        let tolerance = quota.interval * (quota.burst.max(1) - 1);
        if ahead > tolerance {
            return Ok(Verdict::Refused { retry_after: ahead - tolerance });
        }
        keys.insert(key.to_owned(), next + quota.interval);
        let left = (tolerance - ahead).as_nanos() / quota.interval.as_nanos().max(1);
        Ok(Verdict::Allowed { remaining: u32::try_from(left).unwrap_or(u32::MAX) })
    }
}
