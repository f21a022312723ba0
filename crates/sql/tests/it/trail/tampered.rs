//! Whoever can write into the database changes what is in it.

use chrono::{TimeDelta, Utc};
use drawbridge_auth::audit::{AuditEntry, AuditKeys, AuditTrail, Head, Verify, hash};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::{SELDOM, World, act, over_both, ring};

over_both!(
    what_nobody_has_changed_holds,
    every_change_is_found_and_where_it_is,
    a_chain_that_others_have_seen_is_missed,
    what_nobody_has_seen_is_found_by_what_was_kept_elsewhere,
    signatures_of_others_are_not_believed,
    any_change_of_a_signed_chain_is_found,
);

async fn what_nobody_has_changed_holds(world: World) {
    assert!(world.report().await.holds());
    let one = world.run(5, SELDOM).await;
    world.run(0, SELDOM).await;
    let by_hand = AuditTrail::new(world.f.a.clone());
    let event = drawbridge_auth::audit::Event {
        actor: "cli",
        action: "token.revoke",
        target: "x",
        outcome: "ok",
        detail: serde_json::json!({}),
    };
    by_hand.append(&[event]).await.unwrap();
    let running = world.trail(SELDOM);
    act(&running, "a").await.unwrap();
    act(&running, "b").await.unwrap();
    let report = world.report().await;
    assert!(report.holds(), "{:?}", report.findings);
    assert_eq!((report.chains, report.entries, report.checkpoints), (4, 13, 5));
    let notes: Vec<_> = report.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("command line") && notes[1].contains("its last 1 entries are not signed"));
    let entries = world.entries(&one).await;
    let actions: Vec<&str> = entries.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!((actions[0], actions[6]), ("audit.open", "audit.close"));
    assert_eq!(entries[0].target, "one");
}

/// An entry as somebody would write it who knows how hashes are made.
fn rewritten(before: &str, entry: &AuditEntry) -> AuditEntry {
    let mut entry = AuditEntry { target: "token:other".to_owned(), ..entry.clone() };
    entry.hash = hash(before, &entry);
    entry
}

