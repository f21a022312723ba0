//! Redis goes and comes back.

use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::state::Heard;
use drawbridge_redis::RedisOptions;
use drawbridge_testkit::redis::{RedisServer, free_port};
use drawbridge_testkit::soon;
use futures_util::StreamExt as _;
use rustix::process::Signal;

use super::{TTL, all_work, none_works};
use crate::fleet::{Instance, at_last, name, session};

/// So soon after Redis is back all must work again.
const SOON: Duration = Duration::from_secs(2);

fn options(url: &str) -> RedisOptions {
    RedisOptions::parse(url).unwrap().timeout(Duration::from_millis(500))
}

#[tokio::test]
async fn an_instance_starts_without_redis_and_finds_it_later() {
    let port = free_port();
    let instance = Instance::start(&options(&format!("redis://127.0.0.1:{port}")));
    assert!(!instance.state.is_up());
    none_works(&instance.shared, Duration::from_millis(500)).await;
    let error = instance.state.last_error().unwrap();
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");
    let server = RedisServer::setup().start_at(port).await;
    instance.up().await;
    all_work(&instance.shared).await;
    drop(server);
}

#[tokio::test]
async fn while_redis_is_gone_every_port_says_so_and_all_work_soon_after_it_is_back() {
    let mut server = RedisServer::start().await;
    let instance = Instance::connected(&options(&server.url())).await;
    all_work(&instance.shared).await;
    for _ in 0..2 {
        server.kill().await;
        let gone = Instant::now();
        while gone.elapsed() < Duration::from_secs(3) {
            none_works(&instance.shared, Duration::from_millis(500)).await;
            tokio::task::yield_now().await;
        }
        assert!(!instance.state.is_up());
        server.restart().await;
        let back = Instant::now();
        instance.up().await;
        assert!(back.elapsed() < SOON, "{:?}", back.elapsed());
        all_work(&instance.shared).await;
    }
}

#[tokio::test]
async fn a_redis_that_hangs_is_given_up_in_time_and_found_again() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&options(&server.url())).await;
    server.signal(Signal::STOP);
    none_works(&instance.shared, Duration::from_millis(500)).await;
    assert!(!instance.state.is_up());
    server.signal(Signal::CONT);
    let back = Instant::now();
    instance.up().await;
    assert!(back.elapsed() < SOON, "{:?}", back.elapsed());
    all_work(&instance.shared).await;
}

#[tokio::test]
async fn after_a_restart_that_forgets_all_an_instance_is_new_and_its_listeners_are_told() {
    let mut server = RedisServer::start().await;
    let (one, two) = (Instance::connected(&options(&server.url())).await, options(&server.url()));
    let two = Instance::connected(&two).await;
    let topic = name("topic");
    let mut listening = one.shared.bus.subscribe(&topic).await.unwrap();
    assert!(!one.shared.bus.announce(TTL).await.unwrap());
    assert!(one.shared.bus.announce(TTL).await.unwrap());
    server.stop().await;
    server.restart().await;
    assert_eq!(soon("to be told", listening.next()).await, Some(Heard::Missed));
    one.up().await;
    two.up().await;
    assert!(!one.shared.bus.announce(TTL).await.unwrap(), "nobody knows it any more");
    two.shared.bus.send(&one.shared.instance, Bytes::from("hello")).await.unwrap();
    assert_eq!(soon("a message", one.shared.bus.receive()).await.unwrap(), "hello");
    two.shared.bus.publish(&topic, Bytes::from("news")).await.unwrap();
    assert_eq!(soon("news", listening.next()).await, Some(Heard::Message(Bytes::from("news"))));
}

#[tokio::test]
async fn a_restart_that_keeps_all_changes_nothing() {
    let mut server = RedisServer::setup().durable().start().await;
    let instance = Instance::connected(&options(&server.url())).await;
    let (state, key, name) = (&instance.shared, session(), name("lease"));
    state.bus.announce(TTL).await.unwrap();
    state.sessions.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
    state.revocations.revoke(key, TTL).await.unwrap();
    let lease = state.leases.acquire(&name, &state.instance, TTL).await.unwrap();
    server.kill().await;
    server.restart().await;
    instance.up().await;
    assert!(state.bus.announce(TTL).await.unwrap());
    assert_eq!(state.sessions.get(key, "a").await.unwrap().unwrap(), "1");
    assert!(state.leases.renew(&name, &lease, TTL).await.unwrap());
    let later = Instance::connected(&options(&server.url())).await;
    assert!(later.shared.revocations.is_revoked(&key));
}

#[tokio::test]
async fn what_is_revoked_while_redis_is_gone_is_known_to_others_as_soon_as_it_is_back() {
    let mut server = RedisServer::start().await;
    let one = Instance::connected(&options(&server.url())).await;
    let two = Instance::connected(&options(&server.url())).await;
    server.kill().await;
    // More than are remembered one by one.
    let keys: Vec<_> = (0..200).map(|_| session()).collect();
    let mut follower = one.shared.revocations.follow();
    for key in &keys {
        assert!(one.shared.revocations.revoke(*key, TTL).await.is_err());
        assert!(one.shared.revocations.is_revoked(key), "here at once");
        assert_eq!(follower.try_recv(), Ok(*key));
    }
    assert!(!two.shared.revocations.is_revoked(&keys[0]));
    server.restart().await;
    let back = Instant::now();
    for key in &keys {
        at_last("the other to know", async || two.shared.revocations.is_revoked(key).then_some(())).await;
    }
    assert!(back.elapsed() < SOON + Duration::from_secs(1), "{:?}", back.elapsed());
    assert!(follower.try_recv().is_err(), "told once");
}

#[tokio::test]
async fn after_a_close_nothing_is_connected_and_all_streams_end() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&options(&server.url())).await;
    let mut listening = instance.shared.bus.subscribe("topic").await.unwrap();
    instance.state.close();
    assert_eq!(soon("the end of the subscription", listening.next()).await, None);
    assert_eq!(soon("the end of the inbox", instance.shared.bus.receive()).await, None);
    none_works(&instance.shared, Duration::from_millis(500)).await;
    at_last("no connection", async || server.connections().await.is_empty().then_some(())).await;
    assert!(instance.tasks.finish(Duration::from_secs(5)).await, "a task goes on");
}

#[tokio::test]
async fn scripts_that_redis_has_forgotten_are_sent_again() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&options(&server.url())).await;
    all_work(&instance.shared).await;
    server.run::<()>(&["SCRIPT", "FLUSH"]).await;
    all_work(&instance.shared).await;
}
