//! Reading what an HTTP backend answers: one JSON document or a stream of events, within limits.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use drawbridge_core::Fault;
use drawbridge_core::fault::{Deadline, Size};
use drawbridge_wire::sse::{Decoder, Event};
use drawbridge_wire::{Id, Kind, Message, message};
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use parking_lot::Mutex;

use crate::options::Options;

/// What came back.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a message is the common case and must not be boxed")]
pub enum Answer {
    /// Accepted, nothing to say.
    Accepted,
    /// A single message. The status is of interest where it is not a success.
    Message(StatusCode, Message),
    /// A stream of events.
    Stream(Box<EventStream>),
    /// No message: an HTTP error of something that may not even be an MCP server.
    Other(StatusCode),
}

/// What a JSON answer may have around the result, in bytes.
const ENVELOPE_BYTES: usize = 64 * 1024;

/// Reads the answer to a POST.
pub async fn read(response: Response<Incoming>, options: &Options) -> Result<Answer, Fault> {
    let status = response.status();
    let kind = media_type(&response);
    if kind == Media::EventStream && status.is_success() {
        return Ok(Answer::Stream(Box::new(EventStream::new(response.into_body(), options))));
    }
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        // The body has to be read, or the connection can't be used again.
        let _ = tokio::time::timeout(DISCARD_TIME, discard(response.into_body())).await;
        return Ok(Answer::Accepted);
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(Fault::Refused { backend: options.name.to_string(), status: status.as_u16() });
    }
    if kind != Media::Json && !status.is_success() {
        let _ = tokio::time::timeout(DISCARD_TIME, discard(response.into_body())).await;
        return Ok(Answer::Other(status));
    }
    if kind != Media::Json {
        let named = response.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let named: String = named.unwrap_or("no content type").chars().take(60).collect();
        return Err(
            options.bad_answer(format!("HTTP {status} with {named}; is the URL that of an MCP endpoint?"))
        );
    }
    let text = collect(response.into_body(), options).await?;
    match (one_message(text), status.is_success()) {
        (Ok(message), _) => Ok(Answer::Message(status, message)),
        (Err(invalid), true) => Err(options.bad_answer(invalid.reason)),
        (Err(_), false) => Ok(Answer::Other(status)),
    }
}

/// A message, or the only message of a batch (servers of 2025-03-26 may answer so).
fn one_message(text: Bytes) -> Result<Message, message::Invalid> {
    if text.trim_ascii_start().first() != Some(&b'[') {
        return Message::parse_trusting(text);
    }
    match message::Incoming::parse(text, 1)? {
        message::Incoming::One(message) => Ok(message),
        message::Incoming::Batch(mut items) => items.remove(0),
    }
}

/// Whether a message is the answer to the request `id`. An error may have no id, from a server that could not or
/// did not read it.
pub(crate) fn is_for(message: &Message, id: &Id) -> bool {
    match message.kind() {
        Kind::Result => message.id().is_some_and(|own| own == *id),
        Kind::Error => message.id().is_none_or(|own| own == *id),
        Kind::Request | Kind::Notification => false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Media {
    Json,
    EventStream,
    Other,
}

fn media_type(response: &Response<Incoming>) -> Media {
    let value = response.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let essence = value.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Media::Json
    } else if essence.eq_ignore_ascii_case("text/event-stream") {
        Media::EventStream
    } else {
        Media::Other
    }
}

const DISCARD_TIME: Duration = Duration::from_secs(2);
const DISCARD_BYTES: usize = 64 * 1024;

async fn discard(mut body: Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > DISCARD_BYTES {
            return;
        }
    }
}

async fn collect(mut body: Incoming, options: &Options) -> Result<Bytes, Fault> {
    let limit = options.max_result_bytes + ENVELOPE_BYTES;
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > limit {
        return Err(options.too_large(Size::Result));
    }
    let Some(first) = next_frame(&mut body, options).await? else { return Ok(Bytes::new()) };
    if first.len() >= expected && body.is_end_stream() {
        return Ok(first);
    }
    let mut text = BytesMut::with_capacity(expected.max(first.len() * 2));
    text.extend_from_slice(&first);
    while let Some(chunk) = next_frame(&mut body, options).await? {
        if text.len() + chunk.len() > limit {
            return Err(options.too_large(Size::Result));
        }
        text.extend_from_slice(&chunk);
    }
    Ok(text.freeze())
}

