//! Bodies of requests, read within limits, and of answers, written without a copy.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use drawbridge_wire::Payload;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::reply::Refusal;

/// A body that takes longer than this to arrive is given up.
const READ_TIME: Duration = Duration::from_secs(60);

/// Reads a request body of at most `limit` bytes.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let too_large = || {
        Refusal::status(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the body is larger than the {limit} bytes that limits.max_body_bytes allows"),
        )
    };
    let expected = usize::try_from(http_body::Body::size_hint(&body).lower()).unwrap_or(usize::MAX);
    if expected > limit {
        return Err(too_large());
    }
    let reading = async {
        let mut body = body;
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|_gone| Refusal::status(StatusCode::BAD_REQUEST, "the body was cut off"))?;
            let Ok(data) = frame.into_data() else { continue };
            if first.len() + rest.len() + data.len() > limit {
                return Err(too_large());
            }
            if first.is_empty() && rest.is_empty() {
                first = data;
            } else {
                if rest.is_empty() {
                    rest.reserve(expected.max(first.len() + data.len()));
                    rest.extend_from_slice(&std::mem::take(&mut first));
                }
                rest.extend_from_slice(&data);
            }
        }
        Ok(if rest.is_empty() { first } else { rest.freeze() })
    };
    tokio::time::timeout(READ_TIME, reading).await.unwrap_or_else(|_| {
        Err(Refusal::status(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive"))
    })
}

/// A body of pieces that are written as they are.
#[derive(Debug)]
pub struct Pieces {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl Pieces {
    /// A body that is `payload`.
    pub fn body(payload: Payload) -> Body {
        if payload.pieces().len() <= 1 {
            return Body::from(payload.into_bytes());
        }
        let left = payload.len() as u64;
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        Body::new(Self { pieces: pieces.into_iter(), left })
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.pieces.next();
        self.left -= next.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
