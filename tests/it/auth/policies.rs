//! What callers may, down to single tools: hidden and refused by the same rules, in lists and calls, of both eras.

use std::collections::BTreeSet;

use chrono::Utc;
use drawbridge_auth::records::{Records, User, UserClaims};
use drawbridge_testkit::backend::{Backend, Reply, Request, legacy, modern, text_result};
use drawbridge_testkit::client::{Client, Modern, Session, text};
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};

use super::world::World;

const RULES: &str = r#"
policies:
  - allow: { backends: [items], tools: ["get_*"], prompts: ["p"], resources: ["open:*"] }
  - allow: { backends: [items] }
    when: { groups_any: [maintainers], scopes_all: [mcp:write] }
  - deny: { backends: ["*"], tools: ["*erase*"] }
"#;

/// Tools, prompts and resources, some of which are for few; all of them public.
async fn items(era: &'static str) -> Backend {
    Backend::start(move |request: Request| async move {
        let list = |key: &str, entries: Value| {
            Reply::result(
                &request,
                json!({ key: entries, "resultType": "complete", "ttlMs": 60_000, "cacheScope": "public" }),
            )
        };
        let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" },
            "annotations": { "readOnlyHint": name.starts_with("look") } });
        match request.rpc() {
            "server/discover" | "initialize" => {
                let capabilities = json!({ "tools": { "listChanged": true }, "prompts": {}, "resources": {} });
                let info = json!({ "name": "items", "version": "1" });
                Reply::result(&request, match era {
                    "modern" => json!({ "supportedVersions": ["2026-07-28"], "capabilities": capabilities, "ttlMs": 60_000,
                        "cacheScope": "public", "resultType": "complete",
                        "_meta": { "io.modelcontextprotocol/serverInfo": info } }),
                    _ => json!({ "protocolVersion": request.body["params"]["protocolVersion"], "capabilities": capabilities,
                        "serverInfo": info }),
                })
            }
            "tools/list" => list(
                "tools",
                ["get_item", "drop_item", "erase_item", "look_around"].map(tool).to_vec().into(),
            ),
            "prompts/list" => list("prompts", json!([{ "name": "p" }, { "name": "secret" }])),
            "resources/list" => list(
                "resources",
                json!([{ "uri": "open:1", "name": "1" }, { "uri": "secret:1", "name": "2" }]),
            ),
            "tools/call" => {
                let mut result = text_result(request.name());
                result["resultType"] = json!("complete");
                Reply::result(&request, result)
            }
            "prompts/get" => Reply::result(&request, json!({ "messages": [], "resultType": "complete" })),
            "resources/read" => Reply::result(&request, json!({ "contents": [], "resultType": "complete",
                "ttlMs": 60_000, "cacheScope": "public" })),
            _ if era == "modern" => modern(&request),
            _ => legacy(&request, ""),
        }
    })
    .await
}

async fn member(world: &World, name: &str, groups: &[&str]) -> User {
    let claims = UserClaims {
        issuer: "local".to_owned(),
        subject: name.to_owned(),
        email: None,
        name: None,
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
    };
    world.records.enter_user(&drawbridge_auth::fresh_id(), &claims, Utc::now()).await.unwrap()
}

/// A client for all endpoints.
async fn client(world: &World, number: usize, user: &User, scopes: &[&str]) -> Client {
    let (_, token) =
        world.token_with(user, scopes, |token| token.endpoints = BTreeSet::from(["*".to_owned()])).await;
    world.client(number).bearer(token.expose())
}

const BOTH: [&str; 2] = ["mcp:read", "mcp:write"];

