//! The JSON Schema of the configuration file.

use super::raw;

/// The schema as it is published in `schema/drawbridge.schema.json`, for editors and for `GET` on the
/// admin listener.
pub const JSON_SCHEMA: &str = include_str!("../../../../schema/drawbridge.schema.json");

/// The schema made from the types that read the file; equal to [`JSON_SCHEMA`], which a test checks.
pub fn generate() -> serde_json::Value {
    schemars::schema_for!(raw::File).to_value()
}
