//! From text to the raw model: the one place that knows the YAML library.

use std::collections::HashMap;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Error;

use super::mcp_json;
use super::position::{Position, Positions, alias_limits, is_within, join};
use super::problem::{Problem, Problems, nearest, suggest};
use super::{raw, schema};

/// The largest file that is read.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

/// A parsed file with the places of its keys.
pub(super) struct Parsed {
    pub(super) file: raw::File,
    pub(super) positions: Positions,
    /// Faults of form, and what was left out of the file because of them.
    pub(super) faults: Vec<Problem>,
    pub(super) left_out: Vec<String>,
}

/// So many faults of form are reported at most.
const MAX_FAULTS: usize = 20;

/// Parses a file, with `${NAME}` in plain scalars replaced from `env`.
///
/// The library stops at the first fault: an unknown key, a value of the wrong kind, an unset variable. To find the
/// others, what is at fault is left out and the rest is read again, in a writing of its own.
///
/// # Errors
///
/// A text of which no rest can be read, such as bad YAML.
pub(super) fn parse(name: &str, bytes: &[u8], env: &Rc<HashMap<String, String>>) -> Result<Parsed, Problems> {
    let text = text_of(name, bytes)?;
    let positions = Positions::read(text);
    let first = match read::<Document>(text, env) {
        Ok(Document(file)) => {
            let file = file.unwrap_or_default();
            return Ok(Parsed { file, positions, faults: Vec::new(), left_out: Vec::new() });
        }
        Err(_) if mcp_json::is_list(text) => {
            let message =
                "this is a list of MCP servers as hosts keep it, not a configuration of the gateway";
            return Err(mcp_json::wrong_kind(name, message, "pass it with `--mcp-servers`").into());
        }
        Err(error) => explain(name, text, &error, &positions),
    };
    let (rest, mut faults) = Rest::read(text, env, |error| explain(name, text, error, &positions));
    let Some(mut rest) = rest else { return Err(first.into()) };
    faults.retain(|fault| *fault != first);
    faults.insert(0, first);
    let mut left_out: Vec<String> = faults.iter().filter_map(|fault| rest.leave_out(&fault.path)).collect();
    // Each round leaves something out, if it goes on at all.
    while faults.len() < MAX_FAULTS && !left_out.is_empty() {
        let text = rest.text();
        let error = match read::<Document>(&text, &Rc::default()) {
            Ok(Document(file)) => {
                let file = file.unwrap_or_default();
                return Ok(Parsed { file, positions, faults, left_out });
            }
            Err(error) => error,
        };
        let places = Positions::read(&text);
        let mut fault = explain(name, &text, &error, &places);
        let gone = rest.leave_out(&fault.path);
        // What lacks something that was left out is not at fault.
        if !left_out.iter().any(|out| is_within(out, &fault.path)) {
            let place = Position { line: fault.line, column: fault.column };
            let place = positions.translate(&places, place, &fault.path);
            (fault.line, fault.column) = (place.line, place.column);
            faults.push(fault);
        }
        match gone {
            Some(gone) => left_out.push(gone),
            None => break,
        }
    }
    faults.sort_by_key(|fault| (fault.line, fault.column));
    Err(Problems(faults))
}

fn read<'de, T: Deserialize<'de>>(text: &'de str, env: &Rc<HashMap<String, String>>) -> Result<T, Error> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        alias_limits: alias_limits(),
        property_map: Some(Rc::clone(env)),
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// A file without what is at fault.
struct Rest(Value);

impl Rest {
    /// The whole of it, `None` if it is no mapping; and a fault for each variable that is not set.
    fn read(
        text: &str,
        env: &Rc<HashMap<String, String>>,
        explain: impl Fn(&Error) -> Problem,
    ) -> (Option<Self>, Vec<Problem>) {
        let mut env = Rc::clone(env);
        let mut faults = Vec::new();
        while faults.len() < MAX_FAULTS {
            match read::<Value>(text, &env) {
                Ok(whole) => return (whole.is_object().then_some(Self(whole)), faults),
                Err(error) => {
                    let Some(name) = unset_variable(innermost(error.without_snippet())) else { break };
                    Rc::make_mut(&mut env).insert(name.to_owned(), "unset".to_owned());
                    faults.push(explain(&error));
                }
            }
        }
        (None, faults)
    }

    /// Takes out what is at `path`, or the mapping that lacks it, or the list that it is in. Returns what went.
    fn leave_out(&mut self, path: &str) -> Option<String> {
        let path = path.split('[').next().unwrap_or(path);
        let candidates = [Some(path), path.rsplit_once('.').map(|(above, _)| above)];
        let gone = candidates.into_iter().flatten().find(|path| take(&mut self.0, path));
        gone.map(str::to_owned)
    }

    fn text(&self) -> String {
        format!("{:#}", self.0)
    }
}

/// Takes out what is at `path`, whose keys may have dots of their own. Returns whether it was there.
fn take(value: &mut Value, path: &str) -> bool {
    let Some(mapping) = value.as_object_mut() else { return false };
    let below = |key: &str| path.strip_prefix(key).and_then(|rest| rest.strip_prefix('.'));
    mapping.remove(path).is_some()
        || mapping.iter_mut().any(|(key, value)| below(key).is_some_and(|rest| take(value, rest)))
}

fn unset_variable(error: &Error) -> Option<&str> {
    match error {
        Error::UnresolvedProperty { name, .. }
        | Error::PropertyRequiredButUnset { name, .. }
        | Error::PropertyRequiredButEmpty { name, .. } => Some(name),
        _ => None,
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
        (Some(position), Error::SerdeMissingField { .. }) => {
            let above = || positions.path_at(position)?.rsplit_once('.').map(|(above, _)| above);
            positions.mapping_at(position).or_else(above)
        }
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
            let near = nearest(field, expected).is_some();
            let hint = match schema::place_of(field).filter(|_| !near) {
                Some(place) => format!("it belongs under `{place}`"),
                None => suggest(field, expected.iter().copied()),
            };
            return (path.to_owned(), "unknown key".to_owned(), hint);
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
        other if other.to_string().starts_with("invalid u") => {
            ("not a usable value".to_owned(), "write a whole number".to_owned())
        }
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
        "string scalar" => "a single value",
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
