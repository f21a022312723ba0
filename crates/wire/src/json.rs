//! A strict scanner over JSON text (RFC 8259) that finds where values start and end and builds nothing.
//!
//! It accepts and refuses what `serde_json` does (a property test holds the two together), with a fixed
//! nesting limit. Strings are skipped in blocks, so a large text costs little more than reading it.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Deepest nesting that is accepted, as in `serde_json`.
pub const MAX_DEPTH: u32 = 127;

/// Why a text is not JSON, and at which byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {at}")]
pub struct JsonError {
    /// What was wrong.
    pub reason: &'static str,
    /// Offset in bytes from the start of the text.
    pub at: usize,
}

/// How much of a container that is only skipped is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Every byte.
    Whole,
    /// Quotes and brackets, which is several times faster and leaves it to others to find out whether what is
    /// between them is JSON.
    Structure,
}

/// A place in a JSON text. Offsets it returns refer to the whole text.
#[derive(Debug, Clone)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    pos: usize,
    reading: Reading,
}

impl<'a> Scanner<'a> {
    /// Starts at the first byte. The text must be valid UTF-8, which the caller checks once.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, pos: 0, reading: Reading::Whole }
    }

    /// Starts at `pos`, for reading a value whose place is known.
    pub fn at(bytes: &'a [u8], pos: usize) -> Self {
        Self { bytes, pos, reading: Reading::Whole }
    }

    /// Sets how containers that nobody walks through are read.
    #[must_use]
    pub fn reading(mut self, reading: Reading) -> Self {
        self.reading = reading;
        self
    }

    /// The current offset.
    pub fn position(&self) -> usize {
        self.pos
    }

    fn fail<T>(&self, reason: &'static str) -> Result<T, JsonError> {
        Err(JsonError { reason, at: self.pos })
    }

    /// Skips white space and looks at the next byte.
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(&b) = self.bytes.get(self.pos) {
            if !matches!(b, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(b);
            }
            self.pos += 1;
        }
        None
    }

    /// Skips white space and demands the end of the text.
    pub fn end(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.fail("unexpected text after the value"),
        }
    }

    /// Skips white space and consumes `byte`, which must be next.
    pub fn expect(&mut self, byte: u8, reason: &'static str) -> Result<(), JsonError> {
        if self.peek() == Some(byte) {
            self.pos += 1;
            Ok(())
        } else {
            self.fail(reason)
        }
    }

    /// Consumes `byte` if it is next.
    fn eat(&mut self, byte: u8) -> bool {
        let hit = self.peek() == Some(byte);
        self.pos += usize::from(hit);
        hit
    }

    /// Skips a string and returns its range, quotes included.
    pub fn string(&mut self) -> Result<Range<usize>, JsonError> {
        let start = {
            self.expect(b'"', "expected a string")?;
            self.pos - 1
        };
        loop {
            self.pos += plain_prefix(&self.bytes[self.pos..]);
            match self.bytes.get(self.pos) {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(start..self.pos);
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return self.fail("control character in a string"),
                None => return self.fail("string without end"),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.bytes.get(self.pos + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.pos += 2,
            Some(b'u') => {
                let hex = self.bytes.get(self.pos + 2..self.pos + 6);
                if !hex.is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)) {
                    return self.fail("bad \\u escape");
                }
                self.pos += 6;
            }
            _ => return self.fail("bad escape"),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let digits = |s: &mut Self| {
            let from = s.pos;
            while s.bytes.get(s.pos).is_some_and(u8::is_ascii_digit) {
                s.pos += 1;
            }
            s.pos - from
        };
        self.pos += usize::from(self.bytes.get(self.pos) == Some(&b'-'));
        let leading_zero = self.bytes.get(self.pos) == Some(&b'0');
        match digits(self) {
            0 => return self.fail("number without digits"),
            n if n > 1 && leading_zero => return self.fail("number with a leading zero"),
            _ => {}
        }
        if self.bytes.get(self.pos) == Some(&b'.') {
            self.pos += 1;
            if digits(self) == 0 {
                return self.fail("number without digits after the point");
            }
        }
        if matches!(self.bytes.get(self.pos), Some(b'e' | b'E')) {
            self.pos += 1;
            self.pos += usize::from(matches!(self.bytes.get(self.pos), Some(b'+' | b'-')));
            if digits(self) == 0 {
                return self.fail("number without an exponent");
            }
        }
        Ok(())
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if self.bytes[self.pos..].starts_with(word) {
            self.pos += word.len();
            Ok(())
        } else {
            self.fail("unknown word")
        }
    }

    fn scalar(&mut self, first: u8) -> Result<(), JsonError> {
        match first {
            b'"' => self.string().map(drop),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.fail("expected a value"),
        }
    }

    /// Skips one value at nesting level `depth` and returns its range.
    pub fn value(&mut self, depth: u32) -> Result<Range<usize>, JsonError> {
        // One bit per open container: 1 for an object. MAX_DEPTH keeps it within the word.
        let mut open: u128 = 0;
        let mut level = 0u32;
        let Some(mut next) = self.peek() else {
            return self.fail("expected a value");
        };
        let start = self.pos;
        if self.reading == Reading::Structure && matches!(next, b'{' | b'[') {
            let end = crate::skip::container(self.bytes, start);
            self.pos = end.unwrap_or(self.bytes.len());
            return if end.is_some() { Ok(start..self.pos) } else { self.fail("unexpected end") };
        }
        loop {
            let opened = matches!(next, b'{' | b'[');
            if opened {
                if depth + level >= MAX_DEPTH {
                    return self.fail("nested too deeply");
                }
                self.pos += 1;
                open = (open << 1) | u128::from(next == b'{');
                level += 1;
            } else {
                self.scalar(next)?;
            }
            // Close what ends here, then step to the next value of the innermost open container.
            let mut fresh = opened;
            loop {
                if level == 0 {
                    return Ok(start..self.pos);
                }
                let object = open & 1 == 1;
                let close = if object { b'}' } else { b']' };
                if self.eat(close) {
                    open >>= 1;
                    level -= 1;
                    fresh = false;
                    continue;
                }
                if !fresh {
                    self.expect(b',', if object { "expected ',' or '}'" } else { "expected ',' or ']'" })?;
                }
                if object {
                    self.peek();
                    self.string()?;
                    self.expect(b':', "expected ':'")?;
                }
                next = match self.peek() {
                    Some(b) => b,
                    None => return self.fail("unexpected end"),
                };
                break;
            }
        }
    }

    /// Walks the members of the object that is next: `each` is called with the scanner at the value and the
    /// range of the key (quotes included), and must consume the value. Returns the range of the object.
    pub fn object<E: From<JsonError>>(
        &mut self,
        mut each: impl FnMut(&mut Self, Range<usize>) -> Result<(), E>,
    ) -> Result<Range<usize>, E> {
        self.expect(b'{', "expected an object")?;
        let start = self.pos - 1;
        if self.eat(b'}') {
            return Ok(start..self.pos);
        }
        loop {
            self.peek();
            let key = self.string()?;
            self.expect(b':', "expected ':'")?;
            self.peek();
            each(self, key)?;
            if self.eat(b'}') {
                return Ok(start..self.pos);
            }
            self.expect(b',', "expected ',' or '}'")?;
        }
    }

    /// Walks the elements of the array that is next, like [`Scanner::object`].
    pub fn array<E: From<JsonError>>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<Range<usize>, E> {
        self.expect(b'[', "expected an array")?;
        let start = self.pos - 1;
        if self.eat(b']') {
            return Ok(start..self.pos);
        }
        loop {
            self.peek();
            each(self)?;
            if self.eat(b']') {
                return Ok(start..self.pos);
            }
            self.expect(b',', "expected ',' or ']'")?;
        }
    }
}

