//! HTTP header names of MCP and the encoding of their values (MCP 2026-07-28, streamable HTTP § Request
//! Metadata).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Session id of the legacy era.
pub const SESSION_ID: &str = "mcp-session-id";
/// Protocol version of the request.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The body's `method` (modern era).
pub const METHOD: &str = "mcp-method";
/// The body's `params.name`, `params.uri` or `params.taskId` (modern era).
pub const NAME: &str = "mcp-name";
/// Prefix of headers that mirror annotated tool arguments (modern era).
pub const PARAM_PREFIX: &str = "mcp-param-";
/// The last event a resuming client has seen (legacy era).
pub const LAST_EVENT_ID: &str = "last-event-id";

const OPEN: &str = "=?base64?";
const CLOSE: &str = "?=";

/// A header value that claims to be Base64 and is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value is marked as Base64 but is not strict Base64 of UTF-8 text")]
pub struct BadEncoding;

/// The text that a header value stands for.
pub fn decode(value: &str) -> Result<Cow<'_, str>, BadEncoding> {
    let value = value.trim_matches([' ', '\t']);
    let Some(inner) = value.strip_prefix(OPEN).and_then(|v| v.strip_suffix(CLOSE)) else {
        return Ok(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(inner).ok().ok_or(BadEncoding)?;
    String::from_utf8(bytes).ok().map(Cow::Owned).ok_or(BadEncoding)
}

/// `text` as a header value, in Base64 only where the plain form is not allowed.
pub fn encode(text: &str) -> Cow<'_, str> {
    let marked = text.starts_with(OPEN) && text.ends_with(CLOSE);
    let padded = text.starts_with(' ') || text.ends_with(' ');
    if !marked && !padded && text.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{OPEN}{}{CLOSE}", STANDARD.encode(text)))
    }
}

/// Which of the body's fields `Mcp-Name` mirrors for `method`.
pub fn name_field(method: &str) -> Option<crate::message::Field> {
    use crate::message::Field;
    match method {
        crate::method::TOOLS_CALL | crate::method::PROMPTS_GET => Some(Field::Name),
        crate::method::RESOURCES_READ => Some(Field::Uri),
        crate::method::TASKS_GET | crate::method::TASKS_UPDATE | crate::method::TASKS_CANCEL => {
            Some(Field::TaskId)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn base64_is_strict() {
        assert_eq!(decode("=?base64?w6k=?=").unwrap(), "é");
        for bad in ["=?base64?w6k?=", "=?base64?w6-=?=", "=?base64?/w==?=", "=?base64? w6k=?="] {
            assert_eq!(decode(bad), Err(BadEncoding), "{bad}");
        }
        for literal in ["=?BASE64?w6k=?=", "=?base64?w6k=", "w6k=?="] {
            assert_eq!(decode(literal).unwrap(), literal);
        }
    }

    proptest! {
        #[test]
        fn any_text_survives_the_header(text in any::<String>()) {
            let value = encode(&text).into_owned();
            prop_assert!(value.bytes().all(|b| (0x20..=0x7e).contains(&b)));
            prop_assert_eq!(decode(&value).unwrap(), text);
        }

        #[test]
        fn any_value_is_decoded_or_refused(value in any::<String>()) {
            drop(decode(&value));
        }
    }
}
