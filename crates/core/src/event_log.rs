//! The port for resumable streams: events are appended under a stream's key and read again after a sequence
//! number, by whoever resumes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Names a stream: the session it belongs to and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The session's key.
    pub session: SessionKey,
    /// The stream's number, unique in the session.
    pub stream: u64,
}

/// Names a session by the hash of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub [u8; 16]);

/// What is in a log after some point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Sequence number and JSON text of each event, in order.
    pub events: Vec<(u64, Bytes)>,
    /// Nothing will follow.
    pub finished: bool,
}

/// Stores the events of streams for a while.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Adds an event. Sequence numbers of a stream rise.
    fn append(&self, key: StreamKey, seq: u64, event: Bytes);

    /// Says that nothing follows.
    fn finish(&self, key: StreamKey);

    /// What came after `seq`; `None` if the stream is unknown or events after `seq` were dropped.
    async fn read_after(&self, key: StreamKey, seq: u64) -> Option<Page>;

    /// Returns once there may be something after `seq` (or the stream is gone).
    async fn changed(&self, key: StreamKey, seq: u64);
}

#[derive(Debug)]
struct Stream {
    events: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Events up to this number were dropped.
    dropped: u64,
    finished: bool,
    touched: Instant,
    bell: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Streams {
    map: HashMap<StreamKey, Stream, ahash::RandomState>,
    bytes: usize,
}

/// The log in memory: bounded in bytes over all streams, oldest streams go first.
#[derive(Debug)]
pub struct MemoryEventLog {
    max_bytes: usize,
    ttl: Duration,
    streams: Mutex<Streams>,
}

/// What an event costs beside its text.
const EVENT_OVERHEAD: usize = 64;

impl MemoryEventLog {
    /// A log of at most `max_bytes`, which forgets a stream `ttl` after its last event.
    pub fn new(max_bytes: usize, ttl: Duration) -> Self {
        Self { max_bytes, ttl, streams: Mutex::default() }
    }

    /// Forgets what is too old. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut streams = self.streams.lock();
        let Streams { map, bytes } = &mut *streams;
        map.retain(|_, s| {
            let keep = now.duration_since(s.touched) < self.ttl;
            if !keep {
                *bytes -= s.bytes;
                s.bell.notify_waiters();
            }
            keep
        });
        if map.capacity() > 1024 && map.len() < map.capacity() / 4 {
            map.shrink_to_fit();
        }
    }

    /// How many streams and bytes it holds.
    pub fn size(&self) -> (usize, usize) {
        let streams = self.streams.lock();
        (streams.map.len(), streams.bytes)
    }
}

impl Streams {
    /// Makes room by dropping the streams that were quiet for longest, finished ones first.
    fn make_room(&mut self, max_bytes: usize, keep: StreamKey) {
        while self.bytes > max_bytes {
            let oldest = self.map.iter().filter(|(key, _)| **key != keep);
            let Some(key) = oldest.min_by_key(|(_, s)| (!s.finished, s.touched)).map(|(key, _)| *key) else {
                break;
            };
            if let Some(gone) = self.map.remove(&key) {
                self.bytes -= gone.bytes;
                gone.bell.notify_waiters();
            }
        }
        // One stream alone may be over the limit: it loses its own beginning.
        if let Some(stream) = self.map.get_mut(&keep) {
            while self.bytes > max_bytes
                && let Some((seq, event)) = stream.events.pop_front()
            {
                let size = event.len() + EVENT_OVERHEAD;
                stream.bytes -= size;
                self.bytes -= size;
                stream.dropped = seq;
            }
        }
    }
}

#[async_trait]
impl EventLog for MemoryEventLog {
    fn append(&self, key: StreamKey, seq: u64, event: Bytes) {
        let size = event.len() + EVENT_OVERHEAD;
        let mut streams = self.streams.lock();
        let stream = streams.map.entry(key).or_insert_with(|| Stream {
            events: VecDeque::new(),
            bytes: 0,
            dropped: seq.saturating_sub(1),
            finished: false,
            touched: Instant::now(),
            bell: Arc::default(),
        });
        stream.events.push_back((seq, event));
        stream.bytes += size;
        stream.touched = Instant::now();
        stream.bell.notify_waiters();
        streams.bytes += size;
        if streams.bytes > self.max_bytes {
            streams.make_room(self.max_bytes, key);
        }
    }

