//! The configuration changes while the gateway runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drawbridge_testkit::backend::{Backend, legacy, modern};
use drawbridge_testkit::client::{Client, Modern, Session, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{DemoBackend, Gateway, Program, Setup, binary, command};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::metrics::{shown, value};

const SOON: Duration = Duration::from_secs(20);

async fn status(admin: &str) -> Value {
    let reply = Client::new(admin).get("/config/status", &[]).await;
    assert_eq!(reply.status(), 200);
    reply.json().await
}

/// Waits until this many configurations have applied, that of the start included.
async fn applied(gateway: &Gateway, generation: u64) -> Value {
    eventually(SOON, async || status(&gateway.admin).await["generation"] == json!(generation)).await;
    status(&gateway.admin).await
}

async fn refused(gateway: &Gateway) -> Value {
    eventually(SOON, async || status(&gateway.admin).await["last_error"].is_object()).await;
    status(&gateway.admin).await
}

/// The line of the log that says what was applied, for a log in JSON.
fn report(gateway: &Gateway, generation: u64) -> Value {
    let log = gateway.program.stderr();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut lines = lines.filter(|line| line["message"] == "configuration applied");
    lines.find(|line| line["config.generation"] == json!(generation)).unwrap_or_else(|| panic!("{log}"))
}

fn base() -> Setup {
    Gateway::setup().config("log: { format: json }")
}

async fn tools(session: &Session) -> Vec<String> {
    let answer = session.call("tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn what_a_rewritten_file_changes_is_changed_and_the_rest_goes_on() {
    let [one, two, three] = [
        Backend::start(|r| async move { legacy(&r, "s1") }).await,
        Backend::start(|r| async move { legacy(&r, "s2") }).await,
        Backend::start(|r| async move { legacy(&r, "s3") }).await,
    ];
    let first = base().url("one", &one.url(), "legacy").url("two", &two.url(), "legacy");
    let mut gateway = first.config("endpoints: { chosen: { backends: [one] } }").start().await;
    let before = status(&gateway.admin).await;
    assert_eq!((&before["generation"], &before["last_error"]), (&json!(1), &Value::Null), "{before}");

    let alone = Session::open(&gateway.client(), "/mcp/one", "2025-11-25", json!({})).await;
    let all = gateway.session().await;
    alone.tool("echo", json!({ "text": "x" })).await;
    assert!(tools(&all).await.iter().any(|name| name.starts_with("two__")));
    let mut changes = all.get(None).await;
    let mut quiet = alone.get(None).await;
    assert!(quiet.event().await.unwrap().data.is_empty(), "the priming event");
    let opened = one.count("initialize");

    let second = base().url("one", &one.url(), "legacy").url("three", &three.url(), "legacy");
    let second = second.config("endpoints: { chosen: { backends: [one, three] } }");
    let yaml = second.yaml(gateway.dir());
    gateway.write_config(second);
    let after = applied(&gateway, 2).await;
    assert_eq!((&after["last_error"], &after["restart_needed_for"]), (&Value::Null, &json!([])), "{after}");
    assert_ne!(after["files"][0]["sha256"], before["files"][0]["sha256"]);
    assert!(after["files"][0]["path"].as_str().unwrap().ends_with("drawbridge.yaml"), "{after}");
    let report = report(&gateway, 2);
    assert_eq!(report["backends.added"], "three", "{report}");
    assert_eq!(report["backends.removed"], "two", "{report}");
    assert_eq!(report["endpoints.changed"], "chosen", "{report}");
    assert_eq!(report["config.sha256"], after["files"][0]["sha256"], "{report}");
    let shown = shown(&gateway.admin).await;
    assert_eq!(value(&shown, r#"drawbridge_config_reloads_total{result="applied"}"#), 1.0);
    assert!(value(&shown, "drawbridge_config_last_reload_success_timestamp_seconds") > 0.0);

    // The session that has nothing to do with it goes on as it was, at the backend too.
    assert_eq!(text(&alone.tool("echo", json!({ "text": "still" })).await), "still");
    // The others go on at what there is now, without another handshake of theirs.
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(changes.message().await["method"].as_str().unwrap().to_owned());
    }
    told.sort();
    let expected = ["prompts/list_changed", "resources/list_changed", "tools/list_changed"];
    assert_eq!(told, expected.map(|name| format!("notifications/{name}")));
    let names = tools(&all).await;
    assert!(names.iter().any(|name| name.starts_with("three__")), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("two__")), "{names:?}");
    assert_eq!(text(&all.tool("one__echo", json!({ "text": "kept" })).await), "kept");
    assert_eq!(one.count("initialize"), opened);
    assert_eq!(text(&all.tool("three__echo", json!({ "text": "new" })).await), "new");
    let unknown = all.tool("two__echo", json!({ "text": "old" })).await;
    assert!(unknown["error"].is_object(), "{unknown}");
    assert_eq!(gateway.client().get("/mcp/two", &[]).await.status(), 404);
    assert!(
        quiet.event_within(Duration::from_millis(100)).await.is_err(),
        "it was told of what isn't its own"
    );
    // What was left out is left in good order.
    two.wait_for("DELETE").await;
    assert_eq!(one.count("DELETE"), 0);

    // The same once more is nothing new.
    std::fs::write(gateway.dir().join("drawbridge.yaml"), format!("{yaml}# a comment\n")).unwrap();
    applied(&gateway, 3).await;
    let report = self::report(&gateway, 3);
    assert!(report.get("backends.changed").is_none() && report.get("config.keys").is_none(), "{report}");
    assert_eq!(text(&all.tool("three__echo", json!({ "text": "same" })).await), "same");
    assert_eq!(three.count("initialize"), 1);
}

#[tokio::test]
async fn running_calls_end_where_they_have_begun() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let backend = Backend::start(move |r| {
        let held = held.clone();
        async move {
            if r.name() == "slow" {
                held.acquire().await.unwrap().forget();
            }
            legacy(&r, "s")
        }
    })
    .await;
    let settings = |more: &str| format!("{{ url: \"{}\", era: legacy{more} }}", backend.url());
    let mut gateway = base().backend("it", &settings("")).start().await;
    let session = Arc::new(gateway.session().await);
    let modern = gateway.modern();
    session.tool("quick", json!({})).await;
    let running = {
        let session = session.clone();
        async move { session.tool("slow", json!({ "text": "from before" })).await }
    };
    let stateless =
        async { modern.call("tools/call", json!({ "name": "slow", "arguments": { "text": "too" } })).await };
    let change = async {
        backend.wait_for_nth("tools/call", 3).await;
        gateway.write_config(base().backend("it", &settings(", timeout: 20m")));
        applied(&gateway, 2).await;
        assert_eq!(report(&gateway, 2)["backends.changed"], "it");
        // A call that comes now is one of the new backend, which opens a session of its own.
        let opened = backend.count("initialize");
        assert_eq!(text(&session.tool("quick", json!({ "text": "now" })).await), "now");
        assert_eq!(backend.count("initialize"), opened + 1);
        assert_eq!(backend.count("DELETE"), 0, "the old session ended under its call");
        gate.add_permits(2);
    };
    let (one, two, ()) = tokio::join!(running, stateless, change);
    assert_eq!((text(&one), text(&two)), ("from before", "too"));
    // Now the old sessions end, and the new one doesn't.
    eventually(SOON, async || gateway.program.stderr().contains("the backend that was replaced is closed"))
        .await;
    eventually(SOON, async || backend.count("DELETE") >= 2).await;
    let opened = backend.count("initialize");
    assert_eq!(text(&session.tool("quick", json!({ "text": "on" })).await), "on");
    assert_eq!(backend.count("initialize"), opened);
}

#[tokio::test]
async fn a_faulty_file_changes_nothing_and_is_reported() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let good = || base().url("it", &backend.url(), "modern");
    let mut gateway = good().start().await;
    let before = status(&gateway.admin).await;
    gateway.write_config(good().config("limits: { max_streams: 0, max_stream: 7 }"));
    let after = refused(&gateway).await;
    assert_eq!(after["generation"], 1);
    assert_eq!((&after["files"], &after["applied_at"]), (&before["files"], &before["applied_at"]));
    let problems = after["last_error"]["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2, "{after}");
    let place = format!("{}:3:", gateway.dir().join("drawbridge.yaml").display());
    assert!(problems[0].as_str().unwrap().starts_with(&place), "{after}");
    assert!(problems[1].as_str().unwrap().contains("hint: "), "{after}");
    let log = gateway.program.stderr();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("configuration refused")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines.iter().all(|line| line.contains("\"ERROR\"") && line.contains(&place)), "{lines:?}");
    let text = shown(&gateway.admin).await;
    assert_eq!(value(&text, r#"drawbridge_config_reloads_total{result="refused"}"#), 1.0);
    assert_eq!(Client::new(&gateway.admin).get("/readyz", &[]).await.status(), 200, "it serves all the same");
    assert!(gateway.modern().tool("echo", json!({})).await["result"].is_object());

    // A fault of the text, and one that is found only when parts are made.
    gateway.write_config(good().config("limits: ["));
    eventually(SOON, async || {
        let status = status(&gateway.admin).await;
        status["last_error"]["problems"].as_array().is_some_and(|problems| problems.len() == 1)
    })
    .await;
    gateway.write_config(good());
    let mended = applied(&gateway, 2).await;
    assert_eq!(mended["last_error"], Value::Null);
    std::fs::remove_file(gateway.dir().join("drawbridge.yaml")).unwrap();
    assert_eq!(refused(&gateway).await["generation"], 2);
}

#[tokio::test]
async fn keys_that_need_a_restart_are_named_and_the_others_apply() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let good = |more: &str| Gateway::setup().url("it", &backend.url(), "modern").config(more);
    let mut gateway = good("log: { format: json }").start().await;
    let modern = gateway.modern();
    let padding = "x".repeat(2000);
    assert!(modern.tool("echo", json!({ "text": padding })).await["result"].is_object());
    gateway.write_config(good(
        "log: { format: text, level: \"info,drawbridge::call=off\" }\nlimits: { max_body_bytes: 1kB, event_log_ttl: 1m }\ninstance_id: other\nstreams: { sse_after: 100ms }",
    ));
    let after = applied(&gateway, 2).await;
    assert_eq!(after["restart_needed_for"], json!(["instance_id", "limits.event_log_ttl"]));
    let log = gateway.program.stderr();
    let line = log.lines().find(|line| line.contains("configuration applied")).unwrap();
    let keys = "config.keys=\"log.format,log.level,limits.max_body_bytes,streams.sse_after\"";
    assert!(line.contains(keys), "{line}");
    let line = log.lines().find(|line| line.contains("a restart is needed")).unwrap();
    assert!(line.contains("config.keys=\"instance_id,limits.event_log_ttl\""), "{line}");
    // A smaller limit, and the log in another form without lines about calls.
    let reply =
        modern.request("tools/call", json!({ "name": "echo", "arguments": { "text": padding } })).await;
    assert_eq!(reply.status(), 413);
    let calls = log.matches("drawbridge::call").count();
    assert!(modern.tool("echo", json!({})).await["result"].is_object());
    gateway.write_config(good("log: { level: debug }"));
    applied(&gateway, 3).await;
    assert_eq!(gateway.program.stderr().matches("drawbridge::call").count(), calls);
    let after = status(&gateway.admin).await;
    assert_eq!(after["restart_needed_for"], json!([]), "it is as at the start again");
    assert!(modern.tool("echo", json!({ "text": padding })).await["result"].is_object());
    eventually(SOON, async || gateway.program.stderr().matches(" drawbridge::call: call").count() > 0).await;
}

#[tokio::test]
async fn limits_change_both_ways() {
    let demo = DemoBackend::start().await;
    let good = |streams: usize| {
        let limits = format!("limits: {{ max_streams: {streams}, max_header_bytes: {streams}00kB }}");
        base().url("it", &demo.url, "modern").config(&limits)
    };
    let mut gateway = good(1).start().await;
    let listen =
        async || gateway.modern().request("subscriptions/listen", json!({ "notifications": {} })).await;
    let mut first = listen().await;
    first.message().await;
    assert_eq!(listen().await.status(), 503);
    let long = "x".repeat(150_000);
    assert_eq!(gateway.client().get("/mcp", &[("x-long", &long)]).await.status(), 431);
    gateway.write_config(good(2));
    applied(&gateway, 2).await;
    let listen =
        async || gateway.modern().request("subscriptions/listen", json!({ "notifications": {} })).await;
    let second = listen().await;
    assert_eq!(second.status(), 200);
    assert_eq!(gateway.client().get("/mcp", &[("x-long", &long)]).await.status(), 405);
    gateway.write_config(good(1));
    applied(&gateway, 3).await;
    let listen =
        async || gateway.modern().request("subscriptions/listen", json!({ "notifications": {} })).await;
    drop(second);
    assert_eq!(listen().await.status(), 503);
    // The stream from before all that is still there.
    assert!(first.event_within(Duration::from_millis(50)).await.is_err());
}

#[tokio::test]
async fn listens_to_what_has_changed_end_with_word_of_it() {
    let [one, two] = [DemoBackend::start().await, DemoBackend::start().await];
    let first = || base().url("one", &one.url, "modern");
    let mut gateway = first().start().await;
    let wanted = json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": false } });
    let at = |path: &str| Modern::new(&gateway.client(), path, json!({}));
    let mut all = at("/mcp").request("subscriptions/listen", wanted.clone()).await;
    let mut alone = at("/mcp/one").request("subscriptions/listen", wanted.clone()).await;
    for stream in [&mut all, &mut alone] {
        assert_eq!(stream.message().await["method"], "notifications/subscriptions/acknowledged");
    }
    gateway.write_config(first().url("two", &two.url, "modern"));
    applied(&gateway, 2).await;
    let changed = all.message().await;
    assert_eq!(changed["method"], "notifications/tools/list_changed", "{changed}");
    assert!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].is_number(), "{changed}");
    let end = all.message().await;
    assert_eq!(end["result"]["resultType"], "complete", "{end}");
    assert!(all.event().await.is_none());
    assert!(alone.event_within(Duration::from_millis(100)).await.is_err(), "nothing has changed there");
    let again = Modern::new(&gateway.client(), "/mcp", json!({}));
    let mut again = again.request("subscriptions/listen", wanted).await;
    assert_eq!(again.message().await["method"], "notifications/subscriptions/acknowledged");
}