/// The next bytes of a body; `None` at its proper end.
async fn next_frame(body: &mut Incoming, options: &Options) -> Result<Option<Bytes>, Fault> {
    loop {
        let frame = tokio::time::timeout(options.idle_timeout, body.frame())
            .await
            .map_err(|_| options.late(Deadline::Idle))?;
        match frame {
            None => return Ok(None),
            Some(Err(e)) => return Err(options.outcome_unknown(crate::outbound::cause(&e))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// The events of a stream that a backend sends.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    decoder: Decoder,
    idle: Duration,
    /// The id of the last event, to resume after it.
    last_id: Option<Bytes>,
    /// How long to wait before resuming, as the backend said.
    retry: Option<Duration>,
    /// Where to note how far its reader is.
    mark: Option<Mark>,
}

/// The id of the last event of a stream that its reader is done with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mark(Arc<Mutex<Option<Bytes>>>);

impl Mark {
    /// The event after which the stream is to be resumed.
    pub(crate) fn get(&self) -> Option<Bytes> {
        self.0.lock().clone()
    }
}

/// Longer delays before a reconnection are not obeyed.
const MAX_RETRY: Duration = Duration::from_secs(30);

impl EventStream {
    fn new(body: Incoming, options: &Options) -> Self {
        Self {
            body,
            decoder: Decoder::new(options.max_event_bytes + ENVELOPE_BYTES),
            idle: options.idle_timeout,
            last_id: None,
            retry: None,
            mark: None,
        }
    }

    /// The same for a response that is known to be a stream.
    pub fn of(response: Response<Incoming>, options: &Options) -> Option<Self> {
        let good = response.status().is_success() && media_type(&response) == Media::EventStream;
        good.then(|| Self::new(response.into_body(), options))
    }

    /// No limit on the time between events, for streams that may be quiet for ever.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.idle = Duration::from_secs(365 * 24 * 3600);
        self
    }

    /// The same, noting in `mark` how far its reader is.
    #[must_use]
    pub(crate) fn marked(mut self, mark: Option<&Mark>) -> Self {
        self.mark = mark.cloned();
        self
    }

    /// The next event that carries data; `None` at the end of the stream, however it came.
    pub async fn next(&mut self, options: &Options) -> Result<Option<Event>, Fault> {
        loop {
            while let Some(event) = self.decoder.next_event().map_err(|_| options.too_large(Size::Event))? {
                if let Some(id) = &event.id {
                    // A copy, since the stream may be quiet for long now.
                    let id = Some(Bytes::copy_from_slice(id)).filter(|id| !id.is_empty());
                    let before = std::mem::replace(&mut self.last_id, id);
                    if let Some(mark) = &self.mark {
                        // Nobody is done with an event before the next one is asked for.
                        *mark.0.lock() = if event.data.is_empty() { self.last_id.clone() } else { before };
                    }
                }
                if let Some(ms) = event.retry {
                    self.retry = Some(Duration::from_millis(ms).min(MAX_RETRY));
                }
                if !event.data.is_empty() {
                    return Ok(Some(event));
                }
            }
            let frame = tokio::time::timeout(self.idle, self.body.frame())
                .await
                .map_err(|_| options.late(Deadline::Idle))?;
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.decoder.feed(data);
                    }
                }
                Some(Err(_)) | None => return Ok(None),
            }
        }
    }

    /// The next message; events that are not messages are an error of the backend.
    pub async fn next_message(&mut self, options: &Options) -> Result<Option<Message>, Fault> {
        let Some(event) = self.next(options).await? else { return Ok(None) };
        Message::parse_trusting(event.data).map(Some).map_err(|invalid| options.bad_answer(invalid.reason))
    }

    /// The continuation of a stream that was to be resumed as `resumable` says, until it says otherwise.
    #[must_use]
    pub fn after(mut self, resumable: Option<(Bytes, Duration)>) -> Self {
        if let Some((id, retry)) = resumable {
            self.last_id = Some(id);
            self.retry = Some(retry);
        }
        self
    }

    /// The continuation of `before`, which was resumed.
    #[must_use]
    pub(crate) fn going_on_from(self, before: Self) -> Self {
        let resumable = before.resumption();
        Self { mark: before.mark, ..self.after(resumable) }
    }

    /// Where and when to resume after the end, if the backend made that possible.
    pub fn resumption(&self) -> Option<(Bytes, Duration)> {
        Some((self.last_id.clone()?, self.retry.unwrap_or(Duration::from_secs(1))))
    }
}
