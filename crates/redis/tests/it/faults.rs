//! What happens when Redis goes, hangs, is slow, is full, is emptied, moves, or wants another password.

mod cluster;
mod down;
mod emptied;
mod inbox;
mod kept;
mod login;
mod network;
mod sentinel;
mod topics;

use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::event_log::StreamKey;
use drawbridge_core::state::{Lease, NotSent, Quota, Receipt, SharedState, Unavailable};

use crate::fleet::{name, session};

const TTL: Duration = Duration::from_secs(60);

/// What each port says to something that is asked of it, and how long that took.
async fn ask_all(state: &SharedState) -> Vec<(&'static str, Result<(), Unavailable>, Duration)> {
    let (key, value, name) = (session(), Bytes::from("x"), name("n"));
    let stream = StreamKey { session: key, stream: 1 };
    let lease = Lease { owner: state.instance.clone(), token: 1 };
    let quota = Quota { interval: TTL, burst: 1 };
    let mut said = Vec::new();
    macro_rules! ask {
        ($($what:literal: $work:expr;)+) => {$(
            let begun = Instant::now();
            let answer = $work.await.map(drop);
            said.push(($what, answer, begun.elapsed()));
        )+};
    }
    let sent = async |to| match state.bus.send(to, Bytes::from("x")).await {
        Ok(()) | Err(NotSent::Gone(_)) => Ok(()),
        Err(NotSent::Unavailable(reason)) => Err(reason),
    };
    let offered = async |to| match state.bus.offer(to, Bytes::from("x")).await {
        Ok(_) | Err(NotSent::Gone(_)) => Ok(()),
        Err(NotSent::Unavailable(reason)) => Err(reason),
    };
    ask! {
        "get": state.sessions.get(key, "a");
        "put_if_absent": state.sessions.put_if_absent(key, "a", value.clone(), TTL);
        "replace": state.sessions.replace(key, "a", b"x", value.clone(), TTL);
        "remove": state.sessions.remove(key, "a", b"x");
        "touch": state.sessions.touch(key, TTL);
        "take": state.sessions.take(key);
        "append": state.events.append(stream, &[(1, value.clone())], true);
        "read_after": state.events.read_after(stream, 0);
        "revoke": state.revocations.revoke(key, TTL);
        "announce": state.bus.announce(TTL);
        "is_alive": state.bus.is_alive(&state.instance);
        "instances": state.bus.instances();
        "send": sent(&state.instance);
        "offer": offered(&state.instance);
        "withdraw": state.bus.withdraw(&state.instance, &Receipt("1-1".to_owned()));
        "publish": state.bus.publish(&name, value.clone());
        "subscribe": state.bus.subscribe(&name);
        "acquire": state.leases.acquire(&name, &state.instance, TTL);
        "take_over": state.leases.take_over(&name, &lease, &state.instance, TTL);
        "renew": state.leases.renew(&name, &lease, TTL);
        "release": state.leases.release(&name, &lease);
        "holder": state.leases.holder(&name);
        "claim": state.claims.claim(&name, TTL);
        "limit": state.limiter.take(&name, quota);
        "leave": state.bus.leave();
    }
    said
}

/// Every port works.
async fn all_work(state: &SharedState) {
    for (what, answer, _) in ask_all(state).await {
        assert_eq!(answer, Ok(()), "{what}");
    }
}

/// No port works, and each says so in time.
async fn none_works(state: &SharedState, deadline: Duration) {
    for (what, answer, took) in ask_all(state).await {
        assert!(answer.is_err(), "{what} works");
        assert!(took < deadline + Duration::from_millis(500), "{what} took {took:?}");
    }
}
