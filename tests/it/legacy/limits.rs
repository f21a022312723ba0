//! Bounds, and clients that mean harm.

use std::time::Duration;

use drawbridge_testkit::client::{LEGACY, Modern, Session, header_map, initialize, request, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use futures_util::StreamExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;

use super::in_front_of_demo;
use crate::backend::{Backend, Does, Seen};

async fn limited(limits: &str) -> (Gateway, DemoBackend) {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("demo", &demo.url, "legacy");
    (setup.config(&format!("limits: {{ {limits} }}")).start().await, demo)
}

#[tokio::test]
async fn a_body_over_the_cap_is_refused_with_413() {
    let (gateway, _demo) = limited("max_body_bytes: 10KiB").await;
    let session = gateway.session().await;
    let body = |size: usize| {
        let echo = json!({ "name": "echo", "arguments": { "message": "x".repeat(size) } });
        request(1, "tools/call", echo).to_string()
    };
    assert_eq!(session.post(body(9000)).await.status(), 200);
    assert_eq!(session.post(body(11_000)).await.status(), 413);
    // Without a length, too.
    let head = "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let mut raw = head.as_bytes().to_vec();
    raw.extend_from_slice(format!("4000\r\n{}\r\n0\r\n\r\n", "x".repeat(0x4000)).as_bytes());
    let answer = gateway.client().raw(&raw, Duration::from_secs(5)).await;
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn a_client_that_declares_more_than_64_kib_of_itself_is_refused() {
    let backend = Backend::legacy(json!({ "tools": {} }), |_| Does::result(&json!({ "content": [] }))).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let declares = |bytes: usize| json!({ "experimental": { "x": { "y": "z".repeat(bytes) } } });
    let open = async |body: serde_json::Value| gateway.client().post("/mcp", &[], body.to_string()).await;
    let mut by_info = initialize(LEGACY, json!({}));
    by_info["params"]["clientInfo"]["title"] = json!("z".repeat(66_000));
    // Each is within the bound, and both are not.
    let mut together = initialize(LEGACY, declares(40_000));
    together["params"]["clientInfo"]["title"] = json!("z".repeat(40_000));
    for body in [initialize(LEGACY, declares(66_000)), by_info, together] {
        let refused = open(body).await;
        assert_eq!((refused.status(), refused.header("mcp-session-id")), (400, None));
        assert_eq!(refused.json().await["error"]["code"], -32602);
    }
    assert_eq!(backend.seen().len(), 0, "a backend hears nothing of it");
    let fits = open(initialize(LEGACY, declares(60_000))).await;
    assert_eq!(fits.status(), 200);

    let modern = Modern::new(&gateway.client(), "/mcp", declares(66_000));
    let refused = modern.request("tools/list", json!({})).await;
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.json().await["error"]["code"], -32602);
    let info = json!({ "name": "x", "version": "1", "title": "z".repeat(66_000) });
    let meta = json!({ "_meta": { "io.modelcontextprotocol/clientInfo": info } });
    assert_eq!(gateway.modern().request("tools/list", meta).await.status(), 400);
    let modern = Modern::new(&gateway.client(), "/mcp", declares(60_000));
    assert_eq!(modern.request("tools/list", json!({})).await.status(), 200);
}

#[tokio::test]
async fn a_header_section_over_the_cap_is_refused_with_431() {
    let (gateway, _demo) = limited("max_header_bytes: 16KiB").await;
    let request = |size: usize| {
        let padding = "x".repeat(size);
        format!("GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx-padding: {padding}\r\nconnection: close\r\n\r\n")
    };
    let fits = gateway.client().raw(request(8_000).as_bytes(), Duration::from_secs(5)).await;
    assert!(fits.starts_with(b"HTTP/1.1 405"), "{}", String::from_utf8_lossy(&fits));
    let over = gateway.client().raw(request(40_000).as_bytes(), Duration::from_secs(5)).await;
    assert!(over.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&over));
}

