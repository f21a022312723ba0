use drawbridge_auth::records::{Records as _, RecordsError};

use crate::fixture::{Fixture, at, entry};

pub(super) async fn entries_come_in_the_order_of_time(f: &Fixture) {
    let r = f.records();
    r.append_audit(&[]).await.unwrap();
    assert_eq!(r.audit(None, 10).await.unwrap().items, []);
    let one = [entry("a:1", 1, at(0)), entry("a:1", 2, at(5)), entry("a:1", 3, at(5))];
    let two = [entry("b", 1, at(5)), entry("b", 2, at(1))];
    r.append_audit(&two).await.unwrap();
    f.b.append_audit(&one).await.unwrap();
    let order = [one[0].clone(), two[1].clone(), one[1].clone(), one[2].clone(), two[0].clone()];
    assert_eq!(r.audit(None, 10).await.unwrap().items, order);
    for limit in 1..=5 {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = f.b.audit(after.as_deref(), limit).await.unwrap();
            assert!(page.items.len() <= limit as usize);
            seen.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, order, "by {limit}");
    }
    assert_eq!(r.audit(None, 0).await.unwrap().next.as_deref(), Some("a:1:1"));
    assert_eq!(r.audit(Some("b:1"), 10).await.unwrap().items, []);
}

pub(super) async fn all_entries_are_appended_or_none(f: &Fixture) {
    let r = f.records();
    let many: Vec<_> = (1..=257).map(|n| entry("a", n, at(n))).collect();
    r.append_audit(&many).await.unwrap();
    assert_eq!(r.audit(None, 1000).await.unwrap().items, many);
    let twice: Vec<_> = (200..=400).rev().map(|n| entry("a", n, at(n))).collect();
    let refused = r.append_audit(&twice).await.unwrap_err();
    assert!(matches!(refused, RecordsError::Refused(_)), "{refused}");
    assert_eq!(f.b.audit(None, 1000).await.unwrap().items.len(), 257);
    let next: Vec<_> = (1..=600).map(|n| entry("b", n, at(0))).collect();
    r.append_audit(&next).await.unwrap();
    assert_eq!(r.audit(None, 100_000).await.unwrap().items.len(), 500, "no more at once");
}

pub(super) async fn a_cursor_outlives_its_entry(f: &Fixture) {
    let r = f.records();
    let all: Vec<_> = (1..=6).map(|n| entry("a", n, at(n))).collect();
    r.append_audit(&all).await.unwrap();
    let next = r.audit(None, 2).await.unwrap().next;
    assert_eq!(next.as_deref(), Some("a:2"));
    r.sweep(at(100), Some(at(4))).await.unwrap();
    assert_eq!(r.audit(next.as_deref(), 10).await.unwrap().items, all[3..]);
    for nonsense in ["", "a", "a:", "a:b", "\0:1"] {
        let refused = r.audit(Some(nonsense), 10).await.unwrap_err();
        assert!(matches!(refused, RecordsError::Refused(_)), "{nonsense:?}: {refused}");
    }
}
