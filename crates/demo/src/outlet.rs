//! Where the messages of a call go: straight into a pipe, or into a [`Log`] that a client can read again from
//! a point on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use drawbridge_wire::Message;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Messages that wait in a pipe.
pub(crate) const PIPE: usize = 64;
/// Messages that a log keeps; the oldest go first.
const LOG: usize = 1024;
/// How long a full pipe is waited for before a message is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes the messages for one peer, or for one request of it.
#[derive(Debug, Clone)]
pub(crate) enum Outlet {
    /// The receiver writes to the peer.
    Pipe(mpsc::Sender<Message>),
    /// The peer reads, perhaps more than once.
    Log(Arc<Log>),
}

impl Outlet {
    /// Hands over a message, waiting for room.
    pub(crate) async fn send(&self, message: Message) {
        match self {
            Self::Pipe(pipe) => match tokio::time::timeout(PATIENCE, pipe.send(message)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => tracing::debug!("the peer is gone"),
                Err(_) => tracing::warn!("the peer does not read; a message is lost"),
            },
            Self::Log(log) => log.push(message),
        }
    }

    /// Hands over a message unless there is no room; says whether it did.
    pub(crate) fn offer(&self, message: Message) -> bool {
        match self {
            Self::Pipe(pipe) => pipe.try_send(message).is_ok(),
            Self::Log(log) => {
                log.push(message);
                true
            }
        }
    }

    /// A request is finished: the stream that was opened for it ends.
    pub(crate) fn finish(&self) {
        if let Self::Log(log) = self {
            log.finish();
        }
    }
}

/// The messages of one stream, numbered from 1.
#[derive(Debug)]
pub(crate) struct Log {
    /// Names the stream within its session.
    pub(crate) name: String,
    events: Mutex<Events>,
    wake: watch::Sender<()>,
}

#[derive(Debug)]
struct Events {
    kept: VecDeque<Message>,
    /// Number of the first message that is kept.
    first: u64,
    /// The message that the last reader would have had next.
    next: u64,
    /// Requests that are not yet answered on this stream.
    open: usize,
    reader: CancellationToken,
}

impl Log {
    /// A stream that ends after `open` requests are finished.
    pub(crate) fn new(name: String, open: usize) -> Arc<Self> {
        let reader = CancellationToken::new();
        let events = Mutex::new(Events { kept: VecDeque::new(), first: 1, next: 1, open, reader });
        Arc::new(Self { name, events, wake: watch::Sender::new(()) })
    }

    fn push(&self, message: Message) {
        let mut events = self.events.lock();
        if events.kept.len() == LOG {
            events.kept.pop_front();
            events.first += 1;
        }
        events.kept.push_back(message);
        drop(events);
        self.wake.send_replace(());
    }

    fn finish(&self) {
        let mut events = self.events.lock();
        events.open = events.open.saturating_sub(1);
        drop(events);
        self.wake.send_replace(());
    }

    /// Ends the stream now.
    pub(crate) fn end(&self) {
        self.events.lock().open = 0;
        self.wake.send_replace(());
    }

    /// Whether nothing will follow.
    pub(crate) fn is_over(&self) -> bool {
        self.events.lock().open == 0
    }

    /// Reads what comes after message `after`, or where the last reader stopped. A message goes to one
    /// reader only, so an earlier one stops here.
    pub(crate) fn read(self: &Arc<Self>, after: Option<u64>) -> Reader {
        let mut events = self.events.lock();
        events.reader.cancel();
        events.reader = CancellationToken::new();
        let replaced = events.reader.clone();
        let next = after.map_or(events.next, |after| after.saturating_add(1));
        Reader { log: Arc::clone(self), wake: self.wake.subscribe(), next, replaced }
    }
}

/// Reads a [`Log`] and waits for what is not there yet.
#[derive(Debug)]
pub(crate) struct Reader {
    log: Arc<Log>,
    wake: watch::Receiver<()>,
    next: u64,
    replaced: CancellationToken,
}

impl Reader {
    /// The next message with its event id; none when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<(String, Message)> {
        loop {
            self.wake.mark_unchanged();
            if self.replaced.is_cancelled() {
                return None;
            }
            match self.take() {
                Poll::Ready(next) => return next,
                Poll::Pending => {}
            }
            // cancel-safe: nothing has been taken yet.
            tokio::select! {
                changed = self.wake.changed() => changed.ok()?,
                () = self.replaced.cancelled() => return None,
            }
        }
    }

    /// The id of a priming event: resuming from it gives everything.
    pub(crate) fn start(&self) -> String {
        format!("{}-{}", self.log.name, self.next.saturating_sub(1))
    }

    fn take(&mut self) -> Poll<Option<(String, Message)>> {
        let mut events = self.log.events.lock();
        let at = self.next.max(events.first);
        let index = usize::try_from(at - events.first).unwrap_or(usize::MAX);
        let Some(message) = events.kept.get(index).cloned() else {
            return if events.open == 0 { Poll::Ready(None) } else { Poll::Pending };
        };
        self.next = at + 1;
        events.next = events.next.max(self.next);
        Poll::Ready(Some((format!("{}-{at}", self.log.name), message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::notification(text, b"{}")
    }

    #[tokio::test]
    async fn a_log_is_read_on_and_again() {
        let log = Log::new("s".to_owned(), 1);
        log.push(message("a"));
        let mut first = log.read(None);
        assert_eq!(first.next().await.unwrap().0, "s-1");
        let mut second = log.read(None);
        assert!(first.next().await.is_none(), "replaced");
        log.push(message("b"));
        log.finish();
        assert_eq!(second.next().await.unwrap().1.method(), "b");
        assert!(second.next().await.is_none());
        assert_eq!(log.read(Some(0)).next().await.unwrap().1.method(), "a");
    }
}
