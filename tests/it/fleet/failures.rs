//! What still works, what degrades and what is refused while Redis, an instance or the way between them fails: the rows
//! of docs/operations.md.

use std::time::{Duration, Instant};

use drawbridge_testkit::client::{Client, text};
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::fleet::SEAL;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::{PATIENCE, eventually};
use rustix::process::Signal;
use serde_json::json;

use super::in_front_of_demo;
use crate::bridge::{all, answer_to};

/// A call that must be answered soon, whatever is wrong.
async fn echo(session: &drawbridge_testkit::client::Session) -> bool {
    let asked = Instant::now();
    let answer = session.tool("echo", json!({ "message": "x" })).await;
    assert!(asked.elapsed() < Duration::from_secs(8), "nothing hangs: {:?}", asked.elapsed());
    answer["result"]["content"][0]["text"] == "x"
}

async fn is_ready(gateway: &Gateway) -> bool {
    Client::new(&gateway.admin).get("/readyz", &[("accept", "application/json")]).await.status() == 200
}

#[tokio::test]
async fn while_redis_is_away_old_and_new_sessions_work_and_all_recovers() {
    for transport in ["http", "stdio"] {
        let (mut fleet, _demo) = in_front_of_demo(transport, "legacy").await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        assert!(echo(&session).await);
        let modern = fleet.modern(1, json!({}));
        assert_eq!(text(&modern.tool("echo", json!({ "message": "x" })).await), "x");
        fleet.redis.kill().await;
        // What is warm goes on without it.
        for _ in 0..3 {
            assert!(echo(&session).await, "{transport}");
        }
        assert!(is_ready(&fleet.gateways[0]).await, "a balancer must not take all instances out");
        if transport == "http" {
            // A session that is new, or new to this instance, costs a deadline and works.
            let new = fleet.session(2, "2025-11-25", json!({})).await;
            assert!(echo(&new).await);
            assert!(echo(&fleet.at(1, &session)).await);
        } else {
            // Who has the process is not known elsewhere: that is refused, and not run.
            let answer = fleet.at(1, &session).tool("echo", json!({ "message": "x" })).await;
            assert_eq!(answer["error"]["data"]["code"], "state_unavailable", "{answer}");
            assert_eq!(answer["error"]["data"]["retry"], "safe");
        }
        fleet.redis.restart().await;
        let there = fleet.at(1, &session);
        eventually(PATIENCE, async || echo(&there).await).await;
        assert!(echo(&session).await);
    }
}

#[tokio::test]
async fn an_answer_for_another_instance_is_refused_while_redis_is_away_and_taken_afterwards() {
    let (mut fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", all()).await;
    let mut call = session.request("tools/call", json!({ "name": "elicit", "arguments": {} })).await;
    let ask = call.message().await;
    let answer = json!({ "jsonrpc": "2.0", "id": ask["id"], "result": answer_to("elicitation/create") });
    fleet.redis.kill().await;
    let refused = fleet.at(1, &session).post(answer.to_string()).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.header("retry-after").is_some());
    fleet.redis.restart().await;
    let there = fleet.at(1, &session);
    eventually(PATIENCE, async || there.post(answer.to_string()).await.status() == 202).await;
    // Either it was taken, or the instances had to meet anew: the instance that waits takes it in any case.
    session.post(answer.to_string()).await;
    assert_eq!(text(&call.answer().await), "Hello, Ada!");
}

#[tokio::test]
async fn a_flushed_redis_costs_no_session() {
    for transport in super::TRANSPORTS {
        let (fleet, _demo) = in_front_of_demo(transport, "legacy").await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        assert!(echo(&session).await);
        let ended = fleet.session(0, "2025-11-25", json!({})).await;
        assert_eq!(ended.delete().await.status(), 204);
        fleet.redis.run::<String>(&["FLUSHALL"]).await;
        for number in [0, 1, 2, 0] {
            let there = fleet.at(number, &session);
            eventually(PATIENCE, async || echo(&there).await).await;
        }
        // What was ended stays so.
        eventually(PATIENCE, async || {
            fleet.at(1, &ended).request("tools/list", json!({})).await.status() == 404
        })
        .await;
    }
}

