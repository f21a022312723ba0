//! Server-sent events: a decoder with a size limit that may be fed at any split, and an encoder.
//!
//! Follows the WHATWG HTML standard § 9.2 "Server-sent events", as far as MCP uses it.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use crate::payload::Payload;

/// One event as received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The `id` field, if the event has one.
    pub id: Option<Bytes>,
    /// The `event` field; `None` means `message`.
    pub name: Option<Bytes>,
    /// The `data` lines, joined with line feeds.
    pub data: Bytes,
    /// The `retry` field in milliseconds.
    pub retry: Option<u64>,
}

/// An event, or a line of one, is larger than the decoder's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {limit} bytes")]
pub struct TooLarge {
    /// The limit in bytes.
    pub limit: usize,
}

/// Turns the bytes of a stream into events.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// What was fed and not yet read.
    front: Bytes,
    /// The start of a line whose end has not come.
    carry: BytesMut,
    /// The last line ended with CR, so a LF that comes first belongs to it.
    after_cr: bool,
    started: bool,
    event: Event,
    lines: SmallVec<[Bytes; 1]>,
    size: usize,
}

impl Decoder {
    /// A decoder that refuses events of more than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            front: Bytes::new(),
            carry: BytesMut::new(),
            after_cr: false,
            started: false,
            event: Event::default(),
            lines: SmallVec::new(),
            size: 0,
        }
    }

    /// Gives it the next bytes of the stream. Call [`Decoder::next_event`] until it has none before the next.
    pub fn feed(&mut self, bytes: Bytes) {
        if self.front.is_empty() {
            self.front = bytes;
        } else {
            let mut joined = BytesMut::from(&self.front[..]);
            joined.extend_from_slice(&bytes);
            self.front = joined.freeze();
        }
    }

    /// The next complete event. An event without data is given too if it carries an id or a retry, since it
    /// moves the point of resumption.
    pub fn next_event(&mut self) -> Result<Option<Event>, TooLarge> {
        while let Some(line) = self.next_line()? {
            if line.is_empty() {
                if let Some(event) = self.dispatch() {
                    return Ok(Some(event));
                }
                continue;
            }
            self.size += line.len();
            if self.size > self.limit {
                return Err(TooLarge { limit: self.limit });
            }
            self.field(&line);
        }
        Ok(None)
    }

    fn dispatch(&mut self) -> Option<Event> {
        let mut event = std::mem::take(&mut self.event);
        let lines = std::mem::take(&mut self.lines);
        self.size = 0;
        let has_data = !lines.is_empty();
        event.data = match lines.len() {
            0 => Bytes::new(),
            1 => lines.into_iter().next().unwrap_or_default(),
            _ => Bytes::from(lines.join(&b"\n"[..])),
        };
        (has_data || event.id.is_some() || event.retry.is_some()).then_some(event)
    }

    fn field(&mut self, line: &Bytes) {
        let colon = memchr::memchr(b':', line);
        let name = &line[..colon.unwrap_or(line.len())];
        let value = match colon {
            Some(at) => line.slice(at + 1 + usize::from(line.get(at + 1) == Some(&b' '))..),
            None => Bytes::new(),
        };
        match name {
            b"data" => self.lines.push(value),
            b"id" if !value.contains(&0) => self.event.id = Some(value),
            b"event" => self.event.name = Some(value),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.event.retry = std::str::from_utf8(&value).ok().and_then(|v| v.parse().ok());
            }
            _ => {}
        }
    }

    fn next_line(&mut self) -> Result<Option<Bytes>, TooLarge> {
        if self.after_cr && !self.front.is_empty() {
            self.after_cr = false;
            if self.front[0] == b'\n' {
                self.front = self.front.slice(1..);
            }
        }
        let Some(end) = memchr::memchr2(b'\n', b'\r', &self.front) else {
            self.carry.extend_from_slice(&self.front);
            self.front = Bytes::new();
            if self.carry.len() + self.size > self.limit {
                return Err(TooLarge { limit: self.limit });
            }
            return Ok(None);
        };
        self.after_cr = self.front[end] == b'\r';
        let mut line = self.front.split_to(end);
        self.front = self.front.slice(1..);
        if !self.carry.is_empty() {
            self.carry.extend_from_slice(&line);
            line = self.carry.split().freeze();
        }
        if !self.started {
            self.started = true;
            if line.starts_with("\u{feff}".as_bytes()) {
                line = line.slice(3..);
            }
        }
        Ok(Some(line))
    }
}

/// A comment line: keeps a quiet connection open and is ignored by clients.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Writes an event with `data` and, if given, an id. Line breaks inside the data become further `data` lines.
pub fn encode(id: Option<&str>, data: Payload) -> Payload {
    encode_named(None, id, data)
}

