//! `subscriptions/listen`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply as Stub, modern as scripted};
use drawbridge_testkit::client::Reply;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::{Value, json};

use super::in_front_of_demo;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const CHANGED: &str = "notifications/tools/list_changed";
const ACK: &str = "notifications/subscriptions/acknowledged";

/// Opens a listen with this request id.
async fn listen(gateway: &Gateway, id: Value, wanted: Value) -> Reply {
    let modern = gateway.modern();
    let mut body = modern.body("subscriptions/listen", json!({ "notifications": wanted }));
    body["id"] = id;
    modern.post_with(&body, &[]).await
}

#[tokio::test]
async fn r086_the_acknowledgement_comes_first_and_names_what_is_honoured() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let wanted = json!({ "toolsListChanged": true, "promptsListChanged": false, "madeUp": true,
                         "resourceSubscriptions": ["demo://counter"] });
    let mut stream = listen(&gateway, json!("L"), wanted).await;
    let ack = stream.message().await;
    assert_eq!(ack["method"], ACK);
    let honoured = json!({ "toolsListChanged": true, "resourceSubscriptions": ["demo://counter"] });
    assert_eq!(ack["params"]["notifications"], honoured);
    assert_eq!(ack["params"]["_meta"][SUBSCRIPTION], "L");
}

#[tokio::test]
async fn r087_only_what_was_asked_for_comes_and_all_of_it_names_the_subscription() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    for id in [json!("7"), json!(7), json!("é\u{1f600}")] {
        let mut tools = listen(&gateway, id.clone(), json!({ "toolsListChanged": true })).await;
        let updates = json!({ "resourceSubscriptions": ["demo://counter"], "promptsListChanged": true });
        let mut others = listen(&gateway, id.clone(), updates).await;
        assert_eq!(tools.message().await["method"], ACK);
        assert_eq!(others.message().await["method"], ACK);
        gateway.modern().tool("touch", json!({})).await;
        gateway.modern().tool("touch", json!({})).await;
        for _ in 0..2 {
            let message = tools.message().await;
            assert_eq!(message["method"], "notifications/tools/list_changed");
            assert_eq!(message["params"]["_meta"][SUBSCRIPTION], id);
        }
        let mut methods = HashSet::new();
        for _ in 0..4 {
            let message = others.message().await;
            assert_eq!(message["params"]["_meta"][SUBSCRIPTION], id, "in value and in type");
            methods.insert(message["method"].as_str().unwrap().to_owned());
        }
        let expected = ["notifications/prompts/list_changed", "notifications/resources/updated"];
        assert_eq!(methods, expected.map(str::to_owned).into());
        let more = tools.event_within(Duration::from_millis(100)).await;
        assert!(more.is_err(), "{more:?}");
    }
}

#[tokio::test]
async fn r088_progress_and_log_messages_stay_out_of_a_listen() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let everything = json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
                             "resourceSubscriptions": ["demo://counter"] });
    let mut stream = listen(&gateway, json!(1), everything).await;
    assert_eq!(stream.message().await["method"], ACK);
    let meta = json!({ "progressToken": 1, "io.modelcontextprotocol/logLevel": "debug" });
    for (name, arguments) in
        [("sleep", json!({ "ms": 20 })), ("log", json!({ "message": "m", "level": "info" }))]
    {
        let call = json!({ "name": name, "arguments": arguments, "_meta": meta });
        let messages = gateway.modern().request("tools/call", call).await.messages().await;
        assert!(messages.len() > 1, "{name} says something on its own stream");
    }
    gateway.modern().tool("touch", json!({})).await;
    for _ in 0..4 {
        let method = stream.message().await["method"].as_str().unwrap().to_owned();
        assert!(method.ends_with("list_changed") || method.ends_with("resources/updated"), "{method}");
    }
}

#[tokio::test]
async fn r089_a_listen_ends_with_its_result_when_the_gateway_stops() {
    for era in ["modern", "legacy"] {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let mut stream = listen(&gateway, json!("L"), json!({ "toolsListChanged": true })).await;
        assert_eq!(stream.message().await["method"], ACK);
        let ended = async {
            let last = stream.message().await;
            assert_eq!(last["id"], "L");
            assert_eq!(last["result"]["resultType"], "complete");
            assert_eq!(last["result"]["_meta"][SUBSCRIPTION], "L");
            assert!(stream.event().await.is_none());
        };
        let (stopped, ()) = tokio::join!(gateway.stop(), ended);
        assert!(stopped.success());
    }
}

#[tokio::test]
async fn r089_a_listen_ends_with_its_result_when_the_backend_ends_it() {
    let demo = DemoBackend::start().await;
    let gateway = Gateway::setup().url("demo", &demo.url, "modern").start().await;
    let mut stream = listen(&gateway, json!(9), json!({ "toolsListChanged": true })).await;
    assert_eq!(stream.message().await["method"], ACK);
    demo.stop();
    let last = stream.message().await;
    assert_eq!((&last["id"], &last["result"]["_meta"][SUBSCRIPTION]), (&json!(9), &json!(9)), "{last}");
    assert!(stream.event().await.is_none());
}

#[tokio::test]
async fn listens_count_as_streams() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("demo", &demo.url, "modern").config("limits: { max_streams: 1 }");
    let gateway = setup.start().await;
    let _open = listen(&gateway, json!(1), json!({ "toolsListChanged": true })).await;
    let refused = listen(&gateway, json!(2), json!({ "toolsListChanged": true })).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.json().await["error"]["data"]["code"], "busy");
}

#[tokio::test]
async fn a_listen_whose_backend_lost_its_stream_goes_on_and_says_that_all_may_have_changed() {
    let streams = Arc::new(Mutex::new(Vec::new()));
    let opened = streams.clone();
    let backend = Backend::start(move |request| {
        let opened = opened.clone();
        async move {
            if request.rpc() != "subscriptions/listen" {
                return scripted(&request);
            }
            let (reply, stream) = Stub::stream();
            let params = json!({ "notifications": request.body["params"]["notifications"],
                                 "_meta": { SUBSCRIPTION: request.id() } });
            stream.event(&json!({ "jsonrpc": "2.0", "method": ACK, "params": params })).await;
            opened.lock().unwrap().push((request.id(), stream));
            reply
        }
    })
    .await;
    let gateway = Gateway::setup().url("b", &backend.url(), "modern").start().await;
    let mut stream = listen(&gateway, json!("L"), json!({ "toolsListChanged": true })).await;
    assert_eq!(stream.message().await["method"], ACK);
    for round in 1..=2 {
        backend.cut_connections();
        let missed = stream.message().await;
        assert_eq!(missed["method"], CHANGED, "the acknowledgement comes once: {missed}");
        assert_eq!(missed["params"]["_meta"][SUBSCRIPTION], "L");
        let (id, upstream) = streams.lock().unwrap()[round].clone();
        let params = json!({ "_meta": { SUBSCRIPTION: id } });
        upstream.event(&json!({ "jsonrpc": "2.0", "method": CHANGED, "params": params })).await;
        assert_eq!(stream.message().await["method"], CHANGED, "what comes from now on is heard");
    }
}