/// The names in a list.
fn names(answer: &Value, list: &str, key: &str) -> Vec<String> {
    let entries = answer["result"][list].as_array().unwrap_or_else(|| panic!("{answer}"));
    entries.iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn t91_what_rules_deny_is_neither_listed_nor_told_from_what_there_is_not() {
    for era in ["legacy", "modern"] {
        let backend = items(era).await;
        let settings = format!("{{ url: \"{}\", era: {era} }}", backend.url());
        let world = World::over("tokens", "", |setup| setup.backend("items", &settings).config(RULES)).await;
        let ann = member(&world, "ann", &["maintainers", "x"]).await;
        let bob = member(&world, "bob", &["x"]).await;
        for (path, prefix) in [("/mcp/items", ""), ("/mcp", "items__")] {
            let at = async |user: &User| {
                let client = client(&world, 0, user, &BOTH).await;
                let session = Session::open(&client, path, "2025-11-25", json!({})).await;
                (Modern::new(&client, path, json!({})), session)
            };
            let ((modern, session), (anns, _)) = (at(&bob).await, at(&ann).await);
            let call = async |method: &str, params: Value| {
                let one = modern.call(method, params.clone()).await;
                let other = session.call(method, params).await;
                [one, other]
            };
            let exposed = |name: &str| format!("{prefix}{name}");
            for answer in call("tools/list", json!({})).await {
                assert_eq!(names(&answer, "tools", "name"), [exposed("get_item")], "{path}");
            }
            let list = modern.call("tools/list", json!({})).await;
            assert_eq!(list["result"]["cacheScope"], "private", "others see other things: {list}");
            let all = anns.call("tools/list", json!({})).await;
            assert_eq!(names(&all, "tools", "name"), ["get_item", "drop_item", "look_around"].map(exposed));
            for answer in call("prompts/list", json!({})).await {
                assert_eq!(names(&answer, "prompts", "name"), [exposed("p")]);
            }
            for answer in call("resources/list", json!({})).await {
                assert_eq!(names(&answer, "resources", "uri"), ["open:1"]);
            }
            for name in ["drop_item", "erase_item", "never_was"] {
                let name = exposed(name);
                for answer in call("tools/call", json!({ "name": name, "arguments": {} })).await {
                    let expected = json!({ "code": -32602, "message": "Unknown tool" });
                    let error =
                        json!({ "code": answer["error"]["code"], "message": answer["error"]["message"] });
                    assert_eq!(error, expected, "{path} {answer}");
                }
            }
            for [one, other] in [
                call("prompts/get", json!({ "name": exposed("secret") })).await,
                call("resources/read", json!({ "uri": "secret:1" })).await,
            ] {
                assert!(one["error"].is_object() && other["error"].is_object(), "{one} {other}");
            }
            let allowed = exposed("get_item");
            for answer in call("tools/call", json!({ "name": allowed, "arguments": {} })).await {
                assert_eq!(text(&answer), "get_item");
            }
            assert_eq!(text(&anns.tool(&exposed("drop_item"), json!({})).await), "drop_item");
            assert!(anns.tool(&exposed("erase_item"), json!({})).await["error"].is_object());
        }
        let called: BTreeSet<String> =
            backend.requests_of("tools/call").iter().map(|request| request.name().to_owned()).collect();
        assert_eq!(called, BTreeSet::from(["drop_item".to_owned(), "get_item".to_owned()]));
        assert_eq!(backend.count("resources/read") + backend.count("prompts/get"), 0);
    }
}

#[tokio::test]
async fn t91_a_rule_that_is_taken_back_between_list_and_call_is_no_rule() {
    let backend = items("legacy").await;
    let settings = format!("{{ url: \"{}\", era: legacy }}", backend.url());
    let world = World::over("tokens", "", |setup| setup.backend("items", &settings).config(RULES)).await;
    let ann = member(&world, "ann", &["maintainers"]).await;
    let client = client(&world, 0, &ann, &BOTH).await;
    let session = Session::open(&client, "/mcp/items", "2025-11-25", json!({})).await;
    let listening = Modern::new(&client, "/mcp/items", json!({}));
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut listen = listening.request("subscriptions/listen", wanted).await;
    listen.message().await;
    assert!(
        names(&session.call("tools/list", json!({})).await, "tools", "name")
            .contains(&"drop_item".to_owned())
    );
    assert_eq!(text(&session.tool("drop_item", json!({})).await), "drop_item");

    let file = world.gateways[0].dir().join("drawbridge.yaml");
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, written.replace("[maintainers]", "[others]")).unwrap();
    while listen.message().await["method"] != "notifications/tools/list_changed" {}
    eventually(PATIENCE, async || {
        session.tool("drop_item", json!({})).await["error"]["message"] == "Unknown tool"
    })
    .await;
    assert_eq!(names(&session.call("tools/list", json!({})).await, "tools", "name"), ["get_item"]);
}

