use drawbridge_auth::records::{Grant, GrantFilter, Records as _, RecordsError, Redeemed};

use crate::fixture::{Fixture, at, grant, hash, page, refresh, set, user};

pub(super) async fn a_code_is_redeemed_once(f: &Fixture) {
    let r = f.records();
    user(r, "u1").await;
    let full = Grant { scopes: set(&[]), client_name: None, ..grant("g1", "u1") };
    assert_eq!(r.redeem(&full, Some(&refresh("r1"))).await.unwrap(), Redeemed::Granted);
    assert_eq!(f.b.grant("g1").await.unwrap(), Some(full.clone()));
    assert_eq!(f.b.grant_of_refresh(&hash("r1")).await.unwrap(), Some(full.clone()));
    assert_eq!(f.b.grant_of_refresh(&hash("r2")).await.unwrap(), None);
    let again = f.b.redeem(&grant("g1", "u1"), Some(&refresh("r2"))).await.unwrap();
    assert_eq!(again, Redeemed::Before(Box::new(full)));
    assert_eq!(r.grant_of_refresh(&hash("r2")).await.unwrap(), None, "the second token was not kept");
    r.revoke_grant("g1", "code_reuse", at(3)).await.unwrap();
    let Redeemed::Before(now) = r.redeem(&grant("g1", "u1"), None).await.unwrap() else { panic!() };
    assert_eq!(now.revoke_reason.as_deref(), Some("code_reuse"), "as it is now");
    // A refresh token that can't be kept leaves no grant.
    r.redeem(&grant("g2", "u1"), Some(&refresh("r1"))).await.unwrap_err();
    assert_eq!(r.grant("g2").await.unwrap(), None);
}

pub(super) async fn of_many_who_redeem_at_once_one_gets_the_grant(f: &Fixture) {
    user(f.records(), "u1").await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        tasks
            .spawn(async move { records.redeem(&grant("g1", "u1"), Some(&refresh(&format!("r{n}")))).await });
    }
    let all: Vec<_> = tasks.join_all().await.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|redeemed| **redeemed == Redeemed::Granted).count(), 1);
    assert!(all.iter().all(|redeemed| match redeemed {
        Redeemed::Granted => true,
        Redeemed::Before(before) => **before == grant("g1", "u1"),
    }));
}

pub(super) async fn a_burnt_code_stays_burnt(f: &Fixture) {
    let r = f.records();
    user(r, "u1").await;
    let burnt =
        Grant { revoked_at: Some(at(0)), revoke_reason: Some("code_burnt".to_owned()), ..grant("g1", "u1") };
    assert_eq!(r.redeem(&burnt, None).await.unwrap(), Redeemed::Granted);
    let late = f.b.redeem(&grant("g1", "u1"), Some(&refresh("r1"))).await.unwrap();
    assert_eq!(late, Redeemed::Before(Box::new(burnt)));
}

pub(super) async fn a_grant_is_revoked_once(f: &Fixture) {
    let r = f.records();
    user(r, "u1").await;
    assert_eq!(r.revoke_grant("g1", "admin", at(1)).await.unwrap(), None);
    r.redeem(&grant("g1", "u1"), None).await.unwrap();
    assert_eq!(r.revoke_grant("g1", "admin", at(1)).await.unwrap(), Some(grant("g1", "u1")));
    let revoked = f.b.grant("g1").await.unwrap().unwrap();
    assert_eq!((revoked.revoked_at, revoked.revoke_reason.as_deref()), (Some(at(1)), Some("admin")));
    assert_eq!(f.b.revoke_grant("g1", "user", at(2)).await.unwrap(), Some(revoked.clone()));
    assert_eq!(r.grant("g1").await.unwrap(), Some(revoked));
}

pub(super) async fn grants_are_listed_by_user_and_client(f: &Fixture) {
    let r = f.records();
    for id in ["u1", "u2"] {
        user(r, id).await;
    }
    for grant in [
        grant("g1", "u1"),
        Grant { client: "other".to_owned(), ..grant("g2", "u1") },
        Grant { revoked_at: Some(at(1)), ..grant("g3", "u1") },
        Grant { expires_at: at(10), ..grant("g4", "u2") },
        grant("g5", "u2"),
    ] {
        r.redeem(&grant, None).await.unwrap();
    }
    let list = async |user: Option<&str>, client: Option<&str>, ended| {
        let filter = GrantFilter { user: user.map(str::to_owned), client: client.map(str::to_owned), ended };
        let page = r.grants(&filter, &page(None, 10), at(10)).await.unwrap();
        page.items.into_iter().map(|grant| grant.id).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list(None, None, true).await, "g5 g4 g3 g2 g1");
    assert_eq!(list(None, None, false).await, "g5 g2 g1");
    assert_eq!(list(Some("u1"), None, false).await, "g2 g1");
    assert_eq!(list(Some("u1"), Some("client"), true).await, "g3 g1");
    assert_eq!(list(None, Some("other"), false).await, "g2");
    assert_eq!(list(Some("u3"), None, true).await, "");
    let first = r
        .grants(&GrantFilter { ended: true, ..GrantFilter::default() }, &page(None, 2), at(10))
        .await
        .unwrap();
    assert_eq!(first.next.as_deref(), Some("g4"));
}

pub(super) async fn a_grant_needs_its_user(f: &Fixture) {
    let refused = f.records().redeem(&grant("g1", "nobody"), None).await.unwrap_err();
    assert!(matches!(refused, RecordsError::Refused(_)), "{refused}");
}
