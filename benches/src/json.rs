//! Finds members of a JSON object without decoding it: all that the hot paths of backend and load need.

/// The raw value of the first member `key` at the top level of `object`, if it is complete or a plain token.
pub(crate) fn member<'a>(object: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut at = skip_blank(object, 0);
    if object.get(at) != Some(&b'{') {
        return None;
    }
    at = skip_blank(object, at + 1);
    while object.get(at) == Some(&b'"') {
        let end = skip_string(object, at)?;
        let found = object.get(at + 1..end - 1)? == key.as_bytes();
        at = skip_blank(object, end);
        if object.get(at) != Some(&b':') {
            return None;
        }
        at = skip_blank(object, at + 1);
        let end = skip_value(object, at)?;
        if found {
            return object.get(at..end);
        }
        at = skip_blank(object, end);
        if object.get(at) != Some(&b',') {
            return None;
        }
        at = skip_blank(object, at + 1);
    }
    None
}

/// Like [`member`] for a string without escapes, without its quotes.
pub(crate) fn text<'a>(object: &'a [u8], key: &str) -> Option<&'a [u8]> {
    member(object, key)?.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

fn skip_blank(json: &[u8], mut at: usize) -> usize {
    while json.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The position after the string that starts at `at`.
fn skip_string(json: &[u8], mut at: usize) -> Option<usize> {
    at += 1;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn skip_value(json: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match json.get(at)? {
            b'"' => at = skip_string(json, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            b',' | b':' => {
                at += 1;
                continue;
            }
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            _ => {
                while json
                    .get(at)
                    .is_some_and(|b| !matches!(b, b',' | b'}' | b']') && !b.is_ascii_whitespace())
                {
                    at += 1;
                }
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{member, text};

    #[test]
    fn finds_top_level_members_only() {
        let json = br#" { "a" : {"id": 1, "s": "}\"" }, "id" : 42 , "list":[ {"x":[]}, 2 ],"name":"echo","last":true}"#;
        assert_eq!(member(json, "id"), Some(&b"42"[..]));
        assert_eq!(member(json, "a"), Some(&br#"{"id": 1, "s": "}\"" }"#[..]));
        assert_eq!(member(json, "list"), Some(&br#"[ {"x":[]}, 2 ]"#[..]));
        assert_eq!(text(json, "name"), Some(&b"echo"[..]));
        assert_eq!(member(json, "last"), Some(&b"true"[..]));
        assert_eq!(member(json, "x"), None);
    }

    #[test]
    fn survives_cut_and_foreign_input() {
        assert_eq!(member(br#"{"id":7,"result":{"text":"cut"#, "id"), Some(&b"7"[..]));
        assert_eq!(member(br#"{"id":7,"result":{"text":"cut"#, "result"), None);
        for junk in [&b""[..], b"[]", b"{", b"{\"", b"{\"id\"", b"{\"id\":", b"{\"id\":}", b"{}"] {
            assert_eq!(member(junk, "id"), None, "{}", String::from_utf8_lossy(junk));
        }
    }
}
