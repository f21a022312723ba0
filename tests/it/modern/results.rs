//! Results, errors and streams of one request.

use std::time::Duration;

use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};

use super::{ERAS, code, in_front_of_demo};
use crate::backend::{Backend, Does, Seen, text_result};

async fn backend(era: &str, script: impl Fn(&Seen) -> Does + Send + Sync + 'static) -> Backend {
    match era {
        "legacy" => Backend::legacy(json!({ "tools": {} }), script).await,
        _ => Backend::modern(json!({ "tools": {} }), script).await,
    }
}

#[tokio::test]
async fn r064_r065_every_result_says_what_it_is_and_who_answers() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let modern = gateway.modern();
        for (method, params) in [
            ("server/discover", json!({})),
            ("tools/list", json!({})),
            ("prompts/list", json!({})),
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("resources/read", json!({ "uri": "demo://about" })),
            ("prompts/get", json!({ "name": "tour" })),
            ("tools/call", json!({ "name": "echo", "arguments": { "message": "x" } })),
            ("tools/call", json!({ "name": "fail", "arguments": {} })),
            (
                "completion/complete",
                json!({ "ref": { "type": "ref/prompt", "name": "greet" },
                                            "argument": { "name": "style", "value": "c" } }),
            ),
        ] {
            let body = modern.body(method, params);
            let more: &[(&str, &str)] =
                if method.starts_with("completion") { &[("mcp-name", "")] } else { &[] };
            let answer = modern.post_with(&body, more).await.answer().await;
            assert_eq!(answer["result"]["resultType"], "complete", "{era} {method}: {answer}");
            assert_eq!(answer["id"], body["id"]);
            let who = &answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"];
            assert!(who["name"].is_string(), "{era} {method}: {answer}");
        }
        let body = modern.body("tools/call", json!({ "name": "none", "arguments": {} }));
        let answer = modern.post_with(&body, &[]).await.answer().await;
        assert_eq!((code(&answer), &answer["id"]), (-32602, &body["id"]));
    }
}

#[tokio::test]
async fn r066_what_discover_advertises_answers_and_nothing_else_does() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let modern = gateway.modern();
        let result = modern.call("server/discover", json!({})).await["result"].clone();
        assert!(result["ttlMs"].as_u64().is_some(), "{result}");
        assert!(["public", "private"].contains(&result["cacheScope"].as_str().unwrap()));
        let lists = [("tools", "tools/list"), ("prompts", "prompts/list"), ("resources", "resources/list")];
        for (capability, method) in lists {
            assert!(result["capabilities"][capability].is_object());
            assert!(modern.call(method, json!({})).await["result"].is_object(), "{era} {method}");
        }
        let backend = backend(era, |seen| match seen.rpc().as_str() {
            "tools/list" => Does::result(&json!({ "tools": [] })),
            _ => Does::Error(200, r#"{"code":-32601,"message":"no such method"}"#.into()),
        })
        .await;
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let modern = gateway.modern();
        let result = modern.call("server/discover", json!({})).await["result"].clone();
        for (capability, method) in lists {
            let reply = modern.request(method, json!({})).await;
            let advertised = result["capabilities"][capability].is_object();
            assert_eq!(reply.status(), if advertised { 200 } else { 404 }, "{era} {method}");
            if !advertised {
                assert_eq!(code(&reply.json().await), -32601);
            }
        }
    }
}

#[tokio::test]
async fn r068_capabilities_of_one_request_never_show_in_another() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        // One client, one connection.
        let client = gateway.client();
        let sets =
            [json!({ "experimental": { "a": {} } }), json!({}), json!({ "experimental": { "b": {} } })];
        for capabilities in sets.iter().cycle().take(9) {
            let modern = Modern::new(&client, "/mcp", capabilities.clone());
            let who = modern.tool("whoami", json!({})).await;
            let about = &who["result"]["structuredContent"];
            assert_eq!(&about["capabilities"], capabilities, "{era}: {about}");
        }
    }
}

#[tokio::test]
async fn r067_a_missing_capability_is_named() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    for (tool, capability) in [("elicit", "elicitation"), ("sample", "sampling"), ("roots", "roots")] {
        let body = gateway.modern().body("tools/call", json!({ "name": tool, "arguments": {} }));
        let reply = gateway.modern().post_with(&body, &[]).await;
        assert_eq!(reply.status(), 400);
        let answer = reply.json().await;
        assert_eq!((code(&answer), &answer["id"]), (-32021, &body["id"]));
        assert!(answer["error"]["data"]["requiredCapabilities"][capability].is_object(), "{answer}");
    }
}

