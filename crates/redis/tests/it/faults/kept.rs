//! What stands in Redis, and the limits of it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::state::{Quota, Verdict};
use drawbridge_redis::{EventLimits, RedisOptions};
use drawbridge_testkit::redis::RedisServer;

use super::{TTL, ask_all};
use crate::fleet::{Instance, at_last, session, stream};

fn texts(numbers: std::ops::RangeInclusive<u64>, length: usize) -> Vec<(u64, Bytes)> {
    numbers.map(|n| (n, Bytes::from(format!("{n:0length$}")))).collect()
}

#[tokio::test]
async fn all_keys_have_the_prefix_and_a_time_to_live() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap().prefix("of.one-gateway").unwrap();
    let instance = Instance::connected(&options).await;
    let state = &instance.shared;
    let key = session();
    ask_all(state).await;
    state.bus.announce(TTL).await.unwrap();
    state.bus.send(&state.instance, Bytes::from("x")).await.unwrap();
    state.sessions.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap();
    let keys: Vec<String> = server.run(&["KEYS", "*"]).await;
    let mut kinds = BTreeMap::new();
    for key in keys {
        let rest = key.strip_prefix("of.one-gateway:1:").unwrap_or_else(|| panic!("{key}"));
        let ttl: i64 = server.run(&["PTTL", &key]).await;
        assert!(ttl > 0, "{key} has no time to live");
        let kind: String = server.run(&["TYPE", &key]).await;
        let name = rest.split('}').next_back().unwrap().split(':').find(|part| !part.is_empty());
        kinds.insert(name.unwrap_or("lease").to_owned(), kind);
    }
    let expected = [
        ("claim", "string"),
        ("events", "stream"),
        ("inbox", "stream"),
        ("instances", "zset"),
        ("lease", "string"),
        ("limit", "string"),
        ("presence", "string"),
        ("revocations", "stream"),
        ("session", "hash"),
        ("token", "string"),
    ];
    let kinds: Vec<(&str, &str)> = kinds.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    assert_eq!(kinds, expected);
}

#[tokio::test]
async fn two_prefixes_share_nothing() {
    let server = RedisServer::start().await;
    let options = RedisOptions::parse(&server.url()).unwrap();
    let one = Instance::connected(&options.clone().prefix("one").unwrap()).await;
    let two = Instance::connected(&options.prefix("two").unwrap()).await;
    assert!(one.shared.claims.claim("a", TTL).await.unwrap());
    assert!(two.shared.claims.claim("a", TTL).await.unwrap());
    one.shared.bus.announce(TTL).await.unwrap();
    assert!(two.shared.bus.instances().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_stream_keeps_its_last_events_and_hides_no_gap() {
    let server = RedisServer::start().await;
    let limits = EventLimits { max_events: 10, max_bytes: 1000, ttl: TTL };
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap().events(limits)).await;
    let log = &instance.shared.events;
    let after = async |key, seq| log.read_after(key, seq).await.unwrap().map(|page| page.events);

    let many = stream();
    log.append(many, &texts(1..=6, 1), false).await.unwrap();
    log.append(many, &texts(7..=14, 2), false).await.unwrap();
    assert_eq!(after(many, 3).await, None, "number 4 is gone");
    assert_eq!(after(many, 4).await.unwrap().len(), 10);
    assert_eq!(after(many, 14).await.unwrap(), []);

    let large = stream();
    log.append(large, &texts(1..=9, 300), false).await.unwrap();
    assert_eq!(after(large, 5).await, None);
    assert_eq!(after(large, 6).await.unwrap(), texts(7..=9, 300));

    // One that is larger than all that is kept is as if it and all before it were dropped.
    let huge = stream();
    log.append(huge, &texts(1..=3, 10), false).await.unwrap();
    log.append(huge, &texts(4..=4, 1001), false).await.unwrap();
    assert_eq!(after(huge, 3).await, None);
    assert_eq!(after(huge, 4).await.unwrap(), []);
    log.append(huge, &texts(5..=6, 10), true).await.unwrap();
    assert_eq!(after(huge, 3).await, None);
    let page = log.read_after(huge, 4).await.unwrap().unwrap();
    assert!(page.events == texts(5..=6, 10) && page.finished);
}

#[tokio::test]
async fn events_that_are_appended_again_are_there_once() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    let (log, key) = (&instance.shared.events, stream());
    log.append(key, &texts(1..=3, 5), false).await.unwrap();
    log.append(key, &texts(1..=5, 5), true).await.unwrap();
    log.append(key, &texts(1..=5, 5), true).await.unwrap();
    let page = log.read_after(key, 0).await.unwrap().unwrap();
    assert!(page.finished && page.events == texts(1..=5, 5));
}

