//! Tokens, users, grants and clients, from their beginning to their end.

use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{Grant, OAuthClient, Records as _};
use drawbridge_auth::token::{self, SecretKind};
use serde_json::{Value, json};

use super::world::World;

#[tokio::test]
async fn t87_a_secret_is_shown_once_and_kept_nowhere() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let new = json!({ "kind": "personal", "name": "laptop", "owner": alice });
    let answer = world.post("/admin/v1/tokens", new).await;
    assert_eq!(answer.header("cache-control"), "no-store");
    let made = answer.expect(201);
    let secret = made["token"].as_str().unwrap();
    assert_eq!(token::parse(secret), Some(SecretKind::Personal));
    assert_eq!(made["hint"], secret[44..]);
    assert_eq!(made["scopes"], json!(["mcp:read", "mcp:write"]));
    assert_eq!(made["endpoints"], json!([]));
    assert_eq!(made["expires_in_days"], 89);
    assert!(world.lets_in(secret).await);

    let path = format!("/admin/v1/tokens/{}", made["id"].as_str().unwrap());
    let (list, one) = (world.get("/admin/v1/tokens").await, world.get(&path).await);
    assert!(one.expect(200).get("token").is_none() && !one.header("etag").is_empty());
    let hash: String = token::hash(secret).0.iter().map(|byte| format!("{byte:02x}")).collect();
    for answer in [list.text(), one.text()] {
        assert!(answer.contains("laptop") && !answer.contains(secret) && !answer.contains(&hash));
    }
    assert!(!world.get("/admin/v1/audit").await.text().contains(secret));
}

#[tokio::test]
async fn times_can_be_texts_numbers_or_nothing() {
    let world = World::new().await;
    let days = async |expires_in: Value| {
        let new = json!({ "kind": "service", "name": "ci", "service": "ci", "expires_in": expires_in });
        world.post("/admin/v1/tokens", new).await.expect(201)["expires_in_days"].clone()
    };
    assert_eq!(days(json!("10d 1s")).await, 10);
    assert_eq!(days(json!(86_500)).await, 1);
    assert_eq!(days(Value::Null).await, Value::Null);
}

#[tokio::test]
async fn a_token_that_is_revoked_is_refused_at_once_and_stays_so() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let (id, secret) = world.personal(&alice).await;
    assert!(world.lets_in(&secret).await);
    let path = format!("/admin/v1/tokens/{id}");
    for _ in 0..2 {
        assert_eq!(world.ask("DELETE", &path, None).await.status(), 204);
        assert!(!world.lets_in(&secret).await);
    }
    let shown = world.get(&path).await.expect(200);
    assert_eq!(shown["status"], "revoked");
    assert!(shown["revoked_by"].as_str().unwrap().starts_with("token:"));
}

#[tokio::test]
async fn a_secret_that_was_found_is_revoked_and_nobody_learns_what_it_was() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let (_, secret) = world.personal(&alice).await;
    for found in [secret.as_str(), "drb_pat_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA4NBV5w", "something else"] {
        let answer = world.post("/admin/v1/tokens/revoke", json!({ "token": found })).await;
        assert_eq!(answer.status(), 204);
        assert!(answer.body.is_empty());
    }
    assert!(!world.lets_in(&secret).await);
}

