//! Clients that register by themselves.

use serde_json::{Value, json};

use super::world::{World, oauth_error};

/// What real hosts send.
fn hosts() -> Vec<(&'static str, Value)> {
    vec![
        (
            "Claude.ai",
            json!({ "client_name": "Claude", "redirect_uris": ["https://claude.ai/api/mcp/auth_callback"],
                "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
                "token_endpoint_auth_method": "client_secret_post", "scope": "mcp:read" }),
        ),
        (
            "ChatGPT",
            json!({ "client_name": "ChatGPT", "grant_types": ["authorization_code", "refresh_token"],
                "redirect_uris": ["https://chatgpt.com/connector_platform_oauth_redirect"],
                "token_endpoint_auth_method": "none" }),
        ),
        (
            "VS Code",
            json!({ "client_name": "Visual Studio Code", "client_uri": "https://code.visualstudio.com",
                "grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
                "response_types": ["code"], "application_type": "native", "token_endpoint_auth_method": "none",
                "redirect_uris": ["https://insiders.vscode.dev/redirect", "https://vscode.dev/redirect",
                    "http://127.0.0.1/", "http://127.0.0.1:33418/"] }),
        ),
        (
            "Cursor",
            json!({ "client_name": "Cursor", "application_type": "web", "token_endpoint_auth_method": "none",
                "redirect_uris": ["cursor://anysphere.cursor-mcp/oauth/callback",
                    "https://www.cursor.com/agents/mcp/oauth/callback", "http://localhost:8787/callback"] }),
        ),
        (
            "Claude Code",
            json!({ "client_name": "Claude Code (drawbridge)", "redirect_uris": ["http://localhost:3118/callback"],
                "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
                "token_endpoint_auth_method": "none", "logo_uri": null }),
        ),
        (
            "Codex",
            json!({ "client_name": "Codex", "application_type": "native",
                "redirect_uris": ["http://127.0.0.1:4711/callback/aB3_-xyzABCD"] }),
        ),
        (
            "Inspector",
            json!({ "client_name": "MCP Inspector", "client_uri": "https://github.com/modelcontextprotocol/inspector",
                "redirect_uris": ["http://localhost:6274/oauth/callback"], "scope": "mcp:read mcp:write" }),
        ),
    ]
}

#[tokio::test]
async fn t57_real_hosts_register() {
    let world = World::one().await;
    for (host, body) in hosts() {
        let reply = world.client(0).post("/register", &[], body.to_string()).await;
        assert_eq!(reply.status(), 201, "{host}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
        let answer = reply.json().await;
        assert!(!answer.to_string().contains("null"), "{host}: {answer}");
        assert_eq!(answer["grant_types"], json!(["authorization_code", "refresh_token"]), "{host}");
        assert_eq!(answer["redirect_uris"], body["redirect_uris"], "{host}");
        assert!(answer["client_id_issued_at"].as_i64().is_some_and(|at| at > 1_700_000_000), "{host}");
    }
}

#[tokio::test]
async fn t58_redirects_that_are_unsafe_or_unknown_are_refused() {
    let world = World::one().await;
    for uri in [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "http://evil.example/cb",
        "https://a/cb#f",
        "https://*.a/cb",
        "https://u@a/cb",
        "https://unlisted.example/cb",
    ] {
        let body = json!({ "redirect_uris": ["http://localhost/fine", uri] }).to_string();
        let reply = world.client(0).post("/register", &[], body).await;
        let text = reply.text().await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["error"], "invalid_redirect_uri", "{uri}: {answer}");
        assert!(answer["error_description"].as_str().unwrap().contains(uri), "{answer}");
    }
}

#[tokio::test]
async fn t59_a_public_client_that_registers_twice_is_one() {
    let world = World::one().await;
    let (_, body) = hosts().remove(4);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let reply = world.client(0).post("/register", &[], body.to_string()).await;
        assert_eq!(reply.status(), 201);
        ids.push(reply.json().await["client_id"].clone());
    }
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn t60_what_is_too_much_or_no_json_is_refused_and_a_flood_is_slowed_down() {
    let world = World::one().await;
    let big = json!({ "redirect_uris": ["http://localhost/x"], "client_name": "x".repeat(65 * 1024) });
    let many = json!({ "redirect_uris": vec!["http://localhost/x"; 11] });
    for body in [big.to_string(), many.to_string(), "redirect_uris=x".to_owned(), "[]".to_owned()] {
        let reply = world.client(0).post("/register", &[], body).await;
        assert_eq!(oauth_error(reply).await.0, 400);
    }
    let (_, body) = hosts().remove(4);
    let mut slowed = None;
    for _ in 0..80 {
        let reply = world.client(0).post("/register", &[], body.to_string()).await;
        if reply.status() == 429 {
            slowed = Some(reply);
            break;
        }
    }
    let slowed = slowed.expect("eighty registrations in a moment");
    assert!(slowed.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(slowed.json().await["error"], "slow_down");
}

#[tokio::test]
async fn t61_a_secret_is_given_to_servers_alone() {
    let world = World::one().await;
    let register = async |uri: &str| {
        let body = json!({ "redirect_uris": [uri], "token_endpoint_auth_method": "client_secret_post" });
        world.client(0).post("/register", &[], body.to_string()).await.json().await
    };
    let server = register("https://claude.ai/api/mcp/auth_callback").await;
    assert!(server["client_secret"].as_str().is_some_and(|secret| secret.starts_with("drb_cs_")), "{server}");
    assert_eq!(server["client_secret_expires_at"], 0);
    let program = register("http://localhost:1/cb").await;
    assert_eq!(program["token_endpoint_auth_method"], "none");
    assert_eq!(program.get("client_secret"), None);
}

#[tokio::test]
async fn where_nobody_may_register_there_is_no_such_endpoint() {
    let world = World::with("embedded", "  registration: { dcr: closed }\n").await;
    let (_, body) = hosts().remove(0);
    assert_eq!(world.client(0).post("/register", &[], body.to_string()).await.status(), 404);
    let path = "/.well-known/oauth-authorization-server";
    assert_eq!(world.client(0).get(path, &[]).await.json().await.get("registration_endpoint"), None);
}
