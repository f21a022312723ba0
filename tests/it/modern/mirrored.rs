//! Tool arguments in headers: what the gateway checks, what it builds, and what it leaves out of lists.

use drawbridge_testkit::client::{Headers, Modern, text};
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::{ERAS, code};
use crate::backend::{Backend, Does, Seen, text_result};

/// A tool with arguments of each kind, one of them nested.
fn tool() -> Value {
    json!({ "name": "t", "inputSchema": { "type": "object", "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "deep": { "type": "object", "properties": { "n": { "type": "integer", "x-mcp-header": "N" } } },
        "flag": { "type": "boolean", "x-mcp-header": "Flag" },
        "free": { "type": "string" },
    } } })
}

/// Tools whose annotations are wrong, each in another way.
fn wrong() -> Vec<Value> {
    let one = |name: &str, property: Value| json!({ "name": name, "inputSchema": { "type": "object", "properties": { "a": property } } });
    vec![
        one("number", json!({ "type": "number", "x-mcp-header": "A" })),
        one("blank", json!({ "type": "string", "x-mcp-header": "a b" })),
        one("list", json!({ "type": "array", "items": { "type": "string", "x-mcp-header": "A" } })),
        json!({ "name": "twice", "inputSchema": { "type": "object", "properties": {
            "a": { "type": "string", "x-mcp-header": "A" }, "b": { "type": "string", "x-mcp-header": "a" } } } }),
    ]
}

/// A backend of an era with these tools.
async fn backend(era: &str, tools: Vec<Value>) -> Backend {
    let script = move |seen: &Seen| match seen.rpc().as_str() {
        "tools/list" => Does::result(&json!({ "tools": tools })),
        _ => text_result("done"),
    };
    match era {
        "legacy" => Backend::legacy(json!({ "tools": {} }), script).await,
        _ => Backend::modern(json!({ "tools": {} }), script).await,
    }
}

