//! Inboxes at their limits.

use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::state::NotSent;
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
    let proxy = FaultProxy::start(server.port()).await;
    let near = RedisOptions::parse(&server.url()).unwrap();
    let far = RedisOptions::parse(&format!("redis://127.0.0.1:{}", proxy.port)).unwrap();
    let far = far.timeout(Duration::from_millis(300));
    let (cut_off, sender) = (Instance::connected(&far).await, Instance::connected(&near).await);
    let to = cut_off.shared.instance.clone();
    cut_off.shared.bus.announce(Duration::from_millis(1000)).await.unwrap();
    proxy.set(Fault::Refuse);
    proxy.cut();
    sender.shared.bus.send(&to, Bytes::from("before")).await.unwrap();
    at_last("it to be taken for dead", async || {
        (!sender.shared.bus.is_alive(&to).await.unwrap()).then_some(())
    })
    .await;
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
