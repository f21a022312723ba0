//! How long to wait before Redis is tried again.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);
/// A connection that stood this long was a good one.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Doubling delays from 50 ms to 1 s, each shortened by a random part of up to one half, so that instances that lost
/// Redis together don't come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// Waits for the next delay.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.step().mul_f64(rand::random_range(0.5..=1.0))).await;
    }

    /// Starts over.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// After a connection that stood since `begun`: starts over, without a wait, if it was a good one.
    pub(crate) async fn after(&mut self, begun: Instant) {
        if begun.elapsed() >= STABLE_AFTER {
            self.reset();
        } else {
            self.wait().await;
        }
    }

    fn step(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(LONGEST);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_second() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..7).map(|_| backoff.step().as_millis()).collect();
        assert_eq!(delays, [50, 100, 200, 400, 800, 1000, 1000]);
    }
}
