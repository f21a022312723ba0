//! What may be posted and what comes back.

use drawbridge_testkit::client::{LEGACY, Session, initialize, notification, request, text};
use serde_json::{Value, json};

use super::in_front_of_demo;

#[tokio::test]
async fn r001_accepted_notifications_and_responses_are_answered_202_without_a_body() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let bodies = [
        notification("notifications/initialized", json!({})),
        notification("notifications/roots/list_changed", json!({})),
        notification("notifications/made_up", json!({})),
        notification("notifications/cancelled", json!({ "requestId": 77 })),
        json!({ "jsonrpc": "2.0", "id": "nobody-asked", "result": {} }),
        json!({ "jsonrpc": "2.0", "id": 7, "error": { "code": -1, "message": "no" } }),
    ];
    for body in bodies {
        let reply = session.post(body.to_string()).await;
        assert_eq!(reply.status(), 202, "{body}");
        assert!(reply.bytes().await.is_empty(), "{body}");
    }
}

#[tokio::test]
async fn r002_requests_are_answered_with_json_or_an_event_stream() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let quick = session.request("tools/list", json!({})).await;
    assert_eq!(quick.header("content-type"), Some("application/json"));
    let params = json!({ "name": "sleep", "arguments": { "ms": 50 }, "_meta": { "progressToken": 1 } });
    let slow = session.request("tools/call", params).await;
    assert_eq!(slow.header("content-type"), Some("text/event-stream"));
    let answer = slow.answer().await;
    assert_eq!(text(&answer), "slept 50 ms");
}

#[tokio::test]
async fn r003_batches_are_refused_since_2025_06_18() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    for version in ["2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway.client(), "/mcp", version, json!({})).await;
        let reply = session.post(json!([request(1, "ping", json!({}))]).to_string()).await;
        assert_eq!(reply.status(), 400, "{version}");
        assert_eq!(reply.json().await["error"]["code"], -32600);
    }
}

#[tokio::test]
async fn r004_a_batch_of_2025_03_26_gets_one_response_per_request() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = Session::open(&gateway.client(), "/mcp", "2025-03-26", json!({})).await;
    let echo =
        |id: &str| request(id, "tools/call", json!({ "name": "echo", "arguments": { "message": id } }));
    let batch = json!([
        echo("a"),
        notification("notifications/roots/list_changed", json!({})),
        request("p", "ping", json!({})),
        echo("b"),
        request("n", "made/up", json!({})),
    ]);
    let reply = session.post(batch.to_string()).await;
    assert_eq!(reply.status(), 200);
    let mut answers: Vec<Value> = Vec::new();
    for message in reply.messages().await {
        match message {
            Value::Array(several) => answers.extend(several),
            one => answers.push(one),
        }
    }
    let mut ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b", "n", "p"]);
    let of = |id: &str| answers.iter().find(|answer| answer["id"] == id).unwrap();
    assert_eq!(text(of("a")), "a");
    assert_eq!(text(of("b")), "b");
    assert_eq!(of("p")["result"], json!({}));
    assert_eq!(of("n")["error"]["code"], -32601);
}

#[tokio::test]
async fn r004_a_batch_of_one_request_is_answered_in_an_array() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = Session::open(&gateway.client(), "/mcp", "2025-03-26", json!({})).await;
    for method in ["ping", "tools/list"] {
        let reply = session.post(json!([request(5, method, json!({}))]).to_string()).await;
        let answer = reply.json().await;
        assert_eq!(answer.as_array().map(Vec::len), Some(1), "{method}: {answer}");
        assert_eq!(answer[0]["id"], 5);
    }
}

