//! Lists: order, pages, hints for caches.

use std::sync::atomic::{AtomicUsize, Ordering};

use drawbridge_testkit::client::Modern;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::{Value, json};

use super::{ERAS, code, in_front_of_demo};
use crate::backend::{Backend, Does};

/// All pages of a list.
async fn pages(modern: &Modern, method: &str) -> Vec<Value> {
    let mut pages: Vec<Value> = Vec::new();
    loop {
        let cursor = pages.last().map(|page| page["nextCursor"].clone());
        let params = match cursor {
            None => json!({}),
            Some(Value::Null) => return pages,
            Some(cursor) => json!({ "cursor": cursor }),
        };
        let answer = modern.call(method, params).await;
        assert!(answer["result"].is_object(), "{answer}");
        pages.push(answer["result"].clone());
        assert!(pages.len() < 20);
    }
}

fn names(pages: &[Value]) -> Vec<String> {
    let tools = pages.iter().flat_map(|page| page["tools"].as_array().unwrap());
    tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn r076_every_connection_sees_the_same_list_in_the_same_order() {
    let demo = DemoBackend::start().await;
    for era in ERAS {
        let one = Gateway::setup().url("demo", &demo.url, era).start().await;
        let expected = names(&pages(&one.modern(), "tools/list").await);
        assert!(expected.len() > 10);
        let two = Gateway::setup().url("demo", &demo.url, era).url("again", &demo.url, era).start().await;
        for _ in 0..3 {
            assert_eq!(names(&pages(&one.modern(), "tools/list").await), expected);
        }
        let merged = names(&pages(&two.modern(), "tools/list").await);
        assert_eq!(merged.len(), 2 * expected.len());
        for _ in 0..3 {
            assert_eq!(names(&pages(&two.modern(), "tools/list").await), merged);
        }
    }
}

#[tokio::test]
async fn r095_six_methods_carry_hints_for_caches() {
    for era in ERAS {
        let (gateway, _demo) = in_front_of_demo(era).await;
        for (method, params, cacheable) in [
            ("server/discover", json!({}), true),
            ("tools/list", json!({}), true),
            ("prompts/list", json!({}), true),
            ("resources/list", json!({}), true),
            ("resources/templates/list", json!({}), true),
            ("resources/read", json!({ "uri": "demo://about" }), true),
            ("tools/call", json!({ "name": "echo", "arguments": { "message": "x" } }), false),
            ("prompts/get", json!({ "name": "tour" }), false),
        ] {
            let result = gateway.modern().call(method, params).await["result"].clone();
            if cacheable {
                assert!(result["ttlMs"].as_u64().is_some(), "{era} {method}: {result}");
                let scope = result["cacheScope"].as_str().unwrap();
                assert!(["public", "private"].contains(&scope), "{era} {method}");
            } else {
                assert!(
                    result.get("ttlMs").is_none() && result.get("cacheScope").is_none(),
                    "{era} {method}"
                );
            }
        }
    }
}

#[tokio::test]
async fn r097_a_list_is_asked_of_the_backend_each_time() {
    for era in ERAS {
        let version = AtomicUsize::new(0);
        let script = move |_: &crate::backend::Seen| {
            let n = version.fetch_add(1, Ordering::SeqCst);
            Does::result(
                &json!({ "tools": [{ "name": format!("t{n}"), "inputSchema": { "type": "object" } }] }),
            )
        };
        let backend = match era {
            "legacy" => Backend::legacy(json!({ "tools": {} }), script).await,
            _ => Backend::modern(json!({ "tools": {} }), script).await,
        };
        let gateway = Gateway::setup().url("it", &backend.url, era).start().await;
        for n in 0..3 {
            assert_eq!(names(&pages(&gateway.modern(), "tools/list").await), [format!("t{n}")], "{era}");
        }
    }
}

#[tokio::test]
async fn r098_all_pages_of_a_list_have_one_scope() {
    let demo = DemoBackend::start().await;
    for era in ERAS {
        for second in [None, Some("legacy"), Some("modern")] {
            let setup = Gateway::setup().url("one", &demo.url, era);
            let setup = match second {
                Some(other) => setup.url("two", &demo.url, other),
                None => setup,
            };
            let gateway = setup.start().await;
            let pages = pages(&gateway.modern(), "tools/list").await;
            assert!(pages.len() > 1);
            let scopes: Vec<_> = pages.iter().map(|page| &page["cacheScope"]).collect();
            assert!(scopes.iter().all(|scope| *scope == scopes[0] && scope.is_string()), "{scopes:?}");
        }
    }
}

#[tokio::test]
async fn r100_cursors_are_good_on_any_connection_and_bad_ones_are_refused() {
    let demo = DemoBackend::start().await;
    for several in [false, true] {
        for era in ERAS {
            let setup = Gateway::setup().url("one", &demo.url, era);
            let setup = if several { setup.url("two", &demo.url, era) } else { setup };
            let gateway = setup.start().await;
            let first = gateway.modern().call("tools/list", json!({})).await;
            let cursor = first["result"]["nextCursor"].clone();
            let gateway = gateway.restart_after_kill().await;
            let next = gateway.modern().call("tools/list", json!({ "cursor": cursor })).await;
            assert!(!next["result"]["tools"].as_array().unwrap().is_empty(), "{next}");
            // An empty cursor is a cursor, which this backend never gave.
            for bad in [json!("x"), json!("")] {
                let answer = gateway.modern().call("tools/list", json!({ "cursor": bad })).await;
                assert_eq!(code(&answer), -32602, "{era} {several} {bad}");
                let answer = gateway.session().await.call("tools/list", json!({ "cursor": bad })).await;
                assert_eq!(code(&answer), -32602, "{era} {several} {bad}");
            }
            if several {
                let answer = gateway.modern().call("prompts/list", json!({ "cursor": cursor })).await;
                assert_eq!(code(&answer), -32602, "a cursor of another list");
            }
        }
    }
}

#[tokio::test]
async fn r100_an_empty_cursor_reaches_the_backend() {
    for era in ERAS {
        let script = |seen: &crate::backend::Seen| {
            let last = seen.json()["params"].get("cursor").is_some();
            let tool = json!({ "name": if last { "b" } else { "a" }, "inputSchema": { "type": "object" } });
            Does::result(&if last {
                json!({ "tools": [tool] })
            } else {
                json!({ "tools": [tool], "nextCursor": "" })
            })
        };
        let backend = match era {
            "legacy" => Backend::legacy(json!({ "tools": {} }), script).await,
            _ => Backend::modern(json!({ "tools": {} }), script).await,
        };
        let one = Gateway::setup().url("it", &backend.url, era).start().await;
        assert_eq!(names(&pages(&one.modern(), "tools/list").await), ["a", "b"], "{era}");
        let dead = "http://127.0.0.1:1/mcp";
        let two = Gateway::setup().url("it", &backend.url, era).url("dead", dead, era).start().await;
        assert_eq!(names(&pages(&two.modern(), "tools/list").await), ["it__a", "it__b"], "{era}");
    }
}

#[tokio::test]
async fn a_list_that_depends_on_capabilities_is_never_served_to_another_client() {
    let script = |seen: &crate::backend::Seen| {
        let declared = &seen.json()["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        let name = declared["experimental"].as_object().and_then(|e| e.keys().next().cloned());
        let name = name.unwrap_or_else(|| "none".to_owned());
        let mut result = json!({ "tools": [{ "name": name, "inputSchema": { "type": "object" } }] });
        result["ttlMs"] = json!(3_600_000);
        result["cacheScope"] = json!("public");
        Does::result(&result)
    };
    let backend = Backend::modern(json!({ "tools": {} }), script).await;
    let gateway = Gateway::setup().url("it", &backend.url, "modern").start().await;
    let client = gateway.client();
    for _ in 0..2 {
        for name in ["a", "b", "c"] {
            let modern = Modern::new(&client, "/mcp", json!({ "experimental": { name: {} } }));
            assert_eq!(names(&pages(&modern, "tools/list").await), [name]);
        }
        assert_eq!(names(&pages(&gateway.modern(), "tools/list").await), ["none"]);
    }
}
