use std::net::IpAddr;

use drawbridge_auth::records::{Records as _, RecordsError, Token, TokenFilter, TokenStatus};
use drawbridge_auth::token::TokenKind;

use crate::fixture::{Fixture, at, hash, page, set, token, user};

pub(super) async fn a_token_comes_back_as_it_was_kept(f: &Fixture) {
    user(f.records(), "u1").await;
    let full = Token {
        kind: TokenKind::Personal,
        name: "ünïcode ' \" \\ \n \u{1F980} % _".repeat(200),
        owner: Some("u1".to_owned()),
        service: None,
        scopes: set(&["a", "b c", "\"d\""]),
        endpoints: set(&["", "*", "tools"]),
        networks: set(&["10.0.0.0/8", "2001:db8::/32"]),
        groups: set(&["g"]),
        chain: "t0".to_owned(),
        version: i64::MAX - 1,
        expires_at: Some(at(100)),
        last_used_at: Some(at(1)),
        last_used_from: Some("::1".to_owned()),
        revoked_at: Some(at(2)),
        revoked_by: Some("admin".to_owned()),
        rotated_to: Some("t2".to_owned()),
        ..token("t1")
    };
    f.records().add_token(&full, &hash("one")).await.unwrap();
    f.records().add_token(&token("t3"), &hash("three")).await.unwrap();
    assert_eq!(f.b.token("t1").await.unwrap(), Some(full));
    assert_eq!(f.b.token("t3").await.unwrap(), Some(token("t3")));
    assert_eq!(f.b.token("t2").await.unwrap(), None);
}

pub(super) async fn a_token_is_found_by_its_secret_with_its_owner(f: &Fixture) {
    let r = f.records();
    let owner = user(r, "u1").await;
    let personal = Token { kind: TokenKind::Personal, owner: Some("u1".to_owned()), ..token("t1") };
    r.add_token(&personal, &hash("one")).await.unwrap();
    r.add_token(&token("t2"), &hash("two")).await.unwrap();
    assert_eq!(r.token_by_secret(&hash("one")).await.unwrap(), Some((personal, Some(owner))));
    assert_eq!(r.token_by_secret(&hash("two")).await.unwrap(), Some((token("t2"), None)));
    assert_eq!(r.token_by_secret(&hash("three")).await.unwrap(), None);
}

pub(super) async fn two_tokens_never_have_one_secret(f: &Fixture) {
    let r = f.records();
    r.add_token(&token("t1"), &hash("one")).await.unwrap();
    for (id, secret) in [("t2", "one"), ("t1", "two")] {
        let refused = r.add_token(&token(id), &hash(secret)).await.unwrap_err();
        assert!(matches!(refused, RecordsError::Refused(_)), "{refused}");
    }
    let ownerless = Token { owner: Some("nobody".to_owned()), ..token("t3") };
    let refused = r.add_token(&ownerless, &hash("three")).await.unwrap_err();
    assert!(matches!(refused, RecordsError::Refused(_)), "{refused}");
    assert_eq!(r.tokens(&TokenFilter::default(), &page(None, 9), at(0)).await.unwrap().items.len(), 1);
}

pub(super) async fn a_token_is_revoked_once(f: &Fixture) {
    let r = f.records();
    assert_eq!(r.revoke_token("t1", "admin", at(1)).await.unwrap(), None);
    r.add_token(&token("t1"), &hash("one")).await.unwrap();
    assert_eq!(r.revoke_token("t1", "admin", at(1)).await.unwrap(), Some(token("t1")));
    let revoked = f.b.token("t1").await.unwrap().unwrap();
    assert_eq!((revoked.revoked_at, revoked.revoked_by.as_deref()), (Some(at(1)), Some("admin")));
    assert_eq!(revoked.version, 2);
    assert_eq!(r.revoke_token("t1", "other", at(2)).await.unwrap(), Some(revoked.clone()));
    assert_eq!(r.token("t1").await.unwrap(), Some(revoked));
}

