//! Subscriptions, as Redis sees them.

use bytes::Bytes;
use drawbridge_core::state::Heard;
use drawbridge_redis::RedisOptions;
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::soon;
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;

use crate::fleet::{Instance, at_last};

async fn channels(server: &RedisServer) -> usize {
    server.run::<Vec<String>>(&["PUBSUB", "CHANNELS", "drawbridge:1:*"]).await.len()
}

#[tokio::test]
async fn the_last_listener_of_a_topic_unsubscribes() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    let bus = &instance.shared.bus;
    let (first, second) = (bus.subscribe("a").await.unwrap(), bus.subscribe("a").await.unwrap());
    let other = bus.subscribe("b").await.unwrap();
    assert_eq!(channels(&server).await, 2);
    let subscribers: (String, u64) = server.run(&["PUBSUB", "NUMSUB", "drawbridge:1:{topics}:a"]).await;
    assert_eq!(subscribers.1, 1, "one subscription for all listeners");
    drop((first, other));
    at_last("one topic to be left", async || (channels(&server).await == 1).then_some(())).await;
    drop(second);
    at_last("no topic to be left", async || (channels(&server).await == 0).then_some(())).await;
    drop(bus.subscribe("a").await.unwrap());
}

#[tokio::test]
async fn a_thousand_subscriptions_and_all_ports_need_three_connections() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    let expected = ["commands", "reader", "topics"];
    let expected = expected.map(|role| format!("drawbridge-{}-{role}", instance.shared.instance));
    assert_eq!(server.connections().await, expected);
    let bus = &instance.shared.bus;
    let topics: Vec<String> = (0..1000).map(|n| format!("topic {n}")).collect();
    let mut listening = try_join_all(topics.iter().map(|topic| bus.subscribe(topic))).await.unwrap();
    try_join_all(
        (0..100).map(|_| super::ask_all(&instance.shared)).map(|all| async { Ok::<_, ()>(all.await) }),
    )
    .await
    .unwrap();
    assert_eq!(server.connections().await, expected);
    assert_eq!(channels(&server).await, 1000);
    for (topic, listener) in topics.iter().zip(&mut listening) {
        bus.publish(topic, Bytes::from(topic.clone())).await.unwrap();
        assert_eq!(
            soon("a message", listener.next()).await,
            Some(Heard::Message(Bytes::from(topic.clone())))
        );
    }
    // And again on a new connection.
    server.run::<()>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    for (topic, listener) in topics.iter().zip(&mut listening) {
        assert_eq!(soon("to be told", listener.next()).await, Some(Heard::Missed));
        bus.publish(topic, Bytes::from("again")).await.unwrap();
        assert_eq!(soon("a message", listener.next()).await, Some(Heard::Message(Bytes::from("again"))));
    }
    drop(listening);
    at_last("no topic to be left", async || (channels(&server).await == 0).then_some(())).await;
}
