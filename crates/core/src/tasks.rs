//! Background work that shutdown waits for.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::request;

/// Every task of a gateway is spawned through this handle, so that none outlives it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Cancelled when no new work is wanted, but is still taken.
    leaving: CancellationToken,
    /// Cancelled when the gateway stops taking work: loops end, running calls go on.
    soft: CancellationToken,
    /// Cancelled when the drain deadline has passed: everything is dropped.
    hard: CancellationToken,
}

impl Tasks {
    /// Runs `work` on the current runtime until it ends or the gateway is stopped for good. `name` appears in
    /// traces.
    pub fn spawn<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Work that is handed over while its runtime goes down goes down with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(self.tracker.track_future(self.until_stopped(name, work)));
    }

    /// Combinators and not async blocks or functions: each of those would keep room for the work twice, and there may be
    /// a hundred thousand connections.
    fn until_stopped<F: Future<Output = ()>>(
        &self,
        name: &'static str,
        work: F,
    ) -> impl Future<Output = ()> + use<F> {
        let span = tracing::debug_span!("task", name);
        work.with_cancellation_token_owned(self.hard.clone()).map(drop).instrument(span)
    }

    /// Like [`Tasks::spawn`], for work that is part of answering the current request.
    pub fn spawn_within<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match request::current() {
            Some(id) => self.spawn(name, request::scope(id, work)),
            None => self.spawn(name, work),
        }
    }

    /// Resolves when the gateway begins to drain.
    pub async fn draining(&self) {
        self.soft.cancelled().await;
    }

    /// The token behind [`Tasks::draining`].
    pub fn drain_token(&self) -> &CancellationToken {
        &self.soft
    }

    /// The token that ends everything.
    pub fn stop_token(&self) -> &CancellationToken {
        &self.hard
    }

    /// The tracker, for libraries that spawn by themselves.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Whether the gateway is draining.
    pub fn is_draining(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Says that no new work is wanted any more; what comes is still done.
    pub fn begin_leaving(&self) {
        self.leaving.cancel();
    }

    /// Whether no new work is wanted.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled() || self.is_draining()
    }

    /// Tells every loop to end; running calls go on.
    pub fn begin_drain(&self) {
        self.soft.cancel();
    }

    /// Waits until all tasks have ended, at most `grace`, then drops the rest and waits for them to be gone.
    /// Returns whether all ended by themselves.
    pub async fn finish(&self, grace: Duration) -> bool {
        self.begin_drain();
        self.tracker.close();
        let ended = tokio::time::timeout(grace, self.tracker.wait()).await.is_ok();
        self.hard.cancel();
        if !ended {
            self.tracker.wait().await;
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_keeps_room_for_its_work_once() {
        let work = async {
            let large = [0u8; 4096];
            std::future::pending::<()>().await;
            assert_eq!(large.len(), 4096);
        };
        let size = size_of_val(&work);
        let task = Tasks::default().until_stopped("large", request::scope(request::Id::fresh(), work));
        assert!(size_of_val(&task) < size + 512, "{} for {size}", size_of_val(&task));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_in_time_is_dropped() {
        let tasks = Tasks::default();
        tasks.spawn("forever", std::future::pending());
        assert!(!tasks.finish(Duration::from_secs(1)).await);
        let tasks = Tasks::default();
        let seen = tasks.clone();
        tasks.spawn("polite", async move { seen.draining().await });
        assert!(tasks.finish(Duration::from_secs(1)).await);
    }
}
