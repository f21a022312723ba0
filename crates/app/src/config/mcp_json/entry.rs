//! One entry of an `mcp.json` as a backend.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::expand::expand;
use crate::config::check::Checker;
use crate::config::position::join;
use crate::config::raw::{self, Transport};
use crate::config::value::SecretSource;

/// The keys that hosts use for the URL of a server.
const URL_KEYS: [&str; 3] = ["url", "serverUrl", "httpUrl"];

/// Reads one entry and reports its faults.
pub(super) struct Entry<'e, 'a> {
    pub(super) path: &'e str,
    pub(super) checker: &'e mut Checker<'a>,
}

impl Entry<'_, '_> {
    /// The entry in the form of the configuration file; `None` if it can't be used.
    pub(super) fn read(mut self, mut entry: Map<String, Value>) -> Option<raw::Backend> {
        entry.remove("disabled");
        let before = self.checker.problems.len();
        let kind = self.kind(&mut entry);
        let urls: Vec<&str> = URL_KEYS.into_iter().filter(|key| entry.contains_key(*key)).collect();
        if let [first, second, ..] = urls[..] {
            let hint = format!("keep `{first}` or `{second}`");
            self.fault(second, "the entry has more than one URL".to_owned(), &hint);
        }
        let url = urls.first().and_then(|key| self.string(&mut entry, key));
        let transport = self.transport(kind.as_deref(), urls.first().copied(), entry.contains_key("command"));
        let backend = raw::Backend {
            url,
            transport,
            headers: self.strings(&mut entry, "headers"),
            command: self.string(&mut entry, "command"),
            args: self.list(&mut entry, "args"),
            env: self.strings(&mut entry, "env"),
            cwd: self.string(&mut entry, "cwd").map(Into::into),
            ..raw::Backend::default()
        };
        for key in entry.keys() {
            let message = format!("`{}` is not used here", join(self.path, key));
            self.checker.notice(&join(self.path, key), message);
        }
        (self.checker.problems.len() == before).then_some(backend)
    }

    fn fault(&mut self, key: &str, message: String, hint: &str) {
        self.checker.problem(&join(self.path, key), message, hint);
    }

    /// What the entry says it is, by either of the two keys that hosts use.
    fn kind(&mut self, entry: &mut Map<String, Value>) -> Option<String> {
        let kind = self.string(entry, "type");
        let transport = self.string(entry, "transport");
        kind.or(transport)
    }

    fn transport(&mut self, kind: Option<&str>, url_key: Option<&str>, command: bool) -> Option<Transport> {
        match (kind, url_key) {
            (None | Some("stdio"), None) => None,
            (Some("http" | "streamable-http" | "streamableHttp"), _) if !command => {
                Some(Transport::StreamableHttp)
            }
            (Some("sse"), _) if !command => Some(Transport::Sse),
            (None, Some("httpUrl")) => Some(Transport::StreamableHttp),
            (None, Some(_)) => None,
            (Some("stdio" | "http" | "streamable-http" | "streamableHttp" | "sse"), _) => {
                let hint = "`stdio` goes with `command`, `http` and `sse` with `url`";
                self.fault("type", "the type does not fit the other keys".to_owned(), hint);
                None
            }
            (Some(_), _) => {
                let hint = "use one of: stdio, http, streamable-http, sse";
                self.fault("type", "the gateway does not know this type of server".to_owned(), hint);
                None
            }
        }
    }

    fn string(&mut self, entry: &mut Map<String, Value>, key: &str) -> Option<String> {
        let value = entry.remove(key)?;
        self.text(key, value)
    }

    fn list(&mut self, entry: &mut Map<String, Value>, key: &str) -> Option<Vec<String>> {
        match entry.remove(key)? {
            Value::Array(items) => {
                let item = |(index, value)| self.text(&format!("{key}[{index}]"), value);
                Some(items.into_iter().enumerate().filter_map(item).collect())
            }
            Value::Null => None,
            _ => {
                self.fault(key, "expected a list".to_owned(), "write `[\"one\", \"two\"]`");
                None
            }
        }
    }

    fn strings(
        &mut self,
        entry: &mut Map<String, Value>,
        key: &str,
    ) -> Option<BTreeMap<String, SecretSource>> {
        match entry.remove(key)? {
            Value::Object(values) => {
                let pair = |(name, value): (String, Value)| {
                    let text = self.text(&join(key, &name), value)?;
                    Some((name, SecretSource::Literal(text)))
                };
                Some(values.into_iter().filter_map(pair).collect())
            }
            Value::Null => None,
            _ => {
                self.fault(key, "expected a mapping".to_owned(), "write `{ \"NAME\": \"value\" }`");
                None
            }
        }
    }

    /// A string with its variables replaced; numbers and truth values count as their spelling.
    fn text(&mut self, key: &str, value: Value) -> Option<String> {
        match value {
            Value::String(text) => match expand(&text, self.checker.env) {
                Ok(text) => Some(text),
                Err(fault) => {
                    self.fault(key, fault.message, &fault.hint);
                    None
                }
            },
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null => None,
            Value::Array(_) | Value::Object(_) => {
                self.fault(key, "expected text".to_owned(), "write the value in quotes");
                None
            }
        }
    }
}
