//! What a client carries back is good in its own hands alone, and nothing of its credential goes further.

use std::collections::HashSet;

use drawbridge_testkit::backend::{Backend, Reply, Request, legacy};
use drawbridge_testkit::client::{Client, Modern, Session};
use serde_json::{Value, json};

use super::world::World;

fn modern(client: &Client) -> Modern {
    Modern::new(client, "/mcp", json!({ "elicitation": { "form": {}, "url": {} } }))
}

#[tokio::test]
async fn t38_the_state_of_a_call_is_good_for_its_own_caller_and_its_own_call() {
    let world = World::one().await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let anns = modern(&world.client(0).bearer(&world.token(&ann).await));
    let bobs = modern(&world.client(0).bearer(&world.token(&bob).await));
    let params = json!({ "name": "elicit", "arguments": {} });
    let asked = anns.call("tools/call", params.clone()).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answer = json!({ key: { "action": "accept", "content": { "name": "Ada" } } });
    let with = |params: &Value, state: &Value| {
        let mut params = params.clone();
        params["inputResponses"] = answer.clone();
        params["requestState"] = state.clone();
        params
    };
    let state = asked["requestState"].as_str().unwrap();
    let mut flipped = state.to_owned();
    let at = state.len() / 2;
    flipped.replace_range(at..=at, if &state[at..=at] == "A" { "B" } else { "A" });
    let other = json!({ "name": "elicit", "arguments": { "other": true } });
    for (client, params) in [
        (&bobs, with(&params, &asked["requestState"])),
        (&anns, with(&other, &asked["requestState"])),
        (&anns, with(&params, &json!(flipped))),
    ] {
        let refused = client.call("tools/call", params).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let done = anns.call("tools/call", with(&params, &asked["requestState"])).await;
    assert!(done.to_string().contains("Hello, Ada!"), "{done}");
}

#[tokio::test]
async fn t41_session_ids_have_no_pattern_and_none_comes_twice() {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let client = world.client(0).bearer(&world.token(&ann).await);
    let (mut ids, mut begins) = (HashSet::new(), HashSet::new());
    for _ in 0..300 {
        let session = Session::open(&client, "/mcp", "2025-11-25", json!({})).await;
        // Behind the name of the key: a nonce of 192 bits, and what it seals.
        let body = session.id.split_once('.').unwrap().1.to_owned();
        assert!(body.len() > 64, "{body}");
        begins.insert(body[..16].to_owned());
        ids.insert(session.id);
    }
    assert_eq!((ids.len(), begins.len()), (300, 300));
}

#[tokio::test]
async fn t42_a_backend_sees_its_own_credential_and_nothing_of_the_callers() {
    let backend = Backend::start(async |request: Request| legacy(&request, "upstream-session")).await;
    let settings =
        format!("{{ url: \"{}\", era: legacy, headers: {{ authorization: Bearer own }} }}", backend.url());
    let world = World::over("embedded", "", |setup| setup.backend("scripted", &settings)).await;
    let ann = world.user("ann").await;
    let (_, everywhere) =
        world.token_with(&ann, &["mcp:write"], |token| token.endpoints = ["*".to_owned()].into()).await;
    let client = world.client(0).bearer(everywhere.expose());
    let session = Session::open(&client, "/mcp/scripted", "2025-11-25", json!({})).await;
    let headers = session.headers();
    let mut all: Vec<(&str, &str)> = headers.to_vec();
    all.extend([
        ("cookie", "planted=1"),
        ("x-forwarded-for", "203.0.113.7"),
        ("forwarded", "for=203.0.113.7"),
    ]);
    all.push(("proxy-authorization", "Basic planted"));
    let body =
        drawbridge_testkit::client::request(7, "tools/call", json!({ "name": "echo", "arguments": {} }));
    assert_eq!(client.post("/mcp/scripted", &all, body.to_string()).await.status(), 200);
    backend.wait_for("tools/call").await;
    for request in backend.requests() {
        assert_eq!(request.header("authorization"), "Bearer own");
        let text = format!("{:?} {}", request.headers, String::from_utf8_lossy(&request.text));
        for planted in [everywhere.expose(), &session.id, "planted", "203.0.113.7"] {
            assert!(!text.contains(planted), "{planted} in {text}");
        }
    }
}

#[tokio::test]
async fn t43_a_backend_that_wants_a_login_does_not_send_the_host_to_log_in_here() {
    let backend = Backend::start(async |request: Request| {
        if request.rpc() == "tools/call" {
            return Reply::status(401)
                .header("www-authenticate", "Bearer resource_metadata=\"https://theirs\"");
        }
        legacy(&request, "upstream-session")
    })
    .await;
    let url = backend.url();
    let world = World::over("embedded", "", |setup| setup.url("scripted", &url, "legacy")).await;
    let ann = world.user("ann").await;
    let (_, token) =
        world.token_with(&ann, &["mcp:write"], |token| token.endpoints = ["*".to_owned()].into()).await;
    let client = world.client(0).bearer(token.expose());
    let session = Session::open(&client, "/mcp/scripted", "2025-11-25", json!({})).await;
    let reply = session.request("tools/call", json!({ "name": "echo", "arguments": {} })).await;
    assert_eq!((reply.status(), reply.header("www-authenticate")), (200, None));
    let answer = reply.answer().await;
    assert!(answer["error"].is_object() && !answer.to_string().contains("theirs"), "{answer}");
}

#[tokio::test]
async fn t39_a_cursor_of_a_merged_list_is_good_for_its_own_caller_and_nobody_else() {
    let paged = |name: &'static str| async move {
        Backend::start(move |request: Request| async move {
            match (request.rpc(), &request.body["params"]["cursor"]) {
                ("tools/list", cursor) => {
                    let page = if cursor.is_string() { "second" } else { "first" };
                    let tool =
                        json!({ "name": format!("{name}-{page}"), "inputSchema": { "type": "object" } });
                    let mut list = json!({ "tools": [tool] });
                    if page == "first" {
                        list["nextCursor"] = json!("2");
                    }
                    Reply::result(&request, list)
                }
                _ => legacy(&request, "s"),
            }
        })
        .await
    };
    let (one, two) = (paged("one").await, paged("two").await);
    let (first, second) = (one.url(), two.url());
    let world =
        World::over("embedded", "", |setup| setup.url("one", &first, "legacy").url("two", &second, "legacy"))
            .await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let mut clients = Vec::new();
    for user in [&ann, &bob] {
        clients.push(Modern::new(&world.client(0).bearer(&world.token(user).await), "/mcp", json!({})));
    }
    let [anns, bobs] = &clients[..] else { panic!() };
    let page = anns.call("tools/list", json!({})).await;
    let cursor = json!({ "cursor": page["result"]["nextCursor"].as_str().unwrap() });
    let foreign = bobs.call("tools/list", cursor.clone()).await;
    let unknown = bobs.call("tools/list", json!({ "cursor": "nonsense" })).await;
    assert_eq!(foreign["error"], unknown["error"], "{foreign}");
    assert_eq!(foreign["error"]["code"], -32602);
    let next = anns.call("tools/list", cursor).await;
    assert!(next.to_string().contains("one-second") && next.to_string().contains("two-second"), "{next}");
}

