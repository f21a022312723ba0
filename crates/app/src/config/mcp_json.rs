//! Import of the list of MCP servers that hosts keep (`mcp.json`, `claude_desktop_config.json`, ...).
//!
//! Each entry becomes a backend as if it had been written in the configuration file, and then passes the
//! same checks. What a host understands and the gateway does not is a notice, never a silent difference.

mod entry;
mod expand;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};

use self::entry::Entry;
use super::check::{self, Checker};
use super::jsonc;
use super::model::Backend;
use super::parse::text_of;
use super::position::{Positions, join};
use super::problem::{Notice, Problem, Problems};

/// What a list of MCP servers gave.
pub(super) struct Imported {
    /// The backends by the name they have in the gateway.
    pub(super) backends: BTreeMap<String, Backend>,
    /// The path of each entry in the file, by the name it has in the gateway; faulty entries included.
    pub(super) paths: BTreeMap<String, String>,
    pub(super) positions: Positions,
    pub(super) problems: Vec<Problem>,
    pub(super) notices: Vec<Notice>,
}

/// Reads a list of MCP servers.
///
/// # Errors
///
/// A file that is no such list at all; faults of single entries are in [`Imported::problems`].
pub(super) fn import(file: &str, bytes: &[u8], env: &HashMap<String, String>) -> Result<Imported, Problems> {
    let text = text_of(file, bytes)?;
    if Positions::read(text).has_any(&["backends", "endpoints", "public", "admin"]) {
        return Err(wrong_kind(
            file,
            "this is a configuration of the gateway, not a list of MCP servers as hosts keep it",
            "pass it with `--config`",
        )
        .into());
    }
    let text = jsonc::to_json(text);
    let document: Value = serde_json::from_str(&text).map_err(|error| syntax(file, &error))?;
    let positions = Positions::read(&text);
    let flags = BTreeMap::new();
    let mut checker = Checker::new(file, &positions, &flags, env);
    let entries = checker.entries(document);
    let names = checker.names(&entries);
    let mut backends = BTreeMap::new();
    let mut paths = BTreeMap::new();
    for ((path, _, value), name) in entries.into_iter().zip(names) {
        paths.insert(name.clone(), path.clone());
        let entry = Entry { path: &path, checker: &mut checker };
        if let Some(raw) = entry.read(value)
            && let Some(backend) = check::backend(&mut checker, &path, raw)
        {
            backends.insert(name, backend);
        }
    }
    let (problems, notices) = checker.finish();
    Ok(Imported { backends, paths, positions, problems, notices })
}

/// Whether a text is a list of MCP servers as hosts keep it.
pub(super) fn is_list(text: &str) -> bool {
    let document: Result<Map<String, Value>, _> = serde_json::from_str(&jsonc::to_json(text));
    document.is_ok_and(|document| LIST_KEYS.iter().any(|key| document.contains_key(*key)))
}

/// The problem with a file that was given in place of another.
pub(super) fn wrong_kind(file: &str, message: &str, hint: &str) -> Problem {
    Problem {
        file: file.to_owned(),
        line: 1,
        column: 1,
        path: String::new(),
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}

fn syntax(file: &str, error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    Problem {
        file: file.to_owned(),
        line: error.line() as u64,
        column: error.column() as u64,
        path: String::new(),
        message: text.split(" at line ").next().unwrap_or(&text).to_owned(),
        hint: Some("the file is JSON; comments and trailing commas are allowed".to_owned()),
    }
}

impl Checker<'_> {
    /// The entries that are switched on, each with its path and its name in the file.
    fn entries(&mut self, document: Value) -> Vec<(String, String, Map<String, Value>)> {
        let Value::Object(mut document) = document else {
            self.problem("", "the file is not a list of MCP servers", KEY_HINT);
            return Vec::new();
        };
        let mut entries = Vec::new();
        let mut found = false;
        for key in LIST_KEYS {
            match document.remove(key) {
                Some(Value::Object(servers)) => {
                    found = true;
                    for (name, value) in servers {
                        entries.extend(self.entry(join(key, &name), name, value));
                    }
                }
                Some(_) => {
                    found = true;
                    self.problem(key, "expected a mapping of names to servers", KEY_HINT);
                }
                None => {}
            }
        }
        if !found {
            self.problem("", "the file has neither `mcpServers` nor `servers`", KEY_HINT);
        }
        entries
    }

    fn entry(
        &mut self,
        path: String,
        name: String,
        value: Value,
    ) -> Option<(String, String, Map<String, Value>)> {
        let Value::Object(entry) = value else {
            self.problem(&path, "expected a mapping", "write `{ \"command\": ... }` or `{ \"url\": ... }`");
            return None;
        };
        if entry.get("disabled") == Some(&Value::Bool(true)) {
            self.notice(&path, format!("`{name}` is disabled there and left out"));
            return None;
        }
        Some((path, name, entry))
    }

    /// The name of each entry in the gateway. A name that fits is kept, the others are made to fit around it.
    fn names(&mut self, entries: &[(String, String, Map<String, Value>)]) -> Vec<String> {
        let fits = |name: &str| check::name_fault(name).is_none();
        let mut taken: BTreeSet<String> = BTreeSet::new();
        let mut names: Vec<Option<String>> = entries
            .iter()
            .map(|(_, name, _)| (fits(name) && taken.insert(name.clone())).then(|| name.clone()))
            .collect();
        for ((path, name, _), slot) in entries.iter().zip(&mut names) {
            if slot.is_none() {
                let fitted = free_name(&fitting(name), &taken);
                self.notice(path, format!("`{name}` is called `{fitted}` here"));
                taken.insert(fitted.clone());
                *slot = Some(fitted);
            }
        }
        names.into_iter().flatten().collect()
    }
}

const LIST_KEYS: [&str; 2] = ["mcpServers", "servers"];

const KEY_HINT: &str = "use a file as hosts keep it: { \"mcpServers\": { \"name\": { ... } } }";

/// `My Server` as `my-server`.
fn fitting(name: &str) -> String {
    let mut fitted = String::new();
    for c in name.chars() {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            fitted.push(c);
        } else if !fitted.is_empty() && !fitted.ends_with('-') {
            fitted.push('-');
        }
    }
    fitted.truncate(32);
    let fitted = fitted.trim_end_matches('-');
    match fitted {
        "" => "server".to_owned(),
        "sse" | "messages" => format!("{fitted}-server"),
        fitted => fitted.to_owned(),
    }
}

fn free_name(name: &str, taken: &BTreeSet<String>) -> String {
    let numbered = (2_usize..).map(|number| {
        let suffix = format!("-{number}");
        let stem = name.get(..32 - suffix.len()).unwrap_or(name).trim_end_matches('-');
        format!("{stem}{suffix}")
    });
    std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default()
}