#[tokio::test]
async fn t92_who_lacks_a_scope_is_told_how_to_get_it_once_a_minute() {
    let backend = items("legacy").await;
    let settings = format!("{{ url: \"{}\", era: legacy, read_tools: [\"get_*\"] }}", backend.url());
    let world =
        World::over("embedded", "  step_up: challenge", |setup| setup.backend("items", &settings)).await;
    let ann = world.user("ann").await;
    let reader = client(&world, 0, &ann, &["mcp:read"]).await;
    let session = Session::open(&reader, "/mcp/items", "2025-11-25", json!({})).await;
    assert_eq!(names(&session.call("tools/list", json!({})).await, "tools", "name").len(), 4);
    assert_eq!(text(&session.tool("get_item", json!({})).await), "get_item", "it only reads");

    let writes = json!({ "name": "drop_item", "arguments": {} });
    let challenged = session.request("tools/call", writes.clone()).await;
    assert_eq!(challenged.status(), 403);
    let challenge = challenged.header("www-authenticate").unwrap();
    assert!(challenge.starts_with("Bearer error=\"insufficient_scope\""), "{challenge}");
    for part in [
        "scope=\"mcp:write\"",
        "resource_metadata=\"http://localhost:9/.well-known/oauth-protected-resource/mcp/items\"",
    ] {
        assert!(challenge.contains(part), "{challenge}");
    }
    // The host did not come back with more: nobody is asked to log in again and again.
    let again = session.call("tools/call", writes.clone()).await;
    assert_eq!(again["result"]["isError"], true, "{again}");
    let stateless = Modern::new(&reader, "/mcp/items", json!({}));
    assert_eq!(stateless.call("tools/call", writes.clone()).await["result"]["isError"], true);
    // On its merged path it is another caller's name for the tool, and the same lack.
    let merged = Modern::new(&reader, "/mcp", json!({})).tool("items__drop_item", json!({})).await;
    assert_eq!(merged["result"]["isError"], true, "{merged}");

    // A host that reads challenges in results gets them there, and the scopes in lists.
    let body = drawbridge_testkit::client::request(7, "tools/call", writes.clone()).to_string();
    let mut headers = session.headers().to_vec();
    headers.push(("user-agent", "openai-mcp/1.0.0"));
    let told = reader.post("/mcp/items", &headers, body).await;
    assert_eq!(told.status(), 200);
    let told = told.answer().await["result"].clone();
    let shown = told["_meta"]["mcp/www_authenticate"][0].as_str().unwrap();
    assert!(shown.contains("insufficient_scope") && shown.contains("scope=\"mcp:write\""), "{shown}");
    assert_eq!(told["isError"], true);
    let body = drawbridge_testkit::client::request(8, "tools/list", json!({})).to_string();
    let listed = reader.post("/mcp/items", &headers, body).await.answer().await;
    assert_eq!(
        listed["result"]["tools"][1]["securitySchemes"],
        json!([{ "type": "oauth2", "scopes": ["mcp:write"] }])
    );
    assert_eq!(listed["result"]["tools"][0]["securitySchemes"][0]["scopes"], json!(["mcp:read"]));
    assert_eq!(backend.count("tools/call"), 1, "nothing was called without its scope");

    let writer = client(&world, 0, &ann, &BOTH).await;
    let session = Session::open(&writer, "/mcp/items", "2025-11-25", json!({})).await;
    assert_eq!(text(&session.call("tools/call", writes).await), "drop_item");
}

#[tokio::test]
async fn a_tool_that_needs_a_scope_is_hidden_from_who_lacks_it_unless_it_is_known_to_only_read() {
    let backend = items("legacy").await;
    let settings = |more: &str| format!("{{ url: \"{}\", era: legacy{more} }}", backend.url());
    let world = World::over("tokens", "", |setup| {
        setup.backend("strict", &settings("")).backend("trusted", &settings(", trust_annotations: true"))
    })
    .await;
    let ann = world.user("ann").await;
    let reader = client(&world, 0, &ann, &["mcp:read"]).await;
    let at = |path: &str| Modern::new(&reader, path, json!({}));
    assert_eq!(names(&at("/mcp/strict").call("tools/list", json!({})).await, "tools", "name").len(), 0);
    assert_eq!(at("/mcp/strict").tool("look_around", json!({})).await["error"]["code"], -32602);
    // It was not listed yet: the gateway looks for itself what the tool says.
    assert_eq!(text(&at("/mcp/trusted").tool("look_around", json!({})).await), "look_around");
    assert_eq!(at("/mcp/trusted").tool("drop_item", json!({})).await["error"]["code"], -32602);
    let listed = at("/mcp").call("tools/list", json!({})).await;
    assert_eq!(names(&listed, "tools", "name"), ["trusted__look_around"]);
}

