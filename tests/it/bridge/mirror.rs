//! Clients with sessions in front of stateless backends: what a result asks for becomes real requests.

use drawbridge_testkit::backend::{Backend, Reply, Request, modern, text_result};
use drawbridge_testkit::client::{Reply as Answer, Session, text};
use serde_json::{Value, json};

use super::{ASKING, all, answer_to, demos, session};
use crate::backends::in_front_of;

const FORM: &str = r#"{"type":"object","properties":{"v":{"type":"string"}}}"#;

/// The result of a round.
fn asks(r: &Request, requests: Value, state: &str) -> Reply {
    let result = json!({ "resultType": "input_required", "inputRequests": requests, "requestState": state });
    Reply::result(r, result)
}

fn form() -> Value {
    let schema: Value = serde_json::from_str(FORM).unwrap();
    json!({ "method": "elicitation/create", "params": { "mode": "form", "message": "?", "requestedSchema": schema } })
}

/// A backend whose tools ask as their name says, in two rounds.
async fn asking() -> Backend {
    Backend::start(|r| async move {
        if r.rpc() != "tools/call" {
            return modern(&r);
        }
        let params = &r.body["params"];
        let done = || {
            let mut result = text_result(&params["inputResponses"].to_string());
            result["resultType"] = json!("complete");
            Reply::result(&r, result)
        };
        match (r.name(), params["requestState"].as_str()) {
            ("rounds", None) => asks(&r, json!({ "a": form(), "b": { "method": "roots/list" } }), "one"),
            ("rounds", Some("one")) => {
                assert!(params["inputResponses"]["a"].is_object() && params["inputResponses"]["b"].is_object());
                asks(&r, json!({ "c": form() }), "two")
            }
            ("form", None) => asks(&r, json!({ "a": form() }), "one"),
            ("sample", None) => {
                let params = json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": "x" } }], "maxTokens": 1 });
                asks(&r, json!({ "a": { "method": "sampling/createMessage", "params": params } }), "one")
            }
            ("url", None) => {
                let params = json!({ "mode": "url", "message": "?", "url": "https://x.example" });
                asks(&r, json!({ "a": { "method": "elicitation/create", "params": params } }), "one")
            }
            ("many", None) => {
                let schema = json!({ "type": "object", "properties": { "v": { "type": "array", "items": { "enum": ["x"] } } } });
                let params = json!({ "message": "?", "requestedSchema": schema });
                asks(&r, json!({ "a": { "method": "elicitation/create", "params": params } }), "one")
            }
            ("later", None) => Reply::result(&r, json!({ "resultType": "input_required", "requestState": "one" })),
            ("endless", _) => asks(&r, json!({ "a": form() }), "more"),
            _ => done(),
        }
    })
    .await
}

/// Capabilities without the extension that the gateway adds, since it waits for the end of tasks itself.
fn without_tasks(declared: &Value) -> Value {
    let mut declared = declared.clone();
    let extensions = declared.as_object_mut().unwrap().remove("extensions");
    assert_eq!(extensions, Some(json!({ "io.modelcontextprotocol/tasks": {} })));
    declared
}

async fn call(session: &Session, tool: &str) -> Answer {
    session.request("tools/call", json!({ "name": tool, "arguments": {} })).await
}

async fn reply(session: &Session, asked: &Value, result: Value) {
    let body = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
    assert_eq!(session.post(body.to_string()).await.status(), 202);
}

fn told(answer: &Value) -> Value {
    serde_json::from_str(text(answer)).unwrap()
}

#[tokio::test]
async fn r103_a_result_that_asks_becomes_requests_on_the_stream_of_the_call() {
    let (_demo, gateways) = demos("modern").await;
    for (transport, gateway) in &gateways {
        for version in ["2025-06-18", "2025-11-25"] {
            let session = session(gateway, version, all()).await;
            for (tool, expected) in ASKING {
                let mut stream = call(&session, tool).await;
                let asked = stream.message().await;
                let method = asked["method"].as_str().unwrap();
                reply(&session, &asked, answer_to(method)).await;
                assert_eq!(text(&stream.answer().await), expected, "{transport} {version}");
            }
        }
    }
}