#[tokio::test]
async fn a_redis_that_forgets_everything_ends_no_process_and_no_call_that_runs_where_it_came() {
    let (mut fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let touch = async |session: &drawbridge_testkit::client::Session| {
        session.tool("touch", json!({})).await["result"]["structuredContent"]["counter"].as_u64()
    };
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    assert_eq!(touch(&session).await, Some(1));
    for (restarts, counter) in [(false, 2), (true, 3)] {
        let slow = json!({ "name": "sleep", "arguments": { "ms": 4000 }, "_meta": { "progressToken": 1 } });
        let mut call = session.request("tools/call", slow).await;
        call.message().await;
        if restarts {
            fleet.redis.kill().await;
            fleet.redis.restart().await;
        } else {
            fleet.redis.run::<String>(&["FLUSHALL"]).await;
        }
        assert_eq!(text(&call.answer().await), "slept 4000 ms");
        assert_eq!(touch(&session).await, Some(counter), "it is the same process");
    }
}

#[tokio::test]
async fn while_redis_is_away_calls_of_a_process_that_is_here_do_not_wait_for_it() {
    let (mut fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    assert!(echo(&session).await);
    fleet.redis.kill().await;
    // Until nobody can know any more that this instance lives.
    let killed = Instant::now();
    while killed.elapsed() < Duration::from_secs(4) {
        assert!(echo(&session).await);
    }
    let begun = Instant::now();
    for _ in 0..10 {
        assert!(echo(&session).await);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_slow_redis_slows_down_no_call_of_a_warm_session() {
    let demo = DemoBackend::start().await;
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    let setup = Gateway::setup()
        .url("demo", &demo.url, "legacy")
        .config(SEAL)
        .config(&format!("redis: {{ url: \"redis://127.0.0.1:{}\" }}", proxy.port));
    let gateway = setup.start().await;
    drawbridge_testkit::fleet::ready(&gateway).await;
    let session = gateway.session().await;
    assert!(echo(&session).await);
    proxy.set(Fault::Delay(Duration::from_secs(1)));
    let begun = Instant::now();
    for _ in 0..20 {
        assert!(echo(&session).await);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for fault in [Fault::Silence, Fault::None] {
        proxy.set(fault);
        assert!(echo(&session).await);
        let new = gateway.session().await;
        assert!(echo(&new).await);
    }
}

#[tokio::test]
async fn an_instance_that_starts_while_redis_is_away_is_not_ready_until_it_is_there() {
    let demo = DemoBackend::start().await;
    let mut redis = RedisServer::start().await;
    redis.kill().await;
    let setup = Gateway::setup()
        .url("demo", &demo.url, "legacy")
        .config(SEAL)
        .config(&format!("redis: {{ url: \"{}\" }}", redis.url()));
    let gateway = setup.start().await;
    let reply = Client::new(&gateway.admin).get("/readyz", &[("accept", "application/json")]).await;
    assert_eq!(reply.status(), 503);
    let said = reply.text().await;
    assert!(said.contains("Redis"), "{said}");
    redis.restart().await;
    eventually(PATIENCE, async || is_ready(&gateway).await).await;
}

#[tokio::test]
async fn an_instance_that_has_not_read_which_sessions_were_ended_is_not_ready() {
    let demo = DemoBackend::start().await;
    let redis = RedisServer::start().await;
    // It may do all but read a stream.
    redis.run::<()>(&["ACL", "SETUSER", "default", "-xrange"]).await;
    let setup = Gateway::setup()
        .url("demo", &demo.url, "legacy")
        .config(SEAL)
        .config(&format!("redis: {{ url: \"{}\" }}", redis.url()));
    let gateway = setup.start().await;
    let left = async || {
        let presences: Vec<String> = redis.run(&["KEYS", "*:presence"]).await;
        redis.run::<i64>(&["PTTL", presences.first().map_or("none", String::as_str)]).await
    };
    // The others know it, and have heard of it again.
    eventually(PATIENCE, async || left().await > 0).await;
    let mut before = left().await;
    eventually(PATIENCE, async || left().await > std::mem::replace(&mut before, left().await)).await;
    let reply = Client::new(&gateway.admin).get("/readyz", &[("accept", "application/json")]).await;
    assert_eq!(reply.status(), 503);
    redis.run::<()>(&["ACL", "SETUSER", "default", "+xrange"]).await;
    eventually(PATIENCE, async || is_ready(&gateway).await).await;
}

#[tokio::test]
async fn an_instance_that_is_told_to_end_says_so_first_and_still_takes_requests() {
    let (mut fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let slow = json!({ "name": "sleep", "arguments": { "ms": 4000 } });
    let mut running = session.request("tools/call", slow).await;
    let mut stream = fleet.at(0, &session).get(None).await;
    let mut leaving = fleet.gateways.remove(0);
    leaving.program.signal(Signal::TERM);
    eventually(PATIENCE, async || !is_ready(&leaving).await).await;
    let late =
        session.request("tools/call", json!({ "name": "echo", "arguments": { "message": "x" } })).await;
    assert_eq!(late.header("connection"), Some("close"), "the next one goes elsewhere");
    assert_eq!(text(&late.answer().await), "x");
    while stream.event().await.is_some() {}
    let mut last = json!(null);
    while let Some(event) = running.event().await {
        if !event.data.is_empty() {
            last = serde_json::from_slice(&event.data).unwrap();
        }
    }
    assert_eq!(text(&last), "slept 4000 ms", "what runs ends in order");
    assert!(leaving.program.ended().await.success());
    // The session goes on elsewhere.
    assert!(echo(&fleet.at(0, &session)).await);
}

#[tokio::test]
async fn a_call_that_runs_for_another_instance_ends_in_order_when_its_owner_is_told_to_end() {
    let (mut fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    assert!(echo(&session).await);
    let there = fleet.at(1, &session);
    let slow = json!({ "name": "sleep", "arguments": { "ms": 5000 }, "_meta": { "progressToken": 1 } });
    let mut call = there.request("tools/call", slow).await;
    call.message().await;
    let mut leaving = fleet.gateways.remove(0);
    leaving.program.signal(Signal::TERM);
    assert_eq!(text(&call.answer().await), "slept 5000 ms");
    assert!(leaving.program.ended().await.success());
    eventually(PATIENCE, async || echo(&there).await).await;
}

#[tokio::test]
async fn a_call_whose_owner_is_killed_is_said_to_be_of_unknown_outcome_and_is_not_run_again() {
    let (mut fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    assert!(echo(&session).await);
    let there = fleet.at(1, &session);
    let slow = json!({ "name": "sleep", "arguments": { "ms": 60_000 }, "_meta": { "progressToken": 1 } });
    let mut call = there.request("tools/call", slow).await;
    call.message().await;
    let killed = Instant::now();
    fleet.kill(0).await;
    let answer = call.answer().await;
    assert_eq!(answer["error"]["data"]["code"], "outcome_unknown", "{answer}");
    assert!(killed.elapsed() < Duration::from_secs(6), "{:?}", killed.elapsed());
}

#[tokio::test]
async fn two_gateways_share_one_redis_under_two_prefixes() {
    let redis = RedisServer::start().await;
    let demo = DemoBackend::start().await;
    let own = |prefix: &str| {
        Gateway::setup()
            .url("demo", &demo.url, "legacy")
            .config(SEAL)
            .config(&format!("redis: {{ url: \"{}\", prefix: {prefix} }}", redis.url()))
    };
    let (one, other) = (own("one").start().await, own("other").start().await);
    for gateway in [&one, &other] {
        drawbridge_testkit::fleet::ready(gateway).await;
        let session = gateway.session().await;
        assert!(echo(&session).await);
    }
    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert!(keys.iter().all(|key| key.starts_with("one:1:") || key.starts_with("other:1:")), "{keys:?}");
}

#[tokio::test]
async fn junk_in_what_instances_read_from_redis_stops_none_of_them() {
    let (fleet, _demo) = in_front_of_demo("stdio", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    assert!(echo(&session).await);
    let address = format!("redis://127.0.0.1:{}", fleet.redis.port());
    let mut connection =
        redis::Client::open(address).unwrap().get_multiplexed_async_connection().await.unwrap();
    let presences: Vec<String> = fleet.redis.run(&["KEYS", "*:presence"]).await;
    let mut streams: Vec<String> = presences.iter().map(|key| key.replace(":presence", ":inbox")).collect();
    streams.push("drawbridge:1:revocations".to_owned());
    for stream in &streams {
        for (field, value) in [(&b"\xff\xfe"[..], &b"v"[..]), (b"m", b"\xff"), (b"k", b"short"), (b"", b"")] {
            let mut add = redis::cmd("XADD");
            add.arg(stream).arg("*").arg(field).arg(value);
            add.query_async::<String>(&mut connection).await.unwrap();
        }
    }
    let there = fleet.at(1, &session);
    eventually(PATIENCE, async || echo(&there).await).await;
    let ended = fleet.session(0, "2025-11-25", json!({})).await;
    assert!(echo(&fleet.at(1, &ended)).await);
    assert_eq!(ended.delete().await.status(), 204);
    for number in [1, 2] {
        eventually(PATIENCE, async || {
            fleet.at(number, &ended).request("tools/list", json!({})).await.status() == 404
        })
        .await;
    }
}