#[tokio::test]
async fn processes_of_what_stays_stay() {
    let settings =
        |more: &str| format!("{{ command: \"{}\", args: [demo-server, --stdio]{more} }}", binary().display());
    let setup = |more: &str| base().backend("kept", &settings("")).backend("other", &settings(more));
    let mut gateway = setup("").start().await;
    let session = async |path: &str| Session::open(&gateway.client(), path, "2025-11-25", json!({})).await;
    let (kept, other) = (session("/mcp/kept").await, session("/mcp/other").await);
    for session in [&kept, &other] {
        assert_eq!(text(&session.tool("echo", json!({ "message": "1" })).await), "1");
    }
    let count = async |what: &str, name: &str| {
        let series = format!("drawbridge_backend_{what}{{backend=\"{name}\"}}");
        value(&shown(&gateway.admin).await, &series)
    };
    let starts = [count("process_starts_total", "kept").await, count("process_starts_total", "other").await];
    gateway.write_config(setup(", env: { LOG: more }"));
    applied(&gateway, 2).await;
    for session in [&kept, &other] {
        assert_eq!(text(&session.tool("echo", json!({ "message": "2" })).await), "2");
    }
    let count = async |what: &str, name: &str| {
        let series = format!("drawbridge_backend_{what}{{backend=\"{name}\"}}");
        value(&shown(&gateway.admin).await, &series)
    };
    assert_eq!(count("process_starts_total", "kept").await, starts[0]);
    assert!(count("process_starts_total", "other").await > starts[1]);
    // Nothing is left of the old ones.
    eventually(SOON, async || {
        let (now, before) = (count("processes", "other").await, count("processes", "kept").await);
        now == 1.0 && before == 1.0
    })
    .await;
}

