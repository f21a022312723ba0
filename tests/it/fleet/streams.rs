//! Streams that are opened at one instance and resumed, or fed, at another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, legacy, text_result};
use drawbridge_testkit::client::{Reply as Answer, Session, text};
use drawbridge_testkit::fleet::Fleet;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::{TRANSPORTS, demo_over, in_front_of_demo};

fn slow(ms: u64) -> Value {
    json!({ "name": "sleep", "arguments": { "ms": ms }, "_meta": { "progressToken": "t" } })
}

/// The messages of a stream to its end.
async fn rest(stream: Answer) -> Vec<Value> {
    assert!(stream.is_stream(), "{}", stream.status());
    stream.messages().await
}

#[tokio::test]
async fn r025_a_stream_that_was_cut_is_resumed_at_another_instance_and_delivers_the_response() {
    for transport in TRANSPORTS {
        let (fleet, _demo) = in_front_of_demo(transport, "legacy").await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        let mut stream = session.request("tools/call", slow(1500)).await;
        let (id, _) = stream.message_event().await;
        drop(stream);
        let rest = rest(fleet.at(1, &session).get(id.as_deref()).await).await;
        assert!(rest.len() >= 3, "{transport}: progress goes on: {rest:?}");
        assert_eq!(text(rest.last().unwrap()), "slept 1500 ms", "{transport}");
    }
}

