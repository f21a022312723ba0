//! Resources: two that never change, a counter to subscribe to, and a template.

use drawbridge_wire::{ProtocolVersion, RpcError, code};
use serde_json::{Value, json};

use crate::call::{Call, Halt, Outcome};
use crate::features::page::page;

/// The resource that the tool `touch` changes.
pub(crate) const COUNTER: &str = "demo://counter";
/// The template that [`complete`](super::complete) has values for.
pub(crate) const GREETING: &str = "demo://greeting/{name}";
/// Names that the template is completed with. Any other is served too.
pub(crate) const NAMES: [&str; 5] = ["Ada", "Alan", "Barbara", "Edsger", "Grace"];

const ABOUT: &str = "demo://about";
const PIXEL: &str = "demo://pixel.png";
const GREETING_PREFIX: &str = "demo://greeting/";
/// A red PNG of one pixel, in Base64.
pub(crate) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

pub(crate) fn list(call: &Call) -> Outcome {
    let entries = [
        json!({ "uri": ABOUT, "name": "about", "title": "About", "mimeType": "text/plain",
                "description": "What this server is." }),
        json!({ "uri": COUNTER, "name": "counter", "title": "Counter", "mimeType": "text/plain",
                "description": "How often the tool touch was called. Subscribe to it." }),
        json!({ "uri": PIXEL, "name": "pixel", "title": "A pixel", "mimeType": "image/png",
                "description": "An image." }),
    ];
    page("resources", &entries, &call.params)
}

pub(crate) fn templates(call: &Call) -> Outcome {
    let entries = [json!({
        "uriTemplate": GREETING, "name": "greeting", "title": "A greeting", "mimeType": "text/plain",
        "description": "Greets whom the URI names. Names can be completed.",
    })];
    page("resourceTemplates", &entries, &call.params)
}

pub(crate) fn read(call: &Call) -> Outcome {
    let uri = known_uri(call.version(), &call.params)?;
    let text = |text: String| json!({ "uri": uri, "mimeType": "text/plain", "text": text });
    let contents = match uri.as_str() {
        ABOUT => text("A demo server that shows every feature of the protocol.".to_owned()),
        COUNTER => text(call.demo.count().to_string()),
        PIXEL => json!({ "uri": uri, "mimeType": "image/png", "blob": PNG }),
        other => text(format!("Hello, {}!", other.strip_prefix(GREETING_PREFIX).unwrap_or_default())),
    };
    Ok(json!({ "contents": [contents] }))
}

/// `params.uri`, if there is such a resource.
pub(crate) fn known_uri(version: ProtocolVersion, params: &Value) -> Result<String, Halt> {
    let uri = params["uri"].as_str().ok_or_else(|| Halt::params("params.uri is missing"))?;
    let greets = uri.strip_prefix(GREETING_PREFIX).is_some_and(|name| !name.is_empty());
    if greets || [ABOUT, COUNTER, PIXEL].contains(&uri) {
        return Ok(uri.to_owned());
    }
    let legacy = version.has_initialize();
    let code = if legacy { code::RESOURCE_NOT_FOUND } else { code::INVALID_PARAMS };
    let data = json!({ "uri": uri }).to_string();
    Err(RpcError::new(code, "there is no such resource").with_data(data).into())
}
