//! Changes of lists and resources, from backends of one era to clients of the other.

use std::collections::BTreeSet;
use std::sync::Arc;

use drawbridge_testkit::backend::{Backend, Reply, Stream, legacy, modern};
use drawbridge_testkit::client::{Modern, Reply as Answer};
use drawbridge_testkit::gateway::{Gateway, binary};
use drawbridge_testkit::{PATIENCE, eventually, soon};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{demos, session};
use crate::backends::in_front_of;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const COUNTER: &str = "demo://counter";
const CHANGES: [&str; 4] = [
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
];

fn everything() -> Value {
    json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
            "resourceSubscriptions": [COUNTER] })
}

async fn listen(modern: &Modern, wanted: &Value) -> Answer {
    modern.request("subscriptions/listen", json!({ "notifications": wanted })).await
}

/// Opens a listen and reads its acknowledgement; what is honoured.
async fn honoured(stream: &mut Answer) -> Value {
    let ack = stream.message().await;
    assert_eq!(ack["method"], "notifications/subscriptions/acknowledged", "{ack}");
    ack["params"]["notifications"].clone()
}

/// The methods of the next `n` messages.
async fn methods(stream: &mut Answer, n: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for _ in 0..n {
        let message = stream.message().await;
        found.insert(message["method"].as_str().unwrap().to_owned());
    }
    found
}

fn set(methods: &[&str]) -> BTreeSet<String> {
    methods.iter().map(|m| (*m).to_owned()).collect()
}

#[tokio::test]
async fn a_stateless_client_hears_of_the_changes_of_a_backend_with_sessions() {
    let (_demo, gateways) = demos("legacy").await;
    for (transport, gateway) in &gateways {
        let modern = gateway.modern();
        let discovered = modern.call("server/discover", json!({})).await;
        let capabilities = &discovered["result"]["capabilities"];
        assert_eq!(capabilities["tools"]["listChanged"], true, "{transport}: {capabilities}");
        assert_eq!(capabilities["resources"]["subscribe"], true, "{transport}");
        let mut stream = listen(&modern, &everything()).await;
        assert_eq!(honoured(&mut stream).await, everything(), "{transport}");
        let mut tools = listen(&modern, &json!({ "toolsListChanged": true })).await;
        honoured(&mut tools).await;
        modern.tool("touch", json!({})).await;
        assert_eq!(methods(&mut stream, 4).await, set(&CHANGES), "{transport}");
        let told = tools.message().await;
        assert_eq!(told["method"], CHANGES[0]);
        assert!(told["params"]["_meta"][SUBSCRIPTION].is_number(), "{told}");
    }
}

#[tokio::test]
async fn a_client_with_a_session_hears_of_the_changes_of_a_stateless_backend() {
    let (_demo, gateways) = demos("modern").await;
    for (transport, gateway) in &gateways {
        let session = session(gateway, "2025-11-25", json!({})).await;
        let mut standalone = session.get(None).await;
        let touched = async {
            // The stream is opened beside the client's own, so the first change may come before it.
            loop {
                session.tool("touch", json!({})).await;
                tokio::task::yield_now().await;
            }
        };
        let heard = async {
            let mut found = BTreeSet::new();
            while found.len() < 3 {
                let message = standalone.message().await;
                assert!(message["params"]["_meta"].get(SUBSCRIPTION).is_none(), "R094: {message}");
                found.insert(message["method"].as_str().unwrap().to_owned());
            }
            found
        };
        tokio::select! {
            () = touched => {}
            found = heard => assert_eq!(found, set(&CHANGES[..3]), "{transport}"),
        }
    }
}

#[tokio::test]
async fn r092_a_subscription_at_a_stateless_backend_brings_updates_until_it_is_ended() {
    let (_demo, gateways) = demos("modern").await;
    for (transport, gateway) in &gateways {
        let session = session(gateway, "2025-11-25", json!({})).await;
        let done = session.call("resources/subscribe", json!({ "uri": COUNTER })).await;
        assert_eq!(done["result"], json!({}), "{transport}: {done}");
        let mut standalone = session.get(None).await;
        session.tool("touch", json!({})).await;
        let updated = loop {
            let message = standalone.message().await;
            if message["method"] == CHANGES[3] {
                break message;
            }
        };
        assert_eq!(updated["params"]["uri"], COUNTER, "{transport}");
        // Ended, and then something that is told all the same.
        session.call("resources/unsubscribe", json!({ "uri": COUNTER })).await;
        session.tool("touch", json!({})).await;
        let touched = async {
            loop {
                session.tool("touch", json!({})).await;
                tokio::task::yield_now().await;
            }
        };
        let heard = async {
            let mut others = BTreeSet::new();
            while others.len() < 3 {
                others.insert(standalone.message().await["method"].as_str().unwrap().to_owned());
            }
            others
        };
        tokio::select! {
            () = touched => {}
            others = heard => assert_eq!(others, set(&CHANGES[..3]), "{transport}"),
        }
    }
}

