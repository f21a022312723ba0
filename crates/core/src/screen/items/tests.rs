use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::backend::BackendName;
use crate::call::Shape;
use crate::client::tests::somebody;
use crate::glob::Glob;
use crate::rights::Patterns;
use crate::screen::Trust;

/// May what the patterns have; tools that don't only read need a scope.
#[derive(Debug)]
struct Limited {
    names: Patterns,
    in_results: bool,
}

impl Rights for Limited {
    fn on(&self, item: &Item<'_>) -> Verdict {
        match item.kind {
            _ if !self.names.have(item.name) => Verdict::Hidden,
            Kind::Tool { reads: false } => Verdict::Lacks("mcp:write"),
            _ => Verdict::Allowed,
        }
    }

    fn carried(&self) -> Option<String> {
        None
    }

    fn differ(&self, _: Kind) -> bool {
        true
    }

    fn challenge(&self, scope: &str) -> Option<String> {
        self.in_results.then(|| format!("Bearer scope=\"{scope}\""))
    }

    fn scope_shown(&self, item: &Item<'_>) -> Option<&'static str> {
        let Kind::Tool { reads } = item.kind else { return None };
        self.in_results.then_some(if reads { "mcp:read" } else { "mcp:write" })
    }
}

fn rights(deny: &[&str]) -> Limited {
    let deny = deny.iter().map(|text| Glob::parse(text).unwrap()).collect();
    Limited { names: Patterns { allow: Vec::new(), deny }, in_results: false }
}

fn trusted() -> Trusted {
    Trusted {
        name: BackendName::parse("b").unwrap(),
        trust: Trust {
            read_tools: vec![Glob::parse("get_*").unwrap()],
            annotations: true,
            hosts: Vec::new(),
            knows_callers: true,
        },
        list_timeout: Duration::from_secs(1),
        reads: Mutex::default(),
    }
}

fn call(method: &str, params: &Value) -> Call {
    let text = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    Call::new(Message::parse(text.to_string().into()).unwrap(), somebody())
}

/// What comes of a request to whose answer `result` is.
fn seen(trusted: &Trusted, rights: &Limited, method: &str, result: &Value, shape: Shape) -> Value {
    let (_, asked) = trusted.check(rights, call(method, &json!({}))).map_err(|_| ()).unwrap();
    let text = json!({ "jsonrpc": "2.0", "id": 1, "result": result }).to_string();
    let reply = Reply { message: Message::parse(text.into()).unwrap(), shape };
    let Event::Done(reply) = trusted.filter(rights, &asked, Event::Done(reply)) else { panic!() };
    serde_json::from_slice::<Value>(reply.message.bytes()).unwrap()["result"].clone()
}

#[test]
fn lists_have_what_the_caller_may_have_and_are_for_nobody_else() {
    let (trusted, rights) = (trusted(), rights(&["secret*", "x:secret"]));
    let tools = json!({ "tools": [{ "name": "a", "x": 1 }, { "name": "secret_a" }, { "x": "nameless" }], "nextCursor": "c",
        "resultType": "complete", "ttlMs": 5, "cacheScope": "public" });
    let listed = seen(&trusted, &rights, "tools/list", &tools, Shape::Marked);
    assert_eq!(listed["tools"], json!([{ "name": "a", "x": 1 }]));
    assert_eq!((&listed["nextCursor"], &listed["cacheScope"]), (&json!("c"), &json!("private")));
    // Also where the member may be the server's own: a face would take it for what it says.
    assert_eq!(seen(&trusted, &rights, "tools/list", &tools, Shape::Plain)["cacheScope"], "private");
    for (method, entries, name) in [
        ("prompts/list", "prompts", "name"),
        ("resources/list", "resources", "uri"),
        ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ] {
        let list = json!({ entries: [{ name: "x:secret" }, { name: "x:open" }] });
        let listed = seen(&trusted, &rights, method, &list, Shape::Plain);
        assert_eq!(listed, json!({ entries: [{ name: "x:open" }] }), "{method}");
    }
    let twice = br#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"tools":[{"name":"secret_a"}]}}"#;
    let reply = Reply { message: Message::parse(twice[..].into()).unwrap(), shape: Shape::Plain };
    let asked = Asked::of("tools/list");
    let Event::Done(reply) = trusted.filter(&rights, &asked, Event::Done(reply)) else { panic!() };
    assert_eq!(reply.message.raw(Field::Result).unwrap(), br#"{"tools":[]}"#);
    let two_names = br#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","name":"secret_a"}]}}"#;
    let reply = Reply { message: Message::parse(two_names[..].into()).unwrap(), shape: Shape::Plain };
    let Event::Done(reply) = trusted.filter(&rights, &asked, Event::Done(reply)) else { panic!() };
    assert_eq!(reply.message.raw(Field::Result).unwrap(), br#"{"tools":[]}"#);
    let malformed = json!({ "tools": { "name": "secret" } });
    assert_eq!(seen(&trusted, &rights, "tools/list", &malformed, Shape::Plain)["tools"], json!([]));
}

#[test]
fn t91_what_the_caller_may_not_have_is_as_unknown_as_what_there_is_not() {
    let (trusted, rights) = (trusted(), rights(&["secret*"]));
    let refused = |method: &str, params: Value| match trusted.check(&rights, call(method, &params)) {
        Ok(_) => None,
        Err(event) => match *event {
            Event::Fail(fault) => Some(fault.to_string()),
            event => panic!("{event:?}"),
        },
    };
    for (method, key, said) in [
        ("tools/call", "name", "Unknown tool"),
        ("prompts/get", "name", "Unknown prompt"),
        ("resources/read", "uri", "Resource not found"),
        ("resources/subscribe", "uri", "Resource not found"),
    ] {
        assert_eq!(refused(method, json!({ key: "secret_1" })).unwrap(), said);
        assert_eq!(refused(method, json!({ key: "get_1" })), None);
    }
    for (method, params) in [
        ("tools/call", json!({})),
        ("tools/call", json!({ "name": ["get_1"] })),
        ("prompts/get", json!({ "name": 5 })),
        ("resources/read", json!({ "uri": ["x:1"] })),
        ("completion/complete", json!({})),
        ("completion/complete", json!({ "ref": { "name": ["get_1"] } })),
        (
            "completion/complete",
            json!({ "ref": { "type": "ref/resource", "name": "get_1", "uri": "secret:{x}" } }),
        ),
    ] {
        assert!(refused(method, params.clone()).is_some(), "{method} {params}");
    }
    for reference in [json!({ "type": "ref/prompt", "name": "secret_1" }), json!({ "uri": "secret:{x}" })] {
        assert!(refused("completion/complete", json!({ "ref": reference })).is_some());
    }
    assert_eq!(refused("completion/complete", json!({ "ref": { "name": "get_1" } })), None);
    let filter = json!({ "notifications": { "resourceSubscriptions": ["secret:1", "x:1"], "toolsListChanged": true } });
    let (listen, _) = trusted.check(&rights, call("subscriptions/listen", &filter)).map_err(|_| ()).unwrap();
    let listened = listen.request.raw(Field::Notifications).unwrap();
    let listened: Value = serde_json::from_slice(listened).unwrap();
    assert_eq!(listened, json!({ "resourceSubscriptions": ["x:1"], "toolsListChanged": true }));
}

#[test]
fn a_uri_is_judged_by_whatever_it_may_be_taken_for() {
    let allow = ["file:///srv/*", "docs:*"].map(|text| Glob::parse(text).unwrap()).to_vec();
    let deny = vec![Glob::parse("file:///srv/secret/*").unwrap()];
    let rights = Limited { names: Patterns { allow, deny }, in_results: false };
    let trusted = trusted();
    let may = |uri: &str| trusted.check(&rights, call("resources/read", &json!({ "uri": uri }))).is_ok();
    for uri in ["file:///srv/a", "file:///srv/a%20b/../c", "docs:x", "docs:a/b%2Fc", "file:///srv/%C3%A9"] {
        assert!(may(uri), "{uri}");
    }
    for uri in [
        "file:///srv/../etc/passwd",
        "file:///srv/%2e%2e/etc/passwd",
        "file:///srv/..%2fetc/passwd",
        "file:///srv/a/..\\..\\etc/passwd",
        "file:///srv/{x}/../../etc/passwd",
        "file:///srv/secret/a",
        "file:///srv/./secret/a",
        "file:///srv/%73ecret/a",
        "file://localhost/srv/../etc/passwd",
        "FILE:///srv/secret/a",
        "file:///srv//secret/a",
        "file:////srv/secret/a",
        " file:///srv/secret/a",
        "/srv/a",
    ] {
        assert!(!may(uri), "{uri}");
    }
}

#[test]
fn a_tool_that_needs_more_says_so_in_the_way_that_its_host_reads() {
    let trusted = trusted();
    let list = json!({ "tools": [{ "name": "get_a" }, { "name": "hinted", "annotations": { "readOnlyHint": true } },
        { "name": "writes", "_meta": { "k": 1 } }] });
    let plain = rights(&[]);
    assert_eq!(seen(&trusted, &plain, "tools/list", &list, Shape::Plain), list);
    let chatgpt = Limited { in_results: true, ..rights(&[]) };
    let listed = seen(&trusted, &chatgpt, "tools/list", &list, Shape::Plain);
    let scheme = |scope: &str| json!([{ "type": "oauth2", "scopes": [scope] }]);
    for (place, scope) in [(0, "mcp:read"), (1, "mcp:read"), (2, "mcp:write")] {
        let tool = &listed["tools"][place];
        assert_eq!(
            (&tool["securitySchemes"], &tool["_meta"]["securitySchemes"]),
            (&scheme(scope), &scheme(scope))
        );
    }
    assert_eq!(listed["tools"][2]["_meta"]["k"], 1);
    // What was listed is remembered.
    let may =
        |rights: &Limited, name: &str| trusted.check(rights, call("tools/call", &json!({ "name": name })));
    for name in ["get_b", "hinted"] {
        assert!(may(&plain, name).is_ok());
    }
    for (rights, challenges) in [(&plain, json!(null)), (&chatgpt, json!(["Bearer scope=\"mcp:write\""]))] {
        let Err(told) = may(rights, "writes") else { panic!() };
        let Event::Done(reply) = *told else { panic!() };
        let result = &serde_json::from_slice::<Value>(reply.message.bytes()).unwrap()["result"];
        assert_eq!(
            (&result["isError"], &result["_meta"]["mcp/www_authenticate"]),
            (&json!(true), &challenges)
        );
    }
    assert_eq!((trusted.reads("get_c"), trusted.reads("never listed")), (Some(true), None));
}
