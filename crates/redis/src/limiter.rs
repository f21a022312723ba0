//! How often something may happen: a key per limited key, with the time at which it would be unused again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use drawbridge_core::state::{Limiter, Quota, Unavailable, Verdict};

use crate::hub::Hub;
use crate::request::{Request, read};
use crate::scripts;

/// Times are sums of these and of the time since 1970, and exact up to 2^53 µs.
const LONGEST: u128 = 1 << 51;

/// The limiter.
pub(crate) struct RedisLimiter(pub(crate) Arc<Hub>);

#[async_trait]
impl Limiter for RedisLimiter {
    async fn take(&self, key: &str, quota: Quota) -> Result<Verdict, Unavailable> {
        let Quota { interval, burst } = quota;
        if interval.is_zero() {
            return Ok(Verdict::Allowed { remaining: u32::MAX });
        }
        let interval = interval.as_nanos().div_ceil(1000).min(LONGEST);
        let tolerance = interval.saturating_mul(u128::from(burst.max(1) - 1)).min(LONGEST);
        let request = Request::script(&scripts::LIMIT, &[&self.0.keys.limit(key)]);
        let request = request.arg(interval.to_string()).arg(tolerance.to_string());
        let (allowed, rest): (bool, u64) = read(self.0.call("limiter", request).await?)?;
        Ok(match allowed {
            true => Verdict::Allowed { remaining: u32::try_from(rest).unwrap_or(u32::MAX) },
            false => Verdict::Refused { retry_after: Duration::from_micros(rest) },
        })
    }
}