#[tokio::test]
async fn t93_a_forged_header_opens_nothing_and_a_kept_list_is_for_whom_it_was_made() {
    let backend = items("modern").await;
    let settings = format!("{{ url: \"{}\", era: modern }}", backend.url());
    let world = World::over("tokens", "", |setup| setup.backend("items", &settings).config(RULES)).await;
    let (ann, bob) = (member(&world, "ann", &["maintainers"]).await, member(&world, "bob", &[]).await);
    let anns = Modern::new(&client(&world, 0, &ann, &BOTH).await, "/mcp/items", json!({}));
    let bobs = Modern::new(&client(&world, 0, &bob, &BOTH).await, "/mcp/items", json!({}));
    // What the backend calls public is kept once, and each sees their own of it.
    assert_eq!(names(&anns.call("tools/list", json!({})).await, "tools", "name").len(), 3);
    assert_eq!(names(&bobs.call("tools/list", json!({})).await, "tools", "name"), ["get_item"]);
    assert_eq!(names(&anns.call("tools/list", json!({})).await, "tools", "name").len(), 3);
    assert_eq!(backend.count("tools/list"), 1);
    assert!(anns.call("resources/read", json!({ "uri": "secret:1" })).await["result"].is_object());
    assert!(bobs.call("resources/read", json!({ "uri": "secret:1" })).await["error"].is_object());
    let body = bobs.body("tools/call", json!({ "name": "drop_item", "arguments": {} }));
    let forged = bobs.post_with(&body, &[("mcp-name", "get_item")]).await;
    assert_eq!(forged.status(), 400);
    assert_eq!(forged.json().await["error"]["code"], -32020);
    assert_eq!(backend.count("tools/call"), 0);
}

#[tokio::test]
async fn t39_a_task_is_known_to_its_own_caller_alone() {
    let extension = "io.modelcontextprotocol/tasks";
    let backend = Backend::start(move |request: Request| async move {
        let task = |kind: &str| {
            json!({ "resultType": kind, "taskId": "7", "status": "working", "createdAt": "2026-08-01T10:00:00Z",
                    "lastUpdatedAt": "2026-08-01T10:00:00Z", "ttlMs": 60_000 })
        };
        match request.rpc() {
            "server/discover" => Reply::result(&request, json!({ "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": {}, "extensions": { extension: {} } }, "resultType": "complete", "ttlMs": 0,
                "cacheScope": "private" })),
            "tools/call" => Reply::result(&request, task("task")),
            "tasks/get" if request.body["params"]["taskId"] == "7" => Reply::result(&request, task("complete")),
            "tasks/cancel" => Reply::result(&request, json!({ "resultType": "complete" })),
            _ => modern(&request),
        }
    })
    .await;
    let (settings, other) = (
        format!("{{ url: \"{}\", era: modern }}", backend.url()),
        format!("{{ url: \"{}\", era: modern }}", backend.url()),
    );
    let world =
        World::over("tokens", "", |setup| setup.backend("one", &settings).backend("two", &other)).await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let (anns, bobs) = (client(&world, 0, &ann, &BOTH).await, client(&world, 0, &bob, &BOTH).await);
    let knows = json!({ "extensions": { extension: {} } });
    // Also where several backends have tasks of the same id.
    for (path, tool) in [("/mcp/one", "x"), ("/mcp", "two__x")] {
        let (anns, bobs) = (Modern::new(&anns, path, knows.clone()), Modern::new(&bobs, path, knows.clone()));
        let discovered = anns.call("server/discover", json!({})).await["result"].clone();
        assert!(discovered["capabilities"]["extensions"][extension].is_object(), "{discovered}");
        let id = anns.tool(tool, json!({})).await["result"]["taskId"].clone();
        let asked = backend.count("tasks/get") + backend.count("tasks/cancel");
        let unknown = bobs.call("tasks/get", json!({ "taskId": "never-was" })).await;
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            for id in [&id, &json!("7")] {
                let foreign = bobs.call(method, json!({ "taskId": id, "inputResponses": {} })).await;
                assert_eq!(foreign["error"], unknown["error"], "{path} {method}");
            }
        }
        assert_eq!(unknown["error"]["code"], -32602);
        assert_eq!(backend.count("tasks/get") + backend.count("tasks/cancel"), asked);
        let own = anns.call("tasks/get", json!({ "taskId": id })).await["result"].clone();
        assert_eq!((&own["taskId"], &own["status"]), (&id, &json!("working")), "{own}");
    }
}

