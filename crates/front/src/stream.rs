//! The body of an event stream: gathers what is ready into one write and keeps quiet connections open.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use drawbridge_core::fault::Bounded;
use drawbridge_core::metrics::Stream as Kind;
use drawbridge_core::{Fault, request};
use drawbridge_wire::Payload;
use drawbridge_wire::sse::KEEP_ALIVE;
use futures_util::Stream;
use http_body::Frame;
use tokio::time::{Instant, Sleep};

use crate::options::FrontOptions;

/// The encoded events of a stream.
pub type Source = Pin<Box<dyn Stream<Item = Payload> + Send>>;

/// What is gathered at most before it is written.
const GATHER_BYTES: usize = 64 * 1024;

/// How many streams are open.
#[derive(Debug, Default)]
pub struct OpenStreams {
    all: AtomicUsize,
    by_kind: [AtomicUsize; Kind::ALL.len()],
}

impl OpenStreams {
    /// All of them.
    pub fn count(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Those of each kind.
    pub fn by_kind(&self) -> [usize; Kind::ALL.len()] {
        self.by_kind.each_ref().map(|open| open.load(Ordering::Relaxed))
    }
}

/// One of the streams that may be open at once.
#[derive(Debug)]
pub struct StreamPermit {
    open: Arc<OpenStreams>,
    kind: Kind,
}

impl StreamPermit {
    /// Takes one of `limit`.
    pub fn take(open: &Arc<OpenStreams>, kind: Kind, limit: usize) -> Result<Self, Fault> {
        open.by_kind[kind as usize].fetch_add(1, Ordering::Relaxed);
        let permit = Self { open: open.clone(), kind };
        if open.all.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(Fault::Busy { what: Bounded::Streams, limit });
        }
        Ok(permit)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.open.all.fetch_sub(1, Ordering::Relaxed);
        self.open.by_kind[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream of events as a body.
pub struct EventBody {
    source: Source,
    /// Large pieces that were taken and not yet written.
    waiting: std::collections::VecDeque<Bytes>,
    first: Option<Bytes>,
    keep_alive: Duration,
    timer: Pin<Box<Sleep>>,
    ended: bool,
    /// Whose answer it is.
    request: Option<request::Id>,
    _permit: StreamPermit,
}

impl EventBody {
    /// A body that sends `first` at once, then the events of `source`, and a comment when it is quiet.
    pub fn body(first: Bytes, source: Source, options: &FrontOptions, permit: StreamPermit) -> Body {
        Body::new(Self {
            source,
            waiting: std::collections::VecDeque::new(),
            first: Some(first),
            keep_alive: options.keep_alive,
            timer: Box::pin(tokio::time::sleep(options.keep_alive)),
            ended: false,
            request: request::current(),
            _permit: permit,
        })
    }

    /// Takes all events that are ready, up to a bound; small ones are joined.
    fn gather(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        let mut small = BytesMut::new();
        if let Some(first) = self.first.take() {
            small.extend_from_slice(&first);
        }
        while !self.ended && self.waiting.is_empty() && small.len() < GATHER_BYTES {
            match self.source.as_mut().poll_next(cx) {
                Poll::Ready(Some(payload)) if payload.len() <= GATHER_BYTES => {
                    payload.pieces().iter().for_each(|piece| small.extend_from_slice(piece));
                }
                Poll::Ready(Some(payload)) => self.waiting.extend(payload),
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => break,
            }
        }
        if small.is_empty() { self.waiting.pop_front() } else { Some(small.freeze()) }
    }
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(bytes) = request::within(self.request, || self.gather(cx)) {
            let again = Instant::now() + self.keep_alive;
            self.timer.as_mut().reset(again);
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            let again = Instant::now() + self.keep_alive;
            self.timer.as_mut().reset(again);
            // Registers the timer again, so that the next comment comes too.
            let _ = self.timer.as_mut().poll(cx);
            return Poll::Ready(Some(Ok(Frame::data(KEEP_ALIVE))));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.waiting.is_empty() && self.first.is_none()
    }
}
