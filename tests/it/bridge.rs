//! Clients of one era in front of backends of the other.

mod changes;
mod hostile;
mod links;
mod mirror;
pub(crate) mod parked;
mod scopes;
pub(crate) mod tasks;

use drawbridge_testkit::client::{Modern, Session};
use drawbridge_testkit::gateway::{DemoBackend, Gateway, binary};
use serde_json::{Value, json};

/// Everything that a client can be asked.
pub(crate) fn all() -> Value {
    json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} })
}

async fn session(gateway: &Gateway, version: &str, capabilities: Value) -> Session {
    Session::open(&gateway.client(), "/mcp", version, capabilities).await
}

fn modern(gateway: &Gateway) -> Modern {
    Modern::new(&gateway.client(), "/mcp", all())
}

/// The demo server behind each transport, spoken to in the era `era`.
async fn demos(era: &str) -> (DemoBackend, Vec<(&'static str, Gateway)>) {
    let demo = DemoBackend::start().await;
    let http = format!("{{ url: \"{}\", era: {era} }}", demo.url);
    let sse = format!("{{ url: \"{}\", transport: sse }}", demo.sse_url);
    let stdio =
        format!("{{ command: \"{}\", args: [demo-server, --stdio], era: {era} }}", binary().display());
    let mut gateways = Vec::new();
    for (transport, settings) in [("http", http), ("sse", sse), ("stdio", stdio)] {
        if (transport, era) != ("sse", "modern") {
            gateways.push((transport, Gateway::setup().backend("demo", &settings).start().await));
        }
    }
    (demo, gateways)
}

/// What a client answers to an ask, by its method.
pub(crate) fn answer_to(method: &str) -> Value {
    match method {
        "elicitation/create" => json!({ "action": "accept", "content": { "name": "Ada" } }),
        "sampling/createMessage" => {
            json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "hi" } })
        }
        "roots/list" => json!({ "roots": [{ "uri": "file:///work" }] }),
        other => panic!("{other} is nothing to ask"),
    }
}

/// The demo's tools that ask, with what they come to after [`answer_to`].
pub(crate) const ASKING: [(&str, &str); 3] =
    [("elicit", "Hello, Ada!"), ("sample", "m says: hi"), ("roots", "file:///work")];

/// The params of a retry: the same call, with answers and the state that it was given.
pub(crate) fn retry(params: &Value, answers: Value, asked: &Value) -> Value {
    let mut params = params.clone();
    params["inputResponses"] = answers;
    params["requestState"] = asked["requestState"].clone();
    params
}
