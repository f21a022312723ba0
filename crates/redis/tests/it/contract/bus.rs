use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::state::{Bus, Heard, InstanceId, NotSent};
use drawbridge_testkit::soon;
use futures_util::{FutureExt as _, StreamExt as _};

use crate::fleet::{Fleet, at_last, name};

const TTL: Duration = Duration::from_secs(30);

async fn next(bus: &dyn Bus) -> Bytes {
    soon("a message", bus.receive()).await.unwrap()
}

pub(crate) async fn an_instance_lives_from_its_announcement_until_it_leaves(fleet: &Fleet) {
    let (one, two) = (fleet.another().await, &fleet.two);
    assert!(!two.bus.is_alive(&one.instance).await.unwrap());
    assert!(!one.bus.announce(TTL).await.unwrap(), "nobody knew it");
    assert!(one.bus.announce(TTL).await.unwrap(), "it is known by now");
    assert!(two.bus.is_alive(&one.instance).await.unwrap());
    assert!(two.bus.instances().await.unwrap().contains(&one.instance));
    one.bus.leave().await.unwrap();
    assert!(!two.bus.is_alive(&one.instance).await.unwrap());
    assert!(!two.bus.instances().await.unwrap().contains(&one.instance));
    let sent = two.bus.send(&one.instance, Bytes::from("late")).await;
    assert_eq!(sent, Err(NotSent::Gone(one.instance.clone())));
    assert!(!one.bus.announce(TTL).await.unwrap(), "it had left");
}

pub(crate) async fn a_message_reaches_the_inbox_of_its_instance(fleet: &Fleet) {
    let (one, two) = (&fleet.one, &fleet.two);
    one.bus.announce(TTL).await.unwrap();
    two.bus.announce(TTL).await.unwrap();
    let all: Bytes = (0..=255).collect();
    two.bus.send(&one.instance, all.clone()).await.unwrap();
    two.bus.send(&one.instance, Bytes::new()).await.unwrap();
    two.bus.send(&two.instance, Bytes::from("to itself")).await.unwrap();
    assert_eq!(next(&*one.bus).await, all);
    assert_eq!(next(&*one.bus).await, Bytes::new());
    assert_eq!(next(&*two.bus).await, "to itself");
}

pub(crate) async fn ten_thousand_messages_come_in_order(fleet: &Fleet) {
    const COUNT: u32 = 10_000;
    let (one, two) = (&fleet.one, &fleet.two);
    one.bus.announce(TTL).await.unwrap();
    let sending = async {
        for n in 0..COUNT {
            let message = Bytes::copy_from_slice(&n.to_be_bytes());
            // Who sends faster than the other takes is told that the inbox is full.
            while let Err(error) = two.bus.send(&one.instance, message.clone()).await {
                assert!(matches!(error, NotSent::Unavailable(_)), "{error}");
                tokio::task::yield_now().await;
            }
        }
    };
    let receiving = async {
        for n in 0..COUNT {
            assert_eq!(next(&*one.bus).await, &n.to_be_bytes()[..]);
        }
    };
    tokio::join!(sending, receiving);
    assert!(one.bus.receive().now_or_never().is_none());
}

pub(crate) async fn what_is_sent_to_nobody_is_told(fleet: &Fleet) {
    let nobody = InstanceId::fresh();
    let sent = fleet.one.bus.send(&nobody, Bytes::from("x")).await;
    assert_eq!(sent, Err(NotSent::Gone(nobody)));
}

pub(crate) async fn what_was_offered_and_received_is_not_taken_back(fleet: &Fleet) {
    let (one, two) = (fleet.another().await, &fleet.two.bus);
    one.bus.announce(TTL).await.unwrap();
    two.send(&one.instance, Bytes::from("before")).await.unwrap();
    let offered = two.offer(&one.instance, Bytes::from("offered")).await.unwrap();
    two.send(&one.instance, Bytes::from("after")).await.unwrap();
    assert!(!two.withdraw(&one.instance, &offered).await.unwrap(), "it lives, and may have read it");
    for expected in ["before", "offered", "after"] {
        assert_eq!(next(&*one.bus).await, expected);
    }
    one.bus.leave().await.unwrap();
    assert!(!two.withdraw(&one.instance, &offered).await.unwrap());
    let gone = two.offer(&one.instance, Bytes::from("late")).await;
    assert_eq!(gone, Err(NotSent::Gone(one.instance.clone())));
}

