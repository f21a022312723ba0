//! Arguments as the text of a header, and whether the two are the same.

use std::borrow::Cow;

use drawbridge_wire::{header, json};

use super::annotations::{Argument, Kind};

/// Why the headers of a call are not those of its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A header is missing, malformed, or says something else.
    Header(String),
    /// An argument is there twice, so nobody knows which one counts.
    Twice(String),
}

/// The value of an argument; `None` if it is absent or null.
fn value<'a>(arguments: &'a [u8], argument: &Argument) -> Result<Option<&'a [u8]>, Wrong> {
    let mut raw = arguments;
    for key in &argument.path {
        let members = json::members(raw).unwrap_or_default();
        let mut hits = members.iter().filter(|(k, _)| k == key);
        let hit = hits.next();
        if hits.next().is_some() {
            return Err(Wrong::Twice(argument.path.join(".")));
        }
        match hit {
            Some((_, value)) => raw = value,
            None => return Ok(None),
        }
    }
    Ok((raw != b"null").then_some(raw))
}

/// A value as text: a string as it is, a whole number in decimal, a truth value as its word. Objects and lists have no
/// such form.
fn text(raw: &[u8]) -> Option<Cow<'_, str>> {
    match raw.first()? {
        b'"' => json::decode_string(raw),
        b'{' | b'[' => None,
        _ => {
            let literal = std::str::from_utf8(raw).ok()?;
            let decimal = Decimal::parse(literal).and_then(|d| d.whole());
            Some(decimal.map_or(Cow::Borrowed(literal), Cow::Owned))
        }
    }
}

/// The headers that mirror `arguments`.
pub(super) fn headers(mirrored: &[Argument], arguments: &[u8]) -> Result<Vec<(String, String)>, Wrong> {
    let mut headers = Vec::new();
    for argument in mirrored {
        if let Some(text) = value(arguments, argument)?.and_then(text) {
            headers.push((argument.header.clone(), header::encode(&text).into_owned()));
        }
    }
    Ok(headers)
}

/// Compares headers that a client sent with the arguments.
pub(super) fn check(
    mirrored: &[Argument],
    arguments: &[u8],
    headers: &[(String, String)],
) -> Result<(), Wrong> {
    for argument in mirrored {
        let name = &argument.header;
        let wrong = |what: &str| Err(Wrong::Header(format!("the {name} header {what}")));
        let mut sent = headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let (first, second) = (sent.next(), sent.next());
        if second.is_some() {
            return wrong("is there twice");
        }
        let Some(raw) = value(arguments, argument)? else {
            match first {
                Some(_) => return wrong("mirrors an argument that is not there"),
                None => continue,
            }
        };
        // An object or a list is not what the schema demands, which is for the backend to say.
        let Some(text) = text(raw) else { continue };
        let Some(sent) = first else { return wrong("is missing") };
        let Ok(sent) = header::decode(sent) else { return wrong("is malformed") };
        if text != sent && !(argument.kind == Kind::Integer && is_same_number(&text, &sent)) {
            return wrong("differs from the argument");
        }
    }
    Ok(())
}

fn is_same_number(a: &str, b: &str) -> bool {
    Decimal::parse(a).is_some_and(|a| Decimal::parse(b) == Some(a))
}

/// A number in decimal, of any size: equal numbers are equal here, however they are written.
#[derive(Debug, PartialEq, Eq)]
struct Decimal<'n> {
    negative: bool,
    /// Without zeros at either end; empty for zero.
    digits: Cow<'n, str>,
    /// Of the last digit.
    exponent: i64,
}

/// Exponents beyond this are no numbers that anybody means.
const MAX_EXPONENT: i64 = 400;

