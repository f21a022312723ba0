//! What the gateway must not touch, in all four combinations of eras.

use drawbridge_testkit::client::{MODERN, Modern};
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use crate::backend::{Backend, Does, Seen};

const ERAS: [&str; 2] = ["legacy", "modern"];

/// JSON that a parser and writer would spell in another way.
const ODD: &str = r#"{"z":1e400,"a":12345678901234567890123,"m":1.50,"neg":-0,"e":1E+2,"s":"\u00e9\/\ud83d\ude00ü","b":{"y":[ ],"x": {"k" :null}},"":true,"z2":"\u0000\b"}"#;

async fn backend(era: &str, script: impl Fn(&Seen) -> Does + Send + Sync + 'static) -> Backend {
    let capabilities = json!({ "tools": {}, "madeUp": { "x": [1] } });
    match era {
        "legacy" => Backend::legacy(capabilities, script).await,
        _ => Backend::modern(capabilities, script).await,
    }
}

/// Posts a raw `params` object with these members (no braces) in the era `era`; gives the answer's bytes.
async fn post_raw(gateway: &Gateway, era: &str, method: &str, members: &str, meta: &str) -> String {
    let reply = if era == "legacy" {
        let session = gateway.session().await;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{members},"_meta":{{{meta}}}}}}}"#
        );
        session.post(body).await
    } else {
        let own = format!(
            r#""io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientCapabilities":{{}}"#
        );
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{members},"_meta":{{{own},{meta}}}}}}}"#
        );
        let mut headers = vec![("mcp-protocol-version", MODERN), ("mcp-method", method)];
        if method == "tools/call" {
            headers.push(("mcp-name", "t"));
        }
        gateway.client().post("/mcp", &headers, body).await
    };
    String::from_utf8(reply.answer_bytes().await.to_vec()).unwrap()
}