/// How many bytes from the start need no look inside a string: no quote, backslash or control character.
fn plain_prefix(bytes: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let stop = |b: u8| b == b'"' || b == b'\\' || b < 0x20;
    // Most strings are short.
    if let Some(at) = bytes.iter().take(BLOCK).position(|&b| stop(b)) {
        return at;
    }
    let mut done = 0;
    for block in bytes.chunks_exact(BLOCK) {
        let hits = block.iter().fold(0u8, |hits, &b| hits | u8::from(stop(b)));
        if hits != 0 {
            break;
        }
        done += BLOCK;
    }
    done + bytes[done..].iter().position(|&b| stop(b)).unwrap_or(bytes.len() - done)
}

/// The text of a JSON string literal (quotes included), or `None` if it is not one or holds a lone surrogate.
pub fn decode_string(literal: &[u8]) -> Option<Cow<'_, str>> {
    let inner = literal.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice::<String>(literal).ok().map(Cow::Owned)
}

/// `text` as a JSON string literal, quotes included.
pub fn encode_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A member of an object: its decoded key and its raw value.
pub type Member<'a> = (Cow<'a, str>, &'a [u8]);

/// The members of an object as (key, raw value), in order. Fails if `raw` is not one well-formed object.
pub fn members(raw: &[u8]) -> Result<Vec<Member<'_>>, JsonError> {
    let mut found = Vec::new();
    let mut scanner = Scanner::new(raw);
    scanner.object::<JsonError>(|s, key| {
        let at = key.start;
        let key = decode_string(&raw[key]).ok_or(JsonError { reason: "bad key", at })?;
        let value = s.value(1)?;
        found.push((key, &raw[value]));
        Ok(())
    })?;
    scanner.end()?;
    Ok(found)
}