#[tokio::test]
async fn r093_the_last_listener_of_a_resource_ends_the_subscription_at_the_backend() {
    let backend = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let wanted = json!({ "resourceSubscriptions": ["a://1", "a://2"] });
    let mut first = listen(&gateway.modern(), &wanted).await;
    honoured(&mut first).await;
    let mut second = listen(&gateway.modern(), &json!({ "resourceSubscriptions": ["a://1"] })).await;
    honoured(&mut second).await;
    assert_eq!(backend.count("resources/subscribe"), 2, "each resource once");
    drop(first);
    let ended = backend.wait_for("resources/unsubscribe").await;
    assert_eq!(ended.body["params"]["uri"], "a://2");
    drop(second);
    let ended = backend.wait_for_nth("resources/unsubscribe", 2).await;
    assert_eq!(ended.body["params"]["uri"], "a://1");
}

#[tokio::test]
async fn r086_what_a_backend_does_not_offer_is_not_honoured() {
    let backend = Backend::start(|r| async move {
        match r.rpc() {
            "initialize" => {
                let mut result =
                    json!({ "protocolVersion": "2025-11-25", "serverInfo": { "name": "x", "version": "1" } });
                result["capabilities"] =
                    json!({ "tools": { "listChanged": true }, "resources": { "subscribe": true } });
                Reply::result(&r, result).header("mcp-session-id", "s")
            }
            "resources/subscribe" if r.body["params"]["uri"] == "a://no" => {
                Reply::error(&r, 200, -32602, "no")
            }
            _ => legacy(&r, "s"),
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let wanted = json!({ "toolsListChanged": true, "promptsListChanged": true, "madeUp": true,
                         "resourceSubscriptions": ["a://no", "a://yes"] });
    let mut stream = listen(&gateway.modern(), &wanted).await;
    let expected = json!({ "toolsListChanged": true, "resourceSubscriptions": ["a://yes"] });
    assert_eq!(honoured(&mut stream).await, expected);
}

#[tokio::test]
async fn r095_a_list_of_a_backend_with_sessions_is_kept_for_as_long_as_is_configured() {
    let (backend, streams) = with_stream().await;
    let gateway = in_front_of(&backend, "era: legacy, list_ttl: 1m", "").await;
    let modern = gateway.modern();
    let list = async || modern.call("tools/list", json!({})).await["result"].clone();
    let first = list().await;
    assert_eq!((&first["ttlMs"], &first["cacheScope"]), (&json!(60_000), &json!("private")), "{first}");
    eventually(PATIENCE, async || {
        let again = list().await;
        assert_eq!(again["tools"], first["tools"]);
        again["ttlMs"].as_u64().unwrap() < 60_000
    })
    .await;
    assert_eq!(backend.count("tools/list"), 1);
    let mut stream = listen(&modern, &json!({ "toolsListChanged": true })).await;
    honoured(&mut stream).await;
    let to = streams.lock().await[0].clone();
    to.event(&json!({ "jsonrpc": "2.0", "method": CHANGES[0] })).await;
    assert_eq!(stream.message().await["method"], CHANGES[0]);
    assert_eq!(list().await["ttlMs"], 60_000, "whoever has heard of the change gets the new list");
    assert_eq!(backend.count("tools/list"), 2);
    // A session may have a list of its own.
    let session = gateway.session().await;
    for asked in [3, 4] {
        assert!(session.call("tools/list", json!({})).await["result"].get("ttlMs").is_none());
        assert_eq!(backend.count("tools/list"), asked);
    }
}

#[tokio::test]
async fn a_change_of_a_program_ends_what_is_kept_of_its_lists_though_nobody_listens() {
    let settings = |ttl: &str| {
        let command = binary();
        format!(
            "{{ command: \"{}\", args: [demo-server, --stdio], era: legacy, list_ttl: {ttl} }}",
            command.display()
        )
    };
    let hour = 3_600_000;
    let gateway = Gateway::setup().backend("demo", &settings("1h")).start().await;
    let modern = gateway.modern();
    let left = async || modern.call("tools/list", json!({})).await["result"]["ttlMs"].as_u64().unwrap();
    assert_eq!(left().await, hour);
    // It ages, so the program was not asked.
    eventually(PATIENCE, async || left().await < hour).await;
    modern.tool("touch", json!({})).await;
    eventually(PATIENCE, async || left().await == hour).await;
    let read = modern.call("resources/read", json!({ "uri": "demo://about" })).await;
    assert_eq!(read["result"]["ttlMs"], 0, "what a resource contains is another matter");
    // A merged list may be kept for as long as each of its parts.
    let two = Gateway::setup().backend("one", &settings("1h")).backend("two", &settings("1m"));
    let merged = two.start().await.modern().call("tools/list", json!({})).await["result"].clone();
    assert!((1..=60_000).contains(&merged["ttlMs"].as_u64().unwrap()), "{merged}");
    assert_eq!(merged["cacheScope"], "private");
}

/// A backend with sessions whose GET stream a test writes to.
async fn with_stream() -> (Backend, Arc<Mutex<Vec<Stream>>>) {
    let streams = Arc::new(Mutex::new(Vec::new()));
    let opened = streams.clone();
    let backend = Backend::start(move |r| {
        let opened = opened.clone();
        async move {
            if r.rpc() != "GET" || r.header("mcp-session-id").is_empty() {
                return legacy(&r, "s");
            }
            let (reply, stream) = Reply::stream();
            stream.raw(": open\n\n").await;
            opened.lock().await.push(stream);
            reply
        }
    })
    .await;
    (backend, streams)
}

#[tokio::test]
async fn an_update_of_a_part_reaches_whoever_subscribed_to_the_whole() {
    let (backend, streams) = with_stream().await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let mut stream = listen(&gateway.modern(), &json!({ "resourceSubscriptions": ["file:///a"] })).await;
    honoured(&mut stream).await;
    let told =
        |uri: &str| json!({ "jsonrpc": "2.0", "method": CHANGES[3], "params": { "uri": uri, "x": 1 } });
    let to = streams.lock().await[0].clone();
    to.event(&told("file:///b")).await;
    to.event(&told("file:///a/part")).await;
    let message = stream.message().await;
    assert_eq!((&message["params"]["uri"], &message["params"]["x"]), (&json!("file:///a/part"), &json!(1)));
}

#[tokio::test]
async fn r091_listeners_hear_of_changes_after_the_way_to_a_backend_with_sessions_was_lost() {
    let (backend, streams) = with_stream().await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let wanted = json!({ "toolsListChanged": true, "resourceSubscriptions": ["a://1"] });
    let mut stream = listen(&gateway.modern(), &wanted).await;
    honoured(&mut stream).await;
    let mut own = Session::open(&gateway).await;
    eventually(PATIENCE, async || streams.lock().await.len() == 2).await;
    // Both streams break, and can't be resumed.
    streams.lock().await.clear();
    assert_eq!(methods(&mut stream, 2).await, set(&[CHANGES[0], CHANGES[3]]));
    assert_eq!(own.standalone.message().await["method"], CHANGES[0]);
}

struct Session {
    standalone: Answer,
    _session: drawbridge_testkit::client::Session,
}

impl Session {
    async fn open(gateway: &Gateway) -> Self {
        let session = gateway.session().await;
        Self { standalone: session.get(None).await, _session: session }
    }
}

#[tokio::test]
async fn r091_a_session_that_a_backend_has_forgotten_is_opened_again_for_its_listeners() {
    let (backend, streams) = with_stream().await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let wanted = json!({ "toolsListChanged": true, "resourceSubscriptions": ["a://1"] });
    let mut stream = listen(&gateway.modern(), &wanted).await;
    honoured(&mut stream).await;
    let opened = streams.clone();
    // Another session from now on.
    backend.behave(move |r| {
        let opened = opened.clone();
        async move {
            if r.rpc() != "GET" || r.header("mcp-session-id") != "t" {
                return legacy(&r, "t");
            }
            let (reply, stream) = Reply::stream();
            stream.raw(": open\n\n").await;
            opened.lock().await.push(stream);
            reply
        }
    });
    streams.lock().await.clear();
    assert_eq!(methods(&mut stream, 2).await, set(&[CHANGES[0], CHANGES[3]]));
    let again = backend.wait_for_nth("resources/subscribe", 2).await;
    assert_eq!(again.header("mcp-session-id"), "t");
}

#[tokio::test]
async fn r091_a_lost_stream_of_a_stateless_backend_is_opened_again_and_its_listeners_are_told() {
    let streams = Arc::new(Mutex::new(Vec::<Stream>::new()));
    let opened = streams.clone();
    let backend = Backend::start(move |r| {
        let opened = opened.clone();
        async move {
            match r.rpc() {
                "server/discover" => Reply::result(
                    &r,
                    json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 60000, "cacheScope": "public",
                            "capabilities": { "tools": { "listChanged": true }, "resources": { "subscribe": true } } }),
                ),
                "subscriptions/listen" => {
                    let (reply, stream) = Reply::stream();
                    let meta = json!({ SUBSCRIPTION: r.id() });
                    let params = json!({ "notifications": r.body["params"]["notifications"], "_meta": meta });
                    let method = "notifications/subscriptions/acknowledged";
                    stream.event(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
                    opened.lock().await.push(stream);
                    reply
                }
                _ => modern(&r),
            }
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = gateway.session().await;
    let mut standalone = session.get(None).await;
    assert_eq!(session.call("resources/subscribe", json!({ "uri": "a://1" })).await["result"], json!({}));
    // Two clients of a kind share a stream.
    let other = gateway.session().await;
    let mut others = other.get(None).await;
    backend.wait_for("subscriptions/listen").await;
    // What is new is asked for by streams of its own, and then by one for all.
    eventually(PATIENCE, async || {
        let last = backend.requests_of("subscriptions/listen").pop().unwrap();
        let wanted = &last.body["params"]["notifications"];
        wanted["toolsListChanged"] == true && wanted["resourceSubscriptions"] == json!(["a://1"])
    })
    .await;
    eventually(PATIENCE, async || {
        // All but the last were let go.
        let all = streams.lock().await.clone();
        let mut open = 0;
        for stream in &all {
            open += usize::from(stream.raw(": hello\n\n").await);
        }
        open == 1
    })
    .await;
    streams.lock().await.clear();
    assert_eq!(methods(&mut standalone, 2).await, set(&[CHANGES[0], CHANGES[3]]));
    assert_eq!(soon("the other", others.message()).await["method"], CHANGES[0]);
}

#[tokio::test]
async fn a_resource_that_the_backend_does_not_tell_of_can_not_be_subscribed_to() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = gateway.session().await;
    let refused = session.call("resources/subscribe", json!({ "uri": "a://1" })).await;
    assert_eq!(refused["error"]["code"], -32601, "{refused}");
    assert_eq!(session.call("resources/unsubscribe", json!({ "uri": "a://1" })).await["result"], json!({}));
}

#[tokio::test]
async fn a_listen_goes_on_when_its_stateless_backend_is_replaced_by_one_that_has_only_sessions() {
    let stateless = Arc::new(Mutex::new(Vec::<Stream>::new()));
    let opened = stateless.clone();
    let backend = Backend::start(move |r| {
        let opened = opened.clone();
        async move {
            if r.rpc() != "subscriptions/listen" {
                return modern(&r);
            }
            let (reply, stream) = Reply::stream();
            let method = "notifications/subscriptions/acknowledged";
            let params = json!({ "notifications": r.body["params"]["notifications"] });
            stream.event(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
            opened.lock().await.push(stream);
            reply
        }
    })
    .await;
    let gateway = in_front_of(&backend, "", "").await;
    let mut stream = listen(&gateway.modern(), &json!({ "toolsListChanged": true })).await;
    assert_eq!(honoured(&mut stream).await, json!({ "toolsListChanged": true }));
    let sessions = Arc::new(Mutex::new(Vec::<Stream>::new()));
    let opened = sessions.clone();
    backend.behave(move |r| {
        let opened = opened.clone();
        async move {
            if r.rpc() != "GET" || r.header("mcp-session-id").is_empty() {
                return legacy(&r, "s");
            }
            let (reply, stream) = Reply::stream();
            opened.lock().await.push(stream);
            reply
        }
    });
    stateless.lock().await.clear();
    eventually(PATIENCE, async || !sessions.lock().await.is_empty()).await;
    sessions.lock().await[0].event(&json!({ "jsonrpc": "2.0", "method": CHANGES[0] })).await;
    let heard = async { while stream.message().await["method"] != CHANGES[0] {} };
    tokio::time::timeout(PATIENCE, heard).await.unwrap();
}
