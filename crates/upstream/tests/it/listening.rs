//! What listeners hear of a scripted backend: over one instance, and over two that share state in memory which can be
//! taken away from one of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::backend::{Scope, Unsolicited};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fleet::Peers;
use drawbridge_core::state::{
    Bus, InstanceId, Lease, Leases, MemoryState, NotSent, Receipt, SessionState, SharedState, Subscription,
    Unavailable,
};
use drawbridge_core::{Answers, Backend as _, BackendName, Client, Conversation, Event, Principal, Tasks};
use drawbridge_testkit::backend::{Backend, Reply, Request, Stream, legacy, modern};
use drawbridge_testkit::{PATIENCE, eventually};
use drawbridge_upstream::http::Target;
use drawbridge_upstream::{EraChoice, HttpBackend, Options, Outbound, OutboundOptions, TransportChoice};
use drawbridge_wire::ProtocolVersion;
use serde_json::{Value, json};

/// Whether shared state can't be reached.
#[derive(Clone, Default)]
struct Away(Arc<AtomicBool>);

impl Away {
    fn set(&self, is_away: bool) {
        self.0.store(is_away, Ordering::Release);
    }

    fn check(&self) -> Result<(), Unavailable> {
        match self.0.load(Ordering::Acquire) {
            true => Err(Unavailable("away".to_owned())),
            false => Ok(()),
        }
    }
}

/// A port that can be taken away.
struct Port<T: ?Sized>(Away, Arc<T>);

#[async_trait]
impl Bus for Port<dyn Bus> {
    async fn announce(&self, ttl: Duration) -> Result<bool, Unavailable> {
        self.0.check()?;
        self.1.announce(ttl).await
    }

    async fn leave(&self) -> Result<(), Unavailable> {
        self.0.check()?;
        self.1.leave().await
    }

    async fn is_alive(&self, instance: &InstanceId) -> Result<bool, Unavailable> {
        self.0.check()?;
        self.1.is_alive(instance).await
    }

    async fn instances(&self) -> Result<Vec<InstanceId>, Unavailable> {
        self.0.check()?;
        self.1.instances().await
    }

    async fn send(&self, to: &InstanceId, message: Bytes) -> Result<(), NotSent> {
        self.0.check()?;
        self.1.send(to, message).await
    }

    async fn offer(&self, to: &InstanceId, message: Bytes) -> Result<Receipt, NotSent> {
        self.0.check()?;
        self.1.offer(to, message).await
    }

    async fn withdraw(&self, to: &InstanceId, offered: &Receipt) -> Result<bool, Unavailable> {
        self.0.check()?;
        self.1.withdraw(to, offered).await
    }

    async fn receive(&self) -> Option<Bytes> {
        self.1.receive().await
    }

    async fn publish(&self, topic: &str, message: Bytes) -> Result<(), Unavailable> {
        self.0.check()?;
        self.1.publish(topic, message).await
    }

    async fn subscribe(&self, topic: &str) -> Result<Subscription, Unavailable> {
        self.0.check()?;
        self.1.subscribe(topic).await
    }
}

#[async_trait]
impl Leases for Port<dyn Leases> {
    async fn acquire(&self, name: &str, by: &InstanceId, ttl: Duration) -> Result<Lease, Unavailable> {
        self.0.check()?;
        self.1.acquire(name, by, ttl).await
    }

    async fn take_over(
        &self,
        name: &str,
        lost: &Lease,
        by: &InstanceId,
        ttl: Duration,
    ) -> Result<Lease, Unavailable> {
        self.0.check()?;
        self.1.take_over(name, lost, by, ttl).await
    }

    async fn renew(&self, name: &str, lease: &Lease, ttl: Duration) -> Result<bool, Unavailable> {
        self.0.check()?;
        self.1.renew(name, lease, ttl).await
    }

    async fn release(&self, name: &str, lease: &Lease) -> Result<(), Unavailable> {
        self.0.check()?;
        self.1.release(name, lease).await
    }

    async fn holder(&self, name: &str) -> Result<Option<Lease>, Unavailable> {
        self.0.check()?;
        self.1.holder(name).await
    }
}

