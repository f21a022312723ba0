//! Asks, cancellation, progress and errors of calls.

use std::time::Duration;

use drawbridge_testkit::client::{LEGACY, Session, notification, request, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::{Value, json};

use super::in_front_of_demo;
use crate::backend::{Backend, Does, Seen, text_result};

fn result_of(ask: &Value, result: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": ask["id"], "result": result }).to_string()
}

#[tokio::test]
async fn r028_r031_asks_ride_the_stream_of_their_call_and_the_answer_reaches_it() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let capabilities = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
    let session = Session::open(&gateway.client(), "/mcp", LEGACY, capabilities).await;
    let mut standalone = session.get(None).await;
    let accept = json!({ "action": "accept", "content": { "name": "Ada" } });
    let sampled = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "hi" } });
    let roots = json!({ "roots": [{ "uri": "file:///work" }] });
    for (tool, method, result, expected) in [
        ("elicit", "elicitation/create", accept, "Hello, Ada!"),
        ("sample", "sampling/createMessage", sampled, "m says: hi"),
        ("roots", "roots/list", roots, "file:///work"),
    ] {
        let mut called = session.request("tools/call", json!({ "name": tool, "arguments": {} })).await;
        let ask = called.message().await;
        assert_eq!(ask["method"], method);
        assert!(ask["id"].is_string() || ask["id"].is_i64());
        // Over a connection of its own, as another host process would.
        let elsewhere = gateway.client();
        let reply = elsewhere.post("/mcp", &session.headers(), result_of(&ask, &result)).await;
        assert_eq!(reply.status(), 202);
        assert_eq!(text(&called.message().await), expected);
        assert!(called.event().await.is_none(), "the answer is the last");
    }
    let unrelated = standalone.event_within(Duration::from_millis(100)).await;
    assert!(unrelated.is_err() || unrelated.unwrap().is_some_and(|event| event.data.is_empty()));
}

#[tokio::test]
async fn r029_answers_that_nobody_waits_for_are_accepted_and_ignored() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = Session::open(&gateway.client(), "/mcp", LEGACY, json!({ "elicitation": {} })).await;
    let mut called = session.request("tools/call", json!({ "name": "elicit", "arguments": {} })).await;
    let ask = called.message().await;
    let good = json!({ "action": "accept", "content": { "name": "Ada" } });
    let evil = json!({ "action": "accept", "content": { "name": "Eve" } });
    for id in [json!("unknown"), json!(1), json!("00000000-1")] {
        let reply = session.post(result_of(&json!({ "id": id }), &evil)).await;
        assert_eq!(reply.status(), 202);
    }
    // Another session can't answer for this one.
    let other = Session::open(&gateway.client(), "/mcp", LEGACY, json!({ "elicitation": {} })).await;
    assert_eq!(other.post(result_of(&ask, &evil)).await.status(), 202);
    assert_eq!(session.post(result_of(&ask, &good)).await.status(), 202);
    assert_eq!(text(&called.message().await), "Hello, Ada!");
    assert_eq!(session.post(result_of(&ask, &evil)).await.status(), 202, "too late");
}

fn asks_undeclared(_: &Seen) -> Does {
    let ask = r#"{"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":{"message":"?"}}"#;
    let result = json!({ "content": [{ "type": "text", "text": "done" }] }).to_string();
    Does::Holds(vec![ask.to_owned()], "answer", result)
}

#[tokio::test]
async fn r030_what_the_client_can_not_answer_never_reaches_it() {
    let backend = Backend::legacy(json!({ "tools": {} }), asks_undeclared).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let session = Session::open(&gateway.client(), "/mcp", LEGACY, json!({ "roots": {} })).await;
    let called = session.request("tools/call", json!({ "name": "x", "arguments": {} })).await;
    eventually(Duration::from_secs(5), async || {
        let answers = backend.seen();
        answers.iter().any(|seen| seen.json()["id"] == "e1" && seen.json()["error"]["code"] == -32601)
    })
    .await;
    backend.release("answer");
    let messages = called.messages().await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(text(&messages[0]), "done");
}

#[tokio::test]
async fn r033_a_cancelled_call_stops_upstream_and_has_no_response() {
    for era in ["legacy", "modern"] {
        let script = |_: &Seen| {
            let note =
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
            Does::Holds(vec![note.to_owned()], "never", "{}".to_owned())
        };
        let backend = match era {
            "legacy" => Backend::legacy(json!({ "tools": {} }), script).await,
            _ => Backend::modern(json!({ "tools": {} }), script).await,
        };
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let session = gateway.session().await;
        let call = request("mine", "tools/call", json!({ "name": "x", "arguments": {} }));
        let mut called = session.post(call.to_string()).await;
        called.message().await;
        let params = json!({ "requestId": "mine", "reason": "enough" });
        let cancel = notification("notifications/cancelled", params).to_string();
        assert_eq!(gateway.client().post("/mcp", &session.headers(), cancel).await.status(), 202);
        while let Some(event) = called.event().await {
            assert!(event.data.is_empty(), "no response follows");
        }
        eventually(Duration::from_secs(5), async || backend.abandoned() == 1).await;
        // Closing the stream says it to a stateless backend, which must get no notification.
        let expected = usize::from(era == "legacy");
        eventually(Duration::from_secs(5), async || {
            backend.calls("notifications/cancelled").len() == expected
        })
        .await;
        if let Some(told) = backend.calls("notifications/cancelled").first() {
            let upstream = backend.calls("tools/call")[0].json()["id"].clone();
            assert_eq!(told.json()["params"]["requestId"], upstream);
        }
    }
}

