use std::time::Duration;

use futures_util::future::try_join_all;

use crate::fleet::{Fleet, at_last, name};

const TTL: Duration = Duration::from_secs(60);

pub(crate) async fn a_name_is_claimed_once(fleet: &Fleet) {
    let (one, two) = (&fleet.one.claims, &fleet.two.claims);
    let (first, second) = (name("claim"), name("claim"));
    assert!(one.claim(&first, TTL).await.unwrap());
    assert!(!two.claim(&first, TTL).await.unwrap());
    assert!(!one.claim(&first, TTL).await.unwrap());
    assert!(two.claim(&second, TTL).await.unwrap());
}

pub(crate) async fn of_many_claims_one_wins(fleet: &Fleet) {
    let name = name("claim");
    let claiming = (0..40).map(|n| {
        let instance = if n % 2 == 0 { &fleet.one } else { &fleet.two };
        instance.claims.claim(&name, TTL)
    });
    let won = try_join_all(claiming).await.unwrap();
    assert_eq!(won.into_iter().filter(|won| *won).count(), 1);
}

pub(crate) async fn a_claim_ends(fleet: &Fleet) {
    let name = name("claim");
    assert!(fleet.one.claims.claim(&name, Duration::from_millis(50)).await.unwrap());
    at_last("the claim to end", async || fleet.two.claims.claim(&name, TTL).await.unwrap().then_some(()))
        .await;
    assert!(!fleet.one.claims.claim(&name, TTL).await.unwrap());
}