#[tokio::test]
async fn payloads_survive_byte_for_byte_in_all_combinations() {
    for backend_era in ERAS {
        let backend = backend(backend_era, |_| {
            Does::Result(format!(
                r#"{{"structuredContent":{ODD},"content":[{{"type":"text","text":"\u00e9\/"}}],"zz":1.0,"aa":2}}"#
            ))
        })
        .await;
        let gateway = Gateway::setup().url("it", &backend.url, backend_era).start().await;
        for client_era in ERAS {
            let arguments = format!(r#""arguments":{ODD},"extra":{ODD},"name":"t""#);
            let answer = post_raw(&gateway, client_era, "tools/call", &arguments, r#""x":1.0"#).await;
            let calls = backend.calls("tools/call");
            let upstream = calls.last().unwrap().text();
            let case = format!("{client_era} client, {backend_era} backend");
            assert!(upstream.contains(&arguments), "{case}: {upstream}");
            let expected = format!(
                r#""structuredContent":{ODD},"content":[{{"type":"text","text":"\u00e9\/"}}],"zz":1.0,"aa":2"#
            );
            assert!(answer.contains(&expected), "{case}: {answer}");
        }
    }
}

#[tokio::test]
async fn streamed_messages_survive_byte_for_byte_in_all_combinations() {
    for backend_era in ERAS {
        let note =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/made_up","params":{{"odd":{ODD}}}}}"#);
        let backend = backend(backend_era, move |_| {
            Does::Stream(vec![note.clone()], format!(r#"{{"content":[],"odd":{ODD}}}"#))
        })
        .await;
        let gateway = Gateway::setup().url("it", &backend.url, backend_era).start().await;
        for client_era in ERAS {
            let call = json!({ "name": "t", "arguments": {} });
            let mut reply = if client_era == "legacy" {
                gateway.session().await.request("tools/call", call).await
            } else {
                gateway.modern().request("tools/call", call).await
            };
            while reply.event().await.is_some() {}
            let seen = String::from_utf8_lossy(reply.seen()).into_owned();
            assert_eq!(seen.matches(&format!(r#""odd":{ODD}"#)).count(), 2, "{client_era}: {seen}");
        }
    }
}

#[tokio::test]
async fn r113_unknown_meta_keys_and_trace_context_survive_in_all_combinations() {
    let tool = r##"{"name":"t","inputSchema":{"$defs":{"b":{},"a":{}},"type":"object","properties":{"z":{"$ref":"#/$defs/b"},"a":{}},"x-own":1.0},"_meta":{"ui":{"resourceUri":"ui://t/x"},"com.example/y":1.50}}"##;
    let listed = format!(r#"{{"tools":[{tool}],"_meta":{{"com.example/result":[1.0]}}}}"#);
    for backend_era in ERAS {
        let result = listed.clone();
        let backend = backend(backend_era, move |_| Does::Result(result.clone())).await;
        let gateway = Gateway::setup().url("it", &backend.url, backend_era).start().await;
        for client_era in ERAS {
            let meta = r#""com.example/k":{"b":1.0,"a":2},"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=b","baggage":"k=v""#;
            let answer = post_raw(&gateway, client_era, "tools/list", r#""own":1.0"#, meta).await;
            let calls = backend.calls("tools/list");
            let upstream = calls.last().unwrap();
            let case = format!("{client_era} client, {backend_era} backend");
            let own = &upstream.json()["params"]["_meta"];
            let sent: Value = serde_json::from_str(&format!("{{{meta}}}")).unwrap();
            for (key, value) in sent.as_object().unwrap() {
                assert_eq!(&own[key], value, "{case}: {key}");
            }
            assert!(upstream.text().contains(r#"{"b":1.0,"a":2}"#), "{case}: {}", upstream.text());
            assert!(answer.contains(tool), "{case}: {answer}");
            assert!(answer.contains(r#""com.example/result":[1.0]"#), "{case}: {answer}");
        }
    }
}

#[tokio::test]
async fn methods_notifications_and_capabilities_that_are_unknown_pass_through() {
    for backend_era in ERAS {
        let backend = backend(backend_era, |seen| match seen.rpc().as_str() {
            "made/up" => Does::Stream(
                vec![r#"{"jsonrpc":"2.0","method":"notifications/also","params":{"n":1}}"#.to_owned()],
                r#"{"answer":42}"#.to_owned(),
            ),
            _ => Does::Error(200, r#"{"code":-32601,"message":"no","data":{"own":1.0}}"#.to_owned()),
        })
        .await;
        let gateway = Gateway::setup().url("it", &backend.url, backend_era).start().await;
        let session = gateway.session().await;
        assert_eq!(session.answer["result"]["capabilities"]["madeUp"], json!({ "x": [1] }), "{backend_era}");
        let discovered = gateway.modern().call("server/discover", json!({})).await;
        assert_eq!(discovered["result"]["capabilities"]["madeUp"], json!({ "x": [1] }));
        let old = session.request("made/up", json!({ "p": 1 })).await.messages().await;
        let new = gateway.modern().request("made/up", json!({ "p": 1 })).await.messages().await;
        for messages in [old, new] {
            assert_eq!(messages.len(), 2, "{messages:?}");
            assert_eq!(messages[0]["params"]["n"], 1);
            assert_eq!(messages[1]["result"]["answer"], 42);
        }
        let refused = session.call("other/one", json!({})).await;
        assert_eq!(refused["error"]["code"], -32601);
        assert_eq!(refused["error"]["data"], json!({ "own": 1.0 }));
    }
}

#[tokio::test]
async fn a_clients_unknown_notifications_reach_a_backend_with_sessions() {
    let backend = backend("legacy", |_| Does::Result(r#"{"tools":[]}"#.to_owned())).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let session = gateway.session().await;
    session.call("tools/list", json!({})).await;
    let note = r#"{"jsonrpc":"2.0","method":"notifications/made_up","params":{"n":1.50,"a":"\u00e9"}}"#;
    assert_eq!(session.post(note).await.status(), 202);
    drawbridge_testkit::eventually(std::time::Duration::from_secs(5), async || {
        backend.calls("notifications/made_up").iter().any(|seen| seen.text() == note)
    })
    .await;
}

#[tokio::test]
async fn ids_come_back_as_they_were_written() {
    for backend_era in ERAS {
        let backend = backend(backend_era, |_| Does::Result(r#"{"content":[]}"#.to_owned())).await;
        let gateway = Gateway::setup().url("it", &backend.url, backend_era).start().await;
        let session = gateway.session().await;
        for id in ["0", "-7", "12345678901234567890123", r#""a""#, r#""\u00e9\/""#, r#""""#, r#""1""#] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#);
            let answer = session.post(body).await.answer_bytes().await;
            let answer = String::from_utf8(answer.to_vec()).unwrap();
            assert!(answer.contains(&format!(r#""id":{id}"#)), "{backend_era}: {answer}");
        }
    }
}

#[tokio::test]
async fn meta_of_one_era_stays_out_of_the_other() {
    let backend = backend("legacy", |_| Does::Result(r#"{"content":[]}"#.to_owned())).await;
    let gateway = Gateway::setup().url("it", &backend.url, "legacy").start().await;
    let modern = Modern::new(&gateway.client(), "/mcp", json!({ "experimental": { "x": {} } }));
    let body = modern.body("tools/call", json!({ "name": "t", "_meta": { "progressToken": "p", "own": 1 } }));
    modern.post_with(&body, &[]).await.answer().await;
    let upstream = backend.calls("tools/call")[0].clone();
    let meta = upstream.json()["params"]["_meta"].clone();
    assert_eq!(meta["own"], 1);
    assert!(meta["progressToken"] != "p", "a token of the gateway's own: {meta}");
    assert_eq!(meta.as_object().unwrap().len(), 2, "{meta}");
    for header in ["mcp-method", "mcp-name"] {
        assert_eq!(upstream.header(header), None);
    }
    assert_eq!(upstream.header("mcp-protocol-version"), Some("2025-11-25"));
}
