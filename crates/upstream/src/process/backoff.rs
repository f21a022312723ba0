//! How long to wait before a server that ended is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// A run of at least this long counts as a success.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Doubling delays from 100 ms to 30 s, which start over after a run of 30 s.
///
/// Each delay is shortened by a random part of up to one half, so that servers that fell together (or the same
/// one on many instances) don't come back together.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The delay before the next start, after a run that lasted `uptime` (zero for a start that failed).
    pub fn after_run(&mut self, uptime: Duration) -> Duration {
        self.step(uptime).mul_f64(rand::random_range(0.5..=1.0))
    }

    /// The delay without its random part.
    fn step(&mut self, uptime: Duration) -> Duration {
        if uptime >= STABLE_AFTER {
            self.next = FIRST;
        }
        let delay = self.next;
        self.next = (delay * 2).min(LONGEST);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..11).map(|_| backoff.step(Duration::from_secs(1)).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
    }

    #[test]
    fn a_stable_run_starts_over_and_a_shorter_one_does_not() {
        let mut backoff = Backoff::default();
        backoff.step(Duration::ZERO);
        assert_eq!(backoff.step(STABLE_AFTER.saturating_sub(Duration::from_nanos(1))), FIRST * 2);
        assert_eq!(backoff.step(STABLE_AFTER), FIRST);
        assert_eq!(backoff.step(Duration::ZERO), FIRST * 2);
    }

    #[test]
    fn jitter_takes_at_most_half() {
        for _ in 0..1000 {
            let delay = Backoff::default().after_run(Duration::ZERO);
            assert!(delay >= FIRST / 2 && delay <= FIRST, "{delay:?}");
        }
    }
}
