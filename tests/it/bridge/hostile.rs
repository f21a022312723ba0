//! Clients and backends that mean harm, or know no better, where calls of one era meet asks of the other.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use drawbridge_testkit::backend::{Backend, Reply, Request, legacy, text_result};
use drawbridge_testkit::client::{Modern, request, text};
use drawbridge_testkit::gateway::Gateway;
use drawbridge_testkit::{PATIENCE, eventually, soon};
use serde_json::{Value, json};

use super::parked::{Planned, accept, asked, heard, keys, plan};
use super::{all, modern, retry, session};
use crate::backends::{in_front_of, spawn};
use crate::stdio::{Python, all_gone};

async fn works(gateway: &Gateway) {
    let answer = gateway.modern().tool("echo", json!({})).await;
    assert_eq!(text(&answer), "ok", "{answer}");
}

/// A call that waits for its client: the params, and what was asked.
async fn park(modern: &Modern, steps: Value) -> (Value, Value) {
    let params = plan(&steps);
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    (params, asked)
}

fn with_all(params: &Value, asked: &Value) -> Value {
    let answers: serde_json::Map<_, _> = keys(asked).into_iter().map(|key| (key, accept("x"))).collect();
    retry(params, answers.into(), asked)
}

#[tokio::test]
async fn states_of_any_shape_and_size_are_refused_and_nothing_runs() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let (params, asked) = park(&modern, json!([{ "ask": 1 }, { "await": 1 }])).await;
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let long = "x".repeat(1 << 20);
    for state in
        [json!(long), json!({ "s": long }), deep, json!(""), json!(7), json!(true), json!("\u{0}\u{1f600}")]
    {
        let mut forged = with_all(&params, &asked);
        forged["requestState"] = state;
        let answer = modern.call("tools/call", forged).await;
        assert_eq!(answer["error"]["code"], -32602);
        assert!(answer.to_string().len() < 1000, "it does not say the state again");
    }
    // Nested more deeply than anything may be.
    let mut body = modern.body("tools/call", with_all(&params, &asked)).to_string();
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    body = body.replace(&asked["requestState"].to_string(), &deep);
    let sent: Value = modern.body("tools/call", params.clone());
    let headers = Modern::headers(&sent);
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(modern.client.post("/mcp", &headers, body).await.status(), 400);
    assert_eq!(planned.begun(), 1);
    let answer = modern.call("tools/call", with_all(&params, &asked)).await;
    assert_eq!(heard(&answer).len(), 1, "and the right one works still");
}

#[tokio::test]
async fn a_hundred_thousand_answers_are_read_once_and_only_those_asked_for_are_given() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let steps: Vec<_> = (0..40).map(|id| json!({ "ask": id })).chain([json!({ "await": 0 })]).collect();
    let (params, asked) = park(&modern, json!(steps)).await;
    let mut answers: serde_json::Map<String, Value> =
        (0..100_000).map(|n| (format!("made-up-{n}"), json!({}))).collect();
    answers.extend(keys(&asked).into_iter().map(|key| (key, accept("x"))));
    let answer = modern.call("tools/call", retry(&params, answers.into(), &asked)).await;
    assert_eq!(heard(&answer)[0]["result"], accept("x"));
    planned.backend.wait_for_nth("answer", 40).await;
}

#[tokio::test]
async fn two_answers_under_one_key_are_refused_and_the_call_waits_on() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let (params, asked) = park(&modern, json!([{ "ask": 1 }, { "await": 1 }])).await;
    let key = keys(&asked).remove(0);
    let body = modern.body("tools/call", with_all(&params, &asked));
    let twice = format!(r#""inputResponses":{{"{key}":{{"action":"decline"}},"#);
    let text = body.to_string().replacen(r#""inputResponses":{"#, &twice, 1);
    let headers = Modern::headers(&body);
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let refused = modern.client.post("/mcp", &headers, text).await.answer().await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(heard(&modern.call("tools/call", with_all(&params, &asked)).await).len(), 1);
}

#[tokio::test]
async fn asks_under_one_id_are_each_answered_and_what_was_never_asked_is_not_taken_back() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let steps = json!([
        { "withdraw": 1 }, { "ask": 1 }, { "withdraw": "1" }, { "withdraw": 99 }, { "ask": 1 },
        { "await": 1 }, { "await": 1 }, { "ask": 1 }, { "withdraw": 1 },
    ]);
    let (params, asked) = park(&modern, steps).await;
    assert_eq!(keys(&asked).len(), 2, "{asked}");
    let answer = modern.call("tools/call", with_all(&params, &asked)).await;
    let told = heard(&answer);
    assert_eq!((told.len(), &told[0]["id"], &told[1]["id"]), (2, &json!(1), &json!(1)), "{answer}");
}

