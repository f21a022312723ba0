//! Backends that are programs: real ones, in Python, and the demo server.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use drawbridge_testkit::client::{Modern, Session, request, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{Gateway, Setup, binary};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::backends::{Either, fault, message, spawn};

const SOON: Duration = Duration::from_secs(10);

/// The interpreter itself; what is in the `PATH` may be a script that looks for it.
fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let found =
            std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        String::from_utf8(found.expect("python3 is needed").stdout).unwrap().trim().to_owned()
    })
}

/// A program, and what it has recorded.
pub(crate) struct Python {
    dir: TempDir,
    env: String,
}

impl Python {
    pub(crate) fn new(env: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("server.py"), include_str!("stdio/server.py")).unwrap();
        let mut all = format!("RECORD: \"{}\"", dir.path().join("record").display());
        env.iter().for_each(|(key, value)| write!(all, ", {key}: \"{value}\"").unwrap());
        Self { dir, env: all }
    }

    /// The settings of a backend that is this program.
    pub(crate) fn settings(&self, more: &str) -> String {
        let script = self.dir.path().join("server.py");
        let (python, script) = (python(), script.display());
        format!("{{ command: \"{python}\", args: [-I, -S, \"{script}\"], env: {{ {} }}, {more} }}", self.env)
    }

    pub(crate) async fn behind(&self, more: &str, config: &str) -> Gateway {
        Gateway::setup().backend("python", &self.settings(more)).config(config).start().await
    }

    /// A file for the tool `wait`.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("go")
    }

    pub(crate) fn go(&self) {
        std::fs::write(self.file(), "").unwrap();
    }

    /// What it recorded: kind, process id, text.
    pub(crate) fn record(&self) -> Vec<(String, u32, String)> {
        let text = std::fs::read_to_string(self.dir.path().join("record")).unwrap_or_default();
        // The last line may not be complete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| {
                let mut parts = line.splitn(3, ' ');
                let mut part = || parts.next().unwrap_or_default().to_owned();
                (part(), part().parse().unwrap(), part())
            })
            .collect()
    }

    /// The messages it got.
    pub(crate) fn received(&self) -> Vec<Value> {
        let record = self.record().into_iter();
        record
            .filter(|(kind, ..)| kind == "in")
            .map(|(.., line)| serde_json::from_str(&line).unwrap())
            .collect()
    }

    /// The calls of a tool that it got.
    pub(crate) fn calls(&self, tool: &str) -> Vec<Value> {
        let mut received = self.received();
        received.retain(|m| m["method"] == "tools/call" && m["params"]["name"] == tool);
        received
    }

    /// Its processes so far.
    pub(crate) fn started(&self) -> Vec<u32> {
        self.record().into_iter().filter(|(kind, ..)| kind == "start").map(|(_, pid, _)| pid).collect()
    }

    pub(crate) async fn got_call(&self, tool: &str) {
        eventually(SOON, async || !self.calls(tool).is_empty()).await;
    }
}

/// Whether a process runs. One that ended and is not waited for does not.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

pub(crate) async fn all_gone(pids: &[u32]) {
    eventually(Duration::from_secs(15), async || !pids.iter().any(|pid| runs(*pid))).await;
}

async fn state(session: &Session) -> Value {
    serde_json::from_str(text(&session.tool("state", json!({})).await)).unwrap()
}

async fn pid(session: &Session) -> u32 {
    u32::try_from(state(session).await["pid"].as_u64().unwrap()).unwrap()
}

#[tokio::test]
async fn programs_of_both_eras_serve_clients_of_both_eras() {
    let (old, new) = (Python::new(&[("ERA", "legacy")]), Python::new(&[("ERA", "modern")]));
    let demo = format!("{{ command: \"{}\", args: [demo-server, --stdio] }}", binary().display());
    let gateway = Gateway::setup()
        .backend("old", &old.settings(""))
        .backend("new", &new.settings(""))
        .backend("demo", &demo)
        .start()
        .await;
    let client = gateway.client();
    for backend in ["old", "new", "demo"] {
        let path = format!("/mcp/{backend}");
        let arguments = json!({ "text": "here", "message": "here" });
        let session = Session::open(&client, &path, "2025-11-25", json!({})).await;
        assert_eq!(text(&session.tool("echo", arguments.clone()).await), "here", "{backend}");
        let modern = Modern::new(&client, &path, json!({}));
        assert_eq!(text(&modern.tool("echo", arguments).await), "here", "{backend}");
        let list = modern.call("tools/list", json!({})).await;
        assert!(list["result"]["tools"].as_array().unwrap().iter().any(|t| t["name"] == "echo"), "{list}");
    }
    // All of them merged.
    let list = gateway.session().await.call("tools/list", json!({})).await.to_string();
    for name in ["old__echo", "new__echo", "demo__echo"] {
        assert!(list.contains(name), "{list}");
    }
}

