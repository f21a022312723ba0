//! How often something may happen: a key per limited key, with the time at which it would be unused again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use drawbridge_core::state::{Limiter, Quota, Take, Taken, Unavailable, Verdict};
use futures_util::future::try_join_all;

use crate::hub::Hub;
use crate::keys::slot;
use crate::request::{Request, read};
use crate::scripts;

/// Times are sums of these and of the time since 1970, and exact up to 2^53 µs.
const LONGEST: u128 = 1 << 51;

/// The limiter.
pub(crate) struct RedisLimiter(pub(crate) Arc<Hub>);

/// The interval and how far ahead of it a key may be, in microseconds.
fn micros(quota: Quota) -> (u128, u128) {
    let interval = quota.interval.as_nanos().div_ceil(1000).min(LONGEST);
    (interval, interval.saturating_mul(u128::from(quota.burst.max(1) - 1)).min(LONGEST))
}

#[async_trait]
impl Limiter for RedisLimiter {
    async fn take(&self, key: &str, quota: Quota) -> Result<Verdict, Unavailable> {
        if quota.interval.is_zero() {
            return Ok(Verdict::Allowed { remaining: u32::MAX });
        }
        let (interval, tolerance) = micros(quota);
        let request = Request::script(&scripts::LIMIT, &[&self.0.keys.limit(key)]);
        let request = request.arg(interval.to_string()).arg(tolerance.to_string());
        let (allowed, rest): (bool, u64) = read(self.0.call("limiter", request).await?)?;
        Ok(match allowed {
            true => Verdict::Allowed { remaining: u32::try_from(rest).unwrap_or(u32::MAX) },
            false => Verdict::Refused { retry_after: Duration::from_micros(rest) },
        })
    }

    async fn take_groups(&self, groups: &[Vec<Take>]) -> Result<Vec<Taken>, Unavailable> {
        let mut parts: BTreeMap<u16, Part> = BTreeMap::new();
        for (group, takes) in groups.iter().enumerate() {
            for (place, take) in takes.iter().enumerate().filter(|(_, take)| !take.quota.interval.is_zero()) {
                let key = self.0.keys.limit(&take.key);
                // One node has all keys, or each its own slots.
                let slot = if self.0.is_cluster() { slot(key.as_bytes()) } else { 0 };
                parts.entry(slot).or_default().add(group, place, key, take.quota);
            }
        }
        let mut taken = vec![Taken::Allowed; groups.len()];
        let asked = parts.into_values().map(|part| async move {
            let said: Vec<(usize, u64)> = read(self.0.call("limiter", part.request()).await?)?;
            Ok::<_, Unavailable>((part, said))
        });
        for (part, said) in try_join_all(asked).await? {
            for ((group, places), (place, wait)) in part.groups.iter().zip(said) {
                // Places begin with 1; 0 is none.
                if let Some(place) = place.checked_sub(1).and_then(|place| places.get(place)) {
                    taken[*group] = taken[*group].or_later(*place, Duration::from_micros(wait));
                }
            }
        }
        if taken.first().is_some_and(|first| *first != Taken::Allowed) {
            taken.truncate(1);
        }
        Ok(taken)
    }
}

/// What one node is asked.
#[derive(Default)]
struct Part {
    /// The groups, each by the places of those of its keys that are here.
    groups: Vec<(usize, Vec<usize>)>,
    keys: Vec<String>,
    quotas: Vec<Quota>,
}

impl Part {
    fn add(&mut self, group: usize, place: usize, key: String, quota: Quota) {
        if self.groups.is_empty() && group > 0 {
            // The first one stands for what all others depend on, also where none of its keys is here.
            self.groups.push((0, Vec::new()));
        }
        match self.groups.last_mut() {
            Some((last, places)) if *last == group => places.push(place),
            _ => self.groups.push((group, vec![place])),
        }
        self.keys.push(key);
        self.quotas.push(quota);
    }

    fn request(&self) -> Request {
        let keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        let mut request = Request::script(&scripts::LIMIT_GROUPS, &keys).arg(self.groups.len());
        for (_, places) in &self.groups {
            request = request.arg(places.len());
        }
        for quota in &self.quotas {
            let (interval, tolerance) = micros(*quota);
            request = request.arg(interval.to_string()).arg(tolerance.to_string());
        }
        request
    }
}