#[tokio::test]
async fn asks_whose_params_are_missing_or_of_another_type_end_in_an_answer() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let old = session(&gateway, "2025-06-18", all()).await;
    for params in [
        json!([]),
        json!("text"),
        json!(7),
        json!({}),
        json!({ "mode": "url" }),
        json!({ "mode": {}, "message": [], "requestedSchema": 7 }),
        json!({ "mode": "form", "requestedSchema": { "properties": [{ "oneOf": 1 }] } }),
        json!({ "mode": "form", "requestedSchema": { "properties": { "a": { "oneOf": [7, {}] } } } }),
    ] {
        for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
            let steps = json!([{ "ask": 1, "method": method, "params": params }, { "await": 1 }]);
            let first = modern.call("tools/call", plan(&steps)).await;
            let last = match first["result"]["resultType"].as_str() {
                Some("input_required") => {
                    modern.call("tools/call", with_all(&plan(&steps), &first["result"])).await
                }
                _ => first,
            };
            assert!(last["result"]["content"].is_array() || last["error"].is_object(), "{params}: {last}");
            let mut reply = old.request("tools/call", plan(&steps)).await;
            let message = if reply.is_stream() {
                let asked = reply.message().await;
                let body = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": {} });
                if asked["method"].is_string() {
                    old.post(body.to_string()).await;
                    reply.message().await
                } else {
                    asked
                }
            } else {
                reply.answer().await
            };
            assert!(message["result"].is_object() || message["error"].is_object(), "{params}: {message}");
        }
    }
    works(&gateway).await;
}

/// A backend whose tool `storm` does what `storm` says, beside `steps` of a plan.
async fn storming<F, Fut>(storm: F) -> Backend
where
    F: Fn(Request) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Reply> + Send + 'static,
{
    Backend::start(move |r| {
        let storm = storm.clone();
        async move { if r.name() == "storm" { storm(r).await } else { legacy(&r, "s") } }
    })
    .await
}

fn form(id: impl Into<Value>) -> Value {
    request(id, "elicitation/create", json!({ "message": "?", "requestedSchema": {} }))
}

