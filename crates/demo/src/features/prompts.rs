//! Prompts: one without and one with arguments.

use serde_json::{Value, json};

use crate::call::{Call, Halt, Outcome};
use crate::features::page::page;

/// The prompt that [`complete`](super::complete) has values for.
pub(crate) const GREET: &str = "greet";
/// Values of its argument `style`.
pub(crate) const STYLES: [&str; 4] = ["casual", "cheerful", "formal", "poetic"];

const TOUR: &str = "tour";

pub(crate) fn list(call: &Call) -> Outcome {
    let entries = [
        json!({ "name": GREET, "title": "Greet somebody", "description": "Writes a greeting.",
                "arguments": [
                    { "name": "name", "description": "Whom to greet.", "required": true },
                    { "name": "style", "description": "How; can be completed.", "required": false },
                ] }),
        json!({ "name": TOUR, "title": "A tour", "description": "Shows what this server can do." }),
    ];
    page("prompts", &entries, &call.params)
}

pub(crate) fn get(call: &Call) -> Outcome {
    let arguments = &call.params["arguments"];
    let (description, text) = match call.params["name"].as_str() {
        Some(GREET) => ("Writes a greeting.", greeting(arguments)?),
        Some(TOUR) => {
            ("Shows what this server can do.", "Call each tool of the demo server once.".to_owned())
        }
        _ => return Err(Halt::params("there is no such prompt")),
    };
    let content = json!({ "type": "text", "text": text });
    Ok(json!({ "description": description, "messages": [{ "role": "user", "content": content }] }))
}

fn greeting(arguments: &Value) -> Result<String, Halt> {
    let name = arguments["name"].as_str().ok_or_else(|| Halt::params("the argument name is missing"))?;
    let style = arguments["style"].as_str().unwrap_or(STYLES[0]);
    Ok(format!("Write a {style} greeting for {name}."))
}
