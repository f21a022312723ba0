//! The end of a gateway: in order, in a hurry, by force.

use std::time::{Duration, Instant};

use drawbridge_testkit::backend::{Backend, legacy};
use drawbridge_testkit::client::{Client, Session, header_map, request, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::Gateway;
use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::backends::{Either, in_front_of, spawn};
use crate::stdio::{Python, all_gone, runs};

/// A backend with sessions whose tool `wait` waits for `gate`.
async fn waiting(gate: &CancellationToken) -> Backend {
    let gate = gate.clone();
    Backend::start(move |r| {
        let gate = gate.clone();
        async move {
            if r.name() == "wait" {
                gate.cancelled().await;
            }
            legacy(&r, "s")
        }
    })
    .await
}

async fn probe(gateway: &Client, path: &str) -> (u16, Value) {
    let reply = gateway.get(path, &[("accept", "*/*")]).await;
    (reply.status(), reply.json().await)
}

/// Calls a tool, whose answer may not come.
async fn try_tool(session: &Session, tool: &str) {
    let body = request(session.next_id(), "tools/call", json!({ "name": tool, "arguments": {} }));
    let mut headers =
        vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    headers.extend(session.headers());
    let headers = header_map(&headers);
    let sent = session.client.try_send(Method::POST, &session.path, &headers, body.to_string().into());
    if let Ok(mut reply) = sent.await {
        reply.reads(Duration::from_secs(10), |_| false).await;
    }
}

/// All processes below `pid`.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        at += 1;
    }
    found.split_off(1)
}

#[tokio::test]
async fn a_running_call_is_answered_before_the_gateway_ends() {
    // With a head that was sent before the signal, and with one that was not.
    for sse_after in ["20ms", "30s"] {
        let gate = CancellationToken::new();
        let backend = waiting(&gate).await;
        let mut gateway = in_front_of(&backend, "", &format!("streams: {{ sse_after: {sse_after} }}")).await;
        let clients = Either::both(&gateway).await;
        let calls = clients.map(|client| spawn(async move { client.tool("wait").await }));
        backend.wait_for_nth("tools/call", 2).await;
        gateway.program.signal(Signal::TERM);
        eventually(Duration::from_secs(5), async || gateway.program.stderr().contains("draining")).await;
        assert!(runs(gateway.program.pid()));
        gate.cancel();
        for call in calls {
            assert_eq!(text(&call.await.unwrap()), "ok");
        }
        let status = gateway.program.ended().await;
        assert_eq!(status.code(), Some(0), "{}", gateway.program.stderr());
        // A session that is over is ended at the backend.
        assert!(backend.count("DELETE") >= 1);
    }
}

#[tokio::test]
async fn a_running_call_of_a_program_is_answered_and_the_program_ended_in_order() {
    let python = Python::new(&[]);
    let mut gateway = python.behind("", "").await;
    let session = gateway.session().await;
    let (other, file) = (session.clone(), python.file());
    let call = spawn(async move { other.tool("wait", json!({ "file": file })).await });
    python.got_call("wait").await;
    let below = descendants(gateway.program.pid());
    assert!(below.len() >= 2, "a guard and the program: {below:?}");
    gateway.program.signal(Signal::TERM);
    eventually(Duration::from_secs(5), async || gateway.program.stderr().contains("draining")).await;
    python.go();
    assert_eq!(text(&call.await.unwrap()), "done");
    assert_eq!(gateway.program.ended().await.code(), Some(0));
    all_gone(&below).await;
    let ends: Vec<_> =
        python.record().into_iter().map(|(kind, ..)| kind).filter(|k| k == "eof" || k == "term").collect();
    assert_eq!(ends, ["eof"], "R041: closing its stdin was enough");
}

#[tokio::test]
async fn r041_a_program_that_ignores_everything_is_killed_after_its_grace() {
    let python = Python::new(&[("STUBBORN", "1")]);
    let mut gateway = python.behind("stop_grace: 300ms", "").await;
    let session = gateway.session().await;
    let pids: Vec<u32> = serde_json::from_str(text(&session.tool("fork", json!({})).await)).unwrap();
    assert!(pids.iter().all(|pid| runs(*pid)), "{pids:?}");
    let below = descendants(gateway.program.pid());
    gateway.program.signal(Signal::TERM);
    assert_eq!(gateway.program.ended().await.code(), Some(0));
    all_gone(&pids).await;
    all_gone(&below).await;
    let ends: Vec<_> =
        python.record().into_iter().map(|(kind, ..)| kind).filter(|k| k == "eof" || k == "term").collect();
    assert_eq!(ends, ["eof", "term"], "stdin, SIGTERM, and then SIGKILL");
}

