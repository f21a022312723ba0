//! How often requests and calls may come: who is told so, how, and when they may come again.

use std::time::{Duration, Instant};

use drawbridge_testkit::backend::{Backend, legacy};
use drawbridge_testkit::client::{Client, Modern, Reply, Session, request};
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::fleet::{Fleet, SEAL, ready};
use drawbridge_testkit::gateway::{Gateway, Setup};
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};

use super::metrics::{shown, value};

async fn backend() -> Backend {
    Backend::start(|r| async move { legacy(&r, "s") }).await
}

fn setup(backend: &Backend, limits: &str) -> Setup {
    Gateway::setup().url("it", &backend.url(), "legacy").config(&format!("limits:\n{limits}"))
}

fn call(id: u64, tool: &str) -> Value {
    request(id, "tools/call", json!({ "name": tool, "arguments": {} }))
}

/// The JSON-RPC error of an answer that says that its call comes too often.
fn limited(answer: &Value) -> &Value {
    let error = &answer["error"];
    assert_eq!(
        (&error["code"], &error["data"]["code"]),
        (&json!(-32603), &json!("rate_limited")),
        "{answer}"
    );
    assert_eq!(error["data"]["retry"], "safe");
    assert!(error["data"]["retry_after"].as_u64().unwrap() > 0, "{answer}");
    error
}

fn retry_after(reply: &Reply) -> u64 {
    reply.header("retry-after").unwrap().parse().unwrap()
}

async fn ping(client: &Client, path: &str) -> Reply {
    client.post(path, &[], request(1, "ping", json!({})).to_string()).await
}

