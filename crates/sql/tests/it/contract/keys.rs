use drawbridge_auth::records::{Records as _, RecordsError, Revocation, SigningKey};
use drawbridge_auth::revoking::RevocationKey;
use serde_json::json;

use crate::fixture::{Fixture, at};

fn key(kid: &str, not_before: i64, retires_at: i64) -> SigningKey {
    SigningKey {
        kid: kid.to_owned(),
        algorithm: "ES256".to_owned(),
        private: "sealed".to_owned(),
        public: json!({"kty": "EC", "kid": kid}),
        not_before: at(not_before),
        retires_at: at(retires_at),
    }
}

pub(super) async fn signing_keys_come_back_the_oldest_first(f: &Fixture) {
    let r = f.records();
    assert_eq!(r.signing_keys(at(0)).await.unwrap(), []);
    let (old, middle, new) = (key("z", 0, 10), key("b", 5, 20), key("a", 15, 30));
    for key in [&new, &old, &middle] {
        r.add_signing_key(key).await.unwrap();
    }
    assert_eq!(f.b.signing_keys(at(9)).await.unwrap(), [old, middle.clone(), new.clone()]);
    assert_eq!(f.b.signing_keys(at(10)).await.unwrap(), [middle, new]);
    let twice = r.add_signing_key(&key("a", 0, 1)).await.unwrap_err();
    assert!(matches!(twice, RecordsError::Refused(_)), "{twice}");
}

fn revocation(of: &str, until: i64) -> Revocation {
    Revocation { key: RevocationKey::grant(of), until: at(until) }
}

pub(super) async fn revocations_last_as_long_as_the_longer(f: &Fixture) {
    let r = f.records();
    r.add_revocations(&[], at(0)).await.unwrap();
    r.add_revocations(&[revocation("g1", 100), revocation("g2", 50)], at(0)).await.unwrap();
    r.add_revocations(&[revocation("g1", 60), revocation("g2", 80)], at(10)).await.unwrap();
    let mut all = f.b.revocations(None, at(79)).await.unwrap();
    all.sort_by_key(|revocation| revocation.until);
    assert_eq!(all, [revocation("g2", 80), revocation("g1", 100)]);
    assert_eq!(f.b.revocations(None, at(80)).await.unwrap(), [revocation("g1", 100)]);
    assert_eq!(f.b.revocations(None, at(100)).await.unwrap(), []);
    // The same twice at once.
    r.add_revocations(&[revocation("g3", 10), revocation("g3", 20)], at(10)).await.unwrap();
    assert!(r.revocations(None, at(15)).await.unwrap().contains(&revocation("g3", 20)));
}

pub(super) async fn revocations_are_found_by_when_they_were_entered(f: &Fixture) {
    let r = f.records();
    for (of, entered) in [("g1", 10), ("g2", 20), ("g3", 30)] {
        r.add_revocations(&[revocation(of, 1000)], at(entered)).await.unwrap();
    }
    let since = async |seconds| f.b.revocations(Some(at(seconds)), at(40)).await.unwrap();
    assert_eq!(since(20).await, [revocation("g2", 1000), revocation("g3", 1000)]);
    assert_eq!(since(31).await, []);
    r.add_revocations(&[revocation("g1", 2000)], at(35)).await.unwrap();
    assert_eq!(since(31).await, [revocation("g1", 2000)], "a later end is news");
}

pub(super) async fn many_add_the_same_revocations(f: &Fixture) {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..10 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        let mut all: Vec<_> = (0..40).map(|of| revocation(&of.to_string(), 100 + n)).collect();
        if n % 3 == 0 {
            all.reverse();
        }
        tasks.spawn(async move { records.add_revocations(&all, at(n)).await });
    }
    tasks.join_all().await.into_iter().for_each(Result::unwrap);
    let all = f.records().revocations(None, at(50)).await.unwrap();
    assert_eq!((all.len(), all.iter().filter(|one| one.until == at(109)).count()), (40, 40));
}
