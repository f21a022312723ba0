//! From text to the raw model: the one place that knows the YAML library.

use std::collections::HashMap;
use std::rc::Rc;

use serde::Deserialize;
use serde_saphyr::Error;

use super::position::{Position, Positions, alias_limits, join};
use super::problem::{Problem, Problems, suggest};
use super::raw;

/// The largest file that is read.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

/// A parsed file with the places of its keys.
pub(super) struct Parsed {
    pub(super) file: raw::File,
    pub(super) positions: Positions,
}

/// Parses a file, with `${NAME}` in plain scalars replaced from `env`.
///
/// # Errors
///
/// The first fault of form: bad YAML, an unknown key, a value of the wrong kind, an unset variable.
pub(super) fn parse(name: &str, bytes: &[u8], env: &Rc<HashMap<String, String>>) -> Result<Parsed, Problems> {
    let text = text_of(name, bytes)?;
    let positions = Positions::read(text);
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        alias_limits: alias_limits(),
        property_map: Some(Rc::clone(env)),
    };
    match serde_saphyr::from_str_with_options::<Document>(text, options) {
        Ok(Document(file)) => Ok(Parsed { file: file.unwrap_or_default(), positions }),
        Err(error) => Err(explain(name, text, &error, &positions).into()),
    }
}

/// The whole file; one without any key is an empty configuration.
#[derive(Deserialize)]
struct Document(Option<raw::File>);

/// The text of a file within the size cap and without a byte order mark.
pub(super) fn text_of<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, Problem> {
    let fault = |end: usize, message: String, hint: &str| Problem {
        file: name.to_owned(),
        line: bytes[..end].iter().filter(|byte| **byte == b'\n').count() as u64 + 1,
        column: bytes[..end].rsplit(|byte| *byte == b'\n').next().map_or(0, <[u8]>::len) as u64 + 1,
        path: String::new(),
        message,
        hint: Some(hint.to_owned()),
    };
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(fault(
            0,
            format!("the file is larger than {MAX_FILE_BYTES} bytes"),
            "is it the right file?",
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        fault(error.valid_up_to(), "the file is not UTF-8".to_owned(), "save it as UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn explain(name: &str, text: &str, error: &Error, positions: &Positions) -> Problem {
    let error = error.without_snippet();
    let position = error.location().map(Position::from);
    let error = innermost(error);
    let path = match (position, error) {
        (Some(position), Error::SerdeMissingField { .. }) => positions.mapping_at(position),
        (Some(position), _) => positions.path_at(position),
        (None, _) => None,
    };
    let (path, message, mut hint) = describe(error, path.unwrap_or_default());
    if position.is_some_and(|position| has_variable_in_flow(text, position)) {
        hint =
            format!("`${{NAME}}` can't stand within {{ }} or [ ]: give the key a line of its own, or {hint}");
    }
    Problem {
        file: name.to_owned(),
        line: position.map_or(0, |position| position.line),
        column: position.map_or(0, |position| position.column),
        path,
        message,
        hint: Some(hint),
    }
}

/// Whether the line at a place has `${` behind an opening bracket, where YAML takes its `{` for a mapping.
fn has_variable_in_flow(text: &str, position: Position) -> bool {
    let line = usize::try_from(position.line).ok().and_then(|line| text.lines().nth(line.saturating_sub(1)));
    let before = line.and_then(|line| line.split_once("${")).map_or("", |(before, _)| before);
    before.contains(['{', '['])
}

/// An error behind an alias is that of the aliased value.
fn innermost(error: &Error) -> &Error {
    match error {
        Error::AliasError { error, .. } => innermost(error.without_snippet()),
        error => error,
    }
}

/// Path, message and hint of a fault of form. No message repeats a value: it may be a misplaced secret.
fn describe(error: &Error, path: &str) -> (String, String, String) {
    let (message, hint) = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let path = if path.is_empty() { field } else { path };
            return (path.to_owned(), "unknown key".to_owned(), suggest(field, expected.iter().copied()));
        }
        Error::SerdeMissingField { field, .. } => {
            return (join(path, field), "this key is required".to_owned(), format!("add `{field}`"));
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            (format!("unknown value `{variant}`"), suggest(variant, expected.iter().copied()))
        }
        Error::SerdeInvalidType { unexpected, expected, .. } => {
            (format!("can't be {}", kind_of(unexpected)), format!("write {}", plain_words(expected)))
        }
        Error::SerdeInvalidValue { expected, .. } => {
            ("not a usable value".to_owned(), format!("write {}", plain_words(expected)))
        }
        Error::Unexpected { expected, .. } => {
            ("not the right kind of value".to_owned(), format!("write {}", plain_words(expected)))
        }
        Error::Message { msg, .. } => of_message(msg),
        Error::InvalidBooleanStrict { .. } => {
            ("not a truth value".to_owned(), "write true or false".to_owned())
        }
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or_default();
            (format!("the key `{key}` is given twice"), "keep one of the two".to_owned())
        }
        Error::UnresolvedProperty { name, .. } => {
            (not_set(name), format!("set {name}, or give a default: ${{{name}:-default}}"))
        }
        Error::PropertyRequiredButUnset { name, message, .. }
        | Error::PropertyRequiredButEmpty { name, message, .. } => {
            let hint = if message.is_empty() { format!("set {name}") } else { message.clone() };
            (not_set(name), hint)
        }
        Error::InvalidPropertyName { .. } => {
            let hint = "write ${NAME} or ${NAME:-default}, or put a literal `${` in quotes";
            ("not the name of an environment variable".to_owned(), hint.to_owned())
        }
        Error::MultipleDocuments { .. } => {
            let hint = "remove the line `---` and what follows it";
            ("the file holds more than one document".to_owned(), hint.to_owned())
        }
        Error::NullIntoString { .. } => ("the value is missing".to_owned(), "write text".to_owned()),
        Error::NonFiniteFloat { .. } => ("not a usable number".to_owned(), "put text in quotes".to_owned()),
        other => {
            let hint = "check indentation (spaces, no tabs), brackets and quotes at and above this place";
            (without_place(&other.to_string()), hint.to_owned())
        }
    };
    (path.to_owned(), message, hint)
}

