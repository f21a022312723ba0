//! Somebody empties Redis, or it is full.

use bytes::Bytes;
use drawbridge_core::state::Heard;
use drawbridge_redis::RedisOptions;
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::soon;
use futures_util::StreamExt as _;

use super::{TTL, all_work};
use crate::fleet::{Instance, at_last, name, session};

#[tokio::test]
async fn an_emptied_redis_gets_the_revocations_back_and_leases_go_on_rising() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap();
    let (one, two) = (Instance::connected(&options).await, Instance::connected(&options).await);
    let (state, lease) = (&one.shared, name("lease"));
    let revoked: Vec<_> = (0..1500).map(|_| session()).collect();
    for key in &revoked {
        state.revocations.revoke(*key, TTL).await.unwrap();
    }
    for key in &revoked {
        at_last("both to know", async || two.shared.revocations.is_revoked(key).then_some(())).await;
    }
    let before = state.leases.acquire(&lease, &state.instance, TTL).await.unwrap();
    state.bus.announce(TTL).await.unwrap();
    let mut listening = state.bus.subscribe("topic").await.unwrap();

    server.run::<()>(&["FLUSHALL"]).await;
    // Another one is first to write: the emptied stream does not look empty.
    let fresh = session();
    two.shared.revocations.revoke(fresh, TTL).await.unwrap();
    at_last("the stream to be whole", async || {
        let count: usize = server.run(&["XLEN", "drawbridge:1:revocations"]).await;
        (count > revoked.len()).then_some(())
    })
    .await;
    let later = Instance::connected(&options).await;
    assert!(revoked.iter().chain([&fresh]).all(|key| later.shared.revocations.is_revoked(key)));

    assert!(!state.leases.renew(&lease, &before, TTL).await.unwrap());
    let after = two.shared.leases.acquire(&lease, &two.shared.instance, TTL).await.unwrap();
    assert!(after.token > before.token, "{after:?} {before:?}");
    assert!(!state.bus.announce(TTL).await.unwrap(), "it was forgotten");
    two.shared.bus.publish("topic", Bytes::from("news")).await.unwrap();
    assert_eq!(soon("news", listening.next()).await, Some(Heard::Message(Bytes::from("news"))));
    all_work(state).await;
}

#[tokio::test]
async fn a_redis_that_has_lost_only_the_end_of_the_revocations_gets_it_back() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap();
    let one = Instance::connected(&options).await;
    let (kept, lost) = (session(), session());
    one.shared.revocations.revoke(kept, TTL).await.unwrap();
    one.shared.revocations.revoke(lost, TTL).await.unwrap();
    // As after a restart from an older snapshot.
    let key = "drawbridge:1:revocations";
    at_last("the second entry to be read and gone", async || {
        let last: Vec<(String, Vec<Vec<u8>>)> = server.run(&["XREVRANGE", key, "+", "-", "COUNT", "1"]).await;
        let deleted: u64 = server.run(&["XDEL", key, &last[0].0]).await;
        (deleted == 1).then_some(())
    })
    .await;
    at_last("the entry to be back", async || (server.run::<usize>(&["XLEN", key]).await == 2).then_some(()))
        .await;
    let later = Instance::connected(&options).await;
    assert!(later.shared.revocations.is_revoked(&lost) && later.shared.revocations.is_revoked(&kept));
}

#[tokio::test]
async fn a_full_redis_refuses_what_is_written_and_answers_what_is_read() {
    let server = RedisServer::setup().option("maxmemory-policy", "noeviction").start().await;
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    let (state, key) = (&instance.shared, session());
    let stream = drawbridge_core::event_log::StreamKey { session: key, stream: 1 };
    state.sessions.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
    state.events.append(stream, &[(1, Bytes::from("x"))], false).await.unwrap();
    let lease = state.leases.acquire("l", &state.instance, TTL).await.unwrap();
    state.bus.announce(TTL).await.unwrap();
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let refused = state.sessions.put_if_absent(key, "b", Bytes::from("2"), TTL).await.unwrap_err();
    assert!(refused.0.contains("OOM"), "{refused}");
    assert!(state.events.append(stream, &[(2, Bytes::from("y"))], false).await.is_err());
    assert!(state.leases.acquire("m", &state.instance, TTL).await.is_err());
    assert!(state.claims.claim("c", TTL).await.is_err());
    assert!(state.bus.send(&state.instance, Bytes::from("x")).await.is_err());
    assert!(state.revocations.revoke(key, TTL).await.is_err());
    assert!(state.revocations.is_revoked(&key));

    assert_eq!(state.sessions.get(key, "a").await.unwrap().unwrap(), "1");
    assert_eq!(state.sessions.get(key, "b").await.unwrap(), None, "nothing was half done");
    assert_eq!(state.events.read_after(stream, 0).await.unwrap().unwrap().events.len(), 1);
    assert_eq!(state.leases.holder("l").await.unwrap(), Some(lease));
    assert!(state.bus.is_alive(&state.instance).await.unwrap());
    assert!(instance.state.is_up(), "it is there");

    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    all_work(state).await;
    let later = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    at_last("the revocation to be written", async || later.shared.revocations.is_revoked(&key).then_some(()))
        .await;
}

#[tokio::test]
async fn keys_of_a_wrong_type_are_deleted_and_all_ports_work() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap();
    let (one, two) = (Instance::connected(&options).await, Instance::connected(&options).await);
    let (state, key) = (&one.shared, session());
    let revoked = session();
    state.revocations.revoke(revoked, TTL).await.unwrap();
    at_last("both to know", async || two.shared.revocations.is_revoked(&revoked).then_some(())).await;
    state.bus.announce(TTL).await.unwrap();
    state.sessions.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
    let stream = drawbridge_core::event_log::StreamKey { session: key, stream: 1 };
    state.events.append(stream, &[(1, Bytes::from("x"))], false).await.unwrap();
    state.bus.send(&state.instance, Bytes::from("x")).await.unwrap();
    state.leases.acquire("l", &state.instance, TTL).await.unwrap();
    state.limiter.take("k", drawbridge_core::state::Quota { interval: TTL, burst: 1 }).await.unwrap();
    let inbox = format!("drawbridge:1:{{{}}}:inbox", state.instance.as_str());
    let mut keys: Vec<String> = server.run(&["KEYS", "*"]).await;
    keys.push(inbox);
    for key in &keys {
        let kind: String = server.run(&["TYPE", key]).await;
        server.run::<()>(&["DEL", key]).await;
        match kind.as_str() {
            "string" => server.run::<()>(&["HSET", key, "not", "ours"]).await,
            _ => server.run::<()>(&["SET", key, "not ours"]).await,
        }
    }
    assert_eq!(state.sessions.get(key, "a").await.unwrap(), None);
    assert_eq!(state.events.read_after(stream, 0).await.unwrap().map(|page| page.events), None);
    at_last("the revocations to be written again", async || {
        server.try_run::<u64>(&["XLEN", "drawbridge:1:revocations"]).await.ok().filter(|count| *count > 0)
    })
    .await;
    one.up().await;
    all_work(state).await;
    state.bus.announce(TTL).await.unwrap();
    two.shared.bus.send(&state.instance, Bytes::from("hello")).await.unwrap();
    while soon("a message", state.bus.receive()).await.unwrap() != "hello" {}
    assert_eq!(state.leases.acquire("l", &state.instance, TTL).await.unwrap().owner, state.instance);
}
