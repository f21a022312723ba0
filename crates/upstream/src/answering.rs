//! Whether a backend waits for its client: then it is not the backend that is silent.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The asks of one call that wait for their answers.
#[derive(Debug)]
pub(crate) struct Answering(Mutex<(usize, Instant)>);

impl Default for Answering {
    fn default() -> Self {
        Self(Mutex::new((0, Instant::now())))
    }
}

impl Answering {
    /// The backend has asked.
    pub(crate) fn asked(&self) {
        self.0.lock().0 += 1;
    }

    /// An answer is on its way to the backend.
    pub(crate) fn answered(&self) {
        let mut state = self.0.lock();
        *state = (state.0.saturating_sub(1), Instant::now());
    }

    /// Whether the backend has waited for its client within the time `limit`, in which nothing came from it.
    pub(crate) fn excuses(&self, limit: Duration) -> bool {
        let (open, answered) = *self.0.lock();
        open > 0 || answered.elapsed() < limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_answer_on() {
        let limit = Duration::from_secs(10);
        let answering = Answering::default();
        tokio::time::advance(limit).await;
        assert!(!answering.excuses(limit));
        answering.asked();
        answering.asked();
        tokio::time::advance(limit).await;
        answering.answered();
        assert!(answering.excuses(limit));
        tokio::time::advance(limit).await;
        assert!(answering.excuses(limit), "one is not answered yet");
        answering.answered();
        assert!(answering.excuses(limit));
        tokio::time::advance(limit).await;
        assert!(!answering.excuses(limit));
    }
}
