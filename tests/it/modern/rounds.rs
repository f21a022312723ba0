//! Requests that need several rounds, with a backend of the same era.

use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::{ERAS, code, in_front_of_demo};
use crate::backend::{Backend, Does, text_result};

fn all() -> Value {
    json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} })
}

#[tokio::test]
async fn r078_a_result_that_asks_is_answered_by_the_retry() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = Modern::new(&gateway.client(), "/mcp", all());
    let accept = json!({ "action": "accept", "content": { "name": "Ada" } });
    let sampled = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "hi" } });
    let roots = json!({ "roots": [{ "uri": "file:///work" }] });
    for (tool, key, answer, expected) in [
        ("elicit", "name", accept, "Hello, Ada!"),
        ("sample", "sample", sampled, "m says: hi"),
        ("roots", "roots", roots, "file:///work"),
    ] {
        let asked = modern.tool(tool, json!({})).await["result"].clone();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        assert!(asked["inputRequests"][key]["method"].is_string(), "{asked}");
        assert!(asked["inputRequests"][key].get("id").is_none());
        assert!(asked.get("ttlMs").is_none() && asked.get("cacheScope").is_none(), "R095");
        let retry = json!({ "name": tool, "arguments": {}, "inputResponses": { key: answer },
                            "requestState": asked["requestState"] });
        // Another connection, another request id.
        let other = Modern::new(&gateway.client(), "/mcp", all());
        assert_eq!(text(&other.call("tools/call", retry).await), expected);
        let forged = json!({ "name": tool, "arguments": {}, "inputResponses": {}, "requestState": "forged" });
        assert_eq!(code(&modern.call("tools/call", forged).await), -32602);
        let open = json!({ "name": tool, "arguments": {}, "requestState": asked["requestState"] });
        let again = modern.call("tools/call", open).await;
        assert_eq!(again["result"]["resultType"], "input_required", "missing answers are asked for again");
    }
}

#[tokio::test]
async fn r077_only_three_methods_may_ask() {
    let asks =
        r#"{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s"}"#;
    let capabilities = json!({ "tools": {}, "prompts": {}, "resources": {}, "completions": {} });
    let backend = Backend::modern(capabilities, move |_| Does::Result(asks.to_owned())).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = Modern::new(&gateway.client(), "/mcp", all());
    for (method, params, may) in [
        ("tools/call", json!({ "name": "x", "arguments": {} }), true),
        ("prompts/get", json!({ "name": "x" }), true),
        ("resources/read", json!({ "uri": "x://y" }), true),
        ("tools/list", json!({}), false),
        ("prompts/list", json!({}), false),
        ("resources/list", json!({}), false),
        ("made/up", json!({}), false),
    ] {
        let answer = modern.call(method, params).await;
        let asked = answer["result"]["resultType"] == "input_required";
        assert_eq!(asked, may, "{method}: {answer}");
    }
}

#[tokio::test]
async fn r078_nobody_is_asked_for_what_it_did_not_declare() {
    let asks = |method: &str| {
        let request = json!({ "method": method, "params": { "message": "?", "requestedSchema": {} } });
        json!({ "resultType": "input_required", "inputRequests": { "k": request }, "requestState": "s" })
    };
    let backend = Backend::modern(json!({ "tools": {} }), move |seen| {
        Does::result(&asks(seen.json()["params"]["name"].as_str().unwrap()))
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let methods = ["elicitation/create", "sampling/createMessage", "roots/list"];
    for (method, capability) in methods.into_iter().zip(["elicitation", "sampling", "roots"]) {
        let with = Modern::new(&gateway.client(), "/mcp", json!({ capability: {} }));
        assert_eq!(with.tool(method, json!({})).await["result"]["resultType"], "input_required");
        let mut others = all();
        others.as_object_mut().unwrap().remove(capability);
        let without = Modern::new(&gateway.client(), "/mcp", others);
        let answer = without.tool(method, json!({})).await;
        assert!(answer["error"].is_object(), "{method}: {answer}");
    }
}

#[tokio::test]
async fn r078_a_round_that_asks_nothing_still_names_its_state() {
    let backend = Backend::modern(json!({ "tools": {} }), |seen| {
        if seen.json()["params"]["requestState"] == "later" {
            return text_result("done");
        }
        Does::result(&json!({ "resultType": "input_required", "requestState": "later" }))
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    let asked = modern.tool("x", json!({})).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required");
    let retry = json!({ "name": "x", "arguments": {}, "requestState": asked["requestState"] });
    assert_eq!(text(&modern.call("tools/call", retry).await), "done");
}

#[tokio::test]
async fn a_client_without_capabilities_gets_the_tools_own_words() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let answer = gateway.modern().tool("elicit", json!({})).await;
        let failed = answer["error"]["code"] == -32021 || answer["result"]["isError"] == true;
        assert!(failed, "{era}: {answer}");
    }
}
