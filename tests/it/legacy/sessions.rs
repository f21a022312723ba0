//! Handshake, versions and the life of a session.

use std::collections::HashSet;
use std::time::Duration;

use drawbridge_testkit::client::{LEGACY, Session, initialize, request, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::in_front_of_demo;
use crate::backend::{Backend, text_result};

#[tokio::test]
async fn r010_a_foreign_origin_is_refused_on_every_method() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let client = &session.client;
    for origin in ["http://evil.example", "null", "https://127.0.0.1.evil.example"] {
        let mut headers = session.headers().to_vec();
        headers.push(("origin", origin));
        let ping = request(1, "ping", json!({})).to_string();
        assert_eq!(client.post("/mcp", &headers, ping).await.status(), 403, "{origin}");
        assert_eq!(client.get("/mcp", &headers).await.status(), 403, "{origin}");
        assert_eq!(client.delete("/mcp", &headers).await.status(), 403, "{origin}");
    }
    let mut headers = session.headers().to_vec();
    headers.push(("origin", "http://localhost:6274"));
    let reply = client.post("/mcp", &headers, request(1, "ping", json!({})).to_string()).await;
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://localhost:6274"));
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn r010_a_foreign_host_is_refused_on_loopback() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let body = initialize(LEGACY, json!({})).to_string();
    let reply = gateway.client().post("/mcp", &[("host", "evil.example")], body).await;
    assert_eq!(reply.status(), 403);
    // In the request line, and one beside the other.
    let status = async |line: &str, headers: &str| {
        let head = format!("{line} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
        let answer = gateway.client().raw(head.as_bytes(), Duration::from_secs(5)).await;
        String::from_utf8_lossy(&answer)[9..12].to_owned()
    };
    assert_eq!(status("GET http://localhost/none", "host: localhost\r\n").await, "404");
    assert_eq!(status("GET http://evil.example/none", "host: evil.example\r\n").await, "403");
    assert_eq!(status("GET http://evil.example/none", "host: localhost\r\n").await, "400");
    assert_eq!(status("GET /none", "host: localhost\r\nhost: localhost\r\n").await, "400");
    let origins = "origin: http://localhost\r\norigin: http://evil.example\r\n";
    assert_eq!(status("GET /none", &format!("host: localhost\r\n{origins}")).await, "400");
}

#[tokio::test]
async fn r011_a_deleted_session_is_gone_for_every_method() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
    assert_eq!(session.delete().await.status(), 204);
    assert_eq!(session.request("ping", json!({})).await.status(), 404);
    assert_eq!(session.request("tools/list", json!({})).await.status(), 404);
    assert_eq!(session.notify("notifications/made_up", json!({})).await.status(), 404);
    assert_eq!(session.get(None).await.status(), 404);
    assert_eq!(session.delete().await.status(), 404);
}

#[tokio::test]
async fn deleting_a_session_ends_its_streams_and_the_backends_session() {
    let backend = Backend::legacy(json!({ "tools": {} }), |_| text_result("done")).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let session = gateway.session().await;
    let mut stream = session.get(None).await;
    assert_eq!(text(&session.tool("x", json!({})).await), "done");
    assert_eq!(session.delete().await.status(), 204);
    while stream.event().await.is_some() {}
    eventually(Duration::from_secs(5), async || {
        let seen = backend.seen();
        let call = seen.iter().find(|seen| seen.rpc() == "tools/call").unwrap();
        seen.iter().any(|seen| {
            seen.method == http::Method::DELETE
                && seen.header("mcp-session-id") == call.header("mcp-session-id")
        })
    })
    .await;
}

#[tokio::test]
async fn r012_what_needs_a_session_is_refused_without_its_id() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let client = gateway.client();
    for (method, params) in [
        ("logging/setLevel", json!({ "level": "debug" })),
        ("resources/subscribe", json!({ "uri": "demo://counter" })),
        ("resources/unsubscribe", json!({ "uri": "demo://counter" })),
    ] {
        let reply = client.post("/mcp", &[], request(1, method, params).to_string()).await;
        assert_eq!(reply.status(), 400, "{method}");
        assert_eq!(reply.json().await["id"], 1);
    }
    assert_eq!(client.delete("/mcp", &[]).await.status(), 400);
    let response = json!({ "jsonrpc": "2.0", "id": 1, "result": {} }).to_string();
    assert_eq!(client.post("/mcp", &[], response).await.status(), 400);
}