#[tokio::test]
async fn r070_no_request_is_ever_on_a_stream() {
    let ask =
        |method: &str| format!(r#"{{"jsonrpc":"2.0","id":"{method}","method":"{method}","params":{{}}}}"#);
    let methods = ["elicitation/create", "sampling/createMessage", "roots/list", "ping", "made/up"];
    for era in ERAS {
        let asks: Vec<String> = methods.iter().map(|method| ask(method)).collect();
        let backend =
            backend(era, move |_| Does::Holds(asks.clone(), "answer", r#"{"content":[]}"#.into())).await;
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let capabilities = json!({ "elicitation": {}, "sampling": {}, "roots": {} });
        let modern = Modern::new(&gateway.client(), "/mcp", capabilities);
        let reply = {
            let calling = modern.request("tools/call", json!({ "name": "x", "arguments": {} }));
            if era == "modern" {
                backend.release("answer");
            }
            calling.await
        };
        let messages = reply.messages().await;
        assert!(messages.iter().all(|message| message.get("method").is_none()), "{era}: {messages:?}");
        let result = &messages.last().unwrap()["result"];
        if era == "legacy" {
            assert_eq!(result["resultType"], "input_required");
            assert_eq!(result["inputRequests"].as_object().unwrap().len(), 3);
            // What only sessions have is answered by the gateway.
            eventually(PATIENCE, async || {
                let seen = backend.seen();
                let answered = |id: &str, what: &str| {
                    seen.iter().any(|s| s.json()["id"] == id && s.json().get(what).is_some())
                };
                answered("ping", "result") && answered("made/up", "error")
            })
            .await;
        }
    }
}

#[tokio::test]
async fn r071_streams_are_not_buffered_and_not_silent() {
    let demo = DemoBackend::start().await;
    for era in ERAS {
        let setup = Gateway::setup().url("demo", &demo.url, era);
        let gateway = setup.config("streams: { keep_alive: 200ms, sse_after: 100ms }").start().await;
        let modern = gateway.modern();
        let mut called =
            modern.request("tools/call", json!({ "name": "sleep", "arguments": { "ms": 1200 } })).await;
        assert!(called.is_stream());
        assert_eq!(called.header("x-accel-buffering"), Some("no"));
        let several = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            bytes.starts_with(b":") && text.lines().filter(|line| line.starts_with(':')).count() >= 4
        };
        assert!(called.reads(Duration::from_secs(5), several).await, "{era}");
        assert_eq!(text(&called.answer().await), "slept 1200 ms");
        let listen = json!({ "notifications": { "toolsListChanged": true } });
        let mut listening = modern.request("subscriptions/listen", listen).await;
        assert_eq!(listening.header("x-accel-buffering"), Some("no"));
        if era == "modern" {
            assert!(listening.reads(Duration::from_secs(5), several).await);
        }
    }
}

#[tokio::test]
async fn r072_a_client_that_goes_away_cancels_its_call() {
    let note = r#"{"jsonrpc":"2.0","method":"notifications/made_up","params":{}}"#;
    for era in ERAS {
        for streamed in [true, false] {
            let messages = if streamed { vec![note.to_owned()] } else { Vec::new() };
            let script = move |_: &Seen| Does::Holds(messages.clone(), "never", "{}".into());
            let backend = backend(era, script).await;
            let setup = Gateway::setup().url("it", &backend.url, era);
            let gateway = setup.config("streams: { sse_after: 30s }").start().await;
            let modern = gateway.modern();
            let calling = modern.request("tools/call", json!({ "name": "x", "arguments": {} }));
            if streamed {
                let mut reply = calling.await;
                assert_eq!(reply.message().await["method"], "notifications/made_up");
                drop(reply);
            } else {
                // The answer is still to come when the client gives up.
                tokio::select! {
                    reply = calling => panic!("an answer: {}", reply.status()),
                    () = eventually(Duration::from_secs(5), async || backend.holding() == 1) => {}
                }
            }
            eventually(Duration::from_secs(5), async || {
                let told = backend.calls("notifications/cancelled");
                let called = backend.calls("tools/call");
                backend.abandoned() == 1
                    && (era == "modern"
                        || told.len() == 1 && told[0].json()["params"]["requestId"] == called[0].json()["id"])
            })
            .await;
        }
    }
}

async fn logged(modern: &Modern, level: Option<&str>, message_level: &str) -> Vec<Value> {
    let mut params = json!({ "name": "log", "arguments": { "message": "hello", "level": message_level } });
    if let Some(level) = level {
        params["_meta"] = json!({ "io.modelcontextprotocol/logLevel": level });
    }
    let messages = modern.request("tools/call", params).await.messages().await;
    messages.into_iter().filter(|message| message["method"] == "notifications/message").collect()
}

#[tokio::test]
async fn r073_log_messages_come_only_when_asked_for_and_at_that_level() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    assert!(logged(&modern, None, "emergency").await.is_empty());
    assert!(logged(&modern, Some("error"), "warning").await.is_empty());
    assert_eq!(logged(&modern, Some("error"), "error").await.len(), 1);
    assert_eq!(logged(&modern, Some("debug"), "info").await[0]["params"]["data"], "hello");
    // A backend that logs whatever it likes.
    let note = |level: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","data":1}}}}"#
        )
    };
    for era in ERAS {
        let notes = vec![note("debug"), note("error")];
        let backend = backend(era, move |_| Does::Stream(notes.clone(), r#"{"content":[]}"#.into())).await;
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let modern = gateway.modern();
        assert!(logged(&modern, None, "info").await.is_empty(), "{era}");
        let heard = logged(&modern, Some("warning"), "info").await;
        assert_eq!(heard.len(), 1, "{era}");
        assert_eq!(heard[0]["params"]["level"], "error");
    }
}

#[tokio::test]
async fn r074_an_unknown_log_level_is_refused() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        for level in [json!("loud"), json!("INFO"), json!(3), json!("")] {
            let params = json!({ "name": "echo", "arguments": { "message": "x" },
                                 "_meta": { "io.modelcontextprotocol/logLevel": level } });
            assert_eq!(code(&gateway.modern().call("tools/call", params).await), -32602, "{era} {level}");
        }
    }
}