/// The raw value of the first member called `key`, if `raw` is an object that has one.
pub fn member<'a>(raw: &'a [u8], key: &str) -> Option<&'a [u8]> {
    member_range(raw, key).map(|range| &raw[range])
}

/// Where the value of the first member called `key` stands, if `raw` is an object that has one.
pub fn member_range(raw: &[u8], key: &str) -> Option<Range<usize>> {
    let mut found = None;
    let mut scanner = Scanner::new(raw);
    scanner
        .object::<JsonError>(|s, name| {
            let hit = found.is_none() && decode_string(&raw[name]).is_some_and(|name| name == key);
            let value = s.value(1)?;
            if hit {
                found = Some(value);
            }
            Ok(())
        })
        .ok()?;
    found
}

/// The raw value under a path of keys.
pub fn at<'a>(raw: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    path.iter().try_fold(raw, |raw, key| member(raw, key))
}

/// Writes an object of raw members.
pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Bytes {
    let mut text = BytesMut::with_capacity(128);
    text.extend_from_slice(b"{");
    for (key, value) in members {
        if text.len() > 1 {
            text.extend_from_slice(b",");
        }
        text.extend_from_slice(encode_string(key).as_bytes());
        text.extend_from_slice(b":");
        text.extend_from_slice(value);
    }
    text.extend_from_slice(b"}");
    text.freeze()
}

/// Writes an array of raw elements.
pub fn array<'a>(elements: impl IntoIterator<Item = &'a [u8]>) -> Bytes {
    let mut text = BytesMut::with_capacity(128);
    text.extend_from_slice(b"[");
    for element in elements {
        if text.len() > 1 {
            text.extend_from_slice(b",");
        }
        text.extend_from_slice(element);
    }
    text.extend_from_slice(b"]");
    text.freeze()
}

/// The object `raw` with only the members whose key `keep` likes; `{}` if it is no object.
pub fn filter_members(raw: &[u8], keep: impl Fn(&str) -> bool) -> Bytes {
    let all = members(raw).unwrap_or_default();
    object(all.iter().filter(|(key, _)| keep(key)).map(|(key, value)| (key.as_ref(), *value)))
}

/// The member `key` of an object that has it once: of two, nobody can tell which others read.
pub fn sole_member<'a>(raw: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let all = members(raw).ok()?;
    let mut named = all.iter().filter(|(k, _)| k == key).map(|(_, value)| *value);
    named.next().filter(|_| named.next().is_none())
}

