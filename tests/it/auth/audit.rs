//! The audit trail of whole gateways: what is in it, what is not, and what `drawbridge audit` says of it.

use std::process::Output;

use drawbridge_auth::audit::{AuditEntry, AuditFilter, AuditKind, AuditStore as _};
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_testkit::backend::{Backend, Reply, legacy};
use drawbridge_testkit::client::{Client, Modern, Session, request};
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::fleet::{SEAL, ready};
use drawbridge_testkit::gateway::{Gateway, Setup, command};
use drawbridge_testkit::postgres::PostgresDatabase;
use drawbridge_testkit::{PATIENCE, eventually, soon};
use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use crate::operating::metrics::{shown, value};

/// A backend that has what tests call.
async fn backend() -> Backend {
    Backend::start(|r| async move {
        match (r.rpc(), r.name()) {
            ("tools/call", "fails") => Reply::result(&r, json!({ "content": [], "isError": true })),
            ("tools/call", "errs") => Reply::error(&r, 200, -32602, "planted-in-an-error"),
            ("tools/call", "tells") => {
                Reply::result(&r, json!({ "content": [{ "type": "text", "text": "planted-in-a-result" }] }))
            }
            _ => legacy(&r, "s"),
        }
    })
    .await
}

/// A gateway that asks for tokens, and who may call it.
struct World {
    gateway: Gateway,
    url: String,
    _backend: Backend,
    secret: String,
    token: String,
    user: String,
}

impl World {
    async fn over(database: Option<&PostgresDatabase>, more: &str) -> Self {
        let backend = backend().await;
        let auth = "auth: { mode: tokens, step_up: challenge }";
        let mut setup = setup(&backend).config(auth).config(SEAL).config(more);
        if let Some(database) = database {
            setup = setup.config(&format!("database: {{ url: \"{}\" }}", database.url()));
        }
        let gateway = setup.start().await;
        ready(&gateway).await;
        let operator = Operator::at(&gateway);
        let user = operator.user("alice").await;
        let new = json!({ "kind": "personal", "name": "laptop", "owner": user, "endpoints": ["*"] });
        let made = operator.made("tokens", new).await;
        let text = |member: &str| made[member].as_str().unwrap().to_owned();
        let url = match database {
            Some(database) => database.url(),
            None => format!("sqlite:{}", gateway.dir().join("data/drawbridge.db").display()),
        };
        Self { secret: text("token"), token: text("id"), gateway, url, _backend: backend, user }
    }

    fn client(&self) -> Client {
        self.gateway.client().bearer(&self.secret)
    }

    async fn session(&self) -> Session {
        Session::open(&self.client(), "/mcp", "2025-11-25", json!({})).await
    }

    async fn entries(&self, filter: AuditFilter) -> Vec<AuditEntry> {
        entries(&self.url, filter).await
    }

    async fn calls(&self) -> Vec<AuditEntry> {
        self.entries(AuditFilter { kind: Some(AuditKind::Call), ..AuditFilter::default() }).await
    }

    /// Waits until there are so many calls.
    async fn calls_after(&self, count: usize) -> Vec<AuditEntry> {
        eventually(PATIENCE, async || self.calls().await.len() >= count).await;
        self.calls().await
    }

    /// Ends the gateway in order; its files stay.
    async fn stop(&mut self) {
        self.gateway.program.signal(Signal::TERM);
        assert!(self.gateway.program.ended().await.success());
    }

    async fn verify(&self, more: &[&str]) -> Output {
        let config = self.gateway.dir().join("drawbridge.yaml");
        let args = [&["audit", "verify", "--config", config.to_str().unwrap()][..], more].concat();
        run(&args, self.gateway.dir()).await
    }

    async fn holds(&self) -> String {
        let output = self.verify(&[]).await;
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        said
    }
}

fn setup(backend: &Backend) -> Setup {
    Gateway::setup()
        .url("it", &backend.url(), "legacy")
        .config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))
}

async fn entries(url: &str, filter: AuditFilter) -> Vec<AuditEntry> {
    let records = SqlRecords::open(url, &SqlOptions::default()).unwrap();
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = records.audit(&filter, after.as_deref(), 500).await.unwrap();
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    records.close().await;
    all
}