#[tokio::test]
async fn each_session_has_a_process_of_its_own_and_ends_it() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "").await;
    let (one, two) = (gateway.session().await, gateway.session().await);
    let (first, second) = (pid(&one).await, pid(&two).await);
    assert_ne!(first, second);
    assert_eq!((pid(&one).await, pid(&two).await), (first, second));
    assert_eq!(python.started().len(), 2, "the process that was probed serves the first session");
    one.delete().await;
    all_gone(&[first]).await;
    assert!(runs(second));
    assert_eq!(pid(&two).await, second);
}

#[tokio::test]
async fn a_stateless_program_serves_everybody_from_one_process() {
    let python = Python::new(&[("ERA", "modern")]);
    let gateway = python.behind("", "").await;
    let (one, two) = (gateway.session().await, gateway.session().await);
    let first = pid(&one).await;
    assert_eq!(pid(&two).await, first);
    let modern = gateway.modern();
    let calls = tokio::join!(
        modern.tool("state", json!({})),
        one.tool("echo", json!({})),
        two.tool("echo", json!({}))
    );
    assert!(text(&calls.0).contains(&first.to_string()));
    one.delete().await;
    assert_eq!(pid(&two).await, first);
    assert_eq!(python.started(), [first]);
}

#[tokio::test]
async fn r043_a_legacy_program_is_found_out_whatever_it_says_to_the_probe() {
    let reactions = ["-32601", "-32602", "-32600", "-32000", "-1", "silent", "junk", "exit"];
    let pythons: Vec<_> = reactions.iter().map(|probe| Python::new(&[("PROBE", probe)])).collect();
    let mut setup: Setup = Gateway::setup();
    for (index, python) in pythons.iter().enumerate() {
        setup = setup.backend(&format!("b{index}"), &python.settings(""));
    }
    let gateway = setup.start().await;
    let asked = reactions.iter().enumerate().map(|(index, probe)| {
        let client = gateway.client();
        async move {
            let session = Session::open(&client, &format!("/mcp/b{index}"), "2025-11-25", json!({})).await;
            assert_eq!(text(&session.tool("echo", json!({})).await), "ok", "{probe}");
        }
    });
    futures_util::future::join_all(asked).await;
    for (python, probe) in pythons.iter().zip(reactions) {
        let probed = python.received().iter().filter(|m| m["method"] == "server/discover").count();
        assert_eq!(probed, 1, "{probe}");
        assert_eq!(python.started().len(), if probe == "exit" { 2 } else { 1 }, "{probe}");
    }
}

#[tokio::test]
async fn r039_what_is_no_message_on_stdout_is_not_forwarded() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "").await;
    let session = gateway.session().await;
    let lines = [
        "Server listening on stdio",
        "",
        "{\"jsonrpc\":\"2.0\"",
        "[1,2,3]",
        "null",
        "\u{1b}[31mred\u{1b}[0m",
        "{\"hello\":\"world\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":99999,\"result\":{\"content\":[]}}",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"result\":{}}",
        "{\"jsonrpc\":\"1.0\",\"method\":\"x\"}",
    ];
    let messages = session
        .request("tools/call", json!({ "name": "junk", "arguments": { "lines": lines } }))
        .await
        .messages()
        .await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(text(&messages[0]), "after the junk");
    assert_eq!(python.started().len(), 1);
    assert!(gateway.program.stderr().contains("not MCP"));
    // Each message to it is one line, however it came.
    let pretty = serde_json::to_string_pretty(&request(50, "tools/call", json!({ "name": "echo" }))).unwrap();
    assert_eq!(text(&session.post(pretty).await.answer().await), "ok");
}

