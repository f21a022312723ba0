//! Who owns what: a key per lease, with its owner and token.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use drawbridge_core::state::{InstanceId, Lease, Leases, Unavailable};

use crate::hub::Hub;
use crate::request::{Request, millis, read};
use crate::scripts;

const PORT: &str = "leases";
/// A token is remembered for this long after its lease was last given or renewed.
const TOKEN_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// The leases.
pub(crate) struct RedisLeases(pub(crate) Arc<Hub>);

impl RedisLeases {
    async fn held(&self, request: Request) -> Result<Option<Lease>, Unavailable> {
        let text: Option<String> = read(self.0.call(PORT, request).await?)?;
        text.map(|text| parse(&text)).transpose()
    }

    async fn given(&self, request: Request) -> Result<Lease, Unavailable> {
        self.held(request).await?.ok_or_else(|| Unavailable("Redis gave no lease".to_owned()))
    }
}

#[async_trait]
impl Leases for RedisLeases {
    async fn acquire(&self, name: &str, instance: &InstanceId, ttl: Duration) -> Result<Lease, Unavailable> {
        let (lease, token) = (self.0.keys.lease(name), self.0.keys.lease_token(name));
        let request = Request::script(&scripts::ACQUIRE, &[&lease, &token]);
        self.given(request.arg(instance.as_str()).arg(millis(ttl)).arg(token_ttl(ttl)).again()).await
    }

    async fn take_over(
        &self,
        name: &str,
        lost: &Lease,
        instance: &InstanceId,
        ttl: Duration,
    ) -> Result<Lease, Unavailable> {
        let (lease, token) = (self.0.keys.lease(name), self.0.keys.lease_token(name));
        let request = Request::script(&scripts::TAKE_OVER, &[&lease, &token]);
        let request = request.arg(instance.as_str()).arg(millis(ttl)).arg(token_ttl(ttl));
        self.given(request.arg(text(lost)).again()).await
    }

    async fn renew(&self, name: &str, lease: &Lease, ttl: Duration) -> Result<bool, Unavailable> {
        let (key, token) = (self.0.keys.lease(name), self.0.keys.lease_token(name));
        let request = Request::script(&scripts::RENEW, &[&key, &token]);
        let request = request.arg(text(lease)).arg(millis(ttl)).arg(token_ttl(ttl)).again();
        read(self.0.call(PORT, request).await?)
    }

    async fn release(&self, name: &str, lease: &Lease) -> Result<(), Unavailable> {
        let request = Request::script(&scripts::RELEASE, &[&self.0.keys.lease(name)]);
        self.0.call(PORT, request.arg(text(lease)).again()).await.map(drop)
    }

    async fn holder(&self, name: &str) -> Result<Option<Lease>, Unavailable> {
        self.held(Request::command("GET", &self.0.keys.lease(name)).again()).await
    }
}

fn token_ttl(ttl: Duration) -> u64 {
    millis(TOKEN_TTL.saturating_add(ttl))
}

fn text(lease: &Lease) -> String {
    format!("{} {}", lease.owner, lease.token)
}

fn parse(text: &str) -> Result<Lease, Unavailable> {
    let lease = text.split_once(' ').and_then(|(owner, token)| {
        Some(Lease { owner: InstanceId::parse(owner)?, token: token.parse().ok()? })
    });
    lease.ok_or_else(|| Unavailable("a lease in Redis is none of ours".to_owned()))
}
