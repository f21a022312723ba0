//! Streams that broke and are taken up again.

use std::time::Duration;

use drawbridge_testkit::client::{Reply, text};
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::in_front_of_demo;
use crate::backend::{Backend, Does};

fn slow(ms: u64, token: &str) -> Value {
    json!({ "name": "sleep", "arguments": { "ms": ms }, "_meta": { "progressToken": token } })
}

/// Ids and messages of a stream to its end.
async fn rest(mut stream: Reply) -> Vec<(String, Value)> {
    let mut rest = Vec::new();
    while let Some(event) = stream.event().await {
        if !event.data.is_empty() {
            let id = String::from_utf8(event.id.unwrap().to_vec()).unwrap();
            rest.push((id, serde_json::from_slice(&event.data).unwrap()));
        }
    }
    rest
}

#[tokio::test]
async fn r023_only_later_messages_of_the_named_stream_are_replayed_in_order() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let one = session.request("tools/call", slow(100, "one")).await;
    let two = session.request("tools/call", slow(100, "two")).await;
    let (one, two) = (rest(one).await, rest(two).await);
    assert!(one.len() >= 3, "{one:?}");
    assert_eq!(one.len(), two.len());
    for from in 0..one.len() {
        let again = rest(session.get(Some(&one[from].0)).await).await;
        assert_eq!(again, one[from + 1..], "after message {from}");
    }
    let last = &rest(session.get(Some(&two[0].0)).await).await;
    assert_eq!(last[..], two[1..]);
}

#[tokio::test]
async fn r025_a_stream_that_was_cut_mid_call_is_resumed_and_delivers_the_response() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let mut stream = session.request("tools/call", slow(400, "t")).await;
    let (id, _) = stream.message_event().await;
    drop(stream);
    let rest = rest(session.get(id.as_deref()).await).await;
    assert!(rest.len() >= 4, "progress goes on: {rest:?}");
    assert_eq!(text(&rest.last().unwrap().1), "slept 400 ms");
}

#[tokio::test]
async fn resumption_from_the_first_event_brings_everything() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let mut stream = session.request("tools/call", slow(200, "t")).await;
    let first = stream.event().await.unwrap();
    assert!(first.data.is_empty());
    let id = String::from_utf8(first.id.unwrap().to_vec()).unwrap();
    drop(stream);
    let rest = rest(session.get(Some(&id)).await).await;
    assert_eq!(rest[0].1["params"]["progress"], 0);
    assert_eq!(text(&rest.last().unwrap().1), "slept 200 ms");
}

#[tokio::test]
async fn resumption_of_a_finished_stream_delivers_the_response_again() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let all = rest(session.request("tools/call", slow(50, "t")).await).await;
    for _ in 0..2 {
        let again = rest(session.get(Some(&all[0].0)).await).await;
        assert_eq!(again.last(), all.last());
    }
}

#[tokio::test]
async fn the_standalone_stream_is_resumed_where_it_broke() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let mut stream = session.get(None).await;
    session.tool("touch", json!({})).await;
    let (first, _) = stream.message_event().await;
    let (_, second) = stream.message_event().await;
    drop(stream);
    let mut again = session.get(first.as_deref()).await;
    assert_eq!(again.message().await, second);
    let third = again.message().await;
    assert_ne!(third, second);
    let more = again.event_within(Duration::from_millis(100)).await;
    assert!(more.is_err(), "{more:?}");
}

fn holds(seen: &crate::backend::Seen) -> Does {
    let name = seen.json()["params"]["name"].as_str().unwrap_or_default().to_owned();
    let result = json!({ "content": [{ "type": "text", "text": name }] }).to_string();
    let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    Does::Holds(vec![note.to_owned()], "answer", result)
}

#[tokio::test]
async fn r026_a_client_that_goes_away_does_not_cancel_its_call() {
    let backend = Backend::legacy(json!({ "tools": {} }), holds).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let session = gateway.session().await;
    let call = json!({ "name": "kept", "arguments": {} });
    let mut stream = session.request("tools/call", call).await;
    let (id, _) = stream.message_event().await;
    drop(stream);
    // The connection's end is known to the gateway once another request on the session was served.
    let lost = gateway.session().await;
    assert_eq!(lost.call("ping", json!({})).await["result"], json!({}));
    assert_eq!((backend.holding(), backend.abandoned()), (1, 0));
    backend.release("answer");
    let rest = rest(session.get(id.as_deref()).await).await;
    assert_eq!(text(&rest.last().unwrap().1), "kept");
    assert_eq!(backend.abandoned(), 0);
    assert!(backend.calls("notifications/cancelled").is_empty());
}

#[tokio::test]
async fn r027_unknown_event_ids_bring_no_other_streams_messages() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let (session, other) = (gateway.session().await, gateway.session().await);
    let of_other = rest(other.request("tools/call", slow(50, "secret")).await).await;
    let of_other = of_other[0].0.clone();
    for id in [of_other.as_str(), "nonsense", "0.0.0", "ffffffff.1.1", ""] {
        let mut stream = session.get(Some(id)).await;
        if stream.status() == 400 {
            continue;
        }
        assert_eq!(stream.status(), 200, "{id}");
        // A change that comes now is the first message on it.
        session.tool("touch", json!({})).await;
        let message = stream.message().await;
        assert!(message["method"].as_str().is_some_and(|m| m.ends_with("list_changed")), "{id}: {message}");
        drop(stream);
        // Take what is left, so that the next stream begins empty.
        let mut left = session.get(None).await;
        while left.event_within(Duration::from_millis(50)).await.is_ok() {}
    }
}
