//! R112: who cancels what, on the four paths.

use drawbridge_testkit::backend::{Backend, Reply, legacy, modern, text_result};
use drawbridge_testkit::client::{Reply as Answer, Session, request, text};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{in_front_of, spawn};

/// A backend of either era. The tool `hang` is not answered before `gate` opens; `stream` is answered with a
/// stream that has one notification and goes on when `gate` opens.
async fn hanging(gate: &CancellationToken) -> Backend {
    let gate = gate.clone();
    Backend::start(move |r| {
        let gate = gate.clone();
        async move {
            let done = json!({ "jsonrpc": "2.0", "id": r.id(), "result": text_result("done") });
            match r.name() {
                "hang" => {
                    gate.cancelled().await;
                    Reply::json(&done)
                }
                "stream" => {
                    let (reply, stream) = Reply::stream();
                    let token = &r.body["params"]["_meta"]["progressToken"];
                    let params = json!({ "progressToken": token, "progress": 1 });
                    let note =
                        json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
                    stream.event(&note).await;
                    spawn(async move {
                        gate.cancelled().await;
                        stream.event(&done).await;
                    });
                    reply
                }
                _ if r.header("mcp-method").is_empty() => legacy(&r, "s"),
                _ => modern(&r),
            }
        }
    })
    .await
}

fn params(tool: &str) -> Value {
    json!({ "name": tool, "arguments": {}, "_meta": { "progressToken": "p" } })
}

/// Starts a call beside the test.
fn begin(session: &Session, id: u64, tool: &str) -> tokio::task::JoinHandle<Answer> {
    let (session, body) = (session.clone(), request(id, "tools/call", params(tool)).to_string());
    spawn(async move { session.post(body).await })
}

async fn cancels(session: &Session, id: u64) {
    let told =
        session.notify("notifications/cancelled", json!({ "requestId": id, "reason": "enough" })).await;
    assert_eq!(told.status(), 202);
}

#[tokio::test]
async fn r112_a_legacy_clients_cancel_reaches_a_legacy_backend_under_the_mapped_id() {
    let gate = CancellationToken::new();
    let backend = hanging(&gate).await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let session = gateway.session().await;
    for (nth, tool) in ["hang", "stream"].into_iter().enumerate() {
        let id = 700 + nth as u64;
        let pending = begin(&session, id, tool);
        let call = backend.wait_for_nth("tools/call", 2 * nth + 1).await;
        // Another call in flight is not concerned.
        let other = begin(&session, id + 100, "echo");
        assert_eq!(text(&other.await.unwrap().answer().await), "ok");
        cancels(&session, id).await;
        let cancelled = backend.wait_for_nth("notifications/cancelled", nth + 1).await;
        assert_eq!(cancelled.body["params"]["requestId"], call.id());
        assert_ne!(call.id(), json!(id), "the gateway has ids of its own");
        assert_eq!(cancelled.header("mcp-session-id"), "s");
        let messages = pending.await.unwrap().messages().await;
        assert!(messages.iter().all(|m| m.get("id").is_none()), "no response follows: {messages:?}");
    }
    assert_eq!(backend.count("notifications/cancelled"), 2);
}

#[tokio::test]
async fn r112_a_legacy_clients_cancel_closes_the_stream_of_a_modern_backend() {
    let gate = CancellationToken::new();
    let backend = hanging(&gate).await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = gateway.session().await;
    for (nth, tool) in ["hang", "stream"].into_iter().enumerate() {
        let id = 700 + nth as u64;
        let pending = begin(&session, id, tool);
        let call = backend.wait_for_nth("tools/call", nth + 1).await;
        cancels(&session, id).await;
        call.let_go().await;
        let messages = pending.await.unwrap().messages().await;
        assert!(messages.iter().all(|m| m.get("id").is_none()), "no response follows: {messages:?}");
    }
    assert_eq!(backend.count("notifications/cancelled"), 0, "no such message on HTTP in this era");
}

#[tokio::test]
async fn r072_r112_a_modern_clients_disconnect_closes_the_stream_of_a_modern_backend() {
    let gate = CancellationToken::new();
    let backend = hanging(&gate).await;
    // With a late and with an early head towards the client.
    for sse_after in ["30s", "20ms"] {
        let gateway =
            in_front_of(&backend, "era: modern", &format!("streams: {{ sse_after: {sse_after} }}")).await;
        for tool in ["hang", "stream"] {
            let nth = backend.count("tools/call") + 1;
            let modern = gateway.modern();
            let pending = spawn(async move { modern.request("tools/call", params(tool)).await });
            let call = backend.wait_for_nth("tools/call", nth).await;
            assert!(!call.gone.is_cancelled());
            if tool == "stream" || sse_after == "20ms" {
                let mut answer = pending.await.unwrap();
                assert!(answer.is_stream());
                if tool == "stream" {
                    assert_eq!(answer.message().await["params"]["progressToken"], "p");
                }
                drop(answer);
            } else {
                pending.abort();
            }
            call.let_go().await;
        }
    }
}

#[tokio::test]
async fn r112_a_modern_clients_disconnect_is_told_to_a_legacy_backend() {
    let gate = CancellationToken::new();
    let backend = hanging(&gate).await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    for (nth, tool) in ["hang", "stream"].into_iter().enumerate() {
        let modern = gateway.modern();
        let pending = spawn(async move { modern.request("tools/call", params(tool)).await });
        let call = backend.wait_for_nth("tools/call", nth + 1).await;
        if tool == "stream" {
            drop(pending.await.unwrap());
        } else {
            pending.abort();
        }
        let cancelled = backend.wait_for_nth("notifications/cancelled", nth + 1).await;
        assert_eq!(cancelled.body["params"]["requestId"], call.id());
    }
}

#[tokio::test]
async fn r026_r112_a_legacy_clients_disconnect_cancels_nothing() {
    for era in ["legacy", "modern"] {
        let gate = CancellationToken::new();
        let backend = hanging(&gate).await;
        let gateway = in_front_of(&backend, &format!("era: {era}"), "").await;
        let session = gateway.session().await;
        let pending = begin(&session, 1, "hang");
        let before_head = backend.wait_for_nth("tools/call", 1).await;
        pending.abort();
        let pending = begin(&session, 2, "stream");
        let after_head = backend.wait_for_nth("tools/call", 2).await;
        drop(pending.await.unwrap());
        // The gateway has seen the disconnects by the time it has answered more.
        for _ in 0..3 {
            let mut fresh = session.clone();
            fresh.client = gateway.client();
            assert_eq!(text(&fresh.tool("echo", json!({})).await), "ok");
        }
        assert!(!before_head.over.is_cancelled() && !after_head.over.is_cancelled());
        gate.cancel();
        for call in [before_head, after_head] {
            drawbridge_testkit::soon("the end of the call", call.over.cancelled()).await;
            assert!(!call.gone.is_cancelled(), "it was read to its end");
        }
        assert_eq!(backend.count("notifications/cancelled"), 0);
    }
}