#[tokio::test]
async fn r103_rounds_follow_each_other_and_the_state_goes_back_unchanged() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = session(&gateway, "2025-11-25", all()).await;
    let mut stream = call(&session, "rounds").await;
    let (first, second) = (stream.message().await, stream.message().await);
    assert_eq!(first["params"]["requestedSchema"].to_string(), FORM);
    assert_ne!(first["id"], second["id"]);
    // In the other order.
    reply(&session, &second, json!({ "roots": [] })).await;
    reply(&session, &first, json!({ "action": "accept", "content": { "v": "1" } })).await;
    let third = stream.message().await;
    reply(&session, &third, json!({ "action": "decline" })).await;
    assert_eq!(told(&stream.answer().await), json!({ "c": { "action": "decline" } }));
    let calls = backend.requests_of("tools/call");
    assert_eq!(calls.len(), 3);
    assert!(calls[0].id() != calls[1].id() && calls[1].id() != calls[2].id(), "each has an id of its own");
    assert_eq!(calls[2].body["params"]["requestState"], "two");
    let declared = &calls[0].body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(without_tasks(declared), all());
}

#[tokio::test]
async fn r104_a_url_has_an_id_for_2025_11_25_and_is_not_promised_for_2025_06_18() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern, elicitation_hosts: [x.example]", "").await;
    let newer = session(&gateway, "2025-11-25", all()).await;
    let mut stream = call(&newer, "url").await;
    let asked = stream.message().await;
    assert!(!asked["params"]["elicitationId"].as_str().unwrap().is_empty());
    assert_eq!(asked["params"]["url"], "https://x.example");
    reply(&newer, &asked, json!({ "action": "accept" })).await;
    assert_eq!(told(&stream.answer().await), json!({ "a": { "action": "accept" } }));
    // A client of 2025-06-18 knows forms only; a backend that sends a URL all the same is not let through.
    let older = session(&gateway, "2025-06-18", json!({ "elicitation": {} })).await;
    let answer = call(&older, "url").await.answer().await;
    assert_eq!(answer["error"]["data"]["code"], "backend_bad_answer", "{answer}");
}

#[tokio::test]
async fn clients_without_elicitation_are_not_said_to_have_it() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    // 2025-03-26 has no elicitation, whatever the client declares.
    let old = session(&gateway, "2025-03-26", all()).await;
    call(&old, "none").await.answer().await;
    let seen = backend.wait_for("tools/call").await;
    let declared = &seen.body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(without_tasks(declared), json!({ "sampling": {}, "roots": {} }));
}

#[tokio::test]
async fn a_form_that_the_clients_version_can_not_show_counts_as_closed() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let older = session(&gateway, "2025-06-18", all()).await;
    assert_eq!(told(&call(&older, "many").await.answer().await), json!({ "a": { "action": "cancel" } }));
    let newer = session(&gateway, "2025-11-25", all()).await;
    let mut stream = call(&newer, "many").await;
    assert_eq!(stream.message().await["method"], "elicitation/create");
}

#[tokio::test]
async fn a_client_that_refuses_to_sample_gets_an_error_and_the_backend_no_retry() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = session(&gateway, "2025-11-25", all()).await;
    let mut stream = call(&session, "sample").await;
    let asked = stream.message().await;
    let error = json!({ "code": -1, "message": "User rejected sampling request" });
    let body = json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error });
    session.post(body.to_string()).await;
    let answer = stream.answer().await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("User rejected"), "{answer}");
    assert_eq!(backend.count("tools/call"), 1);
    // A form that fails is one that the user closed.
    let mut stream = call(&session, "form").await;
    let asked = stream.message().await;
    let error = json!({ "code": -32603, "message": "no window" });
    session.post(json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error }).to_string()).await;
    assert_eq!(told(&stream.answer().await), json!({ "a": { "action": "cancel" } }));
}

