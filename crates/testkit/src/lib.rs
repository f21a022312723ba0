//! Parts for tests that run the real program: a gateway as a child process, the demo backend, Redis and PostgreSQL
//! servers, a proxy that does what networks do, and a raw client of both eras that sees every byte.
//!
//! For development only. Must not know: what is inside the gateway.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that can't go on fails here, and says why"
)]

pub mod backend;
pub mod balancer;
pub mod client;
pub mod fault_proxy;
pub mod fleet;
pub mod gateway;
pub mod postgres;
pub mod provider;
pub mod redis;
pub mod secrets;

use std::time::{Duration, Instant};

/// How long tests wait for what has to happen soon.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds; fails after `deadline`.
///
/// # Panics
///
/// If it does not hold in time.
pub async fn eventually(deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < deadline, "this did not come true within {deadline:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The result of `work`, which must not take longer than [`PATIENCE`].
///
/// # Panics
///
/// If it takes longer.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: nothing within {PATIENCE:?}"),
    }
}
