//! Several backends behind one endpoint, for clients of both eras.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use drawbridge_testkit::client::{Modern, Session, text};
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::{Value, json};

use super::ERAS;
use crate::backend::{Backend, Does, text_result};

const DEAD: &str = "http://127.0.0.1:1/mcp";

/// A gateway in front of a demo server, spoken to in both eras by two names.
async fn in_front_of_two() -> (Gateway, [DemoBackend; 2]) {
    let demos = [DemoBackend::start().await, DemoBackend::start().await];
    let setup = Gateway::setup().url("old", &demos[0].url, "legacy").url("new", &demos[1].url, "modern");
    (setup.start().await, demos)
}

/// Somebody who calls, of either era.
enum Caller {
    Legacy(Session),
    Modern(Modern),
}

impl Caller {
    async fn both(gateway: &Gateway) -> [Self; 2] {
        [Self::Legacy(gateway.session().await), Self::Modern(gateway.modern())]
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        match self {
            Self::Legacy(session) => session.call(method, params).await,
            Self::Modern(modern) => modern.call(method, params).await,
        }
    }

    /// The values of `member` in all entries of a list.
    async fn list(&self, method: &str, entries: &str, member: &str) -> Vec<String> {
        let (mut all, mut params) = (Vec::new(), json!({}));
        loop {
            let answer = self.call(method, params).await;
            let list = answer["result"][entries].as_array().unwrap_or_else(|| panic!("{answer}"));
            all.extend(list.iter().map(|entry| entry[member].as_str().unwrap().to_owned()));
            match answer["result"].get("nextCursor") {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return all,
            }
        }
    }
}

#[tokio::test]
async fn tools_and_prompts_are_called_by_backend_and_name() {
    let (gateway, _demos) = in_front_of_two().await;
    for caller in Caller::both(&gateway).await {
        let tools = caller.list("tools/list", "tools", "name").await;
        let prompts = caller.list("prompts/list", "prompts", "name").await;
        for backend in ["old", "new"] {
            assert!(tools.contains(&format!("{backend}__echo")), "{tools:?}");
            assert!(prompts.contains(&format!("{backend}__greet")), "{prompts:?}");
            let echo = json!({ "name": format!("{backend}__echo"), "arguments": { "message": "x" } });
            assert_eq!(text(&caller.call("tools/call", echo).await), "x");
            let whoami = json!({ "name": format!("{backend}__whoami"), "arguments": {} });
            let who = caller.call("tools/call", whoami).await;
            let era = if backend == "old" { "legacy" } else { "modern" };
            assert_eq!(who["result"]["structuredContent"]["era"], era);
            let greet = json!({ "name": format!("{backend}__greet"), "arguments": { "name": "Ada" } });
            let got = caller.call("prompts/get", greet).await;
            assert!(
                got["result"]["messages"][0]["content"]["text"].as_str().unwrap().contains("Ada"),
                "{got}"
            );
        }
        assert_eq!(tools.iter().collect::<HashSet<_>>().len(), tools.len());
        assert!(tools.iter().all(|name| name.contains("__")));
        for unknown in ["echo", "other__echo", "old__none", "__echo"] {
            let answer = caller.call("tools/call", json!({ "name": unknown, "arguments": {} })).await;
            assert_eq!(answer["error"]["code"], -32602, "{unknown}: {answer}");
        }
    }
}

#[tokio::test]
async fn each_backend_has_a_transparent_endpoint_of_its_own() {
    let (gateway, _demos) = in_front_of_two().await;
    for path in ["/mcp/old", "/mcp/new"] {
        let session = Session::open(&gateway.client(), path, "2025-11-25", json!({})).await;
        assert_eq!(text(&session.tool("echo", json!({ "message": "x" })).await), "x");
        let modern = Modern::new(&gateway.client(), path, json!({}));
        assert_eq!(text(&modern.tool("echo", json!({ "message": "x" })).await), "x");
    }
}

#[tokio::test]
async fn named_endpoints_have_the_backends_they_name() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("a", &demo.url, "legacy").url("b", &demo.url, "modern");
    let setup = setup.url("c", &demo.url, "modern");
    let gateway = setup.config("endpoints: { some: { backends: [a, c] } }").start().await;
    let modern = Modern::new(&gateway.client(), "/mcp/some", json!({}));
    let tools = Caller::Modern(modern).list("tools/list", "tools", "name").await;
    assert!(tools.contains(&"a__echo".to_owned()) && tools.contains(&"c__echo".to_owned()));
    assert!(!tools.iter().any(|name| name.starts_with("b__")), "{tools:?}");
}

