//! What of logins is in the audit trail.

use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use super::world::{Browser, Request, World, post_form};

async fn entries(operator: &Operator, action: &str) -> Vec<Value> {
    let reply = operator.ask(Method::GET, &format!("audit?kind=action&action={action}"), None).await;
    assert_eq!(reply.status(), 200);
    reply.json().await["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn who_signs_in_and_agrees_to_what_is_in_the_audit_trail() {
    let world =
        World::over("embedded", "", |setup| setup.config(&format!("admin: {{ bootstrap_token: {FIRST} }}")))
            .await;
    let operator = Operator::at(&world.gateways[0]);
    let ann = world.user("ann").await;
    let whom = json!(format!("user:{}", ann.id));
    let client_id = world.register().await;
    let sign_in = world.sign_in_token(&ann).await;

    // Somebody else tries first.
    let browser = Browser::new(&world.client(0));
    let page = browser.get(&Request::of(&client_id).path()).await;
    let wrong = [("transaction", &*page.transaction()), ("token", "drb_pat_nonsense")];
    assert_eq!(browser.post("/login", &wrong).await.status, 403);
    let page = browser.sign_in(&Request::of(&client_id), &sign_in).await;
    browser.decide(&page, "deny", &[]).await;
    let tokens = world.log_in(&ann, 0).await;

    let all = entries(&operator, "user.sign_in").await;
    let outcomes: Vec<(&Value, &Value)> = all.iter().map(|e| (&e["actor"], &e["outcome"])).collect();
    let (nobody, refused, ok) = (json!("anonymous"), json!("refused"), json!("ok"));
    assert_eq!(outcomes, [(&nobody, &refused), (&whom, &ok), (&whom, &ok)], "{all:?}");
    assert_eq!((&all[0]["detail"]["with"], &all[1]["target"]), (&json!("token"), &json!(ann.id)));
    assert_eq!(all[0]["detail"]["address"], "127.0.0.1");
    let denied = entries(&operator, "consent.deny").await;
    assert_eq!((denied.len(), &denied[0]["target"]), (1, &json!(client_id)));
    let given = entries(&operator, "consent.give").await;
    assert_eq!((&given[0]["actor"], &given[0]["target"]), (&whom, &json!(tokens.client_id)));
    assert_eq!(given[0]["detail"]["scopes"], json!(["mcp:read", "mcp:write"]));

    let form = [("client_id", tokens.client_id.as_str()), ("token", tokens.refresh.as_str())];
    assert_eq!(post_form(&world.client(0), "/revoke", &form).await.status(), 200);
    let ended = entries(&operator, "grant.revoke").await;
    assert_eq!(ended[0]["actor"], format!("client:{}", tokens.client_id));
    assert_eq!(ended[0]["target"], given[0]["detail"]["grant"]);
    assert_eq!(ended[0]["detail"], json!({ "reason": "revoked_by_client", "user": ann.id }));
    let said = format!("{all:?}{denied:?}{given:?}{ended:?}");
    for secret in [&sign_in, &tokens.access, &tokens.refresh] {
        assert!(!said.contains(secret.as_str()));
    }
}
