use drawbridge_auth::records::{Records as _, User, UserClaims};

use crate::fixture::{Fixture, at, claims, page, set, user};

pub(super) async fn whoever_comes_again_is_the_same_user(f: &Fixture) {
    let r = f.records();
    assert_eq!(r.user("u1").await.unwrap(), None);
    let first = r.enter_user("u1", &claims("sub"), at(0)).await.unwrap();
    assert_eq!((first.id.as_str(), first.version, first.created_at), ("u1", 1, at(0)));
    assert_eq!((first.claims_at, first.disabled_at), (Some(at(0)), None));

    let told = UserClaims {
        email: None,
        name: Some("Zoë \u{1F980} O'Hara; drop table users".to_owned()),
        ..claims("sub")
    };
    let again = r.enter_user("u2", &told, at(10)).await.unwrap();
    assert_eq!((again.id.as_str(), again.version, again.created_at), ("u1", 1, at(0)));
    assert_eq!((again.email, again.name, again.claims_at), (None, told.name.clone(), Some(at(10))));

    let moved = UserClaims { groups: set(&["staff", "größe \"x\""]), ..told.clone() };
    let moved = r.enter_user("u3", &moved, at(20)).await.unwrap();
    assert_eq!((moved.version, moved.groups.clone()), (2, set(&["größe \"x\"", "staff"])));
    let left = UserClaims { groups: set(&[]), ..told.clone() };
    assert_eq!(r.enter_user("u3", &left, at(30)).await.unwrap().version, 3);

    let other = UserClaims { issuer: "local".to_owned(), ..told };
    assert_eq!(r.enter_user("u4", &other, at(40)).await.unwrap().id, "u4");
    let kept = f.b.user("u1").await.unwrap().unwrap();
    assert_eq!((kept.version, &kept.groups), (3, &set(&[])));
    assert_eq!(f.b.user("u\0").await.unwrap(), None);
    assert_eq!(f.b.user_of(&kept.issuer, "sub").await.unwrap(), Some(kept.clone()));
    assert_eq!(f.b.user_of("local", "sub").await.unwrap().map(|user| user.id).as_deref(), Some("u4"));
    for (issuer, subject) in [(kept.issuer.as_str(), "su"), ("nobody", "sub"), ("local", "s\0")] {
        assert_eq!(f.b.user_of(issuer, subject).await.unwrap(), None);
    }
}

pub(super) async fn many_who_come_at_once_are_one_user(f: &Fixture) {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        tasks.spawn(async move { records.enter_user(&format!("u{n}"), &claims("one"), at(n)).await });
    }
    let ids: std::collections::BTreeSet<_> =
        tasks.join_all().await.into_iter().map(|user| user.unwrap().id).collect();
    assert_eq!(ids.len(), 1);
}

pub(super) async fn a_user_is_disabled_once_and_enabled_once(f: &Fixture) {
    let r = f.records();
    assert_eq!(r.set_user_disabled("nobody", true, at(0)).await.unwrap(), None);
    let new = user(r, "u1").await;
    let (before, after) = r.set_user_disabled("u1", true, at(5)).await.unwrap().unwrap();
    assert_eq!(before, new);
    assert_eq!((after.disabled_at, after.version), (Some(at(5)), 2));
    let (before, same) = f.b.set_user_disabled("u1", true, at(6)).await.unwrap().unwrap();
    assert_eq!((&before, &same), (&after, &after));
    let (before, enabled) = r.set_user_disabled("u1", false, at(7)).await.unwrap().unwrap();
    assert_eq!(before, after);
    assert_eq!((enabled.disabled_at, enabled.version), (None, 3));
    let (_, same) = r.set_user_disabled("u1", false, at(8)).await.unwrap().unwrap();
    assert_eq!(same, enabled);
    assert_eq!(f.b.user("u1").await.unwrap(), Some(enabled));
}

pub(super) async fn each_who_raises_a_version_is_told_another_one(f: &Fixture) {
    let r = f.records();
    for nobody in ["nobody", "u\0"] {
        assert_eq!(r.raise_user_version(nobody).await.unwrap(), None);
    }
    let (new, other) = (user(r, "u1").await, user(r, "u2").await);
    assert_eq!(r.raise_user_version("u1").await.unwrap(), Some(1), "the one before");
    assert_eq!(f.b.raise_user_version("u1").await.unwrap(), Some(2));
    assert_eq!(f.b.user("u1").await.unwrap(), Some(User { version: 3, ..new.clone() }));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        tasks.spawn(async move { records.raise_user_version("u1").await });
    }
    let mut told: Vec<_> = tasks.join_all().await.into_iter().map(|told| told.unwrap().unwrap()).collect();
    told.sort_unstable();
    assert_eq!(told, (3..23).collect::<Vec<i64>>());
    assert_eq!(f.b.user("u1").await.unwrap(), Some(User { version: 23, ..new }));
    assert_eq!(r.user("u2").await.unwrap(), Some(other), "nobody else's");
}

pub(super) async fn users_are_listed_newest_first(f: &Fixture) {
    let r = f.records();
    assert_eq!(r.users(&page(None, 10)).await.unwrap().items, []);
    for id in ["u2", "u1", "u3"] {
        user(r, id).await;
    }
    let first = r.users(&page(None, 2)).await.unwrap();
    assert_eq!(first.items.iter().map(|user| user.id.as_str()).collect::<Vec<_>>(), ["u3", "u2"]);
    let rest = r.users(&page(first.next.as_deref(), 2)).await.unwrap();
    assert_eq!(rest.items.iter().map(|user| user.id.as_str()).collect::<Vec<_>>(), ["u1"]);
    assert_eq!((first.next.as_deref(), rest.next), (Some("u2"), None));
    assert_eq!(r.users(&page(None, 3)).await.unwrap().next, None, "there is no more");
}
