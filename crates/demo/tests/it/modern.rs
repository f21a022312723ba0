use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{MODERN, PATIENCE, Server, meta, methods, request, text};

type Headers<'a> = &'a [(&'a str, &'a str)];

fn call(id: i64, tool: &str, arguments: Value, capabilities: Value) -> Value {
    request(id, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta(capabilities) }))
}

fn ask(method: &str, mut params: Value) -> Value {
    params["_meta"] = meta(json!({}));
    request("q", method, params)
}

#[tokio::test]
async fn discover_and_lists_say_how_long_they_are_fresh() {
    let server = Server::start().await;
    let found = server.modern(&ask("server/discover", json!({}))).await.json().await;
    assert_eq!(found["result"]["supportedVersions"][0], MODERN);
    assert_eq!(found["result"]["supportedVersions"].as_array().unwrap().len(), 5);
    for method in
        ["server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list"]
    {
        let result = server.modern(&ask(method, json!({}))).await.json().await["result"].clone();
        assert_eq!(result["resultType"], "complete");
        assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(60_000), &json!("public")));
        assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "drawbridge-demo");
    }
    let counter = server.modern(&ask("resources/read", json!({ "uri": "demo://counter" }))).await;
    assert_eq!(counter.json().await["result"]["ttlMs"], 0);
    let missing = server.modern(&ask("resources/read", json!({ "uri": "demo://nothing" }))).await;
    assert_eq!(missing.json().await["error"]["code"], -32602);
}

#[tokio::test]
async fn all_pages_can_be_read_without_a_session() {
    let server = Server::start().await;
    let (mut count, mut params) = (0, json!({}));
    loop {
        let answer = server.modern(&ask("tools/list", params)).await.json().await;
        count += answer["result"]["tools"].as_array().unwrap().len();
        let Some(cursor) = answer["result"].get("nextCursor") else { break };
        params = json!({ "cursor": cursor });
    }
    assert_eq!(count, 13);
}

#[tokio::test]
async fn tools_answer() {
    let server = Server::start().await;
    let run = async |tool, arguments| server.modern(&call(1, tool, arguments, json!({}))).await.json().await;
    assert_eq!(text(&run("echo", json!({ "message": "hi" })).await), "hi");
    assert_eq!(run("add", json!({ "a": 1.5, "b": 2 })).await["result"]["structuredContent"]["sum"], 3.5);
    let failed = run("fail", json!({})).await;
    assert_eq!(
        (&failed["result"]["isError"], &failed["result"]["resultType"]),
        (&json!(true), &json!("complete"))
    );
    let who = run("whoami", json!({})).await["result"]["structuredContent"].clone();
    assert_eq!((&who["era"], &who["protocolVersion"]), (&json!("modern"), &json!(MODERN)));
    assert!(who.get("session").is_none());
}

