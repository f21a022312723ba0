//! A stateless backend is listened to once for all instances.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, Request, Stream, modern};
use drawbridge_testkit::client::Reply as Answer;
use drawbridge_testkit::fleet::Fleet;
use drawbridge_testkit::gateway::Gateway;
use drawbridge_testkit::{PATIENCE, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const ACK: &str = "notifications/subscriptions/acknowledged";
const CHANGED: &str = "notifications/tools/list_changed";

/// A stateless backend whose streams are in the test's hand.
struct Told {
    backend: Backend,
    streams: Arc<Mutex<Vec<(Request, Stream)>>>,
}

impl Told {
    async fn start() -> Self {
        let streams = Arc::<Mutex<Vec<(Request, Stream)>>>::default();
        let opened = streams.clone();
        let backend = Backend::start(move |request| {
            let opened = opened.clone();
            async move {
                if request.rpc() == "server/discover" {
                    return Reply::result(
                        &request,
                        json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 60000, "cacheScope": "public",
                                "capabilities": { "tools": { "listChanged": true }, "resources": { "subscribe": true } } }),
                    );
                }
                if request.rpc() != "subscriptions/listen" {
                    return modern(&request);
                }
                let wanted = request.body["params"]["notifications"].clone();
                if wanted["resourceSubscriptions"].as_array().is_some_and(|uris| uris.contains(&json!("a://refused"))) {
                    return Reply::error(&request, 400, -32602, "a://refused is nothing to listen to");
                }
                let (reply, stream) = Reply::stream();
                let params = json!({ "notifications": wanted, "_meta": { SUBSCRIPTION: request.id() } });
                stream.event(&json!({ "jsonrpc": "2.0", "method": ACK, "params": params })).await;
                opened.lock().unwrap().push((request, stream));
                reply
            }
        })
        .await;
        Self { backend, streams }
    }

    fn setup(&self) -> drawbridge_testkit::gateway::Setup {
        Gateway::setup().url("b", &self.backend.url(), "modern")
    }

    /// The streams that somebody reads, and what they are asked for.
    async fn open(&self) -> Vec<(Request, Stream)> {
        let all = self.streams.lock().unwrap().clone();
        let mut open = Vec::new();
        for (request, stream) in all {
            if stream.raw(": hello\n\n").await {
                open.push((request, stream));
            }
        }
        open
    }

    async fn is_listened_to_by(&self, count: usize) {
        let mut last = Vec::new();
        for _ in 0..200 {
            last = self.open().await;
            if last.len() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let wanted: Vec<_> = last.iter().map(|(r, _)| &r.body["params"]["notifications"]).collect();
        panic!("{} streams, not {count}: {wanted:?}", last.len());
    }

    /// Says on each open stream that the tools have changed.
    async fn change(&self) {
        for (request, stream) in self.open().await {
            let params = json!({ "_meta": { SUBSCRIPTION: request.id() } });
            stream.event(&json!({ "jsonrpc": "2.0", "method": CHANGED, "params": params })).await;
        }
    }
}

/// A listener at one instance.
async fn listens_at(fleet: &Fleet, number: usize) -> Answer {
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut stream = fleet.modern(number, json!({})).request("subscriptions/listen", wanted).await;
    let first = stream.message().await;
    assert_eq!(first["method"], ACK, "at {number}: {first}");
    stream
}

async fn hears(stream: &mut Answer) {
    assert_eq!(stream.message().await["method"], CHANGED);
}

/// Nothing comes for a while; what was said before has come.
async fn is_silent(stream: &mut Answer) {
    while let Ok(Some(event)) = stream.event_within(Duration::from_millis(300)).await {
        let data = String::from_utf8_lossy(&event.data);
        assert!(data.is_empty() || data.contains(CHANGED), "{data}");
    }
}

#[tokio::test]
async fn a_stateless_backend_has_one_stream_for_all_clients_of_a_kind_at_all_instances() {
    let told = Told::start().await;
    let fleet = Fleet::start(3, told.setup()).await;
    let mut streams = Vec::new();
    for number in [0, 1, 2, 0, 1, 2] {
        streams.push(listens_at(&fleet, number).await);
    }
    told.is_listened_to_by(1).await;
    assert_eq!(told.backend.count("subscriptions/listen"), 1, "nobody wanted anything else");
    told.change().await;
    for stream in &mut streams {
        hears(stream).await;
    }
    // Clients with sessions are of another kind, and share one among themselves.
    let mut sessions = Vec::new();
    for number in 0..3 {
        let session = fleet.session(number, "2025-11-25", json!({})).await;
        sessions.push((session.get(None).await, session));
    }
    told.is_listened_to_by(2).await;
    for stream in &mut streams {
        is_silent(stream).await;
    }
    drop(sessions);
    drop(streams);
    told.is_listened_to_by(0).await;
}