pub(super) async fn a_token_is_rotated_once(f: &Fixture) {
    let r = f.records();
    // The first round opens connections; in the others all come at once.
    for round in 0..4 {
        let old = Token { expires_at: Some(at(100)), ..token(&format!("s{round}")) };
        r.add_token(&old, &hash(&old.id)).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..8 {
            let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
            let old = old.id.clone();
            let successor = Token { chain: old.clone(), ..token(&format!("s{round}.{n}")) };
            tasks.spawn(async move {
                records.rotate_token(&old, &successor, &hash(&successor.id), at(60), at(10)).await
            });
        }
        let done: Vec<_> = tasks.join_all().await.into_iter().map(Result::unwrap).collect();
        assert_eq!(done.iter().filter(|before| before.as_ref() == Some(&old)).count(), 1, "{done:?}");
        assert_eq!(done.iter().filter(|before| before.is_none()).count(), 7);
        let rotated = r.token(&old.id).await.unwrap().unwrap();
        assert_eq!((rotated.expires_at, rotated.version), (Some(at(60)), 2));
        let all = r.tokens(&TokenFilter::default(), &page(None, 99), at(0)).await.unwrap().items;
        let chain: Vec<_> =
            all.into_iter().filter(|token| token.chain == old.id).map(|token| token.id).collect();
        assert_eq!(chain, [rotated.rotated_to.unwrap(), old.id], "only one successor was kept");
    }

    // It never lasts longer than it would have.
    let second = Token { expires_at: Some(at(100)), ..token("t5") };
    r.add_token(&second, &hash("t5")).await.unwrap();
    r.rotate_token("t5", &token("t6"), &hash("t6"), at(500), at(10)).await.unwrap().unwrap();
    assert_eq!(r.token("t5").await.unwrap().unwrap().expires_at, Some(at(100)));
    // One without an end gets one.
    r.rotate_token("t6", &token("t7"), &hash("t7"), at(500), at(10)).await.unwrap().unwrap();
    assert_eq!(r.token("t6").await.unwrap().unwrap().expires_at, Some(at(500)));

    // Neither what is over nor what is not there; nor does a refused successor leave a trace.
    assert_eq!(r.rotate_token("t5", &token("t8"), &hash("t8"), at(500), at(20)).await.unwrap(), None);
    r.add_token(&Token { expires_at: Some(at(5)), ..token("t9") }, &hash("t9")).await.unwrap();
    assert_eq!(r.rotate_token("t9", &token("t8"), &hash("t8"), at(500), at(5)).await.unwrap(), None);
    r.revoke_token("t7", "admin", at(6)).await.unwrap();
    assert_eq!(r.rotate_token("t7", &token("t8"), &hash("t8"), at(500), at(7)).await.unwrap(), None);
    assert_eq!(r.rotate_token("nothing", &token("t8"), &hash("t8"), at(500), at(7)).await.unwrap(), None);
    assert_eq!(r.token("t8").await.unwrap(), None);
    r.add_token(&token("ta"), &hash("ta")).await.unwrap();
    r.rotate_token("ta", &token("t9"), &hash("tb"), at(500), at(7)).await.unwrap_err();
    assert_eq!(r.token("ta").await.unwrap(), Some(token("ta")));
}

pub(super) async fn the_last_use_never_goes_back(f: &Fixture) {
    let r = f.records();
    for id in ["t1", "t2"] {
        r.add_token(&token(id), &hash(id)).await.unwrap();
    }
    let (four, six): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let used = |id: &str, seconds, from| (id.to_owned(), at(seconds), from);
    r.touch_tokens(&[]).await.unwrap();
    r.touch_tokens(&[
        used("t1", 30, Some(six)),
        used("t1", 20, Some(four)),
        used("gone", 10, None),
        used("t2", 10, None),
    ])
    .await
    .unwrap();
    let last = async |id: &str| {
        let token = f.b.token(id).await.unwrap().unwrap();
        (token.last_used_at, token.last_used_from, token.version)
    };
    assert_eq!(last("t1").await, (Some(at(30)), Some("2001:db8::1".to_owned()), 1));
    assert_eq!(last("t2").await, (Some(at(10)), None, 1));
    r.touch_tokens(&[used("t1", 25, Some(four)), used("t2", 11, Some(four))]).await.unwrap();
    assert_eq!(last("t1").await, (Some(at(30)), Some("2001:db8::1".to_owned()), 1));
    assert_eq!(last("t2").await, (Some(at(11)), Some("192.0.2.1".to_owned()), 1));

    // Two instances flush the same tokens, in opposite orders.
    for n in 0..150 {
        r.add_token(&token(&format!("u{n:03}")), &hash(&format!("u{n}"))).await.unwrap();
    }
    let uses = |seconds: i64| (0..150).map(move |n| used(&format!("u{n:03}"), seconds, None));
    let (up, down): (Vec<_>, Vec<_>) = (uses(40).collect(), uses(41).rev().collect());
    let (a, b) = tokio::join!(f.a.touch_tokens(&up), f.b.touch_tokens(&down));
    a.and(b).unwrap();
    assert_eq!(last("u149").await.0, Some(at(41)));
}

