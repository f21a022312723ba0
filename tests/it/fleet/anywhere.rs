//! A session, or a call, that begins at one instance and goes on at another.

use drawbridge_testkit::backend::{Backend, Reply, legacy};
use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::fleet::Fleet;
use drawbridge_testkit::gateway::Gateway;
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};

use super::{TRANSPORTS, in_front_of_demo};
use crate::bridge::parked::{Planned, accept, asked, heard, keys, plan};
use crate::bridge::tasks::{WithTasks, with_extension};
use crate::bridge::{ASKING, all, answer_to, retry};
use crate::modern::kept::{CHANGED, changing};

#[tokio::test]
async fn r015_any_instance_serves_any_request_of_a_session_also_when_its_first_is_gone() {
    for transport in TRANSPORTS {
        let (mut fleet, _demo) = in_front_of_demo(transport, "legacy").await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        for number in [1, 2, 0, 1] {
            let answer = fleet.at(number, &session).tool("echo", json!({ "message": "hello" })).await;
            assert_eq!(text(&answer), "hello", "{transport} at {number}");
        }
        let second = fleet.at(1, &session);
        fleet.kill(0).await;
        eventually(PATIENCE, async || {
            let answer = second.tool("echo", json!({ "message": "again" })).await;
            answer["result"]["content"][0]["text"] == "again"
        })
        .await;
    }
}

