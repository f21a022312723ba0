//! What administrators do about logins: grants, OAuth clients and users.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::Operator;
use super::world::{Tokens, World, oauth_error};

/// The administrator whose token the first instance printed when it found none.
fn first_administrator(world: &World) -> Operator {
    let said: String = world.gateways.iter().map(|gateway| gateway.program.stderr()).collect();
    let printed: Vec<&str> = said.split_whitespace().filter(|word| word.starts_with("drb_adm_")).collect();
    assert_eq!(printed.len(), 1, "it is shown once, by one instance");
    Operator::with(&world.gateways[0], printed[0])
}

/// The access token is refused at both instances within a second, and its refresh token is dead.
async fn has_ended(world: &World, tokens: &Tokens) {
    let since = Instant::now();
    for number in 0..2 {
        loop {
            let asked = since.elapsed();
            if world.status(number, "/mcp", &tokens.access).await == 401 {
                break;
            }
            assert!(asked < Duration::from_secs(1), "instance {number} after {asked:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let again = oauth_error(world.refresh(1, &tokens.client_id, &tokens.refresh).await).await;
    assert!(again.1 == "invalid_grant" || again.1 == "invalid_client", "{again:?}");
}

#[tokio::test]
async fn t89_an_access_token_is_no_credential_for_the_admin_api() {
    let world = World::several(2).await;
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    for secret in [&tokens.access, &tokens.refresh] {
        let other = Operator::with(&world.gateways[0], secret);
        assert_eq!(other.ask(Method::GET, "tokens", None).await.status(), 401);
    }
    assert_eq!(world.status(1, "/mcp", &tokens.access).await, 200);
}

#[tokio::test]
async fn logins_end_by_grant_by_secret_by_client_and_by_user() {
    let world = World::several(2).await;
    let operator = first_administrator(&world);
    let ann = world.user("ann").await;
    let grants = format!("grants?user={}", ann.id);
    let log_in = async || {
        let tokens = world.log_in(&ann, 0).await;
        assert_eq!(world.status(1, "/mcp", &tokens.access).await, 200);
        tokens
    };

    let tokens = log_in().await;
    let listed = operator.ask(Method::GET, &grants, None).await.json().await;
    assert_eq!(listed["items"][0]["client"], tokens.client_id);
    let path = format!("grants/{}", listed["items"][0]["id"].as_str().unwrap());
    assert_eq!(operator.ask(Method::DELETE, &path, None).await.status(), 204);
    has_ended(&world, &tokens).await;

    let tokens = log_in().await;
    let found = Some(json!({ "token": tokens.refresh }));
    assert_eq!(operator.ask(Method::POST, "tokens/revoke", found).await.status(), 204);
    has_ended(&world, &tokens).await;

    let tokens = log_in().await;
    let client = format!("clients/{}", tokens.client_id);
    let disabled = operator.ask(Method::POST, &format!("{client}/disable"), None).await;
    assert_eq!(disabled.status(), 200);
    let refused = oauth_error(world.refresh(1, &tokens.client_id, &tokens.refresh).await).await;
    assert_eq!(refused.1, "invalid_client");
    assert_eq!(operator.ask(Method::POST, &format!("{client}/enable"), None).await.status(), 200);
    assert_eq!(world.refresh(1, &tokens.client_id, &tokens.refresh).await.status(), 200);
    assert_eq!(operator.ask(Method::DELETE, &client, None).await.status(), 204);
    has_ended(&world, &tokens).await;

    let tokens = log_in().await;
    let all = format!("users/{}/revoke-all", ann.id);
    let revoked = operator.ask(Method::POST, &all, None).await.json().await;
    assert_eq!(revoked["grants"], 1, "{revoked}");
    has_ended(&world, &tokens).await;
    let listed = operator.ask(Method::GET, &grants, None).await.json().await;
    assert_eq!(listed["items"], Value::Array(Vec::new()));

    let tokens = log_in().await;
    let disabled = operator.ask(Method::POST, &format!("users/{}/disable", ann.id), None).await;
    assert_eq!(disabled.status(), 200);
    has_ended(&world, &tokens).await;
}
