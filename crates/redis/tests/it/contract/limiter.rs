use std::time::{Duration, Instant};

use drawbridge_core::state::{Quota, Verdict};

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
    assert!(matches!(take().await, Verdict::Allowed { .. }));
    let begun = Instant::now();
    let Verdict::Refused { retry_after } = take().await else { return };
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
