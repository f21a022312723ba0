//! The table of tools.

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{HEADER, asking, plain};
use crate::call::{Call, Outcome};

/// A tool.
pub(super) struct Tool {
    pub(super) name: &'static str,
    title: &'static str,
    description: &'static str,
    /// Whether it changes nothing.
    read_only: bool,
    pub(super) input: fn() -> Value,
    output: Option<fn() -> Value>,
    pub(super) run: for<'a> fn(&'a Call, &'a Value) -> BoxFuture<'a, Outcome>,
}

impl Tool {
    /// How it stands in the list.
    pub(super) fn entry(&self) -> Value {
        let mut entry = json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": (self.input)(),
            "annotations": { "readOnlyHint": self.read_only, "openWorldHint": false },
        });
        if let Some(output) = self.output {
            entry["outputSchema"] = output();
        }
        entry
    }
}

/// Clients that read only the first page find what they need for a first try.
pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "echo",
        title: "Echo",
        description: "Gives back its message.",
        read_only: true,
        input: || object(&json!({ "message": { "type": "string" } }), &["message"]),
        output: None,
        run: |_, arguments| Box::pin(async move { plain::echo(arguments) }),
    },
    Tool {
        name: "add",
        title: "Add",
        description: "Adds two numbers and gives a structured result.",
        read_only: true,
        input: || object(&json!({ "a": { "type": "number" }, "b": { "type": "number" } }), &["a", "b"]),
        output: Some(|| object(&json!({ "sum": { "type": "number" } }), &["sum"])),
        run: |_, arguments| Box::pin(async move { plain::add(arguments) }),
    },
    Tool {
        name: "whoami",
        title: "Who am I",
        description: "Tells what the server knows of the client, the protocol and itself.",
        read_only: true,
        input: || object(&json!({}), &[]),
        output: Some(|| json!({ "type": "object" })),
        run: |call, _| Box::pin(async move { plain::whoami(call) }),
    },
    Tool {
        name: "sleep",
        title: "Sleep",
        description: "Takes its time and reports progress; can be cancelled.",
        read_only: true,
        input: || {
            object(
                &json!({ "ms": { "type": "integer", "minimum": 0, "maximum": plain::MAX_SLEEP_MS } }),
                &["ms"],
            )
        },
        output: None,
        run: |call, arguments| Box::pin(plain::sleep(call, arguments)),
    },
    Tool {
        name: "region",
        title: "Region",
        description: "Has an argument that clients of the modern era mirror in the header Mcp-Param-Region.",
        read_only: true,
        input: || object(&json!({ "region": { "type": "string", HEADER: "Region" } }), &[]),
        output: None,
        run: |_, arguments| Box::pin(async move { plain::region(arguments) }),
    },
    Tool {
        name: "log",
        title: "Log",
        description: "Sends log messages to the client.",
        read_only: true,
        input: || {
            let levels = crate::level::Level::NAMES;
            object(
                &json!({ "message": { "type": "string" }, "level": { "type": "string", "enum": levels } }),
                &["message"],
            )
        },
        output: None,
        run: |call, arguments| Box::pin(plain::log(call, arguments)),
    },
    Tool {
        name: "elicit",
        title: "Elicit",
        description: "Asks the user for a name, with a form, and greets them.",
        read_only: true,
        input: || object(&json!({ "message": { "type": "string" } }), &[]),
        output: None,
        run: |call, arguments| Box::pin(asking::elicit(call, arguments)),
    },
    Tool {
        name: "sample",
        title: "Sample",
        description: "Asks the client's model.",
        read_only: true,
        input: || object(&json!({ "prompt": { "type": "string" } }), &[]),
        output: None,
        run: |call, arguments| Box::pin(asking::sample(call, arguments)),
    },
    Tool {
        name: "roots",
        title: "Roots",
        description: "Asks the client for its roots.",
        read_only: true,
        input: || object(&json!({}), &[]),
        output: None,
        run: |call, _| Box::pin(asking::roots(call)),
    },
    Tool {
        name: "image",
        title: "Image",
        description: "Gives an image of one pixel and a link to a resource.",
        read_only: true,
        input: || object(&json!({}), &[]),
        output: None,
        run: |call, _| Box::pin(async move { plain::image(call) }),
    },
    Tool {
        name: "big",
        title: "Big",
        description: "Gives a text of as many bytes as asked for.",
        read_only: true,
        input: || {
            object(
                &json!({ "bytes": { "type": "integer", "minimum": 0, "maximum": plain::MAX_BIG } }),
                &["bytes"],
            )
        },
        output: None,
        run: |_, arguments| Box::pin(async move { plain::big(arguments) }),
    },
    Tool {
        name: "fail",
        title: "Fail",
        description: "Always fails.",
        read_only: true,
        input: || object(&json!({ "message": { "type": "string" } }), &[]),
        output: None,
        run: |_, arguments| Box::pin(async move { plain::fail(arguments) }),
    },
    Tool {
        name: "touch",
        title: "Touch",
        description: "Counts up and announces changes: all lists, and the resource demo://counter.",
        read_only: false,
        input: || object(&json!({}), &[]),
        output: Some(|| object(&json!({ "counter": { "type": "integer" } }), &["counter"])),
        run: |call, _| Box::pin(async move { plain::touch(call) }),
    },
];

fn object(properties: &Value, required: &[&str]) -> Value {
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}