#[tokio::test]
async fn progress_and_wanted_logs_come_before_the_result() {
    let server = Server::start().await;
    let mut sleep = call(1, "sleep", json!({ "ms": 200 }), json!({}));
    sleep["params"]["_meta"]["progressToken"] = 9.into();
    let reply = server.modern(&sleep).await;
    assert_eq!(reply.header("x-accel-buffering"), "no");
    let messages = reply.messages().await;
    assert_eq!(
        methods(&messages),
        ["notifications/progress", "notifications/progress", "notifications/progress", "result"]
    );
    assert_eq!(messages[0]["params"]["progressToken"], 9);

    let mut log = call(2, "log", json!({ "message": "m" }), json!({}));
    assert!(!server.modern(&log).await.is_stream());
    log["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = "debug".into();
    assert_eq!(methods(&server.modern(&log).await.messages().await), ["notifications/message", "result"]);
}

#[tokio::test]
async fn input_is_asked_for_in_the_result() {
    let server = Server::start().await;
    let all = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
    let cases = [
        (
            "elicit",
            "name",
            "elicitation/create",
            json!({ "action": "accept", "content": { "name": "Ada" } }),
            "Hello, Ada!",
        ),
        (
            "sample",
            "sample",
            "sampling/createMessage",
            json!({ "model": "m", "role": "assistant", "content": { "type": "text", "text": "hi" } }),
            "m says: hi",
        ),
        ("roots", "roots", "roots/list", json!({ "roots": [] }), "no roots"),
    ];
    for (tool, key, method, answer, expected) in cases {
        let mut request = call(1, tool, json!({}), all.clone());
        let first = server.modern(&request).await.json().await["result"].clone();
        assert_eq!(first["resultType"], "input_required");
        assert_eq!(first["inputRequests"][key]["method"], method);
        assert!(first.get("ttlMs").is_none());
        request["id"] = 2.into();
        request["params"]["inputResponses"] = json!({ key: answer });
        request["params"]["requestState"] = first["requestState"].clone();
        assert_eq!(text(&server.modern(&request).await.json().await), expected);

        request["params"]["inputResponses"] = json!({});
        assert_eq!(server.modern(&request).await.json().await["result"]["resultType"], "input_required");
        request["params"]["requestState"] = "forged".into();
        assert_eq!(server.modern(&request).await.json().await["error"]["code"], -32602);
        let other = call(3, tool, json!({}), json!({}));
        let refused = server.modern(&other).await;
        assert_eq!(refused.status(), 400);
        let error = refused.json().await["error"].clone();
        assert_eq!(error["code"], -32021);
        assert!(error["data"]["requiredCapabilities"].is_object());
    }
}

#[tokio::test]
async fn listeners_hear_what_they_asked_for() {
    let server = Server::start().await;
    let wanted = json!({ "toolsListChanged": true, "resourceSubscriptions": ["demo://counter"], "odd": 1 });
    let mut listen = server.modern(&ask("subscriptions/listen", json!({ "notifications": wanted }))).await;
    let ack = listen.message().await;
    assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(
        ack["params"]["notifications"],
        json!({ "toolsListChanged": true, "resourceSubscriptions": ["demo://counter"] })
    );
    server.modern(&call(1, "touch", json!({}), json!({}))).await;
    let seen = [listen.message().await, listen.message().await];
    assert_eq!(methods(&seen), ["notifications/tools/list_changed", "notifications/resources/updated"]);
    assert_eq!(seen[1]["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "q");
    server.demo.shut_down();
    let end = listen.messages().await;
    assert_eq!(end[0]["result"]["resultType"], "complete");
    assert_eq!(end[0]["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "q");
}

#[tokio::test]
async fn a_request_that_contradicts_itself_is_refused() {
    let server = Server::start().await;
    let good = call(5, "echo", json!({ "message": "m" }), json!({}));
    let version = ("mcp-protocol-version", MODERN);
    let method = ("mcp-method", "tools/call");
    let mut bare = good.clone();
    bare["params"].as_object_mut().unwrap().remove("_meta");
    let mut odd = good.clone();
    odd["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let named = ("mcp-name", "echo");
    let cases: [(Headers<'_>, &Value, i64); 9] = [
        (&[version, method, ("mcp-name", "add")], &good, -32020),
        (&[version, method], &good, -32020),
        (&[version, ("mcp-method", "TOOLS/CALL"), named], &good, -32020),
        (&[method, named], &good, -32020),
        (&[version, method, named], &bare, -32602),
        (&[version, method, named], &odd, -32020),
        (&[("mcp-protocol-version", "2099-01-01"), method, named], &odd, -32022),
        (&[("mcp-protocol-version", "2025-11-25"), method, named], &good, -32020),
        (&[version, method, ("mcp-name", "=?base64?ZWNobw=?=")], &good, -32020),
    ];
    for (headers, body, code) in cases {
        let reply = server.post(headers, body).await;
        assert_eq!(reply.status(), 400, "{headers:?}");
        let answer = reply.json().await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &json!(5)), "{headers:?}");
    }
    let encoded = ("mcp-name", "=?base64?ZWNobw==?=");
    assert_eq!(server.post(&[version, method, encoded], &good).await.status(), 200);
}

#[tokio::test]
async fn mirrored_arguments_are_compared() {
    let server = Server::start().await;
    let body = call(1, "region", json!({ "region": "eu" }), json!({}));
    let base = [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "region")];
    let send = async |value: Option<&str>, body: &Value| {
        let mut headers = base.to_vec();
        headers.extend(value.map(|value| ("mcp-param-region", value)));
        server.post(&headers, body).await.status()
    };
    assert_eq!(send(Some("eu"), &body).await, 200);
    assert_eq!(send(Some("us"), &body).await, 400);
    assert_eq!(send(None, &body).await, 400);
    let none = call(1, "region", json!({}), json!({}));
    assert_eq!(send(None, &none).await, 200);
    assert_eq!(send(Some("eu"), &none).await, 400);
}

#[tokio::test]
async fn methods_of_the_other_era_are_unknown() {
    let server = Server::start().await;
    for method in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/list", "nothing"] {
        let reply = server.modern(&ask(method, json!({}))).await;
        assert_eq!(reply.status(), 404, "{method}");
        assert_eq!(reply.json().await["error"]["code"], -32601);
    }
    for verb in ["GET", "DELETE"] {
        let headers = [("mcp-protocol-version", MODERN), ("mcp-session-id", "x")];
        assert_eq!(server.send(verb, "/mcp", &headers, &Value::Null).await.status(), 405);
    }
}

#[tokio::test]
async fn who_leaves_is_not_served_any_longer() {
    let server = Server::start().await;
    let mut sleep = call(1, "sleep", json!({ "ms": 60_000 }), json!({}));
    sleep["params"]["_meta"]["progressToken"] = 1.into();
    let mut reply = server.modern(&sleep).await;
    reply.message().await;
    drop(reply);
    // Nor who leaves before there is anything to read.
    let quiet = call(2, "sleep", json!({ "ms": 60_000 }), json!({}));
    tokio::time::timeout(Duration::from_millis(100), server.modern(&quiet)).await.err().unwrap();
    // What is left is the task that serves.
    let gone = async {
        while server.tasks.len() > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}
