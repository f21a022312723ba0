//! The transport of 2024-11-05: a stream, and a second URL to post to.

use std::time::Duration;

use drawbridge_testkit::client::{Client, Reply, initialize, notification, request, text};
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::{Value, json};

/// A connection, with the URL that its first event names.
struct Connection {
    client: Client,
    stream: Reply,
    messages: String,
}

impl Connection {
    async fn open(gateway: &Gateway, path: &str) -> Self {
        let client = gateway.client();
        let mut stream = client.get(path, &[]).await;
        assert_eq!((stream.status(), stream.is_stream()), (200, true));
        let first = stream.event().await.unwrap();
        assert_eq!(first.name.as_deref(), Some(&b"endpoint"[..]));
        let messages = String::from_utf8(first.data.to_vec()).unwrap();
        Self { client, stream, messages }
    }

    async fn send(&self, message: &Value) -> u16 {
        self.client.post(&self.messages, &[], message.to_string()).await.status()
    }

    async fn next(&mut self) -> Value {
        let event = self.stream.event().await.expect("the stream goes on");
        assert!(event.name.as_deref().is_none_or(|name| name == b"message"), "{event:?}");
        serde_json::from_slice(&event.data).unwrap()
    }

    async fn ready(gateway: &Gateway, path: &str, capabilities: Value) -> Self {
        let mut connection = Self::open(gateway, path).await;
        assert_eq!(connection.send(&initialize("2024-11-05", capabilities)).await, 202);
        let answer = connection.next().await;
        assert_eq!(answer["result"]["protocolVersion"], "2024-11-05", "{answer}");
        assert_eq!(connection.send(&notification("notifications/initialized", json!({}))).await, 202);
        connection
    }
}

async fn in_front_of_demo(era: &str) -> (Gateway, DemoBackend) {
    let demo = DemoBackend::start().await;
    (Gateway::setup().url("demo", &demo.url, era).start().await, demo)
}

#[tokio::test]
async fn r035_the_first_event_names_the_endpoint_and_all_messages_come_on_the_stream() {
    for era in ["legacy", "modern"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        for path in ["/mcp/sse", "/mcp/demo/sse"] {
            let mut connection = Connection::ready(&gateway, path, json!({})).await;
            let echo = json!({ "name": "echo", "arguments": { "message": "hello" } });
            assert_eq!(connection.send(&request("a", "tools/call", echo)).await, 202);
            let answer = connection.next().await;
            assert_eq!((&answer["id"], text(&answer)), (&json!("a"), "hello"));
            let slow = json!({ "name": "sleep", "arguments": { "ms": 20 }, "_meta": { "progressToken": 5 } });
            assert_eq!(connection.send(&request(2, "tools/call", slow)).await, 202);
            assert_eq!(connection.next().await["params"]["progressToken"], 5);
            assert_eq!(connection.next().await["params"]["progress"], 1);
            assert_eq!(text(&connection.next().await), "slept 20 ms");
            assert_eq!(connection.send(&request(3, "ping", json!({}))).await, 202);
            assert_eq!(connection.next().await, json!({ "jsonrpc": "2.0", "id": 3, "result": {} }));
        }
    }
}

#[tokio::test]
async fn asks_and_their_answers_go_through() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let mut connection = Connection::ready(&gateway, "/mcp/sse", json!({ "roots": {} })).await;
    let call = request(1, "tools/call", json!({ "name": "roots", "arguments": {} }));
    assert_eq!(connection.send(&call).await, 202);
    let ask = connection.next().await;
    assert_eq!(ask["method"], "roots/list");
    let roots = json!({ "roots": [{ "uri": "file:///work" }] });
    assert_eq!(connection.send(&json!({ "jsonrpc": "2.0", "id": ask["id"], "result": roots })).await, 202);
    assert_eq!(text(&connection.next().await), "file:///work");
}

