//! Where clients find out how to log in, and what they are told when they have not.

use drawbridge_testkit::client::{Client, header_map};
use drawbridge_testkit::gateway::Gateway;
use http::Method;
use serde_json::{Value, json};

use super::world::{P, R, World, list};

const CHALLENGE: &str = "Bearer resource_metadata=\"http://localhost:9/.well-known/oauth-protected-resource/mcp\", scope=\"mcp:read mcp:write\"";

async fn document(client: &Client, path: &str) -> Value {
    let reply = client.get(path, &[("accept", "application/json")]).await;
    assert_eq!(reply.status(), 200, "{path}");
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"), "{path}");
    assert!(reply.header("content-type").unwrap().starts_with("application/json"), "{path}");
    reply.json().await
}

#[tokio::test]
async fn t01_t02_a_request_without_a_token_is_challenged_on_every_method_and_spelling() {
    let world = World::one().await;
    let client = world.client(0);
    for path in ["/mcp", "/mcp/"] {
        for method in [Method::POST, Method::GET, Method::HEAD, Method::DELETE] {
            let headers = header_map(&[("content-type", "application/json")]);
            let reply = client.send(method.clone(), path, &headers, "{}").await;
            assert_eq!(reply.status(), 401, "{method} {path}");
            assert_eq!(reply.headers().get_all("www-authenticate").iter().count(), 1);
            assert_eq!(reply.header("www-authenticate"), Some(CHALLENGE), "{method} {path}");
            assert_eq!(reply.header("cache-control"), Some("no-store"));
            let text = reply.text().await;
            if method == Method::HEAD {
                assert!(text.is_empty());
            } else {
                let body: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(body["error"], "unauthorized");
                assert!(body["request_id"].as_str().is_some_and(|id| id.len() == 32), "{body}");
            }
        }
    }
}

#[tokio::test]
async fn t03_t04_each_endpoint_is_a_resource_with_a_document_of_its_own() {
    let world = World::one().await;
    let client = world.client(0);
    let default = document(&client, "/.well-known/oauth-protected-resource/mcp").await;
    assert_eq!(default["resource"], R);
    assert_eq!(default["authorization_servers"], json!([P]));
    assert_eq!(default["scopes_supported"], json!(["mcp:read", "mcp:write"]));
    assert_eq!(document(&client, "/.well-known/oauth-protected-resource").await, default);
    let dev = document(&client, "/.well-known/oauth-protected-resource/mcp/dev").await;
    assert_eq!(dev["resource"], format!("{R}/dev"));
    let none = client.get("/.well-known/oauth-protected-resource/mcp/nope", &[]).await;
    assert_eq!(none.status(), 404);
    assert_eq!(none.json().await["error"], "not_found");
}

#[tokio::test]
async fn t05_the_authorization_server_says_who_it_is_wherever_clients_look() {
    let world = World::one().await;
    let client = world.client(0);
    let server = document(&client, "/.well-known/oauth-authorization-server").await;
    for path in [
        "/.well-known/openid-configuration",
        "/.well-known/oauth-authorization-server/mcp",
        "/.well-known/openid-configuration/mcp/dev",
        "/mcp/.well-known/oauth-authorization-server",
        "/mcp/.well-known/openid-configuration",
    ] {
        assert_eq!(document(&client, path).await, server, "{path}");
    }
    assert_eq!(server["issuer"], P);
    assert_eq!(server["code_challenge_methods_supported"], json!(["S256"]));
    assert_eq!(server["token_endpoint_auth_methods_supported"][0], "none");
    assert_eq!(server["authorization_response_iss_parameter_supported"], true);
    assert!(!server.to_string().contains("null"), "{server}");
    assert_eq!(document(&client, "/jwks.json").await["keys"][0]["alg"], "ES256");
}

