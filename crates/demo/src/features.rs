//! What the server offers, without a word on transports.

pub(crate) mod complete;
pub(crate) mod page;
pub(crate) mod prompts;
pub(crate) mod resources;
pub(crate) mod tools;

use serde_json::{Value, json};

/// What the server tells a model about itself.
pub(crate) const INSTRUCTIONS: &str = "This is a demo server. Its tools do nothing of use, but show each \
    feature of the protocol: try echo, add, sleep (progress), elicit, sample and roots (they ask you \
    something), and touch (announces changes).";

/// The same in both eras.
pub(crate) fn capabilities() -> Value {
    json!({
        "tools": { "listChanged": true },
        "prompts": { "listChanged": true },
        "resources": { "subscribe": true, "listChanged": true },
        "logging": {},
        "completions": {},
    })
}

pub(crate) fn server_info() -> Value {
    json!({ "name": "drawbridge-demo", "title": "Drawbridge demo", "version": env!("CARGO_PKG_VERSION") })
}
