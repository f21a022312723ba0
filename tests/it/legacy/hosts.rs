//! What hosts in the field do.

use std::time::Duration;

use drawbridge_testkit::client::{LEGACY, Session, initialize, request, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::Gateway;
use serde_json::json;

use super::in_front_of_demo;
use crate::backend::{Backend, text_result};

#[tokio::test]
async fn a_host_that_never_sends_the_session_id_back_can_list_and_call() {
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let client = gateway.client();
        assert_eq!(client.post("/mcp", &[], initialize(LEGACY, json!({})).to_string()).await.status(), 200);
        let version = [("mcp-protocol-version", LEGACY)];
        let note = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
        assert_eq!(client.post("/mcp", &version, note).await.status(), 202);
        let list = client.post("/mcp", &version, request(1, "tools/list", json!({})).to_string()).await;
        assert!(!list.answer().await["result"]["tools"].as_array().unwrap().is_empty(), "{era}");
        let echo = json!({ "name": "echo", "arguments": { "message": "hello" } });
        let called = client.post("/mcp", &version, request(2, "tools/call", echo).to_string()).await;
        assert_eq!(text(&called.answer().await), "hello");
        let slow = json!({ "name": "sleep", "arguments": { "ms": 50 }, "_meta": { "progressToken": 1 } });
        let called = client.post("/mcp", &version, request(3, "tools/call", slow).to_string()).await;
        assert_eq!(text(&called.answer().await), "slept 50 ms");
        let level = request(4, "logging/setLevel", json!({ "level": "debug" })).to_string();
        assert_eq!(client.post("/mcp", &version, level).await.status(), 400);
    }
}

#[tokio::test]
async fn a_host_that_sends_no_version_header_after_the_handshake_is_served() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let only_session = [("mcp-session-id", session.id.as_str())];
    let echo = json!({ "name": "echo", "arguments": { "message": "hello" } });
    let body = request(1, "tools/call", echo).to_string();
    let reply = session.client.post("/mcp", &only_session, body).await;
    assert_eq!(text(&reply.answer().await), "hello");
    assert_eq!(session.client.get("/mcp", &only_session).await.status(), 200);
    assert_eq!(session.client.delete("/mcp", &only_session).await.status(), 204);
}

#[tokio::test]
async fn a_thousand_sessions_of_one_call_each_leave_none_behind() {
    let backend = Backend::legacy(json!({ "tools": {} }), |_| text_result("done")).await;
    let setup = Gateway::setup().url("it", &backend.url, "legacy");
    let gateway = setup.config("limits: { max_sessions: 20, session_idle: 1s }").start().await;
    let client = gateway.client();
    let lane = async |count: usize| {
        for _ in 0..count {
            let session = Session::open(&client, "/mcp", LEGACY, json!({})).await;
            assert_eq!(text(&session.tool("x", json!({})).await), "done");
        }
    };
    let before = gateway.program.resident_bytes();
    tokio::join!(lane(250), lane(250), lane(250), lane(250));
    // Each conversation with the backend ends: at once for want of room, or when it was idle for long enough.
    eventually(Duration::from_secs(15), async || {
        let seen = backend.seen();
        let ended = seen.iter().filter(|seen| seen.method == http::Method::DELETE).count();
        let opened = seen.iter().filter(|seen| seen.rpc() == "initialize").count();
        // One may be kept as a spare for the next client of this kind.
        opened - ended <= 1
    })
    .await;
    assert_eq!(backend.calls("tools/call").len(), 1000);
    let grown = gateway.program.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes");
}

#[tokio::test]
async fn a_session_from_before_a_restart_goes_on_silently() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let old = Session::open(&gateway.client(), "/mcp", "2025-06-18", json!({ "roots": {} })).await;
    old.tool("echo", json!({ "message": "x" })).await;
    let gateway = gateway.restart_after_kill().await;
    let session = Session { client: gateway.client(), ..old };
    let who = session.tool("whoami", json!({})).await;
    let about = &who["result"]["structuredContent"];
    assert_eq!(about["protocolVersion"], "2025-06-18");
    assert_eq!(about["capabilities"], json!({ "roots": {} }));
    assert_eq!(about["client"]["name"], "testkit");
    assert_eq!(session.get(None).await.status(), 200);
    assert_eq!(session.delete().await.status(), 204);
    assert_eq!(session.request("ping", json!({})).await.status(), 404);
}