#[tokio::test]
async fn an_endpoint_is_limited_before_bodies_are_read_and_the_others_are_not() {
    let backend = backend().await;
    let limits = "  endpoints: { it: { requests: 60, window: 1h, burst: 2 } }";
    let gateway = setup(&backend, limits).start().await;
    let client = gateway.client();
    for _ in 0..2 {
        assert_eq!(ping(&client, "/mcp/it").await.status(), 200);
    }
    let reply = ping(&client, "/mcp/it").await;
    assert_eq!(reply.status(), 429);
    assert!((59..=60).contains(&retry_after(&reply)), "{reply:?}");
    assert_eq!(reply.json().await["error"], "too_many_requests");
    // The body of this one never comes.
    let head = format!(
        "POST /mcp/it HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n",
        gateway.address()
    );
    let answer = client.raw(head.as_bytes(), Duration::from_secs(1)).await;
    assert!(answer.starts_with(b"HTTP/1.1 429 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(ping(&client, "/mcp").await.status(), 200);
    let metrics = shown(&gateway.admin).await;
    assert_eq!(value(&metrics, r#"drawbridge_limited_total{limit="endpoint"}"#), 2.0, "{metrics}");
}

#[tokio::test]
async fn whoever_waits_as_long_as_was_said_is_let_in() {
    let backend = backend().await;
    let limits = "  endpoints: { /mcp: { requests: 2, window: 3s, burst: 1 } }";
    let gateway = setup(&backend, limits).start().await;
    let client = gateway.client();
    assert_eq!(ping(&client, "/mcp").await.status(), 200);
    let refused = ping(&client, "/mcp").await;
    let since = Instant::now();
    assert_eq!((refused.status(), retry_after(&refused)), (429, 2));
    eventually(PATIENCE, async || ping(&client, "/mcp").await.status() == 200).await;
    let waited = since.elapsed();
    // One comes each one and a half seconds; a refusal in between does not make it later.
    assert!(waited > Duration::from_millis(1200) && waited < Duration::from_millis(1950), "{waited:?}");
}

#[tokio::test]
async fn a_call_that_comes_too_often_is_an_error_of_that_call() {
    let backend = backend().await;
    let limits = "  tools:\n    - { name: \"danger*\", requests: 2, window: 1h }\n    - { name: dangerous, requests: 1, window: 1h }";
    let gateway = setup(&backend, limits).start().await;
    let session = gateway.session().await;
    assert!(session.tool("dangerous", json!({})).await["result"].is_object());
    let reply = session.post(call(7, "dangerous").to_string()).await;
    assert_eq!(reply.status(), 200);
    assert!((3500..=3600).contains(&retry_after(&reply)), "{reply:?}");
    let answer = reply.json().await;
    assert_eq!(answer["id"], 7);
    assert!(limited(&answer)["message"].as_str().unwrap().contains("one tool"), "{answer}");
    // What is refused by one rule counts for none; and the rest is as free as it was.
    assert!(session.tool("danger", json!({})).await["result"].is_object());
    limited(&session.tool("danger-2", json!({})).await);
    assert!(session.tool("harmless", json!({})).await["result"].is_object());
    assert_eq!(session.request("tools/list", json!({})).await.status(), 200);
    // Headers that name something harmless change nothing.
    let headers = [("mcp-session-id", session.id.as_str()), ("mcp-method", "tools/list"), ("mcp-name", "x")];
    let lied = gateway.client().post("/mcp", &headers, call(8, "danger").to_string()).await.json().await;
    limited(&lied);
    assert_eq!(backend.count("tools/call"), 3);
    eventually(PATIENCE, async || gateway.program.stderr().contains("rate_limited")).await;
}

#[tokio::test]
async fn the_headers_of_stateless_clients_tell_before_the_body_is_read() {
    let backend = backend().await;
    let limits = "  tools: [{ name: danger, requests: 1, window: 1h, endpoint: it }]";
    let gateway = setup(&backend, limits).start().await;
    let there = Modern::new(&gateway.client(), "/mcp/it", json!({}));
    let params = json!({ "name": "danger", "arguments": {} });
    assert_eq!(there.request("tools/call", params.clone()).await.status(), 200);
    let reply = there.request("tools/call", params.clone()).await;
    assert_eq!((reply.status(), reply.header("retry-after").is_some()), (429, true));
    assert_eq!(there.request("tools/list", json!({})).await.status(), 200);
    assert_eq!(gateway.modern().request("tools/call", params).await.status(), 200, "another endpoint");
}

#[tokio::test]
async fn each_call_of_a_batch_is_counted_and_answered_by_itself() {
    let backend = backend().await;
    let limits = "  tools: [{ name: danger, requests: 2, window: 1h }]";
    let gateway = setup(&backend, limits).start().await;
    let session = Session::open(&gateway.client(), "/mcp", "2025-03-26", json!({})).await;
    let batch = [
        call(1, "danger"),
        call(2, "fine"),
        call(3, "danger"),
        call(4, "danger"),
        request(5, "ping", json!({})),
    ];
    let answers = session.post(json!(batch).to_string()).await.json().await;
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 5);
    let of = |id: u64| answers.iter().find(|answer| answer["id"] == id).unwrap();
    for id in [1, 2, 3, 5] {
        assert!(of(id)["result"].is_object(), "{answers:?}");
    }
    limited(of(4));
    let all = session.post(json!([call(6, "danger"), call(7, "danger")]).to_string()).await;
    assert_eq!(all.status(), 200);
    let all = all.json().await;
    assert_eq!(all.as_array().unwrap().len(), 2);
    all.as_array().unwrap().iter().for_each(|answer| drop(limited(answer).clone()));
}

/// That the second call of a tool is an error on the stream that was opened `here`, if calls are posted `there`.
async fn is_limited_on_the_stream(here: &Client, there: &Client) {
    let mut stream = here.get("/mcp/sse", &[]).await;
    let path = String::from_utf8(stream.event().await.unwrap().data.to_vec()).unwrap();
    let start = drawbridge_testkit::client::initialize("2024-11-05", json!({})).to_string();
    assert_eq!(there.post(&path, &[], start).await.status(), 202);
    assert_eq!(stream.message().await["id"], 0);
    for id in [1, 2] {
        assert_eq!(there.post(&path, &[], call(id, "danger").to_string()).await.status(), 202);
        let answer = stream.message().await;
        assert_eq!(answer["id"], id);
        if id == 2 {
            limited(&answer);
        }
    }
}

#[tokio::test]
async fn an_open_stream_has_the_error_where_the_answer_would_be() {
    let backend = backend().await;
    let limits = "  tools: [{ name: danger, requests: 1, window: 1h }]";
    let gateway = setup(&backend, limits).start().await;
    is_limited_on_the_stream(&gateway.client(), &gateway.client()).await;
}

/// Two instances with one Redis.
async fn two(limits: &str) -> (Fleet, Backend) {
    let backend = backend().await;
    let fleet = Fleet::start(2, setup(&backend, limits).config("auth: { mode: none }")).await;
    (fleet, backend)
}

#[tokio::test]
async fn instances_count_together_with_one_question_for_each_request() {
    let limits = "  endpoints: { /mcp: { requests: 600, window: 1h } }\n  tools:\n    - { name: danger, requests: 5, window: 1h }\n    - { name: \"d*\", requests: 500, window: 1h }";
    let (fleet, _backend) = two(limits).await;
    let modern = [fleet.modern(0, json!({})), fleet.modern(1, json!({}))];
    let mut statuses = Vec::new();
    let asked = async || {
        let series = r#"drawbridge_redis_command_duration_seconds_count{port="limiter"}"#;
        let [a, b] = [shown(&fleet.gateways[0].admin).await, shown(&fleet.gateways[1].admin).await];
        value(&a, series) + value(&b, series)
    };
    for number in 0..5 {
        let params = json!({ "name": "danger", "arguments": {} });
        statuses.push(modern[number % 2].request("tools/call", params).await.status());
    }
    assert_eq!(statuses, [200; 5]);
    // Its handshake is two requests.
    let session = fleet.session(0, "2025-11-25", json!({})).await;
    limited(&session.tool("danger", json!({})).await);
    let params = json!({ "name": "danger", "arguments": {} });
    assert_eq!(modern[1].request("tools/call", params).await.status(), 429);
    // It is counted a little later. If there had been more, the last one would not be the tenth.
    eventually(PATIENCE, async || (asked().await - 9.0).abs() < 0.1).await;
    assert_eq!(session.request("tools/list", json!({})).await.status(), 200);
    eventually(PATIENCE, async || (asked().await - 10.0).abs() < 0.1).await;
}

#[tokio::test]
async fn a_stream_at_another_instance_has_the_error_too() {
    let (fleet, _backend) = two("  tools: [{ name: danger, requests: 1, window: 1h }]").await;
    is_limited_on_the_stream(&fleet.client(0), &fleet.client(1)).await;
}

#[tokio::test]
async fn without_redis_each_instance_counts_for_itself() {
    let backend = backend().await;
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    let gateway = setup(&backend, "  endpoints: { /mcp: { requests: 3, window: 1h } }")
        .config(SEAL)
        .config(&format!("redis: {{ url: \"redis://127.0.0.1:{}\", timeout: 500ms }}", proxy.port))
        .start()
        .await;
    ready(&gateway).await;
    let client = gateway.client();
    assert_eq!(ping(&client, "/mcp").await.status(), 200);
    proxy.set(Fault::Refuse);
    proxy.cut();
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(ping(&client, "/mcp").await.status());
    }
    assert_eq!(statuses, [200, 200, 200, 429], "what Redis has counted is not known here");
    let metrics = shown(&gateway.admin).await;
    assert!(value(&metrics, "drawbridge_limits_degraded_total") >= 4.0, "{metrics}");
}