#[tokio::test]
async fn connections_of_http_and_sse_go_on_and_end_with_their_endpoint() {
    let [one, two] = [DemoBackend::start().await, DemoBackend::start().await];
    let mut gateway = base().url("one", &one.url, "legacy").url("two", &two.url, "legacy").start().await;
    let open = async |path: &str| {
        let mut stream = gateway.client().get(path, &[("accept", "text/event-stream")]).await;
        let url = String::from_utf8(stream.event().await.unwrap().data.to_vec()).unwrap();
        let hello = drawbridge_testkit::client::initialize("2024-11-05", json!({})).to_string();
        assert_eq!(gateway.client().post(&url, &[], hello).await.status(), 202);
        assert!(stream.message().await["result"].is_object());
        (stream, url)
    };
    let (mut all, url) = open("/mcp/sse").await;
    let (mut gone, _) = open("/mcp/two/sse").await;
    gateway.write_config(base().url("one", &one.url, "legacy"));
    applied(&gateway, 2).await;
    let call = drawbridge_testkit::client::request(
        7,
        "tools/call",
        json!({ "name": "echo", "arguments": { "message": "on" } }),
    );
    assert_eq!(gateway.client().post(&url, &[], call.to_string()).await.status(), 202);
    let mut told = 0;
    let answer = loop {
        let message = all.message().await;
        if message["id"] == 7 {
            break message;
        }
        told += usize::from(message["method"].as_str().unwrap().ends_with("list_changed"));
    };
    assert_eq!((told, text(&answer)), (3, "on"));
    assert!(gone.event_within(SOON).await.unwrap().is_none());
}

