//! Tools: one table, a row each.

mod asking;
mod plain;
mod table;

use serde_json::{Value, json};

use crate::call::{Call, Halt, Outcome};
use crate::features::page::page;
use table::TOOLS;

/// Key of the annotation that asks clients to mirror an argument in a header.
const HEADER: &str = "x-mcp-header";

pub(crate) fn list(call: &Call) -> Outcome {
    let entries: Vec<Value> = TOOLS.iter().map(table::Tool::entry).collect();
    page("tools", &entries, &call.params)
}

/// Runs a tool. What goes wrong inside is a result that says so, for the model to read.
pub(crate) async fn call(call: &Call) -> Outcome {
    let name = call.params["name"].as_str().unwrap_or_default();
    let Some(tool) = TOOLS.iter().find(|tool| tool.name == name) else {
        return Err(Halt::params(format!("there is no tool {name}")));
    };
    let arguments = &call.params["arguments"];
    if !arguments.is_object() && !arguments.is_null() {
        return Err(Halt::params("params.arguments is an object"));
    }
    match (tool.run)(call, arguments).await {
        Err(Halt::Failed(why)) => {
            Ok(json!({ "content": [{ "type": "text", "text": why }], "isError": true }))
        }
        other => other,
    }
}

/// The arguments of a tool that clients mirror in headers: argument and header name.
pub(crate) fn mirrored(name: &str) -> Vec<(String, String)> {
    let Some(tool) = TOOLS.iter().find(|tool| tool.name == name) else {
        return Vec::new();
    };
    let schema = (tool.input)();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .filter_map(|(argument, property)| Some((argument.clone(), property[HEADER].as_str()?.to_owned())))
        .collect()
}