#[tokio::test]
async fn resources_keep_their_addresses_and_are_read_from_their_owner() {
    let resource = |name: &str| {
        let own = format!("{name}://one");
        let name = name.to_owned();
        move |seen: &crate::backend::Seen| match seen.rpc().as_str() {
            "resources/list" => Does::result(&json!({ "resources": [
                { "uri": own, "name": "own" }, { "uri": "shared://x", "name": "shared" }] })),
            "resources/read" => {
                let uri = seen.json()["params"]["uri"].clone();
                Does::result(&json!({ "contents": [{ "uri": uri, "text": name }] }))
            }
            _ => Does::Error(200, r#"{"code":-32601,"message":"no"}"#.into()),
        }
    };
    let capabilities = json!({ "resources": {} });
    let one = Backend::legacy(capabilities.clone(), resource("one")).await;
    let two = Backend::modern(capabilities, resource("two")).await;
    let setup = Gateway::setup().url("one", &one.url, "legacy").url("two", &two.url, "modern");
    let gateway = setup.start().await;
    for caller in Caller::both(&gateway).await {
        let uris = caller.list("resources/list", "resources", "uri").await;
        assert_eq!(uris.len(), 4);
        assert_eq!(uris.iter().collect::<HashSet<_>>().len(), 4, "{uris:?}");
        assert!(uris.contains(&"one://one".to_owned()) && uris.contains(&"two://one".to_owned()), "{uris:?}");
        let mut owners = Vec::new();
        for uri in &uris {
            let read = caller.call("resources/read", json!({ "uri": uri })).await;
            owners.push(read["result"]["contents"][0]["text"].as_str().unwrap_or_default().to_owned());
        }
        assert_eq!(owners, ["one", "one", "two", "two"], "{uris:?}");
    }
}

#[tokio::test]
async fn completion_goes_to_the_owner_of_the_prompt() {
    let (gateway, _demos) = in_front_of_two().await;
    for caller in Caller::both(&gateway).await {
        for backend in ["old", "new"] {
            let reference = json!({ "type": "ref/prompt", "name": format!("{backend}__greet") });
            let argument = json!({ "name": "style", "value": "c" });
            let answer =
                caller.call("completion/complete", json!({ "ref": reference, "argument": argument })).await;
            assert_eq!(answer["result"]["completion"]["values"], json!(["casual", "cheerful"]), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_dead_backend_costs_only_its_own_entries() {
    let demo = DemoBackend::start().await;
    for era in ERAS {
        let setup = Gateway::setup().url("dead", DEAD, era).url("live", &demo.url, era);
        let gateway = setup.start().await;
        let start = Instant::now();
        for caller in Caller::both(&gateway).await {
            let tools = caller.list("tools/list", "tools", "name").await;
            assert!(tools.contains(&"live__touch".to_owned()), "{tools:?}");
            let prompts = caller.list("prompts/list", "prompts", "name").await;
            assert_eq!(prompts, ["live__greet", "live__tour"]);
            let echo = json!({ "name": "live__echo", "arguments": { "message": "x" } });
            assert_eq!(text(&caller.call("tools/call", echo).await), "x");
            let echo = json!({ "name": "dead__echo", "arguments": { "message": "x" } });
            let answer = caller.call("tools/call", echo).await;
            assert_eq!(answer["error"]["data"]["code"], "backend_unreachable", "{answer}");
        }
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_silent_backend_delays_a_list_no_longer_than_its_own_timeout() {
    let demo = DemoBackend::start().await;
    // It accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", silent.local_addr().unwrap());
    let setup = Gateway::setup().backend("silent", &format!("{{ url: \"{url}\", list_timeout: 300ms }}"));
    let gateway = setup.url("live", &demo.url, "modern").start().await;
    let start = Instant::now();
    let tools = gateway.modern().call("tools/list", json!({})).await;
    assert_eq!(tools["result"]["tools"][0]["name"], "live__echo");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn all_backends_changes_arrive_on_one_stream() {
    let demos = [DemoBackend::start().await, DemoBackend::start().await];
    let setup = Gateway::setup().url("a", &demos[0].url, "legacy").url("b", &demos[1].url, "legacy");
    let gateway = setup.start().await;
    let session = gateway.session().await;
    let mut stream = session.get(None).await;
    for tool in ["a__touch", "b__touch"] {
        let touched = session.tool(tool, json!({})).await;
        assert!(touched["result"].is_object(), "{touched}");
        for _ in 0..3 {
            let method = stream.message().await["method"].as_str().unwrap().to_owned();
            assert!(method.ends_with("list_changed"), "{tool}: {method}");
        }
    }
}

#[tokio::test]
async fn all_backends_changes_arrive_on_one_listen() {
    let demos = [DemoBackend::start().await, DemoBackend::start().await];
    let setup = Gateway::setup().url("a", &demos[0].url, "modern").url("b", &demos[1].url, "modern");
    let gateway = setup.url("dead", DEAD, "modern").start().await;
    let modern = gateway.modern();
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut stream = modern.request("subscriptions/listen", wanted).await;
    let ack = stream.message().await;
    assert_eq!(ack["params"]["notifications"], json!({ "toolsListChanged": true }), "{ack}");
    for tool in ["a__touch", "b__touch"] {
        modern.tool(tool, json!({})).await;
        let message = stream.message().await;
        assert_eq!(message["method"], "notifications/tools/list_changed", "{tool}");
    }
}

#[tokio::test]
async fn a_gateway_without_backends_serves_empty_handed() {
    let gateway = Gateway::setup().start().await;
    let reply = gateway.client().get("/mcp", &[]).await;
    assert_eq!(reply.status(), 405);
    let answer = gateway.modern().call("tools/list", json!({})).await;
    assert!(answer["error"]["code"] == -32601 || answer["result"]["tools"] == json!([]), "{answer}");
}

#[tokio::test]
async fn names_that_are_too_long_for_hosts_are_shortened_and_still_work() {
    let long = "a_tool_with_a_very_long_name_that_does_not_fit_behind_any_prefix_at_all".to_owned();
    let (listed, called) = (long.clone(), long.clone());
    let backend = Backend::modern(json!({ "tools": {} }), move |seen| match seen.rpc().as_str() {
        "tools/list" => Does::result(&json!({ "tools": [
            { "name": listed, "inputSchema": { "type": "object" } },
            { "name": format!("{listed}_2"), "inputSchema": { "type": "object" } },
            { "name": "dots.and spaces", "inputSchema": { "type": "object" } }] })),
        _ => text_result(seen.json()["params"]["name"].as_str().unwrap_or_default()),
    })
    .await;
    let setup = Gateway::setup().url("backend", &backend.url, "modern").url("dead", DEAD, "modern");
    let gateway = setup.start().await;
    for caller in Caller::both(&gateway).await {
        let names = caller.list("tools/list", "tools", "name").await;
        let legal = |name: &String| {
            name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        };
        assert!(names.iter().all(legal), "{names:?}");
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), 3);
        let own = [called.clone(), format!("{called}_2"), "dots.and spaces".to_owned()];
        for (name, own) in names.iter().zip(own) {
            let answer = caller.call("tools/call", json!({ "name": name, "arguments": {} })).await;
            assert_eq!(text(&answer), own);
        }
    }
}

#[tokio::test]
async fn subscriptions_go_to_the_owner_and_levels_to_all() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("a", &demo.url, "legacy").url("dead", DEAD, "legacy");
    let gateway = setup.start().await;
    let session = gateway.session().await;
    let mut stream = session.get(None).await;
    let counter = json!({ "uri": "demo://counter" });
    let subscribed = session.call("resources/subscribe", counter.clone()).await;
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    session.tool("a__touch", json!({})).await;
    let mut methods = HashSet::new();
    for _ in 0..4 {
        methods.insert(stream.message().await["method"].as_str().unwrap().to_owned());
    }
    assert!(methods.contains("notifications/resources/updated"), "{methods:?}");
    let level = session.call("logging/setLevel", json!({ "level": "debug" })).await;
    assert_eq!(level["result"], json!({}), "{level}");
    let log = json!({ "name": "a__log", "arguments": { "message": "hello", "level": "debug" } });
    assert_eq!(session.request("tools/call", log).await.messages().await.len(), 2);
}

#[tokio::test]
async fn asks_of_any_backend_reach_the_client() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("a", &demo.url, "legacy").url("b", &demo.url, "modern");
    let gateway = setup.start().await;
    let session = Session::open(&gateway.client(), "/mcp", "2025-11-25", json!({ "roots": {} })).await;
    let mut called = session.request("tools/call", json!({ "name": "a__roots", "arguments": {} })).await;
    let ask = called.message().await;
    assert_eq!(ask["method"], "roots/list");
    let answer = json!({ "jsonrpc": "2.0", "id": ask["id"], "result": { "roots": [] } });
    assert_eq!(session.post(answer.to_string()).await.status(), 202);
    assert_eq!(text(&called.message().await), "no roots");
    let modern = Modern::new(&gateway.client(), "/mcp", json!({ "roots": {} }));
    let asked = modern.tool("b__roots", json!({})).await["result"].clone();
    assert_eq!(asked["inputRequests"]["roots"]["method"], "roots/list", "{asked}");
    let retry = json!({ "name": "b__roots", "arguments": {}, "requestState": asked["requestState"],
                        "inputResponses": { "roots": { "roots": [{ "uri": "file:///w" }] } } });
    assert_eq!(text(&modern.call("tools/call", retry).await), "file:///w");
}
