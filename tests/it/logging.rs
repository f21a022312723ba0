//! What the gateway logs.

use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, legacy};
use drawbridge_testkit::client::request;
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
    let one =
        drawbridge_testkit::client::Session::open(&gateway.client(), "/mcp/one", "2025-11-25", json!({}))
            .await;
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
