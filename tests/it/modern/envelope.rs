//! What a request must say about itself, in its body and in its headers.

use std::time::Duration;

use drawbridge_testkit::client::{Headers, MODERN, Modern, text};
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::{ERAS, code, in_front_of_demo};
use crate::backend::{Backend, Does, text_result};

const META: &str = "io.modelcontextprotocol/";

/// Posts a body with the usual headers and `more`; gives status and message.
async fn refused(modern: &Modern, body: &Value, more: Headers<'_>) -> (u16, Value) {
    let reply = modern.post_with(body, more).await;
    (reply.status(), reply.json().await)
}

fn echo() -> Value {
    json!({ "name": "echo", "arguments": { "message": "x" } })
}

#[tokio::test]
async fn r044_requests_without_their_metadata_are_refused_with_their_id() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    let full = modern.body("tools/call", echo());
    let mut bodies = Vec::new();
    for key in ["protocolVersion", "clientCapabilities"] {
        let mut body = full.clone();
        body["params"]["_meta"].as_object_mut().unwrap().remove(&format!("{META}{key}"));
        bodies.push(body);
        let mut body = full.clone();
        body["params"]["_meta"][format!("{META}{key}")] = json!(7);
        bodies.push(body);
    }
    let mut bare = full.clone();
    bare["params"].as_object_mut().unwrap().remove("_meta");
    bodies.push(bare);
    let mut none = full;
    none.as_object_mut().unwrap().remove("params");
    bodies.push(none);
    for body in bodies {
        let (status, answer) = refused(&modern, &body, &[]).await;
        assert_eq!((status, code(&answer)), (400, -32602), "{body}");
        assert_eq!(answer["id"], body["id"]);
    }
}

#[tokio::test]
async fn r045_requests_without_client_info_are_served() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let modern = gateway.modern();
        let mut body = modern.body("tools/call", echo());
        body["params"]["_meta"].as_object_mut().unwrap().remove(&format!("{META}clientInfo"));
        assert_eq!(text(&modern.post_with(&body, &[]).await.answer().await), "x");
    }
}

#[tokio::test]
async fn r046_a_version_header_that_differs_from_the_body_is_refused() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    let body = modern.body("tools/call", echo());
    for header in ["2025-11-25", "2025-03-26", "2099-01-01"] {
        let (status, answer) = refused(&modern, &body, &[("mcp-protocol-version", header)]).await;
        assert_eq!((status, code(&answer), &answer["id"]), (400, -32020, &body["id"]), "{header}");
    }
    let (status, answer) = refused(&modern, &body, &[("mcp-protocol-version", "")]).await;
    assert_eq!((status, code(&answer)), (400, -32020), "without the header");
}

#[tokio::test]
async fn r047_r048_an_unsupported_version_is_refused_with_those_that_discover_names() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    let discovered = modern.call("server/discover", json!({})).await;
    let known = discovered["result"]["supportedVersions"].as_array().unwrap().clone();
    assert_eq!(known[0], MODERN);
    let mut body = modern.body("tools/call", echo());
    body["params"]["_meta"][format!("{META}protocolVersion")] = json!("2099-01-01");
    let (status, answer) = refused(&modern, &body, &[("mcp-protocol-version", "2099-01-01")]).await;
    assert_eq!((status, code(&answer), &answer["id"]), (400, -32022, &body["id"]));
    assert_eq!(answer["error"]["data"]["requested"], "2099-01-01");
    let supported = answer["error"]["data"]["supported"].as_array().unwrap();
    assert!(!supported.is_empty() && supported.iter().all(|version| known.contains(version)));
}

#[tokio::test]
async fn r049_the_method_header_must_be_there_and_equal_the_body() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    let body = modern.body("tools/list", json!({}));
    for header in ["", "tools/call", "TOOLS/LIST", "tools/list,tools/list", "=?base64?!?="] {
        let (status, answer) = refused(&modern, &body, &[("mcp-method", header)]).await;
        assert_eq!((status, code(&answer), &answer["id"]), (400, -32020, &body["id"]), "{header:?}");
    }
}

