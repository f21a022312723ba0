//! The port for resumable streams: events are appended under a stream's key and read again after a sequence
//! number, by whoever resumes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::state::Unavailable;

/// Names a stream: the session it belongs to and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    /// The session's key.
    pub session: SessionKey,
    /// The stream's number, unique in the session.
    pub stream: u64,
}

/// Names a session by the hash of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub [u8; 16]);

impl SessionKey {
    /// Reads the hexadecimal form.
    pub fn parse(text: &str) -> Option<Self> {
        let legal = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let number = legal.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
        Some(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for SessionKey {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// What is in a log after some point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Sequence number and JSON text of each event, in order.
    pub events: Vec<(u64, Bytes)>,
    /// Nothing will follow.
    pub finished: bool,
}

/// Keeps the events of streams for a while where every instance can read them. Each instance has an [`EventRing`] of
/// its own streams; here goes what a client may have to fetch from another.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Adds events, whose sequence numbers rise. `finished` says that nothing follows.
    async fn append(
        &self,
        key: StreamKey,
        events: &[(u64, Bytes)],
        finished: bool,
    ) -> Result<(), Unavailable>;

    /// What came after `seq`; `None` if the stream is unknown or events after `seq` were dropped.
    async fn read_after(&self, key: StreamKey, seq: u64) -> Result<Option<Page>, Unavailable>;
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
    /// In the order in which they go when there is no room: finished ones first, the quiet before the others.
    order: BTreeSet<Turn>,
    bytes: usize,
}

/// Whether a stream goes on, when it was touched, which it is.
type Turn = (bool, Instant, StreamKey);

impl Stream {
    fn turn(&self, key: StreamKey) -> Turn {
        (!self.finished, self.touched, key)
    }
}

/// The events of an instance's own streams, in memory: bounded in bytes over all streams, oldest streams go first.
#[derive(Debug)]
pub struct EventRing {
    max_bytes: usize,
    ttl: Duration,
    streams: Mutex<Streams>,
}

/// What an event costs beside its text.
const EVENT_OVERHEAD: usize = 64;

impl EventRing {
    /// A log of at most `max_bytes`, which forgets a stream `ttl` after its last event.
    pub fn new(max_bytes: usize, ttl: Duration) -> Self {
        Self { max_bytes, ttl, streams: Mutex::default() }
    }

    /// Forgets what is too old. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut streams = self.streams.lock();
        let old: Vec<StreamKey> = streams
            .map
            .iter()
            .filter(|(_, stream)| now.duration_since(stream.touched) >= self.ttl)
            .map(|(key, _)| *key)
            .collect();
        old.into_iter().for_each(|key| streams.remove(key));
        let map = &mut streams.map;
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
    fn remove(&mut self, key: StreamKey) {
        let Some(gone) = self.map.remove(&key) else { return };
        self.order.remove(&gone.turn(key));
        self.bytes -= gone.bytes;
        gone.bell.notify_waiters();
    }

    /// Works on a stream, which then is the one touched last.
    fn touch(&mut self, key: StreamKey, work: impl FnOnce(&mut Stream)) {
        let Some(stream) = self.map.get_mut(&key) else { return };
        self.order.remove(&stream.turn(key));
        let before = stream.bytes;
        work(stream);
        stream.touched = Instant::now();
        stream.bell.notify_waiters();
        self.bytes += stream.bytes - before;
        self.order.insert(stream.turn(key));
    }

    /// Makes room by dropping other streams than `keep`.
    fn make_room(&mut self, max_bytes: usize, keep: StreamKey) {
        while self.bytes > max_bytes {
            let Some((.., key)) = self.order.iter().find(|(.., key)| *key != keep).copied() else { break };
            self.remove(key);
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

impl EventRing {
    /// Adds an event. Sequence numbers of a stream rise.
    pub fn append(&self, key: StreamKey, seq: u64, event: Bytes) {
        let mut streams = self.streams.lock();
        streams.map.entry(key).or_insert_with(|| Stream {
            events: VecDeque::new(),
            bytes: 0,
            dropped: seq.saturating_sub(1),
            finished: false,
            touched: Instant::now(),
            bell: Arc::default(),
        });
        streams.touch(key, |stream| {
            stream.bytes += event.len() + EVENT_OVERHEAD;
            stream.events.push_back((seq, event));
        });
        if streams.bytes > self.max_bytes {
            streams.make_room(self.max_bytes, key);
        }
    }

    /// Says that nothing follows.
    pub fn finish(&self, key: StreamKey) {
        self.streams.lock().touch(key, |stream| stream.finished = true);
    }

    /// What came after `seq`; `None` if the stream is unknown or events after `seq` were dropped.
    pub fn read_after(&self, key: StreamKey, seq: u64) -> Option<Page> {
        let streams = self.streams.lock();
        let stream = streams.map.get(&key).filter(|s| s.dropped <= seq)?;
        let events = stream.events.iter().filter(|(n, _)| *n > seq).cloned().collect();
        Some(Page { events, finished: stream.finished })
    }

    /// Returns once there may be something after `seq` (or the stream is gone).
    pub async fn changed(&self, key: StreamKey, seq: u64) {
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

/// The log in memory.
#[derive(Debug)]
pub struct MemoryEventLog(EventRing);

impl MemoryEventLog {
    /// A log of at most `max_bytes`, which forgets a stream `ttl` after its last event.
    pub fn new(max_bytes: usize, ttl: Duration) -> Self {
        Self(EventRing::new(max_bytes, ttl))
    }

    /// Forgets what is too old. To be called now and then.
    pub fn sweep(&self) {
        self.0.sweep();
    }
}

#[async_trait]
impl EventLog for MemoryEventLog {
    async fn append(
        &self,
        key: StreamKey,
        events: &[(u64, Bytes)],
        finished: bool,
    ) -> Result<(), Unavailable> {
        for (seq, event) in events {
            self.0.append(key, *seq, event.clone());
        }
        if finished {
            self.0.finish(key);
        }
        Ok(())
    }

    async fn read_after(&self, key: StreamKey, seq: u64) -> Result<Option<Page>, Unavailable> {
        Ok(self.0.read_after(key, seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> EventRing {
        EventRing::new(10_000, Duration::from_secs(60))
    }

    fn key(session: u8, stream: u64) -> StreamKey {
        StreamKey { session: SessionKey([session; 16]), stream }
    }

    #[test]
    fn replays_strictly_after_a_point_of_one_stream() {
        let log = log();
        for seq in 1..=3 {
            log.append(key(1, 1), seq, Bytes::from(format!("a{seq}")));
            log.append(key(1, 2), seq, Bytes::from(format!("b{seq}")));
        }
        log.finish(key(1, 1));
        let page = log.read_after(key(1, 1), 1).unwrap();
        assert_eq!(page.events, [(2, Bytes::from("a2")), (3, Bytes::from("a3"))]);
        assert!(page.finished);
    }

    #[test]
    fn an_unknown_stream_has_no_page() {
        assert_eq!(log().read_after(key(9, 9), 0), None);
    }

    #[test]
    fn memory_is_bounded_over_all_streams_and_within_one() {
        let log = log();
        for n in 0..200 {
            log.append(key(1, n), 1, Bytes::from(vec![b'x'; 1000]));
            log.finish(key(1, n));
        }
        assert!(log.size().1 <= 10_000);
        assert_eq!(log.read_after(key(1, 0), 0), None);
        for seq in 1..100 {
            log.append(key(2, 1), seq, Bytes::from(vec![b'x'; 1000]));
        }
        assert!(log.size().1 <= 10_000);
        assert_eq!(log.read_after(key(2, 1), 0), None, "a gap is never hidden");
        assert!(log.read_after(key(2, 1), 98).is_some());
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_the_next_event() {
        let log = Arc::new(log());
        log.append(key(1, 1), 1, Bytes::from("a"));
        let other = log.clone();
        let (_, ()) = tokio::join!(
            async {
                tokio::time::timeout(Duration::from_secs(5), log.changed(key(1, 1), 1)).await.unwrap();
            },
            async move { other.append(key(1, 1), 2, Bytes::from("b")) }
        );
    }

    #[test]
    fn a_full_log_forgets_the_oldest_streams_without_looking_at_all_of_them() {
        let log = log();
        for n in 0..100_000 {
            log.append(key(1, n), 1, Bytes::from_static(b"x"));
            log.finish(key(1, n));
        }
        let (streams, bytes) = log.size();
        assert!(bytes <= 10_000 && streams == log.streams.lock().order.len(), "{streams} {bytes}");
        assert!(log.read_after(key(1, 99_999), 0).is_some());
        assert!(log.read_after(key(1, 0), 0).is_none());
    }
}
