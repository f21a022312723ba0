//! What holds while a call runs, and ends with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use drawbridge_wire::Id;

use super::{HttpSession, Opened};
use crate::inbox::Inbox;
use crate::legacy;

/// A call that asks aside may belong to, while it runs.
pub(super) struct Entered {
    session: Arc<HttpSession>,
    id: Id,
    pub(super) inbox: Arc<Inbox>,
}

impl Entered {
    pub(super) fn new(session: &Arc<HttpSession>, id: &Id) -> Self {
        Self { session: session.clone(), id: id.clone(), inbox: session.calls.enter(id) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.session.calls.leave(&self.id);
    }
}

/// Counts a call while it runs.
pub(super) struct RunningGuard(Arc<HttpSession>);

impl RunningGuard {
    pub(super) fn new(session: &Arc<HttpSession>) -> Self {
        session.running.fetch_add(1, Ordering::AcqRel);
        Self(session.clone())
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.interest.notify_waiters();
        }
    }
}

/// Keeps a progress token known while its call runs.
pub(super) struct TokenGuard {
    session: Arc<HttpSession>,
    key: Bytes,
}

impl TokenGuard {
    pub(super) fn new(session: &Arc<HttpSession>, id: &Id, own: Bytes) -> Self {
        session.tokens.lock().insert(id.literal().clone(), own);
        Self { session: session.clone(), key: id.literal().clone() }
    }
}

impl Drop for TokenGuard {
    fn drop(&mut self) {
        self.session.tokens.lock().remove(&self.key);
    }
}

/// Tells the backend when nobody waits for a call any more.
pub(super) struct CancelGuard {
    session: Arc<HttpSession>,
    opened: Arc<Opened>,
    id: Id,
    armed: bool,
}

impl CancelGuard {
    pub(super) fn new(session: &Arc<HttpSession>, opened: &Arc<Opened>, id: &Id) -> Self {
        Self { session: session.clone(), opened: opened.clone(), id: id.clone(), armed: true }
    }

    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if self.armed && !self.opened.gone.is_cancelled() {
            self.session.calls.abandoned.add(0);
            self.session.tell(&self.opened, legacy::cancelled(&self.id).bytes().clone());
        }
    }
}
