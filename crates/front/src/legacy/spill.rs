//! Events of a call's stream on their way to where other instances find them, should this one be lost.
//!
//! Most calls are short, and their events never leave this instance. Those are copied which a client may have to fetch
//! elsewhere: it was lost, it was asked something, or the call takes long.

use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::Tasks;
use drawbridge_core::event_log::StreamKey;
use drawbridge_core::state::SharedState;
use tokio::sync::mpsc;

/// A call that takes longer than this has its events copied.
pub(super) const AFTER: Duration = Duration::from_secs(1);
/// Events on their way. If there are more, the copy ends, and a client that comes for it hears that it is not complete.
const MAX_QUEUED: usize = 1024;
const MAX_BATCH: usize = 64;
/// How long shared state may be away before the copy is given up.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_secs(1);

enum Word {
    Event(u64, Bytes),
    Finished,
}

/// The way of one stream's events. Dropping it ends the copy.
pub(super) struct Spill(mpsc::Sender<Word>);

impl Spill {
    /// Copies `before` and all that follows.
    pub(super) fn start(
        state: SharedState,
        key: StreamKey,
        before: Vec<(u64, Bytes)>,
        tasks: &Tasks,
    ) -> Self {
        let (sender, words) = mpsc::channel(MAX_QUEUED);
        tasks.spawn_within("copy events", copy(state, key, before, words));
        Self(sender)
    }

    /// Adds an event. False if the copy has come to an end.
    pub(super) fn event(&self, seq: u64, text: Bytes) -> bool {
        self.0.try_send(Word::Event(seq, text)).is_ok()
    }

    /// Says that nothing follows.
    pub(super) fn finish(self) {
        // A copy that is too slow for that is not complete.
        let _ = self.0.try_send(Word::Finished);
    }
}

async fn copy(
    state: SharedState,
    key: StreamKey,
    mut batch: Vec<(u64, Bytes)>,
    mut words: mpsc::Receiver<Word>,
) {
    let mut finished = false;
    loop {
        if !append(&state, key, &batch, finished).await || finished {
            return;
        }
        batch.clear();
        let mut taken = Vec::new();
        if words.recv_many(&mut taken, MAX_BATCH).await == 0 {
            return;
        }
        for word in taken {
            match word {
                Word::Event(seq, text) => batch.push((seq, text)),
                Word::Finished => finished = true,
            }
        }
    }
}

async fn append(state: &SharedState, key: StreamKey, batch: &[(u64, Bytes)], finished: bool) -> bool {
    for _ in 0..TRIES {
        match state.events.append(key, batch, finished).await {
            Ok(()) => return true,
            Err(e) => {
                tracing::debug!("events wait for shared state: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    tracing::warn!("events of a call were not copied: shared state was away for too long");
    false
}