#[tokio::test]
async fn a_killed_gateway_leaves_no_process_not_even_one_that_left_its_session() {
    let (old, new) = (Python::new(&[("STUBBORN", "1")]), Python::new(&[("ERA", "modern")]));
    let mut gateway =
        Gateway::setup().backend("old", &old.settings("")).backend("new", &new.settings("")).start().await;
    let session = gateway.session().await;
    let mut pids = Vec::new();
    for tool in ["old__fork", "new__fork"] {
        let answer = session.tool(tool, json!({})).await;
        pids.extend(serde_json::from_str::<Vec<u32>>(text(&answer)).unwrap());
    }
    assert_eq!(pids.len(), 8);
    assert!(pids.iter().all(|pid| runs(*pid)), "{pids:?}");
    let below = descendants(gateway.program.pid());
    gateway.program.signal(Signal::KILL);
    gateway.program.ended().await;
    all_gone(&pids).await;
    all_gone(&below).await;
}

#[tokio::test]
async fn a_draining_gateway_is_alive_and_not_ready() {
    let gate = CancellationToken::new();
    let backend = waiting(&gate).await;
    let mut gateway = in_front_of(&backend, "", "").await;
    let admin = Client::new(&gateway.admin);
    assert_eq!(probe(&admin, "/healthz").await, (200, json!({ "status": "ok" })));
    assert_eq!(probe(&admin, "/readyz").await, (200, json!({ "status": "ready" })));
    let session = gateway.session().await;
    let mut standalone = session.get(None).await;
    let other = session.clone();
    let call = spawn(async move { other.tool("wait", json!({})).await });
    backend.wait_for("tools/call").await;
    gateway.program.signal(Signal::TERM);
    eventually(Duration::from_secs(5), async || probe(&admin, "/readyz").await.0 == 503).await;
    let (_, why) = probe(&admin, "/readyz").await;
    assert_eq!(why["reasons"], json!(["draining"]));
    assert_eq!(probe(&admin, "/healthz").await.0, 200);
    // The stream that belongs to no call ends, so that the client goes elsewhere; new connections are refused.
    while let Some(event) = standalone.event().await {
        assert!(event.data.is_empty());
    }
    eventually(Duration::from_secs(5), async || {
        tokio::net::TcpStream::connect(gateway.address()).await.is_err()
    })
    .await;
    gate.cancel();
    assert_eq!(text(&call.await.unwrap()), "ok");
    assert_eq!(gateway.program.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_call_that_does_not_end_holds_the_gateway_up_for_no_longer_than_the_deadline() {
    let gate = CancellationToken::new();
    let (backend, python) = (waiting(&gate).await, Python::new(&[]));
    let mut gateway = Gateway::setup()
        .url("http", &backend.url(), "auto")
        .backend("stdio", &python.settings(""))
        .config("drain: { deadline: 400ms }")
        .start()
        .await;
    let session = gateway.session().await;
    for tool in ["http__wait", "stdio__hang"] {
        let session = session.clone();
        spawn(async move { try_tool(&session, tool).await });
    }
    backend.wait_for("tools/call").await;
    python.got_call("hang").await;
    let below = descendants(gateway.program.pid());
    let started = Instant::now();
    gateway.program.signal(Signal::TERM);
    assert_eq!(gateway.program.ended().await.code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    all_gone(&below).await;
}

#[tokio::test]
async fn a_second_signal_cuts_the_waiting_short() {
    for second in [Signal::TERM, Signal::INT] {
        let gate = CancellationToken::new();
        let backend = waiting(&gate).await;
        let mut gateway = in_front_of(&backend, "", "drain: { deadline: 1h }").await;
        let session = gateway.session().await;
        let call = spawn(async move { try_tool(&session, "wait").await });
        backend.wait_for("tools/call").await;
        gateway.program.signal(Signal::TERM);
        eventually(Duration::from_secs(5), async || gateway.program.stderr().contains("draining")).await;
        let started = Instant::now();
        gateway.program.signal(second);
        assert_eq!(gateway.program.ended().await.code(), Some(0));
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        call.abort();
    }
}

#[tokio::test]
async fn a_second_signal_while_requests_are_still_taken_ends_the_gateway_too() {
    let gate = CancellationToken::new();
    let backend = waiting(&gate).await;
    let mut gateway = in_front_of(&backend, "", "drain: { delay: 1h }").await;
    let session = gateway.session().await;
    let call = spawn(async move { try_tool(&session, "wait").await });
    backend.wait_for("tools/call").await;
    gateway.program.signal(Signal::TERM);
    eventually(Duration::from_secs(5), async || gateway.program.stderr().contains("draining")).await;
    gateway.program.signal(Signal::TERM);
    assert_eq!(gateway.program.ended().await.code(), Some(0));
    call.abort();
}