#[tokio::test]
async fn r050_the_name_header_must_be_there_and_equal_the_body() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    for (method, params) in [
        ("tools/call", echo()),
        ("prompts/get", json!({ "name": "tour" })),
        ("resources/read", json!({ "uri": "demo://about" })),
    ] {
        let body = modern.body(method, params);
        for header in ["", "other", "ECHO", "Tour", "demo://About"] {
            let (status, answer) = refused(&modern, &body, &[("mcp-name", header)]).await;
            assert_eq!(
                (status, code(&answer), &answer["id"]),
                (400, -32020, &body["id"]),
                "{method} {header:?}"
            );
        }
        assert_eq!(modern.post_with(&body, &[]).await.status(), 200, "{method}");
    }
}

#[tokio::test]
async fn r051_header_names_have_any_case_and_values_are_trimmed() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let body = gateway.modern().body("tools/call", echo()).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHOST: {}\r\nConnection: close\r\nCONTENT-TYPE: application/json\r\n\
         accept: application/json, text/event-stream\r\nMCP-PROTOCOL-VERSION:  \t{MODERN} \t\r\n\
         mCP-mETHOD:    tools/call  \r\nMcp-NAME:\techo\t\r\nContent-Length: {}\r\n\r\n{body}",
        gateway.address(),
        body.len()
    );
    let answer = gateway.client().raw(head.as_bytes(), Duration::from_secs(5)).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn r052_the_base64_form_of_a_header_is_decoded_before_it_is_compared() {
    for era in ERAS {
        let script = |seen: &crate::backend::Seen| {
            let name = seen.json()["params"]["name"].as_str().unwrap_or_default().to_owned();
            text_result(&name)
        };
        let backend = match era {
            "legacy" => Backend::legacy(json!({ "tools": {} }), script).await,
            _ => Backend::modern(json!({ "tools": {} }), script).await,
        };
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let modern = gateway.modern();
        for (name, header, good) in [
            ("echo", "=?base64?ZWNobw==?=", true),
            ("é x", "=?base64?w6kgeA==?=", true),
            ("=?base64?ZWNobw==?=", "=?base64?PT9iYXNlNjQ/WldOb2J3PT0/PQ==?=", true),
            ("echo", "=?base64?ZWNobw?=", false),
            ("echo", "=?base64?ZWNob*==?=", false),
            ("other", "=?base64?ZWNobw==?=", false),
            // These are no such form, so they mean themselves.
            ("=?base64?ZWNobw==", "=?base64?ZWNobw==", true),
            ("=?BASE64?ZWNobw==?=", "=?BASE64?ZWNobw==?=", true),
            ("echo", "=?BASE64?ZWNobw==?=", false),
        ] {
            let body = modern.body("tools/call", json!({ "name": name, "arguments": {} }));
            let reply = modern.post_with(&body, &[("mcp-name", header)]).await;
            if good {
                assert_eq!(reply.status(), 200, "{name} {header}");
                assert_eq!(text(&reply.answer().await), name);
                let calls = backend.calls("tools/call");
                if era == "modern" && name == "é x" {
                    assert_eq!(calls.last().unwrap().header("mcp-name"), Some(header));
                }
            } else {
                assert_eq!(reply.status(), 400, "{name} {header}");
                assert_eq!(code(&reply.json().await), -32020);
            }
        }
    }
}

#[tokio::test]
async fn r053_an_annotated_argument_needs_its_header_and_null_or_none_does_not() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    let call =
        |arguments: Value| modern.body("tools/call", json!({ "name": "region", "arguments": arguments }));
    let body = call(json!({ "region": "eu" }));
    let (status, answer) = refused(&modern, &body, &[]).await;
    assert_eq!((status, code(&answer), &answer["id"]), (400, -32020, &body["id"]));
    let (status, answer) = refused(&modern, &body, &[("mcp-param-region", "us")]).await;
    assert_eq!((status, code(&answer)), (400, -32020));
    let good = modern.post_with(&body, &[("Mcp-Param-Region", "eu")]).await.answer().await;
    assert_eq!(text(&good), "region eu");
    for arguments in [json!({}), json!({ "region": null })] {
        let answer = modern.post_with(&call(arguments), &[]).await.answer().await;
        assert_eq!(text(&answer), "region unknown");
    }
}