fn not_set(name: &str) -> String {
    format!("environment variable {name} is not set")
}

/// A message of a value's own reader: `expected ...` by house rule, or one of the standard library.
fn of_message(message: &str) -> (String, String) {
    let expected = if message.starts_with("invalid socket address") {
        "an address and port, such as `127.0.0.1:8080` or `[::1]:8080`"
    } else if let Some(expected) = message.strip_prefix("expected ") {
        expected
    } else {
        return (without_place(message), "see this key in the documentation".to_owned());
    };
    ("not a usable value".to_owned(), format!("write {expected}"))
}

/// `string "hunter2"` without the value.
fn kind_of(unexpected: &str) -> &str {
    let end = unexpected.find([' ', '`', '"']).unwrap_or(unexpected.len());
    match &unexpected[..end] {
        "string" => "text",
        "integer" | "floating" => "a number",
        "boolean" => "true or false",
        "map" => "a mapping",
        "sequence" => "a list",
        "unit" | "null" => "nothing",
        _ => "something else",
    }
}

/// Names of Rust types in the words of a YAML file.
fn plain_words(expected: &str) -> &str {
    match expected {
        "a string" | "path string" => "text",
        "a boolean" => "true or false",
        "usize" => "a whole number",
        "a nonzero usize" => "a whole number above 0",
        "a sequence" | "sequence start" => "a list",
        "a map" | "mapping start" => "a mapping",
        expected if expected.starts_with("struct ") => "a mapping",
        expected => expected,
    }
}

/// The library ends its messages with the place, which we print in front.
fn without_place(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or(message);
    let message = message.strip_suffix('.').unwrap_or(message);
    let first_line = message.lines().next().unwrap_or_default();
    first_line.strip_prefix("error: ").unwrap_or(first_line).to_owned()
}
