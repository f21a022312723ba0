//! Calls that were given up, and that a backend may still ask because of.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a backend may take to notice that a call is cancelled.
const NOTICE_TIME: Duration = Duration::from_secs(10);
/// So many are remembered; after that the oldest goes.
const MAX: usize = 256;

/// Calls of a conversation that were cancelled and have no answer. While there are any, an ask that names no call may be
/// theirs, so nobody can say that it is from the one that runs: where several principals share a session, another would
/// be asked.
#[derive(Debug, Default)]
pub(crate) struct Abandoned(Mutex<Vec<(u64, Instant)>>);

impl Abandoned {
    /// Notes that call number `number` was given up.
    pub(crate) fn add(&self, number: u64) {
        let mut calls = self.0.lock();
        if calls.len() >= MAX {
            calls.remove(0);
        }
        calls.push((number, Instant::now()));
    }

    /// It has been answered all the same.
    pub(crate) fn answered(&self, number: u64) {
        self.0.lock().retain(|(given_up, _)| *given_up != number);
    }

    /// Whether there are any of late.
    pub(crate) fn are_there(&self) -> bool {
        let mut calls = self.0.lock();
        calls.retain(|(_, at)| at.elapsed() < NOTICE_TIME);
        !calls.is_empty()
    }
}