#[async_trait]
impl SessionState for Port<dyn SessionState> {
    async fn get(&self, session: SessionKey, field: &str) -> Result<Option<Bytes>, Unavailable> {
        self.0.check()?;
        self.1.get(session, field).await
    }

    async fn put_if_absent(
        &self,
        session: SessionKey,
        field: &str,
        value: Bytes,
        ttl: Duration,
    ) -> Result<Bytes, Unavailable> {
        self.0.check()?;
        self.1.put_if_absent(session, field, value, ttl).await
    }

    async fn replace(
        &self,
        session: SessionKey,
        field: &str,
        old: &[u8],
        new: Bytes,
        ttl: Duration,
    ) -> Result<bool, Unavailable> {
        self.0.check()?;
        self.1.replace(session, field, old, new, ttl).await
    }

    async fn remove(&self, session: SessionKey, field: &str, old: &[u8]) -> Result<bool, Unavailable> {
        self.0.check()?;
        self.1.remove(session, field, old).await
    }

    async fn touch(&self, session: SessionKey, ttl: Duration) -> Result<Option<Duration>, Unavailable> {
        self.0.check()?;
        self.1.touch(session, ttl).await
    }

    async fn take(&self, session: SessionKey) -> Result<Vec<(String, Bytes)>, Unavailable> {
        self.0.check()?;
        self.1.take(session).await
    }
}

/// What a client hears outside of calls.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Unsolicited for Heard {
    fn deliver(&self, event: Event) {
        if let Event::Notify(message) = event {
            self.0.lock().unwrap().push(String::from_utf8(message.bytes().to_vec()).unwrap());
        }
    }
}

impl Heard {
    fn has(&self, what: &str) -> bool {
        self.0.lock().unwrap().iter().any(|text| text.contains(what))
    }
}

/// An instance, with a client that has a session there.
struct Node {
    away: Away,
    /// Its end of the bus, which is always there.
    bus: Arc<dyn Bus>,
    heard: Arc<Heard>,
    conversation: Arc<dyn Conversation>,
    tasks: Tasks,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.stop_token().cancel();
    }
}

impl Node {
    /// One of several, or the only one.
    fn start(state: &MemoryState, is_fleet: bool, url: &str, era: EraChoice) -> Self {
        let (own, away, tasks) = (state.instance(is_fleet), Away::default(), Tasks::default());
        let bus = own.bus.clone();
        let own = SharedState {
            bus: Arc::new(Port(away.clone(), own.bus)),
            leases: Arc::new(Port(away.clone(), own.leases)),
            sessions: Arc::new(Port(away.clone(), own.sessions)),
            ..own
        };
        let peers = Peers::new(own, tasks.clone());
        let options = Options { era, peers: peers.clone(), ..Options::new(BackendName::parse("b").unwrap()) };
        let target = Target::parse(url).unwrap();
        let reach = OutboundOptions { connect_timeout: PATIENCE, workers: 1, ..OutboundOptions::default() };
        let outbound = Outbound::new(target.uri(), &reach).unwrap();
        let transport = TransportChoice::StreamableHttp;
        let headers = http::HeaderMap::new();
        let backend = HttpBackend::new(target, headers, transport, outbound, options, tasks.clone());
        peers.run();
        let heard = Arc::new(Heard::default());
        let sink: Arc<dyn Unsolicited> = heard.clone();
        let client = Arc::new(Client {
            principal: Principal::anonymous(),
            version: ProtocolVersion::V2025_11_25,
            capabilities: "{}".into(),
            info: None,
            answers: Answers::Live,
        });
        let conversation =
            backend.open(&client, Scope::Session(SessionKey([7; 16])), Some(Arc::downgrade(&sink)));
        Self { away, bus, heard, conversation, tasks }
    }

    fn alone(backend: &Backend, era: EraChoice) -> Self {
        Self::start(&MemoryState::new(0, Duration::ZERO), false, &backend.url(), era)
    }

    fn two(backend: &Backend) -> [Self; 2] {
        let state = MemoryState::new(0, Duration::ZERO);
        [(), ()].map(|()| Self::start(&state, true, &backend.url(), EraChoice::Legacy))
    }

    fn listen(&self) {
        self.conversation.clone().listen();
    }

