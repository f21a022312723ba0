use drawbridge_auth::audit::{
    AuditFilter, AuditKey, AuditKind, AuditStore as _, Checkpoint, CheckpointKind, Head,
};
use drawbridge_auth::records::RecordsError;
use serde_json::json;

use crate::fixture::{Fixture, at, entry};

const ALL: AuditFilter = AuditFilter {
    chain: None,
    since: None,
    until: None,
    kind: None,
    actor: None,
    action: None,
    target: None,
    outcome: None,
};

fn checkpoint(chain: &str, number: i64, kind: CheckpointKind, seconds: i64) -> Checkpoint {
    let head = Head { chain: chain.to_owned(), number, hash: format!("{number:04x}") };
    Checkpoint { head, kind, at: at(seconds), statement: format!("{chain}.{number}.{kind}") }
}

pub(super) async fn entries_come_in_the_order_of_time(f: &Fixture) {
    let r = &*f.a;
    r.append_audit(&[], None).await.unwrap();
    assert_eq!(r.audit(&ALL, None, 10).await.unwrap().items, []);
    let one = [entry("a:1", 1, at(0)), entry("a:1", 2, at(5)), entry("a:1", 3, at(5))];
    let two = [entry("b", 1, at(5)), entry("b", 2, at(1))];
    r.append_audit(&two, None).await.unwrap();
    f.b.append_audit(&one, None).await.unwrap();
    let order = [one[0].clone(), two[1].clone(), one[1].clone(), one[2].clone(), two[0].clone()];
    assert_eq!(r.audit(&ALL, None, 10).await.unwrap().items, order);
    for limit in 1..=5 {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = f.b.audit(&ALL, after.as_deref(), limit).await.unwrap();
            assert!(page.items.len() <= limit as usize);
            seen.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, order, "by {limit}");
    }
    assert_eq!(r.audit(&ALL, None, 0).await.unwrap().next.as_deref(), Some("a:1:1"));
    assert_eq!(r.audit(&ALL, Some("b:1"), 10).await.unwrap().items, []);
}

pub(super) async fn all_entries_are_appended_or_none(f: &Fixture) {
    let r = &*f.a;
    let many: Vec<_> = (1..=257).map(|n| entry("a", n, at(n))).collect();
    r.append_audit(&many, None).await.unwrap();
    assert_eq!(r.audit(&ALL, None, 1000).await.unwrap().items, many);
    let twice: Vec<_> = (200..=400).rev().map(|n| entry("a", n, at(n))).collect();
    let refused = r.append_audit(&twice, None).await.unwrap_err();
    assert!(matches!(refused, RecordsError::Refused(_)), "{refused}");
    assert_eq!(f.b.audit(&ALL, None, 1000).await.unwrap().items.len(), 257);
    let next: Vec<_> = (1..=600).map(|n| entry("b", n, at(0))).collect();
    r.append_audit(&next, None).await.unwrap();
    assert_eq!(r.audit(&ALL, None, 100_000).await.unwrap().items.len(), 500, "no more at once");
}

pub(super) async fn a_cursor_outlives_its_entry(f: &Fixture) {
    let r = &*f.a;
    let all: Vec<_> = (1..=6).map(|n| entry("a", n, at(n))).collect();
    r.append_audit(&all, None).await.unwrap();
    let next = r.audit(&ALL, None, 2).await.unwrap().next;
    assert_eq!(next.as_deref(), Some("a:2"));
    assert_eq!(r.cut_audit("a", 3).await.unwrap(), 3);
    assert_eq!(r.audit(&ALL, next.as_deref(), 10).await.unwrap().items, all[3..]);
    for nonsense in ["", "a", "a:", "a:b", "\0:1"] {
        let refused = r.audit(&ALL, Some(nonsense), 10).await.unwrap_err();
        assert!(matches!(refused, RecordsError::Refused(_)), "{nonsense:?}: {refused}");
    }
}