#[tokio::test]
async fn a_line_over_the_limit_fails_its_call_alone() {
    for era in ["legacy", "modern"] {
        let python = Python::new(&[("ERA", era)]);
        let gateway = python.behind("", "limits: { max_line_bytes: 64KiB }").await;
        let session = gateway.session().await;
        let first = pid(&session).await;
        let (other, file) = (session.clone(), python.file());
        let waiting = spawn(async move { other.tool("wait", json!({ "file": file })).await });
        python.got_call("wait").await;
        let answer = session.tool("huge", json!({ "bytes": 200_000 })).await;
        assert_eq!(fault(&answer), ("result_too_large", "useless"));
        assert!(
            message(&answer).contains("65536") && message(&answer).contains("max_line_bytes"),
            "{answer}"
        );
        python.go();
        assert_eq!(text(&waiting.await.unwrap()), "done");
        // Alone in flight, it is told from its place.
        let answer = session.tool("huge-first", json!({ "bytes": 200_000 })).await;
        assert_eq!(fault(&answer).0, "result_too_large");
        assert_eq!(text(&session.tool("huge", json!({ "bytes": 60_000 })).await).len(), 60_000);
        assert_eq!(pid(&session).await, first);
    }
}

#[tokio::test]
async fn r042_a_crash_fails_the_calls_in_flight_and_the_next_call_works() {
    for era in ["legacy", "modern"] {
        let python = Python::new(&[("ERA", era)]);
        let gateway = python.behind("", "").await;
        let session = gateway.session().await;
        let first = pid(&session).await;
        let other = session.clone();
        let hanging = spawn(async move { other.tool("hang", json!({})).await });
        python.got_call("hang").await;
        let answer = session.tool("crash", json!({ "code": 7 })).await;
        for answer in [answer, hanging.await.unwrap()] {
            assert_eq!(fault(&answer), ("outcome_unknown", "unsafe"));
            assert!(message(&answer).contains("exited with code 7"), "{answer}");
        }
        let second = pid(&session).await;
        assert_ne!(second, first);
        assert_eq!((python.calls("crash").len(), python.calls("hang").len()), (1, 1), "never sent twice");
        assert!(gateway.program.stderr().contains("last words"));
    }
}

#[tokio::test]
async fn r042_a_listen_is_sent_again_to_a_program_that_crashed() {
    let python = Python::new(&[("ERA", "modern")]);
    let gateway = python.behind("", "").await;
    let modern = gateway.modern();
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut listen = modern.request("subscriptions/listen", wanted).await;
    assert_eq!(listen.message().await["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(fault(&modern.tool("crash", json!({})).await).0, "outcome_unknown");
    // The listen alone brings the program back; its second acknowledgement is not the client's business.
    eventually(SOON, async || python.started().len() == 2).await;
    assert_eq!(text(&modern.tool("echo", json!({})).await), "ok");
    assert_eq!(python.started().len(), 2);
}

#[tokio::test]
async fn a_program_that_keeps_crashing_is_started_at_growing_intervals() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "").await;
    let session = gateway.session().await;
    let started = Instant::now();
    for _ in 0..5 {
        assert_eq!(fault(&session.tool("crash", json!({})).await).0, "outcome_unknown");
    }
    // At least half of 100 + 200 + 400 + 800 ms.
    assert!(started.elapsed() >= Duration::from_millis(750), "{:?}", started.elapsed());
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
}

#[tokio::test]
async fn a_program_that_dies_while_it_has_nothing_to_do_is_not_noticed_by_clients() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "").await;
    let session = gateway.session().await;
    session.call("logging/setLevel", json!({ "level": "warning" })).await;
    let first = pid(&session).await;
    let target = rustix::process::Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).unwrap();
    eventually(SOON, async || gateway.program.stderr().contains("ended by itself")).await;
    let now = state(&session).await;
    assert_ne!(now["pid"], first);
    assert_eq!(now["level"], "warning");
}