#[tokio::test]
async fn a_call_that_asks_two_thousand_times_is_asked_for_a_few_and_over_a_few_connections() {
    let backend = storming(|r| async move {
        let (reply, stream) = Reply::stream();
        spawn(async move {
            for id in 0..2000 {
                stream.event(&form(id)).await;
            }
            stream.gone().await;
        });
        drop(r);
        reply
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "limits: { answer_timeout: 1s }").await;
    let asked = asked(&modern(&gateway).tool("storm", json!({})).await);
    assert!(keys(&asked).len() <= 64, "{}", keys(&asked).len());
    // The client does not come back, so all of it is answered at once.
    eventually(PATIENCE, async || backend.requests().len() >= 2000).await;
    assert!(backend.connections() < 100, "{}", backend.connections());
    works(&gateway).await;
}

#[tokio::test]
async fn what_a_backend_asks_after_its_answer_reaches_nobody() {
    let backend = storming(|r| async move {
        let (reply, stream) = Reply::stream();
        spawn(async move {
            let result = text_result("done");
            stream.event(&json!({ "jsonrpc": "2.0", "id": r.id(), "result": result })).await;
            stream.event(&form("late")).await;
            stream.event(&json!({ "jsonrpc": "2.0", "id": r.id(), "result": text_result("again") })).await;
        });
        reply
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let session = session(&gateway, "2025-11-25", all()).await;
    for _ in 0..3 {
        assert_eq!(text(&modern.tool("storm", json!({})).await), "done");
        let messages =
            session.request("tools/call", json!({ "name": "storm", "arguments": {} })).await.messages().await;
        assert_eq!(messages.len(), 1, "{messages:?}");
    }
    assert_eq!(backend.count("answer"), 0);
}

#[tokio::test]
async fn a_host_that_answers_twice_oddly_or_for_another_session_does_not_end_the_call_of_that() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let (one, two) =
        (session(&gateway, "2025-11-25", all()).await, session(&gateway, "2025-11-25", all()).await);
    let mut stream = one.request("tools/call", plan(&json!([{ "ask": 1 }, { "await": 1 }]))).await;
    let asked = stream.message().await;
    let good = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": accept("own") });
    let mut stolen = good.clone();
    stolen["result"] = accept("stolen");
    assert_eq!(two.post(stolen.to_string()).await.status(), 202);
    for odd in [json!({}), json!({ "result": {}, "error": {} }), json!({ "error": "text" })] {
        let mut body = json!({ "jsonrpc": "2.0", "id": ["x"] });
        body.as_object_mut().unwrap().extend(odd.as_object().unwrap().clone());
        let status = one.post(body.to_string()).await.status();
        assert!(matches!(status, 202 | 400), "{body}: {status}");
    }
    one.post(good.to_string()).await;
    assert_eq!(one.post(stolen.to_string()).await.status(), 202);
    assert_eq!(heard(&stream.answer().await)[0]["result"], accept("own"));
    assert_eq!(planned.backend.count("answer"), 1);
    // Whatever an error is like, the backend has one answer to its ask.
    for error in [json!({}), json!("text"), json!({ "code": "x", "message": 7 }), json!(null), json!([1])] {
        let mut stream = one.request("tools/call", plan(&json!([{ "ask": 1 }, { "await": 1 }]))).await;
        let asked = stream.message().await;
        let body = json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error });
        if one.post(body.to_string()).await.status() == 400 {
            one.post(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": {} }).to_string()).await;
        }
        assert_eq!(heard(&stream.answer().await).len(), 1, "{error}");
    }
}

#[tokio::test]
async fn a_slow_user_is_no_silence_of_the_backend() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy, idle_timeout: 500ms", "").await;
    let modern = modern(&gateway);
    let (params, asked) = park(&modern, json!([{ "ask": 1 }, { "await": 1 }])).await;
    let one = session(&gateway, "2025-11-25", all()).await;
    let mut stream = one.request("tools/call", plan(&json!([{ "ask": 2 }, { "await": 2 }]))).await;
    let live = stream.message().await;
    // Another call has the backend's own silence, which is as long as the users'.
    let silent = modern.call("tools/call", plan(&json!([{ "log": "info" }, { "await": 9 }]))).await;
    assert_eq!(silent["error"]["data"]["code"], "backend_timeout", "{silent}");
    let answer = modern.call("tools/call", with_all(&params, &asked)).await;
    assert_eq!(heard(&answer)[0]["result"], accept("x"), "{answer}");
    one.post(json!({ "jsonrpc": "2.0", "id": live["id"], "result": accept("y") }).to_string()).await;
    assert_eq!(heard(&stream.answer().await)[0]["result"], accept("y"));
}

#[tokio::test]
async fn calls_that_hundreds_of_clients_abandon_leave_nothing_after_their_deadline() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "limits: { answer_timeout: 1s }").await;
    let mut after = Vec::new();
    for wave in 0..3 {
        let parking = (0..300).map(|n| {
            let (id, modern) = (wave * 300 + n, modern(&gateway));
            async move { park(&modern, json!([{ "ask": id }, { "await": id }])).await }
        });
        futures_util::future::join_all(parking).await;
        eventually(PATIENCE, async || {
            let calls = planned.backend.requests_of("tools/call");
            calls.iter().all(|call| call.over.is_cancelled())
        })
        .await;
        after.push(gateway.program.resident_bytes());
    }
    assert_eq!(planned.begun(), 900, "and nothing ran twice");
    assert!(after[2] < after[1] + (16 << 20), "{after:?}");
    works(&gateway).await;
}

