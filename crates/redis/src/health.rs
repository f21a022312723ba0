//! Which connections stand.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// How it is with one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It is being made for the first time.
    Expected,
    Up,
    Down,
}

#[derive(Default)]
struct Links {
    standing: BTreeMap<String, Standing>,
    last_error: Option<String>,
}

/// Knows of every connection that should be there.
pub(crate) struct Health {
    links: Mutex<Links>,
    up: watch::Sender<bool>,
    /// They are closed by us.
    is_closed: AtomicBool,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self { links: Mutex::default(), up: watch::channel(false).0, is_closed: AtomicBool::new(false) }
    }

    /// A connection should be there.
    pub(crate) fn expect(&self, name: &str) {
        self.set(name, Some(Standing::Expected));
    }

    /// A connection stands.
    pub(crate) fn up(&self, name: &str) {
        if self.set(name, Some(Standing::Up)) {
            tracing::info!(connection = name, "connected to Redis");
        }
    }

    /// A connection can't be had, or was lost.
    pub(crate) fn down(&self, name: &str, reason: &str) {
        self.failed(reason);
        if self.set(name, Some(Standing::Down)) && !self.is_closed.load(Ordering::Acquire) {
            tracing::warn!(connection = name, reason, "no connection to Redis");
        }
    }

    /// All connections are closed from now on, which is no news.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// A connection is not needed any more.
    pub(crate) fn forget(&self, name: &str) {
        self.set(name, None);
    }

    /// Something went wrong that is not the end of a connection.
    pub(crate) fn failed(&self, reason: &str) {
        self.links.lock().last_error = Some(reason.to_owned());
    }

    /// Returns whether this is something new.
    fn set(&self, name: &str, standing: Option<Standing>) -> bool {
        let mut links = self.links.lock();
        let old = match standing {
            Some(standing) => links.standing.insert(name.to_owned(), standing),
            None => links.standing.remove(name),
        };
        let up = !links.standing.is_empty() && links.standing.values().all(|one| *one == Standing::Up);
        self.up.send_if_modified(|was| std::mem::replace(was, up) != up);
        old != standing
    }

    /// Whether all of them stand.
    pub(crate) fn is_up(&self) -> bool {
        *self.up.borrow()
    }

    /// Resolves when all of them stand.
    pub(crate) async fn wait_until_up(&self) {
        // The sender is in `self`.
        let _ = self.up.subscribe().wait_for(|up| *up).await;
    }

    /// What went wrong last.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.links.lock().last_error.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_up_when_every_connection_stands() {
        let health = Health::new();
        assert!(!health.is_up());
        health.expect("a");
        health.expect("b");
        health.up("a");
        assert!(!health.is_up());
        health.up("b");
        assert!(health.is_up() && health.last_error().is_none());
        health.down("a", "reason");
        assert!(!health.is_up());
        health.forget("a");
        assert!(health.is_up());
        assert_eq!(health.last_error().unwrap(), "reason");
    }
}
