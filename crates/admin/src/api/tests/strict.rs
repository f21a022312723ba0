//! What can't be read, done or found.

use axum::body::Body;
use serde_json::{Value, json};

use super::world::{Answer, World, request};

async fn raw(world: &World, method: &str, path: &str, kind: &str, body: &str) -> Answer {
    let request = request(method, path).header("authorization", format!("Bearer {}", world.admin));
    let request = request.header("content-type", kind).body(Body::from(body.to_owned())).unwrap();
    world.send(request).await
}

#[tokio::test]
async fn bodies_are_read_strictly() {
    let world = World::new().await;
    let post = async |kind, body: &str| raw(&world, "POST", "/admin/v1/tokens", kind, body).await;
    let json = "application/json";
    post("text/plain", "{}").await.problem(415);
    post("application/x-www-form-urlencoded", "kind=admin").await.problem(415);
    assert!(post(json, "{").await.problem(400).contains("line 1"));
    assert!(post(json, "").await.problem(400).contains("body"));
    let unknown = post(json, r#"{"kind":"admin","name":"a","scope":["admin:*"]}"#).await.problem(400);
    assert!(unknown.contains("`scope`") && unknown.contains("`scopes`"), "{unknown}");
    assert!(post(json, r#"{"kind":"root","name":"a"}"#).await.problem(400).contains("personal"));
    assert!(post(json, r#"{"kind":"admin"}"#).await.problem(400).contains("`name`"));
    let large = format!(r#"{{"kind":"admin","name":"{}"}}"#, "a".repeat(64 * 1024));
    assert!(post(json, &large).await.problem(413).contains("64 KiB"));
    post("application/json; charset=utf-8", "{").await.problem(400);
}

#[tokio::test]
async fn paths_methods_and_queries_are_known_or_refused() {
    let world = World::new().await;
    for path in
        ["/admin/v1", "/admin/v1/", "/admin/v1/nothing", "/admin/v1/tokens/a/b/c", "/admin/v1/tokens/"]
    {
        world.get(path).await.problem(404);
    }
    let wrong = world.ask("PUT", "/admin/v1/tokens", None).await;
    wrong.problem(405);
    assert!(wrong.header("allow").contains("GET") && wrong.header("allow").contains("POST"));
    world.ask("DELETE", "/admin/v1/users", None).await.problem(405);
    for query in ["limit=0", "limit=201", "limit=x", "page=2", "status=dead", "kind=root"] {
        world.get(&format!("/admin/v1/tokens?{query}")).await.problem(400);
    }
    assert!(world.get("/admin/v1/users?owner=a").await.problem(400).contains("owner"));
    world.get("/admin/v1/audit?cursor=nonsense").await.problem(400);
    world.get("/admin/v1/users?issuer=local").await.problem(400);
    for path in ["tokens/x", "users/x", "grants/x", "clients/x", "tokens/a%00b"] {
        world.get(&format!("/admin/v1/{path}")).await.problem(404);
    }
    for path in ["tokens/x", "grants/x", "clients/x"] {
        world.ask("DELETE", &format!("/admin/v1/{path}"), None).await.problem(404);
    }
    for path in ["users/x/disable", "users/x/enable", "users/x/revoke-all", "clients/x/disable"] {
        world.ask("POST", &format!("/admin/v1/{path}"), None).await.problem(404);
    }
    world.post("/admin/v1/tokens/x/rotate", json!({})).await.problem(404);
}

#[tokio::test]
async fn a_token_that_can_not_be_meant_is_refused_with_the_member_at_fault() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let personal = |more: Value| {
        let mut body = json!({ "kind": "personal", "name": "a", "owner": alice });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let cases = [
        (personal(json!({ "owner": null })), "owner"),
        (personal(json!({ "owner": "nobody" })), "owner"),
        (personal(json!({ "service": "ci" })), "owner"),
        (personal(json!({ "name": "" })), "name"),
        (personal(json!({ "name": "a\nb" })), "name"),
        (personal(json!({ "name": " a" })), "name"),
        (personal(json!({ "scopes": [] })), "scopes"),
        (personal(json!({ "scopes": ["admin:read"] })), "scopes"),
        (personal(json!({ "endpoints": ["A"] })), "endpoints"),
        (personal(json!({ "endpoints": ["a*"] })), "endpoints"),
        (personal(json!({ "networks": ["10.0.0.1"] })), "networks"),
        (personal(json!({ "networks": ["10.0.0.0/33"] })), "networks"),
        (personal(json!({ "groups": ["staff"] })), "groups"),
        (personal(json!({ "expires_in": null })), "expires_in"),
        (personal(json!({ "expires_in": 0 })), "expires_in"),
        (personal(json!({ "expires_in": "367d" })), "expires_in"),
        (json!({ "kind": "admin", "name": "a" }), "scopes"),
        (json!({ "kind": "admin", "name": "a", "scopes": ["mcp:read"] }), "scopes"),
        (json!({ "kind": "admin", "name": "bootstrap", "scopes": ["admin:read"] }), "name"),
        (json!({ "kind": "admin", "name": "a", "scopes": ["admin:read"], "expires_in": null }), "expires_in"),
        (json!({ "kind": "admin", "name": "a", "scopes": ["admin:read"], "endpoints": ["*"] }), "endpoints"),
        (json!({ "kind": "admin", "name": "a", "scopes": ["admin:read"], "service": "x" }), "kind"),
        (json!({ "kind": "service", "name": "a" }), "service"),
        (json!({ "kind": "service", "name": "a", "service": "ci", "scopes": ["login"] }), "scopes"),
    ];
    for (body, member) in cases {
        let detail = world.post("/admin/v1/tokens", body.clone()).await.problem(422);
        assert!(detail.starts_with(member), "{body}: {detail}");
    }
    let wrong = personal(json!({ "expires_in": "soon" }));
    assert!(world.post("/admin/v1/tokens", wrong).await.problem(400).contains("90d"));
}

#[tokio::test]
async fn a_database_that_is_away_is_said_to_be() {
    let world = World::new().await;
    world.records.close().await;
    let answer = world.get("/admin/v1/tokens").await;
    answer.problem(503);
    assert_eq!(answer.header("retry-after"), "2");
}
