//! How entries come into the trail: in order, once, and with word of those that did not.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drawbridge_auth::audit::{AuditKeys, AuditTrail, CallLog, CallOptions, Redactor};
use drawbridge_core::Tasks;
use drawbridge_core::audit::{CallAudit as _, CallRecord, Part, Payload, Words};
use drawbridge_core::metrics::{Era, Outcome};
use drawbridge_core::request::{Caller, Id};
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_testkit::PATIENCE;
use drawbridge_testkit::eventually;
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::postgres::PostgresServer;
use serde_json::json;

use super::{SELDOM, World, act, over_both};
use crate::fixture::Fixture;

over_both!(calls_are_written_in_their_order, what_does_not_fit_is_counted, two_runs_do_not_mix,);

fn call(number: usize) -> CallRecord {
    CallRecord {
        ended_at: SystemTime::now(),
        took: Duration::from_micros(1500),
        request: Some(Id::fresh()),
        caller: Some(Arc::new(Caller {
            name: "user:u1".to_owned(),
            client: "claude".to_owned(),
            credential: "grant:g1".to_owned(),
        })),
        endpoint: None,
        backend: None,
        era: Era::Modern,
        words: Words::new("tools/call", Some(&format!("tool-{number}"))),
        outcome: Outcome::Ok,
        code: None,
        fault: None,
        status: Some(200),
        streamed: false,
        payload: None,
    }
}

fn options(queue: usize) -> CallOptions {
    CallOptions { queue, payload_limit: Some(1000), redactor: Redactor::default() }
}

async fn calls_are_written_in_their_order(world: World) {
    let trail = world.trail(SELDOM);
    let (log, writer) = CallLog::new(&trail, options(5000));
    let tasks = Tasks::default();
    tasks.spawn("write", writer.run(tasks.clone()));
    let chain = trail.chain().await;
    for number in 0..1200 {
        log.note(call(number));
        if number == 600 {
            act(&trail, "between").await.unwrap();
        }
    }
    let said = json!({ "name": "pay", "arguments": { "password": "hunter2", "amount": 3 } });
    let payload =
        Payload { request: Some(Part::Json(said.to_string().into())), answer: Some(Part::Omitted(7)) };
    let words = Words::new("tools/call", Some("drb_pat_AAAAAAAAAAAAAAAAAAAA\0"));
    log.note(CallRecord { payload: Some(Box::new(payload)), words, code: Some(-32603), ..call(0) });
    assert!(tasks.finish(PATIENCE).await);
    assert_eq!(log.waiting(), 0);

    let mut entries = Vec::new();
    loop {
        let more = world.store().audit_chain(&chain, entries.len() as i64, 500).await.unwrap();
        if more.is_empty() {
            break;
        }
        entries.extend(more);
    }
    assert_eq!(entries.len(), 1204);
    let tools: Vec<&str> = entries
        .iter()
        .filter(|entry| entry.action == "mcp:tools/call" && entry.target.starts_with("tool-"))
        .map(|entry| entry.target.as_str())
        .collect();
    let expected: Vec<String> = (0..1200).map(|number| format!("tool-{number}")).collect();
    assert_eq!(tools, expected);
    let first = entries.iter().find(|entry| entry.target == "tool-0").unwrap();
    assert_eq!((first.actor.as_str(), first.outcome.as_str()), ("user:u1", "ok"));
    let request = first.detail["request"].clone();
    assert_eq!(
        first.detail,
        json!({ "endpoint": "/mcp", "client": "claude", "credential": "grant:g1", "request": request, "era": "modern",
            "duration_us": 1500, "status": 200 })
    );
    let last = &entries[1202];
    assert_eq!(last.target, "[redacted]\u{fffd}");
    assert_eq!(last.detail["rpc_code"], -32603);
    assert_eq!(
        last.detail["payload"],
        json!({ "params": { "name": "pay", "arguments": { "password": "[redacted]", "amount": 3 } },
            "result": { "omitted_bytes": 7 } })
    );
    let report = world.report().await;
    assert!(report.holds(), "{:?}", report.findings);
    assert!(report.checkpoints >= 3, "one begins, one is due after many, one ends");
}