#[tokio::test]
async fn r055_param_headers_are_forwarded_as_they_came() {
    let backend = Backend::modern(json!({ "tools": {} }), |_| text_result("done")).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    let body = modern.body("tools/call", json!({ "name": "t", "arguments": { "n": 42, "s": "é" } }));
    let more =
        [("Mcp-Param-Unknown", "Some Value"), ("mcp-param-n", "42.0"), ("mcp-param-s", "=?base64?w6k=?=")];
    assert_eq!(modern.post_with(&body, &more).await.status(), 200);
    let upstream = &backend.calls("tools/call")[0];
    for (name, value) in more {
        assert_eq!(upstream.header(name), Some(value));
    }
}

#[tokio::test]
async fn r056_headers_towards_a_backend_match_the_body_it_gets() {
    let backend =
        Backend::modern(json!({ "tools": {}, "resources": {} }), |seen| match seen.rpc().as_str() {
            "tools/call" => text_result("done"),
            "resources/list" => Does::result(&json!({ "resources": [{ "uri": "x://é", "name": "x" }] })),
            "resources/read" => Does::result(&json!({ "contents": [] })),
            _ => Does::Error(200, r#"{"code":-32601,"message":"no"}"#.into()),
        })
        .await;
    let dead = "http://127.0.0.1:1/mcp";
    let gateway =
        Gateway::setup().url("it", &backend.url, "modern").url("dead", dead, "modern").start().await;
    let session = gateway.session().await;
    assert_eq!(text(&session.tool("it__t", json!({})).await), "done");
    assert_eq!(text(&gateway.modern().tool("it__t", json!({})).await), "done");
    let read = session.call("resources/read", json!({ "uri": "x://é" })).await;
    assert!(read["result"].is_object(), "{read}");
    for seen in backend.seen().iter().filter(|seen| !seen.rpc().starts_with("notifications/")) {
        let (body, rpc) = (seen.json(), seen.rpc());
        assert_eq!(seen.header("mcp-method"), Some(rpc.as_str()));
        let version = body["params"]["_meta"][format!("{META}protocolVersion")].as_str();
        assert_eq!(version, Some(MODERN));
        assert_eq!(seen.header("mcp-protocol-version"), version);
        assert_eq!(seen.header("mcp-session-id"), None);
        match rpc.as_str() {
            "tools/call" => {
                assert_eq!(body["params"]["name"], "t");
                assert_eq!(seen.header("mcp-name"), Some("t"));
            }
            "resources/read" => assert_eq!(seen.header("mcp-name"), Some("=?base64?eDovL8Op?=")),
            _ => assert_eq!(seen.header("mcp-name"), None, "{rpc}"),
        }
    }
}

#[tokio::test]
async fn r059_an_unknown_method_is_not_found() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let modern = gateway.modern();
        let body = modern.body("made/up", json!({}));
        let (status, answer) = refused(&modern, &body, &[]).await;
        assert_eq!((status, code(&answer), &answer["id"]), (404, -32601, &body["id"]), "{era}");
    }
}

#[tokio::test]
async fn r060_methods_of_the_other_era_are_not_found() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let modern = gateway.modern();
        for (method, params) in [
            ("initialize", json!({ "protocolVersion": MODERN, "capabilities": {}, "clientInfo": {} })),
            ("ping", json!({})),
            ("logging/setLevel", json!({ "level": "debug" })),
            ("resources/subscribe", json!({ "uri": "demo://counter" })),
            ("resources/unsubscribe", json!({ "uri": "demo://counter" })),
        ] {
            let body = modern.body(method, params);
            let (status, answer) = refused(&modern, &body, &[("mcp-name", "")]).await;
            assert_eq!((status, code(&answer), &answer["id"]), (404, -32601, &body["id"]), "{era} {method}");
        }
    }
}