#[tokio::test]
async fn r011_a_session_that_was_ended_at_one_instance_is_over_at_all() {
    let (fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    for number in 0..3 {
        assert_eq!(text(&fleet.at(number, &session).tool("echo", json!({ "message": "x" })).await), "x");
    }
    let mut stream = fleet.at(2, &session).get(None).await;
    assert_eq!(fleet.at(1, &session).delete().await.status(), 204);
    for number in 0..3 {
        let there = fleet.at(number, &session);
        eventually(PATIENCE, async || there.request("tools/list", json!({})).await.status() == 404).await;
        assert_eq!(there.get(None).await.status(), 404);
        assert_eq!(there.delete().await.status(), 404);
    }
    // Its streams end, too.
    while stream.event().await.is_some() {}
}

/// A fleet in front of a scripted backend.
async fn scripted(backend: &Backend) -> Fleet {
    Fleet::start(3, Gateway::setup().url("scripted", &backend.url(), "legacy")).await
}

#[tokio::test]
async fn a_session_is_one_session_at_the_backend_wherever_its_calls_come() {
    let backend = Backend::start(|r| async move {
        match r.rpc() {
            "initialize" => legacy(&r, &format!("s{}", rand::random::<u32>())),
            "tools/call" => {
                Reply::result(&r, json!({ "content": [], "session": r.header("mcp-session-id") }))
            }
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let fleet = scripted(&backend).await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let there: Vec<_> = (0..3).map(|number| fleet.at(number, &session)).collect();
    // All at once, so that they race for who opens it.
    let answers =
        futures_util::future::join_all(there.iter().flat_map(|s| (0..5).map(|_| s.tool("which", json!({})))))
            .await;
    let first = &answers[0]["result"]["session"];
    assert!(first.is_string(), "{}", answers[0]);
    assert!(answers.iter().all(|answer| answer["result"]["session"] == *first), "{answers:?}");
    // Equal ids in one session would mix answers up.
    let calls = backend.requests_of("tools/call");
    let mut ids: Vec<String> = calls.iter().map(|call| call.id().to_string()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), calls.len(), "each call has an id of its own");
    // What was opened beside it, and not used, is ended.
    assert_eq!(there[1].delete().await.status(), 204);
    eventually(PATIENCE, async || {
        let ended = backend.requests_of("DELETE");
        ended.iter().any(|r| r.header("mcp-session-id") == *first)
    })
    .await;
}

#[tokio::test]
async fn what_was_set_in_a_session_is_set_again_by_whichever_instance_opens_the_next() {
    let backend = Backend::start(|r| async move {
        if r.method == "POST" && r.rpc() != "initialize" && r.header("mcp-session-id") == "old" {
            let over = r.rpc() == "tools/call" && r.name() == "over";
            if over {
                return Reply::status(404);
            }
        }
        match r.rpc() {
            "logging/setLevel" => Reply::result(&r, json!({})),
            "tools/call" => Reply::result(&r, json!({ "content": [] })),
            _ => legacy(&r, "old"),
        }
    })
    .await;
    let fleet = scripted(&backend).await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    session.call("logging/setLevel", json!({ "level": "error" })).await;
    eventually(PATIENCE, async || {
        let keys: Vec<String> = fleet.redis.run(&["KEYS", "*"]).await;
        let mut set = false;
        for key in keys {
            let kind: String = fleet.redis.run(&["TYPE", &key]).await;
            if kind == "hash" {
                let values: Vec<String> = fleet.redis.run(&["HVALS", &key]).await;
                set |= values.iter().any(|value| value.contains("setLevel"));
            }
        }
        set
    })
    .await;
    let before = backend.count("logging/setLevel");
    // The backend forgets the session, which the other instance finds out first.
    fleet.at(1, &session).tool("over", json!({})).await;
    assert_eq!(backend.count("logging/setLevel"), before + 1);
}

#[tokio::test]
async fn r028_an_answer_that_comes_to_another_instance_reaches_the_waiting_call() {
    for (transport, era) in [("http", "legacy"), ("sse", "legacy"), ("stdio", "legacy"), ("http", "modern")] {
        let (fleet, _demo) = in_front_of_demo(transport, era).await;
        let session = fleet.session(0, "2025-11-25", all()).await;
        for (tool, expected) in ASKING {
            let there = fleet.at(1, &session);
            let mut call = there.request("tools/call", json!({ "name": tool, "arguments": {} })).await;
            let ask = call.message().await;
            let method = ask["method"].as_str().unwrap_or_else(|| panic!("{transport} {era}: {ask}"));
            let answer = json!({ "jsonrpc": "2.0", "id": ask["id"], "result": answer_to(method) });
            assert_eq!(fleet.at(2, &session).post(answer.to_string()).await.status(), 202);
            assert_eq!(text(&call.answer().await), expected, "{transport} {era}");
        }
    }
}

#[tokio::test]
async fn r029_an_answer_for_an_instance_that_is_gone_is_taken_and_ignored() {
    let (mut fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let session = fleet.session(0, "2025-11-25", all()).await;
    let mut call = session.request("tools/call", json!({ "name": "elicit", "arguments": {} })).await;
    let ask = call.message().await;
    let there = fleet.at(1, &session);
    fleet.kill(0).await;
    let answer = json!({ "jsonrpc": "2.0", "id": ask["id"], "result": answer_to("elicitation/create") });
    eventually(PATIENCE, async || there.post(answer.to_string()).await.status() == 202).await;
}

#[tokio::test]
async fn r033_a_cancellation_that_comes_to_another_instance_stops_the_call() {
    let backend = Backend::start(|r| async move {
        if r.rpc() == "tools/call" {
            r.let_go().await;
            return Reply::status(202);
        }
        legacy(&r, "s")
    })
    .await;
    let fleet = scripted(&backend).await;
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    let waiting = crate::backends::spawn({
        let session = session.clone();
        async move {
            let body = json!({ "jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": { "name": "wait" } });
            session.post(body.to_string()).await.messages().await
        }
    });
    backend.wait_for("tools/call").await;
    let cancelled =
        fleet.at(2, &session).notify("notifications/cancelled", json!({ "requestId": "mine" })).await;
    assert_eq!(cancelled.status(), 202);
    let told = backend.wait_for("notifications/cancelled").await;
    assert_eq!(told.body["params"]["requestId"], backend.requests_of("tools/call")[0].id());
    assert_eq!(waiting.await.unwrap(), Vec::<Value>::new(), "a cancelled call has no answer");
}

#[tokio::test]
async fn r080_r101_a_parked_call_goes_on_with_a_retry_at_another_instance() {
    let planned = Planned::start().await;
    let fleet = scripted(&planned.backend).await;
    let params =
        plan(&json!([{ "ask": 1 }, { "await": 1 }, { "progress": 1 }, { "ask": 2 }, { "await": 2 }]));
    let first = asked(&fleet.modern(0, all()).call("tools/call", params.clone()).await);
    let key = keys(&first).remove(0);
    let second =
        fleet.modern(1, all()).call("tools/call", retry(&params, json!({ key: accept("1") }), &first)).await;
    let second = asked(&second);
    let key = keys(&second).remove(0);
    let answers = json!({ key: accept("2") });
    let done = fleet.modern(2, all()).call("tools/call", retry(&params, answers.clone(), &second)).await;
    assert_eq!(heard(&done).len(), 2, "{done}");
    assert_eq!(planned.begun(), 1, "the tool ran once");
    // Each state is good once, wherever it is shown.
    for number in 0..3 {
        for state in [&first, &second] {
            let again = retry(&params, answers.clone(), state);
            let answer = fleet.modern(number, all()).call("tools/call", again).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
    }
    assert_eq!(planned.begun(), 1);
}

#[tokio::test]
async fn r080_a_state_of_a_stateless_backend_is_good_at_every_instance() {
    let (fleet, _demo) = in_front_of_demo("http", "modern").await;
    for (tool, expected) in ASKING {
        let params = json!({ "name": tool, "arguments": {} });
        let asked = asked(&fleet.modern(0, all()).call("tools/call", params.clone()).await);
        let (key, request) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
        let answers = json!({ key: answer_to(request["method"].as_str().unwrap()) });
        let answer = fleet.modern(1, all()).call("tools/call", retry(&params, answers, &asked)).await;
        assert_eq!(text(&answer), expected);
    }
}

#[tokio::test]
async fn r102_a_call_that_was_parked_at_an_instance_that_is_gone_is_said_to_be_lost_and_not_run_again() {
    let planned = Planned::start().await;
    let mut fleet = scripted(&planned.backend).await;
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    let asked = asked(&fleet.modern(0, all()).call("tools/call", params.clone()).await);
    let key = keys(&asked).remove(0);
    let there = fleet.modern(1, all());
    fleet.kill(0).await;
    let params = retry(&params, json!({ key: accept("1") }), &asked);
    eventually(PATIENCE, async || {
        let answer = there.call("tools/call", params.clone()).await;
        let data = &answer["error"]["data"];
        assert!(answer["result"].is_null(), "{answer}");
        data["code"] == "outcome_unknown" && data["retry"] == "unsafe"
    })
    .await;
    assert_eq!(planned.begun(), 1);
}

#[tokio::test]
async fn r069_r076_r100_requests_and_cursors_of_stateless_clients_are_good_everywhere() {
    let (fleet, _demo) = in_front_of_demo("http", "modern").await;
    let mut lists = Vec::new();
    for first in 0..3 {
        let (mut names, mut params) = (Vec::new(), json!({}));
        // Each page from another instance.
        for number in (first..).take(20) {
            let page = fleet.modern(number % 3, json!({})).call("tools/list", params).await;
            let tools = page["result"]["tools"].as_array().unwrap_or_else(|| panic!("{page}"));
            names.extend(tools.iter().map(|tool| tool["name"].clone()));
            params = json!({ "cursor": page["result"]["nextCursor"] });
            if params["cursor"].is_null() {
                break;
            }
        }
        lists.push(names);
    }
    assert!(lists[0].len() > 10, "{lists:?}");
    assert!(lists.iter().all(|list| *list == lists[0]), "{lists:?}");
    for number in 0..3 {
        let answer = fleet.modern(number, json!({})).tool("echo", json!({ "message": "x" })).await;
        assert_eq!(text(&answer), "x");
    }
}

#[tokio::test]
async fn r097_what_one_instance_hears_of_a_change_drops_what_another_keeps() {
    let backend = changing().await;
    let fleet = Fleet::start(2, Gateway::setup().url("it", &backend.url, "modern")).await;
    let (one, other) = (fleet.modern(0, json!({})), fleet.modern(1, json!({})));
    let name = async |modern: &Modern| {
        modern.call("tools/list", json!({})).await["result"]["tools"][0]["name"].clone()
    };
    let kept = name(&other).await;
    assert_eq!(name(&other).await, kept);
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut listen = one.request("subscriptions/listen", wanted).await;
    while listen.message().await["method"] != CHANGED {}
    eventually(PATIENCE, async || name(&other).await != kept).await;
}

#[tokio::test]
async fn r117_a_task_can_be_asked_for_at_every_instance() {
    let tasks = WithTasks::start().await;
    let fleet = scripted(&tasks.backend).await;
    for (tool, status) in [("done", "completed"), ("fails", "failed"), ("never", "working")] {
        let created = fleet.modern(0, with_extension(all())).tool(tool, json!({})).await;
        let id = &created["result"]["taskId"];
        assert!(id.is_string() && id != tool, "{created}");
        for number in 0..3 {
            let modern = fleet.modern(number, with_extension(all()));
            let state = modern.call("tasks/get", json!({ "taskId": id })).await;
            assert_eq!(state["result"]["status"], status, "{state}");
        }
    }
    let sessions = tasks.backend.requests_of("tasks/get");
    assert!(sessions.iter().all(|r| r.header("mcp-session-id") == "s"));
}

#[tokio::test]
async fn a_large_declaration_is_known_to_all_instances() {
    let (fleet, _demo) = in_front_of_demo("http", "legacy").await;
    let capabilities = json!({ "elicitation": {}, "experimental": { "x": { "y": "z".repeat(20_000) } } });
    let session = fleet.session(0, "2025-11-25", capabilities).await;
    assert!(session.id.len() <= 2048);
    let there = fleet.at(1, &session);
    let mut call = there.request("tools/call", json!({ "name": "elicit", "arguments": {} })).await;
    assert_eq!(call.message().await["method"], "elicitation/create");
}

#[tokio::test]
async fn a_new_session_writes_nothing_and_calls_of_a_warm_one_ask_nothing() {
    for (transport, era) in [("http", "legacy"), ("http", "modern"), ("stdio", "legacy"), ("sse", "legacy")] {
        let (fleet, _demo) = in_front_of_demo(transport, era).await;
        let keys = async || {
            let mut keys: Vec<String> = fleet.redis.run(&["KEYS", "*"]).await;
            keys.sort_unstable();
            keys
        };
        let before = keys().await;
        let session = fleet.session(0, "2025-11-25", json!({})).await;
        assert_eq!(keys().await, before, "{transport} {era}: initialize writes nothing");
        let modern = fleet.modern(0, json!({}));
        let echo = json!({ "message": "x" });
        for _ in 0..3 {
            session.tool("echo", echo.clone()).await;
            modern.tool("echo", echo.clone()).await;
        }
        let count = async || {
            let stats: String = fleet.redis.run(&["INFO", "commandstats"]).await;
            commands(&stats)
        };
        let (begun, start) = (count().await, std::time::Instant::now());
        for _ in 0..500 {
            assert_eq!(text(&session.tool("echo", echo.clone()).await), "x");
            assert_eq!(text(&modern.tool("echo", echo.clone()).await), "x");
        }
        let (asked, seconds) = (count().await - begun, start.elapsed().as_secs() + 1);
        // Three instances say that they live, and read on, some times a second; that does not depend on calls.
        let background = 3 * 12 * seconds + 20;
        assert!(asked < background, "{transport} {era}: {asked} commands for 1,000 calls in {seconds} s");
    }
}

/// How many commands Redis was given in all, by its `commandstats`.
fn commands(stats: &str) -> u64 {
    let calls =
        stats.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}