#[tokio::test]
async fn lists_have_filters_and_parts() {
    let world = World::new().await;
    let (alice, bob) = (world.user("alice").await, world.user("bob").await);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, world.personal(&alice).await.0);
    }
    world.personal(&bob).await;
    world.ask("DELETE", &format!("/admin/v1/tokens/{}", ids[0]), None).await;
    let count = async |query: &str| {
        let list = world.get(&format!("/admin/v1/tokens?{query}")).await.expect(200);
        list["items"].as_array().unwrap().len()
    };
    assert_eq!(count(&format!("owner={alice}")).await, 5);
    assert_eq!(count(&format!("owner={alice}&status=active")).await, 4);
    assert_eq!(count(&format!("owner={alice}&status=expired,revoked")).await, 1);
    assert_eq!(count("kind=admin").await, 1);
    assert_eq!(count("kind=personal").await, 6);

    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/admin/v1/tokens?owner={alice}&limit=2{cursor}");
        let part = world.get(&path).await.expect(200);
        seen.extend(
            part["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = part["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn a_request_with_a_key_is_not_done_twice() {
    let world = World::new().await;
    let new = json!({ "kind": "service", "name": "ci", "service": "ci" });
    let ask = async |key: &str| {
        let headers = [("idempotency-key", key)];
        world.ask_as(&world.admin, "POST", "/admin/v1/tokens", &headers, Some(new.clone())).await
    };
    ask("one").await.expect(201);
    assert!(ask("one").await.problem(409).contains("can't be shown again"));
    ask("two").await.expect(201);
    ask("").await.problem(400);
    let list = world.get("/admin/v1/tokens?kind=service").await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_token_gives_way_to_its_successor() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let (id, old) = world.personal(&alice).await;
    let path = format!("/admin/v1/tokens/{id}/rotate");
    assert!(world.lets_in(&old).await);
    assert!(world.post(&path, json!({ "overlap_seconds": 86_401 })).await.problem(422).contains("86400"));
    let headers = [("if-match", "\"7\"")];
    world.ask_as(&world.admin, "POST", &path, &headers, Some(json!({}))).await.problem(412);
    let tag = world.get(&format!("/admin/v1/tokens/{id}")).await.header("etag").to_owned();
    let headers = [("if-match", tag.as_str())];
    let made = world.ask_as(&world.admin, "POST", &path, &headers, Some(json!({}))).await.expect(201);
    let new = made["token"].as_str().unwrap();
    assert!(world.lets_in(&old).await && world.lets_in(new).await);
    assert_eq!(made["name"], "laptop");
    let shown = world.get(&format!("/admin/v1/tokens/{id}")).await.expect(200);
    assert_eq!(shown["rotated_to"], made["id"]);
    assert_eq!(shown["expires_in_days"], 0);
    world.post(&path, json!({})).await.problem(409);

    let again = format!("/admin/v1/tokens/{}/rotate", made["id"].as_str().unwrap());
    world.post(&again, json!({ "overlap_seconds": 0 })).await.expect(201);
    assert!(!world.lets_in(new).await, "without an overlap it ends at once");
}

#[tokio::test]
async fn a_user_is_made_brought_up_to_date_disabled_and_enabled() {
    let world = World::new().await;
    let new = json!({ "subject": "alice", "name": "Alice", "email": "a@example.com", "groups": ["staff"] });
    let made = world.post("/admin/v1/users", new).await.expect(201);
    assert_eq!(made["issuer"], "local");
    let id = made["id"].as_str().unwrap();
    let changed = json!({ "subject": "alice", "groups": ["staff", "ops"] });
    assert_eq!(world.post("/admin/v1/users", changed).await.expect(200)["id"], made["id"]);
    let found = world.get("/admin/v1/users?subject=alice").await.expect(200);
    assert_eq!(found["items"][0]["groups"], json!(["ops", "staff"]));
    assert_eq!(world.get("/admin/v1/users?subject=bob").await.expect(200)["items"], json!([]));

    let (_, secret) = world.personal(id).await;
    assert!(world.lets_in(&secret).await);
    let path = format!("/admin/v1/users/{id}");
    let tag = world.get(&path).await.header("etag").to_owned();
    let (disable, enable) = (format!("{path}/disable"), format!("{path}/enable"));
    let headers = [("if-match", tag.as_str())];
    let disabled = world.ask_as(&world.admin, "POST", &disable, &headers, None).await;
    assert!(disabled.expect(200)["disabled_at"].is_string());
    assert!(!world.lets_in(&secret).await);
    world.ask_as(&world.admin, "POST", &enable, &headers, None).await.problem(412);
    let owned = json!({ "kind": "personal", "name": "a", "owner": id });
    world.post("/admin/v1/tokens", owned).await.problem(422);
    assert_eq!(world.ask("POST", &enable, None).await.expect(200)["disabled_at"], Value::Null);
    world.personal(id).await;
}

fn grant(user: &str, client: &str) -> Grant {
    let now = Utc::now();
    Grant {
        id: drawbridge_auth::fresh_id(),
        user: user.to_owned(),
        client: client.to_owned(),
        client_name: None,
        resource: "http://a/mcp".to_owned(),
        scopes: ["mcp:read".to_owned()].into(),
        auth_time: now,
        created_at: now,
        last_used_at: now,
        expires_at: now + TimeDelta::days(1),
        revoked_at: None,
        revoke_reason: None,
    }
}

#[tokio::test]
async fn all_that_a_user_has_is_revoked_at_once() {
    let world = World::new().await;
    let (alice, bob) = (world.user("alice").await, world.user("bob").await);
    let mut secrets = Vec::new();
    for _ in 0..3 {
        secrets.push(world.personal(&alice).await.1);
    }
    let (_, bobs) = world.personal(&bob).await;
    world.records.redeem(&grant(&alice, "c"), None).await.unwrap();
    let revoked = world.ask("POST", &format!("/admin/v1/users/{alice}/revoke-all"), None).await.expect(200);
    assert_eq!(revoked, json!({ "tokens": 3, "grants": 1 }));
    for secret in secrets {
        assert!(!world.lets_in(&secret).await);
    }
    assert!(world.lets_in(&bobs).await);
    let again = world.ask("POST", &format!("/admin/v1/users/{alice}/revoke-all"), None).await.expect(200);
    assert_eq!(again, json!({ "tokens": 0, "grants": 0 }));
}

#[tokio::test]
async fn grants_are_listed_and_end() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let (one, other) = (grant(&alice, "c"), grant(&alice, "d"));
    world.records.redeem(&one, None).await.unwrap();
    world.records.redeem(&other, None).await.unwrap();
    let count = async |query: &str| {
        let list = world.get(&format!("/admin/v1/grants?{query}")).await.expect(200);
        list["items"].as_array().unwrap().len()
    };
    assert_eq!(count("client=c").await, 1);
    let path = format!("/admin/v1/grants/{}", one.id);
    assert_eq!(world.ask("DELETE", &path, None).await.status(), 204);
    assert_eq!(world.ask("DELETE", &path, None).await.status(), 204);
    let key = drawbridge_auth::revoking::RevocationKey::grant(&one.id);
    assert!(world.revocations.is_revoked(&key));
    assert_eq!(world.get(&path).await.expect(200)["revoke_reason"], "admin");
    assert_eq!(count(&format!("user={alice}")).await, 1);
    assert_eq!(count(&format!("user={alice}&ended=true")).await, 2);
}

#[tokio::test]
async fn a_client_is_disabled_enabled_and_forgotten_with_its_grants() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let client = OAuthClient {
        id: "client-1".to_owned(),
        metadata: json!({ "client_name": "Host" }),
        created_at: Utc::now(),
        last_used_at: None,
        disabled_at: None,
    };
    world.records.add_client(&client, &[7; 32], None).await.unwrap();
    let granted = grant(&alice, "client-1");
    world.records.redeem(&granted, None).await.unwrap();
    let path = "/admin/v1/clients/client-1";
    let tag = world.get(path).await.header("etag").to_owned();
    assert!(world.ask("POST", &format!("{path}/disable"), None).await.expect(200)["disabled_at"].is_string());
    let headers = [("if-match", tag.as_str())];
    world.ask_as(&world.admin, "POST", &format!("{path}/enable"), &headers, None).await.problem(412);
    let enabled = world.ask("POST", &format!("{path}/enable"), None).await.expect(200);
    assert_eq!(enabled["disabled_at"], Value::Null);
    let list = world.get("/admin/v1/clients").await.expect(200);
    assert_eq!(list["items"][0]["metadata"]["client_name"], "Host");

    assert_eq!(world.ask("DELETE", path, None).await.status(), 204);
    world.get(path).await.problem(404);
    world.ask("DELETE", path, None).await.problem(404);
    assert!(world.records.grant(&granted.id).await.unwrap().unwrap().revoked_at.is_some());
}
