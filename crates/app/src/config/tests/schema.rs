//! The published JSON Schema: up to date, and of one mind with the loader.

use std::collections::HashMap;
use std::rc::Rc;

use super::broken::{SEMANTIC, STRUCTURAL, TEXTUAL};
use super::good::GOOD;
use super::{env, load_text};
use crate::config::schema::{JSON_SCHEMA, generate};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/drawbridge.schema.json");

#[test]
fn the_committed_schema_is_up_to_date() {
    let generated = format!("{:#}\n", generate());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PATH, &generated).unwrap();
    } else {
        assert_eq!(generated, JSON_SCHEMA, "run the test with UPDATE=1 to write the schema");
    }
}

/// The file as the validator of an editor sees it.
fn as_json(text: &str, variables: &[(&str, &str)]) -> Result<serde_json::Value, serde_saphyr::Error> {
    let env: Rc<HashMap<String, String>> = Rc::new(env(variables));
    let options = serde_saphyr::options! { strict_booleans: true, property_map: Some(env) };
    serde_saphyr::from_str_with_options(text, options)
}

#[test]
fn schema_and_loader_accept_the_same_good_files() {
    let schema = jsonschema::validator_for(&generate()).unwrap();
    for (name, text, variables) in GOOD {
        if let Err(error) = schema.validate(&as_json(text, variables).unwrap()) {
            panic!("{name}: {error} at {}", error.instance_path());
        }
        load_text(text, variables).unwrap();
    }
}

#[test]
fn schema_and_loader_refuse_the_same_faults_of_form() {
    let schema = jsonschema::validator_for(&generate()).unwrap();
    for (name, text) in STRUCTURAL {
        assert!(!schema.is_valid(&as_json(text, &[]).unwrap()), "{name}: the schema accepts it");
        assert!(load_text(text, &[]).is_err(), "{name}: the loader accepts it");
    }
}

#[test]
fn faults_of_meaning_are_beyond_the_schema() {
    let schema = jsonschema::validator_for(&generate()).unwrap();
    for (name, text) in SEMANTIC {
        if let Err(error) = schema.validate(&as_json(text, &[]).unwrap()) {
            panic!("{name}: a fault of form after all: {error}");
        }
        assert!(load_text(text, &[]).is_err(), "{name}: the loader accepts it");
    }
}

#[test]
fn a_text_at_fault_is_refused_before_any_schema() {
    for (name, text) in TEXTUAL {
        assert!(as_json(text, &[]).is_err(), "{name}: it can be read");
        assert!(load_text(text, &[]).is_err(), "{name}: the loader accepts it");
    }
}