#[tokio::test]
async fn an_id_that_can_not_be_read_is_an_unknown_one_and_not_a_missing_one() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let client = gateway.client();
    let mut headers = drawbridge_testkit::client::header_map(&[
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ]);
    for id in [&b"\xff\xfe"[..], "s\u{e9}ance".as_bytes()] {
        headers.insert("mcp-session-id", http::HeaderValue::from_bytes(id).unwrap());
        // What needs no session would be answered without an id.
        for body in [request(1, "tools/list", json!({})), request(1, "ping", json!({}))] {
            let reply = client.send(http::Method::POST, "/mcp", &headers, body.to_string()).await;
            assert_eq!(reply.status(), 404, "{body}");
        }
        assert_eq!(client.send(http::Method::GET, "/mcp", &headers, "").await.status(), 404);
        assert_eq!(client.send(http::Method::DELETE, "/mcp", &headers, "").await.status(), 404);
    }
}

#[tokio::test]
async fn r013_session_ids_are_visible_ascii_and_never_alike() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let mut ids = HashSet::new();
    for _ in 0..50 {
        let reply = gateway.client().post("/mcp", &[], initialize(LEGACY, json!({})).to_string()).await;
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
        assert!(id.len() >= 32, "{id}");
        ids.insert(id);
    }
    assert_eq!(ids.len(), 50);
    // Unpredictable: ids that were made one after the other differ in most places.
    let ids: Vec<_> = ids.iter().map(String::as_bytes).collect();
    let same = ids[0].iter().zip(ids[1]).filter(|(a, b)| a == b).count();
    assert!(same < ids[0].len() / 2, "{same} of {}", ids[0].len());
}

#[tokio::test]
async fn a_session_id_is_worthless_at_another_endpoint() {
    let demo = drawbridge_testkit::gateway::DemoBackend::start().await;
    let setup = Gateway::setup().url("one", &demo.url, "legacy").url("two", &demo.url, "legacy");
    let gateway = setup.start().await;
    let session = Session::open(&gateway.client(), "/mcp/one", LEGACY, json!({})).await;
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
    let elsewhere = Session { path: "/mcp/two".into(), ..session.clone() };
    assert_eq!(elsewhere.request("ping", json!({})).await.status(), 404);
    assert_eq!(elsewhere.get(None).await.status(), 404);
    assert_eq!(elsewhere.delete().await.status(), 404);
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}), "it lives on at its own");
}

#[tokio::test]
async fn r016_the_id_comes_with_the_answer_to_initialize_and_never_with_an_error() {
    let (gateway, demo) = in_front_of_demo("legacy").await;
    let client = gateway.client();
    let bad = request(1, "initialize", json!({ "capabilities": {} })).to_string();
    let reply = client.post("/mcp", &[], bad).await;
    assert_eq!((reply.status(), reply.header("mcp-session-id")), (400, None));
    let session = gateway.session().await;
    let reply = session.request("ping", json!({})).await;
    assert_eq!(reply.header("mcp-session-id"), None, "only with the handshake");
    demo.stop();
    let other = json!({ "experimental": { "never": "seen" } });
    let reply = client.post("/mcp", &[], initialize(LEGACY, other).to_string()).await;
    assert_eq!((reply.status(), reply.header("mcp-session-id")), (502, None));
}

#[tokio::test]
async fn r017_unknown_protocol_version_is_refused_with_400() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    for version in ["1999-01-01", "2025-11-26", "latest", "2025-11-25, 2025-06-18"] {
        let headers = [("mcp-session-id", session.id.as_str()), ("mcp-protocol-version", version)];
        let ping = request(1, "ping", json!({})).to_string();
        assert_eq!(session.client.post("/mcp", &headers, ping).await.status(), 400, "{version}");
        assert_eq!(session.client.get("/mcp", &headers).await.status(), 400, "{version}");
        assert_eq!(session.client.delete("/mcp", &headers).await.status(), 400, "{version}");
    }
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
}

fn known_version(answer: &Value) -> &Value {
    &answer["result"]["structuredContent"]["protocolVersion"]
}

