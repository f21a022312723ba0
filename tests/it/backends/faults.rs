//! What backends do wrong, and what becomes of the calls.

use std::time::{Duration, Instant};

use drawbridge_testkit::backend::{Backend, Reply, Request, Stream, legacy, modern, text_result};
use drawbridge_testkit::client::text;
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Either, fault, in_front_of, message, spawn};

fn result_of(request: &Request, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": request.id(), "result": result })
}

#[tokio::test]
async fn r115_a_backend_that_lost_its_session_gets_a_handshake_and_then_the_call_once() {
    let backend = Backend::start(|r| async move { legacy(&r, "one") }).await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let session = gateway.session().await;
    assert_eq!(text(&session.tool("echo", json!({ "text": "first" })).await), "first");

    let backend = backend.restart(|r| async move { legacy(&r, "two") }).await;
    assert_eq!(text(&session.tool("echo", json!({ "text": "second" })).await), "second");
    assert_eq!(backend.count("initialize"), 1);
    let calls = backend.requests_of("tools/call");
    let sessions: Vec<_> = calls.iter().map(|r| r.header("mcp-session-id")).collect();
    assert_eq!(sessions, ["one", "two"], "the old session was refused, the new one got the call once");

    backend.behave(|r| async move { legacy(&r, "three") });
    let modern = gateway.modern();
    assert_eq!(text(&modern.tool("echo", json!({ "text": "third" })).await), "third");
    backend.behave(|r| async move { legacy(&r, "four") });
    assert_eq!(text(&modern.tool("echo", json!({ "text": "fourth" })).await), "fourth");
    let executed = |id: &str| {
        backend.requests_of("tools/call").iter().filter(|r| r.header("mcp-session-id") == id).count()
    };
    assert_eq!((executed("four"), backend.count("initialize")), (1, 3));
}

#[tokio::test]
async fn settings_of_a_session_are_made_again_in_the_one_that_follows() {
    let backend = Backend::start(|r| async move { legacy(&r, "one") }).await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let session = gateway.session().await;
    session.call("logging/setLevel", json!({ "level": "warning" })).await;
    session.call("resources/subscribe", json!({ "uri": "file:///a" })).await;
    session.call("resources/subscribe", json!({ "uri": "file:///b" })).await;
    session.call("resources/unsubscribe", json!({ "uri": "file:///b" })).await;
    backend.behave(|r| async move { legacy(&r, "two") });
    session.tool("echo", json!({})).await;
    let again: Vec<_> = backend
        .requests()
        .into_iter()
        .filter(|r| r.header("mcp-session-id") == "two" && !r.rpc().starts_with("notifications/"))
        .map(|r| (r.rpc().to_owned(), r.body["params"].clone()))
        .collect();
    assert_eq!(again[0], ("logging/setLevel".to_owned(), json!({ "level": "warning" })));
    assert_eq!(again[1], ("resources/subscribe".to_owned(), json!({ "uri": "file:///a" })));
    assert_eq!((again[2].0.as_str(), again.len()), ("tools/call", 3));
}

