//! Answers that the gateway keeps, because the backend says for how long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drawbridge_testkit::client::Modern;
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use crate::backend::{Backend, Does, Seen};

/// Each answer of it has another number, the hints that the script gives, and what it answers.
async fn backend(hints: impl Fn(&Seen) -> Value + Send + Sync + 'static) -> Backend {
    let number = AtomicUsize::new(0);
    let capabilities =
        json!({ "tools": { "listChanged": true }, "resources": { "subscribe": true }, "prompts": {} });
    Backend::modern(capabilities, move |seen| {
        let n = number.fetch_add(1, Ordering::SeqCst);
        let entry =
            |key: &str| json!({ "name": format!("n{n}"), key: "x:1", "inputSchema": { "type": "object" } });
        let mut result = match seen.rpc().as_str() {
            "tools/list" => json!({ "tools": [entry("x")] }),
            "prompts/list" => json!({ "prompts": [entry("x")] }),
            "resources/list" => json!({ "resources": [entry("uri")] }),
            "resources/templates/list" => json!({ "resourceTemplates": [entry("uriTemplate")] }),
            "resources/read" => json!({ "contents": [{ "uri": "x:1", "text": format!("n{n}") }] }),
            _ => return Does::Error(404, r#"{"code":-32601,"message":"no"}"#.into()),
        };
        for (key, value) in hints(seen).as_object().unwrap() {
            result[key] = value.clone();
        }
        Does::result(&result)
    })
    .await
}

fn minute(scope: &str) -> Value {
    json!({ "resultType": "complete", "ttlMs": 60_000, "cacheScope": scope })
}

const METHODS: [&str; 5] =
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

fn params(method: &str) -> Value {
    if method == "resources/read" { json!({ "uri": "x:1" }) } else { json!({}) }
}

#[tokio::test]
async fn r095_what_is_kept_is_given_with_the_time_that_is_left() {
    let backend = backend(|_| minute("public")).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    for method in METHODS.into_iter().chain(["server/discover"]) {
        let mut first = modern.call(method, params(method)).await;
        if method == "server/discover" {
            first["result"]["ttlMs"] = json!(60_000);
        }
        assert_eq!(first["result"]["ttlMs"], 60_000);
        let aged = async {
            loop {
                let mut next = modern.call(method, params(method)).await;
                let left = next["result"]["ttlMs"].as_u64().unwrap();
                assert!(left <= 60_000);
                next["id"] = first["id"].clone();
                next["result"]["ttlMs"] = json!(60_000);
                assert_eq!(next, first);
                if left < 60_000 {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), aged).await.unwrap();
        assert_eq!(backend.calls(method).len(), 1, "{method}");
    }
}

#[tokio::test]
async fn r095_what_was_kept_is_asked_for_again_when_its_time_is_over() {
    let backend = backend(|_| json!({ "ttlMs": 300, "cacheScope": "public" })).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    let asked_again = async {
        while backend.calls("tools/list").len() < 3 {
            let left = modern.call("tools/list", json!({})).await["result"]["ttlMs"].as_u64().unwrap();
            assert!(left <= 300);
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asked_again).await.unwrap();
}

#[tokio::test]
async fn r095_clients_with_sessions_are_served_from_it_too() {
    let backend = backend(|_| minute("private")).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    for _ in 0..2 {
        let session = gateway.session().await;
        for method in METHODS {
            let answer = session.call(method, params(method)).await;
            assert!(answer["result"].is_object(), "{answer}");
            for member in ["ttlMs", "cacheScope", "resultType"] {
                assert!(answer["result"].get(member).is_none(), "{answer}");
            }
        }
    }
    for method in METHODS {
        assert_eq!(backend.calls(method).len(), 1, "{method}");
    }
}

#[tokio::test]
async fn r096_an_answer_is_not_given_to_a_client_of_another_kind() {
    let backend = backend(|_| minute("public")).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let capable = Modern::new(&gateway.client(), "/mcp", json!({ "sampling": {} }));
    for _ in 0..2 {
        gateway.modern().call("tools/list", json!({})).await;
        capable.call("tools/list", json!({})).await;
        gateway.session().await.call("tools/list", json!({})).await;
    }
    assert_eq!(backend.calls("tools/list").len(), 3);
}

#[tokio::test]
async fn r097_each_page_and_each_resource_is_kept_by_itself() {
    let backend = backend(|_| minute("public")).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    for _ in 0..2 {
        for params in [json!({}), json!({ "cursor": "" }), json!({ "cursor": "2" })] {
            modern.call("tools/list", params).await;
        }
        for uri in ["x:1", "x:2"] {
            modern.call("resources/read", json!({ "uri": uri })).await;
        }
    }
    assert_eq!(backend.calls("tools/list").len(), 3);
    assert_eq!(backend.calls("resources/read").len(), 2);
}

/// Each of its lists has another tool, `t0`, `t1`...; whoever listens is told at once that they have changed.
pub(crate) async fn changing() -> Backend {
    let number = AtomicUsize::new(0);
    let notification = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
    };
    let honoured = json!({ "notifications": { "toolsListChanged": true } });
    let ack = notification("notifications/subscriptions/acknowledged", honoured);
    let changed = notification(CHANGED, json!({}));
    let capabilities = json!({ "tools": { "listChanged": true } });
    Backend::modern(capabilities, move |seen| match seen.rpc().as_str() {
        "subscriptions/listen" => Does::Holds(vec![ack.clone(), changed.clone()], "listen", "{}".into()),
        _ => {
            let mut result = minute("public");
            let name = format!("t{}", number.fetch_add(1, Ordering::SeqCst));
            result["tools"] = json!([{ "name": name, "inputSchema": { "type": "object" } }]);
            Does::result(&result)
        }
    })
    .await
}

pub(crate) const CHANGED: &str = "notifications/tools/list_changed";

#[tokio::test]
async fn r097_a_notification_drops_what_is_kept_before_it_is_passed_on() {
    let backend = changing().await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    let name = async || modern.call("tools/list", json!({})).await["result"]["tools"][0]["name"].clone();
    assert_eq!([name().await, name().await], ["t0", "t0"]);
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut listen = modern.request("subscriptions/listen", wanted).await;
    while listen.message().await["method"] != CHANGED {}
    assert_eq!([name().await, name().await], ["t1", "t1"], "whoever has heard of the change sees it");
}

#[tokio::test]
async fn r097_what_a_session_is_told_drops_it_too() {
    let backend = changing().await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let session = gateway.session().await;
    let name = async || session.call("tools/list", json!({})).await["result"]["tools"][0]["name"].clone();
    assert_eq!([name().await, name().await], ["t0", "t0"]);
    let mut stream = session.get(None).await;
    while stream.message().await["method"] != CHANGED {}
    assert_eq!([name().await, name().await], ["t1", "t1"]);
}

#[tokio::test]
async fn r098_a_merged_list_is_made_of_kept_pages_and_says_the_least_of_them() {
    let one = backend(|_| minute("public")).await;
    let two = backend(|_| json!({ "ttlMs": 5_000, "cacheScope": "private", "resultType": "complete" })).await;
    let gateway =
        Gateway::setup().url("one", &one.url, "modern").url("two", &two.url, "modern").start().await;
    let modern = gateway.modern();
    let mut last = None;
    for _ in 0..3 {
        let result = modern.call("tools/list", json!({})).await["result"].clone();
        assert!(result["ttlMs"].as_u64().unwrap() <= 5_000);
        assert_eq!(result["cacheScope"], "private");
        assert_eq!(*last.get_or_insert(result["tools"].clone()), result["tools"]);
    }
    assert_eq!((one.calls("tools/list").len(), two.calls("tools/list").len()), (1, 1));
    // The path of the backend alone shares what is kept.
    Modern::new(&gateway.client(), "/mcp/one", json!({})).call("tools/list", json!({})).await;
    assert_eq!(one.calls("tools/list").len(), 1);
}

#[tokio::test]
async fn r084_what_came_of_a_retry_is_not_kept() {
    let backend = Backend::modern(json!({ "resources": {} }), |seen| {
        if seen.json()["params"]["requestState"].is_null() {
            return Does::result(&json!({ "resultType": "input_required", "requestState": "s" }));
        }
        let mut result = minute("public");
        result["contents"] = json!([]);
        Does::result(&result)
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    let read = async |params: Value| modern.call("resources/read", params).await["result"].clone();
    for reads in [2, 4] {
        let first = read(json!({ "uri": "x:1" })).await;
        assert_eq!(first["resultType"], "input_required");
        let last = read(json!({ "uri": "x:1", "requestState": first["requestState"] })).await;
        assert_eq!(last["ttlMs"], 60_000);
        assert_eq!(backend.calls("resources/read").len(), reads);
    }
}

#[tokio::test]
async fn nothing_is_kept_where_the_configuration_says_so() {
    let backend = backend(|_| minute("public")).await;
    let off = format!("{{ url: \"{}\", era: modern, cache: false }}", backend.url);
    let gateway = Gateway::setup().backend("it", &off).start().await;
    for _ in 0..2 {
        let answer = gateway.modern().call("tools/list", json!({})).await;
        assert_eq!(answer["result"]["ttlMs"], 60_000);
    }
    assert_eq!(backend.calls("tools/list").len(), 2);
}
