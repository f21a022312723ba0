//! What may happen only once: a key per claim.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use drawbridge_core::state::{Claims, Unavailable};

use crate::hub::Hub;
use crate::request::{Request, millis, read};

/// The claims.
pub(crate) struct RedisClaims(pub(crate) Arc<Hub>);

#[async_trait]
impl Claims for RedisClaims {
    async fn claim(&self, name: &str, ttl: Duration) -> Result<bool, Unavailable> {
        let request = Request::command("SET", &self.0.keys.claim(name));
        let request = request.arg("1").arg("NX").arg("PX").arg(millis(ttl));
        let set: Option<String> = read(self.0.call("claims", request).await?)?;
        Ok(set.is_some())
    }
}
