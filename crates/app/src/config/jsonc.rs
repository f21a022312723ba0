//! JSON as editors allow it: comments and trailing commas.

/// The text as strict JSON: comments and trailing commas become blanks, so that every other character
/// keeps its line and column.
pub(super) fn to_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut comma = None;
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = token_length(rest, next);
        let (token, tail) = rest.split_at(length);
        rest = tail;
        if is_comment(token) {
            blank(token, &mut out);
            continue;
        }
        match next {
            ',' => comma = Some(out.len()),
            ']' | '}' => {
                if let Some(at) = comma.take() {
                    out.replace_range(at..=at, " ");
                }
            }
            next if next.is_whitespace() => {}
            _ => comma = None,
        }
        out.push_str(token);
    }
    out
}

fn is_comment(token: &str) -> bool {
    token.starts_with("//") || token.starts_with("/*")
}

/// The length in bytes of a string, a comment or a single character.
fn token_length(rest: &str, next: char) -> usize {
    if next == '"' {
        string_length(rest)
    } else if rest.starts_with("//") {
        rest.find('\n').unwrap_or(rest.len())
    } else if let Some(comment) = rest.strip_prefix("/*") {
        comment.find("*/").map_or(rest.len(), |end| end + 4)
    } else {
        next.len_utf8()
    }
}

fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

fn blank(comment: &str, out: &mut String) {
    out.extend(comment.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
}

#[cfg(test)]
mod tests {
    use super::to_json;

    #[test]
    fn comments_and_trailing_commas_become_blanks() {
        assert_eq!(to_json("{\"a\": [1, 2,], // x\n}"), "{\"a\": [1, 2 ]      \n}");
        assert_eq!(to_json("{/* \n */\"a\":1,/*,*/}"), "{   \n   \"a\":1      }");
    }

    #[test]
    fn text_within_strings_stays() {
        for text in [r#"{"u": "https://x/,}"}"#, r#"["\"//", "/*"]"#, r#"["\\"]"#, "\"open", "[,"] {
            assert_eq!(to_json(text), text);
        }
    }
}
