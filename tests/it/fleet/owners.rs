//! What only one instance can have: processes and connections.

use std::time::{Duration, Instant};

use drawbridge_testkit::client::{notification, request, text};
use drawbridge_testkit::{PATIENCE, eventually};
use rustix::process::Signal;
use serde_json::json;

use super::in_front_of_demo;

/// What the demo server's counter stands at, after counting up.
async fn touch(session: &drawbridge_testkit::client::Session) -> Option<u64> {
    session.tool("touch", json!({})).await["result"]["structuredContent"]["counter"].as_u64()
}

#[tokio::test]
async fn a_session_has_one_process_whichever_instance_is_asked() {
    let (fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    for (number, expected) in [(0, 1), (1, 2), (2, 3), (1, 4), (0, 5)] {
        assert_eq!(touch(&fleet.at(number, &session)).await, Some(expected), "at {number}");
    }
    // Another session has another.
    let other = fleet.session(1, "2025-11-25", json!({})).await;
    assert_eq!(touch(&fleet.at(2, &other)).await, Some(1));
}

#[tokio::test]
async fn a_process_whose_owner_was_killed_is_replaced_within_seconds() {
    let (mut fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    assert_eq!(touch(&session).await, Some(1));
    let there = fleet.at(1, &session);
    assert_eq!(touch(&there).await, Some(2));
    let killed = Instant::now();
    fleet.kill(0).await;
    assert_eq!(touch(&there).await, Some(1), "the call that came too late for the first one");
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(touch(&there).await, Some(2), "it ran once");
}

#[tokio::test]
async fn an_owner_that_was_paused_until_it_was_replaced_does_not_go_on() {
    let (fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    assert_eq!(touch(&session).await, Some(1));
    let paused = &fleet.gateways[0].program;
    paused.signal(Signal::STOP);
    let there = fleet.at(1, &session);
    eventually(PATIENCE, async || touch(&there).await == Some(1)).await;
    paused.signal(Signal::CONT);
    // Whoever asks it now is answered by the process of the new owner.
    for (expected, number) in (2..).zip([0, 1, 0, 2]) {
        assert_eq!(touch(&fleet.at(number, &session)).await, Some(expected), "at {number}");
    }
}

#[tokio::test]
async fn r036_a_message_that_comes_to_another_instance_than_has_the_sse_stream_reaches_it() {
    let (fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let mut stream = fleet.client(0).get("/mcp/sse", &[]).await;
    let first = stream.event().await.unwrap();
    let messages = String::from_utf8(first.data.to_vec()).unwrap();
    let post = async |number: usize, message: serde_json::Value| {
        fleet.client(number).post(&messages, &[], message.to_string()).await.status()
    };
    let initialize = drawbridge_testkit::client::initialize("2024-11-05", json!({}));
    assert_eq!(post(1, initialize).await, 202);
    assert!(stream.message().await["result"]["protocolVersion"].is_string());
    assert_eq!(post(2, notification("notifications/initialized", json!({}))).await, 202);
    let echo = json!({ "name": "echo", "arguments": { "message": "hello" } });
    assert_eq!(post(1, request("a", "tools/call", echo.clone())).await, 202);
    assert_eq!(text(&stream.message().await), "hello");
    // R037: closing the stream ends it, for all.
    drop(stream);
    eventually(PATIENCE, async || post(2, request("b", "tools/call", echo.clone())).await == 404).await;
}

#[tokio::test]
async fn deleting_a_session_where_it_was_never_used_ends_its_process() {
    let (fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let processes = async |number: usize| {
        let admin = drawbridge_testkit::client::Client::new(&fleet.gateways[number].admin);
        let text = admin.get("/metrics", &[("accept", "text/plain")]).await.text().await;
        let line = text.lines().find(|line| line.starts_with("drawbridge_backend_processes{"));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap())
    };
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        assert_eq!(touch(&fleet.at(1, &session)).await, Some(1));
        sessions.push(session);
    }
    assert!(processes(1).await >= 3);
    for session in &sessions {
        assert_eq!(session.delete().await.status(), 204);
    }
    eventually(PATIENCE, async || processes(1).await <= 1).await;
}

#[tokio::test]
async fn a_client_that_calls_for_the_first_time_when_the_owner_was_just_killed_is_answered_with_what_was_logged()
 {
    for era in ["legacy", "modern", "auto"] {
        let (mut fleet, _demo) = in_front_of_demo("stdio", era).await;
        let log = async |client: &drawbridge_testkit::client::Modern| {
            let meta = json!({ "io.modelcontextprotocol/logLevel": "debug" });
            let call =
                json!({ "name": "log", "arguments": { "message": "m", "level": "error" }, "_meta": meta });
            client.request("tools/call", call).await.messages().await
        };
        let there = fleet.modern(1, json!({}));
        assert_eq!(log(&fleet.modern(0, json!({}))).await.len(), 2, "{era}");
        fleet.kill(0).await;
        let messages = log(&there).await;
        assert_eq!(messages.len(), 2, "{era}: {messages:?}");
    }
}
