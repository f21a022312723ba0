use std::time::{Duration, Instant};

use drawbridge_testkit::soon;

use crate::fleet::{Fleet, at_last, session};

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) async fn a_revocation_is_known_here_at_once_and_elsewhere_soon(fleet: &Fleet) {
    let (one, two, key) = (&fleet.one.revocations, &fleet.two.revocations, session());
    assert!(!one.is_revoked(&key) && !two.is_revoked(&key));
    one.revoke(key, WEEK).await.unwrap();
    assert!(one.is_revoked(&key));
    let begun = Instant::now();
    at_last("the other to know", async || two.is_revoked(&key).then_some(())).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(!two.is_revoked(&session()));
}

pub(crate) async fn an_instance_that_comes_later_knows_of_it(fleet: &Fleet) {
    let keys: Vec<_> = (0..2500).map(|_| session()).collect();
    let revoking = keys.iter().map(|key| fleet.one.revocations.revoke(*key, WEEK));
    futures_util::future::try_join_all(revoking).await.unwrap();
    let later = fleet.another().await;
    assert!(keys.iter().all(|key| later.revocations.is_revoked(key)));
}

pub(crate) async fn followers_hear_of_each_once(fleet: &Fleet) {
    let mut here = fleet.one.revocations.follow();
    let mut there = fleet.two.revocations.follow();
    let (key, last) = (session(), session());
    fleet.one.revocations.revoke(key, WEEK).await.unwrap();
    fleet.one.revocations.revoke(key, WEEK).await.unwrap();
    fleet.two.revocations.revoke(last, WEEK).await.unwrap();
    for follower in [&mut here, &mut there] {
        let mut heard = Vec::new();
        // Each comes once; which one first depends on where it was revoked.
        while heard.len() < 2 {
            heard.push(soon("a revocation", follower.recv()).await.unwrap());
        }
        heard.sort();
        assert_eq!(heard, [key, last]);
        assert!(follower.try_recv().is_err());
    }
}

pub(crate) async fn what_has_expired_is_forgotten(fleet: &Fleet) {
    let key = session();
    fleet.one.revocations.revoke(key, Duration::from_millis(50)).await.unwrap();
    for instance in [&fleet.one, &fleet.two] {
        at_last("the revocation to expire", async || {
            fleet.sweep();
            (!instance.revocations.is_revoked(&key)).then_some(())
        })
        .await;
    }
}
