//! The master changes.

use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::state::Heard;
use drawbridge_redis::RedisOptions;
use drawbridge_testkit::redis::Sentinel;
use drawbridge_testkit::soon;
use futures_util::StreamExt as _;

use super::{TTL, all_work};
use crate::fleet::{Instance, at_last, session};

fn options(sentinel: &Sentinel) -> RedisOptions {
    RedisOptions::parse(&sentinel.url()).unwrap().timeout(Duration::from_secs(1))
}

async fn goes_on_with_the_new_master(sentinel: &Sentinel, change: impl AsyncFnOnce()) {
    let instance = Instance::connected(&options(sentinel)).await;
    let (state, key) = (&instance.shared, session());
    state.sessions.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
    state.revocations.revoke(key, TTL).await.unwrap();
    let mut listening = state.bus.subscribe("topic").await.unwrap();
    // The replica has it all.
    let replicas: u64 = sentinel.master.run(&["WAIT", "1", "5000"]).await;
    assert_eq!(replicas, 1);
    change().await;
    at_last("the new master to take what is written", async || {
        state.sessions.put_if_absent(session(), "b", Bytes::from("2"), TTL).await.ok()
    })
    .await;
    instance.up().await;
    assert_eq!(state.sessions.get(key, "a").await.unwrap().unwrap(), "1");
    assert_eq!(soon("to be told", listening.next()).await, Some(Heard::Missed));
    all_work(state).await;
    let connections = sentinel.replica.connections().await;
    let ours = connections.iter().filter(|name| name.contains(instance.shared.instance.as_str()));
    assert_eq!(ours.count(), 3, "{connections:?}");
}

#[tokio::test]
async fn a_planned_change_of_the_master_is_followed() {
    let sentinel = Sentinel::start().await;
    goes_on_with_the_new_master(&sentinel, async || sentinel.fail_over().await).await;
}

#[tokio::test]
async fn a_dead_master_is_replaced() {
    let sentinel = Sentinel::start().await;
    goes_on_with_the_new_master(&sentinel, async || {
        sentinel.master.signal(rustix::process::Signal::KILL);
    })
    .await;
}

#[tokio::test]
async fn servers_and_sentinel_may_have_a_password() {
    let sentinel = Sentinel::protected("pw").await;
    let url = sentinel.url().replace("redis+sentinel://", "redis+sentinel://:pw@");
    let instance = Instance::connected(&RedisOptions::parse(&url).unwrap()).await;
    all_work(&instance.shared).await;
    let wrong = url.replace(":pw@", ":hunter2@");
    let instance = Instance::start(&RedisOptions::parse(&wrong).unwrap().timeout(Duration::from_millis(500)));
    let error = at_last("a refusal", async || {
        instance.state.last_error().filter(|error| error.contains("refused the login"))
    })
    .await;
    assert!(!error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_said() {
    let sentinel = Sentinel::start().await;
    let url = sentinel.url().replace("mymaster", "other");
    let instance = Instance::start(&RedisOptions::parse(&url).unwrap().timeout(Duration::from_millis(500)));
    let error = at_last("an error", async || {
        instance.state.last_error().filter(|error| error.contains("no sentinel knows"))
    })
    .await;
    assert!(error.contains("knows no master of this name"), "{error}");
}