/// Starts a gateway whose file is where Kubernetes mounts a config map.
async fn mounted(dir: &Path, yaml: &str) -> (Program, String) {
    write_version(dir, "..v1", yaml);
    std::os::unix::fs::symlink("..v1", dir.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/drawbridge.yaml", dir.join("drawbridge.yaml")).unwrap();
    let mut command = command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--config"]);
    command.arg(dir.join("drawbridge.yaml")).current_dir(dir);
    let (program, mut addresses) = Program::start(command, &["admin"]).await;
    (program, addresses.remove(0))
}

fn write_version(dir: &Path, version: &str, yaml: &str) {
    std::fs::create_dir(dir.join(version)).unwrap();
    std::fs::write(dir.join(version).join("drawbridge.yaml"), yaml).unwrap();
}

#[tokio::test]
async fn a_swapped_link_is_a_new_configuration() {
    let dir = tempfile::TempDir::new().unwrap();
    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let yaml = |url: &str| {
        format!("data_dir: {}/data\nbackends:\n  it: {{ url: \"{url}\" }}\n", dir.path().display())
    };
    let (program, admin) = mounted(&mount, &yaml("http://127.0.0.1:1/mcp")).await;
    for (number, port) in [(2, 2), (3, 3)] {
        // What else happens in the directory is no change.
        std::fs::write(mount.join("other"), format!("{number}")).unwrap();
        let version = format!("..v{number}");
        write_version(&mount, &version, &yaml(&format!("http://127.0.0.1:{port}/mcp")));
        std::os::unix::fs::symlink(&version, mount.join("..data_tmp")).unwrap();
        std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
        std::fs::remove_dir_all(mount.join(format!("..v{}", number - 1))).unwrap();
        eventually(SOON, async || status(&admin).await["generation"] == json!(number)).await;
        let status = status(&admin).await;
        assert_eq!(status["last_error"], Value::Null, "{status}");
    }
    assert!(program.stderr().contains("backends.changed=\"it\""), "{}", program.stderr());
}

#[tokio::test]
async fn a_hangup_reads_secrets_anew() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let secrets = tempfile::TempDir::new().unwrap();
    let file = secrets.path().join("token");
    std::fs::write(&file, "old\n").unwrap();
    let settings = format!(
        "{{ url: \"{}\", era: modern, headers: {{ authorization: {{ file: {} }} }} }}",
        backend.url(),
        file.display()
    );
    let gateway = base().backend("it", &settings).start().await;
    let used = async || {
        assert!(gateway.modern().tool("echo", json!({})).await["result"].is_object());
        backend.requests_of("tools/call").last().unwrap().header("authorization").to_owned()
    };
    assert_eq!(used().await, "old");
    std::fs::write(&file, "new\n").unwrap();
    gateway.program.signal(Signal::HUP);
    applied(&gateway, 2).await;
    assert_eq!(used().await, "new");
    assert_eq!(report(&gateway, 2)["backends.changed"], "it");
    // Without a change it is a new generation of the same.
    gateway.program.signal(Signal::HUP);
    applied(&gateway, 3).await;
    assert!(report(&gateway, 3).get("backends.changed").is_none());
    assert!(!gateway.program.stderr().contains("old\n") && gateway.stop().await.success());
}