#[tokio::test]
async fn r061_get_and_delete_do_not_exist_in_this_version() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let session = gateway.session().await;
    let headers = [("mcp-protocol-version", MODERN), ("mcp-session-id", session.id.as_str())];
    for headers in [&headers[..1], &headers[..]] {
        assert_eq!(gateway.client().get("/mcp", headers).await.status(), 405);
        assert_eq!(gateway.client().delete("/mcp", headers).await.status(), 405);
    }
    assert_eq!(session.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn r062_session_headers_are_ignored_and_none_comes_back() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        let modern = gateway.modern();
        let body = modern.body("tools/call", echo());
        let more = [("mcp-session-id", "forged"), ("last-event-id", "1.2.3")];
        let reply = modern.post_with(&body, &more).await;
        assert_eq!((reply.status(), reply.header("mcp-session-id")), (200, None));
        assert_eq!(text(&reply.answer().await), "x");
        let slow = json!({ "name": "sleep", "arguments": { "ms": 20 }, "_meta": { "progressToken": 1 } });
        let mut reply = modern.post_with(&modern.body("tools/call", slow), &more).await;
        while let Some(event) = reply.event().await {
            assert_eq!(event.id, None, "no resumption in this version");
        }
    }
}

#[tokio::test]
async fn r063_batches_and_responses_are_refused() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    let version = [("mcp-protocol-version", MODERN)];
    let batch = json!([modern.body("tools/list", json!({}))]);
    let response = json!({ "jsonrpc": "2.0", "id": 1, "result": { "action": "accept" } });
    let error = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -1, "message": "no" } });
    for body in [batch, response, error] {
        let reply = gateway.client().post("/mcp", &version, body.to_string()).await;
        assert_eq!(reply.status(), 400, "{body}");
        assert_eq!(code(&reply.json().await), -32600);
    }
}

#[tokio::test]
async fn notifications_are_accepted() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/made_up", "params": {} }).to_string();
    let reply = gateway.client().post("/mcp", &[("mcp-protocol-version", MODERN)], note).await;
    assert_eq!(reply.status(), 202);
    assert!(reply.bytes().await.is_empty());
}

#[tokio::test]
async fn r010_a_foreign_origin_is_refused() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let modern = gateway.modern();
    let body = modern.body("tools/list", json!({}));
    let reply = modern.post_with(&body, &[("origin", "http://evil.example")]).await;
    assert_eq!(reply.status(), 403);
}

#[tokio::test]
async fn keys_that_are_there_twice_are_refused_however_they_are_spelt() {
    let (gateway, _demo) = in_front_of_demo("modern").await;
    let body = gateway.modern().body("tools/call", echo()).to_string();
    let headers = [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "echo")];
    assert_eq!(gateway.client().post("/mcp", &headers, body.clone()).await.status(), 200);
    for (key, twice) in [
        (r#""method":"#, r#""m\u0065thod":"ping","#),
        (r#""name":"#, r#""n\u0061me":"touch","#),
        (r#""id":"#, r#""\u0069d":9,"#),
        (r#""_meta":"#, r#""\u005fmeta":{},"#),
        (r#""params":"#, r#""p\u0061rams":{},"#),
        (
            r#""io.modelcontextprotocol/clientCapabilities":"#,
            r#""io.modelcontextprotocol\/clientCapabilities":{"sampling":{}},"#,
        ),
    ] {
        let bad = body.replacen(key, &format!("{twice}{key}"), 1);
        assert_ne!(bad, body);
        let reply = gateway.client().post("/mcp", &headers, bad.clone()).await;
        assert_eq!(reply.status(), 400, "{bad}");
        assert_eq!(code(&reply.json().await), -32600, "{bad}");
    }
}