#[tokio::test]
async fn r075_codes_that_this_version_does_not_have_never_reach_a_client() {
    for era in ERAS {
        let backend = backend(era, |seen| {
            let code = seen.json()["params"]["name"].as_str().unwrap_or("0").to_owned();
            Does::Error(200, format!(r#"{{"code":{code},"message":"m","data":{{"own":1}}}}"#))
        })
        .await;
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        for sent in ["-32002", "-32042", "-32023", "-32050", "-32099"] {
            let answer = gateway.modern().tool(sent, json!({})).await;
            let code = code(&answer);
            assert!(code != -32002 && code != -32042, "{era} {sent}: {answer}");
            let defined = [-32020, -32021, -32022];
            assert!(!(-32099..=-32020).contains(&code) || defined.contains(&code), "{era} {sent}: {answer}");
        }
        for kept in ["-32602", "-32603", "42", "-1", "-31000"] {
            assert_eq!(code(&gateway.modern().tool(kept, json!({})).await).to_string(), kept, "{era}");
        }
    }
}

#[tokio::test]
async fn r110_errors_about_the_gateways_own_hop_are_not_relayed() {
    for era in ERAS {
        let backend = backend(era, |_| {
            let data = r#"{"supported":["1999-01-01"],"requested":"x"}"#;
            Does::Error(400, format!(r#"{{"code":-32022,"message":"m","data":{data}}}"#))
        })
        .await;
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let answer = gateway.modern().tool("x", json!({})).await;
        assert_ne!(code(&answer), -32022, "{era}: {answer}");
        if era == "modern" {
            assert!(!answer.to_string().contains("1999-01-01"), "{answer}");
        }
    }
}

#[tokio::test]
async fn r116_r119_tasks_are_between_client_and_backend_only_where_both_said_so() {
    let task = r#"{"resultType":"task","taskId":"tk1","status":"working","createdAt":"2026-08-01T10:00:00Z","lastUpdatedAt":"2026-08-01T10:00:00Z","ttlMs":600000}"#;
    let extension = "io.modelcontextprotocol/tasks";
    let capabilities = json!({ "tools": {}, "extensions": { extension: {} } });
    let backend = Backend::modern(capabilities, move |seen| {
        let declared = &seen.json()["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        let declared = declared["extensions"][extension].is_object();
        match seen.rpc().as_str() {
            "tools/call" if declared => Does::Result(task.to_owned()),
            "tools/call" => text_result("at once"),
            "tasks/get" if !declared => {
                let data = json!({ "requiredCapabilities": { "extensions": { extension: {} } } });
                Does::Error(400, json!({ "code": -32021, "message": "m", "data": data }).to_string())
            }
            "tasks/get" if seen.json()["params"]["taskId"] == "tk1" => {
                Does::Result(task.replace("\"task\"", "\"complete\""))
            }
            "tasks/get" => Does::Error(200, r#"{"code":-32602,"message":"no such task"}"#.into()),
            _ => Does::Error(404, r#"{"code":-32601,"message":"no such method"}"#.into()),
        }
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let plain = gateway.modern();
    let with = Modern::new(&gateway.client(), "/mcp", json!({ "extensions": { extension: {} } }));
    let discovered = with.call("server/discover", json!({})).await;
    assert!(discovered["result"]["capabilities"].get("tasks").is_none());
    assert_eq!(plain.tool("x", json!({})).await["result"]["resultType"], "complete");
    let created = with.tool("x", json!({})).await;
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    let id = created["result"]["taskId"].as_str().unwrap();
    assert_ne!(id, "tk1", "it is the caller's alone");
    let get = |id: &str| json!({ "taskId": id });
    assert_eq!(with.call("tasks/get", get(id)).await["result"]["taskId"], id);
    assert_eq!(with.call("tasks/get", get(id)).await["result"]["status"], "working");
    for other in ["other", "tk1"] {
        assert_eq!(code(&with.call("tasks/get", get(other)).await), -32602);
    }
    let refused = plain.request("tasks/get", get(id)).await;
    assert_eq!(refused.status(), 400);
    let refused = refused.json().await;
    assert_eq!(code(&refused), -32021);
    assert!(refused["error"]["data"]["requiredCapabilities"]["extensions"].is_object());
    for method in ["tasks/result", "tasks/list"] {
        let body = with.body(method, get("tk1"));
        let reply = with.post_with(&body, &[]).await;
        assert_eq!(reply.status(), 404, "{method}");
        assert_eq!(code(&reply.json().await), -32601);
    }
}

#[tokio::test]
async fn r058_the_task_header_is_checked() {
    let task = json!({ "resultType": "task", "taskId": "tk1" });
    let backend = Backend::modern(json!({ "tools": {} }), move |_| Does::result(&task)).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let extension = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let modern = Modern::new(&gateway.client(), "/mcp", extension);
    let id = modern.tool("x", json!({})).await["result"]["taskId"].clone();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let body = modern.body(method, json!({ "taskId": id }));
        for header in ["", "tk2"] {
            let reply = modern.post_with(&body, &[("mcp-name", header)]).await;
            assert_eq!(reply.status(), 400, "{method} {header:?}");
            assert_eq!(code(&reply.json().await), -32020);
        }
        assert_eq!(modern.post_with(&body, &[]).await.status(), 200);
        let upstream = backend.calls(method);
        assert_eq!(upstream[0].header("mcp-name"), Some("tk1"));
    }
}

#[tokio::test]
async fn r116_a_backend_with_sessions_promises_no_tasks() {
    let backend = Backend::legacy(json!({ "tools": {}, "tasks": { "list": {} } }), |seen| {
        assert!(!seen.rpc().starts_with("tasks/"), "tasks of sessions are not those of this version");
        text_result("done")
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let extension = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let modern = Modern::new(&gateway.client(), "/mcp", extension);
    let discovered = modern.call("server/discover", json!({})).await;
    assert!(discovered["result"]["capabilities"].get("tasks").is_none(), "{discovered}");
    assert!(discovered["result"]["capabilities"].get("extensions").is_none(), "{discovered}");
    let called =
        modern.call("tools/call", json!({ "name": "x", "arguments": {}, "task": { "ttl": 5 } })).await;
    assert_eq!(called["result"]["resultType"], "complete");
    let upstream = backend.calls("tools/call");
    assert_eq!(upstream[0].json()["params"].get("task"), None, "it must be ignored");
    for method in ["tasks/list", "tasks/result"] {
        let body = modern.body(method, json!({ "taskId": "x" }));
        let reply = modern.post_with(&body, &[]).await;
        assert_eq!((reply.status(), code(&reply.json().await)), (404, -32601), "{method}");
    }
}