async fn every_change_is_found_and_where_it_is(world: World) {
    let c = world.run(6, SELDOM).await;
    world
        .sql("create table a as select * from audit; create table p as select * from audit_checkpoints")
        .await;
    let entries = world.entries(&c).await;
    let third = rewritten(&entries[1].hash, &entries[2]);
    let mut all_after = String::new();
    let mut before = entries[1].hash.clone();
    for entry in &entries[2..] {
        let entry = rewritten(&before, entry);
        all_after += &format!(
            "update audit set target = '{}', hash = '{}' where number = {};",
            entry.target, entry.hash, entry.number
        );
        before = entry.hash;
    }
    let cut = "insert into audit_checkpoints select chain, 3, 'cut', at, hash, statement from audit_checkpoints \
               where number = 1";
    for (name, sql, expected) in [
        (
            "an edited row",
            "update audit set target = 'x' where number = 3".to_owned(),
            "entry 3: it does not follow",
        ),
        (
            "an edited detail",
            "update audit set detail = '{}' where number = 3".to_owned(),
            "entry 3: it does not follow",
        ),
        (
            "another time",
            "update audit set at = at + 1 where number = 8".to_owned(),
            "entry 8: it does not follow",
        ),
        (
            "an edited row with its own hash",
            format!("update audit set target = '{}', hash = '{}' where number = 3", third.target, third.hash),
            "entry 4: it does not follow",
        ),
        ("all rewritten from there on", all_after, "entry 8: it was signed (close)"),
        ("a deleted row", "delete from audit where number = 3".to_owned(), "entry 3: it is missing"),
        (
            "two deleted rows",
            "delete from audit where number in (3, 4)".to_owned(),
            "entry 3: it and all up to 4 are missing",
        ),
        (
            "two swapped rows",
            "update audit set number = -1 where number = 3; update audit set number = 3 where number = 4; \
             update audit set number = 4 where number = -1"
                .to_owned(),
            "entry 3: it does not follow",
        ),
        ("the newest rows deleted", "delete from audit where number > 6".to_owned(), "the chain ends at 6"),
        (
            "the oldest rows deleted",
            "delete from audit where number < 3".to_owned(),
            "nobody has signed that they were too old",
        ),
        (
            "the oldest rows deleted as if they were too old",
            format!("delete from audit where number < 4; {cut}"),
            "the checkpoint (cut) is not believed",
        ),
        ("all rows deleted", "delete from audit".to_owned(), "the chain ends at 0"),
        (
            "another statement",
            "update audit_checkpoints set hash = '00'".to_owned(),
            "is not believed: its row says something else",
        ),
        (
            "a broken statement",
            "update audit_checkpoints set statement = substr(statement, 1, 300)".to_owned(),
            "is not believed",
        ),
        (
            "all checkpoints deleted",
            "delete from audit_checkpoints".to_owned(),
            "it has no checkpoint that is believed",
        ),
        ("keys deleted", "delete from audit_keys".to_owned(), "is not known"),
    ] {
        let keys = world.store().audit_keys().await.unwrap();
        world.sql(&sql).await;
        let faults = world.faults().await;
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{name}: {faults:#?}");
        assert!(faults.iter().all(|fault| fault.contains(&c)), "{name}: {faults:#?}");
        world
            .sql(
                "delete from audit; insert into audit select * from a; delete from audit_checkpoints; \
                 insert into audit_checkpoints select * from p",
            )
            .await;
        for key in keys {
            world.store().keep_audit_key(&key).await.unwrap();
        }
        assert_eq!(world.faults().await, Vec::<String>::new(), "{name}");
    }
}

async fn a_chain_that_others_have_seen_is_missed(world: World) {
    let one = world.run(6, SELDOM).await;
    let two = world.run(1, SELDOM).await;
    world
        .sql("create table a as select * from audit; create table p as select * from audit_checkpoints")
        .await;
    let of_one = format!("where chain = '{one}'");
    for (sql, expected) in [
        (
            format!("delete from audit {of_one}; delete from audit_checkpoints {of_one}"),
            format!("chain {one}: it is gone as a whole; its entry 8 was seen when chain {two} was signed"),
        ),
        (
            format!(
                "delete from audit {of_one} and number > 3; delete from audit_checkpoints {of_one} and number > 3"
            ),
            format!("chain {one}, entry 8: it was seen when chain {two} was signed"),
        ),
    ] {
        world.sql(&sql).await;
        let faults = world.faults().await;
        assert!(faults.iter().any(|fault| fault.contains(&expected)), "{faults:#?}");
        let insert = "delete from audit; insert into audit select * from a; delete from audit_checkpoints; \
                      insert into audit_checkpoints select * from p";
        world.sql(insert).await;
    }
    assert_eq!(world.faults().await, Vec::<String>::new());
}

async fn what_nobody_has_seen_is_found_by_what_was_kept_elsewhere(world: World) {
    world.run(2, SELDOM).await;
    let last = world.run(6, SELDOM).await;
    let end = world.entries(&last).await.pop().unwrap();
    let of_last = format!("where chain = '{last}'");
    world
        .sql(&format!("delete from audit {of_last} and number > 3; delete from audit_checkpoints {of_last} and number > 3"))
        .await;
    let report = world.report().await;
    assert!(report.holds(), "{:?}", report.findings);
    let notes: Vec<_> = report.notes.iter().map(ToString::to_string).collect();
    assert!(notes.iter().any(|note| note.contains("no closing checkpoint")), "{notes:?}");

    let kept = vec![Head { chain: last.clone(), number: end.number, hash: end.hash }];
    let by = Verify { trust: world.trust(&[]).await, kept, ..Verify::default() };
    let faults = world.report_by(by).await.findings;
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(
        faults[0].to_string(),
        format!("chain {last}, entry 8: it was kept elsewhere, but the chain ends at 3")
    );
}

async fn signatures_of_others_are_not_believed(world: World) {
    world.run(3, SELDOM).await;
    // Somebody with another seal key writes a chain that is sound in itself.
    let keys = std::sync::Arc::new(AuditKeys::new(world.f.a.clone(), ring(&[("k1", 9)])));
    let trail = AuditTrail::signed(world.f.a.clone(), keys, "two", SELDOM, world.counted.clone());
    trail.open().await.unwrap();
    act(&trail, "x").await.unwrap();
    trail.close().await.unwrap();
    let forged = trail.chain().await;
    let faults = world.faults().await;
    assert!(faults.iter().any(|fault| fault.contains("is one that no seal key opens")), "{faults:#?}");
    assert!(!faults.iter().any(|fault| fault.contains(&forged)), "the one that is not written yet");
    // Nobody makes it go away by sweeping.
    let swept = world.sweep(Utc::now() + TimeDelta::days(1), "").await;
    assert_eq!(swept.broken, 1, "{swept:?}");
    assert_eq!(world.counted.broken.get(), 1);
    assert!(!world.faults().await.is_empty());
}

/// What somebody does to an entry.
#[derive(Debug, Clone)]
enum Change {
    Text(&'static str, String),
    Delete,
    Swap(i64),
    Move(i64),
    Repeat(i64),
}

fn any_change() -> impl Strategy<Value = Change> {
    let column = prop::sample::select(&["actor", "action", "target", "outcome", "hash"][..]);
    prop_oneof![
        (column, "[a-z]{0,6}").prop_map(|(column, text)| Change::Text(column, text)),
        Just(Change::Delete),
        (1..=10_i64).prop_map(Change::Swap),
        (11..=20_i64).prop_map(Change::Move),
        (11..=20_i64).prop_map(Change::Repeat),
    ]
}

async fn any_change_of_a_signed_chain_is_found(world: World) {
    world.run(8, SELDOM).await;
    world.sql("create table a as select * from audit").await;
    let mut runner = TestRunner::default();
    for _ in 0..24 {
        let number = (1..=10_i64).new_tree(&mut runner).unwrap().current();
        let change: Change = any_change().new_tree(&mut runner).unwrap().current();
        let sql = match &change {
            Change::Text(column, text) => {
                format!("update audit set {column} = '{text}' where number = {number}")
            }
            Change::Delete => format!("delete from audit where number = {number}"),
            Change::Swap(other) if *other == number => continue,
            Change::Swap(other) => format!(
                "update audit set number = -1 where number = {number}; \
                 update audit set number = {number} where number = {other}; \
                 update audit set number = {other} where number = -1"
            ),
            Change::Move(to) => format!("update audit set number = {to} where number = {number}"),
            Change::Repeat(to) => format!(
                "insert into audit select chain, {to}, at, actor, action, target, outcome, detail, hash \
                 from audit where number = {number}"
            ),
        };
        world.sql(&sql).await;
        let faults = world.faults().await;
        assert!(!faults.is_empty(), "{change:?} of {number}");
        world.sql("delete from audit; insert into audit select * from a").await;
    }
    assert_eq!(world.faults().await, Vec::<String>::new());
}
