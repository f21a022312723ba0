//! Services that ask what a token is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::world::{P, R, World, encoded, oauth_error, post_form};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn t85_a_named_service_is_told_what_a_token_is_and_nobody_else() {
    let more = format!("  introspection_clients: [{{ id: tickets, secret: \"{SECRET}\" }}]\n");
    let world = World::with("embedded", &more).await;
    let client = world.client(0);
    let metadata = client.get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    assert_eq!(metadata["introspection_endpoint"], format!("{P}/introspect"));
    let user = world.user("ann").await;
    let tokens = world.log_in(&user, 0).await;
    let ask = async |token: &str| -> Value {
        let basic = format!("Basic {}", STANDARD.encode(format!("tickets:{SECRET}")));
        let headers = [("content-type", "application/x-www-form-urlencoded"), ("authorization", &basic)];
        let reply = client.post("/introspect", &headers, encoded(&[("token", token)])).await;
        assert_eq!((reply.status(), reply.header("cache-control")), (200, Some("no-store")));
        reply.json().await
    };

    let said = ask(&tokens.access).await;
    for (name, value) in [
        ("active", json!(true)),
        ("iss", json!(P)),
        ("sub", json!(user.id)),
        ("aud", json!(R)),
        ("client_id", json!(tokens.client_id)),
        ("scope", json!("mcp:read mcp:write")),
        ("token_type", json!("Bearer")),
    ] {
        assert_eq!(said[name], value, "{said}");
    }
    assert_eq!(said["exp"].as_i64().unwrap() - said["iat"].as_i64().unwrap(), 3600);
    let issued = world.token(&user).await;
    let said = ask(&issued).await;
    assert_eq!((&said["active"], &said["sub"], &said["aud"]), (&json!(true), &json!(user.id), &json!(R)));
    let sign_in = world.sign_in_token(&user).await;
    assert_eq!(ask(&sign_in).await["scope"], "login");

    let none = json!({ "active": false });
    for token in [tokens.refresh.as_str(), "nonsense", "a.b.c", "drb_pat_x", &tokens.access[1..]] {
        assert_eq!(ask(token).await, none, "{token}");
    }
    let form = [("client_id", tokens.client_id.as_str()), ("token", &tokens.refresh)];
    assert_eq!(post_form(&client, "/revoke", &form).await.status(), 200);
    assert_eq!(ask(&tokens.access).await, none);

    for credentials in [
        &[("client_id", tokens.client_id.as_str())][..],
        &[("client_id", "tickets")],
        &[("client_id", "tickets"), ("client_secret", "wrong")],
        &[],
    ] {
        let mut form = credentials.to_vec();
        form.push(("token", &issued));
        let reply = post_form(&client, "/introspect", &form).await;
        assert_eq!(oauth_error(reply).await, (401, "invalid_client".to_owned()));
    }
    let form = [("client_id", "tickets"), ("client_secret", SECRET), ("token", &issued)];
    assert_eq!(post_form(&client, "/introspect", &form).await.json().await["active"], true);
}

#[tokio::test]
async fn t85_without_a_named_service_there_is_no_such_endpoint() {
    let world = World::one().await;
    let client = world.client(0);
    let metadata = client.get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    assert_eq!(metadata["introspection_endpoint"], Value::Null);
    assert_eq!(metadata["client_id_metadata_document_supported"], true);
    assert_eq!(post_form(&client, "/introspect", &[("token", "x")]).await.status(), 404);
}