#[tokio::test]
async fn a_backend_that_hangs_is_given_up_and_the_others_go_on() {
    let hangs = Backend::start(|r| async move {
        match r.rpc() {
            "tools/call" | "tools/list" => std::future::pending().await,
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let works = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let gateway = Gateway::setup()
        .backend(
            "hangs",
            &format!("{{ url: \"{}\", first_byte_timeout: 500ms, list_timeout: 300ms }}", hangs.url()),
        )
        .url("works", &works.url(), "auto")
        .start()
        .await;
    let session = gateway.session().await;
    let (other, started) = (session.clone(), Instant::now());
    let hanging = spawn(async move { other.tool("hangs__echo", json!({})).await });
    hangs.wait_for("tools/call").await;
    assert_eq!(text(&session.tool("works__echo", json!({ "text": "here" })).await), "here");
    let list = session.call("tools/list", json!({})).await;
    let names: Vec<_> = list["result"]["tools"].as_array().unwrap().iter().map(|t| &t["name"]).collect();
    assert_eq!(names, ["works__echo"]);

    let answer = hanging.await.unwrap();
    assert_eq!(fault(&answer), ("backend_timeout", "unsafe"));
    assert!(message(&answer).contains("\"hangs\"") && message(&answer).contains("first_byte_timeout"));
    assert!(started.elapsed() < Duration::from_secs(10));
    // Whoever does not wait any more says so.
    let call = hangs.wait_for("tools/call").await;
    eventually(Duration::from_secs(5), async || {
        let told = hangs.requests_of("notifications/cancelled");
        told.iter().any(|r| r.body["params"]["requestId"] == call.id())
    })
    .await;
}

/// Writes `pieces` with a pause after each that a reader's deadline allows.
async fn drip(stream: Stream, pieces: Vec<String>) {
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    for piece in pieces {
        tick.tick().await;
        stream.raw(piece).await;
    }
}

#[tokio::test]
async fn a_backend_that_drips_is_read_to_its_end() {
    let backend = Backend::start(|r| async move {
        let answer = result_of(&r, text_result("drop by drop")).to_string();
        match r.name() {
            "json" => {
                let (reply, stream) = Reply::open("application/json");
                spawn(drip(
                    stream,
                    answer.as_bytes().chunks(12).map(|c| String::from_utf8(c.to_vec()).unwrap()).collect(),
                ));
                reply
            }
            "stream" => {
                let (reply, stream) = Reply::stream();
                let whole = format!(": a comment\n\ndata: {answer}\n\n");
                spawn(drip(
                    stream,
                    whole.as_bytes().chunks(14).map(|c| String::from_utf8(c.to_vec()).unwrap()).collect(),
                ));
                reply
            }
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy, idle_timeout: 500ms", "").await;
    let session = gateway.session().await;
    let started = Instant::now();
    let (a, b) = tokio::join!(session.tool("json", json!({})), session.tool("stream", json!({})));
    assert_eq!((text(&a), text(&b)), ("drop by drop", "drop by drop"));
    assert!(started.elapsed() > Duration::from_millis(500), "it took longer than the idle timeout");
}

#[tokio::test]
async fn a_backend_that_falls_silent_in_the_middle_is_given_up_after_the_idle_timeout() {
    let backend = Backend::start(|r| async move {
        match r.name() {
            "json" | "stream" => {
                let is_json = r.name() == "json";
                let (reply, stream) = if is_json { Reply::open("application/json") } else { Reply::stream() };
                stream.raw(if is_json { "{\"jsonrpc\":" } else { "data: {\"json" }).await;
                spawn(async move { stream.closed().await });
                reply
            }
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy, idle_timeout: 300ms", "").await;
    for client in Either::both(&gateway).await {
        for tool in ["json", "stream"] {
            let answer = client.tool(tool).await;
            assert_eq!(fault(&answer), ("backend_timeout", "unsafe"), "{tool}");
            assert!(message(&answer).contains("idle_timeout"), "{answer}");
        }
    }
}

async fn broken(r: &Request) -> Option<Reply> {
    let right = result_of(r, text_result("right")).to_string();
    let wrong = json!({ "jsonrpc": "2.0", "id": "another", "result": text_result("wrong") });
    Some(match r.name() {
        "html" => Reply::text(200, "text/html", "<html>Welcome to nginx!</html>"),
        "html-502" => Reply::text(502, "text/html", "<html>Bad Gateway</html>"),
        "junk" => Reply::text(200, "application/json", "{nope"),
        "nothing" => Reply::text(200, "application/json", ""),
        "wrong-id" => Reply::json(&wrong),
        "unauthorized" => Reply::status(401),
        "forbidden" => Reply::text(403, "application/json", "{\"error\":\"access_denied\"}"),
        "broken" => Reply::status(500),
        "accepted" => Reply::status(202),
        streamed => {
            let (reply, stream) =
                if streamed == "mid-body" { Reply::open("application/json") } else { Reply::stream() };
            let half = right[..right.len() / 2].to_owned();
            match streamed {
                "mid-body" => {
                    stream.raw(half).await;
                    stream.cut().await;
                }
                "mid-event" => {
                    stream.raw(format!("data: {half}")).await;
                    stream.cut().await;
                }
                "ended" => drop(stream),
                "half-an-event" => {
                    stream.raw(format!("data: {half}")).await;
                }
                "junk-event" => {
                    stream.raw("data: {nope\n\n").await;
                }
                "wrong-id-event" => {
                    stream.event(&wrong).await;
                }
                _ => return None,
            }
            reply
        }
    })
}

#[tokio::test]
async fn what_a_backend_answers_wrongly_is_an_error_that_says_so_and_the_next_call_works() {
    let faulty = |speaks_modern: bool| async move {
        Backend::start(move |r| async move {
            let special = if r.rpc() == "tools/call" { broken(&r).await } else { None };
            special.unwrap_or_else(|| if speaks_modern { modern(&r) } else { legacy(&r, "s") })
        })
        .await
    };
    let expected = [
        ("html", ("backend_bad_answer", "unsafe"), "text/html"),
        ("html-502", ("backend_bad_answer", "unsafe"), "502"),
        ("junk", ("backend_bad_answer", "unsafe"), ""),
        ("nothing", ("backend_bad_answer", "unsafe"), ""),
        ("wrong-id", ("backend_bad_answer", "unsafe"), ""),
        ("unauthorized", ("backend_refused", "useless"), "401"),
        ("forbidden", ("backend_refused", "useless"), "403"),
        ("broken", ("backend_bad_answer", "unsafe"), "500"),
        ("accepted", ("backend_bad_answer", "unsafe"), ""),
        ("mid-body", ("outcome_unknown", "unsafe"), ""),
        ("mid-event", ("outcome_unknown", "unsafe"), ""),
        ("ended", ("outcome_unknown", "unsafe"), ""),
        ("half-an-event", ("outcome_unknown", "unsafe"), ""),
        ("junk-event", ("backend_bad_answer", "unsafe"), ""),
        ("wrong-id-event", ("outcome_unknown", "unsafe"), ""),
    ];
    for speaks_modern in [false, true] {
        let backend = faulty(speaks_modern).await;
        let gateway = in_front_of(&backend, "", "").await;
        for client in Either::both(&gateway).await {
            for (tool, kind, detail) in expected {
                let before = backend.count("tools/call");
                let answer = client.tool(tool).await;
                assert_eq!(fault(&answer), kind, "{tool} {answer}");
                assert!(message(&answer).contains("\"scripted\""), "{answer}");
                assert!(message(&answer).contains(detail), "{answer}");
                assert_eq!(backend.count("tools/call") - before, 1, "{tool} was sent once");
                assert_eq!(text(&client.tool("echo").await), "ok", "after {tool}");
            }
        }
    }
}

#[tokio::test]
async fn an_error_without_an_id_is_the_answer_to_the_request_that_it_came_for() {
    let backend = Backend::start(|r| async move {
        if r.name() != "refused" {
            return if r.header("mcp-method").is_empty() { legacy(&r, "s") } else { modern(&r) };
        }
        let error = json!({ "code": -32603, "message": "no way", "data": 7 });
        let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
        Reply::text(400, "application/json", body.to_string())
    })
    .await;
    for era in ["legacy", "modern"] {
        let gateway = in_front_of(&backend, &format!("era: {era}"), "").await;
        for client in Either::both(&gateway).await {
            let answer = client.tool("refused").await;
            assert_eq!((message(&answer), &answer["error"]["data"]), ("no way", &json!(7)));
            assert!(answer["id"].is_u64(), "it has the client's id: {answer}");
        }
    }
}

#[tokio::test]
async fn a_backend_that_is_not_there_is_an_error_that_may_be_tried_again() {
    let backend = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let clients = Either::both(&gateway).await;
    for client in &clients {
        assert_eq!(text(&client.tool("echo").await), "ok");
    }
    backend.stop().await;
    for client in &clients {
        let answer = client.tool("echo").await;
        assert_eq!(fault(&answer), ("backend_unreachable", "safe"));
        assert!(message(&answer).contains("refused"), "{answer}");
    }
}

#[tokio::test]
async fn results_over_the_limit_are_an_error_in_json_and_in_a_stream() {
    let backend = Backend::start(|r| async move {
        let large = result_of(&r, text_result(&"x".repeat(300_000)));
        match r.name() {
            "json" => Reply::json(&large),
            "chunked" => {
                let (reply, stream) = Reply::open("application/json");
                spawn(async move { stream.raw(large.to_string()).await });
                reply
            }
            "stream" => {
                let (reply, stream) = Reply::stream();
                spawn(async move { stream.event(&large).await });
                reply
            }
            _ if r.header("mcp-method").is_empty() => legacy(&r, "s"),
            _ => modern(&r),
        }
    })
    .await;
    for era in ["legacy", "modern"] {
        let limits = "limits: { max_result_bytes: 100KiB, max_event_bytes: 100KiB }";
        let gateway = in_front_of(&backend, &format!("era: {era}"), limits).await;
        for client in Either::both(&gateway).await {
            for tool in ["json", "chunked", "stream"] {
                let answer = client.tool(tool).await;
                assert_eq!(fault(&answer), ("result_too_large", "useless"), "{era} {tool}");
                let key = if tool == "stream" { "max_event_bytes" } else { "max_result_bytes" };
                assert!(message(&answer).contains(key), "{answer}");
                assert_eq!(text(&client.tool("echo").await), "ok");
            }
        }
    }
}

#[tokio::test]
async fn results_of_nearly_16_mib_come_through_in_json_and_in_a_stream() {
    const SIZE: usize = (16 << 20) - 1024;
    let backend = Backend::start(|r| async move {
        if r.rpc() != "tools/call" {
            return legacy(&r, "s");
        }
        let (head, tail) = (
            format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"",
                r.id()
            ),
            "\"}]}}",
        );
        let large = [head.as_str(), &"é".repeat(SIZE / 2), tail].concat();
        if r.name() == "json" {
            return Reply::text(200, "application/json", large);
        }
        let (reply, stream) = Reply::stream();
        spawn(async move { stream.raw(format!("data: {large}\n\n")).await });
        reply
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    for client in Either::both(&gateway).await {
        for tool in ["json", "stream"] {
            let answer = client.tool(tool).await;
            assert_eq!(text(&answer).len(), SIZE);
            assert!(text(&answer).chars().all(|c| c == 'é'));
        }
    }
}

#[tokio::test]
async fn a_tool_that_runs_long_keeps_its_stream_alive_and_is_answered() {
    for era in ["legacy", "modern"] {
        let gate = CancellationToken::new();
        let held = gate.clone();
        let backend = Backend::start(move |r| {
            let held = held.clone();
            async move {
                if r.rpc() == "tools/call" {
                    held.cancelled().await;
                }
                if r.header("mcp-method").is_empty() { legacy(&r, "s") } else { modern(&r) }
            }
        })
        .await;
        let streams = "streams: { keep_alive: 50ms, sse_after: 50ms }";
        let gateway = in_front_of(&backend, &format!("era: {era}"), streams).await;
        let params = json!({ "name": "echo", "arguments": { "text": "at last" } });
        let mut replies = [
            gateway.session().await.request("tools/call", params.clone()).await,
            gateway.modern().request("tools/call", params).await,
        ];
        for reply in &mut replies {
            assert!(reply.is_stream());
            let comments = |seen: &[u8]| seen.split(|b| *b == b'\n').filter(|l| l.starts_with(b":")).count();
            assert!(reply.reads(Duration::from_secs(10), |seen| comments(seen) >= 5).await);
        }
        gate.cancel();
        for reply in replies {
            assert_eq!(text(&reply.answer().await), "at last");
        }
        assert_eq!(backend.count("tools/call"), 2);
    }
}

#[tokio::test]
async fn a_connection_that_is_closed_before_an_answer_leaves_the_outcome_unknown_and_nothing_is_sent_again() {
    let backend = Backend::start(|r| async move {
        match r.name() {
            "die" => std::future::pending().await,
            _ if r.header("mcp-method").is_empty() => legacy(&r, "s"),
            _ => modern(&r),
        }
    })
    .await;
    for era in ["legacy", "modern"] {
        let gateway = in_front_of(&backend, &format!("era: {era}"), "").await;
        for client in Either::both(&gateway).await {
            assert_eq!(text(&client.tool("echo").await), "ok");
            let before = backend.requests_of("tools/call").len();
            let call = spawn(async move { client.tool("die").await });
            backend.wait_for_nth("tools/call", before + 1).await;
            backend.cut_connections();
            assert_eq!(fault(&call.await.unwrap()), ("outcome_unknown", "unsafe"));
            assert_eq!(backend.requests_of("tools/call").len(), before + 1);
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let url = elsewhere.url();
    let backend = Backend::start(move |r| {
        let url = url.clone();
        async move {
            match r.rpc() {
                "tools/call" => Reply::status(307).header("location", &url),
                _ if r.header("mcp-method").is_empty() => legacy(&r, "s"),
                _ => modern(&r),
            }
        }
    })
    .await;
    for era in ["legacy", "modern"] {
        let settings = format!("era: {era}, headers: {{ authorization: \"Bearer secret\" }}");
        let gateway = in_front_of(&backend, &settings, "").await;
        for client in Either::both(&gateway).await {
            let answer = client.tool("echo").await;
            assert_eq!(fault(&answer).0, "backend_bad_answer");
            assert!(message(&answer).contains("307"), "{answer}");
        }
    }
    assert!(backend.requests_of("tools/call").iter().all(|r| r.header("authorization") == "Bearer secret"));
    assert_eq!(elsewhere.requests().len(), 0);
}
