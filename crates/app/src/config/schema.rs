//! The JSON Schema of the configuration file.

use super::raw;

/// The schema as it is published in `schema/drawbridge.schema.json`, for editors and for `GET` on the
/// admin listener.
pub const JSON_SCHEMA: &str = include_str!("../../../../schema/drawbridge.schema.json");

/// The schema made from the types that read the file; equal to [`JSON_SCHEMA`], which a test checks.
pub fn generate() -> serde_json::Value {
    schemars::schema_for!(raw::File).to_value()
}

/// The section of the file that has a key called `key`, if there is just one: `limits`, or `backends.NAME`.
pub(super) fn place_of(key: &str) -> Option<String> {
    let schema = generate();
    let target = |section: &serde_json::Value| {
        let reference = section["$ref"].as_str().or_else(|| section["anyOf"][0]["$ref"].as_str())?;
        Some(schema.pointer(reference.strip_prefix('#')?)?.clone())
    };
    let has = |section: &serde_json::Value| section["properties"].get(key).is_some();
    let sections = schema["properties"].as_object()?;
    let mut found = sections.iter().filter_map(|(name, section)| {
        if target(section).is_some_and(|section| has(&section)) {
            return Some(name.clone());
        }
        target(&section["additionalProperties"]).filter(has).map(|_| format!("{name}.NAME"))
    });
    found.next().filter(|_| found.next().is_none())
}
