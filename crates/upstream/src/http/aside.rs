//! What a backend sends on its stream of unasked messages because of a call.
//!
//! Nothing on that stream names a call. A backend asks because it was called, so an ask belongs to the call that runs,
//! if there is one of which that can be said.

use std::collections::HashMap;
use std::sync::Arc;

use drawbridge_core::call::{AskKey, Event, Round};
use drawbridge_wire::Id;
use parking_lot::Mutex;

use crate::abandoned::Abandoned;
use crate::inbox::Inbox;

struct Entry {
    inbox: Arc<Inbox>,
    /// What was asked in its name and not answered yet.
    asked: Vec<AskKey>,
}

/// The calls that run in a session and may be asked because of.
#[derive(Default)]
pub(super) struct RunningCalls {
    calls: Mutex<HashMap<Id, Entry>>,
    pub(super) abandoned: Abandoned,
}

impl RunningCalls {
    pub(super) fn enter(&self, id: &Id) -> Arc<Inbox> {
        let inbox = Arc::new(Inbox::default());
        self.calls.lock().insert(id.clone(), Entry { inbox: inbox.clone(), asked: Vec::new() });
        inbox
    }

    pub(super) fn leave(&self, id: &Id) {
        self.calls.lock().remove(id);
    }

    /// The backend has the answer to an ask.
    pub(super) fn answered(&self, key: AskKey) {
        for entry in self.calls.lock().values_mut() {
            entry.asked.retain(|asked| *asked != key);
        }
    }

    /// Gives an ask to the call that it must be from: the only one, or the only one that waits for no answer. Returns it
    /// if there is none. In a session that several principals share it may as well be from one that was given up.
    pub(super) fn ask(&self, round: Box<Round>, key: AskKey, is_shared: bool) -> Option<Box<Round>> {
        if is_shared && self.abandoned.are_there() {
            return Some(round);
        }
        let mut calls = self.calls.lock();
        let only = calls.len() == 1;
        let mut free = calls.values_mut().filter(|entry| only || entry.asked.is_empty());
        match (free.next(), free.next()) {
            (Some(entry), None) => {
                entry.asked.push(key);
                entry.inbox.put(Event::Asks(round));
                None
            }
            _ => Some(round),
        }
    }

    /// Gives a withdrawal to the call that was asked for; false if there is none.
    pub(super) fn withdraw(&self, key: AskKey) -> bool {
        let mut calls = self.calls.lock();
        match calls.values_mut().find(|entry| entry.asked.contains(&key)) {
            Some(entry) => {
                entry.asked.retain(|asked| *asked != key);
                entry.inbox.put(Event::Withdraw(key));
                true
            }
            None => false,
        }
    }
}