#[tokio::test]
async fn changes_come_without_being_asked_for() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let mut connection = Connection::ready(&gateway, "/mcp/sse", json!({})).await;
    let touch = json!({ "name": "touch", "arguments": {} });
    assert_eq!(connection.send(&request(1, "tools/call", touch)).await, 202);
    let mut methods = Vec::new();
    for _ in 0..4 {
        methods.push(connection.next().await["method"].as_str().unwrap_or("response").to_owned());
    }
    methods.sort_unstable();
    let changed = |what: &str| format!("notifications/{what}/list_changed");
    assert_eq!(methods, [changed("prompts"), changed("resources"), changed("tools"), "response".into()]);
}

#[tokio::test]
async fn r036_messages_may_be_posted_over_any_connection() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let mut connection = Connection::ready(&gateway, "/mcp/sse", json!({})).await;
    for n in 0..3 {
        let other = gateway.client();
        let echo = json!({ "name": "echo", "arguments": { "message": "hello" } });
        let reply = other.post(&connection.messages, &[], request(n, "tools/call", echo).to_string()).await;
        assert_eq!(reply.status(), 202);
        assert_eq!(connection.next().await["id"], n);
    }
}

#[tokio::test]
async fn r037_closing_the_stream_ends_the_session() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let connection = Connection::ready(&gateway, "/mcp/sse", json!({})).await;
    let Connection { client, stream, messages } = connection;
    drop(stream);
    let ping = request(1, "ping", json!({})).to_string();
    drawbridge_testkit::eventually(Duration::from_secs(5), async || {
        client.post(&messages, &[], ping.clone()).await.status() == 404
    })
    .await;
    assert_eq!(client.post("/mcp/messages?sessionId=none", &[], ping.clone()).await.status(), 404);
    assert_eq!(client.post("/mcp/messages", &[], ping).await.status(), 404);
}

#[tokio::test]
async fn messages_of_a_connection_are_refused_at_the_url_of_another_endpoint() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("one", &demo.url, "legacy").url("two", &demo.url, "legacy");
    let gateway = setup.start().await;
    let mut connection = Connection::ready(&gateway, "/mcp/one/sse", json!({})).await;
    let (path, query) = connection.messages.split_once('?').unwrap();
    assert_eq!(path, "/mcp/one/messages");
    let echo =
        |id: u64| request(id, "tools/call", json!({ "name": "echo", "arguments": { "message": "x" } }));
    for elsewhere in ["/mcp/two/messages", "/mcp/messages"] {
        let url = format!("{elsewhere}?{query}");
        let refused = connection.client.post(&url, &[], echo(1).to_string()).await;
        assert_eq!(refused.status(), 404, "{url}");
    }
    assert_eq!(connection.send(&echo(2)).await, 202);
    assert_eq!(connection.next().await["id"], 2, "and nothing came of the others");
}

#[tokio::test]
async fn what_comes_before_initialize_is_refused() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let connection = Connection::open(&gateway, "/mcp/sse").await;
    assert_eq!(connection.send(&request(1, "tools/list", json!({}))).await, 400);
    let reply = connection.client.post(&connection.messages, &[], "{").await;
    assert_eq!(reply.status(), 400);
}

#[tokio::test]
async fn two_connections_do_not_hear_of_each_other() {
    let (gateway, _demo) = in_front_of_demo("legacy").await;
    let mut one = Connection::ready(&gateway, "/mcp/sse", json!({})).await;
    let mut two = Connection::ready(&gateway, "/mcp/sse", json!({})).await;
    assert_ne!(one.messages, two.messages);
    let echo =
        |text: &str| request(1, "tools/call", json!({ "name": "echo", "arguments": { "message": text } }));
    assert_eq!(one.send(&echo("one")).await, 202);
    assert_eq!(two.send(&echo("two")).await, 202);
    assert_eq!(text(&one.next().await), "one");
    assert_eq!(text(&two.next().await), "two");
}
