//! The two queues between a server's pipes and the rest of the gateway.
//!
//! Each is bounded twice, by lines and by bytes, because a line may be anything from two bytes to megabytes. Full
//! means wait: for the writer of lines into the server, and, by way of its stdout pipe, for the server.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{ChildStdin, ChildStdout},
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{self, error::TrySendError},
    },
};
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::framing::{Framer, Line};

const QUEUED_LINES: usize = 256;
const MIN_QUEUED_BYTES: usize = 1024 * 1024;
/// What one write gathers, and from what size on a line is written without being copied into it.
const BATCH_BYTES: usize = 64 * 1024;

/// Room for the bytes in a queue. A line takes its room along and gives it back when it is dropped.
#[derive(Clone, Debug)]
struct Room {
    bytes: Arc<Semaphore>,
    all: u32,
}

impl Room {
    fn new(max_line_bytes: usize) -> Self {
        let all = u32::try_from(max_line_bytes.max(MIN_QUEUED_BYTES)).unwrap_or(u32::MAX);
        // usize is 64 bits wide where the gateway runs, the semaphore's limit far beyond u32.
        Self { bytes: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// A line that is larger than everything takes everything.
    fn share(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.all)
    }

    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.bytes).acquire_many_owned(self.share(bytes)).await.ok()
    }

    fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.bytes).try_acquire_many_owned(self.share(bytes)).ok()
    }
}

type Queued<T> = (T, OwnedSemaphorePermit);

/// Why a line was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The server has ended, is being stopped, or has closed its stdin.
    #[error("the server no longer reads; start it again")]
    Closed,
    /// The server does not read as fast as lines are written.
    #[error("too many lines wait for the server; try again later")]
    Full,
}

/// Writes lines to a server's stdin. Clones write to the same server; each line stays whole.
#[derive(Clone, Debug)]
pub struct Writer {
    queue: mpsc::Sender<Queued<Bytes>>,
    room: Room,
}

impl Writer {
    /// Queues `line`, given without its line end, and waits while the queue is full: set a deadline.
    ///
    /// The line must be one line. JSON has line ends only as white space between tokens, so any that are there
    /// are written as spaces.
    ///
    /// Cancel-safe: a call that did not return has queued nothing.
    pub async fn send(&self, line: Bytes) -> Result<(), WriteError> {
        let place = self.queue.reserve().await.map_err(|mpsc::error::SendError(())| WriteError::Closed)?;
        // cancel-safe: dropping the place gives it back.
        let room = tokio::select! {
            room = self.room.take(line.len()) => room.ok_or(WriteError::Closed)?,
            () = self.queue.closed() => return Err(WriteError::Closed),
        };
        place.send((single_line(line), room));
        Ok(())
    }

    /// Queues `line` if there is room for it now.
    pub fn try_send(&self, line: Bytes) -> Result<(), WriteError> {
        if self.queue.is_closed() {
            return Err(WriteError::Closed);
        }
        let room = self.room.try_take(line.len()).ok_or(WriteError::Full)?;
        self.queue.try_send((single_line(line), room)).map_err(|error| match error {
            TrySendError::Full(_) => WriteError::Full,
            TrySendError::Closed(_) => WriteError::Closed,
        })
    }
}

/// Reads lines from a server's stdout. Dropping it discards what the server writes from then on.
#[derive(Debug)]
pub struct Lines {
    queue: mpsc::Receiver<Queued<Line>>,
}

impl Lines {
    /// The next line; none once the server has closed its stdout, or has ended.
    ///
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<Line> {
        self.queue.recv().await.map(|(line, _room)| line)
    }
}

fn single_line(line: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &line).is_none() {
        return line;
    }
    line.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect()
}

/// The writer's two ends: for the callers, and for [`write()`].
pub(super) fn writer(max_line_bytes: usize) -> (Writer, Outgoing) {
    // Full: the caller waits, until its own deadline.
    let (sender, queue) = mpsc::channel(QUEUED_LINES);
    (Writer { queue: sender, room: Room::new(max_line_bytes) }, Outgoing { queue })
}

/// The queue's end at the pipe.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: mpsc::Receiver<Queued<Bytes>>,
}

/// Writes what is queued, as much as is there with one write. Ends when the server closes its stdin or when
/// `close` asks for it: then what is queued already is still written, until `ended`.
pub(super) async fn write(
    mut stdin: ChildStdin,
    mut outgoing: Outgoing,
    close: CancellationToken,
    ended: CancellationToken,
) {
    let queue = &mut outgoing.queue;
    let mut lines = Vec::new();
    let mut batch = Vec::new();
    loop {
        // cancel-safe: recv_many has taken nothing when it is dropped.
        let count = tokio::select! {
            count = queue.recv_many(&mut lines, QUEUED_LINES) => count,
            () = close.cancelled(), if !queue.is_closed() => {
                queue.close();
                continue;
            }
        };
        if count == 0 {
            return;
        }
        // A write that was interrupted halfway is not taken up again: the server is gone.
        let written = write_batch(&mut stdin, &mut batch, &mut lines).with_cancellation_token(&ended).await;
        if !matches!(written, Some(Ok(()))) {
            return;
        }
    }
}

