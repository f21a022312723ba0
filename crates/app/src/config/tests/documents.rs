//! The reference and the example file say what the code does.

use std::collections::BTreeSet;

use serde_json::Value;

use super::load_text;
use crate::config::schema::generate;
use crate::config::{Backend, BackendKind, Config, HttpBackend, StdioBackend};

const REFERENCE: &str = include_str!("../../../../../docs/configuration.md");
const EXAMPLE: &str = include_str!("../reference.yaml");

#[derive(Default)]
struct Found {
    all: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

/// The paths of all keys of a schema, with `NAME` for names that the operator chooses. The forms of a secret
/// are the same everywhere and have no path of their own.
fn paths(root: &Value, schema: &Value, path: &str, found: &mut Found) {
    let reference = schema.get("$ref").and_then(Value::as_str);
    if reference.is_some_and(|reference| reference.ends_with("/Secret")) {
        found.secrets.insert(path.to_owned());
    }
    if let Some(reference) = reference.filter(|reference| !reference.ends_with("/Secret")) {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        paths(root, target, path, found);
    }
    for key in ["anyOf", "oneOf"] {
        for branch in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            paths(root, branch, path, found);
        }
    }
    if let Some(items) = schema.get("items") {
        paths(root, items, &format!("{path}[]"), found);
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        paths(root, values, &format!("{path}.NAME"), found);
    }
    for (key, value) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        paths(root, value, &path, found);
        found.all.insert(path);
    }
}

/// The paths of all secrets, with `NAME` where one has a name of the operator's.
pub(super) fn secret_paths() -> BTreeSet<String> {
    let schema = generate();
    let mut found = Found::default();
    paths(&schema, &schema, "", &mut found);
    found.secrets
}

pub(super) fn all_paths() -> BTreeSet<String> {
    let schema = generate();
    let mut found = Found::default();
    paths(&schema, &schema, "", &mut found);
    found.all
}

#[test]
fn every_key_has_a_row_in_the_reference() {
    let all = all_paths();
    assert!(all.contains("backends.NAME.env") && all.contains("seal.keys[].key"), "{all:?}");
    let is_section = |path: &str| all.iter().any(|other| other.starts_with(&format!("{path}.")));
    let has_row = |path: &str| REFERENCE.contains(&format!("| `{path}` |"));
    let missing: Vec<&String> = all.iter().filter(|path| !is_section(path) && !has_row(path)).collect();
    assert!(missing.is_empty(), "docs/configuration.md has no row for {missing:?}");
}

#[test]
fn the_example_is_the_defaults_and_its_backends() {
    let mut expected = Config::default();
    let url = "https://tickets.internal/mcp".parse().unwrap();
    expected.backends.insert("tickets".to_owned(), Backend::new(BackendKind::Http(HttpBackend::new(url))));
    expected.backends.insert("files".to_owned(), Backend::new(BackendKind::Stdio(StdioBackend::new("npx"))));
    assert_eq!(load_text(EXAMPLE, &[]).unwrap().config, expected);
}

#[test]
fn the_example_names_every_key() {
    for path in &all_paths() {
        let key = path.rsplit('.').next().unwrap_or(path);
        assert!(EXAMPLE.contains(&format!("{key}:")), "reference.yaml does not show {path}");
    }
}

#[test]
fn an_empty_file_is_the_defaults() {
    for text in ["", "# nothing\n", "{}", "public:\nlimits: {}\nbackends:\n"] {
        assert_eq!(load_text(text, &[]).unwrap().config, Config::default(), "{text:?}");
    }
}
