//! Slots move, nodes die.

use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::state::Heard;
use drawbridge_redis::RedisOptions;
use drawbridge_testkit::redis::{Cluster, RedisServer};
use drawbridge_testkit::soon;
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;

use super::login::set_user;
use super::{TTL, all_work};
use crate::fleet::{Instance, at_last, session};

fn options(cluster: &Cluster) -> RedisOptions {
    RedisOptions::parse(&cluster.url()).unwrap().timeout(Duration::from_secs(1))
}

fn key_of(session: &SessionKey) -> String {
    let hex: String = session.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("drawbridge:1:{{{hex}}}:session")
}

/// The index of the master that has a key, as the slots were given out.
async fn owner(cluster: &Cluster, key: &str) -> (usize, u16) {
    let slot: u16 = cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", key]).await;
    (usize::from(slot) * 3 / 16384, slot)
}

async fn id(node: &RedisServer) -> String {
    node.run(&["CLUSTER", "MYID"]).await
}

#[tokio::test]
async fn connections_to_a_cluster_are_constant_too() {
    let cluster = Cluster::start(3, false).await;
    let instance = Instance::connected(&options(&cluster)).await;
    let bus = &instance.shared.bus;
    let topics: Vec<String> = (0..1000).map(|n| format!("topic {n}")).collect();
    let mut listening = try_join_all(topics.iter().map(|topic| bus.subscribe(topic))).await.unwrap();
    for _ in 0..20 {
        all_work(&instance.shared).await;
    }
    bus.publish(&topics[999], Bytes::from("x")).await.unwrap();
    assert_eq!(soon("a message", listening[999].next()).await, Some(Heard::Message(Bytes::from("x"))));
    let count = async |role: &str| {
        let mut count = 0;
        for node in &cluster.nodes {
            count += node.connections().await.iter().filter(|name| name.ends_with(role)).count();
        }
        count
    };
    assert_eq!(count("-commands").await, 3);
    assert_eq!(count("-topics").await, 1);
    assert_eq!(count("-reader").await, 2);
    at_last("the look for the map to be over", async || (count("-discovery").await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_slot_that_moves_is_followed_while_it_moves_and_afterwards() {
    let cluster = Cluster::start(3, false).await;
    let instance = Instance::connected(&options(&cluster)).await;
    let (state, key) = (&instance.shared.sessions, session());
    state.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
    let (from, slot) = owner(&cluster, &key_of(&key)).await;
    let to = (from + 1) % 3;
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let (source_id, target_id, slot) = (id(source).await, id(target).await, slot.to_string());
    target.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await;
    source.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await;
    assert_eq!(state.get(key, "a").await.unwrap().unwrap(), "1", "it is still there");
    let port = target.port().to_string();
    source.run::<()>(&["MIGRATE", "127.0.0.1", &port, &key_of(&key), "0", "5000"]).await;
    // The old owner says ASK: for a command, and for a script that the new one does not know yet.
    assert_eq!(state.get(key, "a").await.unwrap().unwrap(), "1");
    assert!(state.replace(key, "a", b"1", Bytes::from("2"), TTL).await.unwrap());
    // Now it says MOVED.
    for node in [target, source, &cluster.nodes[(from + 2) % 3]] {
        node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
    }
    assert_eq!(state.get(key, "a").await.unwrap().unwrap(), "2");
    assert!(state.replace(key, "a", b"2", Bytes::from("3"), TTL).await.unwrap());
    assert_eq!(state.get(key, "a").await.unwrap().unwrap(), "3");
}

#[tokio::test]
async fn topics_and_inboxes_go_with_their_slots() {
    let cluster = Cluster::start(3, false).await;
    let (one, two) =
        (Instance::connected(&options(&cluster)).await, Instance::connected(&options(&cluster)).await);
    let bus = &one.shared.bus;
    let mut listening = bus.subscribe("topic").await.unwrap();
    bus.announce(TTL).await.unwrap();
    let inbox = format!("drawbridge:1:{{{}}}:inbox", one.shared.instance);
    for key in ["drawbridge:1:{topics}:topic", &inbox, "drawbridge:1:revocations"] {
        let (from, slot) = owner(&cluster, key).await;
        let (source, target) = (&cluster.nodes[from], &cluster.nodes[(from + 1) % 3]);
        let (source_id, target_id, slot) = (id(source).await, id(target).await, slot.to_string());
        target.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await;
        source.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await;
        let port = target.port().to_string();
        let keys: Vec<String> = source.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
        for key in keys {
            source.run::<()>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
        }
        for node in [target, source, &cluster.nodes[(from + 2) % 3]] {
            node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
        }
    }
    assert_eq!(soon("to be told", listening.next()).await, Some(Heard::Missed));
    two.shared.bus.publish("topic", Bytes::from("news")).await.unwrap();
    assert_eq!(soon("news", listening.next()).await, Some(Heard::Message(Bytes::from("news"))));
    two.shared.bus.send(&one.shared.instance, Bytes::from("hello")).await.unwrap();
    assert_eq!(soon("a message", bus.receive()).await.unwrap(), "hello");
    let key = session();
    two.shared.revocations.revoke(key, TTL).await.unwrap();
    at_last("the revocation", async || one.shared.revocations.is_revoked(&key).then_some(())).await;
    one.up().await;
    all_work(&one.shared).await;
}

#[tokio::test]
async fn a_dead_master_is_replaced_by_its_replica() {
    let cluster = Cluster::start(3, true).await;
    let instance = Instance::connected(&options(&cluster)).await;
    let state = &instance.shared;
    let keys: Vec<SessionKey> = (0..30).map(|_| session()).collect();
    for key in &keys {
        state.sessions.put_if_absent(*key, "a", Bytes::from("1"), TTL).await.unwrap();
    }
    let mut listening = state.bus.subscribe("topic").await.unwrap();
    let (index, _) = owner(&cluster, "drawbridge:1:{topics}:topic").await;
    let replicas: u64 = cluster.nodes[index].run(&["WAIT", "1", "5000"]).await;
    assert_eq!(replicas, 1);
    cluster.nodes[index].signal(rustix::process::Signal::KILL);
    for key in &keys {
        let value = at_last("the session", async || state.sessions.get(*key, "a").await.ok()).await;
        assert_eq!(value.unwrap(), "1");
    }
    assert_eq!(soon("to be told", listening.next()).await, Some(Heard::Missed));
    instance.up().await;
    all_work(state).await;
}

#[tokio::test]
async fn without_a_node_its_slots_are_missing_and_the_others_are_there() {
    let mut cluster = Cluster::start(3, false).await;
    for node in &cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    let instance = Instance::connected(&options(&cluster)).await;
    let state = &instance.shared.sessions;
    let mut lost = Vec::new();
    let mut there = Vec::new();
    for _ in 0..30 {
        let key = session();
        let (index, _) = owner(&cluster, &key_of(&key)).await;
        if index == 1 { lost.push(key) } else { there.push(key) }
    }
    cluster.nodes[1].kill().await;
    at_last("it to be noticed", async || (!instance.state.is_up()).then_some(())).await;
    for key in &there {
        state.put_if_absent(*key, "a", Bytes::from("1"), TTL).await.unwrap();
    }
    for key in lost.iter().take(3) {
        state.get(*key, "a").await.unwrap_err();
    }
    cluster.nodes[1].restart().await;
    instance.up().await;
    for key in lost.iter().chain(&there) {
        at_last("the slot", async || state.get(*key, "a").await.ok()).await;
    }
}

#[tokio::test]
async fn an_instance_starts_without_the_cluster_and_with_one_node_that_is_known() {
    let cluster = Cluster::start(3, false).await;
    let dead = drawbridge_testkit::redis::free_port();
    let url = format!("redis+cluster://127.0.0.1:{dead},127.0.0.1:{}", cluster.nodes[2].port());
    let instance = Instance::connected(&RedisOptions::parse(&url).unwrap()).await;
    all_work(&instance.shared).await;
    let nowhere = RedisOptions::parse(&format!("redis+cluster://127.0.0.1:{dead}")).unwrap();
    let instance = Instance::start(&nowhere.timeout(Duration::from_millis(500)));
    super::none_works(&instance.shared, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn a_user_with_the_rules_of_the_page_can_use_a_cluster() {
    let cluster = Cluster::start(3, false).await;
    for node in &cluster.nodes {
        set_user(node, "gate", "pw").await;
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://gate:pw@");
    let instance = Instance::connected(&RedisOptions::parse(&url).unwrap()).await;
    for _ in 0..10 {
        all_work(&instance.shared).await;
    }
}