async fn write_batch(
    stdin: &mut ChildStdin,
    batch: &mut Vec<u8>,
    lines: &mut Vec<Queued<Bytes>>,
) -> std::io::Result<()> {
    for (line, _room) in lines.drain(..) {
        if batch.len() + line.len() > BATCH_BYTES {
            stdin.write_all(batch).await?;
            batch.clear();
        }
        if line.len() > BATCH_BYTES {
            stdin.write_all(&line).await?;
        } else {
            batch.extend_from_slice(&line);
        }
        batch.push(b'\n');
    }
    stdin.write_all(batch).await?;
    batch.clear();
    Ok(())
}

/// The reader's two ends: for the caller, and for [`read()`].
pub(super) fn lines(max_line_bytes: usize) -> (Lines, Incoming) {
    // Full: reading stops, and with it, once the pipe is full too, the server.
    let (queue, receiver) = mpsc::channel(QUEUED_LINES);
    (Lines { queue: receiver }, Incoming { queue, room: Room::new(max_line_bytes), max_line_bytes })
}

/// The queue's end at the pipe.
#[derive(Debug)]
pub(super) struct Incoming {
    queue: mpsc::Sender<Queued<Line>>,
    room: Room,
    max_line_bytes: usize,
}

impl Incoming {
    /// Without a reader the line is dropped: a server that says goodbye while it is stopped must not fail at it.
    async fn deliver(&self, line: Line) {
        let bytes = match &line {
            Line::Text(text) => text.len(),
            Line::TooLong { head, .. } => head.len(),
        };
        let Ok(place) = self.queue.reserve().await else {
            return;
        };
        let room = tokio::select! {
            room = self.room.take(bytes) => room,
            () = self.queue.closed() => None,
        };
        if let Some(room) = room {
            place.send((line, room));
        }
    }
}

/// Reads until the end, or until `ended` and nothing is left to read. Waits for its reader as long as there is
/// one.
pub(super) async fn read(mut stdout: ChildStdout, incoming: Incoming, ended: CancellationToken) {
    let mut framer = Framer::new(incoming.max_line_bytes);
    loop {
        // cancel-safe: read_buf has read nothing when it is dropped.
        let read = tokio::select! {
            biased;
            read = stdout.read_buf(framer.buffer()) => read.unwrap_or(0),
            () = ended.cancelled() => 0,
        };
        while let Some(line) = framer.next_line() {
            incoming.deliver(line).await;
        }
        if read == 0 {
            break;
        }
    }
    if let Some(line) = framer.finish() {
        incoming.deliver(line).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_inside_a_line_become_spaces() {
        let line = Bytes::from_static(b"{\"a\":1}");
        assert_eq!(single_line(line.clone()).as_ptr(), line.as_ptr());
        assert_eq!(single_line(Bytes::from_static(b"{\r\n\"a\":\n1}")), "{  \"a\": 1}");
    }

    #[tokio::test]
    async fn the_queue_is_bounded_by_bytes_and_by_lines() {
        let (writer, mut outgoing) = writer(10);
        let half = Bytes::from(vec![b'x'; MIN_QUEUED_BYTES / 2]);
        assert_eq!(writer.try_send(half.clone()), Ok(()));
        assert_eq!(writer.try_send(half.clone()), Ok(()));
        assert_eq!(writer.try_send(half.clone()), Err(WriteError::Full));
        drop(outgoing.queue.recv().await);
        assert_eq!(writer.try_send(half), Ok(()));

        let (writer, outgoing) = super::writer(10);
        let accepted = std::iter::repeat_with(|| writer.try_send(Bytes::from_static(b"x")))
            .take_while(Result::is_ok)
            .count();
        assert_eq!(accepted, QUEUED_LINES);
        drop(outgoing);
        assert_eq!(writer.send(Bytes::new()).await, Err(WriteError::Closed));
    }

    #[tokio::test]
    async fn a_line_larger_than_the_queue_passes_alone() {
        let (writer, mut outgoing) = writer(10);
        let large = Bytes::from(vec![b'x'; 3 * MIN_QUEUED_BYTES]);
        assert_eq!(writer.try_send(large.clone()), Ok(()));
        assert_eq!(writer.try_send(Bytes::from_static(b"x")), Err(WriteError::Full));
        let (received, _room) = outgoing.queue.recv().await.unwrap();
        assert_eq!(received, large);
    }
}