#[tokio::test]
async fn t06_what_is_not_there_is_a_404_in_json() {
    let world = World::one().await;
    for path in ["/.well-known/whatever", "/.well-known/", "/", "/favicon.ico", "/mcp/.well-known/x"] {
        let reply = world.client(0).get(path, &[]).await;
        assert_eq!(reply.status(), 404, "{path}");
        assert!(reply.header("content-type").unwrap().starts_with("application/json"), "{path}");
    }
}

#[tokio::test]
async fn t07_no_header_makes_the_gateway_take_another_name() {
    let world = World::one().await;
    let client = world.client(0);
    let path = "/.well-known/oauth-authorization-server";
    for target in [path, "/mcp", "/authorize"] {
        let reply =
            client.get(target, &[("host", "evil.example"), ("x-forwarded-host", "evil.example")]).await;
        assert!(matches!(reply.status(), 403 | 421), "{target}: {}", reply.status());
    }
    let forged =
        [("x-forwarded-host", "evil.example"), ("x-forwarded-proto", "gopher"), ("forwarded", "host=evil")];
    let text = client.get(path, &forged).await.text().await;
    assert!(!text.contains("evil") && !text.contains("gopher"), "{text}");
}

#[tokio::test]
async fn t08_t09_browsers_may_ask_and_read_why_they_are_turned_away() {
    let world = World::one().await;
    let origin = ("origin", "http://localhost:6274");
    let asks = header_map(&[
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,mcp-protocol-version"),
    ]);
    let reply = world.client(0).send(Method::OPTIONS, "/mcp", &asks, "").await;
    assert_eq!(reply.status(), 204);
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://localhost:6274"));
    let allowed = reply.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("authorization") && allowed.contains("mcp-protocol-version"), "{allowed}");
    assert_eq!(reply.header("access-control-allow-credentials"), None);
    let reply = world.client(0).post("/mcp", &[origin], "{}").await;
    assert_eq!(reply.status(), 401);
    assert!(reply.header("access-control-expose-headers").unwrap().contains("www-authenticate"));
    let metadata = world.client(0).send(Method::OPTIONS, "/token", &asks, "").await;
    assert_eq!((metadata.status(), metadata.header("access-control-allow-origin")), (204, Some("*")));
}

#[tokio::test]
async fn t10_a_page_of_another_origin_may_not_call_even_with_a_token() {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let client = world.client(0).bearer(&world.token(&ann).await);
    let body = drawbridge_testkit::client::request(1, "tools/list", json!({})).to_string();
    for (origin, status) in [(Some("https://evil.example"), 403), (Some("null"), 403), (None, 200)] {
        let headers: Vec<(&str, &str)> = origin.map(|origin| ("origin", origin)).into_iter().collect();
        let reply = client.post("/mcp", &headers, body.clone()).await;
        assert_eq!(reply.status(), status, "{origin:?}");
        assert_eq!(reply.header("www-authenticate"), None);
    }
}

#[tokio::test]
async fn t11_a_gateway_that_asks_nobody_answers_to_loopback_names_only() {
    let gateway = Gateway::setup().start().await;
    for (host, is_served) in [("evil.example:8080", false), ("localhost:8080", true)] {
        let reply = gateway.client().post("/mcp", &[("host", host)], "{}").await;
        assert_eq!(reply.status() != 403, is_served, "{host}");
    }
}

#[tokio::test]
async fn t12_where_only_administrators_issue_tokens_there_is_nothing_to_discover() {
    let world = World::with("tokens", "").await;
    let reply = list(&world.client(0), "/mcp").await;
    assert_eq!((reply.status(), reply.header("www-authenticate")), (401, Some("Bearer")));
    for path in
        ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server", "/register"]
    {
        assert_eq!(world.client(0).get(path, &[]).await.status(), 404, "{path}");
    }
    let ann = world.user("ann").await;
    let token = world.token(&ann).await;
    assert_eq!(world.status(0, "/mcp", &token).await, 200);
}