pub(super) async fn entries_are_found_by_what_they_are(f: &Fixture) {
    let r = &*f.a;
    let call = |mut entry: drawbridge_auth::audit::AuditEntry, actor: &str, outcome: &str| {
        entry.action = "mcp:tools/call".to_owned();
        (entry.actor, entry.outcome) = (actor.to_owned(), outcome.to_owned());
        entry
    };
    let all = [
        entry("a", 1, at(1)),
        call(entry("a", 2, at(2)), "user:u1", "ok"),
        call(entry("b", 1, at(3)), "user:u2", "tool_error"),
        entry("b", 2, at(4)),
    ];
    r.append_audit(&all, None).await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    for (filter, expected) in [
        (AuditFilter { chain: text("b"), ..ALL }, &[2, 3][..]),
        (AuditFilter { chain: text("a\0"), ..ALL }, &[]),
        (AuditFilter { since: Some(at(2)), until: Some(at(4)), ..ALL }, &[1, 2]),
        (AuditFilter { kind: Some(AuditKind::Call), ..ALL }, &[1, 2]),
        (AuditFilter { kind: Some(AuditKind::Action), ..ALL }, &[0, 3]),
        (AuditFilter { actor: text("user:u1"), ..ALL }, &[1]),
        (AuditFilter { action: text("token.create"), target: text("token:2"), ..ALL }, &[3]),
        (AuditFilter { outcome: text("tool_error"), ..ALL }, &[2]),
    ] {
        let expected: Vec<_> = expected.iter().map(|&place: &usize| all[place].clone()).collect();
        assert_eq!(f.b.audit(&filter, None, 10).await.unwrap().items, expected, "{filter:?}");
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = r.audit(&filter, after.as_deref(), 1).await.unwrap();
            seen.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected, "one by one: {filter:?}");
    }
}

pub(super) async fn chains_are_walked_and_cut(f: &Fixture) {
    use CheckpointKind::{Close, Cut, Mark};
    let r = &*f.a;
    assert_eq!(r.next_audit_chain("").await.unwrap(), None);
    assert_eq!(r.audit_head("a").await.unwrap(), None);
    let all: Vec<_> = (1..=1100).map(|n| entry("b", n, at(n))).collect();
    let [mark, close] = [checkpoint("b", 1, Mark, 1), checkpoint("b", 1100, Close, 2000)];
    r.append_audit(&all[..1], Some(&mark)).await.unwrap();
    r.append_audit(&all[1..], Some(&close)).await.unwrap();
    let seen = checkpoint("a", 7, Mark, 1500);
    r.append_audit(&[], Some(&seen)).await.unwrap();
    r.append_audit(&[], Some(&seen)).await.unwrap();
    let chains = [("", Some("a")), ("a", Some("b")), ("b", None), ("aa", Some("b"))];
    for (after, next) in chains {
        assert_eq!(f.b.next_audit_chain(after).await.unwrap().as_deref(), next, "{after}");
    }
    let head = r.audit_head("b").await.unwrap().unwrap();
    assert_eq!((head.number, head.hash.as_str()), (1100, "00ff"));
    assert_eq!(r.audit_heads(at(500)).await.unwrap(), [head]);
    assert_eq!(r.audit_heads(at(5000)).await.unwrap(), []);
    assert_eq!(r.audit_chain("b", 1098, 10).await.unwrap(), all[1098..]);
    assert_eq!(r.audit_chain("b", 0, 10_000).await.unwrap().len(), 500);
    assert_eq!(r.audit_checkpoints("b", 0, 10).await.unwrap(), [mark, close.clone()]);
    let last = std::slice::from_ref(&close);
    assert_eq!(r.audit_checkpoints("b", 1, 10).await.unwrap(), last);
    assert_eq!(r.newest_audit_checkpoints(1).await.unwrap(), last);

    assert_eq!(r.audit_cut("b").await.unwrap(), None);
    let cut = checkpoint("b", 1050, Cut, 3000);
    r.append_audit(&[], Some(&cut)).await.unwrap();
    assert_eq!(r.audit_cut("b").await.unwrap(), Some(cut.clone()));
    let mut steps = Vec::new();
    loop {
        match r.cut_audit("b", 1050).await.unwrap() {
            0 => break,
            rows => steps.push(rows),
        }
    }
    assert_eq!(steps, [500, 500, 50, 1]);
    assert_eq!(r.audit_chain("b", 0, 100).await.unwrap(), all[1050..]);
    assert_eq!(r.audit_checkpoints("b", 0, 10).await.unwrap(), [cut, close]);
    // A checkpoint goes with its entries or not at all.
    let twice = r.append_audit(&all[1099..], Some(&checkpoint("b", 1101, Mark, 1))).await;
    assert!(matches!(twice, Err(RecordsError::Refused(_))));
    assert_eq!(r.audit_checkpoints("b", 1100, 10).await.unwrap(), []);
}

pub(super) async fn keys_of_the_trail_are_kept_and_sealed_anew(f: &Fixture) {
    let key = |kid: &str, seconds| AuditKey {
        kid: kid.to_owned(),
        private: format!("k1.{kid}"),
        public: json!({ "kty": "EC" }),
        created_at: at(seconds),
    };
    let [one, two] = [key("one", 2), key("two", 1)];
    f.a.keep_audit_key(&one).await.unwrap();
    f.a.keep_audit_key(&two).await.unwrap();
    let again = AuditKey { private: "k2.one".to_owned(), ..one };
    f.b.keep_audit_key(&again).await.unwrap();
    assert_eq!(f.a.audit_keys().await.unwrap(), [two, again]);
}
