//! Who may use the API.

use axum::body::Body;
use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{Records as _, Token};
use drawbridge_auth::token::{Secret, SecretKind, TokenKind};
use serde_json::json;

use super::world::{FIRST, World, an_admin, request, send};

#[tokio::test]
async fn t89_only_admin_tokens_are_credentials_here() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let (_, personal) = world.personal(&alice).await;
    let service = json!({ "kind": "service", "name": "ci", "service": "ci" });
    let service = world.post("/admin/v1/tokens", service).await.expect(201);
    let service = service["token"].as_str().unwrap().to_owned();
    let jwt = "eyJhbGciOiJFUzI1NiIsInR5cCI6ImF0K2p3dCJ9.eyJpc3MiOiJodHRwOi8vYSJ9.c2ln".to_owned();
    for secret in [personal, service, jwt, "drb_adm_x".to_owned(), String::new()] {
        let answer = world.ask_as(&secret, "GET", "/admin/v1/tokens", &[], None).await;
        answer.problem(401);
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    let none = world.send(request("GET", "/admin/v1/tokens").body(Body::empty()).unwrap()).await;
    none.problem(401);
    let basic = request("GET", "/admin/v1/tokens").header("authorization", "Basic YTpi");
    world.send(basic.body(Body::empty()).unwrap()).await.problem(401);
    assert!(!world.lets_in(&world.admin).await, "an admin token is for the admin API alone");
}

#[tokio::test]
async fn reading_is_one_right_and_changing_another() {
    let world = World::new().await;
    let reads = world.admin_with(&["admin:read"]).await;
    world.ask_as(&reads, "GET", "/admin/v1/tokens", &[], None).await.expect(200);
    let new = json!({ "kind": "service", "name": "ci", "service": "ci" });
    let refused = world.ask_as(&reads, "POST", "/admin/v1/tokens", &[], Some(new.clone())).await;
    assert!(refused.problem(403).contains("admin:tokens"));
    let manages = world.admin_with(&["admin:tokens"]).await;
    world.ask_as(&manages, "POST", "/admin/v1/tokens", &[], Some(new)).await.expect(201);
}

#[tokio::test]
async fn nobody_gives_more_than_they_have() {
    let world = World::new().await;
    let manages = world.admin_with(&["admin:tokens"]).await;
    let with = |scope: &str| Some(json!({ "kind": "admin", "name": "other", "scopes": [scope] }));
    let ask = async |body| world.ask_as(&manages, "POST", "/admin/v1/tokens", &[], body).await;
    ask(with("admin:*")).await.problem(403);
    ask(with("admin:read")).await.expect(201);
    ask(with("admin:tokens")).await.expect(201);
    let all = world.post("/admin/v1/tokens", with("admin:*").unwrap()).await.expect(201);
    let path = format!("/admin/v1/tokens/{}/rotate", all["id"].as_str().unwrap());
    world.ask_as(&manages, "POST", &path, &[], Some(json!({}))).await.problem(403);
    world.ask("POST", &path, Some(json!({}))).await.expect(201);
}

#[tokio::test]
async fn a_revoked_expired_or_distant_admin_token_is_refused() {
    let world = World::new().await;
    let other = world.admin_with(&["admin:*"]).await;
    let list = async |secret: &str| world.ask_as(secret, "GET", "/admin/v1/users", &[], None).await;
    list(&other).await.expect(200);
    let found = world.post("/admin/v1/tokens/revoke", json!({ "token": other })).await;
    assert_eq!(found.status(), 204);
    list(&other).await.problem(401);

    let variants = [
        Token { expires_at: Some(Utc::now() - TimeDelta::seconds(1)), ..an_admin() },
        Token { networks: ["10.0.0.0/8".to_owned()].into(), ..an_admin() },
    ];
    for token in variants {
        let secret = Secret::fresh(SecretKind::Admin);
        let token = Token { scopes: ["admin:*".to_owned()].into(), ..token };
        world.records.add_token(&token, &secret.hash()).await.unwrap();
        list(secret.expose()).await.problem(401);
    }
}

#[tokio::test]
async fn t90_the_first_token_works_until_there_is_another() {
    let world = World::new().await;
    // The world's own admin token is one already.
    world.ask_as(FIRST, "GET", "/admin/v1/tokens", &[], None).await.problem(401);
    world.post("/admin/v1/tokens/revoke", json!({ "token": world.admin })).await;

    world.ask_as(FIRST, "GET", "/admin/v1/tokens", &[], None).await.expect(200);
    let mut wrong = FIRST.to_owned();
    wrong.replace_range(31.., "0");
    world.ask_as(&wrong, "GET", "/admin/v1/tokens", &[], None).await.problem(401);
    let named = Token { name: "bootstrap".to_owned(), ..an_admin() };
    world.records.add_token(&named, &Secret::fresh(SecretKind::Admin).hash()).await.unwrap();
    let new = json!({ "kind": "admin", "name": "ops", "scopes": ["admin:*"] });
    let made = world.ask_as(FIRST, "POST", "/admin/v1/tokens", &[], Some(new)).await.expect(201);
    assert_eq!(made["created_by"], "bootstrap");
    world.ask_as(FIRST, "GET", "/admin/v1/tokens", &[], None).await.problem(401);
    assert!(world.records.has_token(TokenKind::Admin, "", Utc::now()).await.unwrap());
}

#[tokio::test]
async fn whoever_guesses_is_told_to_slow_down() {
    let world = World::new().await;
    for _ in 0..20 {
        world.ask_as("drb_adm_no", "GET", "/admin/v1/tokens", &[], None).await.problem(401);
    }
    let limited = world.ask_as("drb_adm_no", "GET", "/admin/v1/tokens", &[], None).await;
    limited.problem(429);
    assert!(limited.header("retry-after").parse::<u64>().unwrap() >= 1);
    world.get("/admin/v1/tokens").await.expect(200);
}

#[tokio::test]
async fn whoever_has_the_database_is_not_asked() {
    let world = World::new().await;
    let new = json!({ "kind": "admin", "name": "ops", "scopes": ["admin:*"] });
    let request = request("POST", "/admin/v1/tokens").header("content-type", "application/json");
    let request = request.body(Body::from(new.to_string())).unwrap();
    assert_eq!(send(&world.for_anybody(), request).await.expect(201)["created_by"], "cli");
}