    async fn is_alive(&self, instance: &Self) {
        let alive = async || !instance.bus.instances().await.unwrap().is_empty();
        eventually(PATIENCE, alive).await;
    }
}

/// A backend with sessions, and the streams on which it tells of changes.
#[derive(Clone, Default)]
struct Sessions {
    /// How many there were.
    opened: Arc<Mutex<usize>>,
    /// The session that each stream is of, and the stream.
    streams: Arc<Mutex<Vec<(String, Stream)>>>,
}

impl Sessions {
    async fn answer(&self, request: Request) -> Reply {
        let session = request.header("mcp-session-id").to_owned();
        match request.rpc() {
            "initialize" => {
                let mut opened = self.opened.lock().unwrap();
                *opened += 1;
                legacy(&request, &format!("s{opened}"))
            }
            "GET" => {
                let (reply, stream) = Reply::stream();
                stream.raw(":\n\n").await;
                self.streams.lock().unwrap().push((session, stream));
                reply
            }
            _ => legacy(&request, &session),
        }
    }

    /// The latest stream of the latest session that has one.
    fn latest(&self) -> Option<(String, Stream)> {
        let streams = self.streams.lock().unwrap();
        let latest = streams.iter().map(|(session, _)| session.clone()).max()?;
        streams.iter().rfind(|(session, _)| *session == latest).cloned()
    }
}

fn note(data: &str) -> Value {
    let params = json!({ "level": "error", "data": data });
    json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })
}

/// A listener hears at last `what` is told on `stream`.
async fn hears(node: &Node, what: &str, stream: &Stream) {
    eventually(PATIENCE, async || {
        stream.event(&note(what)).await;
        node.heard.has(what)
    })
    .await;
}

#[tokio::test]
async fn a_listener_hears_on_a_stream_that_could_not_be_opened_at_once() {
    let (sessions, refused) = (Sessions::default(), Arc::new(AtomicBool::new(false)));
    let (scripted, first) = (sessions.clone(), refused.clone());
    let backend = Backend::start(move |request| {
        let (sessions, first) = (scripted.clone(), first.clone());
        async move {
            if request.rpc() == "GET" && !first.swap(true, Ordering::AcqRel) {
                return Reply::status(503);
            }
            sessions.answer(request).await
        }
    })
    .await;
    let node = Node::alone(&backend, EraChoice::Legacy);
    node.listen();
    eventually(PATIENCE, async || sessions.latest().is_some()).await;
    assert!(refused.load(Ordering::Acquire));
    let (_, stream) = sessions.latest().unwrap();
    hears(&node, "told", &stream).await;
}

#[tokio::test]
async fn a_listener_whose_stream_is_refused_because_its_session_is_gone_hears_in_the_next_session() {
    let sessions = Sessions::default();
    let scripted = sessions.clone();
    let backend = Backend::start(move |request| {
        let sessions = scripted.clone();
        async move {
            if request.rpc() == "GET" && request.header("mcp-session-id") == "s1" {
                return Reply::error(&request, 404, -32001, "Session not found");
            }
            sessions.answer(request).await
        }
    })
    .await;
    let node = Node::alone(&backend, EraChoice::Legacy);
    node.listen();
    eventually(PATIENCE, async || sessions.latest().is_some()).await;
    let (session, stream) = sessions.latest().unwrap();
    assert_eq!(session, "s2");
    hears(&node, "told", &stream).await;
    assert!(node.heard.has("list_changed"), "what it missed is not known");
}

#[tokio::test]
async fn a_stream_that_was_opened_while_shared_state_was_away_is_given_up_for_the_one_that_all_share() {
    let sessions = Sessions::default();
    let scripted = sessions.clone();
    let backend = Backend::start(move |request| {
        let sessions = scripted.clone();
        async move { sessions.answer(request).await }
    })
    .await;
    let [one, other] = Node::two(&backend);
    one.away.set(true);
    one.listen();
    eventually(PATIENCE, async || sessions.latest().is_some()).await;
    other.listen();
    let shared = async || sessions.latest().is_some_and(|(session, _)| session == "s2");
    eventually(PATIENCE, shared).await;
    one.away.set(false);
    let (_, stream) = sessions.latest().unwrap();
    hears(&one, "told", &stream).await;
    assert!(one.heard.has("list_changed"), "what it missed is not known");
}

