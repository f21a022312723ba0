//! The standalone stream, and what every stream has in common.

use std::collections::HashSet;
use std::time::Duration;

use drawbridge_testkit::client::{LEGACY, Session, initialize, request, text};
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::{Value, json};

use super::in_front_of_demo;
use crate::backend::{Backend, Does};

/// The next message's method.
async fn next_method(stream: &mut drawbridge_testkit::client::Reply) -> String {
    stream.message().await["method"].as_str().unwrap_or("response").to_owned()
}

#[tokio::test]
async fn r007_get_is_answered_with_a_stream_or_405() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let stream = session.get(None).await;
    assert_eq!((stream.status(), stream.is_stream()), (200, true));
    assert_eq!(gateway.client().get("/mcp", &[]).await.status(), 405, "without a session");
    let json_only = [("mcp-session-id", session.id.as_str()), ("accept", "application/json")];
    let headers = drawbridge_testkit::client::header_map(&json_only);
    let refused = session.client.send(http::Method::GET, "/mcp", &headers, "").await;
    assert_eq!(refused.status(), 406);
}

#[tokio::test]
async fn r008_the_standalone_stream_never_carries_a_response() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let mut stream = session.get(None).await;
    for n in 0..20 {
        let slow = json!({ "name": "sleep", "arguments": { "ms": 10 }, "_meta": { "progressToken": n } });
        session.call("tools/call", slow).await;
        session.call("tools/list", json!({})).await;
    }
    session.tool("touch", json!({})).await;
    for _ in 0..3 {
        let message = stream.message().await;
        assert!(message["method"].as_str().unwrap().ends_with("list_changed"), "{message}");
    }
}

#[tokio::test]
async fn r009_each_message_is_on_one_stream_and_the_newest_get_is_the_receiver() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let mut first = session.get(None).await;
    session.tool("touch", json!({})).await;
    for _ in 0..3 {
        next_method(&mut first).await;
    }
    let mut second = session.get(None).await;
    while let Some(event) = first.event().await {
        assert!(event.data.is_empty(), "the older stream ends without more messages");
    }
    let called = session.request("tools/call", json!({ "name": "touch", "arguments": {} })).await;
    let on_call = called.messages().await;
    assert_eq!(on_call.len(), 1, "only the answer: {on_call:?}");
    let mut methods = HashSet::new();
    for _ in 0..3 {
        methods.insert(next_method(&mut second).await);
    }
    assert_eq!(methods.len(), 3, "each change once: {methods:?}");
    let more = second.event_within(Duration::from_millis(200)).await;
    assert!(more.is_err(), "nothing twice: {more:?}");
}

#[tokio::test]
async fn changes_that_came_before_the_stream_was_opened_are_on_it() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    drop(session.get(None).await);
    session.tool("touch", json!({})).await;
    let mut stream = session.get(None).await;
    assert!(next_method(&mut stream).await.ends_with("list_changed"));
}

#[tokio::test]
async fn a_subscription_brings_updates_until_it_ends() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let mut stream = session.get(None).await;
    let counter = json!({ "uri": "demo://counter" });
    session.call("resources/subscribe", counter.clone()).await;
    session.tool("touch", json!({})).await;
    let mut methods = HashSet::new();
    for _ in 0..4 {
        methods.insert(next_method(&mut stream).await);
    }
    assert!(methods.contains("notifications/resources/updated"), "{methods:?}");
    session.call("resources/unsubscribe", counter).await;
    session.tool("touch", json!({})).await;
    for _ in 0..3 {
        let method = next_method(&mut stream).await;
        assert!(method.ends_with("list_changed"), "{method}");
    }
}

#[tokio::test]
async fn r021_streams_begin_with_an_id_and_no_data_for_clients_since_2025_11_25() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let slow = || json!({ "name": "sleep", "arguments": { "ms": 20 }, "_meta": { "progressToken": 1 } });
    let session = Session::open(&gateway.client(), "/mcp", LEGACY, json!({})).await;
    for mut stream in [session.get(None).await, session.request("tools/call", slow()).await] {
        let first = stream.event().await.unwrap();
        assert!(first.id.is_some(), "{first:?}");
        assert!(first.data.is_empty(), "{first:?}");
    }
    let older = Session::open(&gateway.client(), "/mcp", "2025-06-18", json!({})).await;
    let mut stream = older.request("tools/call", slow()).await;
    while let Some(event) = stream.event().await {
        assert!(!event.data.is_empty(), "older parsers choke on it: {event:?}");
    }
}