/// A backend with sessions, and the resources that are subscribed to there.
async fn subscribed() -> (Backend, Arc<Mutex<BTreeSet<String>>>) {
    let open = Arc::new(Mutex::new(BTreeSet::new()));
    let uris = open.clone();
    let backend = Backend::start(move |r| {
        let uris = uris.clone();
        async move {
            let uri = r.body["params"]["uri"].as_str().unwrap_or_default().to_owned();
            match r.rpc() {
                "resources/subscribe" => {
                    uris.lock().unwrap().insert(uri.clone());
                    if uri.contains("slow") {
                        r.gone.cancelled().await;
                    }
                }
                "resources/unsubscribe" => drop(uris.lock().unwrap().remove(&uri)),
                _ => {}
            }
            legacy(&r, "s")
        }
    })
    .await;
    (backend, open)
}

#[tokio::test]
async fn listens_that_are_opened_and_dropped_again_and_again_leave_no_subscription() {
    let (backend, open) = subscribed().await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    for n in 0..20 {
        let modern = gateway.modern();
        let slow = if n % 2 == 0 { "slow" } else { "quick" };
        let uris = json!([format!("a://{n}"), format!("b://{slow}/{n}"), "c://all"]);
        let listening = modern
            .request("subscriptions/listen", json!({ "notifications": { "resourceSubscriptions": uris } }));
        let last = format!("b://{slow}/{n}");
        // Dropped while the backend is asked, or once it is open.
        tokio::select! {
            stream = listening => {
                let mut stream = stream;
                if n % 2 == 1 {
                    stream.message().await;
                } else {
                    eventually(PATIENCE, async || open.lock().unwrap().contains(&last)).await;
                }
            }
            () = eventually(PATIENCE, async || n % 2 == 0 && open.lock().unwrap().contains(&last)) => {}
        }
    }
    eventually(PATIENCE, async || open.lock().unwrap().is_empty()).await;
    works(&gateway).await;
}

#[tokio::test]
async fn a_listen_for_a_hundred_thousand_resources_is_for_some_of_them() {
    let (backend, open) = subscribed().await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let modern = gateway.modern();
    let uris: Vec<_> = (0..100_000).map(|n| format!("a://{n}")).collect();
    let wanted = json!({ "notifications": { "resourceSubscriptions": uris } });
    let mut stream = modern.request("subscriptions/listen", wanted).await;
    let ack = stream.message().await;
    let honoured = ack["params"]["notifications"]["resourceSubscriptions"].as_array().unwrap().len();
    assert_eq!((honoured, open.lock().unwrap().len()), (1024, 1024));
    drop((stream, modern));
    eventually(PATIENCE, async || open.lock().unwrap().is_empty()).await;
}

#[tokio::test]
async fn a_client_with_one_more_kind_of_capabilities_ends_no_call_of_others() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let (params, asked) = park(&modern(&gateway), json!([{ "ask": 1 }, { "await": 1 }])).await;
    for n in 0..300 {
        let capabilities = json!({ "experimental": { format!("x{n}"): {} } });
        let other = Modern::new(&gateway.client(), "/mcp", capabilities);
        assert_eq!(text(&other.tool("echo", json!({})).await), "ok");
    }
    let answer = modern(&gateway).call("tools/call", with_all(&params, &asked)).await;
    assert_eq!(heard(&answer).len(), 1, "{answer}");
}

