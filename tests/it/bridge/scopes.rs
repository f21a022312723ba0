//! Who shares a session at a backend that has sessions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drawbridge_testkit::backend::{Backend, Reply, legacy, text_result};
use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::json;

use super::{all, answer_to, session};
use crate::backends::in_front_of;

/// A backend whose sessions are numbered; every tool says in which one it was called.
async fn numbered() -> Backend {
    let next = Arc::new(AtomicUsize::new(0));
    Backend::start(move |r| {
        let next = next.clone();
        async move {
            if r.rpc() == "initialize" {
                return legacy(&r, &format!("s{}", next.fetch_add(1, Ordering::Relaxed)));
            }
            let session = r.header("mcp-session-id").to_owned();
            match r.rpc() {
                "tools/call" => Reply::result(&r, text_result(&session)),
                _ => legacy(&r, &session),
            }
        }
    })
    .await
}

/// In which sessions two calls each of two clients with sessions, and of two stateless ones, are made.
async fn used(scope: &str) -> (BTreeSet<String>, BTreeSet<String>, Backend, Gateway) {
    let backend = numbered().await;
    let gateway = in_front_of(&backend, &format!("era: legacy, session_scope: {scope}"), "").await;
    let (mut legacy, mut stateless) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..2 {
        let (session, modern) = (gateway.session().await, gateway.modern());
        for _ in 0..2 {
            legacy.insert(text(&session.tool("x", json!({})).await).to_owned());
            stateless.insert(text(&modern.tool("x", json!({})).await).to_owned());
        }
        session.delete().await;
    }
    (legacy, stateless, backend, gateway)
}

#[tokio::test]
async fn each_scope_shares_sessions_as_it_says() {
    for (scope, of_sessions, of_stateless) in
        [("client_session", 2, 1), ("principal", 1, 1), ("shared", 1, 1), ("none", 4, 4)]
    {
        let (legacy, stateless, backend, _gateway) = used(scope).await;
        assert_eq!(
            (legacy.len(), stateless.len()),
            (of_sessions, of_stateless),
            "{scope}: {legacy:?} {stateless:?}"
        );
        assert!(legacy.is_disjoint(&stateless), "{scope}: they answer in different ways");
        if scope == "none" {
            // Each is ended after its call.
            backend.wait_for_nth("DELETE", 8).await;
        }
    }
}

#[tokio::test]
async fn clients_with_other_capabilities_never_share_a_session() {
    let backend = numbered().await;
    let gateway = in_front_of(&backend, "era: legacy, session_scope: shared", "").await;
    let plain = Modern::new(&gateway.client(), "/mcp", json!({}));
    let asked = Modern::new(&gateway.client(), "/mcp", all());
    assert_ne!(text(&plain.tool("x", json!({})).await), text(&asked.tool("x", json!({})).await));
}

#[tokio::test]
async fn sessions_that_share_one_at_the_backend_keep_their_own_subscriptions_levels_and_answers() {
    let demo = DemoBackend::start().await;
    let settings = format!("{{ url: \"{}\", era: legacy, session_scope: principal }}", demo.url);
    let gateway = Gateway::setup().backend("demo", &settings).start().await;
    let (one, two) =
        (session(&gateway, "2025-11-25", all()).await, session(&gateway, "2025-11-25", all()).await);
    // Levels: the other's lower one brings no more messages.
    one.call("logging/setLevel", json!({ "level": "error" })).await;
    two.call("logging/setLevel", json!({ "level": "debug" })).await;
    let log = json!({ "name": "log", "arguments": { "level": "info", "message": "hello" } });
    assert_eq!(two.request("tools/call", log.clone()).await.messages().await.len(), 2);
    assert_eq!(one.request("tools/call", log).await.messages().await.len(), 1);
    // Subscriptions: only who subscribed is told.
    let (mut first, mut second) = (one.get(None).await, two.get(None).await);
    assert_eq!(
        one.call("resources/subscribe", json!({ "uri": "demo://counter" })).await["result"],
        json!({})
    );
    two.tool("touch", json!({})).await;
    loop {
        let message = first.message().await;
        if message["method"] == "notifications/resources/updated" {
            break;
        }
    }
    let changed = second.message().await;
    assert_ne!(changed["method"], "notifications/resources/updated");
    // Asks: each is asked on the stream of its own call.
    for own in [&one, &two] {
        let mut stream = own.request("tools/call", json!({ "name": "elicit", "arguments": {} })).await;
        let asked = stream.message().await;
        let result = answer_to(asked["method"].as_str().unwrap());
        own.post(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }).to_string()).await;
        assert_eq!(text(&stream.answer().await), "Hello, Ada!");
    }
}