#[tokio::test]
async fn rules_are_the_same_wherever_a_call_goes_on() {
    let backend = items("legacy").await;
    let settings = format!("{{ url: \"{}\", era: legacy }}", backend.url());
    let rules =
        "policies:\n  - allow: { backends: [items, demo] }\n    when: { groups_any: [maintainers] }\n";
    let world = World::several_with(2, |setup| setup.backend("items", &settings).config(rules)).await;
    let (ann, bob) = (member(&world, "ann", &["maintainers"]).await, member(&world, "bob", &[]).await);
    for (user, may) in [(&ann, true), (&bob, false)] {
        let (_, token) =
            world.token_with(user, &BOTH, |token| token.endpoints = BTreeSet::from(["*".to_owned()])).await;
        let at = |number: usize| world.client(number).bearer(token.expose());
        // A message to the HTTP+SSE connection of another instance.
        let mut events = at(0).get("/mcp/items/sse", &[("accept", "text/event-stream")]).await;
        let posts = String::from_utf8(events.event().await.unwrap().data.to_vec()).unwrap();
        let post = async |body: Value| {
            let reply = at(1).post(&posts, &[], body.to_string()).await;
            assert_eq!(reply.status(), 202);
        };
        post(drawbridge_testkit::client::initialize("2024-11-05", json!({}))).await;
        events.message().await;
        post(drawbridge_testkit::client::notification("notifications/initialized", json!({}))).await;
        post(drawbridge_testkit::client::request(
            7,
            "tools/call",
            json!({ "name": "get_item", "arguments": {} }),
        ))
        .await;
        let answer = events.message().await;
        assert_eq!(answer["result"].is_object(), may, "{answer}");
        // A call that is parked at another instance.
        let client =
            |number: usize| Modern::new(&at(number), "/mcp/demo", json!({ "elicitation": { "form": {} } }));
        let params = json!({ "name": "elicit", "arguments": {} });
        let asked = client(0).call("tools/call", params.clone()).await;
        assert_eq!(asked["result"]["resultType"] == "input_required", may, "{asked}");
        if may {
            let key = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
            let mut retry = params.clone();
            retry["inputResponses"] = json!({ key: { "action": "accept", "content": { "name": "Ada" } } });
            retry["requestState"] = asked["result"]["requestState"].clone();
            let done = client(1).call("tools/call", retry).await;
            assert!(done.to_string().contains("Hello, Ada!"), "{done}");
        }
    }
}

#[tokio::test]
async fn t84_groups_of_a_login_are_those_that_the_user_has_now() {
    let backend = items("legacy").await;
    let settings = format!("{{ url: \"{}\", era: legacy }}", backend.url());
    let rules = "policies:\n  - allow: { backends: [\"*\"] }\n    when: { groups_any: [maintainers] }\n";
    let world = World::over("embedded", "", |setup| setup.backend("items", &settings).config(rules)).await;
    let ann = member(&world, "ann", &["maintainers"]).await;
    let tokens = world.log_in(&ann, 0).await;
    let tools = async |access: &str| {
        let modern = Modern::new(&world.client(0).bearer(access), "/mcp", json!({}));
        let answer = modern.call("tools/list", json!({})).await;
        names(&answer, "tools", "name").into_iter().filter(|name| name.starts_with("items__")).count()
    };
    assert_eq!(tools(&tokens.access).await, 4);
    // As a login at the provider does that finds other groups: what was given before has to be renewed.
    member(&world, "ann", &["sales"]).await;
    let user = world.records.user(&ann.id).await.unwrap().unwrap();
    assert_eq!(user.groups, BTreeSet::from(["sales".to_owned()]));
    let renewed = world.refresh(0, &tokens.client_id, &tokens.refresh).await;
    assert_eq!(renewed.status(), 200);
    let access = renewed.json().await["access_token"].as_str().unwrap().to_owned();
    assert_eq!(tools(&access).await, 0);
}