async fn run(args: &[&str], dir: &std::path::Path) -> Output {
    let mut command = command();
    command.args(args).current_dir(dir);
    soon("the program to end", command.output()).await.unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn each_call_has_an_entry_that_says_whose_it_was_and_how_it_ended() {
    let mut world = World::over(None, "").await;
    let session = world.session().await;
    session.tool("works", json!({ "key": "planted-in-an-argument" })).await;
    session.tool("fails", json!({})).await;
    session.tool("errs", json!({})).await;
    session.tool("tells", json!({})).await;
    let reply = Modern::new(&world.client(), "/mcp/it", json!({}))
        .request("tools/call", json!({ "name": "works", "arguments": { "key": "planted-in-an-argument" } }))
        .await;
    let id = reply.header("x-request-id").unwrap().to_owned();
    let uri = json!({ "uri": "https://u:planted-in-a-uri@a.example/b?key=planted-in-a-uri" });
    session.request("resources/read", uri).await;
    session.request("made/up", json!({})).await;
    let calls = world.calls_after(8).await;
    let ends: Vec<(&str, &str, &str)> = calls
        .iter()
        .map(|call| (call.action.as_str(), call.target.as_str(), call.outcome.as_str()))
        .collect();
    assert_eq!(ends[0], ("mcp:initialize", "", "ok"));
    for expected in [
        ("mcp:tools/call", "works", "ok"),
        ("mcp:tools/call", "fails", "tool_error"),
        ("mcp:tools/call", "errs", "rpc_error"),
        ("mcp:resources/read", "https://a.example/b", "rpc_error"),
    ] {
        assert!(ends.contains(&expected), "{ends:?}");
    }
    let works = calls.iter().find(|call| call.detail["request"] == id.as_str()).unwrap();
    let token = &world.token;
    assert_eq!(works.actor, format!("user:{}", world.user));
    for (member, expected) in [
        ("endpoint", json!("it")),
        ("backend", json!("it")),
        ("client", json!(format!("pat:{token}"))),
        ("credential", json!(format!("token:{token}"))),
        ("era", json!("modern")),
        ("status", json!(200)),
    ] {
        assert_eq!(works.detail[member], expected, "{member} of {works:?}");
    }
    assert!(works.detail["duration_us"].as_u64().unwrap() > 0);
    let errs = calls.iter().find(|call| call.target == "errs").unwrap();
    assert_eq!((&errs.detail["rpc_code"], &errs.detail["payload"]), (&json!(-32602), &Value::Null));

    let text = format!("{:?}", world.entries(AuditFilter::default()).await);
    for planted in ["planted", world.secret.as_str(), session.id.as_str(), FIRST] {
        assert!(!text.contains(planted), "{planted} is in {text}");
    }
    let metrics = shown(&world.gateway.admin).await;
    assert!(value(&metrics, "drawbridge_audit_entries_total") >= 10.0, "{metrics}");
    assert!(metrics.contains("drawbridge_audit_lost_total 0"), "{metrics}");
    world.stop().await;
    let said = world.holds().await;
    assert!(said.contains("ok: 1 chains") && !said.contains("note:"), "{said}");
}

#[tokio::test]
async fn what_is_not_let_in_has_an_entry_too() {
    let world = World::over(None, "").await;
    let operator = Operator::at(&world.gateway);
    let new = json!({ "kind": "personal", "name": "reader", "owner": world.user, "scopes": ["mcp:read"] });
    let made = operator.made("tokens", new).await;
    let reader = world.gateway.client().bearer(made["token"].as_str().unwrap());
    let body = request(1, "tools/call", json!({ "name": "works", "arguments": {} })).to_string();
    assert_eq!(reader.post("/mcp", &[], body).await.status(), 403);
    let calls = world.calls_after(1).await;
    assert_eq!((calls[0].target.as_str(), calls[0].outcome.as_str()), ("works", "refused"));
    assert_eq!(calls[0].detail["status"], 403);
    let query = "audit?kind=call&outcome=refused&target=works";
    let listed = operator.ask(Method::GET, query, None).await.json().await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let listed = operator.ask(Method::GET, "audit?kind=action&action=token.create", None).await.json().await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_was_said_is_written_down_without_what_is_secret() {
    let more = "audit: { payloads: redacted, redact: [customer, /params/arguments/rows/*/card], max_payload_bytes: 300 }";
    let world = World::over(None, more).await;
    let session = world.session().await;
    let arguments = json!({ "password": "hunter2", "customer": "Ann", "rows": [{ "card": "4111", "n": 1 }],
        "note": format!("use {}", world.secret) });
    session.tool("tells", arguments).await;
    session.tool("works", json!({ "much": "x".repeat(400) })).await;
    session.tool("errs", json!({})).await;
    let calls = world.calls_after(4).await;
    let said = |name: &str| {
        let call = calls.iter().find(|call| call.target == name).unwrap();
        call.detail["payload"].clone()
    };
    let tells = said("tells");
    assert_eq!(
        tells["params"]["arguments"],
        json!({ "password": "[redacted]", "customer": "[redacted]", "rows": [{ "card": "[redacted]", "n": 1 }],
            "note": "use [redacted]" })
    );
    assert_eq!(tells["result"]["content"][0]["text"], "planted-in-a-result");
    assert!(said("works")["params"]["omitted_bytes"].as_u64().unwrap() > 400);
    assert_eq!(said("errs")["result"]["message"], "planted-in-an-error");
    assert!(!format!("{calls:?}").contains(&world.secret));
    world.holds().await;
}

async fn ends_and_kills(database: Option<&PostgresDatabase>) {
    let mut world = World::over(database, "audit: { checkpoint_interval: 1s }").await;
    let session = world.session().await;
    for number in 0..150 {
        session.tool("works", json!({ "n": number })).await;
    }
    world.stop().await;
    // What was answered just before is there.
    assert_eq!(world.calls().await.len(), 151);
    let said = world.holds().await;
    assert!(!said.contains("note:"), "{said}");
    let first = world.entries(AuditFilter::default()).await[0].chain.clone();

    // Somebody kills the next run: that shows, and is no fault.
    world.gateway = world.gateway.start_again().await;
    ready(&world.gateway).await;
    let session = world.session().await;
    session.tool("works", json!({})).await;
    world.calls_after(153).await;
    world.gateway.program.signal(Signal::KILL);
    world.gateway.program.ended().await;
    let said = world.holds().await;
    assert!(said.contains("it has no closing checkpoint"), "{said}");
    assert!(said.contains("ok: 2 chains"), "{said}");

    // The next one has seen what it left, and what the first one was.
    world.gateway = world.gateway.start_again().await;
    ready(&world.gateway).await;
    eventually(PATIENCE, async || text(&world.verify(&[]).await).contains("ok: 3 chains")).await;
    world.stop().await;
    world.holds().await;

    let export = run(
        &["audit", "export", "--config", "drawbridge.yaml", "--chain", &first, "--kind", "call"],
        world.gateway.dir(),
    )
    .await;
    let lines: Vec<Value> = String::from_utf8(export.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 151);
    assert!(
        lines
            .iter()
            .all(|line| line["chain"] == first.as_str() && line["hash"].as_str().unwrap().len() == 64)
    );
    let none = run(
        &["audit", "export", "--config", "drawbridge.yaml", "--until", "2020-01-01T00:00:00Z"],
        world.gateway.dir(),
    )
    .await;
    assert!(none.status.success() && none.stdout.is_empty());
}

#[tokio::test]
async fn a_run_that_ends_is_whole_and_one_that_is_killed_shows() {
    ends_and_kills(None).await;
}

#[tokio::test]
async fn the_same_over_postgres() {
    let database = PostgresDatabase::fresh().await;
    ends_and_kills(Some(&database)).await;
}

#[tokio::test]
async fn whoever_changes_the_database_is_found_out_and_told_where() {
    let database = PostgresDatabase::fresh().await;
    let mut world = World::over(Some(&database), "").await;
    let session = world.session().await;
    for _ in 0..5 {
        session.tool("works", json!({})).await;
    }
    world.stop().await;
    world.holds().await;
    let chain = world.calls().await[0].chain.clone();
    let export = run(&["audit", "export", "--config", "drawbridge.yaml"], world.gateway.dir()).await;
    std::fs::write(world.gateway.dir().join("kept.jsonl"), &export.stdout).unwrap();
    database.run("create table a as select * from audit");
    database.run("create table p as select * from audit_checkpoints");
    for (sql, expected) in [
        ("update audit set actor = 'user:other' where number = 5", "entry 5: it does not follow"),
        ("delete from audit where number = 4", "entry 4: it is missing"),
        ("delete from audit where number > 6", "but the chain ends at 6"),
        ("delete from audit_checkpoints", "no checkpoint that is believed"),
    ] {
        database.run(sql);
        let output = world.verify(&[]).await;
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{sql}: {said}");
        let line = said.lines().find(|line| line.starts_with("fault: ") && line.contains(expected));
        assert!(line.is_some_and(|line| line.contains(&chain)), "{sql}: {said}");
        database.run("delete from audit; insert into audit select * from a");
        database.run("delete from audit_checkpoints; insert into audit_checkpoints select * from p");
    }
    world.holds().await;
    // The end and whatever has signed it: only who has kept something finds that out.
    database.run("delete from audit where number > 3; delete from audit_checkpoints where number > 3");
    world.holds().await;
    let kept = world.verify(&["--kept", "kept.jsonl"]).await;
    assert_eq!(kept.status.code(), Some(1));
    assert!(text(&kept).contains("was kept elsewhere, but the chain ends at 3"), "{}", text(&kept));

    // The database alone is believed as far as it goes.
    let url = database.url();
    let alone = run(&["audit", "verify", "--database", &url], world.gateway.dir()).await;
    assert!(alone.status.success() && text(&alone).contains("nothing but the database speaks for the keys"));
    let named = run(&["audit", "verify", "--database", &url, "--trust", "other"], world.gateway.dir()).await;
    assert_eq!(named.status.code(), Some(1));
    let nowhere = run(&["audit", "verify", "--database", "sqlite:nowhere.db"], world.gateway.dir()).await;
    assert!(
        text(&nowhere).contains("there is no database") && !world.gateway.dir().join("nowhere.db").exists()
    );
}

#[tokio::test]
async fn what_is_too_old_goes_and_what_is_left_holds() {
    let mut world = World::over(None, "audit: { retention: 1s, checkpoint_interval: 1s }").await;
    let session = world.session().await;
    session.tool("works", json!({})).await;
    let first = world.calls_after(2).await[0].clone();
    world.stop().await;
    // Until the entries of this run are older than a second.
    eventually(PATIENCE, async || (chrono::Utc::now() - first.at).num_milliseconds() > 2500).await;
    world.gateway = world.gateway.start_again().await;
    ready(&world.gateway).await;
    let of_first = || AuditFilter { chain: Some(first.chain.clone()), ..AuditFilter::default() };
    eventually(PATIENCE, async || world.entries(of_first()).await.is_empty()).await;
    let session = world.session().await;
    session.tool("works", json!({})).await;
    world.calls_after(2).await;
    world.stop().await;
    let said = world.holds().await;
    assert!(said.contains("ok: 2 chains") && !said.contains("note:"), "{said}");
}

#[tokio::test]
async fn while_the_database_is_away_calls_go_on_and_are_counted() {
    let database = PostgresDatabase::fresh().await;
    let proxy = FaultProxy::start(database.server.port()).await;
    let port = |port: u16| format!(":{port}/");
    let url = database.url().replace(&port(database.server.port()), &port(proxy.port));
    let backend = backend().await;
    // Nobody is asked who they are: this is about calls alone.
    let mut gateway = setup(&backend)
        .config(&format!("database: {{ url: \"{url}\" }}"))
        .config("audit: { queue: 5 }")
        .start()
        .await;
    let session = gateway.session().await;
    let calls = async || {
        let filter = AuditFilter { kind: Some(AuditKind::Call), ..AuditFilter::default() };
        entries(&database.url(), filter).await
    };
    let shows = async |series: &str| value(&shown(&gateway.admin).await, series);
    eventually(PATIENCE, async || shows("drawbridge_audit_entries_total").await >= 2.0).await;
    proxy.set(Fault::Refuse);
    proxy.cut();
    for _ in 0..30 {
        session.tool("works", json!({})).await;
    }
    eventually(PATIENCE, async || shows("drawbridge_audit_lost_total").await > 0.0).await;
    proxy.set(Fault::None);
    eventually(PATIENCE, async || shows("drawbridge_audit_queue").await == 0.0).await;
    gateway.program.signal(Signal::TERM);
    assert!(gateway.program.ended().await.success());
    let calls = calls().await;
    assert!(calls.iter().all(|call| call.actor == "anonymous"), "{calls:?}");
    let lost = entries(
        &database.url(),
        AuditFilter { action: Some("audit.lost".to_owned()), ..AuditFilter::default() },
    )
    .await;
    let lost: u64 = lost.iter().map(|entry| entry.detail["entries"].as_u64().unwrap()).sum();
    assert!(lost > 0);
    // `initialize`, and the tools.
    assert_eq!(calls.len() as u64 + lost, 31);
    let output = run(&["audit", "verify", "--config", "drawbridge.yaml"], gateway.dir()).await;
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("entries before it were lost"), "{}", text(&output));
}

#[tokio::test]
async fn without_a_database_nothing_is_written_and_that_is_said() {
    let backend = backend().await;
    let gateway = setup(&backend).config("audit: { calls: true }").start().await;
    gateway.session().await.tool("works", json!({})).await;
    assert!(!gateway.dir().join("data/drawbridge.db").exists());
    assert!(!shown(&gateway.admin).await.contains("drawbridge_audit"));
    let checked = run(&["check", "--config", "drawbridge.yaml"], gateway.dir()).await;
    assert!(checked.status.success());
    assert!(text(&checked).contains("audit: nothing is written down"), "{}", text(&checked));
}

#[tokio::test]
async fn calls_can_be_left_out() {
    let mut world = World::over(None, "audit: { calls: false }").await;
    let session = world.session().await;
    session.tool("works", json!({})).await;
    world.stop().await;
    assert_eq!(world.calls().await, []);
    let actions = world.entries(AuditFilter::default()).await;
    let actions: Vec<&str> = actions.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["audit.open", "user.create", "token.create", "audit.close"]);
    world.holds().await;
}