#[tokio::test]
async fn a_stream_is_forgotten_after_its_time() {
    let server = RedisServer::start().await;
    let limits = EventLimits { ttl: Duration::from_millis(200), ..EventLimits::default() };
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap().events(limits)).await;
    let (log, key) = (&instance.shared.events, stream());
    log.append(key, &texts(1..=3, 5), false).await.unwrap();
    at_last("the stream to be forgotten", async || {
        log.read_after(key, 0).await.unwrap().is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn revocations_that_have_expired_leave_the_stream() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    let revocations = &instance.shared.revocations;
    for _ in 0..10 {
        revocations.revoke(session(), Duration::from_millis(20)).await.unwrap();
    }
    let key = "drawbridge:1:revocations";
    at_last("the expired to go", async || {
        revocations.revoke(session(), TTL).await.unwrap();
        let oldest: Vec<(String, Vec<Vec<u8>>)> = server.run(&["XRANGE", key, "-", "+", "COUNT", "1"]).await;
        let ends: u64 = String::from_utf8(oldest[0].1[3].clone()).unwrap().parse().unwrap();
        let (seconds, _): (u64, u64) = server.run(&["TIME"]).await;
        (ends > seconds * 1000 + 10_000).then_some(())
    })
    .await;
    let ttl: u64 = server.run(&["PTTL", key]).await;
    assert!(ttl > 50_000, "{ttl}");
}

/// Each row: a key that is so many intervals ahead of the server's clock, the burst, and what is to be said.
#[tokio::test]
async fn the_limiter_follows_the_table_of_gcra() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    let interval = Duration::from_secs(3600);
    for (row, (ahead, burst, expected)) in [
        (-5.0, 1, Ok(0)),
        (-5.0, 4, Ok(3)),
        (0.5, 1, Err(0.5)),
        (0.5, 2, Ok(0)),
        (0.5, 4, Ok(2)),
        (1.0, 2, Ok(0)),
        (1.5, 2, Err(0.5)),
        (2.5, 4, Ok(0)),
        (3.0, 4, Ok(0)),
        (3.25, 4, Err(0.25)),
        (9.0, 4, Err(6.0)),
    ]
    .into_iter()
    .enumerate()
    {
        let (seconds, micros): (i64, i64) = server.run(&["TIME"]).await;
        #[expect(clippy::cast_possible_truncation, reason = "some hours")]
        let ahead = (ahead * 3600.0 * 1e6) as i64;
        let next = (seconds * 1_000_000 + micros + ahead).to_string();
        server.run::<()>(&["SET", &format!("drawbridge:1:limit:{row}"), &next]).await;
        let said = instance.shared.limiter.take(&row.to_string(), Quota { interval, burst }).await.unwrap();
        match (said, expected) {
            (Verdict::Allowed { remaining }, Ok(expected)) => assert_eq!(remaining, expected, "row {row}"),
            (Verdict::Refused { retry_after }, Err(expected)) => {
                let off = retry_after.as_secs_f64() - expected * 3600.0;
                // The clock has gone on since the row was made.
                assert!((-20.0..=0.001).contains(&off), "row {row}: off by {off} s");
            }
            other => panic!("row {row}: {other:?}"),
        }
    }
}

/// The page that says what keys cost.
const PAGE: &str = include_str!("../../../../../docs/redis.md");

/// `MEMORY USAGE` of each kind of key, beside what the page says. Servers differ a little from version to version.
#[tokio::test]
async fn keys_cost_what_the_page_says() {
    let server = RedisServer::start().await;
    let instance = Instance::connected(&RedisOptions::parse(&server.url()).unwrap()).await;
    let (state, key, log) = (&instance.shared, session(), stream());
    for field in ["up:tickets", "up:files"] {
        state.sessions.put_if_absent(key, field, Bytes::from(vec![b'x'; 64]), TTL).await.unwrap();
    }
    log_events(state, log).await;
    state.bus.announce(TTL).await.unwrap();
    state.leases.acquire("process:files", &state.instance, TTL).await.unwrap();
    state.claims.claim("0123456789abcdef0123456789abcdef", TTL).await.unwrap();
    state.limiter.take("user:somebody", Quota { interval: TTL, burst: 10 }).await.unwrap();
    for _ in 0..10_000 {
        state.revocations.revoke(session(), TTL).await.unwrap();
    }
    let usage = async |pattern: &str, parts: u64| {
        let keys: Vec<String> = server.run(&["KEYS", pattern]).await;
        assert_eq!(keys.len(), 1, "{keys:?}");
        server.run::<u64>(&["MEMORY", "USAGE", &keys[0], "SAMPLES", "0"]).await.div_ceil(parts)
    };
    for (row, cost) in [
        ("a session with two fields of 64 bytes", usage("*:session", 1).await),
        ("a stream with 100 events of 500 bytes", usage("*:events:*", 1).await),
        ("a revocation", usage("*:revocations", 10_000).await),
        ("the presence of an instance", usage("*:presence", 1).await),
        ("a lease", usage("*{lease:*}", 1).await),
        ("the last token of a lease", usage("*:token", 1).await),
        ("a claim", usage("*claim:*", 1).await),
        ("a limited key", usage("*limit:*", 1).await),
    ] {
        let line = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| {row} | ")));
        let said = line.unwrap_or_else(|| panic!("no row for {row}, which costs {cost}"));
        let said: u64 = said.trim_end_matches(" |").replace(',', "").parse().unwrap();
        assert!(cost <= said && cost * 4 > said * 3, "{row}: {cost} bytes, and the page says {said}");
    }
}

async fn log_events(state: &drawbridge_core::state::SharedState, key: drawbridge_core::event_log::StreamKey) {
    let events: Vec<(u64, Bytes)> = (1..=100).map(|n| (n, Bytes::from(vec![b'x'; 500]))).collect();
    state.events.append(key, &events, true).await.unwrap();
}