#[tokio::test]
async fn r023_a_stream_that_has_ended_is_replayed_at_another_instance_from_where_it_was_left() {
    let (fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let mut stream = session.request("tools/call", slow(200)).await;
    let (id, _) = stream.message_event().await;
    let all = rest(stream).await;
    for number in [1, 2, 0] {
        assert_eq!(rest(fleet.at(number, &session).get(id.as_deref()).await).await, all, "at {number}");
    }
}

#[tokio::test]
async fn r025_a_call_whose_instance_was_killed_ends_with_an_unknown_outcome_for_who_comes_back() {
    for ms in [700, 60_000] {
        let (mut fleet, _demo) = in_front_of_demo("http", "legacy").await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        let mut stream = session.request("tools/call", slow(ms)).await;
        let (id, _) = stream.message_event().await;
        let there = fleet.at(1, &session);
        fleet.kill(0).await;
        let mut answer = Value::Null;
        eventually(PATIENCE, async || {
            let reply = there.get(id.as_deref()).await;
            if !reply.is_stream() {
                return false;
            }
            let messages = reply.messages().await;
            answer = messages.into_iter().next_back().unwrap_or_default();
            answer["error"].is_object()
        })
        .await;
        assert_eq!(answer["id"], json!(session.last.load(std::sync::atomic::Ordering::Relaxed)));
        assert_eq!(answer["error"]["data"]["code"], "outcome_unknown", "{answer}");
    }
}

#[tokio::test]
async fn an_answer_that_was_given_before_its_instance_was_killed_is_still_there() {
    let (mut fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let mut stream = session.request("tools/call", slow(1200)).await;
    let (id, _) = stream.message_event().await;
    drop(stream);
    // It runs on, and its events are copied.
    let there = fleet.at(1, &session);
    let copied = async || {
        let keys: Vec<String> = fleet.redis.run(&["KEYS", "*"]).await;
        let mut found = false;
        for key in keys {
            let kind: String = fleet.redis.run(&["TYPE", &key]).await;
            if kind == "stream" {
                let text: String =
                    match fleet.redis.try_run::<redis::Value>(&["XRANGE", &key, "-", "+"]).await {
                        Ok(value) => format!("{value:?}"),
                        Err(_) => String::new(),
                    };
                found |= text.contains("slept 1200 ms");
            }
        }
        found
    };
    eventually(PATIENCE, copied).await;
    fleet.kill(0).await;
    let mut messages = Vec::new();
    eventually(PATIENCE, async || {
        let reply = there.get(id.as_deref()).await;
        if reply.is_stream() {
            messages = reply.messages().await;
        }
        !messages.is_empty()
    })
    .await;
    assert_eq!(text(messages.last().unwrap()), "slept 1200 ms", "{messages:?}");
}

#[tokio::test]
async fn a_short_call_that_ends_on_its_stream_leaves_nothing_in_redis() {
    let (fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let stream = session.request("tools/call", slow(50)).await;
    assert!(stream.is_stream());
    assert_eq!(text(rest(stream).await.last().unwrap()), "slept 50 ms");
    // Long enough for a copy to be written.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let copies: Vec<String> = fleet.redis.run(&["KEYS", "*:events:*"]).await;
    assert_eq!(copies, Vec::<String>::new());
}

/// The methods of the messages that come within a while.
async fn heard(stream: &mut Answer, wanted: &str) -> bool {
    let coming = async {
        loop {
            if stream.message().await["method"] == wanted {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), coming).await.is_ok()
}

#[tokio::test]
async fn r090_a_change_that_one_instance_causes_is_heard_on_the_stream_at_another() {
    for (transport, era) in [("http", "legacy"), ("sse", "legacy"), ("stdio", "legacy"), ("http", "modern")] {
        let (fleet, _demo) = in_front_of_demo(transport, era).await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        let mut stream = fleet.at(2, &session).get(None).await;
        assert_eq!(stream.status(), 200);
        // Until the backend is listened to, a change may go by.
        let causing = fleet.at(1, &session);
        let (cause, stop) =
            (tokio_util::sync::CancellationToken::new(), tokio_util::sync::CancellationToken::new());
        let (begun, stopped) = (cause.clone(), stop.clone());
        let touching = crate::backends::spawn(async move {
            begun.cancelled().await;
            while !stopped.is_cancelled() {
                causing.tool("touch", json!({})).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        cause.cancel();
        assert!(heard(&mut stream, "notifications/tools/list_changed").await, "{transport} {era}");
        stop.cancel();
        touching.await.unwrap();
    }
}

/// A session that listens at instance 1, where instance 0 has what its backend tells on.
async fn listens_through_another(fleet: &Fleet) -> (Session, Answer) {
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let first = session.get(None).await;
    assert_eq!(first.status(), 200);
    session.tool("echo", json!({ "message": "x" })).await;
    let stream = fleet.at(1, &session).get(None).await;
    assert_eq!(stream.status(), 200);
    (session, stream)
}

/// Waits until a change at the backend is heard; after that the stream is silent.
async fn hears_of_changes(fleet: &Fleet, session: &Session, stream: &mut Answer) {
    let causing = fleet.at(2, session);
    let mut has_heard = false;
    eventually(PATIENCE, async || {
        causing.tool("touch", json!({})).await;
        has_heard |= matches!(stream.event_within(Duration::from_millis(300)).await, Ok(Some(event)) if !event.data.is_empty());
        has_heard
    })
    .await;
    while let Ok(Some(_)) = stream.event_within(Duration::from_millis(500)).await {}
}

#[tokio::test]
async fn a_listener_is_told_that_all_may_have_changed_when_the_owner_of_its_backends_stream_was_killed() {
    for transport in TRANSPORTS {
        let (mut fleet, _demo) = in_front_of_demo(transport, "legacy").await;
        let (session, mut stream) = listens_through_another(&fleet).await;
        hears_of_changes(&fleet, &session, &mut stream).await;
        fleet.kill(0).await;
        // Nobody has changed anything.
        assert!(heard(&mut stream, "notifications/tools/list_changed").await, "{transport}");
    }
}

#[tokio::test]
async fn a_listener_is_told_that_all_may_have_changed_when_redis_came_back_with_nothing() {
    for transport in TRANSPORTS {
        let (mut fleet, _demo) = in_front_of_demo(transport, "legacy").await;
        let (session, mut stream) = listens_through_another(&fleet).await;
        hears_of_changes(&fleet, &session, &mut stream).await;
        fleet.redis.kill().await;
        fleet.redis.restart().await;
        // Nobody has changed anything.
        assert!(heard(&mut stream, "notifications/tools/list_changed").await, "{transport}");
    }
}

#[tokio::test]
async fn a_listener_hears_of_a_change_while_redis_was_away_when_that_came_back_with_all_it_had() {
    for transport in TRANSPORTS {
        let demo = DemoBackend::start().await;
        let gateway = Gateway::setup().backend("demo", &demo_over(transport, "legacy", &demo));
        let redis = RedisServer::setup().durable().start().await;
        let mut fleet = Fleet::with(redis, 3, gateway).await;
        let (session, mut stream) = listens_through_another(&fleet).await;
        hears_of_changes(&fleet, &session, &mut stream).await;
        fleet.redis.kill().await;
        session.tool("touch", json!({})).await;
        fleet.redis.restart().await;
        assert!(heard(&mut stream, "notifications/tools/list_changed").await, "{transport}");
    }
}

#[tokio::test]
async fn r090_stateless_clients_hear_at_every_instance() {
    for (transport, era) in [("http", "legacy"), ("sse", "legacy"), ("stdio", "legacy"), ("http", "modern")] {
        let (fleet, _demo) = in_front_of_demo(transport, era).await;
        let filter = json!({ "notifications": { "toolsListChanged": true } });
        let mut streams = Vec::new();
        for number in 0..3 {
            let mut stream =
                fleet.modern(number, json!({})).request("subscriptions/listen", filter.clone()).await;
            let first = stream.message().await;
            assert_eq!(
                first["method"], "notifications/subscriptions/acknowledged",
                "{transport} {era}: {first}"
            );
            streams.push(stream);
        }
        fleet.modern(1, json!({})).tool("touch", json!({})).await;
        for (number, stream) in streams.iter_mut().enumerate() {
            assert!(heard(stream, "notifications/tools/list_changed").await, "{transport} {era} at {number}");
        }
    }
}

#[tokio::test]
async fn r092_what_was_set_at_one_instance_counts_at_all() {
    for (transport, era) in [("http", "legacy"), ("sse", "legacy"), ("stdio", "legacy"), ("http", "modern")] {
        let (fleet, _demo) = in_front_of_demo(transport, era).await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        let mut stream = fleet.at(2, &session).get(None).await;
        let counter = json!({ "uri": "demo://counter" });
        let subscribed = session.call("resources/subscribe", counter.clone()).await;
        assert!(subscribed["result"].is_object(), "{transport} {era}: {subscribed}");
        let updated = async |stream: &mut Answer| {
            let there = fleet.at(1, &session);
            let mut heard = false;
            eventually(PATIENCE, async || {
                there.tool("touch", json!({})).await;
                while let Ok(Some(event)) = stream.event_within(Duration::from_millis(200)).await {
                    heard |= String::from_utf8_lossy(&event.data).contains("resources/updated");
                }
                heard
            })
            .await;
        };
        updated(&mut stream).await;
        assert!(session.call("logging/setLevel", json!({ "level": "warning" })).await["result"].is_object());
        let log = async |level: &str| {
            let arguments = json!({ "message": "m", "level": level });
            let call = json!({ "name": "log", "arguments": arguments });
            let messages = fleet.at(1, &session).request("tools/call", call).await.messages().await;
            messages.iter().any(|message| message["method"] == "notifications/message")
        };
        // What comes on the stream of the session instead, comes too.
        if transport == "http" {
            assert!(log("error").await, "{transport} {era}");
        }
        assert!(!log("info").await, "{transport} {era}");
    }
}

#[tokio::test]
async fn r009_a_stream_that_is_opened_at_another_instance_takes_the_place_of_the_first() {
    let (fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let mut first = session.get(None).await;
    let mut second = fleet.at(1, &session).get(None).await;
    let ended = async { while first.event().await.is_some() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the first ends");
    eventually(PATIENCE, async || {
        fleet.at(2, &session).tool("touch", json!({})).await;
        let next = second.event_within(Duration::from_millis(300)).await;
        matches!(next, Ok(Some(event)) if !event.data.is_empty())
    })
    .await;
}

#[tokio::test]
async fn a_backend_has_one_stream_open_for_a_session_however_many_instances_want_it() {
    let backend = Backend::start(|r| async move {
        match r.rpc() {
            "GET" => {
                let (reply, stream) = Reply::stream();
                stream.raw(":\n\n").await;
                crate::backends::spawn(async move { stream.gone().await });
                reply
            }
            "tools/call" => Reply::result(&r, json!({ "content": [] })),
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let fleet = Fleet::start(3, Gateway::setup().url("scripted", &backend.url(), "legacy")).await;
    let session = fleet.session(0, "2025-11-25", json!({ "elicitation": {} })).await;
    for number in [0, 1, 2, 0, 1, 2] {
        fleet.at(number, &session).tool("x", json!({})).await;
    }
    let _stream = fleet.at(2, &session).get(None).await;
    fleet.at(1, &session).tool("x", json!({})).await;
    let opened = backend.requests_of("GET").iter().filter(|r| r.header("mcp-session-id") == "s").count();
    assert_eq!(opened, 1);
}

/// A backend whose one call goes on for as long as the test likes, and whose stream can be resumed. It counts how often
/// the call was begun and resumed.
struct Resumable {
    backend: Backend,
    /// Lets the call end.
    ends: Arc<Notify>,
    resumed_after: Arc<Mutex<Vec<String>>>,
}

impl Resumable {
    async fn start() -> Self {
        let (ends, resumed_after) = (Arc::new(Notify::new()), Arc::<Mutex<Vec<String>>>::default());
        let (over, resumed) = (ends.clone(), resumed_after.clone());
        let last_call = Arc::new(Mutex::new(Value::Null));
        let backend = Backend::start(move |request| {
            let (over, resumed, call) = (over.clone(), resumed.clone(), last_call.clone());
            async move {
                let after = request.header("last-event-id").to_owned();
                let progress = |n: u64| {
                    let token = call.lock().unwrap()["params"]["_meta"]["progressToken"].clone();
                    let params = json!({ "progressToken": token, "progress": n });
                    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
                };
                match request.rpc() {
                    "tools/call" => {
                        *call.lock().unwrap() = request.body.clone();
                        let (reply, stream) = Reply::stream();
                        stream.raw("id: e0\ndata:\n\n").await;
                        stream.event_with_id("e1", &progress(1)).await;
                        TaskTracker::new().spawn(async move { stream.gone().await });
                        reply
                    }
                    "GET" if !after.is_empty() => {
                        resumed.lock().unwrap().push(after);
                        let (reply, stream) = Reply::stream();
                        stream.event_with_id("e2", &progress(2)).await;
                        let id = call.lock().unwrap()["id"].clone();
                        TaskTracker::new().spawn(async move {
                            over.notified().await;
                            let result = text_result("at last");
                            stream
                                .event_with_id("e3", &json!({ "jsonrpc": "2.0", "id": id, "result": result }))
                                .await;
                        });
                        reply
                    }
                    _ => legacy(&request, "s1"),
                }
            }
        })
        .await;
        Self { backend, ends, resumed_after }
    }
}

#[tokio::test]
async fn a_call_whose_backend_can_resume_goes_on_at_another_instance_when_its_own_was_killed() {
    for kills in [1, 2] {
        let resumable = Resumable::start().await;
        let setup = Gateway::setup().url("b", &resumable.backend.url(), "legacy");
        let mut fleet = Fleet::start(3, setup).await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        let params = json!({ "name": "slow", "arguments": {}, "_meta": { "progressToken": "mine" } });
        let mut stream = session.request("tools/call", params).await;
        let (mut id, first) = stream.message_event().await;
        assert_eq!(first["params"]["progressToken"], "mine");
        for _ in 0..kills {
            // It has been said where the call stands: then nothing of that is in memory only.
            eventually(PATIENCE, async || {
                let keys: Vec<String> = fleet.redis.run(&["KEYS", "*:session"]).await;
                let fields: Vec<String> = fleet.redis.run(&["HKEYS", &keys[0]]).await;
                fields.iter().any(|field| field.starts_with("call:b:"))
            })
            .await;
            let instance = id.as_deref().unwrap().split('.').next().unwrap().to_owned();
            fleet.kill(0).await;
            let there = fleet.at(0, &session);
            eventually(PATIENCE, async || {
                let exists: bool =
                    fleet.redis.run(&["EXISTS", &format!("drawbridge:1:{{{instance}}}:presence")]).await;
                !exists
            })
            .await;
            stream = there.get(id.as_deref()).await;
            let (next, again) = stream.message_event().await;
            assert_eq!(again["params"]["progressToken"], "mine", "{again}");
            id = next;
        }
        resumable.ends.notify_waiters();
        let answer = stream.answer().await;
        assert_eq!(text(&answer), "at last", "{answer}");
        assert_eq!(answer["id"], json!(session.last.load(std::sync::atomic::Ordering::Relaxed)));
        assert_eq!(resumable.backend.count("tools/call"), 1, "it is not run again");
        let resumed = resumable.resumed_after.lock().unwrap().clone();
        assert_eq!(resumed.len(), kills, "{resumed:?}");
        assert_eq!(resumed[0], "e0", "what was not known to be passed on comes again");
    }
}

#[tokio::test]
async fn two_calls_of_one_session_at_two_instances_are_not_mixed_up_when_one_is_killed() {
    let (mut fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let other = fleet.at(1, &session);
    let mut here = session.request("tools/call", slow(1500)).await;
    let (id, _) = here.message_event().await;
    let there = other.request("tools/call", slow(1600)).await;
    // Both take long enough to be copied to where others find them.
    assert_eq!(text(&here.answer().await), "slept 1500 ms");
    assert_eq!(text(&there.answer().await), "slept 1600 ms");
    fleet.kill(0).await;
    let third = fleet.at(1, &session);
    eventually(PATIENCE, async || {
        let reply = third.get(id.as_deref()).await;
        if !reply.is_stream() {
            return false;
        }
        let all = reply.messages().await;
        let last = all.last().cloned().unwrap_or_default();
        assert!(last["error"].is_object() || text(&last) == "slept 1500 ms", "it is another call's: {last}");
        last["result"].is_object()
    })
    .await;
}

#[tokio::test]
async fn a_client_that_comes_back_many_times_for_a_call_of_a_killed_instance_takes_it_up_once() {
    let resumable = Resumable::start().await;
    let setup = Gateway::setup().url("b", &resumable.backend.url(), "legacy");
    let mut fleet = Fleet::start(2, setup).await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let params = json!({ "name": "slow", "arguments": {}, "_meta": { "progressToken": "mine" } });
    let mut stream = session.request("tools/call", params).await;
    let (id, _) = stream.message_event().await;
    eventually(PATIENCE, async || {
        let keys: Vec<String> = fleet.redis.run(&["KEYS", "*:session"]).await;
        let fields: Vec<String> = fleet.redis.run(&["HKEYS", &keys[0]]).await;
        fields.iter().any(|field| field.starts_with("call:b:"))
    })
    .await;
    fleet.kill(0).await;
    let there = fleet.at(0, &session);
    // Until the instance is known to be gone, nobody can say what became of the call.
    let mut stream = there.get(id.as_deref()).await;
    eventually(PATIENCE, async || {
        if !stream.is_stream() {
            stream = there.get(id.as_deref()).await;
        }
        stream.is_stream()
    })
    .await;
    let (_, again) = stream.message_event().await;
    assert_eq!(again["params"]["progressToken"], "mine", "{again}");
    for _ in 0..5 {
        stream = there.get(id.as_deref()).await;
        assert_eq!(stream.message().await["params"]["progressToken"], "mine");
    }
    assert_eq!(resumable.resumed_after.lock().unwrap().len(), 1);
    resumable.ends.notify_waiters();
    assert_eq!(text(&stream.answer().await), "at last");
}