#[tokio::test]
async fn streams_over_the_limit_are_refused_with_503_and_retry_after() {
    let (gateway, _demo) = limited("max_streams: 2").await;
    let (one, two, three) = (gateway.session().await, gateway.session().await, gateway.session().await);
    let (first, _second) = (one.get(None).await, two.get(None).await);
    let refused = three.get(None).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.json().await["error"]["data"]["code"], "busy");
    assert_eq!(text(&three.tool("echo", json!({ "message": "x" })).await), "x", "calls go on");
    drop(first);
    eventually(Duration::from_secs(5), async || three.get(None).await.status() == 200).await;
}

#[tokio::test]
async fn a_call_that_would_need_a_stream_over_the_limit_is_answered_without_one_and_runs_once() {
    let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    let ask = r#"{"jsonrpc":"2.0","id":"e1","method":"roots/list","params":{}}"#;
    for era in ["legacy", "modern"] {
        let script = move |_: &Seen| {
            let result = json!({ "content": [{ "type": "text", "text": "done" }] }).to_string();
            Does::Holds(vec![note.to_owned(), ask.to_owned()], "answer", result)
        };
        let backend = match era {
            "legacy" => Backend::legacy(json!({ "tools": {} }), script).await,
            _ => Backend::modern(json!({ "tools": {} }), script).await,
        };
        let setup = Gateway::setup().url("it", &backend.url, era);
        let setup = setup.config("streams: { sse_after: 50ms }");
        let gateway = setup.config("limits: { max_streams: 1 }").start().await;
        let session = Session::open(&gateway.client(), "/mcp", LEGACY, json!({ "roots": {} })).await;
        let _only = session.get(None).await;
        let modern = gateway.modern();
        let calls = async {
            tokio::join!(
                session.request("tools/call", json!({ "name": "x" })),
                modern.request("tools/call", json!({ "name": "x" }))
            )
        };
        let release = async {
            eventually(Duration::from_secs(5), async || {
                let refused = |s: &Seen| s.json()["id"] == "e1" && s.json()["error"].is_object();
                backend.holding() == 2
                    && (era == "modern" || backend.seen().iter().filter(|s| refused(s)).count() == 2)
            })
            .await;
            backend.release("answer");
        };
        let ((old, new), ()) = tokio::join!(calls, release);
        for reply in [old, new] {
            assert_eq!((reply.status(), reply.is_stream()), (200, false), "{era}");
            assert_eq!(text(&reply.answer().await), "done");
        }
        assert_eq!(backend.calls("tools/call").len(), 2, "{era}");
    }
}

#[tokio::test]
async fn sessions_over_the_limit_are_refused_with_503_while_all_are_in_use() {
    let (gateway, _demo) = limited("max_sessions: 2").await;
    let (one, two) = (gateway.session().await, gateway.session().await);
    let opened = gateway.client().post("/mcp", &[], initialize(LEGACY, json!({})).to_string()).await;
    let three = opened.header("mcp-session-id").unwrap().to_owned();
    let (first, _second) = (one.get(None).await, two.get(None).await);
    // A ping leaves nothing to be kept; a list does.
    let list = || request(1, "tools/list", json!({})).to_string();
    let refused = gateway.client().post("/mcp", &[("mcp-session-id", three.as_str())], list()).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.header("retry-after").is_some());
    drop(first);
    eventually(Duration::from_secs(5), async || {
        let headers = [("mcp-session-id", three.as_str())];
        gateway.client().post("/mcp", &headers, list()).await.status() == 200
    })
    .await;
}

#[tokio::test]
async fn requests_over_the_limit_are_refused_with_503() {
    let (gateway, _demo) = limited("max_in_flight: 2").await;
    let session = gateway.session().await;
    let sleep = || async {
        let call = json!({ "name": "sleep", "arguments": { "ms": 700 } });
        session.request("tools/call", call).await.status()
    };
    let (a, b, c) = tokio::join!(sleep(), sleep(), sleep());
    let mut statuses = [a, b, c];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503]);
}