#[tokio::test]
async fn a_session_whose_backend_was_restarted_goes_on() {
    let backend = Backend::start({
        use crate::backend::{Does, JSON, Seen};
        use std::sync::atomic::{AtomicUsize, Ordering};
        let sessions = AtomicUsize::new(0);
        move |seen: &Seen| {
            let number = sessions.load(Ordering::SeqCst);
            match seen.rpc().as_str() {
                "initialize" => {
                    let number = sessions.fetch_add(1, Ordering::SeqCst) + 1;
                    let result = json!({ "protocolVersion": LEGACY, "capabilities": { "tools": {} },
                                         "serverInfo": { "name": "s", "version": "1" } });
                    let body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.id());
                    Does::Raw(200, vec![("mcp-session-id", format!("s{number}")), JSON], body)
                }
                "notifications/initialized" => Does::Raw(202, Vec::new(), String::new()),
                // Every session but the newest is forgotten, and the first one after its first call.
                "tools/call" if seen.header("mcp-session-id") == Some("s1") => {
                    Does::Error(404, r#"{"code":-32001,"message":"session not found"}"#.into())
                }
                _ => text_result(&format!("session {number}")),
            }
        }
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let session = gateway.session().await;
    assert_eq!(text(&session.tool("x", json!({})).await), "session 2");
    assert_eq!(text(&session.tool("x", json!({})).await), "session 2");
    // Nor does a client without sessions notice (R115).
    let who = gateway.modern().tool("x", json!({})).await;
    assert!(text(&who).starts_with("session "), "{who}");
}

#[tokio::test]
async fn a_forged_session_id_is_not_found_and_the_answer_names_nothing() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let mut forged = session.id.clone().into_bytes();
    let last = forged.len() / 2;
    forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    let long = "x".repeat(4000);
    for id in [forged.as_str(), "", "x", "../../etc/passwd", long.as_str(), &session.id[1..]] {
        let wrong = Session { id: id.to_owned(), ..session.clone() };
        let ping = request(1, "ping", json!({})).to_string();
        let reply = wrong.client.post("/mcp", &[("mcp-session-id", id)], ping).await;
        // An empty value is no header at all here.
        if id.is_empty() {
            continue;
        }
        assert_eq!(reply.status(), 404, "{id}");
        let body = reply.text().await;
        for secret in ["demo", "anonymous", "127.0.0.1", "key", "seal"] {
            assert!(!body.contains(secret), "{body}");
        }
        assert_eq!(wrong.get(None).await.status(), 404, "{id}");
        assert_eq!(wrong.delete().await.status(), 404, "{id}");
    }
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn a_get_before_or_without_a_session_is_refused_and_harms_nothing() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let client = gateway.client();
    for version in ["2025-03-26", "2025-06-18", LEGACY] {
        let reply = client.get("/mcp", &[("mcp-protocol-version", version)]).await;
        assert_eq!(reply.status(), 405);
    }
    let session = Session::open(&client, "/mcp", LEGACY, json!({})).await;
    assert_eq!(text(&session.tool("echo", json!({ "message": "x" })).await), "x");
}

#[tokio::test]
async fn initialize_naming_the_modern_version_is_answered_with_2025_11_25() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let session = Session::open(&gateway.client(), "/mcp", "2026-07-28", json!({})).await;
    assert_eq!(session.version, "2025-11-25");
    assert_eq!(text(&session.tool("echo", json!({ "message": "x" })).await), "x");
}

#[tokio::test]
async fn very_large_capabilities_fit_into_a_session() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let large = json!({ "experimental": { "x": { "y": "z".repeat(50_000) } } });
    let session = Session::open(&gateway.client(), "/mcp", LEGACY, large.clone()).await;
    assert!(session.id.len() <= 2048);
    let who = session.tool("whoami", json!({})).await;
    assert_eq!(who["result"]["structuredContent"]["capabilities"], large);
}
