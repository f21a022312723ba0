//! Values for the arguments of prompts and resource templates.

use serde_json::json;

use crate::call::{Call, Halt, Outcome};
use crate::features::{prompts, resources};

pub(crate) fn complete(call: &Call) -> Outcome {
    let (reference, argument) = (&call.params["ref"], &call.params["argument"]);
    let typed = argument["value"].as_str().ok_or_else(|| Halt::params("params.argument lacks a value"))?;
    let about = |key: &str| reference[key].as_str().unwrap_or_default();
    let known: &[&str] = match (reference["type"].as_str(), argument["name"].as_str()) {
        (Some("ref/prompt"), Some("style")) if about("name") == prompts::GREET => &prompts::STYLES,
        (Some("ref/prompt"), Some(_)) if about("name") == prompts::GREET => &[],
        (Some("ref/resource"), Some("name")) if about("uri") == resources::GREETING => &resources::NAMES,
        _ => return Err(Halt::params("params.ref and params.argument name nothing that can be completed")),
    };
    let typed = typed.to_lowercase();
    let values: Vec<_> = known.iter().filter(|value| value.to_lowercase().starts_with(&typed)).collect();
    Ok(json!({ "completion": { "total": values.len(), "values": values, "hasMore": false } }))
}