/// Like [`encode`], with an `event` field.
pub fn encode_named(name: Option<&str>, id: Option<&str>, data: Payload) -> Payload {
    let mut head = BytesMut::with_capacity(64);
    for (field, value) in [("event", name), ("id", id)] {
        if let Some(value) = value {
            head.extend_from_slice(field.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\n");
        }
    }
    head.extend_from_slice(b"data: ");
    let mut pieces = SmallVec::new();
    pieces.push(head.freeze());
    for piece in data {
        if memchr::memchr2(b'\n', b'\r', &piece).is_some() {
            pieces.push(break_lines(&piece));
        } else {
            pieces.push(piece);
        }
    }
    pieces.push(Bytes::from_static(b"\n\n"));
    Payload::from_pieces(pieces)
}

/// The first event of a stream that can be resumed from its very start, with the delay in milliseconds after
/// which a client should come back (MCP 2025-11-25, transports § Sending Messages to the Server).
pub fn encode_priming(id: &str, retry_ms: Option<u64>) -> Bytes {
    let retry = retry_ms.map(|ms| format!("retry: {ms}\n")).unwrap_or_default();
    Bytes::from(format!("id: {id}\n{retry}data: \n\n"))
}

/// Tells the client after how many milliseconds to come back once the stream has ended.
pub fn encode_retry(retry_ms: u128) -> Bytes {
    Bytes::from(format!("retry: {retry_ms}\n\n"))
}

fn break_lines(piece: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(piece.len() + 64);
    let mut rest = &piece[..];
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        let crlf = rest[at..].starts_with(b"\r\n");
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(b"\ndata: ");
        rest = &rest[at + 1 + usize::from(crlf)..];
    }
    out.extend_from_slice(rest);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(chunks: &[&[u8]]) -> Vec<Event> {
        let mut decoder = Decoder::new(1 << 20);
        let mut events = Vec::new();
        for chunk in chunks {
            decoder.feed(Bytes::copy_from_slice(chunk));
            while let Some(event) = decoder.next_event().unwrap() {
                events.push(event);
            }
        }
        events
    }

    #[test]
    fn reads_every_field_and_line_end() {
        let events = decode(&[
            b"\xef\xbb\xbf: hi\r\nevent: endpoint\rid: 1\ndata:a\ndata: b\n\nretry: 250\n\nid\ndata\n\n",
        ]);
        assert_eq!(events.len(), 3);
        assert_eq!(events[0].name.as_deref(), Some(&b"endpoint"[..]));
        assert_eq!(events[0].id.as_deref(), Some(&b"1"[..]));
        assert_eq!(events[0].data, "a\nb");
        assert_eq!(events[1].retry, Some(250));
        assert_eq!((events[2].id.as_deref(), events[2].data.len()), (Some(&b""[..]), 0));
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_given() {
        assert_eq!(decode(&[b"data: cut"]), []);
    }

    #[test]
    fn too_large_lines_and_events_are_refused_before_they_are_kept() {
        let mut decoder = Decoder::new(10);
        decoder.feed(Bytes::from_static(b"data: 0123456789"));
        assert_eq!(decoder.next_event(), Err(TooLarge { limit: 10 }));
        let mut decoder = Decoder::new(10);
        decoder.feed(Bytes::from_static(b"data:1\ndata:2\ndata:3\n"));
        assert_eq!(decoder.next_event(), Err(TooLarge { limit: 10 }));
    }

    #[test]
    fn a_line_break_in_the_data_cannot_start_a_field() {
        let text = Bytes::from_static(b"{\n\"a\":1,\r\n\"b\":\r2}\n");
        let wire = encode(Some("7"), Payload::from(text)).into_bytes();
        let events = decode(&[&wire]);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].data, "{\n\"a\":1,\n\"b\":\n2}\n");
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            text in "(data: ?[a-z]{0,3}|id: ?[0-9]|event:x|retry:9|:c|\r|\n|\r\n|z){0,40}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let chunks: Vec<&[u8]> = at.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(decode(&chunks), decode(&[bytes]));
        }

        #[test]
        fn what_is_encoded_is_decoded(texts in prop::collection::vec("[ -~é\n]{0,40}", 1..5)) {
            let wire: Vec<u8> = texts.iter().enumerate().flat_map(|(n, t)| {
                encode(Some(&n.to_string()), Payload::from(Bytes::from(t.clone()))).into_bytes().to_vec()
            }).collect();
            let got: Vec<_> = decode(&[&wire]).into_iter().map(|e| e.data).collect();
            prop_assert_eq!(got, texts);
        }

        #[test]
        fn any_bytes_are_events_or_a_typed_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = Decoder::new(64);
            decoder.feed(Bytes::from(bytes));
            while let Ok(Some(_)) = decoder.next_event() {}
        }
    }
}
