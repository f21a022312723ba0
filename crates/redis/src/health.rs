//! Which connections stand.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::watch;

#[derive(Default)]
struct Links {
    /// Why each connection is missing, or `None` for one that stands.
    missing: BTreeMap<String, Option<String>>,
    last_error: Option<String>,
}

/// Knows of every connection that should be there.
pub(crate) struct Health {
    links: Mutex<Links>,
    up: watch::Sender<bool>,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self { links: Mutex::default(), up: watch::channel(false).0 }
    }

    /// A connection stands.
    pub(crate) fn up(&self, name: &str) {
        if self.set(name, Some(None)) {
            tracing::info!(connection = name, "connected to Redis");
        }
    }

    /// A connection can't be had, or was lost.
    pub(crate) fn down(&self, name: &str, reason: &str) {
        self.failed(reason);
        if self.set(name, Some(Some(reason.to_owned()))) {
            tracing::warn!(connection = name, reason, "no connection to Redis");
        }
    }

    /// A connection is not needed any more.
    pub(crate) fn forget(&self, name: &str) {
        self.set(name, None);
    }

    /// Something went wrong that is not the end of a connection.
    pub(crate) fn failed(&self, reason: &str) {
        self.links.lock().last_error = Some(reason.to_owned());
    }

    /// Returns whether this changes anything about a connection.
    fn set(&self, name: &str, missing: Option<Option<String>>) -> bool {
        let mut links = self.links.lock();
        let is_missing = missing.as_ref().is_some_and(Option::is_some);
        let old = match missing {
            Some(missing) => links.missing.insert(name.to_owned(), missing),
            None => links.missing.remove(name),
        };
        let up = !links.missing.is_empty() && links.missing.values().all(Option::is_none);
        self.up.send_if_modified(|was| std::mem::replace(was, up) != up);
        old.is_none_or(|old| old.is_some() != is_missing)
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