#[tokio::test]
async fn cancelling_what_is_not_in_flight_changes_nothing() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let (session, other) = (gateway.session().await, gateway.session().await);
    let call = json!({ "name": "sleep", "arguments": { "ms": 300 }, "_meta": { "progressToken": 1 } });
    let mut called = session.post(request(7, "tools/call", call).to_string()).await;
    called.message().await;
    for id in [json!(8), json!("7"), json!(null), json!({})] {
        assert_eq!(session.notify("notifications/cancelled", json!({ "requestId": id })).await.status(), 202);
    }
    let of_other = other.notify("notifications/cancelled", json!({ "requestId": 7 })).await;
    assert_eq!(of_other.status(), 202);
    assert_eq!(text(&called.answer().await), "slept 300 ms");
}

#[tokio::test]
async fn r034_progress_has_the_clients_token_rises_and_ends_with_the_response() {
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let session = gateway.session().await;
        for token in [json!("p7"), json!(7), json!("7")] {
            let meta = json!({ "progressToken": token });
            let call = json!({ "name": "sleep", "arguments": { "ms": 300 }, "_meta": meta });
            let messages = session.request("tools/call", call).await.messages().await;
            let (answer, progress) = messages.split_last().unwrap();
            assert_eq!(text(answer), "slept 300 ms");
            let values: Vec<_> = progress
                .iter()
                .map(|message| {
                    assert_eq!(message["method"], "notifications/progress");
                    assert_eq!(message["params"]["progressToken"], token, "{era}");
                    message["params"]["progress"].as_u64().unwrap()
                })
                .collect();
            assert_eq!(values, [0, 1, 2, 3], "{era}");
        }
    }
}

#[tokio::test]
async fn r034_progress_of_no_active_call_is_dropped() {
    let progress = |token: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        )
    };
    let backend = Backend::legacy(json!({ "tools": {} }), move |seen| {
        let own = seen.json()["params"]["_meta"]["progressToken"].to_string();
        let messages = vec![progress("\"stale\""), progress("987654321"), progress(&own)];
        Does::Stream(messages, r#"{"content":[]}"#.to_owned())
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let call = json!({ "name": "x", "arguments": {}, "_meta": { "progressToken": "mine" } });
    let messages = gateway.session().await.request("tools/call", call).await.messages().await;
    let tokens: Vec<_> = messages.iter().filter_map(|m| m["params"].get("progressToken")).collect();
    assert_eq!(tokens, [&json!("mine")]);
}

#[tokio::test]
async fn r107_a_missing_resource_has_the_code_of_the_clients_era() {
    let missing = || json!({ "uri": "demo://missing" });
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let old = gateway.session().await.call("resources/read", missing()).await;
        assert_eq!(old["error"]["code"], -32002, "{era}: {old}");
        assert_eq!(old["error"]["data"]["uri"], "demo://missing");
        let new = gateway.modern().call("resources/read", missing()).await;
        assert_eq!(new["error"]["code"], -32602, "{era}: {new}");
    }
}

#[tokio::test]
async fn r108_results_have_no_members_of_the_other_era() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let session = gateway.session().await;
    for (method, params) in [
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "demo://about" })),
        ("tools/call", json!({ "name": "echo", "arguments": { "message": "x" } })),
        ("prompts/get", json!({ "name": "tour" })),
    ] {
        let answer = session.call(method, params).await;
        for member in ["resultType", "ttlMs", "cacheScope"] {
            assert!(answer["result"].is_object() && answer["result"].get(member).is_none(), "{answer}");
        }
    }
}

