//! Events from elsewhere that a call emits beside its own.

use std::collections::VecDeque;

use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Emitter, Event};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// What waits to be emitted by one call.
#[derive(Default)]
pub(crate) struct Inbox {
    events: Mutex<VecDeque<Event>>,
    bell: Notify,
}

/// What comes on top of this many that wait is dropped: its reader has stopped reading.
const MAX_WAITING: usize = 256;

impl Inbox {
    pub(crate) fn put(&self, event: Event) {
        let mut events = self.events.lock();
        if events.len() < MAX_WAITING {
            events.push_back(event);
            self.bell.notify_one();
        }
    }

    /// Emits what is in the inbox while `work` runs.
    pub(crate) async fn beside<T>(&self, emit: &Emitter, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            loop {
                let next = self.events.lock().pop_front();
                let Some(event) = next else { break };
                emit.emit(event).await;
            }
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.bell.notified() => {}
            }
        }
    }
}

impl Unsolicited for Inbox {
    fn deliver(&self, event: Event) {
        self.put(event);
    }
}