#[tokio::test]
async fn a_program_that_is_killed_while_a_call_waits_for_its_client_leaves_an_error_for_the_retry() {
    let python = Python::new(&[]);
    let gateway = python.behind("era: legacy", "").await;
    let modern = modern(&gateway);
    let params = json!({ "name": "ask", "arguments": {} });
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    let pids = python.started();
    for pid in &pids {
        let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    all_gone(&pids).await;
    eventually(PATIENCE, async || gateway.program.stderr().contains("ended by itself")).await;
    let answer = modern.call("tools/call", with_all(&params, &asked)).await;
    assert_eq!(answer["error"]["data"]["code"], "outcome_unknown", "{answer}");
    assert_eq!(python.calls("ask").len(), 1);
    works(&gateway).await;
}

#[tokio::test]
async fn a_gateway_that_stops_ends_parked_calls_and_listens_in_order() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    for _ in 0..20 {
        park(&modern, json!([{ "ask": 1 }, { "await": 1 }])).await;
    }
    let mut listen = modern
        .request("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }))
        .await;
    listen.message().await;
    let own = session(&gateway, "2025-11-25", json!({})).await;
    let mut standalone = own.get(None).await;
    assert!(standalone.reads(PATIENCE, |seen| !seen.is_empty()).await);
    let stopping = gateway.stop();
    let (status, ended) = tokio::join!(stopping, listen.answer());
    assert_eq!((status.code(), &ended["result"]["resultType"]), (Some(0), &json!("complete")));
    while soon("its end", standalone.event()).await.is_some() {}
    // Each backend was answered, and its call came to its own end.
    planned.backend.wait_for_nth("answer", 20).await;
    assert_eq!((planned.begun(), planned.backend.count("notifications/cancelled")), (20, 0));
}

#[tokio::test]
async fn ids_of_tasks_are_passed_on_whatever_they_are() {
    let long = "x".repeat(1 << 20);
    let odd = r#"a"b\c'{}"#.to_owned();
    let ids = [odd.clone(), long.clone()];
    let backend = Backend::start(move |r| {
        let ids = ids.clone();
        async move {
            let task = |id: &str| {
                json!({ "taskId": id, "status": "completed", "createdAt": "2026-08-01T10:00:00Z",
                        "lastUpdatedAt": "2026-08-01T10:00:00Z", "ttl": 60000 })
            };
            let id = r.body["params"]["taskId"].as_str().unwrap_or_default();
            match r.rpc() {
                "initialize" => {
                    let result = json!({
                        "protocolVersion": "2025-11-25", "serverInfo": { "name": "t", "version": "1" },
                        "capabilities": { "tools": {}, "tasks": { "requests": { "tools": { "call": {} } } } },
                    });
                    Reply::result(&r, result).header("mcp-session-id", "s")
                }
                "tools/list" => {
                    let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" }, "execution": { "taskSupport": "required" } });
                    Reply::result(&r, json!({ "tools": [tool("odd"), tool("long")] }))
                }
                "tools/call" => {
                    let id = &ids[usize::from(r.name() == "long")];
                    Reply::result(&r, json!({ "task": task(id) }))
                }
                "tasks/get" | "tasks/cancel" if ids.iter().any(|own| own == id) => Reply::result(&r, task(id)),
                "tasks/result" if ids.iter().any(|own| own == id) => Reply::result(&r, text_result("end")),
                _ => legacy(&r, "s"),
            }
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let without = gateway.modern();
    let extension = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let with = Modern::new(&gateway.client(), "/mcp", extension);
    let mut handles = Vec::new();
    for (tool, id) in [("odd", &odd), ("long", &long)] {
        assert_eq!(text(&without.tool(tool, json!({})).await), "end");
        let handle = with.tool(tool, json!({})).await["result"]["taskId"].clone();
        assert!(handle.is_string() && handle != **id);
        handles.push(handle);
    }
    let state = with.call("tasks/get", json!({ "taskId": handles[0] })).await;
    assert_eq!(state["result"]["status"], "completed", "{state}");
    // A header can't carry the other, so the client can't ask for it.
    let body = with.body("tasks/get", json!({ "taskId": handles[1] }));
    assert_eq!(with.post_with(&body, &[("mcp-name", "")]).await.status(), 400);
}

#[tokio::test]
async fn what_a_call_that_was_given_up_asks_does_not_reach_another_principal() {
    // It goes on with calls that were cancelled, and asks because of them.
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/it/chaos/process.py");
    let dir = tempfile::TempDir::new().unwrap();
    let ledger = dir.path().join("ledger");
    let settings = format!(
        "{{ command: python3, args: [{script}, {}], era: legacy, session_scope: shared }}",
        ledger.display()
    );
    let gateway = Gateway::setup().backend("b", &settings).start().await;
    let work = |call: &str, ms: u64, asks: bool| {
        json!({ "name": "work", "arguments": { "call": call, "ms": ms, "ask": asks },
                "_meta": { "progressToken": call } })
    };
    let (one, other) = (modern(&gateway), modern(&gateway));
    let mut given_up = one.request("tools/call", work("one", 700, true)).await;
    given_up.message().await;
    let other = other.request("tools/call", work("other", 1500, false));
    let ((), answer) = tokio::join!(async { drop(given_up) }, other);
    let answer = answer.answer().await;
    assert_eq!(text(&answer), "other", "{answer}");
}