#[tokio::test]
async fn r111_equal_ids_and_tokens_of_two_clients_never_mix() {
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let sleep =
            |ms: u64| json!({ "name": "sleep", "arguments": { "ms": ms }, "_meta": { "progressToken": 1 } });
        let call = |ms| request(1, "tools/call", sleep(ms)).to_string();
        let (a, b) = (gateway.session().await, gateway.session().await);
        let (long, short) = tokio::join!(a.post(call(400)), b.post(call(200)));
        let (long, short) = tokio::join!(long.messages(), short.messages());
        assert_eq!((long.len(), short.len()), (6, 4), "{era}");
        assert_eq!(text(&long[5]), "slept 400 ms");
        assert_eq!(text(&short[3]), "slept 200 ms");
        let (a, b) = (gateway.modern(), gateway.modern());
        let (a, b) = (a.body("tools/call", sleep(400)), b.body("tools/call", sleep(200)));
        assert_eq!(a["id"], b["id"]);
        let (one, other) = (gateway.modern(), gateway.modern());
        let (long, short) = tokio::join!(one.post_with(&a, &[]), other.post_with(&b, &[]));
        let (long, short) = tokio::join!(long.messages(), short.messages());
        assert_eq!((long.len(), short.len()), (6, 4), "{era}");
        assert_eq!(text(&long[5]), "slept 400 ms");
        assert_eq!(text(&short[3]), "slept 200 ms");
    }
}

#[tokio::test]
async fn equal_ids_in_flight_on_one_session_are_each_answered() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let call = |ms: u64| {
        let arguments =
            json!({ "name": "sleep", "arguments": { "ms": ms }, "_meta": { "progressToken": "t" } });
        request(1, "tools/call", arguments).to_string()
    };
    let replies = tokio::join!(session.post(call(300)), session.post(call(100)), session.post(call(200)));
    let answers = tokio::join!(replies.0.answer(), replies.1.answer(), replies.2.answer());
    assert_eq!(text(&answers.0), "slept 300 ms");
    assert_eq!(text(&answers.1), "slept 100 ms");
    assert_eq!(text(&answers.2), "slept 200 ms");
    assert!([&answers.0, &answers.1, &answers.2].iter().all(|answer| answer["id"] == 1));
}

#[tokio::test]
async fn log_levels_are_the_sessions_own() {
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let (loud, quiet) = (gateway.session().await, gateway.session().await);
        loud.call("logging/setLevel", json!({ "level": "debug" })).await;
        quiet.call("logging/setLevel", json!({ "level": "error" })).await;
        let log = json!({ "name": "log", "arguments": { "message": "hello", "level": "info" } });
        let heard = loud.request("tools/call", log.clone()).await.messages().await;
        assert_eq!(heard.len(), 2, "{era}: {heard:?}");
        assert_eq!(heard[0]["params"]["data"], "hello");
        assert_eq!(quiet.request("tools/call", log).await.messages().await.len(), 1, "{era}");
    }
}

#[tokio::test]
async fn a_failed_backend_is_an_error_that_says_so_and_not_where_it_is() {
    let demo = DemoBackend::start().await;
    let address = demo.url.clone();
    let gateway = Gateway::setup().url("demo", &demo.url, "legacy").start().await;
    let session = gateway.session().await;
    session.tool("echo", json!({ "message": "x" })).await;
    demo.stop();
    let answer = session.tool("echo", json!({ "message": "x" })).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    let port = address.rsplit(':').next().unwrap().split('/').next().unwrap();
    assert!(!answer.to_string().contains(port), "{answer}");
}

#[tokio::test]
async fn r094_notifications_carry_no_subscription_id() {
    let note = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":5,"x":1}}}"#;
    let backend = Backend::legacy(json!({ "tools": {} }), move |_| {
        Does::Stream(vec![note.to_owned()], r#"{"content":[]}"#.to_owned())
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let messages =
        gateway.session().await.request("tools/call", json!({ "name": "x" })).await.messages().await;
    let changed = messages.iter().find(|m| m["method"] == "notifications/tools/list_changed").unwrap();
    assert_eq!(changed["params"]["_meta"], json!({ "x": 1 }));
}

#[tokio::test]
async fn a_list_that_depends_on_capabilities_is_never_served_to_another_client() {
    let script = |seen: &Seen| match seen.rpc().as_str() {
        "tools/list" => {
            // Which session asks is what tells the backend whose list it is.
            let session = seen.header("mcp-session-id").unwrap_or("none").to_owned();
            Does::result(&json!({ "tools": [{ "name": session, "inputSchema": { "type": "object" } }] }))
        }
        _ => text_result("done"),
    };
    let backend = Backend::legacy(json!({ "tools": {} }), script).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let mut owners = Vec::new();
    for capabilities in [json!({}), json!({ "sampling": {} }), json!({ "elicitation": {} })] {
        let session = Session::open(&gateway.client(), "/mcp", LEGACY, capabilities.clone()).await;
        let list = session.call("tools/list", json!({})).await;
        let owner = list["result"]["tools"][0]["name"].as_str().unwrap().to_owned();
        let number: usize = owner[1..].parse().unwrap();
        let handshake = &backend.calls("initialize")[number];
        assert_eq!(handshake.json()["params"]["capabilities"], capabilities, "{owner}");
        owners.push(owner);
    }
    owners.dedup();
    assert_eq!(owners.len(), 3);
}
