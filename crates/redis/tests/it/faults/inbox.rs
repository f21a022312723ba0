//! Inboxes at their limits.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::state::{InstanceId, NotSent, Receipt};
use drawbridge_redis::RedisOptions;
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::soon;
use futures_util::FutureExt as _;

use super::TTL;
use crate::fleet::{Instance, at_last, session};

#[tokio::test]
async fn a_full_inbox_refuses_and_loses_nothing_and_revocations_still_come() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap();
    let (one, two) = (Instance::connected(&options).await, Instance::connected(&options).await);
    one.shared.bus.announce(TTL).await.unwrap();
    let mut sent = 0_u32;
    let refused = loop {
        let message = Bytes::copy_from_slice(&sent.to_be_bytes());
        match two.shared.bus.send(&one.shared.instance, message).await {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 20_000, "there is no limit");
    };
    assert!(matches!(&refused, NotSent::Unavailable(reason) if reason.0.contains("full")), "{refused}");
    let key = session();
    two.shared.revocations.revoke(key, TTL).await.unwrap();
    at_last("the revocation", async || one.shared.revocations.is_revoked(&key).then_some(())).await;
    for n in 0..sent {
        let message = soon("a message", one.shared.bus.receive()).await.unwrap();
        assert_eq!(message, &n.to_be_bytes()[..]);
    }
    two.shared.bus.send(&one.shared.instance, Bytes::from("again")).await.unwrap();
    assert_eq!(soon("a message", one.shared.bus.receive()).await.unwrap(), "again");
}

#[tokio::test]
async fn what_was_sent_before_an_instance_was_taken_for_dead_is_skipped() {
    let server = RedisServer::start().await;
    let (proxy, cut_off, sender) = cut_off_and_sender(&server).await;
    let to = cut_off.shared.instance.clone();
    cut_off.shared.bus.announce(Duration::from_millis(1000)).await.unwrap();
    proxy.set(Fault::Refuse);
    proxy.cut();
    sender.shared.bus.send(&to, Bytes::from("before")).await.unwrap();
    taken_for_dead(&sender, &to).await;
    let sent = sender.shared.bus.send(&to, Bytes::from("meanwhile")).await;
    assert_eq!(sent, Err(NotSent::Gone(to.clone())));
    proxy.set(Fault::None);
    cut_off.up().await;
    assert!(!cut_off.shared.bus.announce(TTL).await.unwrap(), "it had been taken for dead");
    sender.shared.bus.send(&to, Bytes::from("after")).await.unwrap();
    assert_eq!(soon("a message", cut_off.shared.bus.receive()).await.unwrap(), "after");
}

#[tokio::test]
async fn what_waits_here_unread_is_skipped_too_when_the_instance_was_taken_for_dead() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap();
    let (one, two) = (Instance::connected(&options).await, Instance::connected(&options).await);
    let (bus, to) = (&one.shared.bus, &one.shared.instance);
    bus.announce(Duration::from_millis(300)).await.unwrap();
    two.shared.bus.send(to, Bytes::from("before")).await.unwrap();
    at_last("it to be taken for dead", async || (!two.shared.bus.is_alive(to).await.unwrap()).then_some(()))
        .await;
    assert!(!bus.announce(TTL).await.unwrap());
    assert!(bus.receive().now_or_never().is_none());
    two.shared.bus.send(to, Bytes::from("after")).await.unwrap();
    assert_eq!(soon("a message", bus.receive()).await.unwrap(), "after");
}

/// An instance that can be cut off, and one that sends to it.
async fn cut_off_and_sender(server: &RedisServer) -> (FaultProxy, Instance, Instance) {
    let proxy = FaultProxy::start(server.port()).await;
    let near = RedisOptions::parse(&server.url()).unwrap();
    let far = RedisOptions::parse(&format!("redis://127.0.0.1:{}", proxy.port)).unwrap();
    let far = far.timeout(Duration::from_millis(300));
    let (cut_off, sender) = (Instance::connected(&far).await, Instance::connected(&near).await);
    (proxy, cut_off, sender)
}

async fn taken_for_dead(sender: &Instance, instance: &InstanceId) {
    let alive = async || sender.shared.bus.is_alive(instance).await.unwrap();
    at_last("it to be taken for dead", async || (!alive().await).then_some(())).await;
}

