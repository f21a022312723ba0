//! Tests of the configuration: good files, broken files, the import, the schema, the documents.

mod broken;
mod certificates;
mod documents;
mod good;
mod imported;
mod schema;
mod shown;

use std::collections::HashMap;

use super::{Inputs, Loaded, Overrides, Problems, Source, assemble};

/// An environment of the given variables.
fn env(variables: &[(&str, &str)]) -> HashMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn source(name: &str, text: &str) -> Source {
    Source { name: name.to_owned(), bytes: text.as_bytes().to_vec() }
}

/// Loads a file called `drawbridge.yaml`.
fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, Problems> {
    assemble(Some(source("drawbridge.yaml", text)), None, &env(variables), &Overrides::default())
}

/// Loads a file called `drawbridge.yaml` and a list called `mcp.json`.
fn load_both(text: &str, list: &str, variables: &[(&str, &str)]) -> Result<Loaded, Problems> {
    let config = Some(source("drawbridge.yaml", text));
    assemble(config, Some(source("mcp.json", list)), &env(variables), &Overrides::default())
}

/// Loads with overrides over a file called `drawbridge.yaml`.
fn load_with(text: &str, overrides: &Overrides) -> Result<Loaded, Problems> {
    assemble(Some(source("drawbridge.yaml", text)), None, &env(&[]), overrides)
}

/// A client certificate and its key.
fn client_certificate() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// The text of what is wrong with a file.
fn complaint(text: &str) -> String {
    load_text(text, &[("TOKEN", "hunter2"), ("EMPTY", "")]).unwrap_err().to_string()
}

#[test]
fn a_missing_file_is_named() {
    let inputs = Inputs { config: Some("no/such/file.yaml".into()), ..Inputs::default() };
    let problem = &super::load(&inputs).unwrap_err().0[0];
    assert_eq!((problem.file.as_str(), problem.line), ("no/such/file.yaml", 0));
    assert!(problem.message.starts_with("can't read the file: "), "{problem}");
}