pub(crate) async fn what_was_taken_back_never_comes(fleet: &Fleet) {
    let (one, two) = (fleet.another().await, &fleet.two.bus);
    for round in 0..50 {
        one.bus.announce(TTL).await.unwrap();
        let offered = two.offer(&one.instance, Bytes::from("offered")).await.unwrap();
        one.bus.leave().await.unwrap();
        let taken_back = two.withdraw(&one.instance, &offered).await.unwrap();
        assert!(!two.withdraw(&one.instance, &offered).await.unwrap(), "only once");
        one.bus.announce(TTL).await.unwrap();
        two.send(&one.instance, Bytes::from("after")).await.unwrap();
        let first = next(&*one.bus).await;
        let has_come = first == "offered";
        if has_come {
            assert_eq!(next(&*one.bus).await, "after");
        }
        assert!(!(taken_back && has_come), "in round {round} both have it");
    }
}

pub(crate) async fn a_topic_is_heard_by_all_that_are_subscribed(fleet: &Fleet) {
    let (one, two) = (&fleet.one.bus, &fleet.two.bus);
    let (topic, other) = (name("topic"), name("topic"));
    one.publish(&topic, Bytes::from("too early")).await.unwrap();
    let mut first = one.subscribe(&topic).await.unwrap();
    let mut second = one.subscribe(&topic).await.unwrap();
    let mut third = two.subscribe(&topic).await.unwrap();
    let mut elsewhere = two.subscribe(&other).await.unwrap();
    for n in 0..100 {
        let from = if n % 2 == 0 { one } else { two };
        from.publish(&topic, Bytes::from(format!("{n}"))).await.unwrap();
    }
    two.publish(&other, Bytes::from("other")).await.unwrap();
    for subscription in [&mut first, &mut second, &mut third] {
        for n in 0..100 {
            let heard = soon("a message", subscription.next()).await;
            assert_eq!(heard, Some(Heard::Message(Bytes::from(format!("{n}")))));
        }
    }
    let heard = soon("a message", elsewhere.next()).await;
    assert_eq!(heard, Some(Heard::Message(Bytes::from("other"))));
    for subscription in [&mut first, &mut second, &mut third, &mut elsewhere] {
        assert!(subscription.next().now_or_never().is_none());
    }
}

pub(crate) async fn who_is_too_slow_is_told_that_something_is_missing(fleet: &Fleet) {
    let (one, two, topic) = (&fleet.one.bus, &fleet.two.bus, name("topic"));
    let mut slow = one.subscribe(&topic).await.unwrap();
    let mut quick = one.subscribe(&topic).await.unwrap();
    const COUNT: usize = 3000;
    for n in 0..COUNT {
        two.publish(&topic, Bytes::from(format!("{n}"))).await.unwrap();
        let heard = soon("a message", quick.next()).await;
        assert_eq!(heard, Some(Heard::Message(Bytes::from(format!("{n}")))), "the other one is in time");
    }
    let mut heard = Vec::new();
    while !heard.contains(&Heard::Missed) {
        heard.push(soon("to be told", slow.next()).await.unwrap());
    }
    assert!(heard.len() < COUNT);
    two.publish(&topic, Bytes::from("after")).await.unwrap();
    while heard.last() != Some(&Heard::Message(Bytes::from("after"))) {
        heard.push(soon("what comes afterwards", slow.next()).await.unwrap());
    }
}

pub(crate) async fn a_dropped_subscription_hears_nothing_and_disturbs_nobody(fleet: &Fleet) {
    let (one, topic) = (&fleet.one.bus, name("topic"));
    for round in 0..20 {
        let gone = one.subscribe(&topic).await.unwrap();
        let mut stays = one.subscribe(&topic).await.unwrap();
        drop(gone);
        fleet.two.bus.publish(&topic, Bytes::from(format!("{round}"))).await.unwrap();
        let heard = soon("a message", stays.next()).await;
        assert_eq!(heard, Some(Heard::Message(Bytes::from(format!("{round}")))));
        // Nobody is subscribed until the next round.
    }
    at_last("a topic without listeners", async || {
        fleet.two.bus.publish(&topic, Bytes::from("nobody")).await.ok()
    })
    .await;
}
