//! What is secret is told to nobody but to whom it belongs: not in logs of any level, traces, metrics, errors, the
//! audit trail. The logs of all other tests are looked at as well, by the testkit.

use drawbridge_testkit::backend::{Backend, Reply, Request};
use drawbridge_testkit::client::{Client, Session};
use drawbridge_testkit::{PATIENCE, eventually, secrets};
use http::Method;
use serde_json::json;

use super::admin_tokens::{FIRST, Operator};
use super::world::{Browser, World, post_form};

#[tokio::test]
async fn secrets_are_in_no_log_trace_metric_error_or_record() {
    let collector = Backend::start(async |_: Request| Reply::text(200, "application/x-protobuf", "")).await;
    let backend = Backend::start(async |request: Request| match request.rpc() {
        // One that tells on.
        "tools/call" => Reply::error(&request, 200, -32000, "broken"),
        _ => drawbridge_testkit::backend::legacy(&request, "session-of-a-backend"),
    })
    .await;
    let settings = format!(
        "{{ url: \"{}\", era: legacy, headers: {{ authorization: {{ env: BACKEND_KEY }} }} }}",
        backend.url()
    );
    let world = World::over("embedded", "", |setup| {
        setup
            .backend("keyed", &settings)
            .config("log: { level: trace }")
            .config(&format!("tracing: {{ otlp: {{ endpoint: \"{}\" }} }}", collector.url_of("")))
            .config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))
            .env("BACKEND_KEY", "Bearer planted-key-of-a-backend")
    })
    .await;
    let mut planted = vec!["planted-key-of-a-backend".to_owned()];
    let mut said = String::new();

    let operator = Operator::at(&world.gateways[0]);
    let ann = world.user("ann").await;
    let sign_in = world.sign_in_token(&ann).await;
    let (_, everywhere) = world
        .token_with(&ann, &["mcp:read", "mcp:write"], |token| token.endpoints = ["*".to_owned()].into())
        .await;
    planted.extend([sign_in.clone(), everywhere.expose().to_owned()]);

    // A login, and each of its secrets in a wrong place.
    let tokens = world.log_in(&ann, 0).await;
    let refreshed = world.refresh(0, &tokens.client_id, &tokens.refresh).await.json().await;
    for name in ["access_token", "refresh_token"] {
        planted.push(refreshed[name].as_str().unwrap().to_owned());
    }
    planted.extend([tokens.access.clone(), tokens.refresh.clone()]);
    for secret in planted.clone() {
        for (path, form) in [
            ("/token", [("grant_type", "authorization_code"), ("code", secret.as_str())]),
            ("/token", [("grant_type", "refresh_token"), ("refresh_token", &secret)]),
            ("/token", [("grant_type", &*secret), ("client_secret", &secret)]),
            ("/revoke", [("client_id", "nobody"), ("token", &secret)]),
            ("/login", [("transaction", &secret), ("token", &secret)]),
            ("/consent", [("transaction", &secret), ("decision", "allow")]),
        ] {
            said += &post_form(&world.client(0), path, &form).await.text().await;
        }
        let browser = Browser::new(&world.client(0));
        for path in ["/authorize", "/login/callback", "/mcp"] {
            said += &browser.get(&format!("{path}?code={secret}&state={secret}")).await.text;
        }
        // An administrator is told which value was wrong, and nobody else is.
        operator.ask(Method::GET, &format!("tokens/{secret}"), None).await;
        let body = json!({ "kind": "service", "name": "n", "service": "s", "scopes": [secret] });
        assert_eq!(operator.ask(Method::POST, "tokens", Some(body)).await.status(), 422);
        let stranger = Operator::with(&world.gateways[0], &secret);
        said += &stranger.ask(Method::GET, "tokens", None).await.text().await;
    }
    // What others read.
    let mut of_others = String::new();

    // Calls: one that works, one that fails, one of a caller who is nobody.
    let client = world.client(0).bearer(everywhere.expose());
    for path in ["/mcp/demo", "/mcp/keyed"] {
        let session = Session::open(&client, path, "2025-11-25", json!({})).await;
        planted.push(session.id.clone());
        let called = session.request("tools/call", json!({ "name": "echo", "arguments": {} })).await;
        of_others += &called.text().await;
    }
    let wanted = json!({ "kind": "service", "name": "ci", "service": "ci", "scopes": ["mcp:read"] });
    let service = operator.made("tokens", wanted).await;
    planted.push(service["token"].as_str().unwrap().to_owned());
    let form = [("client_id", tokens.client_id.as_str()), ("token", tokens.refresh.as_str())];
    post_form(&world.client(0), "/revoke", &form).await;

    for path in [
        "audit",
        "tokens",
        "users",
        "clients",
        "grants",
        "instances",
        "backends",
        "config",
        "endpoints",
        "sessions",
    ] {
        of_others += &operator.ask(Method::GET, path, None).await.text().await;
    }
    let admin = Client::new(&world.gateways[0].admin);
    for path in ["/metrics", "/readyz", "/livez", "/admin/v1/openapi.json"] {
        of_others += &admin.get(path, &[]).await.text().await;
    }
    eventually(PATIENCE, async || !collector.requests().is_empty()).await;
    for request in collector.requests() {
        of_others += &String::from_utf8_lossy(&request.text);
    }
    let log = world.gateways[0].program.stderr();
    assert!(log.contains("TRACE") || log.contains("trace"), "the log says all that it can");
    for (what, text) in [("log", &log), ("told", &of_others)] {
        for secret in &planted {
            assert!(!text.contains(secret.as_str()), "{what}: {secret}");
        }
        assert_eq!(secrets::found(text), None, "{what}");
    }
    for secret in &planted {
        assert!(!said.contains(secret.as_str()), "an answer has {secret}");
    }
}