/// Whether an object has a member twice, or `raw` is no object.
pub fn is_ambiguous(raw: &[u8]) -> bool {
    let Ok(all) = members(raw) else { return true };
    let mut keys: Vec<&str> = all.iter().map(|(key, _)| key.as_ref()).collect();
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// The object `raw` with `value` as its member `key`, in the old one's place or last.
pub fn replace_member(raw: &[u8], key: &str, value: &[u8]) -> Bytes {
    let all = members(raw).unwrap_or_default();
    let known = all.iter().any(|(k, _)| k == key);
    let kept = all.iter().map(|(k, v)| (k.as_ref(), if k == key { value } else { *v }));
    object(kept.chain((!known).then_some((key, value))))
}

/// The elements of an array as raw values. Fails if `raw` is not one well-formed array.
pub fn elements(raw: &[u8]) -> Result<Vec<&[u8]>, JsonError> {
    let mut found = Vec::new();
    let mut scanner = Scanner::new(raw);
    scanner.array::<JsonError>(|s| {
        let value = s.value(1)?;
        found.push(&raw[value]);
        Ok(())
    })?;
    scanner.end()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn accepts(text: &[u8]) -> bool {
        if std::str::from_utf8(text).is_err() {
            return false;
        }
        let mut s = Scanner::new(text);
        s.value(0).and_then(|_| s.end()).is_ok()
    }

    fn serde_accepts(text: &[u8]) -> bool {
        serde_json::from_slice::<&serde_json::value::RawValue>(text).is_ok()
    }

    #[test]
    fn agrees_with_serde_json_on_the_corner_cases() {
        for text in [
            "{}",
            "[]",
            "[1,]",
            "{,}",
            "{\"a\":1,}",
            "01",
            "-",
            "-0",
            "1.",
            "1.e3",
            "1e",
            "1E+2",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\n\"",
            "\"\u{7f}\"",
            " [ { } , [ ] ] ",
            "nul",
            "nulll",
            "true false",
            "\"",
            "[",
            "{\"a\"",
            "{\"a\":",
            "{\"a\" 1}",
            "{1:2}",
            "",
            "  ",
            "[1 2]",
            "\"\\x\"",
            "[[]",
            "]",
            "1 ",
            "\u{feff}1",
        ] {
            assert_eq!(accepts(text.as_bytes()), serde_accepts(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn nesting_is_limited_where_serde_json_limits_it() {
        let nested = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        assert!(accepts(&nested(127)));
        assert!(!accepts(&nested(128)));
        assert!(!accepts(&nested(100_000)));
        assert!(serde_json::from_slice::<serde_json::Value>(&nested(127)).is_ok());
        assert!(serde_json::from_slice::<serde_json::Value>(&nested(128)).is_err());
    }

    #[test]
    fn members_are_found_under_escaped_names_too() {
        let raw = br#"{"b":[1,{"a":0}],"\u0061":"x"}"#;
        assert_eq!(member(raw, "a"), Some(&br#""x""#[..]));
        assert_eq!(at(br#"{"a":{"b":7}}"#, &["a", "b"]), Some(&b"7"[..]));
        assert_eq!(elements(b"[1, [2],\"3\"]").unwrap(), [&b"1"[..], b"[2]", b"\"3\""]);
    }

    fn json_like() -> impl Strategy<Value = Vec<u8>> {
        let token = prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\n\"", "\"", "1", "-0.5e3", "true", "null", " ", "\n",
            "\\", "é", "0",
        ]);
        prop::collection::vec(token, 0..24).prop_map(|t| t.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json_on_token_soup(text in json_like()) {
            prop_assert_eq!(accepts(&text), serde_accepts(&text));
        }

        #[test]
        fn agrees_with_serde_json_on_any_bytes(text in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(accepts(&text), serde_accepts(&text));
        }

        #[test]
        fn a_string_ends_at_its_own_quote(text in "[ -~é\n\"\\\\]{0,90}") {
            let literal = encode_string(&text);
            let padded = format!("{literal}, \"next\"");
            let range = Scanner::new(padded.as_bytes()).string().unwrap();
            prop_assert_eq!(&padded[range.clone()], literal.as_str());
            prop_assert_eq!(decode_string(&padded.as_bytes()[range]).unwrap(), text);
        }
    }
}