impl<'n> Decimal<'n> {
    /// Reads a number as JSON writes it.
    fn parse(literal: &'n str) -> Option<Self> {
        let is_number =
            json::Scanner::new(literal.as_bytes()).value(0).is_ok_and(|r| r == (0..literal.len()));
        if !is_number || !literal.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return None;
        }
        let unsigned = literal.strip_prefix('-').unwrap_or(literal);
        let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let exponent: i64 = exponent.parse().ok().filter(|e: &i64| e.abs() <= MAX_EXPONENT)?;
        let (digits, fraction): (Cow<'n, str>, usize) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (Cow::Owned(format!("{whole}{fraction}")), fraction.len()),
            None => (Cow::Borrowed(mantissa), 0),
        };
        let start = digits.len() - digits.trim_start_matches('0').len();
        let end = digits.trim_end_matches('0').len().max(start);
        let exponent = exponent + i64::try_from(digits.len() - end).ok()? - i64::try_from(fraction).ok()?;
        let digits = match digits {
            Cow::Borrowed(digits) => Cow::Borrowed(&digits[start..end]),
            Cow::Owned(digits) => Cow::Owned(digits[start..end].to_owned()),
        };
        if digits.is_empty() {
            return Some(Self { negative: false, digits, exponent: 0 });
        }
        Some(Self { negative: literal.starts_with('-'), digits, exponent })
    }

    /// It without point and exponent; `None` if it isn't whole.
    fn whole(&self) -> Option<String> {
        let zeros = usize::try_from(self.exponent).ok()?;
        let digits = if self.digits.is_empty() { "0" } else { &self.digits };
        Some(format!("{}{digits}{}", if self.negative { "-" } else { "" }, "0".repeat(zeros)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn argument(header: &str, path: &[&str], kind: Kind) -> Argument {
        let path = path.iter().map(|key| (*key).to_owned()).collect();
        Argument { header: format!("mcp-param-{header}"), path, kind }
    }

    fn mirrored() -> Vec<Argument> {
        vec![
            argument("s", &["s"], Kind::Text),
            argument("n", &["deep", "n"], Kind::Integer),
            argument("b", &["b"], Kind::Truth),
        ]
    }

    #[test]
    fn arguments_become_headers() {
        let built = |arguments: &str| {
            let headers = headers(&mirrored(), arguments.as_bytes()).unwrap();
            headers
                .iter()
                .map(|(n, v)| format!("{}={v}", &n["mcp-param-".len()..]))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(built(r#"{"s":"eu","deep":{"n":42},"b":true}"#), "s=eu n=42 b=true");
        assert_eq!(built(r#"{"deep":{"n":-4.20e1},"b":false}"#), "n=-42 b=false");
        assert_eq!(built(r#"{"deep":{"n":9007199254740993}}"#), "n=9007199254740993");
        assert_eq!(built(r#"{"s":null,"deep":null,"b":null}"#), "");
        assert_eq!(built(r#"{"deep":{"n":null},"x":1}"#), "");
        assert_eq!(built(r#"{"deep":[1]}"#), "");
        assert_eq!(built(r#"{"s":" é"}"#), "s==?base64?IMOp?=");
        assert_eq!(built(r#"{"s":"=?base64?YQ==?="}"#), "s==?base64?PT9iYXNlNjQ/WVE9PT89?=");
        assert_eq!(built(r#"{"s":"a\nb"}"#), "s==?base64?YQpi?=");
        assert_eq!(built(r#"{"s":""}"#), "s=");
        // Of another type than promised: whatever it is, the header says the same.
        assert_eq!(built(r#"{"s":5,"deep":{"n":"x"},"b":1.5}"#), "s=5 n=x b=1.5");
        assert_eq!(built(r#"{"s":{"a":1},"b":[]}"#), "");
        assert_eq!(built(""), "");
        assert_eq!(
            headers(&mirrored(), br#"{"deep":{"n":1,"\u006e":2}}"#),
            Err(Wrong::Twice("deep.n".to_owned()))
        );
    }

    #[test]
    fn headers_are_compared_with_arguments() {
        let arguments = br#"{"s":"eu","deep":{"n":42}}"#;
        let checked = |headers: &[(&str, &str)]| {
            let headers: Vec<_> =
                headers.iter().map(|(n, v)| (format!("Mcp-Param-{n}"), (*v).to_owned())).collect();
            check(&mirrored(), arguments, &headers).err().map(|wrong| match wrong {
                Wrong::Header(what) => what,
                Wrong::Twice(_) => unreachable!(),
            })
        };
        for number in ["42", "42.0", "4.2e1", "420E-1", "=?base64?NDI=?="] {
            assert_eq!(checked(&[("S", "eu"), ("N", number), ("Unknown", "x")]), None, "{number}");
        }
        for (headers, why) in [
            (&[("S", "eu")][..], "the mcp-param-n header is missing"),
            (&[("S", "EU"), ("N", "42")], "the mcp-param-s header differs from the argument"),
            (&[("S", "eu"), ("N", "42.5")], "the mcp-param-n header differs from the argument"),
            (&[("S", "eu"), ("N", "+42")], "the mcp-param-n header differs from the argument"),
            (&[("S", "eu"), ("N", "042")], "the mcp-param-n header differs from the argument"),
            (&[("S", "eu"), ("S", "eu"), ("N", "42")], "the mcp-param-s header is there twice"),
            (&[("S", "=?base64?!?="), ("N", "42")], "the mcp-param-s header is malformed"),
            (
                &[("S", "eu"), ("N", "42"), ("B", "true")],
                "the mcp-param-b header mirrors an argument that is not there",
            ),
        ] {
            assert_eq!(checked(headers).as_deref(), Some(why));
        }
    }

    proptest! {
        #[test]
        fn what_is_built_passes_the_check(s in ".{0,20}", n in any::<i64>(), e in 0u32..9, b in any::<bool>()) {
            let s = json::encode_string(&s);
            for number in [format!("{n}"), format!("{n}.00"), format!("{n}e{e}"), format!("{n}.5E+{e}")] {
                let arguments = format!(r#"{{"s":{s},"deep":{{"n":{number}}},"b":{b}}}"#);
                let built = headers(&mirrored(), arguments.as_bytes()).unwrap();
                prop_assert_eq!(built.len(), 3);
                prop_assert_eq!(check(&mirrored(), arguments.as_bytes(), &built), Ok(()));
            }
        }

        #[test]
        fn numbers_are_equal_if_their_values_are(a in -2000i32..2000, b in -2000i32..2000, places in 0usize..3) {
            let written = format!("{b}.{}", "0".repeat(places + 1));
            prop_assert_eq!(is_same_number(&a.to_string(), &written), a == b);
            prop_assert_eq!(is_same_number(&format!("{a}e2"), &format!("{}", a * 100)), true);
        }
    }
}
