use drawbridge_auth::records::{Grant, NewRefresh, Records as _, Refreshed, Revocation};
use drawbridge_auth::revoking::RevocationKey;

use crate::fixture::{DAY, Fixture, at, grant, hash, present, refresh, user};

pub(super) async fn what_matters_to_nobody_is_forgotten(f: &Fixture) {
    let r = f.records();
    assert_eq!(r.sweep(at(0)).await.unwrap(), 0);
    user(r, "u1").await;
    let revocation = |of: &str, until| Revocation { key: RevocationKey::grant(of), until: at(until) };
    r.add_revocations(&[revocation("over", 10), revocation("not yet", 31 * DAY + 1)], at(0)).await.unwrap();
    let kept = |id: &str, expires_at| NewRefresh { expires_at, ..refresh(id) };
    for (grant, token) in [
        (Grant { revoked_at: Some(at(0)), ..grant("revoked", "u1") }, kept("r1", at(90 * DAY))),
        (Grant { revoked_at: Some(at(2 * DAY)), ..grant("just revoked", "u1") }, kept("r2", at(90 * DAY))),
        (Grant { expires_at: at(DAY - 1), ..grant("expired", "u1") }, kept("r3", at(90 * DAY))),
        (grant("idle", "u1"), kept("r4", at(DAY - 1))),
        (grant("live", "u1"), kept("r5", at(40 * DAY))),
    ] {
        r.redeem(&grant, Some(&token)).await.unwrap();
    }

    // Two grants with their tokens, a token, a revocation.
    assert_eq!(f.b.sweep(at(31 * DAY)).await.unwrap(), 6);
    for (id, there) in
        [("revoked", false), ("just revoked", true), ("expired", false), ("idle", true), ("live", true)]
    {
        assert_eq!(r.grant(id).await.unwrap().is_some(), there, "{id}");
    }
    for (token, there) in [("r1", false), ("r2", true), ("r3", false), ("r4", false), ("r5", true)] {
        assert_eq!(r.grant_of_refresh(&hash(token)).await.unwrap().is_some(), there, "{token}");
    }
    assert_eq!(r.revocations(None, at(0)).await.unwrap(), [revocation("not yet", 31 * DAY + 1)]);
    let good = r.refresh(&present("r5", "r6", at(31 * DAY))).await.unwrap();
    assert!(matches!(good, Refreshed::Rotated(_)), "{good:?}");
    assert_eq!(r.sweep(at(31 * DAY)).await.unwrap(), 0);
}

pub(super) async fn more_than_a_batch_is_forgotten(f: &Fixture) {
    let r = f.records();
    let revocation = |n: i64| Revocation { key: RevocationKey::grant(&n.to_string()), until: at(n) };
    let all: Vec<_> = (1..=1201).map(revocation).collect();
    r.add_revocations(&all, at(0)).await.unwrap();
    assert_eq!(r.sweep(at(1200)).await.unwrap(), 1200);
    assert_eq!(r.revocations(None, at(0)).await.unwrap(), all[1200..]);
}