#[tokio::test]
async fn a_program_that_can_not_be_started_is_an_error_that_says_why() {
    let gateway = Gateway::setup()
        .backend("missing", "{ command: /nowhere/at-all }")
        .backend("ends", "{ command: sh, args: [-c, \"echo no license >&2; exit 3\"], era: legacy }")
        .backend("mute", "{ command: sleep, args: [\"1000\"], era: legacy, start_timeout: 300ms }")
        .start()
        .await;
    let expected = [
        ("missing", "backend_not_started", "the program was not found; check the command"),
        ("ends", "backend_not_started", "code 3"),
        ("mute", "backend_timeout", "start_timeout"),
    ];
    for (backend, code, detail) in expected {
        let modern = Modern::new(&gateway.client(), &format!("/mcp/{backend}"), json!({}));
        let answer = modern.tool("echo", json!({})).await;
        assert_eq!(fault(&answer), (code, "safe"), "{backend}");
        assert!(message(&answer).contains(detail), "{answer}");
    }
    // What a program says is in the log once for each time that it was started.
    let log = gateway.program.stderr();
    let started = log.matches("process started backend.name=ends").count();
    assert_eq!(log.matches("no license").count(), started, "{log}");
}

#[tokio::test]
async fn last_words_that_were_not_logged_are_with_the_end() {
    let gateway = Gateway::setup()
        .backend("ends", "{ command: sh, args: [-c, \"echo no license >&2; exit 3\"], era: legacy }")
        .config("log: { level: \"info,drawbridge::backend::stderr=off\" }")
        .start()
        .await;
    gateway.modern().tool("echo", json!({})).await;
    eventually(SOON, async || gateway.program.stderr().contains("process.stderr=[\"no license\"]")).await;
}

#[tokio::test]
async fn a_handshake_that_is_given_up_is_not_cancelled() {
    let python = Python::new(&[("SILENT", "1")]);
    let gateway = python.behind("era: legacy, start_timeout: 300ms", "").await;
    let answer = gateway.modern().tool("echo", json!({})).await;
    assert_eq!(fault(&answer), ("backend_timeout", "safe"));
    // Its input ends after all that was written to it.
    eventually(SOON, async || python.record().iter().any(|(kind, ..)| kind == "eof")).await;
    let methods: Vec<_> = python.received().iter().map(|m| m["method"].clone()).collect();
    assert_eq!(methods, ["initialize"], "the request initialize must not be cancelled");
}

#[tokio::test]
async fn calls_of_a_program_that_keeps_failing_to_start_do_not_wait_for_its_next_try() {
    let gateway = Gateway::setup()
        .backend("ends", "{ command: sh, args: [-c, \"echo no license >&2; exit 3\"], era: legacy }")
        .start()
        .await;
    let modern = gateway.modern();
    let call = async || {
        let started = Instant::now();
        let answer = modern.tool("echo", json!({})).await;
        assert_eq!(fault(&answer), ("backend_not_started", "safe"), "{answer}");
        (message(&answer).contains("next try in"), started.elapsed())
    };
    // Short pauses are waited for, until there are none any more.
    eventually(Duration::from_secs(20), async || {
        let (refused, took) = call().await;
        assert!(!refused || took < Duration::from_secs(1), "{took:?}");
        refused
    })
    .await;
    // Whatever asks for it then, a list among it, has its answer at once.
    let started = Instant::now();
    gateway.modern().call("tools/list", json!({})).await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test]
async fn r040_a_cancel_is_a_notification_and_no_response_is_written_to_a_modern_program() {
    let python = Python::new(&[("ERA", "modern")]);
    let gateway = python.behind("", "").await;
    let session = gateway.session().await;
    let (other, body) = (session.clone(), request(77, "tools/call", json!({ "name": "hang" })).to_string());
    let pending = spawn(async move { other.post(body).await });
    python.got_call("hang").await;
    session.notify("notifications/cancelled", json!({ "requestId": 77 })).await;
    let cancels = || {
        let mut received = python.received();
        received.retain(|m| m["method"] == "notifications/cancelled");
        received
    };
    eventually(SOON, async || cancels().len() == 1).await;
    assert_eq!(cancels()[0]["params"]["requestId"], python.calls("hang")[0]["id"]);
    assert!(pending.await.unwrap().messages().await.is_empty());

    // A disconnect of a stateless client too.
    let modern = gateway.modern();
    let pending = spawn(async move { modern.tool("hang", json!({})).await });
    eventually(SOON, async || python.calls("hang").len() == 2).await;
    pending.abort();
    eventually(SOON, async || cancels().len() == 2).await;
    assert_eq!(cancels()[1]["params"]["requestId"], python.calls("hang")[1]["id"]);
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    let received = python.received();
    assert!(received.iter().all(|m| m["method"].is_string()), "{received:?}");
    assert!(
        received.iter().all(|m| m.get("id").is_none() || m["params"]["_meta"].is_object()),
        "{received:?}"
    );
}

