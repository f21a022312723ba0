//! What the gateway counts, and the page that explains it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, legacy, modern};
use drawbridge_testkit::client::{Client, Modern, Session, request};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{DemoBackend, Gateway, binary, command};
use serde_json::json;

const SOON: Duration = Duration::from_secs(10);

/// What `/metrics` of a listener prints.
pub(crate) async fn shown(listener: &str) -> String {
    let reply = Client::new(listener).get("/metrics", &[]).await;
    assert_eq!(reply.status(), 200);
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    reply.text().await
}

/// The value of a series, written as in the text; 0 if it is not there.
pub(crate) fn value(text: &str, series: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn requests_are_counted_by_what_became_of_them() {
    let backend = Backend::start(|r| async move {
        match (r.rpc(), r.name()) {
            ("tools/call", "fails") => {
                Reply::result(&r, json!({ "content": [], "isError": true, "resultType": "complete" }))
            }
            ("tools/call", "errs") => Reply::error(&r, 200, -32602, "no"),
            _ => modern(&r),
        }
    })
    .await;
    let dead = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let dead_url = dead.url();
    dead.stop().await;
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("one", &backend.url(), "modern").url("dead", &dead_url, "legacy");
    let gateway = setup.url("demo", &demo.url, "modern").config("limits: { max_streams: 1 }").start().await;
    let one = Modern::new(&gateway.client(), "/mcp/one", json!({}));
    let call = async |name| one.call("tools/call", json!({ "name": name, "arguments": {} })).await;
    for name in ["works", "works", "fails", "errs"] {
        call(name).await;
    }
    one.call("made/up", json!({})).await;
    let down = Modern::new(&gateway.client(), "/mcp/dead", json!({}));
    assert!(down.call("tools/call", json!({ "name": "x" })).await["error"].is_object());
    // One that nobody waits for, and one that can't have a stream meanwhile.
    let demo = Modern::new(&gateway.client(), "/mcp/demo", json!({}));
    let mut listening = demo.request("subscriptions/listen", json!({ "notifications": {} })).await;
    assert!(listening.event().await.is_some());
    let refused = demo.request("subscriptions/listen", json!({ "notifications": {} })).await;
    assert_eq!(refused.status(), 503);
    let text = shown(&gateway.admin).await;
    assert_eq!(value(&text, r#"drawbridge_open_streams{kind="listen"}"#), 1.0, "{text}");
    drop(listening);
    // A client without a session, and one with one that is over.
    let session = Session::open(&gateway.client(), "/mcp/one", "2025-11-25", json!({})).await;
    assert!(session.tool("works", json!({})).await["result"].is_object());
    let text = shown(&gateway.admin).await;
    assert_eq!(value(&text, "drawbridge_sessions"), 1.0, "{text}");
    session.delete().await;
    let gone = session.post(request(7, "tools/call", json!({ "name": "works" })).to_string()).await;
    assert_eq!(gone.status(), 404);

    let counted = |text: &str, endpoint: &str, method: &str, era: &str, outcome: &str| {
        let labels = format!(r#"endpoint="{endpoint}",method="{method}",era="{era}",outcome="{outcome}""#);
        value(text, &format!("drawbridge_requests_total{{{labels}}}"))
    };
    let listens = |text: &str, outcome| counted(text, "demo", "subscriptions/listen", "modern", outcome);
    eventually(SOON, async || listens(&shown(&gateway.admin).await, "cancelled") == 1.0).await;
    let text = shown(&gateway.admin).await;
    assert_eq!(listens(&text, "refused"), 1.0, "{text}");
    for (endpoint, method, era, outcome, count) in [
        ("one", "tools/call", "modern", "ok", 2.0),
        ("one", "tools/call", "modern", "tool_error", 1.0),
        ("one", "tools/call", "modern", "rpc_error", 1.0),
        ("one", "other", "modern", "rpc_error", 1.0),
        ("dead", "tools/call", "modern", "unavailable", 1.0),
        ("one", "initialize", "legacy", "ok", 1.0),
        ("one", "tools/call", "legacy", "ok", 1.0),
        ("one", "tools/call", "legacy", "refused", 1.0),
    ] {
        let found = counted(&text, endpoint, method, era, outcome);
        assert_eq!(found, count, "{endpoint} {method} {era} {outcome} in\n{text}");
    }
    let duration = r#"endpoint="one",method="tools/call",era="modern""#;
    assert_eq!(value(&text, &format!("drawbridge_request_duration_seconds_count{{{duration}}}")), 4.0);
    assert!(!text.contains(r#"drawbridge_request_duration_seconds_count{endpoint="demo",method="subscr"#));
    for (series, count) in [
        (r#"drawbridge_backend_requests_total{backend="one",outcome="tool_error"}"#, 1.0),
        (r#"drawbridge_backend_requests_total{backend="dead",outcome="unavailable"}"#, 1.0),
        (r#"drawbridge_backend_up{backend="one"}"#, 1.0),
        (r#"drawbridge_backend_up{backend="dead"}"#, 0.0),
        (r#"drawbridge_http_responses_total{status="503"}"#, 1.0),
        (r#"drawbridge_http_responses_total{status="404"}"#, 2.0),
        (r#"drawbridge_open_streams{kind="listen"}"#, 0.0),
        ("drawbridge_in_flight_requests", 0.0),
    ] {
        assert!(text.contains(&format!("{series} ")), "{series} is not in\n{text}");
        assert_eq!(value(&text, series), count, "{series} in\n{text}");
    }
}

#[tokio::test]
async fn processes_are_counted() {
    let settings = format!("{{ command: \"{}\", args: [demo-server, --stdio] }}", binary().display());
    let gateway = Gateway::setup().backend("demo", &settings).start().await;
    let text = shown(&gateway.admin).await;
    assert!(text.contains(r#"drawbridge_backend_processes{backend="demo"} 0"#), "{text}");
    let client = gateway.modern();
    assert!(client.tool("echo", json!({ "text": "x" })).await["result"].is_object());
    let text = shown(&gateway.admin).await;
    assert_eq!(value(&text, r#"drawbridge_backend_processes{backend="demo"}"#), 1.0, "{text}");
    assert_eq!(value(&text, r#"drawbridge_backend_process_starts_total{backend="demo"}"#), 1.0, "{text}");
}

/// A family as it stands on the page or in the text: its type and its labels.
type Family = (String, BTreeSet<String>);

fn documented(page: &str) -> BTreeMap<String, Family> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(str::trim).map(str::to_owned).collect();
    let rows = page.lines().filter(|line| line.starts_with("| `drawbridge_"));
    rows.map(|row| {
        let cells: Vec<String> = cells(row);
        let labels = cells[2].split(['`', ',', ' ']).filter(|label| !label.is_empty()).map(str::to_owned);
        (cells[0].trim_matches('`').to_owned(), (cells[1].clone(), labels.collect()))
    })
    .collect()
}

fn printed(text: &str) -> BTreeMap<String, Family> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let types = types.filter_map(|line| line.split_once(' ')).filter(|(name, _)| name.starts_with("drawb"));
    types
        .map(|(name, kind)| {
            let mut labels = BTreeSet::new();
            for line in text.lines().filter(|line| line.starts_with(name)) {
                let inside = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
                let inside = inside.map_or("", |(inside, _)| inside);
                labels.extend(inside.split(',').filter_map(|l| Some(l.split_once('=')?.0.to_owned())));
            }
            labels.remove("le");
            (name.to_owned(), (kind.to_owned(), labels))
        })
        .collect()
}

#[tokio::test]
async fn the_page_on_metrics_has_all_that_is_shown() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let program = format!("{{ command: \"{}\", args: [demo-server, --stdio] }}", binary().display());
    let setup = Gateway::setup().url("one", &backend.url(), "modern").backend("demo", &program);
    let gateway = setup.config("database: { url: \"sqlite:records.db\" }").start().await;
    gateway.modern().call("tools/list", json!({})).await;
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (known, text) = (documented(&page), shown(&gateway.admin).await);
    let mut seen = printed(&text);
    // What only a gateway has that asks who calls.
    let asking = Gateway::setup().config("auth: { mode: tokens }").start().await;
    seen.extend(printed(&shown(&asking.admin).await));
    assert!(seen.len() > 15, "{text}");
    for (name, family) in &seen {
        assert_eq!(known.get(name), Some(family), "{name}");
    }
    // What only a gateway with Redis has, or with a backend that is shown a certificate.
    let missing: Vec<&String> = known.keys().filter(|name| !seen.contains_key(*name)).collect();
    let elsewhere = ["_redis_", "_bus_", "_client_certificate_"];
    assert!(missing.iter().all(|name| elsewhere.iter().any(|part| name.contains(part))), "{missing:?}");
    for bucket in page.lines().filter_map(|line| line.strip_prefix("Buckets of calls, in seconds: ")) {
        let bounds =
            text.lines().filter(|line| line.starts_with("drawbridge_request_duration_seconds_bucket"));
        let bounds = bounds.filter_map(|line| line.split("le=\"").nth(1)?.split('"').next());
        let bounds: Vec<&str> = bounds.take_while(|bound| *bound != "+Inf").collect();
        assert_eq!(bucket.trim_end_matches('.'), bounds.join(", "));
    }
}

#[tokio::test]
async fn probes_listener_shows_metrics_too() {
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("c.yaml"), "admin: { probes: \"127.0.0.1:0\" }\n").unwrap();
    let mut command = command();
    command.args(["serve", "--config", "c.yaml", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    command.current_dir(dir.path());
    let (_program, addresses) =
        drawbridge_testkit::gateway::Program::start(command, &["public", "probes"]).await;
    let public = Client::new(&addresses[0]).get("/metrics", &[]).await;
    assert_eq!(public.status(), 404);
    let text = shown(&addresses[1]).await;
    assert!(
        text.contains("drawbridge_build_info{version=\"") && text.contains("process_open_fds "),
        "{text}"
    );
}
