//! What may happen only once, whichever instance it happens at.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::Unavailable;

/// Gives each name to the first who claims it.
#[async_trait]
pub trait Claims: Send + Sync {
    /// Claims a name for `ttl`. Returns whether it was free.
    async fn claim(&self, name: &str, ttl: Duration) -> Result<bool, Unavailable>;
}

/// Claims in memory.
#[derive(Default)]
pub struct MemoryClaims(Mutex<HashMap<String, Instant>>);

impl MemoryClaims {
    /// Forgets what has expired. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.0.lock().retain(|_, until| *until > now);
    }
}

#[async_trait]
impl Claims for MemoryClaims {
    async fn claim(&self, name: &str, ttl: Duration) -> Result<bool, Unavailable> {
        let now = Instant::now();
        let mut claims = self.0.lock();
        if claims.get(name).is_some_and(|until| *until > now) {
            return Ok(false);
        }
        claims.insert(name.to_owned(), now + ttl);
        Ok(true)
    }
}