#[tokio::test]
async fn the_one_stream_is_asked_for_what_any_of_the_instances_wants_and_each_hears_only_its_own() {
    let told = Told::start().await;
    let fleet = Fleet::start(3, told.setup()).await;
    let mut tools = listens_at(&fleet, 0).await;
    let wanted = json!({ "notifications": { "resourceSubscriptions": ["a://1"] } });
    let mut resource = fleet.modern(1, json!({})).request("subscriptions/listen", wanted).await;
    let ack = resource.message().await;
    assert_eq!(ack["params"]["notifications"], json!({ "resourceSubscriptions": ["a://1"] }));
    told.is_listened_to_by(1).await;
    let (request, stream) = told.open().await.pop().unwrap();
    let asked = &request.body["params"]["notifications"];
    assert_eq!(*asked, json!({ "toolsListChanged": true, "resourceSubscriptions": ["a://1"] }));
    let params = json!({ "uri": "a://1/part", "_meta": { SUBSCRIPTION: request.id() } });
    stream
        .event(&json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params }))
        .await;
    told.change().await;
    assert_eq!(resource.message().await["params"]["uri"], "a://1/part");
    hears(&mut tools).await;
    // What one listener wants and can't have is its own affair.
    let wanted = json!({ "notifications": { "resourceSubscriptions": ["a://refused"] } });
    let refused = fleet.modern(2, json!({})).request("subscriptions/listen", wanted).await.json().await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(refused["error"]["message"], "a://refused is nothing to listen to");
    told.change().await;
    hears(&mut tools).await;
}

#[tokio::test]
async fn listeners_are_told_and_go_on_when_the_instance_that_listens_for_all_was_killed_or_stopped() {
    for signal in [Signal::KILL, Signal::TERM] {
        let told = Told::start().await;
        let mut fleet = Fleet::start(3, told.setup()).await;
        let own = listens_at(&fleet, 0).await;
        let mut streams = [listens_at(&fleet, 1).await, listens_at(&fleet, 2).await];
        let mut leaving = fleet.gateways.remove(0);
        leaving.program.signal(signal);
        leaving.program.ended().await;
        for stream in &mut streams {
            // Nobody has changed anything.
            hears(stream).await;
        }
        told.is_listened_to_by(1).await;
        for stream in &mut streams {
            is_silent(stream).await;
        }
        told.change().await;
        for stream in &mut streams {
            hears(stream).await;
        }
        drop(own);
    }
}

#[tokio::test]
async fn an_instance_that_stood_still_and_has_lost_the_stream_to_another_one_hears_through_that() {
    let told = Told::start().await;
    let fleet = Fleet::start(2, told.setup()).await;
    let mut own = listens_at(&fleet, 0).await;
    let mut other = listens_at(&fleet, 1).await;
    fleet.gateways[0].program.signal(Signal::STOP);
    hears(&mut other).await;
    fleet.gateways[0].program.signal(Signal::CONT);
    hears(&mut own).await;
    told.is_listened_to_by(1).await;
    is_silent(&mut own).await;
    is_silent(&mut other).await;
    told.change().await;
    hears(&mut own).await;
    hears(&mut other).await;
}

#[tokio::test]
async fn without_redis_each_instance_listens_by_itself_and_afterwards_one_does_for_all() {
    let told = Told::start().await;
    let mut fleet = Fleet::start(2, told.setup()).await;
    let mut before = listens_at(&fleet, 0).await;
    fleet.redis.kill().await;
    let mut meanwhile = listens_at(&fleet, 1).await;
    told.change().await;
    hears(&mut before).await;
    hears(&mut meanwhile).await;
    fleet.redis.restart().await;
    told.is_listened_to_by(1).await;
    is_silent(&mut before).await;
    is_silent(&mut meanwhile).await;
    told.change().await;
    hears(&mut before).await;
    hears(&mut meanwhile).await;
}

#[tokio::test]
async fn a_listen_that_the_backend_ends_is_ended_at_every_instance_with_its_result() {
    let told = Told::start().await;
    let fleet = Fleet::start(3, told.setup()).await;
    let mut streams = Vec::new();
    for number in 0..3 {
        streams.push(listens_at(&fleet, number).await);
    }
    let (request, stream) = told.open().await.pop().unwrap();
    let result = json!({ "resultType": "complete", "_meta": { SUBSCRIPTION: request.id() } });
    stream.event(&json!({ "jsonrpc": "2.0", "id": request.id(), "result": result })).await;
    for stream in &mut streams {
        let last: Value = stream.message().await;
        assert_eq!(last["result"]["resultType"], "complete", "{last}");
        assert!(stream.event().await.is_none());
    }
    let gone = async || told.open().await.is_empty();
    eventually(PATIENCE, gone).await;
}

#[tokio::test]
async fn a_listen_that_begins_while_the_instance_that_listens_for_all_was_killed_is_served_all_the_same() {
    let told = Told::start().await;
    let mut fleet = Fleet::start(2, told.setup()).await;
    let _own = listens_at(&fleet, 0).await;
    fleet.kill(0).await;
    // Nobody knows yet that it is gone.
    let _later = listens_at(&fleet, 0).await;
    told.is_listened_to_by(1).await;
}