#[tokio::test]
async fn what_a_dead_instance_had_not_read_is_taken_back_and_does_not_come_when_it_is_back() {
    let server = RedisServer::start().await;
    let (proxy, cut_off, sender) = cut_off_and_sender(&server).await;
    let (bus, to) = (&sender.shared.bus, &cut_off.shared.instance);
    cut_off.shared.bus.announce(Duration::from_millis(500)).await.unwrap();
    let read = bus.offer(to, Bytes::from("read")).await.unwrap();
    assert_eq!(soon("a message", cut_off.shared.bus.receive()).await.unwrap(), "read");
    proxy.set(Fault::Refuse);
    proxy.cut();
    let unread = bus.offer(to, Bytes::from("unread")).await.unwrap();
    assert!(!bus.withdraw(to, &unread).await.unwrap(), "it may come back before it is taken for dead");
    taken_for_dead(&sender, to).await;
    assert!(!bus.withdraw(to, &read).await.unwrap());
    assert!(bus.withdraw(to, &unread).await.unwrap());
    assert!(!bus.withdraw(to, &unread).await.unwrap(), "only once");
    proxy.set(Fault::None);
    cut_off.up().await;
    cut_off.shared.bus.announce(TTL).await.unwrap();
    bus.offer(to, Bytes::from("after")).await.unwrap();
    assert_eq!(soon("a message", cut_off.shared.bus.receive()).await.unwrap(), "after");
}

#[tokio::test]
async fn an_instance_that_comes_back_when_it_was_taken_for_dead_reads_nothing_that_was_offered_before() {
    let server = RedisServer::start().await;
    let (proxy, cut_off, sender) = cut_off_and_sender(&server).await;
    let (bus, to) = (&sender.shared.bus, &cut_off.shared.instance);
    cut_off.shared.bus.announce(Duration::from_millis(500)).await.unwrap();
    proxy.set(Fault::Refuse);
    proxy.cut();
    let offered = bus.offer(to, Bytes::from("before")).await.unwrap();
    taken_for_dead(&sender, to).await;
    // Its reader is back before it says that it lives.
    proxy.set(Fault::None);
    cut_off.up().await;
    let inbox = format!("drawbridge:1:{{{}}}:inbox", to.as_str());
    at_last("the inbox to be read", async || (server.run::<u64>(&["XLEN", &inbox]).await == 0).then_some(()))
        .await;
    assert!(!bus.withdraw(to, &offered).await.unwrap(), "nobody can tell any more");
    cut_off.shared.bus.announce(TTL).await.unwrap();
    bus.send(to, Bytes::from("after")).await.unwrap();
    assert_eq!(soon("a message", cut_off.shared.bus.receive()).await.unwrap(), "after");
}

#[tokio::test]
async fn what_was_offered_comes_or_is_taken_back_and_never_both_whatever_is_cut() {
    let server = RedisServer::start().await;
    let (proxy, cut_off, sender) = cut_off_and_sender(&server).await;
    let (bus, to) = (&sender.shared.bus, &cut_off.shared.instance);
    let mut taken_back = HashSet::new();
    for round in 0..8_u64 {
        soon("to be known to live", async {
            while cut_off.shared.bus.announce(Duration::from_millis(20 + round % 7)).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let mut offers = Vec::new();
        // Until it is gone; its connections are cut meanwhile.
        loop {
            let message = format!("{round}:{}", offers.len());
            match bus.offer(to, Bytes::from(message.clone())).await {
                Ok(receipt) => offers.push((message, receipt)),
                Err(NotSent::Gone(_)) => break,
                Err(error) => panic!("{error}"),
            }
            if offers.len() as u64 == 3 * round {
                proxy.cut();
            }
        }
        for (message, receipt) in offers {
            if bus.withdraw(to, &receipt).await.unwrap() {
                taken_back.insert(message);
            }
        }
        while let Some(message) = cut_off.shared.bus.receive().now_or_never().flatten() {
            let message = String::from_utf8(message.to_vec()).unwrap();
            assert!(!taken_back.contains(&message), "{message} came, and was taken back");
        }
    }
    assert!(!taken_back.is_empty(), "nothing was ever taken back");
}

#[tokio::test]
async fn an_offer_that_was_taken_does_not_come_again_with_an_older_state_of_redis() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap();
    let one = Instance::connected(&options).await;
    let (bus, to) = (&one.shared.bus, &one.shared.instance);
    bus.announce(TTL).await.unwrap();
    let Receipt(id) = bus.offer(to, Bytes::from("once")).await.unwrap();
    assert_eq!(soon("a message", bus.receive()).await.unwrap(), "once");
    let inbox = format!("drawbridge:1:{{{}}}:inbox", to.as_str());
    server.run::<()>(&["DEL", &inbox]).await;
    server.run::<String>(&["XADD", &inbox, &id, "o", "once"]).await;
    at_last("it to be read", async || (server.run::<u64>(&["XLEN", &inbox]).await == 0).then_some(())).await;
    bus.offer(to, Bytes::from("after")).await.unwrap();
    assert_eq!(soon("a message", bus.receive()).await.unwrap(), "after");
}