pub(super) async fn lists_have_what_was_asked_for(f: &Fixture) {
    let r = f.records();
    user(r, "u1").await;
    let owner = || Some("u1".to_owned());
    let all = [
        Token { kind: TokenKind::Personal, owner: owner(), ..token("t1") },
        Token { kind: TokenKind::Personal, owner: owner(), expires_at: Some(at(10)), ..token("t2") },
        Token {
            kind: TokenKind::Admin,
            owner: owner(),
            revoked_at: Some(at(1)),
            expires_at: Some(at(2)),
            ..token("t3")
        },
        Token { expires_at: Some(at(11)), ..token("t4") },
    ];
    for token in &all {
        r.add_token(token, &hash(&token.id)).await.unwrap();
    }
    let list = async |owner: Option<&str>, kind, status: &[TokenStatus]| {
        let filter = TokenFilter { owner: owner.map(str::to_owned), kind, status: status.to_vec() };
        let page = r.tokens(&filter, &page(None, 100), at(10)).await.unwrap();
        assert_eq!(page.next, None);
        page.items.into_iter().map(|token| token.id).collect::<Vec<_>>().join(" ")
    };
    let (active, expired, revoked) = (TokenStatus::Active, TokenStatus::Expired, TokenStatus::Revoked);
    assert_eq!(list(None, None, &[]).await, "t4 t3 t2 t1");
    assert_eq!(list(Some("u1"), None, &[]).await, "t3 t2 t1");
    assert_eq!(list(Some("u1"), Some(TokenKind::Personal), &[]).await, "t2 t1");
    assert_eq!(list(Some("u\0"), None, &[]).await, "");
    assert_eq!(list(None, Some(TokenKind::Service), &[]).await, "t4");
    assert_eq!(list(None, None, &[active]).await, "t4 t1");
    assert_eq!(list(None, None, &[expired]).await, "t2");
    assert_eq!(list(None, None, &[revoked]).await, "t3");
    assert_eq!(list(None, None, &[expired, revoked]).await, "t3 t2");
    assert_eq!(list(Some("u1"), Some(TokenKind::Personal), &[active, expired, revoked]).await, "t2 t1");
    for token in &all {
        let status = token.status(at(10));
        assert!(list(None, None, &[status]).await.contains(&token.id), "{} is {status:?}", token.id);
    }
}

pub(super) async fn pages_have_everything_once(f: &Fixture) {
    let r = f.records();
    for n in 0..23 {
        r.add_token(&token(&format!("t{n:02}")), &hash(&n.to_string())).await.unwrap();
    }
    for limit in [1, 7, 22, 23, 24] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let part =
                r.tokens(&TokenFilter::default(), &page(after.as_deref(), limit), at(0)).await.unwrap();
            assert!(part.items.len() <= limit as usize && !part.items.is_empty());
            seen.extend(part.items.into_iter().map(|token| token.id));
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, (0..23).rev().map(|n| format!("t{n:02}")).collect::<Vec<_>>(), "by {limit}");
    }
    let least = r.tokens(&TokenFilter::default(), &page(None, 0), at(0)).await.unwrap();
    assert_eq!((least.items.len(), least.next.as_deref()), (1, Some("t22")));
    let most = r.tokens(&TokenFilter::default(), &page(None, u32::MAX), at(0)).await.unwrap();
    assert_eq!((most.items.len(), most.next), (23, None));
}

pub(super) async fn an_active_token_of_a_kind_is_noticed(f: &Fixture) {
    let r = f.records();
    let admin = |id: &str| Token { kind: TokenKind::Admin, name: id.to_owned(), ..token(id) };
    let has = async || r.has_token(TokenKind::Admin, "bootstrap", at(10)).await.unwrap();
    assert!(!has().await);
    r.add_token(&admin("bootstrap"), &hash("1")).await.unwrap();
    r.add_token(&token("service"), &hash("2")).await.unwrap();
    r.add_token(&Token { expires_at: Some(at(10)), ..admin("old") }, &hash("3")).await.unwrap();
    r.add_token(&Token { revoked_at: Some(at(1)), ..admin("revoked") }, &hash("4")).await.unwrap();
    assert!(!has().await);
    r.add_token(&Token { expires_at: Some(at(11)), ..admin("good") }, &hash("5")).await.unwrap();
    assert!(has().await);
}
