use drawbridge_auth::records::{OAuthClient, Records as _, RecordsError};
use serde_json::json;

use crate::fixture::{DAY, Fixture, at, client, grant, hash, page, user};

pub(super) async fn equal_metadata_without_a_secret_is_one_client(f: &Fixture) {
    let r = f.records();
    let odd = OAuthClient {
        metadata: json!({"z": {"b": 1, "a": [1.5, null]}, "n\u{0}ul": "ü\u{1F980}"}),
        ..client("c1")
    };
    assert_eq!(r.add_client(&odd, &[1; 32], None).await.unwrap(), odd);
    assert_eq!(f.b.add_client(&client("c2"), &[1; 32], None).await.unwrap(), odd);
    assert_eq!(f.b.add_client(&client("c3"), &[2; 32], None).await.unwrap(), client("c3"));
    assert_eq!(r.client("c1").await.unwrap(), Some((odd, None)));
    assert_eq!(r.client("c2").await.unwrap(), None);
    assert_eq!(r.client("c\0").await.unwrap(), None);
    let taken = r.add_client(&client("c1"), &[3; 32], None).await.unwrap_err();
    assert!(matches!(taken, RecordsError::Refused(_)), "{taken}");
}

pub(super) async fn many_who_register_at_once_get_one_client(f: &Fixture) {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        tasks.spawn(async move { records.add_client(&client(&format!("c{n}")), &[7; 32], None).await });
    }
    let ids: std::collections::BTreeSet<_> =
        tasks.join_all().await.into_iter().map(|c| c.unwrap().id).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(f.records().clients(&page(None, 50)).await.unwrap().items.len(), 1);
}

pub(super) async fn a_client_with_a_secret_is_its_own(f: &Fixture) {
    let r = f.records();
    r.add_client(&client("c1"), &[1; 32], None).await.unwrap();
    for id in ["c2", "c3"] {
        assert_eq!(r.add_client(&client(id), &[1; 32], Some(&hash(id))).await.unwrap(), client(id));
        assert_eq!(f.b.client(id).await.unwrap(), Some((client(id), Some(hash(id)))));
    }
    assert_eq!(r.add_client(&client("c4"), &[1; 32], None).await.unwrap().id, "c1");
    let ids = r.clients(&page(None, 2)).await.unwrap();
    assert_eq!(ids.items.iter().map(|client| client.id.as_str()).collect::<Vec<_>>(), ["c3", "c2"]);
    assert_eq!(ids.next.as_deref(), Some("c2"));
}

pub(super) async fn a_client_is_used_disabled_and_removed(f: &Fixture) {
    let r = f.records();
    r.add_client(&client("c1"), &[1; 32], None).await.unwrap();
    r.touch_client("nothing", at(0)).await.unwrap();
    let used = async || f.b.client("c1").await.unwrap().unwrap().0.last_used_at;
    r.touch_client("c1", at(10)).await.unwrap();
    assert_eq!(used().await, Some(at(10)));
    r.touch_client("c1", at(10 + 3601)).await.unwrap();
    assert_eq!(used().await, Some(at(10 + 3601)));
    r.touch_client("c1", at(20)).await.unwrap();
    assert_eq!(used().await, Some(at(10 + 3601)), "it does not go back");

    assert_eq!(r.set_client_disabled("nothing", true, at(0)).await.unwrap(), None);
    let disabled = r.set_client_disabled("c1", true, at(5)).await.unwrap().unwrap();
    assert_eq!(disabled.disabled_at, Some(at(5)));
    assert_eq!(r.set_client_disabled("c1", true, at(6)).await.unwrap(), Some(disabled));
    assert_eq!(r.set_client_disabled("c1", false, at(7)).await.unwrap().unwrap().disabled_at, None);

    assert!(r.remove_client("c1").await.unwrap());
    assert!(!f.b.remove_client("c1").await.unwrap());
    assert_eq!(r.client("c1").await.unwrap(), None);
    assert_eq!(r.add_client(&client("c2"), &[1; 32], None).await.unwrap().id, "c2");
}

pub(super) async fn clients_that_were_never_used_are_forgotten(f: &Fixture) {
    let r = f.records();
    user(r, "u1").await;
    let made = |id: &str, seconds| OAuthClient { created_at: at(seconds), ..client(id) };
    for (n, client) in
        [made("old", 0), made("used", 0), made("granted", 0), made("new", DAY)].iter().enumerate()
    {
        r.add_client(client, &[u8::try_from(n).unwrap(); 32], None).await.unwrap();
    }
    let mut of = grant("g1", "u1");
    of.client = "granted".to_owned();
    r.redeem(&of, None).await.unwrap();
    assert_eq!(r.unused_clients().await.unwrap(), 4);
    r.touch_client("used", at(1)).await.unwrap();
    assert_eq!(r.unused_clients().await.unwrap(), 3);
    assert_eq!(r.forget_unused_clients(at(0)).await.unwrap(), 0);
    assert_eq!(r.forget_unused_clients(at(DAY)).await.unwrap(), 1);
    let left = r.clients(&page(None, 10)).await.unwrap().items;
    assert_eq!(left.iter().map(|client| client.id.as_str()).collect::<Vec<_>>(), ["used", "new", "granted"]);
}