#[tokio::test]
async fn a_round_that_only_wants_to_be_called_again_is_called_again() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = session(&gateway, "2025-11-25", json!({})).await;
    assert_eq!(told(&session.tool("later", json!({})).await), Value::Null);
    assert_eq!(backend.count("tools/call"), 2);
}

#[tokio::test]
async fn a_backend_that_asks_without_end_is_stopped() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "limits: { max_rounds: 3 }").await;
    let session = session(&gateway, "2025-11-25", all()).await;
    let mut stream = call(&session, "endless").await;
    for _ in 0..3 {
        let asked = stream.message().await;
        if asked.get("method").is_none() {
            panic!("ended too soon: {asked}");
        }
        reply(&session, &asked, json!({ "action": "decline" })).await;
    }
    let answer = stream.answer().await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("max_rounds"), "{answer}");
}

#[tokio::test]
async fn a_client_that_answers_nothing_gets_its_request_withdrawn_and_an_error() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "limits: { answer_timeout: 500ms }").await;
    let session = session(&gateway, "2025-11-25", all()).await;
    let mut stream = call(&session, "form").await;
    let asked = stream.message().await;
    let withdrawn = stream.message().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    assert_eq!(stream.answer().await["error"]["data"]["code"], "no_answer");
    reply(&session, &asked, json!({ "action": "accept", "content": { "v": "late" } })).await;
    assert_eq!(backend.count("tools/call"), 1);
}

#[tokio::test]
async fn r112_a_cancel_while_the_client_is_asked_ends_the_call() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = session(&gateway, "2025-11-25", all()).await;
    let id = session.next_id();
    let body = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "form" } });
    let mut stream = session.post(body.to_string()).await;
    let asked = stream.message().await;
    session.notify("notifications/cancelled", json!({ "requestId": id })).await;
    assert_eq!(stream.messages().await, Vec::<Value>::new());
    reply(&session, &asked, json!({ "action": "accept", "content": {} })).await;
    assert_eq!(session.tool("none", json!({})).await["result"]["content"][0]["text"], "null");
    assert_eq!(backend.count("tools/call"), 2, "the answer that came too late led to nothing");
}

#[tokio::test]
async fn answers_of_another_session_are_nobodys() {
    let backend = asking().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let (one, two) =
        (session(&gateway, "2025-11-25", all()).await, session(&gateway, "2025-11-25", all()).await);
    let mut stream = call(&one, "form").await;
    let asked = stream.message().await;
    reply(&two, &asked, json!({ "action": "accept", "content": { "v": "stolen" } })).await;
    reply(&one, &asked, json!({ "action": "accept", "content": { "v": "own" } })).await;
    // Twice: the second is to nothing.
    reply(&one, &asked, json!({ "action": "accept", "content": { "v": "again" } })).await;
    let told = told(&stream.answer().await);
    assert_eq!(told["a"]["content"]["v"], "own");
    assert_eq!(backend.count("tools/call"), 2);
}

#[tokio::test]
async fn r109_structured_content_that_is_no_object_is_wrapped_for_older_clients() {
    let backend = Backend::start(|r| async move {
        match r.rpc() {
            "tools/list" => {
                let tools = json!([{ "name": "list", "inputSchema": { "type": "object" }, "outputSchema": { "type": "array" } }]);
                Reply::result(&r, json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private" }))
            }
            "tools/call" => {
                let mut result = text_result("[1,2]");
                result["structuredContent"] = json!([1, 2]);
                result["resultType"] = json!("complete");
                Reply::result(&r, result)
            }
            _ => modern(&r),
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = session(&gateway, "2025-11-25", json!({})).await;
    let tools = session.call("tools/list", json!({})).await;
    let schema = &tools["result"]["tools"][0]["outputSchema"];
    assert_eq!(
        (&schema["type"], &schema["properties"]["result"]["type"]),
        (&json!("object"), &json!("array"))
    );
    let answer = session.tool("list", json!({})).await;
    assert_eq!(answer["result"]["structuredContent"], json!({ "result": [1, 2] }));
    let own = gateway.modern().tool("list", json!({})).await;
    assert_eq!(own["result"]["structuredContent"], json!([1, 2]));
}