#[tokio::test]
async fn r096_r099_what_is_kept_for_one_caller_is_not_given_to_another() {
    let backend = Backend::start(async |request: Request| match request.rpc() {
        "tools/list" => {
            let tool = json!({ "name": "mine", "inputSchema": { "type": "object" } });
            let list = json!({ "tools": [tool], "ttlMs": 60_000, "cacheScope": "private", "resultType": "complete" });
            Reply::result(&request, list)
        }
        "prompts/list" => {
            let list =
                json!({ "prompts": [], "ttlMs": 60_000, "cacheScope": "public", "resultType": "complete" });
            Reply::result(&request, list)
        }
        _ => drawbridge_testkit::backend::modern(&request),
    })
    .await;
    let url = backend.url();
    let world = World::over("embedded", "", |setup| setup.url("scripted", &url, "modern")).await;
    for name in ["ann", "bob"] {
        let user = world.user(name).await;
        let endpoints = ["*".to_owned()].into();
        let (_, token) = world.token_with(&user, &["mcp:read"], |token| token.endpoints = endpoints).await;
        let client = Modern::new(&world.client(0).bearer(token.expose()), "/mcp/scripted", json!({}));
        for _ in 0..3 {
            let list = client.call("tools/list", json!({})).await;
            assert_eq!(list["result"]["cacheScope"], "private", "{list}");
            client.call("prompts/list", json!({})).await;
        }
    }
    assert_eq!(backend.requests_of("tools/list").len(), 2, "once for each of them");
    assert_eq!(backend.requests_of("prompts/list").len(), 1, "once for all");
}