#[tokio::test]
async fn r022_clients_are_told_when_to_come_back_before_a_stream_is_closed() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("demo", &demo.url, "legacy").config("streams: { retry: 1234ms }");
    let gateway = setup.start().await;
    let session = gateway.session().await;
    let mut stream = session.get(None).await;
    assert_eq!(stream.event().await.unwrap().retry, Some(1234));
    let call = json!({ "name": "sleep", "arguments": { "ms": 20 }, "_meta": { "progressToken": 1 } });
    let mut called = session.request("tools/call", call).await;
    assert_eq!(called.event().await.unwrap().retry, Some(1234));
    while called.event().await.is_some() {}
    assert!(gateway.stop().await.success());
    while let Some(event) = stream.event().await {
        assert!(event.data.is_empty());
    }
}

#[tokio::test]
async fn r024_event_ids_are_unique_across_all_streams_of_a_session() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let standalone = session.get(None).await;
    let mut streams = vec![standalone];
    for n in 0..5 {
        let call = json!({ "name": "sleep", "arguments": { "ms": 60 }, "_meta": { "progressToken": n } });
        streams.push(session.request("tools/call", call).await);
    }
    session.tool("touch", json!({})).await;
    let mut ids = HashSet::new();
    let mut count = 0;
    for (number, mut stream) in streams.into_iter().enumerate() {
        let mut events = 0;
        // The standalone stream does not end: a first event and three changes.
        while number != 0 || events < 4 {
            let Some(event) = stream.event().await else { break };
            events += 1;
            let id = event.id.unwrap_or_else(|| panic!("an event without an id in stream {number}"));
            ids.insert(id);
        }
        assert!(events >= 3, "stream {number}");
        count += events;
    }
    assert_eq!(ids.len(), count);
}

#[tokio::test]
async fn silent_streams_get_a_comment_at_once_and_then_at_keep_alive() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("demo", &demo.url, "legacy");
    let gateway = setup.config("streams: { keep_alive: 200ms, sse_after: 100ms }").start().await;
    let session = gateway.session().await;
    let silent = json!({ "name": "sleep", "arguments": { "ms": 1500 } });
    let standalone = session.get(None).await;
    let called = session.request("tools/call", silent).await;
    assert!(called.is_stream());
    for mut stream in [standalone, called] {
        let comment = |bytes: &[u8]| bytes.starts_with(b":");
        assert!(stream.reads(Duration::from_secs(2), comment).await, "a comment comes first");
        let several = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().filter(|line| line.starts_with(':')).count() >= 4
        };
        let start = std::time::Instant::now();
        assert!(stream.reads(Duration::from_secs(5), several).await, "and more of them");
        assert!(start.elapsed() < Duration::from_millis(1400), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_call_that_takes_long_is_answered_as_a_stream_with_its_answer() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("demo", &demo.url, "legacy");
    let gateway = setup.config("streams: { sse_after: 50ms }").start().await;
    let reply = gateway
        .session()
        .await
        .request("tools/call", json!({ "name": "sleep", "arguments": { "ms": 200 } }))
        .await;
    assert!(reply.is_stream());
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    let messages: Vec<Value> = reply.messages().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(text(&messages[0]), "slept 200 ms");
}

#[tokio::test]
async fn answers_with_line_breaks_survive_on_a_stream() {
    let pretty = "{\n  \"content\": [\r\n    { \"type\": \"text\",\n\"text\": \"done\" } ]\n}";
    let backend = Backend::legacy(json!({ "tools": {} }), move |_| Does::Result(pretty.to_owned())).await;
    let modern = Backend::modern(json!({ "tools": {} }), move |_| Does::Result(pretty.to_owned())).await;
    let setup = Gateway::setup().url("old", &backend.url, "legacy").url("new", &modern.url, "modern");
    let gateway = setup.start().await;
    let client = gateway.client();
    for path in ["/mcp/old/sse", "/mcp/new/sse"] {
        let mut stream = client.get(path, &[]).await;
        let endpoint = String::from_utf8(stream.event().await.unwrap().data.to_vec()).unwrap();
        let hello = initialize("2024-11-05", json!({})).to_string();
        assert_eq!(client.post(&endpoint, &[], hello).await.status(), 202);
        stream.message().await;
        let call = request(1, "tools/call", json!({ "name": "x", "arguments": {} })).to_string();
        assert_eq!(client.post(&endpoint, &[], call).await.status(), 202);
        assert_eq!(text(&stream.message().await), "done", "{path}");
    }
}

#[tokio::test]
async fn large_answers_pass_through() {
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let big = json!({ "bytes": 5_000_000 });
        let answer = gateway.session().await.tool("big", big.clone()).await;
        assert_eq!(text(&answer).len(), 5_000_000);
        assert_eq!(text(&gateway.modern().tool("big", big).await).len(), 5_000_000);
    }
}