#[tokio::test]
async fn no_call_is_lost_while_the_configuration_changes() {
    let backends = [
        Backend::start(|r| async move { modern(&r) }).await,
        Backend::start(|r| async move { legacy(&r, "s") }).await,
    ];
    let setup = |number: usize| {
        let timeout = 10 + number;
        let settings = format!("{{ url: \"{}\", era: legacy, timeout: {timeout}m }}", backends[1].url());
        base().url("same", &backends[0].url(), "modern").backend("other", &settings)
    };
    let mut gateway = setup(0).start().await;
    let (modern, session) = (gateway.modern(), gateway.session().await);
    let over = tokio_util::sync::CancellationToken::new();
    let calling = async {
        let mut count = 0;
        while !over.is_cancelled() {
            for name in ["same__echo", "other__echo"] {
                let expected = format!("{count}");
                let one = modern.tool(name, json!({ "text": expected })).await;
                let two = session.tool(name, json!({ "text": expected })).await;
                assert_eq!((text(&one), text(&two)), (&*expected, &*expected), "{name}");
            }
            count += 1;
        }
        count
    };
    let changing = async {
        for number in 1..=4 {
            gateway.write_config(setup(number));
            applied(&gateway, number as u64 + 1).await;
        }
        over.cancel();
    };
    let (count, ()) = tokio::join!(calling, changing);
    assert!(count > 10, "{count}");
}