#[tokio::test]
async fn r112_a_cancel_reaches_a_legacy_program_too() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "").await;
    let session = gateway.session().await;
    let (other, body) = (session.clone(), request("x", "tools/call", json!({ "name": "hang" })).to_string());
    let pending = spawn(async move { other.post(body).await });
    python.got_call("hang").await;
    session.notify("notifications/cancelled", json!({ "requestId": "x" })).await;
    let id = &python.calls("hang")[0]["id"];
    eventually(SOON, async || {
        python
            .received()
            .iter()
            .any(|m| m["method"] == "notifications/cancelled" && m["params"]["requestId"] == *id)
    })
    .await;
    assert!(pending.await.unwrap().messages().await.is_empty());
}

#[tokio::test]
async fn a_legacy_program_asks_the_client_of_its_call() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "").await;
    let session = Session::open(&gateway.client(), "/mcp", "2025-11-25", json!({ "elicitation": {} })).await;
    let mut reply = session.request("tools/call", json!({ "name": "ask" })).await;
    let asked = reply.message().await;
    assert_eq!(asked["method"], "elicitation/create");
    let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } });
    assert_eq!(session.post(answer.to_string()).await.status(), 202);
    let told: Value = serde_json::from_str(text(&reply.answer().await)).unwrap();
    assert_eq!(told, json!({ "jsonrpc": "2.0", "id": "a-1", "result": { "action": "decline" } }));
    // Who can't be asked is not.
    let answer = gateway.session().await.tool("ask", json!({})).await;
    assert!(text(&answer).contains("-32601"), "{answer}");
}

#[tokio::test]
async fn calls_wait_for_a_process_in_a_bounded_queue_with_a_deadline() {
    let python = Python::new(&[]);
    let gateway = python.behind("max_processes: 1, max_queue: 1, queue_timeout: 700ms", "").await;
    let (busy, one, two) = (gateway.session().await, gateway.session().await, gateway.session().await);
    let hanging = spawn(async move { busy.tool("hang", json!({})).await });
    python.got_call("hang").await;
    let started = Instant::now();
    // One waits until its time is over, and whoever comes to a full queue is sent away at once.
    let answers = tokio::join!(one.tool("echo", json!({})), two.tool("echo", json!({})));
    let mut faults = [fault(&answers.0), fault(&answers.1)];
    faults.sort_unstable();
    assert_eq!(faults, [("backend_timeout", "safe"), ("busy", "safe")]);
    assert!(started.elapsed() >= Duration::from_millis(700));
    assert!(
        answers.0.to_string().contains("queue_timeout") || answers.1.to_string().contains("queue_timeout")
    );
    assert_eq!(python.started().len(), 1);
    hanging.abort();
}

#[tokio::test]
async fn a_call_that_waits_gets_the_process_that_becomes_idle() {
    let python = Python::new(&[]);
    let gateway = python.behind("max_processes: 1, queue_timeout: 15s", "").await;
    let (busy, waits) = (gateway.session().await, gateway.session().await);
    let (other, file) = (busy.clone(), python.file());
    let waiting = spawn(async move { other.tool("wait", json!({ "file": file })).await });
    python.got_call("wait").await;
    let queued = spawn(async move { waits.tool("echo", json!({ "text": "my turn" })).await });
    // It waits: another one's answer is there first, and it has none.
    gateway.client().get("/mcp", &[]).await;
    assert!(!queued.is_finished());
    python.go();
    assert_eq!(text(&waiting.await.unwrap()), "done");
    let started = Instant::now();
    assert_eq!(text(&queued.await.unwrap()), "my turn");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(text(&busy.tool("echo", json!({ "text": "mine again" })).await), "mine again");
    assert_eq!(python.started().len(), 3);
}

