use std::collections::BTreeSet;
use std::time::Duration;

use drawbridge_core::state::{InstanceId, Lease};
use futures_util::future::try_join_all;

use crate::fleet::{Fleet, at_last, name};

const TTL: Duration = Duration::from_secs(60);

pub(crate) async fn a_lease_has_one_owner_until_it_is_given_back(fleet: &Fleet) {
    let (one, two, name) = (&fleet.one, &fleet.two, name("lease"));
    assert_eq!(one.leases.holder(&name).await.unwrap(), None);
    let lease = one.leases.acquire(&name, &one.instance, TTL).await.unwrap();
    assert_eq!(lease.owner, one.instance);
    assert_eq!(two.leases.acquire(&name, &two.instance, TTL).await.unwrap(), lease);
    assert_eq!(two.leases.holder(&name).await.unwrap(), Some(lease.clone()));
    assert_eq!(one.leases.acquire(&name, &one.instance, TTL).await.unwrap(), lease, "renewed");
    assert!(one.leases.renew(&name, &lease, TTL).await.unwrap());
    one.leases.release(&name, &lease).await.unwrap();
    assert_eq!(two.leases.holder(&name).await.unwrap(), None);
    let next = two.leases.acquire(&name, &two.instance, TTL).await.unwrap();
    assert_eq!(next.owner, two.instance);
    assert!(next.token > lease.token, "{next:?} {lease:?}");
}

pub(crate) async fn of_many_takers_one_wins(fleet: &Fleet) {
    let name = name("lease");
    let takers: Vec<InstanceId> = (0..40).map(|_| InstanceId::fresh()).collect();
    let taking = takers.iter().enumerate().map(|(n, taker)| {
        let instance = if n % 2 == 0 { &fleet.one } else { &fleet.two };
        instance.leases.acquire(&name, taker, TTL)
    });
    let leases = try_join_all(taking).await.unwrap();
    assert!(leases.iter().all(|lease| *lease == leases[0]), "{leases:?}");
    let lost = leases[0].clone();
    let taking = takers.iter().enumerate().map(|(n, taker)| {
        let instance = if n % 2 == 0 { &fleet.one } else { &fleet.two };
        instance.leases.take_over(&name, &lost, taker, TTL)
    });
    let leases = try_join_all(taking).await.unwrap();
    assert!(leases.iter().all(|lease| *lease == leases[0] && lease.token > lost.token), "{leases:?}");
}

pub(crate) async fn a_lease_ends_and_the_next_has_a_higher_token(fleet: &Fleet) {
    let (one, two, name) = (&fleet.one, &fleet.two, name("lease"));
    let mut tokens = BTreeSet::new();
    for _ in 0..3 {
        let lease = one.leases.acquire(&name, &one.instance, Duration::from_millis(50)).await.unwrap();
        assert_eq!(lease.owner, one.instance);
        assert!(tokens.last().is_none_or(|last| lease.token > *last), "{lease:?} {tokens:?}");
        tokens.insert(lease.token);
        at_last("the lease to end", async || two.leases.holder(&name).await.unwrap().is_none().then_some(()))
            .await;
        assert!(!one.leases.renew(&name, &lease, TTL).await.unwrap());
    }
    let lease = two.leases.acquire(&name, &two.instance, TTL).await.unwrap();
    assert!(lease.token > *tokens.last().unwrap());
}

pub(crate) async fn a_lease_is_taken_over_only_as_it_was_seen(fleet: &Fleet) {
    let (one, two, name) = (&fleet.one, &fleet.two, name("lease"));
    let lost = one.leases.acquire(&name, &InstanceId::fresh(), TTL).await.unwrap();
    let lease = one.leases.take_over(&name, &lost, &one.instance, TTL).await.unwrap();
    assert_eq!(lease.owner, one.instance);
    assert!(lease.token > lost.token);
    assert_eq!(two.leases.take_over(&name, &lost, &two.instance, TTL).await.unwrap(), lease, "too late");
    one.leases.release(&name, &lease).await.unwrap();
    let free = two.leases.take_over(&name, &lost, &two.instance, TTL).await.unwrap();
    assert_eq!(free.owner, two.instance, "nobody has it");
    assert!(free.token > lease.token);
}

pub(crate) async fn who_lost_a_lease_can_neither_renew_nor_release_it(fleet: &Fleet) {
    let (one, two, name) = (&fleet.one, &fleet.two, name("lease"));
    let lost = one.leases.acquire(&name, &one.instance, TTL).await.unwrap();
    let lease = two.leases.take_over(&name, &lost, &two.instance, TTL).await.unwrap();
    assert!(!one.leases.renew(&name, &lost, TTL).await.unwrap());
    one.leases.release(&name, &lost).await.unwrap();
    let wrong = Lease { token: lease.token + 1, ..lease.clone() };
    assert!(!two.leases.renew(&name, &wrong, TTL).await.unwrap());
    assert_eq!(one.leases.holder(&name).await.unwrap(), Some(lease));
}
