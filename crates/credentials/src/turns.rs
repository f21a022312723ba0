//! One at a time for each key, within this process.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard};

/// Who is at it, and who waits; nothing of keys that nobody wants.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<TurnMutex<()>>>>);

/// A place in the queue of one key, until it is dropped.
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    key: String,
    lock: Arc<TurnMutex<()>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Gets in line.
    pub(crate) fn enter(&self, key: String) -> Turn<'_> {
        let lock = self.0.lock().entry(key.clone()).or_default().clone();
        Turn { turns: self, key, lock, guard: None }
    }
}

impl Turn<'_> {
    /// Resolves when it is this one's turn.
    pub(crate) async fn wait(&mut self) {
        self.guard = Some(self.lock.clone().lock_owned().await);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut all = self.turns.0.lock();
        // Those who wait are counted, and nobody can come while the table is locked: the table and this one are left.
        if all.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) <= 2) {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_is_at_it_and_nothing_is_kept_of_those_who_were() {
        let turns = Turns::default();
        let mut first = turns.enter("a".to_owned());
        first.wait().await;
        let (mut second, mut other) = (turns.enter("a".to_owned()), turns.enter("b".to_owned()));
        assert!(tokio::time::timeout(Duration::from_secs(1), second.wait()).await.is_err());
        other.wait().await;
        drop((first, other));
        second.wait().await;
        assert_eq!(turns.0.lock().len(), 1);
        drop(second);
        assert!(turns.0.lock().is_empty());
    }
}
