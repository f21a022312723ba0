use std::time::{Duration, Instant};

use drawbridge_core::state::{Quota, Take, Taken, Verdict};

use crate::fleet::{Fleet, at_last, name};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) async fn a_burst_is_allowed_and_then_nothing(fleet: &Fleet) {
    for (burst, expected) in
        [(0, vec![Some(0), None]), (1, vec![Some(0), None]), (3, vec![Some(2), Some(1), Some(0), None, None])]
    {
        let key = name("key");
        for (n, expected) in expected.into_iter().enumerate() {
            let verdict = fleet.one.limiter.take(&key, Quota { interval: HOUR, burst }).await.unwrap();
            match (verdict, expected) {
                (Verdict::Allowed { remaining }, Some(expected)) => assert_eq!(remaining, expected),
                (Verdict::Refused { retry_after }, None) => {
                    assert!(retry_after <= HOUR && retry_after > HOUR - Duration::from_secs(60));
                }
                other => panic!("number {n} of {burst}: {other:?}"),
            }
        }
    }
}

pub(crate) async fn what_was_refused_is_allowed_after_the_time_it_was_told(fleet: &Fleet) {
    let quota = Quota { interval: Duration::from_millis(200), burst: 2 };
    let key = name("key");
    let take = async || fleet.one.limiter.take(&key, quota).await.unwrap();
    assert!(matches!(take().await, Verdict::Allowed { .. }));
    let (begun, retry_after) = at_last("to be refused", async || {
        let begun = Instant::now();
        match take().await {
            Verdict::Allowed { .. } => None,
            Verdict::Refused { retry_after } => Some((begun, retry_after)),
        }
    })
    .await;
    assert!(retry_after <= quota.interval);
    at_last("to be allowed", async || matches!(take().await, Verdict::Allowed { .. }).then_some(())).await;
    // Two clocks may differ by some milliseconds.
    assert!(begun.elapsed() + Duration::from_millis(20) >= retry_after, "{:?}", begun.elapsed());
}

pub(crate) async fn keys_do_not_share_a_quota(fleet: &Fleet) {
    let quota = Quota { interval: HOUR, burst: 1 };
    for key in [name("a"), name("a"), "x}y".to_owned() + &name("{")] {
        assert_eq!(fleet.one.limiter.take(&key, quota).await.unwrap(), Verdict::Allowed { remaining: 0 });
    }
}

pub(crate) async fn a_limit_holds_over_all_instances(fleet: &Fleet) {
    let quota = Quota { interval: HOUR, burst: 10 };
    let key = name("key");
    let taking = (0..40).map(|n| {
        let instance = if n % 2 == 0 { &fleet.one } else { &fleet.two };
        instance.limiter.take(&key, quota)
    });
    let verdicts = futures_util::future::try_join_all(taking).await.unwrap();
    let allowed = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Allowed { .. }));
    assert_eq!(allowed.count(), 10);
}

fn take(key: &str, burst: u32) -> Take {
    Take { key: key.to_owned(), quota: Quota { interval: HOUR, burst } }
}

pub(crate) async fn a_group_is_allowed_if_all_of_it_is(fleet: &Fleet) {
    let [a, b, c] = ["a", "b", "c"].map(name);
    let group = [vec![take(&a, 9), take(&b, 2), take(&c, 9)]];
    for instance in [&fleet.one, &fleet.two] {
        assert_eq!(instance.limiter.take_groups(&group).await.unwrap(), [Taken::Allowed]);
    }
    let taken = fleet.one.limiter.take_groups(&group).await.unwrap();
    let [Taken::Refused { place: 1, retry_after }] = taken[..] else { panic!("{taken:?}") };
    assert!(retry_after <= HOUR && retry_after > HOUR - Duration::from_secs(60), "{retry_after:?}");
    assert_eq!(fleet.one.limiter.take_groups(&[]).await.unwrap(), []);
    let none = Take { key: name("key"), quota: Quota { interval: Duration::ZERO, burst: 1 } };
    let many = vec![vec![none.clone()], vec![none.clone(), none]];
    assert_eq!(fleet.one.limiter.take_groups(&many).await.unwrap(), [Taken::Allowed; 2]);
}

pub(crate) async fn groups_after_the_first_are_allowed_by_themselves(fleet: &Fleet) {
    let [first, a, b] = ["first", "a", "b"].map(name);
    let groups = [vec![take(&first, 2)], vec![take(&a, 1)], vec![take(&b, 9)], vec![take(&a, 1)]];
    let taken = fleet.one.limiter.take_groups(&groups).await.unwrap();
    assert_eq!(&taken[..3], [Taken::Allowed; 3]);
    assert!(matches!(taken[3], Taken::Refused { place: 0, .. }), "{taken:?}");
    let taken = fleet.two.limiter.take_groups(&groups).await.unwrap();
    assert!(matches!(
        taken[..],
        [Taken::Allowed, Taken::Refused { .. }, Taken::Allowed, Taken::Refused { .. }]
    ));
    let taken = fleet.two.limiter.take_groups(&groups).await.unwrap();
    assert!(matches!(taken[..], [Taken::Refused { place: 0, .. }]), "{taken:?}");
}

pub(crate) async fn a_group_and_a_key_alone_count_the_same(fleet: &Fleet) {
    let key = name("key");
    let quota = Quota { interval: HOUR, burst: 3 };
    assert_eq!(fleet.one.limiter.take(&key, quota).await.unwrap(), Verdict::Allowed { remaining: 2 });
    let taken = fleet.two.limiter.take_groups(&[vec![take(&key, 3)]]).await.unwrap();
    assert_eq!(taken, [Taken::Allowed]);
    assert_eq!(fleet.one.limiter.take(&key, quota).await.unwrap(), Verdict::Allowed { remaining: 0 });
}
