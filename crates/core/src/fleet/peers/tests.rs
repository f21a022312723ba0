use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt as _;

use super::*;
use crate::state::{Bus, Receipt, Subscription};

struct Echo;

#[async_trait]
impl Service for Echo {
    async fn accept(&self, opening: Bytes, mut channel: Channel) {
        if channel.send(opening).await.is_err() {
            return;
        }
        while let Some(body) = channel.receive().await {
            if body == "stop" || channel.send(body).await.is_err() {
                return;
            }
        }
    }
}

/// Sends many frames at once.
struct Flood;

const MANY: u32 = 200;

#[async_trait]
impl Service for Flood {
    async fn accept(&self, _opening: Bytes, mut channel: Channel) {
        for n in 0..MANY {
            channel.send(Bytes::copy_from_slice(&n.to_be_bytes())).await.unwrap();
        }
        channel.receive().await;
    }
}

/// Says nothing, and ends the channel.
struct Silent;

#[async_trait]
impl Service for Silent {
    async fn accept(&self, _opening: Bytes, _channel: Channel) {}
}

/// What happens to a message on its way.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Open,
    /// It is refused.
    Away,
    /// It comes, but who sent it is told that nobody knows.
    Unconfirmed,
    /// Nobody says anything.
    Stuck,
}

/// A bus that does to messages what Redis does to them when it fails.
struct Faulty {
    bus: Arc<dyn Bus>,
    way: Mutex<Way>,
    /// Messages that did not simply come.
    failed: AtomicUsize,
}

impl Faulty {
    fn set(&self, way: Way) {
        *self.way.lock() = way;
    }

    async fn has_failed(&self) {
        soon(async || self.failed.load(Ordering::Relaxed) > 0).await;
    }