#[tokio::test]
async fn an_idle_process_makes_room_for_another_backend() {
    let (one, two) = (Python::new(&[]), Python::new(&[]));
    let gateway = Gateway::setup()
        .backend("one", &one.settings("queue_timeout: 5s"))
        .backend("two", &two.settings("queue_timeout: 5s"))
        .config("limits: { max_processes: 1 }")
        .start()
        .await;
    for path in ["/mcp/one", "/mcp/two", "/mcp/one"] {
        let session = Session::open(&gateway.client(), path, "2025-11-25", json!({})).await;
        assert_eq!(text(&session.tool("echo", json!({ "text": path })).await), path);
    }
}

#[tokio::test]
async fn an_idle_process_is_stopped_and_the_next_call_has_its_session_back() {
    let python = Python::new(&[]);
    let gateway = python.behind("idle_stop: 300ms", "").await;
    let session = gateway.session().await;
    session.call("logging/setLevel", json!({ "level": "error" })).await;
    session.call("resources/subscribe", json!({ "uri": "file:///a" })).await;
    let first = pid(&session).await;
    // One that works is not idle.
    let (other, file) = (session.clone(), python.file());
    let waiting = spawn(async move { other.tool("wait", json!({ "file": file })).await });
    python.got_call("wait").await;
    let idle_long = Instant::now() + Duration::from_millis(800);
    eventually(SOON, async || Instant::now() > idle_long).await;
    assert!(runs(first));
    python.go();
    assert_eq!(text(&waiting.await.unwrap()), "done");
    all_gone(&[first]).await;
    let now = state(&session).await;
    assert_ne!(now["pid"], first);
    assert_eq!((&now["level"], &now["subscriptions"]), (&json!("error"), &json!(["file:///a"])));
    assert!(python.record().iter().any(|(kind, pid, _)| kind == "eof" && *pid == first), "R041: stdin first");
}

#[tokio::test]
async fn what_a_program_writes_to_stderr_is_in_the_log() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "log: { format: json }").await;
    gateway.session().await.tool("stderr", json!({ "text": "hello\u{1b}[0m \"log\"" })).await;
    let found = || {
        let log = gateway.program.stderr();
        log.lines()
            .map(|l| serde_json::from_str::<Value>(l).unwrap())
            .find(|l| l["message"] == "hello[0m \"log\"")
    };
    eventually(SOON, async || found().is_some()).await;
    let line = found().unwrap();
    assert_eq!((&line["backend.name"], &line["level"]), (&json!("python"), &json!("INFO")));
}

#[tokio::test]
async fn a_program_gets_its_own_environment_and_none_of_the_gateways_secrets() {
    let python = Python::new(&[("TOKEN", "for-it")]);
    let gateway = Gateway::setup()
        .backend("python", &python.settings(""))
        .env("SECRET_OF_THE_GATEWAY", "x")
        .start()
        .await;
    let keys = json!({ "keys": ["TOKEN", "SECRET_OF_THE_GATEWAY"] });
    let answer = gateway.session().await.tool("environment", keys).await;
    let found: Value = serde_json::from_str(text(&answer)).unwrap();
    assert_eq!(found, json!({ "TOKEN": "for-it", "SECRET_OF_THE_GATEWAY": null }));
}

#[tokio::test]
async fn clients_of_both_eras_share_what_a_legacy_program_allows() {
    let python = Python::new(&[]);
    let gateway = python.behind("", "").await;
    for client in Either::both(&gateway).await {
        assert_eq!(text(&client.tool("echo").await), "ok");
        assert_eq!(text(&client.tool("echo").await), "ok");
    }
    assert!(python.started().len() <= 2, "one for the session, one for all without");
}

#[tokio::test]
async fn a_stateless_program_that_ends_at_a_handshake_is_asked_for_one_only_once() {
    let python = Python::new(&[("ERA", "modern"), ("NO_SESSIONS", "exit")]);
    let gateway = python.behind("", "").await;
    // Clients that can be asked something would rather have a session.
    for capabilities in [json!({ "elicitation": {} }), json!({ "sampling": {} }), json!({ "roots": {} })] {
        let session = Session::open(&gateway.client(), "/mcp", "2025-11-25", capabilities).await;
        assert_eq!(text(&session.tool("echo", json!({ "text": "here" })).await), "here");
    }
    let handshakes = python.received().iter().filter(|m| m["method"] == "initialize").count();
    assert_eq!((handshakes, python.started().len()), (1, 2));
}
