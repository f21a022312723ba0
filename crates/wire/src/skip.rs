//! Skipping a JSON value by its structure alone, 64 bytes at a time.
//!
//! For text that is JSON this finds the same end as [`crate::json::Scanner::value`], several times faster. For text
//! that is not, it may go on where the strict scanner stops: what is in between is passed on as it is, and whoever
//! parses it decides. It is for answers of backends, never for what the gateway takes decisions on.

use wide::u8x16;

/// Bits of a block of 64 bytes: bit `n` is about byte `n`.
struct Masks {
    quotes: u64,
    backslashes: u64,
    opens: u64,
    closes: u64,
}

const BLOCK: usize = 64;

fn masks(block: &[u8; BLOCK]) -> Masks {
    let mut masks = Masks { quotes: 0, backslashes: 0, opens: 0, closes: 0 };
    let (parts, _) = block.as_chunks::<16>();
    for (n, part) in parts.iter().enumerate() {
        let bytes = u8x16::from(*part);
        // Setting this bit makes '[' a '{' and ']' a '}', and nothing else one of them.
        let folded = bytes | u8x16::splat(0x20);
        let bits =
            |bytes: u8x16, byte: u8| u64::from(bytes.simd_eq(u8x16::splat(byte)).to_bitmask()) << (n * 16);
        masks.quotes |= bits(bytes, b'"');
        masks.backslashes |= bits(bytes, b'\\');
        masks.opens |= bits(folded, b'{');
        masks.closes |= bits(folded, b'}');
    }
    masks
}

/// For each bit, whether the number of set bits up to and including it is odd.
fn prefix_parity(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

/// The bytes that a backslash before them escapes. `carried` says whether the last block ended with a backslash that
/// escapes this one's first byte.
fn escaped(mut backslashes: u64, carried: &mut bool) -> u64 {
    let mut escaped = u64::from(*carried);
    *carried = false;
    backslashes &= !escaped;
    while backslashes != 0 {
        let at = backslashes.trailing_zeros();
        if at == 63 {
            *carried = true;
            break;
        }
        escaped |= 1 << (at + 1);
        backslashes &= !(0b11 << at);
    }
    escaped
}

/// The offset just behind the container that opens at `start`; `None` if it does not end.
pub(crate) fn container(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut depth = 0usize;
    let mut in_string = false;
    let mut carried = false;
    while at < text.len() {
        let rest = &text[at..];
        let padded;
        let block = match rest.first_chunk::<BLOCK>() {
            Some(block) => block,
            None => {
                padded = pad(rest);
                &padded
            }
        };
        let found = masks(block);
        if in_string && found.quotes == 0 && found.backslashes == 0 && !carried {
            // Deep inside a long text.
            at += BLOCK.min(rest.len());
            at += memchr::memchr2(b'"', b'\\', &text[at..])?;
            continue;
        }
        let escaped =
            if found.backslashes == 0 && !carried { 0 } else { escaped(found.backslashes, &mut carried) };
        let quotes = found.quotes & !escaped;
        let inside = prefix_parity(quotes) ^ if in_string { u64::MAX } else { 0 };
        in_string = inside >> 63 == 1;
        let (opens, closes) = (found.opens & !inside, found.closes & !inside);
        let closing = closes.count_ones() as usize;
        if closing < depth {
            depth += opens.count_ones() as usize;
            depth -= closing;
        } else if let Some(end) = end_within(opens, closes, &mut depth) {
            return (at + end <= text.len()).then_some(at + end);
        }
        at += BLOCK;
    }
    None
}

/// Where in a block the depth comes back to nothing.
fn end_within(opens: u64, closes: u64, depth: &mut usize) -> Option<usize> {
    let mut both = opens | closes;
    while both != 0 {
        let n = both.trailing_zeros();
        if opens >> n & 1 == 1 {
            *depth += 1;
        } else {
            *depth = depth.checked_sub(1)?;
            if *depth == 0 {
                return Some(n as usize + 1);
            }
        }
        both &= both - 1;
    }
    None
}

/// The last, shorter block, filled with blanks.
fn pad(rest: &[u8]) -> [u8; BLOCK] {
    let mut block = [b' '; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Scanner;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(Into::into),
            "[ -~é\\\\\"\\{\\}\\[\\]]{0,90}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(5, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::vec(("[a-z\\\\\"]{0,9}", inner), 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn ends_where_the_strict_scanner_ends(value in value(), before in 0usize..70, after in "[ ,\\]\\}\"]{0,70}") {
            let value = serde_json::json!([value]);
            for written in [value.to_string(), format!("{value:#}")] {
                let text = format!("{}{written}{after}", " ".repeat(before));
                let strict = Scanner::at(text.as_bytes(), before).value(0).unwrap();
                prop_assert_eq!(container(text.as_bytes(), before), Some(strict.end));
            }
        }

        #[test]
        fn any_bytes_end_somewhere_or_nowhere(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let end = container(&text, 0);
            prop_assert!(end.is_none_or(|end| end <= text.len()));
        }
    }

    #[test]
    fn backslashes_are_paired_across_blocks() {
        for n in 55..75 {
            for slashes in 1..5 {
                let inner = format!("{}{}\"", "x".repeat(n), "\\\\".repeat(slashes));
                let text = format!("[\"{inner}] ]");
                assert_eq!(container(text.as_bytes(), 0), Some(text.len() - 2), "{text}");
            }
        }
    }
}