    fn finish(&self, key: StreamKey) {
        if let Some(stream) = self.streams.lock().map.get_mut(&key) {
            stream.finished = true;
            stream.touched = Instant::now();
            stream.bell.notify_waiters();
        }
    }

    async fn read_after(&self, key: StreamKey, seq: u64) -> Option<Page> {
        let streams = self.streams.lock();
        let stream = streams.map.get(&key).filter(|s| s.dropped <= seq)?;
        let events = stream.events.iter().filter(|(n, _)| *n > seq).cloned().collect();
        Some(Page { events, finished: stream.finished })
    }

    async fn changed(&self, key: StreamKey, seq: u64) {
        let bell = {
            let streams = self.streams.lock();
            let Some(stream) = streams.map.get(&key) else { return };
            if stream.finished || stream.events.back().is_some_and(|(n, _)| *n > seq) {
                return;
            }
            stream.bell.clone()
        };
        // The bell could ring between the look and the wait: register first, then look again.
        let rung = bell.notified();
        tokio::pin!(rung);
        rung.as_mut().enable();
        let quiet = {
            let streams = self.streams.lock();
            streams
                .map
                .get(&key)
                .is_some_and(|s| !s.finished && s.events.back().is_none_or(|(n, _)| *n <= seq))
        };
        if quiet {
            rung.await;
        }
    }
}

/// The contract of the port, for every adapter.
pub mod contract {
    use super::{EventLog, Page, SessionKey, StreamKey};
    use bytes::Bytes;

    /// A stream of a session of its own.
    pub fn key(session: u8, stream: u64) -> StreamKey {
        StreamKey { session: SessionKey([session; 16]), stream }
    }

    /// Reads exactly what came after a point, of that stream only.
    pub async fn replays_strictly_after_a_point_of_one_stream(log: &dyn EventLog) -> Option<Page> {
        for seq in 1..=3 {
            log.append(key(1, 1), seq, Bytes::from(format!("a{seq}")));
            log.append(key(1, 2), seq, Bytes::from(format!("b{seq}")));
        }
        log.finish(key(1, 1));
        log.read_after(key(1, 1), 1).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> MemoryEventLog {
        MemoryEventLog::new(10_000, Duration::from_secs(60))
    }

    #[tokio::test]
    async fn replays_strictly_after_a_point_of_one_stream() {
        let page = contract::replays_strictly_after_a_point_of_one_stream(&log()).await.unwrap();
        assert_eq!(page.events, [(2, Bytes::from("a2")), (3, Bytes::from("a3"))]);
        assert!(page.finished);
    }

    #[tokio::test]
    async fn an_unknown_stream_has_no_page() {
        assert_eq!(log().read_after(contract::key(9, 9), 0).await, None);
    }

    #[tokio::test]
    async fn memory_is_bounded_over_all_streams_and_within_one() {
        let log = log();
        for n in 0..200 {
            log.append(contract::key(1, n), 1, Bytes::from(vec![b'x'; 1000]));
            log.finish(contract::key(1, n));
        }
        assert!(log.size().1 <= 10_000);
        assert_eq!(log.read_after(contract::key(1, 0), 0).await, None);
        for seq in 1..100 {
            log.append(contract::key(2, 1), seq, Bytes::from(vec![b'x'; 1000]));
        }
        assert!(log.size().1 <= 10_000);
        assert_eq!(log.read_after(contract::key(2, 1), 0).await, None, "a gap is never hidden");
        assert!(log.read_after(contract::key(2, 1), 98).await.is_some());
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_the_next_event() {
        let log = Arc::new(log());
        log.append(contract::key(1, 1), 1, Bytes::from("a"));
        let other = log.clone();
        let (_, ()) = tokio::join!(
            async {
                tokio::time::timeout(Duration::from_secs(5), log.changed(contract::key(1, 1), 1))
                    .await
                    .unwrap();
            },
            async move { other.append(contract::key(1, 1), 2, Bytes::from("b")) }
        );
    }
}
