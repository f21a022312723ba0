//! What somebody tries who is not to come in, or not any more.

use drawbridge_testkit::client::Client;
use http::Method;
use serde_json::json;

use super::admin_tokens::{FIRST, Operator};
use super::world::{Browser, REDIRECT, Request, VERIFIER, World, post_form};

async fn world() -> World {
    World::over("embedded", "", |setup| setup.config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))).await
}

const SCOPES: [&str; 2] = ["mcp:read", "mcp:write"];

#[tokio::test]
async fn a_token_that_is_revoked_takes_the_logins_and_codes_along_that_came_of_it() {
    let world = world().await;
    let ann = world.user("ann").await;
    let (token, secret) = world.token_with(&ann, &["login"], |_| ()).await;
    let client_id = world.register().await;
    let browser = Browser::new(&world.client(0));
    let code = browser.allow(&Request::of(&client_id), secret.expose()).await;
    let again = browser.get(&Request::of(&client_id).path()).await;
    assert!(again.text.contains("name=\"decision\""), "who has logged in is asked at once: {}", again.text);

    let operator = Operator::at(&world.gateways[0]);
    let path = format!("tokens/{}", token.id);
    assert_eq!(operator.ask(Method::DELETE, &path, None).await.status(), 204);
    let page = browser.get(&Request::of(&client_id).path()).await;
    assert!(page.text.contains("action=\"/login\""), "{}", page.text);
    let late = browser.decide(&again, "allow", &SCOPES).await;
    assert_eq!((late.status, late.parameter("code")), (403, None));
    assert_eq!(world.redeem(0, &client_id, &code).await.status(), 400);
}

#[tokio::test]
async fn what_is_revoked_of_a_user_is_all_browsers_and_codes_too() {
    let world = world().await;
    let ann = world.user("ann").await;
    let client_id = world.register().await;
    let browser = Browser::new(&world.client(0));
    let sign_in = world.sign_in_token(&ann).await;
    let code = browser.allow(&Request::of(&client_id), &sign_in).await;
    let operator = Operator::at(&world.gateways[0]);
    let path = format!("users/{}/revoke-all", ann.id);
    assert_eq!(operator.ask(Method::POST, &path, None).await.status(), 200);
    assert_eq!(world.redeem(0, &client_id, &code).await.status(), 400);
    let asked = browser.get(&Request::of(&client_id).path()).await;
    let decided = browser.decide(&asked, "allow", &SCOPES).await;
    assert_eq!(decided.parameter("code"), None, "{}", decided.text);
    // The user may log in anew.
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    assert_eq!(world.status(0, "/mcp", &tokens.access).await, 200);
}

#[tokio::test]
async fn a_token_that_is_bound_to_networks_signs_nobody_in_from_elsewhere() {
    let world = world().await;
    let ann = world.user("ann").await;
    let client_id = world.register().await;
    for (network, may) in [("192.0.2.0/24", false), ("127.0.0.0/8", true)] {
        let networks = [network.to_owned()].into();
        let (_, secret) = world.token_with(&ann, &["login"], |token| token.networks = networks).await;
        let browser = Browser::new(&world.client(0));
        let page = browser.get(&Request::of(&client_id).path()).await;
        let form = [("transaction", &*page.transaction()), ("token", secret.expose())];
        let page = browser.post("/login", &form).await;
        assert_eq!(page.text.contains("name=\"decision\""), may, "{network}: {}", page.text);
    }
}

#[tokio::test]
async fn a_used_code_that_comes_with_a_wrong_verifier_ends_what_it_gave() {
    let world = world().await;
    let ann = world.user("ann").await;
    let client_id = world.register().await;
    let sign_in = world.sign_in_token(&ann).await;
    let code = Browser::new(&world.client(0)).allow(&Request::of(&client_id), &sign_in).await;
    let given = world.redeem(0, &client_id, &code).await.json().await;
    let access = given["access_token"].as_str().unwrap();
    assert_eq!(world.status(0, "/mcp", access).await, 200);
    let wrong = VERIFIER.replace('a', "b");
    let form = [
        ("grant_type", "authorization_code"),
        ("client_id", &*client_id),
        ("code", &code),
        ("redirect_uri", REDIRECT),
        ("code_verifier", &wrong),
    ];
    // A client may have sent the code twice by mistake, within two seconds.
    drawbridge_testkit::eventually(drawbridge_testkit::PATIENCE, async || {
        assert_eq!(post_form(&world.client(0), "/token", &form).await.status(), 400);
        world.status(0, "/mcp", access).await == 401
    })
    .await;
}

#[tokio::test]
async fn names_that_nobody_can_see_are_none() {
    let world = world().await;
    let register = async |client: &Client, name: &str| {
        let body = json!({ "client_name": name, "redirect_uris": [REDIRECT] }).to_string();
        let reply = client.post("/register", &[], body).await;
        assert_eq!(reply.status(), 201);
        reply.json().await["client_name"].clone()
    };
    for name in
        ["   ", "\u{3164}", "\u{180e}", "\u{34f}", "\u{2028}\u{2029}", "\u{e0041}\u{e0042}", "\u{2800}"]
    {
        assert!(register(&world.client(0), name).await.is_null(), "{name:?}");
    }
    assert_eq!(register(&world.client(0), "Clau\u{ad}de\u{2028}").await, "Claude");
}