#[tokio::test]
async fn an_endpoint_has_the_tools_that_are_selected_for_it_also_where_nobody_is_asked() {
    let (one, two) = (items("legacy").await, items("modern").await);
    let gateway = drawbridge_testkit::gateway::Gateway::setup()
        .url("one", &one.url(), "legacy")
        .url("two", &two.url(), "modern")
        .config(
            "endpoints:\n  some: { backends: [one, two], tools: { allow: [\"one__*\"], deny: [\"*erase*\"] }, \
             resources: { allow: [\"open:*\"] } }\n  single: { backends: [two], tools: { deny: [\"drop_item\"] } }",
        )
        .start()
        .await;
    let some = Modern::new(&gateway.client(), "/mcp/some", json!({}));
    let listed = some.call("tools/list", json!({})).await;
    assert_eq!(names(&listed, "tools", "name"), ["one__get_item", "one__drop_item", "one__look_around"]);
    let resources = names(&some.call("resources/list", json!({})).await, "resources", "uri");
    assert!(resources.iter().all(|uri| !uri.contains("secret:")) && !resources.is_empty(), "{resources:?}");
    for (name, is_there) in [("one__get_item", true), ("one__erase_item", false), ("two__get_item", false)] {
        assert_eq!(some.tool(name, json!({})).await["result"].is_object(), is_there, "{name}");
    }
    let single = Session::open(&gateway.client(), "/mcp/single", "2025-11-25", json!({})).await;
    assert_eq!(single.tool("drop_item", json!({})).await["error"]["code"], -32602);
    assert_eq!(text(&single.tool("get_item", json!({})).await), "get_item");
    let whole = Modern::new(&gateway.client(), "/mcp/two", json!({}));
    assert_eq!(text(&whole.tool("drop_item", json!({})).await), "drop_item");
}

#[tokio::test]
async fn requests_without_an_id_reach_no_backend() {
    let backend = items("legacy").await;
    let settings = format!("{{ url: \"{}\", era: legacy }}", backend.url());
    let world = World::over("tokens", "", |setup| setup.backend("items", &settings).config(RULES)).await;
    let bob = member(&world, "bob", &[]).await;
    let client = client(&world, 0, &bob, &BOTH).await;
    let mut told = 0;
    for (path, version) in
        [("/mcp/items", "2025-11-25"), ("/mcp", "2025-11-25"), ("/mcp/items", "2025-03-26")]
    {
        let session = Session::open(&client, path, version, json!({})).await;
        let prefix = if path == "/mcp" { "items__" } else { "" };
        assert_eq!(text(&session.tool(&format!("{prefix}get_item"), json!({})).await), "get_item");
        for method in ["tools/call", "resources/read", "prompts/get", "tasks/cancel", "x/any"] {
            let params = json!({ "name": "drop_item", "uri": "secret:1", "taskId": "7", "arguments": {} });
            assert_eq!(session.notify(method, params).await.status(), 202);
        }
        // What is a notification arrives, and so would the others have.
        session.notify("notifications/vendor/x", json!({})).await;
        told += 1;
        backend.wait_for_nth("notifications/vendor/x", told).await;
    }
    let called: Vec<String> =
        backend.requests_of("tools/call").iter().map(|request| request.name().to_owned()).collect();
    assert_eq!(called, ["get_item"; 3]);
    for method in ["resources/read", "prompts/get", "tasks/cancel", "x/any"] {
        assert_eq!(backend.count(method), 0, "{method}");
    }
}

#[tokio::test]
async fn a_backend_that_is_denied_is_reached_by_nothing() {
    let backend = items("legacy").await;
    let settings = format!("{{ url: \"{}\", era: legacy }}", backend.url());
    let world = World::over("tokens", "", |setup| {
        setup.backend("items", &settings).config("policies: [{ allow: { backends: [demo] } }]")
    })
    .await;
    let ann = world.user("ann").await;
    let client = client(&world, 0, &ann, &BOTH).await;
    let session = Session::open(&client, "/mcp/items", "2025-11-25", json!({})).await;
    for (method, params) in [
        ("x/any", json!({})),
        ("logging/setLevel", json!({ "level": "debug" })),
        ("tools/call", json!({ "name": ["drop_item"] })),
        ("tools/call", json!({})),
        ("resources/read", json!({ "uri": ["secret:1"] })),
        ("completion/complete", json!({ "ref": { "name": ["secret"] } })),
        ("tasks/list", json!({})),
    ] {
        assert!(session.call(method, params).await["error"].is_object(), "{method}");
    }
    for method in
        ["x/any", "logging/setLevel", "tools/call", "resources/read", "completion/complete", "tasks/list"]
    {
        assert_eq!(backend.count(method), 0, "{method}");
    }
}
