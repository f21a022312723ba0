//! The one response body of the backend: prepared parts, with or without a known length.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// What follows the parts, and how they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A body of known length.
    Sized,
    /// Chunked, each part written by itself.
    Events,
    /// As `Events`, and the stream then stays open.
    Open,
}

/// A body of prepared parts.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: VecDeque<Bytes>,
    form: Form,
    rested: bool,
    /// What an open stream may still have to say.
    more: Option<mpsc::UnboundedReceiver<Bytes>>,
}

impl Parts {
    /// Nothing.
    pub(crate) fn empty() -> Self {
        Self::sized([])
    }

    /// A body with a `Content-Length`.
    pub(crate) fn sized(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self::new(parts, Form::Sized)
    }

    /// An event stream that ends after its events, each flushed by itself.
    pub(crate) fn events(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self::new(parts, Form::Events)
    }

    /// An event stream that never ends.
    pub(crate) fn open(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self::new(parts, Form::Open)
    }

    /// As [`Parts::open`], with what comes from `more` later.
    pub(crate) fn live(parts: impl IntoIterator<Item = Bytes>, more: mpsc::UnboundedReceiver<Bytes>) -> Self {
        Self { more: Some(more), ..Self::open(parts) }
    }

    fn new(parts: impl IntoIterator<Item = Bytes>, form: Form) -> Self {
        Self { parts: parts.into_iter().collect(), form, rested: true, more: None }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.parts.is_empty()
            && let Some(more) = &mut self.more
        {
            let next = std::task::ready!(more.poll_recv(cx));
            return Poll::Ready(next.map(|part| Ok(Frame::data(part))));
        }
        if self.parts.is_empty() {
            return if self.form == Form::Open { Poll::Pending } else { Poll::Ready(None) };
        }
        if self.form != Form::Sized && !std::mem::replace(&mut self.rested, true) {
            // hyper writes what it has when a body has nothing ready: so each event is its own write
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.rested = false;
        Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty() && self.form != Form::Open
    }

    fn size_hint(&self) -> SizeHint {
        if self.form == Form::Sized {
            SizeHint::with_exact(self.parts.iter().map(|part| part.remaining() as u64).sum())
        } else {
            SizeHint::default()
        }
    }
}
