//! What the documentation says of the code, held against the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn sources(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_error_code_has_its_section() {
    let fault = read("crates/core/src/fault.rs");
    let (_, list) = fault.split_once("pub const CODES").unwrap();
    let (_, list) = list.split_once("= [").unwrap();
    let codes: BTreeSet<&str> = list.split(']').next().unwrap().split('"').skip(1).step_by(2).collect();
    let page = read("docs/errors.md");
    let sections: BTreeSet<&str> =
        page.lines().filter_map(|l| l.strip_prefix("## `")?.strip_suffix('`')).collect();
    assert!(codes.len() > 5);
    assert_eq!(codes, sections);
}

#[test]
fn every_rule_has_a_row_and_every_numbered_test_stands_in_it() {
    let page = read("docs/testing.md");
    let rows: Vec<&str> = page.lines().filter(|l| l.starts_with("| R")).collect();
    assert_eq!(rows.len(), 120);
    assert!(!page.contains("TBD"));
    let mut files = Vec::new();
    sources(&root().join("tests/it"), &mut files);
    let names = files.iter().flat_map(|f| f.split("fn r")).filter_map(|rest| {
        let digits = rest.get(..3)?;
        (digits.bytes().all(|b| b.is_ascii_digit()) && rest.as_bytes().get(3) == Some(&b'_'))
            .then_some(digits)
    });
    for number in names {
        let row = rows.iter().find(|row| row.starts_with(&format!("| R{number} |"))).unwrap();
        assert!(
            row.contains(&format!("r{number}")),
            "R{number} has a test that its row does not name: {row}"
        );
    }
}

#[test]
fn every_request_of_the_admin_api_is_on_its_page() {
    let description: serde_json::Value =
        serde_json::from_str(&read("schema/admin-api.openapi.json")).unwrap();
    let page = read("docs/admin-api.md");
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let request = format!("`{} {path}`", method.to_uppercase());
            assert!(page.contains(&request), "{request} is missing");
        }
    }
}

#[test]
fn the_documents_name_only_files_that_exist() {
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs/testing.md",
        "docs/hosts.md",
        "docs/bridging.md",
        "docs/admin-api.md",
        "docs/tokens.md",
    ] {
        let folder = root().join(page).parent().unwrap().to_owned();
        for link in read(page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if !file.is_empty() && !file.contains("://") {
                assert!(folder.join(file).exists(), "{page} links to {file}");
            }
        }
    }
}

#[test]
fn every_test_that_the_page_on_bridging_names_is_there() {
    let page = read("docs/bridging.md");
    let mut files = Vec::new();
    sources(&root().join("tests/it"), &mut files);
    sources(&root().join("crates"), &mut files);
    let names: BTreeSet<&str> =
        page.split('`').filter(|name| name.contains('_') && name.len() > 20).collect();
    let names = names.into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    let names: Vec<_> = names.collect();
    assert!(names.len() > 25, "{names:?}");
    let missing: Vec<_> =
        names.iter().filter(|name| !files.iter().any(|f| f.contains(&format!("fn {name}(")))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn dashboard_and_alerts_know_every_metric_of_the_page_and_no_other() {
    let (page, board) = (read("docs/metrics.md"), read("deploy/grafana/drawbridge.json"));
    let alerts = read("deploy/prometheus/alerts.yaml");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `drawbridge_"));
    let documented: BTreeSet<String> =
        rows.map(|row| format!("drawbridge_{}", row.split('`').next().unwrap())).collect();
    assert!(documented.len() > 30, "{documented:?}");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named = |text: &str| -> BTreeSet<String> {
        let found = text.match_indices("drawbridge_").map(|(at, _)| &text[at..]);
        let names = found.map(|rest| &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]);
        let whole = names.map(|name| {
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            base.filter(|_| !documented.contains(name)).unwrap_or(name).to_owned()
        });
        whole.collect()
    };
    let (drawn, alerted) = (named(&board), named(&alerts));
    let unknown: Vec<&String> = drawn.union(&alerted).filter(|name| !documented.contains(*name)).collect();
    assert!(unknown.is_empty(), "no such metrics: {unknown:?}");
    let missing: Vec<&String> = documented.difference(&drawn).collect();
    assert!(missing.is_empty(), "deploy/grafana/drawbridge.json does not draw {missing:?}");
}