#[tokio::test]
async fn r005_a_batch_without_requests_is_answered_202() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = Session::open(&gateway.client(), "/mcp", "2025-03-26", json!({})).await;
    let notifications = json!([notification("notifications/made_up", json!({}))]);
    let responses =
        json!([{ "jsonrpc": "2.0", "id": 3, "result": {} }, { "jsonrpc": "2.0", "id": 4, "result": {} }]);
    for batch in [notifications, responses] {
        let reply = session.post(batch.to_string()).await;
        assert_eq!(reply.status(), 202, "{batch}");
        assert!(reply.bytes().await.is_empty());
    }
}

#[tokio::test]
async fn r006_initialize_inside_a_batch_is_refused() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let batch = json!([initialize("2025-03-26", json!({}))]).to_string();
    let reply = gateway.client().post("/mcp", &[], batch.clone()).await;
    assert_eq!(reply.status(), 400);
    assert_eq!(reply.header("mcp-session-id"), None);
    let session = Session::open(&gateway.client(), "/mcp", "2025-03-26", json!({})).await;
    let reply = session.post(batch).await;
    assert_eq!(reply.header("mcp-session-id"), None);
    let answer = reply.answer().await;
    assert_eq!(answer[0]["error"]["code"], -32600, "{answer}");
}

#[tokio::test]
async fn r032_ping_is_answered_without_the_backend() {
    // Nothing listens at the backend's address once the demo is gone.
    let (gateway, demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    demo.stop();
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
    let answer = session.post(request("text", "ping", json!({})).to_string()).await.answer().await;
    assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "text", "result": {} }));
}

#[tokio::test]
async fn bodies_that_are_no_messages_are_refused_with_400() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let bodies: [(&[u8], i64); 10] = [
        (b"", -32700),
        (b"{", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}x", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\"}", -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b"{\"id\":1,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":[1]}", -32600),
    ];
    for (body, code) in bodies {
        let reply = session.post(body.to_vec()).await;
        let shown = String::from_utf8_lossy(body).into_owned();
        assert_eq!(reply.status(), 400, "{shown}");
        assert_eq!(reply.json().await["error"]["code"], code, "{shown}");
    }
}

#[tokio::test]
async fn keys_that_are_there_twice_are_refused_however_they_are_spelt() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let call = r#""params":{"name":"echo","arguments":{"message":"x"}}"#;
    let bodies = [
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call",{call}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/call",{call}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"\u0069d":2,"method":"tools/call",{call}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"id":1,"method":"tools/call",{call}}}"#),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","n\u0061me":"touch","arguments":{}}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"touch","arguments":{}}}"#.to_owned(),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call",{call},{call}}}"#),
    ];
    for body in bodies {
        let reply = session.post(body.clone()).await;
        assert_eq!(reply.status(), 400, "{body}");
        assert_eq!(reply.json().await["error"]["code"], -32600, "{body}");
    }
    // What the gateway does not read is the backend's own affair.
    let own = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"message":"a","message":"b"}}}"#;
    assert_eq!(session.post(own).await.status(), 200);
}

#[tokio::test]
async fn other_media_types_are_refused() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let client = gateway.client();
    let body = initialize(LEGACY, json!({})).to_string();
    let reply = client.post("/mcp", &[("content-type", "text/plain")], body.clone()).await;
    assert_eq!(reply.status(), 415);
    let reply = client.post("/mcp", &[("accept", "text/html")], body.clone()).await;
    assert_eq!(reply.status(), 406);
    for accept in ["*/*", "application/*, text/*", ""] {
        let reply = client.post("/mcp", &[("accept", accept)], body.clone()).await;
        assert_eq!(reply.status(), 200, "accept {accept:?}");
    }
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there_are_refused() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let client = gateway.client();
    let body = initialize(LEGACY, json!({})).to_string();
    for path in ["/", "/mcp/none", "/other", "/mcp/demo/x"] {
        assert_eq!(client.post(path, &[], body.clone()).await.status(), 404, "{path}");
    }
    let put = client.send(http::Method::PUT, "/mcp", &http::HeaderMap::new(), body).await;
    assert_eq!(put.status(), 405);
}