#[tokio::test]
async fn a_request_that_waits_behind_a_stream_does_not_hold_the_stream_back() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let session = gateway.session().await;
    let post = |body: &str| {
        format!(
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nmcp-session-id: {}\r\n\
             content-length: {}\r\n\r\n{body}",
            session.id,
            body.len()
        )
    };
    let slow = json!({ "name": "sleep", "arguments": { "ms": 3000 }, "_meta": { "progressToken": 1 } });
    let first = post(&request(1, "tools/call", slow).to_string());
    let second = post(&request(2, "ping", json!({})).to_string());
    let both = format!("{first}{second}");
    let answer = gateway.client().raw(both.as_bytes(), Duration::from_millis(1000)).await;
    let answer = String::from_utf8_lossy(&answer);
    // Events came one by one, so the line was never silent for a second, and the second answer follows.
    assert!(answer.contains("slept 3000 ms"), "{answer}");
    assert!(answer.contains(r#""id":2,"result":{}"#), "{answer}");
}

#[tokio::test]
async fn a_client_that_sends_its_headers_too_slowly_does_not_hold_others_up() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = tokio::net::TcpStream::connect(gateway.address()).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"POST /mcp HTTP/1.1\r\nhost: 127").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(text(&gateway.session().await.tool("echo", json!({ "message": "x" })).await), "x");
}

/// Damages a well-formed request in some way.
fn damage(body: &str, random: &mut StdRng) -> Vec<u8> {
    let mut bytes = body.as_bytes().to_vec();
    for _ in 0..random.random_range(1..4) {
        if bytes.is_empty() {
            break;
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..6) {
            0 => bytes[at] = random.random(),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, *b"{}[]\",:\\0en\xff".get(random.random_range(0..12)).unwrap()),
            3 => bytes.truncate(at),
            4 => {
                let piece = bytes[at..].to_vec();
                bytes.extend_from_slice(&piece);
            }
            _ => bytes.splice(at..at, "[".repeat(random.random_range(1..2000)).into_bytes()).for_each(drop),
        }
    }
    bytes
}

#[tokio::test]
async fn ten_thousand_malformed_requests_leave_the_gateway_serving_and_no_larger() {
    let backend = Backend::legacy(json!({ "tools": {} }), |_| Does::result(&json!({ "content": [] }))).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let client = gateway.client();
    let session = gateway.session().await;
    let modern = gateway.modern();
    let seed: u64 = rand::random();
    let storm = async |count: u64, first: u64| {
        let requests = (0..count).map(|n| {
            let (session, client, modern) = (&session, &client, &modern);
            async move {
                let mut random = StdRng::seed_from_u64(seed.wrapping_add(first + n));
                let meta = json!({ "progressToken": n });
                let params = json!({ "name": "x", "arguments": { "a": [1, "ü"] }, "_meta": meta });
                let (body, mut headers) = match n % 4 {
                    0 => (initialize(LEGACY, json!({ "roots": {} })), Vec::new()),
                    1 => (request(n, "tools/call", params), session.headers().to_vec()),
                    2 => (
                        modern.body("tools/call", params),
                        vec![("mcp-method", "tools/call"), ("mcp-name", "x")],
                    ),
                    _ => (modern.body("tools/list", json!({})), vec![("mcp-protocol-version", "2026-07-28")]),
                };
                headers.push(("content-type", "application/json"));
                headers.push(("accept", "application/json, text/event-stream"));
                let body = damage(&body.to_string(), &mut random);
                let map = header_map(&headers);
                let reply = client.send(http::Method::POST, "/mcp", &map, body).await;
                let status = reply.status();
                drop(reply);
                assert!(status < 500 || status == 503, "status {status}, seed {seed}, request {}", first + n);
            }
        });
        futures_util::stream::iter(requests).buffer_unordered(32).collect::<Vec<()>>().await;
    };
    storm(1_000, 0).await;
    let before = gateway.program.resident_bytes();
    storm(9_000, 1_000).await;
    let grown = gateway.program.resident_bytes().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes, seed {seed}");
    let fresh = Session::open(&client, "/mcp", LEGACY, json!({})).await;
    assert!(fresh.tool("x", json!({})).await["result"].is_object());
    assert!(gateway.modern().tool("x", json!({})).await["result"].is_object());
}
