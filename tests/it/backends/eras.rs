//! Finding out what backends speak.

use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, legacy, modern};
use drawbridge_testkit::client::text;
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::json;

use super::{Either, fault, in_front_of, message};

/// A server of both eras: what opens with a handshake gets sessions, the rest is stateless.
fn dual(r: &drawbridge_testkit::backend::Request) -> Reply {
    if r.header("mcp-method").is_empty() { legacy(r, "s") } else { modern(r) }
}

#[tokio::test]
async fn r114_an_era_is_asked_for_once() {
    for is_modern in [true, false] {
        let backend =
            Backend::start(move |r| async move { if is_modern { modern(&r) } else { legacy(&r, "s") } })
                .await;
        let gateway = in_front_of(&backend, "", "").await;
        // All at once at first, then one after the other.
        let (a, b, c) = (gateway.modern(), gateway.modern(), gateway.modern());
        let calls =
            tokio::join!(a.tool("echo", json!({})), b.tool("echo", json!({})), c.tool("echo", json!({})));
        assert_eq!([text(&calls.0), text(&calls.1), text(&calls.2)], ["ok"; 3]);
        for _ in 0..3 {
            assert_eq!(text(&gateway.modern().tool("echo", json!({})).await), "ok");
        }
        assert_eq!(backend.count("server/discover"), 1);
        // A session's client asks what the backend offers: at most once more.
        for _ in 0..3 {
            assert_eq!(text(&gateway.session().await.tool("echo", json!({})).await), "ok");
        }
        assert_eq!(backend.count("server/discover"), if is_modern { 2 } else { 1 });
    }
}

#[tokio::test]
async fn r114_a_legacy_verdict_expires_and_an_upgrade_is_noticed() {
    let backend = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let gateway = in_front_of(&backend, "era_ttl: 300ms", "").await;
    let session = gateway.session().await;
    for client in Either::both(&gateway).await {
        assert_eq!(text(&client.tool("echo").await), "ok");
    }
    assert!(backend.requests_of("tools/call").iter().all(|r| r.header("mcp-method").is_empty()));
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    backend.behave(|r| async move { dual(&r) });
    eventually(Duration::from_secs(10), async || {
        assert_eq!(text(&gateway.modern().tool("echo", json!({})).await), "ok");
        backend.requests_of("tools/call").last().unwrap().header("mcp-method") == "tools/call"
    })
    .await;
    // New sessions are sessions at a backend that speaks both, and old ones go on.
    assert_eq!(text(&gateway.session().await.tool("echo", json!({})).await), "ok");
    assert_eq!(backend.requests_of("tools/call").last().unwrap().header("mcp-session-id"), "s");
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
}

#[tokio::test]
async fn r114_a_modern_verdict_is_dropped_when_the_backend_turns_legacy() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let gateway = in_front_of(&backend, "", "").await;
    let clients = Either::both(&gateway).await;
    for client in &clients {
        assert_eq!(text(&client.tool("echo").await), "ok");
    }
    backend.behave(|r| async move { legacy(&r, "s") });
    for client in &clients {
        assert_eq!(text(&client.tool("echo").await), "ok");
    }
    let executed =
        backend.requests_of("tools/call").iter().filter(|r| r.header("mcp-session-id") == "s").count();
    assert_eq!(executed, 2, "each call ran once");
    assert!(backend.count("initialize") >= 1);
}

/// A server of 2026-07-28 that turns requests of sessions down as `refusal` says.
fn modern_only(r: &drawbridge_testkit::backend::Request, refusal: &str) -> Reply {
    match refusal {
        _ if !r.header("mcp-method").is_empty() => modern(r),
        "404" if r.rpc() != "initialize" => Reply::error(r, 404, -32001, "Session not found"),
        "404" => Reply::error(r, 404, -32601, "Method not found: initialize"),
        code => Reply::error(r, 400, code.parse().unwrap(), "Unsupported protocol version"),
    }
}

#[tokio::test]
async fn r114_r110_a_live_session_goes_on_when_its_backend_has_no_sessions_any_more() {
    for refusal in ["-32022", "-32020", "404"] {
        let backend = Backend::start(|r| async move { legacy(&r, "s") }).await;
        let gateway = in_front_of(&backend, "", "").await;
        let clients = Either::both(&gateway).await;
        for client in &clients {
            assert_eq!(text(&client.tool("echo").await), "ok");
        }
        backend.behave(move |r| async move { modern_only(&r, refusal) });
        for client in &clients {
            // A finding of this very second is not doubted.
            eventually(Duration::from_secs(10), async || {
                let answer = client.tool("echo").await;
                let is_there = answer.get("result").is_some();
                assert!(is_there || fault(&answer).0 == "backend_bad_answer", "{answer}");
                is_there
            })
            .await;
        }
        for client in &clients {
            assert_eq!(text(&client.tool("echo").await), "ok", "{refusal}");
        }
        let is_stateless = |r: &&drawbridge_testkit::backend::Request| !r.header("mcp-method").is_empty();
        assert_eq!(backend.requests_of("tools/call").iter().filter(is_stateless).count(), 4, "each ran once");
    }
}

#[tokio::test]
async fn r110_a_refusal_of_the_other_era_stays_here_even_where_the_era_is_given() {
    let backend = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let gateway = in_front_of(&backend, "era: legacy, transport: streamable-http", "").await;
    let session = gateway.session().await;
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    backend.behave(|r| async move { modern_only(&r, "-32022") });
    let answer = session.tool("echo", json!({})).await;
    assert_eq!(fault(&answer).0, "backend_bad_answer");
    assert!(message(&answer).contains("Unsupported protocol version"), "{answer}");
    backend.behave(|r| async move { legacy(&r, "s") });
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
}

