//! Cutting a byte stream into lines.

use bytes::{Bytes, BytesMut};

/// How much of a line that is too long is kept.
const HEAD_BYTES: usize = 256;
const READ_BYTES: usize = 16 * 1024;

/// One line of a server's stdout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its line end. Any bytes; UTF-8 is for the reader to check.
    Text(Bytes),
    /// A line longer than [`Spec::max_line_bytes`](super::Spec::max_line_bytes), which was skipped up to its end.
    TooLong {
        /// Its length, without the line end.
        bytes: u64,
        /// How it began: enough to say in a log what it was.
        head: Bytes,
    },
}

/// Lines end with LF or CRLF, and the last one at the end of the stream. Lines of nothing but white space are left
/// out. Never holds more than one line of the allowed length and what one read added to it.
#[derive(Debug)]
pub(super) struct Framer {
    buffer: BytesMut,
    /// How much of `buffer` is known to hold no line end.
    scanned: usize,
    max_bytes: usize,
    head_bytes: usize,
    skipped: Option<Skipped>,
}

/// The part of a line that is too long which has gone by.
#[derive(Debug)]
struct Skipped {
    head: Bytes,
    bytes: u64,
    ends_in_cr: bool,
}

impl Framer {
    pub(super) fn new(max_bytes: usize) -> Self {
        let head_bytes = max_bytes.min(HEAD_BYTES);
        Self { buffer: BytesMut::new(), scanned: 0, max_bytes, head_bytes, skipped: None }
    }

    /// Keeps as much of a line that is too long as of one that is not.
    pub(super) fn truncating(max_bytes: usize) -> Self {
        Self { head_bytes: max_bytes, ..Self::new(max_bytes) }
    }

    /// Where to read to. Call [`next_line`](Self::next_line) until it has none before reading again.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
            self.buffer.reserve(READ_BYTES);
        }
        &mut self.buffer
    }

    pub(super) fn next_line(&mut self) -> Option<Line> {
        loop {
            let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', unseen) else {
                self.scanned = self.buffer.len();
                self.skip_what_is_too_long();
                return None;
            };
            let mut line = self.buffer.split_to(self.scanned + at + 1).freeze();
            line.truncate(line.len() - 1);
            self.scanned = 0;
            if let Some(line) = self.complete(line) {
                return Some(line);
            }
        }
    }

    /// The line that the end of the stream ended.
    pub(super) fn finish(&mut self) -> Option<Line> {
        self.scanned = 0;
        let rest = self.buffer.split().freeze();
        self.complete(rest)
    }

    fn complete(&mut self, mut line: Bytes) -> Option<Line> {
        if let Some(skipped) = self.skipped.take() {
            let ends_in_cr = line.last().map_or(skipped.ends_in_cr, |last| *last == b'\r');
            let bytes = skipped.bytes + line.len() as u64 - u64::from(ends_in_cr);
            return Some(Line::TooLong { bytes, head: skipped.head });
        }
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.max_bytes {
            let head = Bytes::copy_from_slice(line.get(..self.head_bytes).unwrap_or_default());
            return Some(Line::TooLong { bytes: line.len() as u64, head });
        }
        (!line.trim_ascii().is_empty()).then_some(Line::Text(line))
    }

    fn skip_what_is_too_long(&mut self) {
        let bytes = self.buffer.len() as u64;
        let ends_in_cr = self.buffer.last().map(|last| *last == b'\r');
        if let Some(skipped) = &mut self.skipped {
            skipped.bytes += bytes;
            skipped.ends_in_cr = ends_in_cr.unwrap_or(skipped.ends_in_cr);
            self.buffer.clear();
        } else if self.buffer.len() > self.max_bytes.saturating_add(1) {
            // One more than allowed could still be the CR of the line end.
            let head = Bytes::copy_from_slice(self.buffer.get(..self.head_bytes).unwrap_or_default());
            self.skipped = Some(Skipped { head, bytes, ends_in_cr: ends_in_cr.unwrap_or(false) });
            self.buffer = BytesMut::new();
        } else {
            return;
        }
        self.scanned = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(max_bytes: usize, pieces: &[&[u8]]) -> Vec<Line> {
        let mut framer = Framer::new(max_bytes);
        let mut lines = Vec::new();
        for piece in pieces {
            framer.buffer().extend_from_slice(piece);
            lines.extend(std::iter::from_fn(|| framer.next_line()));
        }
        lines.extend(framer.finish());
        assert_eq!(framer.finish(), None);
        lines
    }

    /// The same in three lines, for a stream that is there as a whole.
    fn model(max_bytes: usize, stream: &[u8]) -> Vec<Line> {
        stream
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .filter(|line| line.len() > max_bytes || !line.trim_ascii().is_empty())
            .map(|line| {
                if line.len() > max_bytes {
                    let head = Bytes::copy_from_slice(&line[..max_bytes.min(HEAD_BYTES)]);
                    Line::TooLong { bytes: line.len() as u64, head }
                } else {
                    Line::Text(Bytes::copy_from_slice(line))
                }
            })
            .collect()
    }

    fn text(line: &'static str) -> Line {
        Line::Text(Bytes::from_static(line.as_bytes()))
    }

    #[test]
    fn lines_end_with_lf_crlf_or_the_stream() {
        assert_eq!(
            frame(10, &[b"a\nb\r\n\n \t\r\nc\rd\n", b"e"]),
            [text("a"), text("b"), text("c\rd"), text("e")]
        );
    }

    #[test]
    fn a_line_may_be_as_long_as_allowed_and_its_line_end_does_not_count() {
        assert_eq!(frame(3, &[b"abc\r", b"\nabc\n"]), [text("abc"), text("abc")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_to_its_end() {
        let skipped = Line::TooLong { bytes: 7, head: Bytes::from_static(b"abc") };
        assert_eq!(frame(3, &[b"ab", b"cde", b"fg\r", b"\nxyz\n"]), [skipped.clone(), text("xyz")]);
        assert_eq!(frame(3, &[b"abcdefg"]), [skipped]);
    }

    #[test]
    fn a_line_that_is_too_long_takes_no_memory() {
        let mut framer = Framer::new(1000);
        for _ in 0..1000 {
            framer.buffer().extend_from_slice(&[b'x'; 4096]);
            assert_eq!(framer.next_line(), None);
            assert!(framer.buffer.capacity() <= 2 * READ_BYTES, "{}", framer.buffer.capacity());
        }
        assert!(matches!(framer.finish(), Some(Line::TooLong { bytes: 4_096_000, .. })));
    }

    #[test]
    fn truncating_keeps_the_start() {
        let mut framer = Framer::truncating(1000);
        framer.buffer().extend_from_slice(&[b'x'; 2000]);
        assert_eq!(framer.next_line(), None);
        assert_eq!(framer.finish(), Some(Line::TooLong { bytes: 2000, head: Bytes::from(vec![b'x'; 1000]) }));
    }

    /// Bytes in which line ends are frequent.
    fn byte() -> impl Strategy<Value = u8> {
        prop_oneof![3 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(b'\r'), 1 => Just(b' ')]
    }

    proptest! {
        #[test]
        fn any_split_gives_the_lines_of_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(byte(), 0..20), 0..12),
            max_bytes in 0_usize..12,
        ) {
            let split: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(frame(max_bytes, &split), model(max_bytes, &pieces.concat()));
        }
    }
}