#[tokio::test]
async fn a_listener_whose_stream_another_instance_has_taken_over_hears_through_that_one() {
    let sessions = Sessions::default();
    let scripted = sessions.clone();
    let backend = Backend::start(move |request| {
        let sessions = scripted.clone();
        async move { sessions.answer(request).await }
    })
    .await;
    let [one, other] = Node::two(&backend);
    other.is_alive(&one).await;
    one.listen();
    eventually(PATIENCE, async || sessions.latest().is_some()).await;
    let (_, first) = sessions.latest().unwrap();
    hears(&one, "first", &first).await;
    assert!(!one.heard.has("list_changed"));
    // It is silent for so long that it is taken for dead.
    one.away.set(true);
    one.bus.leave().await.unwrap();
    other.listen();
    let streams = async || sessions.streams.lock().unwrap().len();
    eventually(PATIENCE, async || streams().await == 2).await;
    one.away.set(false);
    let (session, second) = sessions.latest().unwrap();
    assert_eq!(session, "s1", "all use the same session");
    hears(&one, "second", &second).await;
    assert!(one.heard.has("list_changed"), "what it missed is not known");
}

/// Answers like a server without sessions that tells listeners of changes.
async fn stateless(request: Request, streams: Arc<Mutex<Vec<Stream>>>) -> Reply {
    match request.rpc() {
        "server/discover" => {
            let result = json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 60000,
                "cacheScope": "public", "capabilities": { "tools": { "listChanged": true } },
            });
            Reply::result(&request, result)
        }
        "subscriptions/listen" => {
            let (reply, stream) = Reply::stream();
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": request.id() });
            let params = json!({ "notifications": request.body["params"]["notifications"], "_meta": meta });
            let method = "notifications/subscriptions/acknowledged";
            stream.event(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
            let method = "notifications/tools/list_changed";
            stream.event(&json!({ "jsonrpc": "2.0", "method": method, "params": { "_meta": meta } })).await;
            streams.lock().unwrap().push(stream);
            reply
        }
        "initialize" => Reply::error(&request, 400, -32022, "Unsupported protocol version"),
        _ => modern(&request),
    }
}

#[tokio::test]
async fn a_listener_that_is_first_at_a_backend_which_refuses_sessions_hears_of_its_changes() {
    let streams = Arc::<Mutex<Vec<Stream>>>::default();
    let opened = streams.clone();
    let backend = Backend::start(move |request| stateless(request, opened.clone())).await;
    // Nothing was asked of it here: the client opened its session at another instance.
    let node = Node::alone(&backend, EraChoice::Auto);
    node.listen();
    eventually(PATIENCE, async || node.heard.has("tools/list_changed")).await;
    assert_eq!(backend.count("initialize"), 1, "it has said that it has no sessions");
}

#[tokio::test]
async fn a_listener_that_comes_while_the_backend_is_away_hears_when_it_is_back() {
    let sessions = Sessions::default();
    let (scripted, is_back) = (sessions.clone(), Arc::new(AtomicBool::new(false)));
    let back = is_back.clone();
    let backend = Backend::start(move |request| {
        let (sessions, back) = (scripted.clone(), back.clone());
        async move {
            match back.load(Ordering::Acquire) {
                true => sessions.answer(request).await,
                false => Reply::status(502),
            }
        }
    })
    .await;
    let node = Node::alone(&backend, EraChoice::Legacy);
    node.listen();
    backend.wait_for("initialize").await;
    is_back.store(true, Ordering::Release);
    eventually(PATIENCE, async || sessions.latest().is_some()).await;
    let (_, stream) = sessions.latest().unwrap();
    hears(&node, "told", &stream).await;
}

#[tokio::test]
async fn whoever_stops_listening_while_the_backend_is_away_does_not_ask_it_any_more() {
    let backend = Backend::start(|_| async { Reply::status(502) }).await;
    let node = Node::alone(&backend, EraChoice::Legacy);
    node.listen();
    backend.wait_for("initialize").await;
    node.conversation.stop_listening();
    eventually(PATIENCE, async || node.tasks.tracker().is_empty()).await;
}