/// A backend that refuses calls of `t` without the header that `headers` names, as its list says it does.
async fn strict(header: &'static str) -> Backend {
    Backend::modern(json!({ "tools": {} }), move |seen| match seen.rpc().as_str() {
        "tools/list" => Does::result(&json!({ "tools": [tool()] })),
        _ if seen.header(header).is_none() => {
            Does::Error(400, r#"{"code":-32020,"message":"of the inner hop"}"#.into())
        }
        _ => text_result("done"),
    })
    .await
}

/// The gateway with one backend, or with another one beside it; and what the tool is called there.
async fn gateway(backend: &Backend, era: &str, aggregated: bool) -> (Gateway, &'static str) {
    let setup = Gateway::setup().url("it", &backend.url, era);
    if aggregated {
        return (setup.url("dead", "http://127.0.0.1:1/mcp", "modern").start().await, "it__t");
    }
    (setup.start().await, "t")
}

async fn call(modern: &Modern, name: &str, arguments: &Value, headers: Headers<'_>) -> (u16, Value) {
    let body = modern.body("tools/call", json!({ "name": name, "arguments": arguments }));
    let reply = modern.post_with(&body, headers).await;
    let status = reply.status();
    let answer = reply.answer().await;
    assert_eq!(answer["id"], body["id"]);
    (status, answer)
}

fn names(answer: &Value) -> Vec<&str> {
    answer["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn r053_the_gateway_checks_headers_whatever_is_behind_it() {
    for era in ERAS {
        for aggregated in [false, true] {
            for listed in [false, true] {
                let backend = backend(era, vec![tool()]).await;
                let (gateway, name) = gateway(&backend, era, aggregated).await;
                let modern = gateway.modern();
                if listed {
                    assert_eq!(names(&modern.call("tools/list", json!({})).await), [name]);
                }
                let arguments = json!({ "region": "é", "deep": { "n": 7 }, "free": "x" });
                let (region, n) = (("Mcp-Param-Region", "=?base64?w6k=?="), ("Mcp-Param-N", "7"));
                let (status, answer) = call(&modern, name, &arguments, &[region, n]).await;
                assert_eq!((status, text(&answer)), (200, "done"), "{era} {aggregated} {listed}");
                for headers in [
                    &[region][..],
                    &[region, ("mcp-param-n", "8")],
                    &[region, n, ("mcp-param-flag", "true")],
                    &[n, ("mcp-param-region", "e")],
                    &[n, ("mcp-param-region", "=?base64?w6k?=")],
                ] {
                    let (status, answer) = call(&modern, name, &arguments, headers).await;
                    assert_eq!((status, code(&answer)), (400, -32020), "{era} {aggregated} {headers:?}");
                }
                let (status, answer) = call(&modern, name, &arguments, &[]).await;
                assert_eq!((status, code(&answer)), (400, -32020), "{era} {aggregated}: no header at all");
                for arguments in [json!({}), json!({ "region": null, "deep": { "n": null } })] {
                    assert_eq!(call(&modern, name, &arguments, &[]).await.0, 200, "{era} {arguments}");
                }
                let calls = backend.calls("tools/call");
                assert_eq!(calls.len(), 3, "{era}: what is refused never gets there");
                assert_eq!(calls[0].json()["params"]["name"], "t");
                if era == "modern" {
                    assert_eq!(calls[0].header("mcp-param-region"), Some(region.1));
                }
                assert!(gateway.stop().await.success());
            }
        }
    }
}

#[tokio::test]
async fn r053_a_program_behind_the_gateway_is_no_different() {
    let demo = format!(
        "{{ command: \"{}\", args: [demo-server, --stdio] }}",
        drawbridge_testkit::gateway::binary().display()
    );
    let gateway = Gateway::setup().backend("it", &demo).start().await;
    let modern = gateway.modern();
    let arguments = json!({ "region": "eu" });
    let (status, answer) = call(&modern, "region", &arguments, &[("mcp-param-region", "us")]).await;
    assert_eq!((status, code(&answer)), (400, -32020), "{answer}");
    let (status, answer) = call(&modern, "region", &arguments, &[("mcp-param-region", "eu")]).await;
    assert_eq!((status, text(&answer)), (200, "region eu"));
    assert_eq!(text(&gateway.session().await.tool("region", arguments).await), "region eu");
}

#[tokio::test]
async fn r053_a_list_is_asked_for_only_where_it_is_of_use_and_then_once() {
    for era in ERAS {
        let backend = backend(era, vec![json!({ "name": "t", "inputSchema": { "type": "object" } })]).await;
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let (modern, session) = (gateway.modern(), gateway.session().await);
        for _ in 0..3 {
            assert_eq!(text(&modern.tool("t", json!({ "a": 1 })).await), "done");
            assert_eq!(text(&session.tool("t", json!({ "a": 1 })).await), "done");
        }
        assert_eq!(backend.calls("tools/list").len(), 0, "{era}");
        for _ in 0..3 {
            assert_eq!(call(&modern, "t", &json!({}), &[("mcp-param-a", "1")]).await.0, 200);
        }
        assert_eq!(backend.calls("tools/list").len(), 1, "{era}");
    }
}

#[tokio::test]
async fn r054_integers_are_compared_as_numbers() {
    for era in ERAS {
        let backend = backend(era, vec![tool()]).await;
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        let modern = gateway.modern();
        let body = modern.body("tools/call", json!({ "name": "t", "arguments": { "deep": { "n": 42 } } }));
        for (header, good) in [("42", true), ("42.0", true), ("4.2e1", true), ("42.5", false), ("x42", false)]
        {
            let reply = modern.post_with(&body, &[("mcp-param-n", header)]).await;
            assert_eq!(reply.status(), if good { 200 } else { 400 }, "{era} {header}");
        }
        let written = body.to_string().replace(":42}", ":42.0}");
        let mut headers: Vec<_> = Modern::headers(&body);
        headers.push(("mcp-param-n".to_owned(), "42".to_owned()));
        let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let reply = modern.client.post("/mcp", &headers, written).await;
        assert_eq!(reply.status(), 200, "{era}");
        assert!(backend.calls("tools/call").last().unwrap().text().contains(":42.0}"));
    }
}

#[tokio::test]
async fn r057_headers_are_built_for_a_client_that_sends_none() {
    for aggregated in [false, true] {
        for listed in [false, true] {
            let backend = strict("mcp-param-n").await;
            let (gateway, name) = gateway(&backend, "modern", aggregated).await;
            let session = gateway.session().await;
            if listed {
                assert_eq!(names(&session.call("tools/list", json!({})).await), [name]);
            }
            let arguments = json!({ "region": " é", "deep": { "n": 42 }, "flag": true, "free": "x" });
            assert_eq!(text(&session.tool(name, arguments.clone()).await), "done", "{aggregated} {listed}");
            assert_eq!(text(&session.tool(name, arguments).await), "done");
            let calls = backend.calls("tools/call");
            // Not knowing the tool, the first try had no headers, and was refused before anything was done.
            assert_eq!(calls.len(), if listed { 2 } else { 3 });
            assert_eq!(backend.calls("tools/list").len(), 1);
            for call in &calls[calls.len() - 2..] {
                assert_eq!(call.header("mcp-param-region"), Some("=?base64?IMOp?="));
                assert_eq!(call.header("mcp-param-n"), Some("42"));
                assert_eq!(call.header("mcp-param-flag"), Some("true"));
                assert_eq!(call.header("mcp-param-free"), None);
                assert_eq!(call.header("mcp-name"), Some("t"));
            }
            let nulls = json!({ "region": null, "deep": { "n": 1 } });
            session.tool(name, nulls).await;
            let last = backend.calls("tools/call").pop().unwrap();
            assert_eq!((last.header("mcp-param-region"), last.header("mcp-param-flag")), (None, None));
            assert_eq!(backend.calls("tools/list").len(), 1);
        }
    }
}

#[tokio::test]
async fn r057_a_refusal_that_headers_do_not_mend_is_the_gateways_own_affair() {
    // It wants a header of which its list says nothing.
    let backend = strict("mcp-param-secret").await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let arguments = json!({ "region": "eu" });
    let answer = gateway.session().await.tool("t", arguments.clone()).await;
    assert_eq!((code(&answer), &answer["error"]["data"]["code"]), (-32603, &json!("backend_bad_answer")));
    // Once without headers, once with those that the list asks for.
    assert_eq!(backend.calls("tools/call").len(), 2);
    let modern = gateway.modern();
    let (status, answer) = call(&modern, "t", &arguments, &[("mcp-param-region", "eu")]).await;
    assert_eq!((status, code(&answer)), (200, -32603), "the client's headers were right");
    let (status, answer) = call(&modern, "t", &arguments, &[]).await;
    assert_eq!((status, code(&answer)), (400, -32020), "the client's headers were wrong");
    assert!(!answer.to_string().contains("inner hop"));
}

#[tokio::test]
async fn r057_a_refusal_after_something_was_done_sends_nothing_again() {
    let capabilities = json!({ "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let refusal = r#"{"code":-32020,"message":"of the inner hop"}"#;
    let task = json!({ "resultType": "task", "taskId": "k", "status": "working", "ttlMs": null,
                       "createdAt": "2026-08-01T10:00:00Z", "lastUpdatedAt": "2026-08-01T10:00:00Z" });
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress",
                           "params": { "progressToken": 1, "progress": 1 } });
    let streamed =
        format!("data: {progress}\n\ndata: {{\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":{refusal}}}\n\n");
    let backend = Backend::modern(capabilities, move |seen| match seen.rpc().as_str() {
        "tools/list" => Does::result(&json!({ "tools": [tool()] })),
        "tools/call" if seen.text().contains("stream") => {
            let headers = vec![("content-type", "text/event-stream".to_owned())];
            Does::Raw(200, headers, streamed.replace("ID", &seen.id()))
        }
        "tools/call" => Does::result(&task),
        _ => Does::Error(400, refusal.into()),
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let session = gateway.session().await;
    for (n, free) in ["stream", "task"].into_iter().enumerate() {
        let answer = session.tool("t", json!({ "region": "eu", "free": free })).await;
        assert_eq!(code(&answer), -32603, "{free}: {answer}");
        assert_eq!(backend.calls("tools/call").len(), n + 1, "{free}");
    }
    assert!(!backend.calls("tasks/get").is_empty());
}

#[tokio::test]
async fn r057_wrong_annotations_cost_only_their_tool() {
    for era in ERAS {
        for aggregated in [false, true] {
            let tools = [vec![tool()], wrong()].concat();
            let backend = backend(era, tools.clone()).await;
            let (gateway, name) = gateway(&backend, era, aggregated).await;
            let modern = gateway.modern();
            let listed = modern.call("tools/list", json!({})).await;
            if era == "modern" {
                assert_eq!(names(&listed), [name]);
            } else {
                // The annotations mean nothing to this backend, so its tools work without them.
                assert_eq!(names(&listed).len(), 5);
                let rest = json!(listed["result"]["tools"].as_array().unwrap()[1..]).to_string();
                assert!(!rest.contains("x-mcp-header"), "{rest}");
                assert_eq!(listed["result"]["tools"][0]["inputSchema"], tool()["inputSchema"]);
                let list = if aggregated { "it__list" } else { "list" };
                assert_eq!(text(&modern.tool(list, json!({ "a": ["x"] })).await), "done");
                // Its list passes as it is where nobody reads them.
                let own = gateway.session().await.call("tools/list", json!({})).await;
                assert_eq!(own["result"]["tools"][1]["inputSchema"], tools[1]["inputSchema"]);
            }
            assert_eq!(listed["result"]["tools"][0]["inputSchema"], tool()["inputSchema"]);
            modern.call("tools/list", json!({})).await;
            let log = gateway.program.stderr();
            assert_eq!(log.matches("with a name that another property has too").count(), 1, "{log}");
        }
    }
}

#[tokio::test]
async fn r057_hostile_schemas_harm_nobody() {
    let deep = format!(
        "{}{{\"type\":\"string\",\"x-mcp-header\":\"A\"}}{}",
        r#"{"properties":{"a":"#.repeat(5_000),
        "}}".repeat(5_000)
    );
    let own = r##"{"$ref":"#","properties":{"a":{"$ref":"#"},"b":{"type":"string","x-mcp-header":"B"}}}"##;
    let result = format!(
        r#"{{"tools":[{{"name":"deep","inputSchema":{deep}}},{{"name":"own","inputSchema":{own}}},{{"name":"x","inputSchema":7,"y":"x-mcp-header"}}]}}"#
    );
    let backend = Backend::modern(json!({ "tools": {} }), move |seen| match seen.rpc().as_str() {
        "tools/list" => Does::Result(result.clone()),
        _ => text_result("done"),
    })
    .await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let modern = gateway.modern();
    // The deep one is no schema that anybody could read, so the list is not touched.
    assert_eq!(modern.request("tools/list", json!({})).await.status(), 200);
    for name in ["deep", "own", "x"] {
        assert_eq!(text(&modern.tool(name, json!({})).await), "done");
    }
}
