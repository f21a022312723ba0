use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::fleet::{Fleet, at_last, session};

const TTL: Duration = Duration::from_secs(60);

pub(crate) async fn a_field_that_is_set_keeps_its_value(fleet: &Fleet) {
    let (one, two, key) = (&fleet.one.sessions, &fleet.two.sessions, session());
    assert_eq!(one.get(key, "id").await.unwrap(), None);
    assert_eq!(one.put_if_absent(key, "id", Bytes::from("a"), TTL).await.unwrap(), "a");
    assert_eq!(two.put_if_absent(key, "id", Bytes::from("b"), TTL).await.unwrap(), "a");
    assert_eq!(two.put_if_absent(key, "level", Bytes::from("c"), TTL).await.unwrap(), "c");
    assert_eq!(two.get(key, "id").await.unwrap().unwrap(), "a");
    assert_eq!(one.get(key, "level").await.unwrap().unwrap(), "c");
    assert_eq!(one.get(session(), "id").await.unwrap(), None);
}

pub(crate) async fn of_many_that_set_a_field_at_once_one_wins(fleet: &Fleet) {
    let key = session();
    let each = (0..40).map(|n| {
        let instance = if n % 2 == 0 { &fleet.one } else { &fleet.two };
        instance.sessions.put_if_absent(key, "id", Bytes::from(format!("{n}")), TTL)
    });
    let values: Vec<Bytes> = join_all(each).await.into_iter().map(Result::unwrap).collect();
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
}

pub(crate) async fn only_who_knows_the_value_replaces_it(fleet: &Fleet) {
    let (one, two, key) = (&fleet.one.sessions, &fleet.two.sessions, session());
    assert!(!one.replace(key, "id", b"a", Bytes::from("b"), TTL).await.unwrap());
    one.put_if_absent(key, "id", Bytes::from("a"), TTL).await.unwrap();
    assert!(two.replace(key, "id", b"a", Bytes::from("b"), TTL).await.unwrap());
    assert!(!one.replace(key, "id", b"a", Bytes::from("c"), TTL).await.unwrap());
    assert!(!one.replace(key, "other", b"b", Bytes::from("c"), TTL).await.unwrap());
    assert_eq!(one.get(key, "id").await.unwrap().unwrap(), "b");
}

pub(crate) async fn only_who_knows_the_value_removes_it(fleet: &Fleet) {
    let (one, two, key) = (&fleet.one.sessions, &fleet.two.sessions, session());
    one.put_if_absent(key, "id", Bytes::from("a"), TTL).await.unwrap();
    assert!(!two.remove(key, "id", b"b").await.unwrap());
    assert!(two.remove(key, "id", b"a").await.unwrap());
    assert!(!two.remove(key, "id", b"a").await.unwrap());
    assert_eq!(one.get(key, "id").await.unwrap(), None);
    assert_eq!(one.touch(key, TTL).await.unwrap(), None, "nothing is left of it");
}

pub(crate) async fn all_fields_end_together(fleet: &Fleet) {
    let (one, key, kept) = (&fleet.one.sessions, session(), session());
    for key in [key, kept] {
        one.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
        one.put_if_absent(key, "b", Bytes::from("2"), Duration::from_millis(200)).await.unwrap();
    }
    assert!(fleet.two.sessions.replace(kept, "b", b"2", Bytes::from("3"), TTL).await.unwrap());
    at_last("the fields to end", async || one.get(key, "b").await.unwrap().is_none().then_some(())).await;
    assert_eq!(one.get(key, "a").await.unwrap(), None);
    assert_eq!(one.get(kept, "a").await.unwrap().unwrap(), "1");
}

pub(crate) async fn a_use_says_how_long_it_would_have_lasted(fleet: &Fleet) {
    let (one, key) = (&fleet.one.sessions, session());
    assert_eq!(one.touch(key, TTL).await.unwrap(), None);
    one.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
    let left = one.touch(key, TTL * 2).await.unwrap().unwrap();
    assert!(left <= TTL && left > TTL - Duration::from_secs(20), "{left:?}");
    let left = fleet.two.sessions.touch(key, TTL).await.unwrap().unwrap();
    assert!(left > TTL, "{left:?}");
}

pub(crate) async fn who_takes_the_fields_has_all_of_them(fleet: &Fleet) {
    let (one, two, key) = (&fleet.one.sessions, &fleet.two.sessions, session());
    assert_eq!(one.take(key).await.unwrap(), []);
    for field in ["a", "b", "c"] {
        one.put_if_absent(key, field, Bytes::from(field), TTL).await.unwrap();
    }
    let mut taken = two.take(key).await.unwrap();
    taken.sort();
    let expected = ["a", "b", "c"].map(|field| (field.to_owned(), Bytes::from(field)));
    assert_eq!(taken, expected);
    assert_eq!(one.take(key).await.unwrap(), []);
    assert_eq!(one.get(key, "a").await.unwrap(), None);
}

pub(crate) async fn values_are_any_bytes(fleet: &Fleet) {
    let (one, key) = (&fleet.one.sessions, session());
    let all: Bytes = (0..=255).collect();
    let values = [all, Bytes::new(), Bytes::from(vec![b'x'; 200_000]), Bytes::from("-1"), Bytes::from("OK")];
    for (n, value) in values.iter().enumerate() {
        let field = format!("field {n} {{}} ä");
        assert_eq!(one.put_if_absent(key, &field, value.clone(), TTL).await.unwrap(), value);
        assert_eq!(fleet.two.sessions.get(key, &field).await.unwrap().unwrap(), value);
        assert!(one.replace(key, &field, value, Bytes::from("new"), TTL).await.unwrap());
    }
}
