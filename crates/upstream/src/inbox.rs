//! Events from elsewhere that a call emits beside its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Emitter, Event};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::changes::Filter;

/// What waits to be emitted by one call.
#[derive(Default)]
pub(crate) struct Inbox {
    events: Mutex<VecDeque<Event>>,
    bell: Notify,
    /// What the reader listens to, if it does.
    listens_to: OnceLock<Arc<Filter>>,
    /// Something changed while it was being told that all may have.
    changed: AtomicBool,
}

/// What comes on top of this many that wait is dropped: its reader has stopped reading. One that listens is then told that
/// all may have changed.
const MAX_WAITING: usize = 256;

impl Inbox {
    /// From now on it is that of a reader which listens to this.
    pub(crate) fn stands_for(&self, filter: Arc<Filter>) {
        // It is said once.
        let _ = self.listens_to.set(filter);
    }

    /// Puts an event in; returns whether there was room.
    pub(crate) fn put(&self, event: Event) -> bool {
        let mut events = self.events.lock();
        let has_room = events.len() < MAX_WAITING;
        if has_room {
            events.push_back(event);
        } else if self.listens_to.get().is_some() {
            // It is written out once the reader has come so far.
            self.changed.store(true, Ordering::Release);
        }
        self.bell.notify_one();
        has_room
    }

    pub(crate) fn take(&self) -> Option<Event> {
        let mut events = self.events.lock();
        if events.is_empty()
            && let Some(filter) = self.listens_to.get()
            && self.changed.swap(false, Ordering::AcqRel)
        {
            events.extend(filter.everything().into_iter().map(Event::Notify));
        }
        events.pop_front()
    }

    /// Resolves when something was put in since it last did.
    pub(crate) async fn filled(&self) {
        self.bell.notified().await;
    }

    /// Emits what is in the inbox while `work` runs, and what is still there when it has ended.
    pub(crate) async fn beside<T>(&self, emit: &Emitter, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            self.empty(emit).await;
            tokio::select! {
                biased;
                done = &mut work => {
                    self.empty(emit).await;
                    return done;
                }
                () = self.filled() => {}
            }
        }
    }

    async fn empty(&self, emit: &Emitter) {
        while let Some(event) = self.take() {
            emit.emit(event).await;
        }
    }
}

impl Unsolicited for Inbox {
    fn deliver(&self, event: Event) {
        self.put(event);
    }
}

#[cfg(test)]
mod tests {
    use drawbridge_core::call::generate;
    use drawbridge_wire::{Message, method};
    use futures_util::StreamExt as _;

    use super::*;

    fn updated(number: usize) -> Event {
        let params = format!(r#"{{"uri":"a://{number}"}}"#);
        Event::Notify(Message::notification(method::RESOURCES_UPDATED, params.as_bytes()))
    }

    /// What a reader that stood still for `count` updates gets.
    async fn read_after(count: usize, inbox: Inbox) -> Vec<String> {
        let fits = (0..count).filter(|number| inbox.put(updated(*number))).count();
        assert_eq!(fits, count.min(MAX_WAITING));
        let events = generate(|emit| async move {
            inbox.beside(&emit, std::future::ready(())).await;
            Event::Fail(drawbridge_core::Fault::Draining)
        });
        let uri = |event| async move {
            let Event::Notify(message) = event else { return None };
            let uri = message.text(drawbridge_wire::message::Field::Uri)?.into_owned();
            Some(uri)
        };
        events.filter_map(uri).collect().await
    }

    #[tokio::test]
    async fn a_listener_that_does_not_read_is_told_that_all_may_have_changed_once_it_does() {
        let fits = read_after(MAX_WAITING, Inbox::default()).await;
        assert_eq!((fits.len(), fits[0].as_str()), (MAX_WAITING, "a://0"));
        let inbox = Inbox::default();
        inbox.stands_for(Arc::new(Filter::read(br#"{"resourceSubscriptions":["a://","b://"]}"#)));
        let told = read_after(MAX_WAITING + 100, inbox).await;
        assert_eq!(told[MAX_WAITING..], ["a://", "b://"], "once for all that found no room");
    }
}