async fn what_does_not_fit_is_counted(world: World) {
    let trail = world.trail(SELDOM);
    let (log, writer) = CallLog::new(&trail, options(4));
    (0..10).for_each(|number| log.note(call(number)));
    assert_eq!((log.waiting(), world.counted.lost.get()), (4, 6));
    let tasks = Tasks::default();
    tasks.spawn("write", writer.run(tasks.clone()));
    assert!(tasks.finish(PATIENCE).await);
    let entries = world.all().await;
    let actions: Vec<&str> = entries.iter().map(|entry| entry.action.as_str()).collect();
    let calls = ["mcp:tools/call"; 4];
    let expected = [&["audit.open", "audit.lost"][..], &calls[..], &["audit.close"]].concat();
    let mut actions_in_order = actions.clone();
    actions_in_order.sort_unstable();
    let mut expected_in_order = expected.clone();
    expected_in_order.sort_unstable();
    assert_eq!(actions_in_order, expected_in_order);
    let lost = entries.iter().find(|entry| entry.action == "audit.lost").unwrap();
    assert_eq!(lost.detail, json!({ "entries": 6 }));
    let notes: Vec<_> = world.report().await.notes.iter().map(ToString::to_string).collect();
    assert!(notes.iter().any(|note| note.ends_with("6 entries before it were lost")), "{notes:?}");
}

async fn two_runs_do_not_mix(world: World) {
    let [one, two] = [world.trail(Duration::ZERO), world.trail(Duration::ZERO)];
    for number in 0..20 {
        let target = number.to_string();
        let (a, b) = tokio::join!(act(&one, &target), act(&two, &target));
        a.and(b).unwrap();
    }
    one.close().await.unwrap();
    let report = world.report().await;
    assert!(report.holds(), "{:?}", report.findings);
    assert_eq!((report.chains, report.entries), (2, 43));
}

#[tokio::test]
async fn a_database_that_was_away_has_each_call_once_and_word_of_each_action() {
    let server = PostgresServer::start().await;
    server.create_database("records");
    let patient = SqlRecords::open(&server.url("records"), &SqlOptions::default()).unwrap();
    patient.migrate().await.unwrap();
    let proxy = FaultProxy::start(server.port()).await;
    let hasty = SqlOptions {
        max_connections: 2,
        acquire_timeout: Duration::from_millis(1500),
        statement_timeout: Duration::from_secs(1),
    };
    let url = server.url("records").replace(&format!(":{}", server.port()), &format!(":{}", proxy.port));
    let records = Arc::new(SqlRecords::open(&url, &hasty).unwrap());
    let mut world = World::over(Fixture::memory().await);
    world.f.a = records.clone();
    let keys = Arc::new(AuditKeys::new(records.clone(), world.ring.clone()));
    let trail = Arc::new(AuditTrail::signed(records, keys, "one", SELDOM, world.counted.clone()));
    let (log, writer) = CallLog::new(&trail, options(100));
    let tasks = Tasks::default();
    tasks.spawn("write", writer.run(tasks.clone()));
    log.note(call(0));
    eventually(PATIENCE, async || world.counted.written.get() == 2).await;

    proxy.set(Fault::Silence);
    log.note(call(1));
    assert!(act(&trail, "an action that is lost").await.is_err());
    (2..150).for_each(|number| log.note(call(number)));
    assert!(world.counted.lost.get() > 40, "{}", world.counted.lost.get());
    let lost = world.counted.lost.get();
    proxy.set(Fault::None);
    proxy.cut();
    assert!(tasks.finish(PATIENCE * 2).await);

    world.f.a = Arc::new(patient);
    let report = world.report().await;
    assert!(report.holds(), "{:?}", report.findings);
    assert_eq!(report.chains, 1);
    let entries = world.all().await;
    let calls = entries.iter().filter(|entry| entry.action.starts_with("mcp:"));
    let mut targets: Vec<&str> = calls.map(|entry| entry.target.as_str()).collect();
    let count = targets.len();
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), count, "none is there twice");
    let told: u64 = entries
        .iter()
        .filter(|entry| entry.action == "audit.lost")
        .map(|entry| entry.detail["entries"].as_u64().unwrap())
        .sum();
    let actions = entries.iter().filter(|entry| entry.action == "token.create").count() as u64;
    assert_eq!(told, world.counted.lost.get());
    assert!(told >= lost && count as u64 + told + actions == 151, "{count} and {told} and {actions}");
}