#[tokio::test]
async fn r018_without_a_version_header_the_session_knows_its_version() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    for version in ["2025-06-18", "2025-11-25"] {
        let session = Session::open(&gateway.client(), "/mcp", version, json!({})).await;
        let body = request(1, "tools/call", json!({ "name": "whoami", "arguments": {} })).to_string();
        let only_session = [("mcp-session-id", session.id.as_str())];
        let reply = session.client.post("/mcp", &only_session, body).await;
        assert_eq!(known_version(&reply.answer().await), version);
        assert_eq!(session.client.get("/mcp", &only_session).await.status(), 200);
    }
}

#[tokio::test]
async fn r018_without_header_and_session_it_is_2025_03_26() {
    let backend = Backend::legacy(json!({ "tools": {} }), |_| text_result("done")).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let body = request(1, "tools/call", json!({ "name": "x", "arguments": {} })).to_string();
    assert_eq!(gateway.client().post("/mcp", &[], body).await.status(), 200);
    let opened = backend.calls("initialize");
    assert_eq!(opened[0].json()["params"]["protocolVersion"], "2025-03-26");
}

#[tokio::test]
async fn r019_a_supported_version_is_echoed() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let reply = gateway.client().post("/mcp", &[], initialize(version, json!({})).to_string()).await;
        assert_eq!(reply.answer().await["result"]["protocolVersion"], version);
    }
}

#[tokio::test]
async fn r020_any_other_version_is_answered_with_2025_11_25() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    for version in ["2026-07-28", "1.0", "", "2099-01-01"] {
        let reply = gateway.client().post("/mcp", &[], initialize(version, json!({})).to_string()).await;
        assert_eq!(reply.status(), 200, "{version}");
        assert!(reply.header("mcp-session-id").is_some());
        assert_eq!(reply.answer().await["result"]["protocolVersion"], "2025-11-25", "{version}");
    }
}

#[tokio::test]
async fn initialize_says_what_the_backend_is() {
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let result = &gateway.session().await.answer["result"];
        assert_eq!(result["serverInfo"]["name"], "drawbridge-demo", "{result}");
        assert!(result["instructions"].is_string());
        for capability in ["tools", "prompts", "resources", "logging", "completions"] {
            assert!(result["capabilities"][capability].is_object(), "{era} {capability}");
        }
    }
}

#[tokio::test]
async fn deleting_a_session_ends_its_calls() {
    let backend = Backend::legacy(json!({ "tools": {} }), |_| {
        let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
        crate::backend::Does::Holds(vec![note.to_owned()], "never", "{}".to_owned())
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let session = gateway.session().await;
    let mut called = session.request("tools/call", json!({ "name": "x", "arguments": {} })).await;
    called.message().await;
    assert_eq!(session.delete().await.status(), 204);
    while let Some(event) = called.event().await {
        assert!(event.data.is_empty(), "{event:?}");
    }
    eventually(Duration::from_secs(5), async || backend.abandoned() == 1).await;
}

#[tokio::test]
async fn browsers_of_accepted_origins_may_ask_and_read() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let asking = [
        ("origin", "http://localhost:6274"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "mcp-session-id, mcp-protocol-version, authorization"),
    ];
    let headers = drawbridge_testkit::client::header_map(&asking);
    let reply = gateway.client().send(http::Method::OPTIONS, "/mcp", &headers, "").await;
    assert_eq!(reply.status(), 204);
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://localhost:6274"));
    let allowed = reply.header("access-control-allow-headers").unwrap();
    for name in ["mcp-session-id", "mcp-protocol-version", "authorization", "last-event-id", "content-type"] {
        assert!(allowed.contains(name), "{name}");
    }
    let body = initialize(LEGACY, json!({})).to_string();
    let reply = gateway.client().post("/mcp", &asking[..1], body).await;
    assert!(reply.header("access-control-expose-headers").unwrap().contains("mcp-session-id"));
    let evil = drawbridge_testkit::client::header_map(&[("origin", "http://evil.example")]);
    assert_eq!(gateway.client().send(http::Method::OPTIONS, "/mcp", &evil, "").await.status(), 403);
}

#[tokio::test]
async fn a_slash_at_the_end_of_the_path_is_ignored() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    for path in ["/mcp/", "/mcp/demo/"] {
        let session = Session::open(&gateway.client(), path, LEGACY, json!({})).await;
        assert_eq!(text(&session.tool("echo", json!({ "message": "x" })).await), "x");
    }
}