#[tokio::test]
async fn r114_a_backend_that_was_away_is_asked_when_it_is_back() {
    let backend = Backend::start(|_| async { Reply::status(503) }).await;
    let gateway = in_front_of(&backend, "", "").await;
    let answer = gateway.modern().tool("echo", json!({})).await;
    assert_eq!(fault(&answer), ("backend_unreachable", "safe"), "an outage says nothing about the era");
    backend.behave(|r| async move { modern(&r) });
    assert_eq!(text(&gateway.modern().tool("echo", json!({})).await), "ok");
    assert_eq!(backend.count("initialize"), 0);
}

#[tokio::test]
async fn all_ways_in_which_legacy_servers_refuse_the_probe_lead_to_a_handshake() {
    for refusal in ["400", "404", "405", "400-text", "-32601", "-32602", "-32000", "-32000-no-id"] {
        let backend = Backend::start(move |r| async move {
            if r.rpc() != "server/discover" {
                return legacy(&r, "s");
            }
            match refusal {
                "400" | "404" | "405" => Reply::status(refusal.parse().unwrap()),
                "400-text" => Reply::text(400, "text/plain", "Invalid session ID"),
                "-32000-no-id" => Reply::text(
                    400,
                    "application/json",
                    r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request"},"id":null}"#,
                ),
                code => Reply::error(&r, 200, code.parse().unwrap(), "no"),
            }
        })
        .await;
        let gateway = in_front_of(&backend, "", "").await;
        assert_eq!(text(&gateway.session().await.tool("echo", json!({})).await), "ok", "{refusal}");
        assert_eq!(backend.count("server/discover"), 1, "{refusal}");
    }
}

#[tokio::test]
async fn r038_an_endpoint_of_another_origin_is_refused() {
    let elsewhere = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let named = elsewhere.url_of("/messages?sessionId=1");
    let backend = Backend::start(move |_| {
        let named = named.clone();
        async move {
            let (reply, stream) = Reply::stream();
            stream.raw(format!("event: endpoint\ndata: {named}\n\n")).await;
            super::spawn(async move { stream.closed().await });
            reply
        }
    })
    .await;
    let gateway = in_front_of(&backend, "transport: sse", "").await;
    let answer = gateway.modern().tool("echo", json!({})).await;
    assert_eq!(fault(&answer).0, "backend_bad_answer");
    assert!(message(&answer).contains("another origin"), "{answer}");
    assert_eq!(elsewhere.requests().len(), 0);
}

#[tokio::test]
async fn a_backend_over_http_and_sse_is_detected_and_works() {
    let demo = DemoBackend::start().await;
    for settings in ["", ", transport: sse", ", era: legacy"] {
        let gateway = Gateway::setup()
            .backend("old", &format!("{{ url: \"{}\"{settings} }}", demo.sse_url))
            .start()
            .await;
        let session = gateway.session().await;
        assert_eq!(text(&session.tool("echo", json!({ "message": "over SSE" })).await), "over SSE");
        let modern = gateway.modern();
        assert_eq!(text(&modern.tool("echo", json!({ "message": "and stateless" })).await), "and stateless");
        let (a, b) = tokio::join!(
            session.tool("echo", json!({ "message": "one" })),
            session.tool("echo", json!({ "message": "two" }))
        );
        assert_eq!((text(&a), text(&b)), ("one", "two"));
    }
}

#[tokio::test]
async fn a_lost_sse_connection_fails_its_calls_and_is_made_again() {
    let backend = Backend::start(|_| async { Reply::status(404) }).await;
    let streams = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let open = streams.clone();
    backend.behave(move |r| {
        let open = open.clone();
        async move {
            match (r.rpc(), r.path.as_str()) {
                ("GET", _) => {
                    let (reply, stream) = Reply::stream();
                    stream.raw("event: endpoint\ndata: /messages?sessionId=1\n\n").await;
                    open.lock().unwrap().push(stream);
                    reply
                }
                (rpc, "/messages?sessionId=1") => {
                    let stream = open.lock().unwrap().last().unwrap().clone();
                    let answer = match rpc {
                        "initialize" => {
                            json!({ "protocolVersion": "2024-11-05", "capabilities": { "tools": {} },
                                                "serverInfo": { "name": "old", "version": "1" } })
                        }
                        "tools/call" if r.name() == "die" => {
                            open.lock().unwrap().clear();
                            stream.cut().await;
                            return Reply::status(202);
                        }
                        "tools/call" => drawbridge_testkit::backend::text_result("ok"),
                        _ => return Reply::status(202),
                    };
                    let answer = json!({ "jsonrpc": "2.0", "id": r.id(), "result": answer });
                    stream.raw(format!("event: message\ndata: {answer}\n\n")).await;
                    Reply::text(202, "text/plain", "Accepted")
                }
                _ => Reply::status(405),
            }
        }
    });
    let gateway = in_front_of(&backend, "", "").await;
    let session = gateway.session().await;
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    let answer = session.tool("die", json!({})).await;
    assert_eq!(fault(&answer), ("outcome_unknown", "unsafe"));
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    let dying = backend.requests_of("tools/call").iter().filter(|r| r.name() == "die").count();
    assert_eq!(dying, 1);
}
