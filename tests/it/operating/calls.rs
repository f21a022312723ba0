//! The line that each call has in the log.

use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, legacy, modern};
use drawbridge_testkit::client::{Modern, Session, request};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);

/// The lines about calls, as they are in the log.
fn lines(gateway: &Gateway) -> Vec<Value> {
    let log = gateway.program.stderr();
    let lines = log.lines().filter(|line| line.contains(r#""target":"drawbridge::call""#));
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The one line with `text` in it.
async fn line_with(gateway: &Gateway, text: &str) -> Value {
    let found =
        || lines(gateway).into_iter().filter(|line| line.to_string().contains(text)).collect::<Vec<_>>();
    eventually(SOON, async || !found().is_empty()).await;
    let found = found();
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].clone()
}

#[tokio::test]
async fn a_call_has_one_line_that_tells_transport_protocol_and_tool_apart() {
    let behave = |r: drawbridge_testkit::backend::Request| async move {
        match (r.rpc(), r.name()) {
            ("tools/call", "fails") => {
                Reply::result(&r, json!({ "content": [], "isError": true, "resultType": "complete" }))
            }
            ("tools/call", "errs") => Reply::error(&r, 200, -32602, "no"),
            ("tools/call", "streams") => {
                let (reply, stream) = Reply::stream();
                stream.event(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "error", "data": "secret-in-a-note" } })).await;
                stream.event(&json!({ "jsonrpc": "2.0", "id": r.id(), "result": { "content": [], "resultType": "complete" } })).await;
                reply
            }
            _ => modern(&r),
        }
    };
    let backend = Backend::start(behave).await;
    let other = Backend::start(|r| async move { modern(&r) }).await;
    let setup = Gateway::setup().url("one", &backend.url(), "modern").url("two", &other.url(), "modern");
    let gateway = setup.config("log: { format: json }").start().await;
    let one = Modern::new(&gateway.client(), "/mcp/one", json!({}));
    let reply = one
        .request("tools/call", json!({ "name": "works", "arguments": { "key": "secret-argument" } }))
        .await;
    let id = reply.header("x-request-id").unwrap().to_owned();
    let line = line_with(&gateway, &id).await;
    let took = line["duration_ms"].as_f64().unwrap();
    assert!(took > 0.0 && took < 10_000.0, "{line}");
    for (field, expected) in [
        ("level", json!("INFO")),
        ("message", json!("call")),
        ("request.id", json!(id)),
        ("endpoint.name", json!("one")),
        ("backend.name", json!("one")),
        ("mcp.method", json!("tools/call")),
        ("mcp.name", json!("works")),
        ("client.era", json!("modern")),
        ("outcome", json!("ok")),
        ("http.status", json!(200)),
        ("http.stream", json!(false)),
        ("rpc.error_code", Value::Null),
        ("tool.is_error", json!(false)),
    ] {
        assert_eq!(line[field], expected, "{field} in {line}");
    }

    one.call("tools/call", json!({ "name": "fails", "arguments": {} })).await;
    let line = line_with(&gateway, "fails").await;
    assert_eq!((&line["http.status"], &line["tool.is_error"]), (&json!(200), &json!(true)), "{line}");
    assert_eq!((&line["outcome"], &line["rpc.error_code"]), (&json!("tool_error"), &Value::Null), "{line}");
    one.call("tools/call", json!({ "name": "errs", "arguments": {} })).await;
    let line = line_with(&gateway, "errs").await;
    assert_eq!((&line["http.status"], &line["rpc.error_code"]), (&json!(200), &json!(-32602)), "{line}");
    assert_eq!((&line["outcome"], &line["tool.is_error"]), (&json!("rpc_error"), &Value::Null), "{line}");
    one.call("made/up", json!({})).await;
    let line = line_with(&gateway, "made/up").await;
    assert_eq!((&line["http.status"], &line["rpc.error_code"]), (&json!(404), &json!(-32601)), "{line}");

    // The prefix of the name tells the backend, on the endpoint that has both; and an answer may be a stream.
    let both = gateway.modern();
    let mut body = both.body("tools/call", json!({ "name": "one__streams", "arguments": {} }));
    body["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = json!("debug");
    both.post_with(&body, &[]).await.answer().await;
    let line = line_with(&gateway, "one__streams").await;
    assert_eq!((&line["endpoint.name"], &line["backend.name"]), (&json!("/mcp"), &json!("one")), "{line}");
    assert_eq!((&line["http.status"], &line["http.stream"]), (&json!(200), &json!(true)), "{line}");
    assert!(!gateway.program.stderr().contains("secret"), "{}", gateway.program.stderr());
}

#[tokio::test]
async fn calls_of_sessions_have_their_line_too() {
    let backend = Backend::start(|r| async move {
        match r.name() {
            "hangs" => std::future::pending().await,
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let gateway = Gateway::setup()
        .url("it", &backend.url(), "legacy")
        .config("log: { format: json }\nstreams: { sse_after: 50ms }")
        .start()
        .await;
    let session = gateway.session().await;
    session.tool("works", json!({})).await;
    let line = line_with(&gateway, "works").await;
    assert_eq!((&line["client.era"], &line["outcome"]), (&json!("legacy"), &json!("ok")), "{line}");
    assert_eq!((&line["http.status"], &line["http.stream"]), (&json!(200), &json!(false)), "{line}");
    let line = line_with(&gateway, r#""mcp.method":"initialize""#).await;
    assert_eq!((&line["http.status"], &line["mcp.name"]), (&json!(200), &Value::Null), "{line}");

    let hanging = request(70, "tools/call", json!({ "name": "hangs", "arguments": {} }));
    let reply = session.post(hanging.to_string()).await;
    assert!(reply.is_stream());
    session.notify("notifications/cancelled", json!({ "requestId": 70 })).await;
    let line = line_with(&gateway, "hangs").await;
    assert_eq!((&line["outcome"], &line["http.stream"]), (&json!("cancelled"), &json!(true)), "{line}");

    let id = session.id.clone();
    session.delete().await;
    let over = request(71, "prompts/list", json!({})).to_string();
    assert_eq!(gateway.client().post("/mcp", &[("mcp-session-id", &id)], over).await.status(), 404);
    let line = line_with(&gateway, "prompts/list").await;
    assert_eq!((&line["outcome"], &line["http.status"]), (&json!("refused"), &json!(404)), "{line}");
    assert!(!gateway.program.stderr().contains(&id), "a session id is a secret");
}

#[tokio::test]
async fn the_line_can_be_left_out() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let setup = Gateway::setup().url("it", &backend.url(), "modern");
    let gateway = setup.config("log: { format: json, level: \"info,drawbridge::call=off\" }").start().await;
    gateway.modern().call("tools/list", json!({})).await;
    Session::open(&gateway.client(), "/mcp", "2025-11-25", json!({})).await;
    assert_eq!(lines(&gateway), Vec::<Value>::new());
    assert!(gateway.program.stderr().contains("started"));
}