    async fn on_its_way<T>(&self, sending: impl Future<Output = Result<T, NotSent>>) -> Result<T, NotSent> {
        let way = *self.way.lock();
        if way != Way::Open {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        let lost = || Err(Unavailable("lost".to_owned()).into());
        match way {
            Way::Open => sending.await,
            Way::Away => lost(),
            Way::Unconfirmed => sending.await.and_then(|_| lost()),
            Way::Stuck => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Bus for Faulty {
    async fn announce(&self, ttl: Duration) -> Result<bool, Unavailable> {
        self.bus.announce(ttl).await
    }

    async fn leave(&self) -> Result<(), Unavailable> {
        self.bus.leave().await
    }

    async fn is_alive(&self, instance: &InstanceId) -> Result<bool, Unavailable> {
        self.bus.is_alive(instance).await
    }

    async fn instances(&self) -> Result<Vec<InstanceId>, Unavailable> {
        self.bus.instances().await
    }

    async fn send(&self, to: &InstanceId, message: Bytes) -> Result<(), NotSent> {
        self.on_its_way(self.bus.send(to, message)).await
    }

    async fn offer(&self, to: &InstanceId, message: Bytes) -> Result<Receipt, NotSent> {
        self.on_its_way(self.bus.offer(to, message)).await
    }

    async fn withdraw(&self, to: &InstanceId, offered: &Receipt) -> Result<bool, Unavailable> {
        self.bus.withdraw(to, offered).await
    }

    async fn receive(&self) -> Option<Bytes> {
        self.bus.receive().await
    }

    async fn publish(&self, topic: &str, message: Bytes) -> Result<(), Unavailable> {
        self.bus.publish(topic, message).await
    }

    async fn subscribe(&self, topic: &str) -> Result<Subscription, Unavailable> {
        self.bus.subscribe(topic).await
    }
}

fn peers(state: SharedState, tasks: &Tasks) -> Peers {
    let peers = Peers::new(state, tasks.clone());
    peers.serve("echo", Arc::new(Echo));
    peers.serve("flood", Arc::new(Flood));
    peers.serve("silent", Arc::new(Silent));
    peers.run();
    peers
}

fn two() -> (Peers, Peers, Tasks) {
    let state = MemoryState::new(1 << 20, Duration::from_secs(60));
    let tasks = Tasks::default();
    let [one, other] = [(), ()].map(|()| peers(state.instance(true), &tasks));
    (one, other, tasks)
}

/// The same; what the first one sends has to go over a faulty bus.
async fn one_over_a_faulty_bus() -> (Peers, Peers, Arc<Faulty>) {
    let (state, tasks) = (MemoryState::new(1 << 20, Duration::from_secs(60)), Tasks::default());
    let other = peers(state.instance(true), &tasks);
    let mut own = state.instance(true);
    let faulty = Arc::new(Faulty { bus: own.bus, way: Mutex::new(Way::Open), failed: AtomicUsize::new(0) });
    own.bus = faulty.clone();
    let one = peers(own, &tasks);
    until_alive(&one).await;
    until_alive(&other).await;
    (one, other, faulty)
}

/// Waits for a condition; time is paused, so a deadline costs none.
async fn soon(mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap();
}

fn number(frame: &Bytes) -> u32 {
    u32::from_be_bytes(frame[..].try_into().unwrap())
}

async fn until_alive(peers: &Peers) {
    while !peers.is_known_alive() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn frames_come_in_order_and_more_than_fit_at_once() {
    let (one, other, _tasks) = two();
    until_alive(&other).await;
    until_alive(&one).await;
    let mut channel = one.open(other.instance(), "echo", Bytes::from_static(b"hello")).await.unwrap();
    assert_eq!(channel.receive().await.unwrap(), "hello");
    for n in 0..2000 {
        channel.send(Bytes::from(n.to_string())).await.unwrap();
        assert_eq!(channel.receive().await.unwrap(), n.to_string());
    }
    channel.send(Bytes::from_static(b"stop")).await.unwrap();
    assert_eq!(channel.receive().await, None);
    drop(channel);
    assert_eq!((one.channels(), other.channels()), (0, 0));
}

#[tokio::test]
async fn nobody_is_waited_for_who_is_not_there() {
    let (one, other, _tasks) = two();
    until_alive(&one).await;
    until_alive(&other).await;
    let gone = InstanceId::fresh();
    let refused = one.open(&gone, "echo", Bytes::new()).await.err();
    assert_eq!(refused, Some(NotSent::Gone(gone)));
    assert_eq!(one.channels(), 0);
    // A service that is not there ends the channel at once.
    let mut channel = one.open(other.instance(), "other", Bytes::new()).await.unwrap();
    assert_eq!(channel.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_goes_ends_its_channels() {
    let (one, other, _tasks) = two();
    until_alive(&one).await;
    until_alive(&other).await;
    let mut channel = one.open(other.instance(), "echo", Bytes::from_static(b"x")).await.unwrap();
    assert!(channel.receive().await.is_some());
    // It stops saying that it lives: here by leaving, and being silent from then on.
    other.0.state.bus.leave().await.unwrap();
    let bus = one.0.state.bus.clone();
    assert!(!bus.is_alive(other.instance()).await.unwrap());
    assert_eq!(channel.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_channel_whose_end_could_not_be_told_at_once_does_not_wait_for_good() {
    let (one, other, faulty) = one_over_a_faulty_bus().await;
    let mut channel = one.open(other.instance(), "echo", Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(channel.receive().await.unwrap(), "x");
    assert_eq!(other.channels(), 1);
    faulty.set(Way::Away);
    drop(channel);
    faulty.has_failed().await;
    faulty.set(Way::Open);
    soon(async || other.channels() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn no_frame_is_lost_with_whoever_stops_waiting_for_it() {
    let (one, other, faulty) = one_over_a_faulty_bus().await;
    let mut channel = one.open(other.instance(), "flood", Bytes::new()).await.unwrap();
    soon(async || channel.received.len() >= MANY as usize).await;
    // What is said of the frames that were taken takes for ever.
    faulty.set(Way::Stuck);
    for n in 0..MANY {
        tokio::task::yield_now().await;
        // Whoever waits for something else too looks once, and stops waiting.
        let frame = channel.receive().now_or_never().expect("it is there").unwrap();
        assert_eq!(number(&frame), n);
    }
    faulty.has_failed().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_on_its_way_does_not_count_as_never_sent() {
    let (one, other, _faulty) = one_over_a_faulty_bus().await;
    let limit = Duration::from_secs(5);
    let unanswered = one.request(other.instance(), "silent", Bytes::new(), limit).await;
    assert!(matches!(unanswered, Err(NotSent::Unavailable(_))), "it may have done something: {unanswered:?}");
    let gone = InstanceId::fresh();
    let refused = one.request(&gone, "echo", Bytes::new(), limit).await;
    assert_eq!(refused, Err(NotSent::Gone(gone)), "who is gone has done nothing");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_gone_is_waited_for_once_and_found_when_it_is_back() {
    let (one, other, _faulty) = one_over_a_faulty_bus().await;
    let gone = InstanceId::fresh();
    for is_first in [true, false, false] {
        let begun = tokio::time::Instant::now();
        let reached = one.reach(&gone, "echo", Bytes::new()).await.err();
        assert_eq!(reached, Some(NotSent::Gone(gone.clone())));
        assert_eq!(begun.elapsed() >= ANNOUNCE_EVERY, is_first, "{:?}", begun.elapsed());
    }
    // One whose presence was lost is back with its next announcement, whatever was believed of it.
    one.note_gone(other.instance());
    assert!(one.reach(other.instance(), "echo", Bytes::new()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_could_not_be_sent_at_once_comes_once_and_the_channel_goes_on() {
    for way in [Way::Away, Way::Unconfirmed] {
        let (one, other, faulty) = one_over_a_faulty_bus().await;
        let mut channel = one.open(other.instance(), "echo", Bytes::from_static(b"0")).await.unwrap();
        assert_eq!(channel.receive().await.unwrap(), "0");
        faulty.set(way);
        let mend = async {
            faulty.has_failed().await;
            faulty.set(Way::Open);
        };
        let (sent, ()) = tokio::join!(channel.send(Bytes::from_static(b"1")), mend);
        sent.unwrap();
        channel.send(Bytes::from_static(b"2")).await.unwrap();
        for expected in ["1", "2"] {
            assert_eq!(channel.receive().await.unwrap(), expected);
        }
    }
}

#[tokio::test]
async fn what_a_peer_has_not_got_when_it_goes_is_taken_back_and_what_it_has_got_is_not() {
    let state = MemoryState::new(1 << 20, Duration::from_secs(60));
    let one = Peers::new(state.instance(true), Tasks::default());
    let (bus, to) = {
        let other = state.instance(true);
        (other.bus, other.instance)
    };
    bus.announce(LIFE).await.unwrap();
    let (_first, got) = one.offer(&to, "echo", Bytes::from_static(b"1")).await.unwrap();
    assert!(bus.receive().await.is_some());
    let (_second, not_got) = one.offer(&to, "echo", Bytes::from_static(b"2")).await.unwrap();
    assert!(!not_got.withdraw().await, "it lives");
    bus.leave().await.unwrap();
    assert!(!got.withdraw().await);
    assert!(not_got.withdraw().await);
    assert!(!not_got.withdraw().await, "it is not taken back twice");
}

#[test]
fn frames_survive_the_way_and_junk_is_none() {
    let frame = Frame {
        kind: Kind::Data,
        key: Key { opener: InstanceId::fresh(), number: 7, opened_here: true },
        seq: 3,
        body: Bytes::from_static(b"x"),
    };
    let read = Frame::read(&frame.write()).unwrap();
    assert_eq!((read.kind, read.key, read.seq, &read.body[..]), (Kind::Data, frame.key, 3, &b"x"[..]));
    for junk in [&b""[..], b"\x01", &[0; 40], &[1; 40], &[255; 100]] {
        assert!(Frame::read(&Bytes::copy_from_slice(junk)).is_none());
    }
}
