//! What networks do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::state::Heard;
use drawbridge_redis::{Observer, RedisOptions};
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::soon;
use futures_util::{FutureExt as _, StreamExt as _};

use super::{TTL, all_work, ask_all, none_works};
use crate::fleet::{Instance, at_last, name, session};

const DEADLINE: Duration = Duration::from_millis(500);

fn options(port: u16) -> RedisOptions {
    RedisOptions::parse(&format!("redis://127.0.0.1:{port}")).unwrap().timeout(DEADLINE)
}

#[tokio::test]
async fn a_slow_network_is_waited_for_and_one_that_is_too_slow_is_not() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let instance = Instance::connected(&options(proxy.port)).await;
    proxy.set(Fault::Delay(Duration::from_millis(60)));
    for (what, answer, took) in ask_all(&instance.shared).await {
        assert_eq!(answer, Ok(()), "{what}");
        assert!(took > Duration::from_millis(100), "{what} took {took:?}");
    }
    proxy.set(Fault::Delay(Duration::from_secs(2)));
    none_works(&instance.shared, DEADLINE).await;
    proxy.set(Fault::None);
    at_last("all to work again", async || instance.state.is_up().then_some(())).await;
    all_work(&instance.shared).await;
}

#[tokio::test]
async fn a_network_that_falls_silent_is_noticed_and_gone_around() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let instance = Instance::connected(&options(proxy.port)).await;
    let topic = name("topic");
    let mut listening = instance.shared.bus.subscribe(&topic).await.unwrap();
    proxy.set(Fault::Silence);
    none_works(&instance.shared, DEADLINE).await;
    assert!(!instance.state.is_up());
    // The old connections stay silent; new ones are well.
    proxy.set(Fault::None);
    let begun = Instant::now();
    instance.up().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(soon("to be told", listening.next()).await, Some(Heard::Missed));
    all_work(&instance.shared).await;
    assert_eq!(server.connections().await.iter().filter(|name| name.contains("topics")).count(), 2);
}

#[tokio::test]
async fn what_may_be_asked_twice_is_asked_again_when_a_connection_is_cut() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let key = session();
    for _ in 0..10 {
        let instance = Instance::connected(&options(proxy.port)).await;
        let sessions = &instance.shared.sessions;
        assert_eq!(sessions.put_if_absent(key, "a", Bytes::from("1"), TTL).await.unwrap(), "1");
        // The answer is on its way when the connection is cut.
        proxy.set(Fault::Delay(Duration::from_millis(20)));
        let cutting = async {
            tokio::task::yield_now().await;
            proxy.cut();
            proxy.set(Fault::None);
        };
        let (answer, ()) = tokio::join!(sessions.get(key, "a"), cutting);
        assert_eq!(answer.unwrap().unwrap(), "1");
    }
}

#[tokio::test]
async fn an_announcement_whose_answer_is_lost_still_says_that_the_instance_was_not_known() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    for _ in 0..10 {
        let instance = Instance::connected(&options(proxy.port)).await;
        let bus = &instance.shared.bus;
        proxy.set(Fault::Delay(Duration::from_millis(20)));
        let cutting = async {
            // It is there, and the answer is on its way.
            let presence = format!("drawbridge:1:{{{}}}:presence", instance.shared.instance);
            at_last("the announcement", async || {
                server.run::<bool>(&["EXISTS", &presence]).await.then_some(())
            })
            .await;
            proxy.cut();
            proxy.set(Fault::None);
        };
        let (answer, ()) = tokio::join!(bus.announce(TTL), cutting);
        assert!(!answer.unwrap());
        assert!(bus.announce(TTL).await.unwrap());
    }
}

#[tokio::test]
async fn messages_come_once_and_in_order_whatever_is_cut() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    // The receiver's connections are cut; the sender's stand.
    let receiver = Instance::connected(&options(proxy.port)).await;
    let sender = Instance::connected(&options(server.port())).await;
    assert!(!receiver.shared.bus.announce(TTL).await.unwrap());
    const COUNT: u64 = 5000;
    let sending = async {
        for n in 0..COUNT {
            let message = Bytes::copy_from_slice(&n.to_be_bytes());
            sender.shared.bus.send(&receiver.shared.instance, message).await.unwrap();
            if n % 250 == 0 {
                proxy.cut();
            }
        }
    };
    let receiving = async {
        for n in 0..COUNT {
            let message = soon("a message", receiver.shared.bus.receive()).await.unwrap();
            assert_eq!(message, &n.to_be_bytes()[..]);
        }
    };
    tokio::join!(sending, receiving);
    assert!(receiver.shared.bus.receive().now_or_never().is_none());
}

#[derive(Default)]
struct Counts {
    ok: AtomicU64,
    failed: AtomicU64,
    reconnected: AtomicU64,
    messages: AtomicU64,
}

impl Observer for Counts {
    fn command(&self, port: &'static str, took: Duration, ok: bool) {
        assert!(!port.is_empty() && took < Duration::from_secs(5));
        let counter = if ok { &self.ok } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn reconnected(&self) {
        self.reconnected.fetch_add(1, Ordering::Relaxed);
    }

    fn bus_message(&self, direction: &'static str) {
        assert!(matches!(direction, "in" | "out"));
        self.messages.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn an_observer_is_told() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let counts = Arc::new(Counts::default());
    let instance = Instance::connected(&options(proxy.port).observer(counts.clone())).await;
    all_work(&instance.shared).await;
    assert!(counts.ok.load(Ordering::Relaxed) > 20);
    assert_eq!(counts.failed.load(Ordering::Relaxed), 0);
    assert!(counts.messages.load(Ordering::Relaxed) >= 2);
    assert_eq!(counts.reconnected.load(Ordering::Relaxed), 0);
    proxy.set(Fault::Refuse);
    proxy.cut();
    none_works(&instance.shared, DEADLINE).await;
    assert!(counts.failed.load(Ordering::Relaxed) > 20);
    proxy.set(Fault::None);
    instance.up().await;
    assert_eq!(counts.reconnected.load(Ordering::Relaxed), 3, "each of three connections");
}
