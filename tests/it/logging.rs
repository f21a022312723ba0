//! What the gateway logs.

use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, legacy};
use drawbridge_testkit::client::{Reply as Answer, Session, initialize, notification, request};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::Gateway;
use serde_json::json;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn what_clients_and_backends_say_can_not_look_like_lines_of_the_log() {
    const FORGED: &str = "x\n2001-01-01T00:00:00.000000Z ERROR forged: \u{1b}[31mall is lost\r\n";
    let backend = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let liar = Backend::start(|r| async move {
        match r.rpc() {
            "initialize" => Reply::error(&r, 200, -32000, FORGED),
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let setup = Gateway::setup().url("one", &backend.url(), "legacy").url("liar", &liar.url(), "legacy");
    let gateway = setup.start().await;
    let session = gateway.session().await;
    let one = Session::open(&gateway.client(), "/mcp/one", "2025-11-25", json!({})).await;
    backend.stop().await;
    for session in [&session, &one] {
        let call = json!({ "name": format!("one__{FORGED}"), "arguments": {} });
        session.post(request(FORGED, "tools/call", call).to_string()).await.bytes().await;
        session.post(request(FORGED, FORGED, json!({})).to_string()).await.bytes().await;
    }
    let read = json!({ "uri": format!("file:///{FORGED}") });
    gateway.modern().client.post("/mcp", &[], request(1, "resources/read", read).to_string()).await;
    let log = || gateway.program.stderr();
    eventually(SOON, async || log().matches("call failed").count() >= 3 && log().contains("left out")).await;
    for line in log().lines() {
        assert!(!line.starts_with("2001"), "{line}");
        assert!(line.contains("  WARN ") || line.contains("  INFO "), "{line}");
    }
    assert!(log().contains("forged") && !log().contains('\u{1b}') && !log().contains('\r'), "{}", log());
}

#[tokio::test]
async fn every_line_of_a_call_has_its_request_id_and_the_client_is_told() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    for format in ["json", "text"] {
        let backend = Backend::start(|r| async move {
            match r.rpc() {
                // It breaks off after the answer to the client has begun.
                "tools/call" => {
                    let (reply, stream) = Reply::stream();
                    let note = json!({ "level": "info", "data": "begun" });
                    stream.event(&notification("notifications/message", note)).await;
                    stream.cut().await;
                    reply
                }
                _ => legacy(&r, "s"),
            }
        })
        .await;
        let setup = Gateway::setup().url("it", &backend.url(), "auto");
        let gateway = setup.config(&format!("log: {{ format: {format} }}")).start().await;
        let lines = |id: &str| -> Vec<String> {
            let log = gateway.program.stderr();
            log.lines().filter(|line| line.contains(id)).map(str::to_owned).collect()
        };
        let id_of = |reply: &Answer| reply.header("x-request-id").unwrap().to_owned();

        // What is done upstream because of a request is the request's.
        let opened =
            gateway.client().post("/mcp", &[], initialize("2025-11-25", json!({})).to_string()).await;
        let (id, session) = (id_of(&opened), opened.header("mcp-session-id").unwrap().to_owned());
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        eventually(SOON, async || lines(&id).iter().any(|line| line.contains("backend probed"))).await;

        let call = request(1, "tools/call", json!({ "name": "x", "arguments": {} })).to_string();
        let failed = async |reply: Answer| {
            let id = id_of(&reply);
            assert!(reply.answer().await["error"].is_object());
            eventually(SOON, async || lines(&id).iter().any(|line| line.contains("call failed"))).await;
            id
        };
        let one = failed(gateway.client().post("/mcp", &[("mcp-session-id", &session)], call).await).await;
        let two = failed(gateway.modern().request("tools/call", json!({ "name": "x" })).await).await;
        assert!(one != two && one != id);

        let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let modern = gateway.modern();
        let body = modern.body("tools/call", json!({ "name": "x" }));
        let reply = modern.post_with(&body, &[("traceparent", &traceparent)]).await;
        assert_eq!(failed(reply).await, TRACE);
        for line in lines(TRACE) {
            match format {
                "json" => {
                    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
                    assert_eq!(line["request.id"], json!(TRACE));
                }
                _ => assert!(line.ends_with(&format!(" request.id={TRACE}")), "{line}"),
            }
        }
    }
}
