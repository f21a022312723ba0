//! What operators see of the configuration that applies.

use drawbridge_testkit::client::Client;
use drawbridge_testkit::{PATIENCE, eventually, secrets};
use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use super::world::World;

/// The value of a key, and where it is from.
fn setting(shown: &Value, key: &str) -> (Value, Value) {
    let all = shown["settings"].as_array().unwrap();
    let found =
        all.iter().find(|setting| setting["key"] == key).unwrap_or_else(|| panic!("no {key}: {shown}"));
    (found["value"].clone(), found["source"].clone())
}

async fn shown(operator: &Operator) -> Value {
    let reply = operator.ask(Method::GET, "config", None).await;
    assert_eq!(reply.status(), 200);
    reply.json().await
}

#[tokio::test]
async fn an_operator_sees_what_applies_and_no_secret() {
    let plant = |setup: drawbridge_testkit::gateway::Setup| {
        setup
            .config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))
            .backend("keyed", "{ url: \"http://127.0.0.1:1/mcp?key=pl4nted-1\", headers: { x-key: pl4nted-2 } }")
            .backend("program", "{ command: /nowhere/program, args: [\"--key=pl4nted-3\"], env: { KEY: pl4nted-4 } }")
            .config("tracing: { otlp: { endpoint: \"http://u:pl4nted-5@127.0.0.1:1\", headers: { x-key: { env: KEY_OF_COLLECTOR } } } }")
            .env("KEY_OF_COLLECTOR", "pl4nted-6")
            .env("DRAWBRIDGE_INSTANCE_ID", "gate-1")
    };
    let world = World::over("embedded", "", plant).await;
    let operator = Operator::at(&world.gateways[0]);
    let service = json!({ "kind": "admin", "name": "reader", "scopes": ["admin:read"] });
    let reader = operator.made("tokens", service).await["token"].as_str().unwrap().to_owned();
    let reader = Operator::with(&world.gateways[0], &reader);
    let first = shown(&reader).await;
    let text = first.to_string();
    assert!(!text.contains("pl4nted"), "{text}");
    assert_eq!(secrets::found(&text), None);
    let set = json!({ "set": true });
    for (key, value, source) in [
        ("public.listen", json!("127.0.0.1:0"), "flag"),
        ("instance_id", json!("gate-1"), "environment"),
        ("auth.mode", json!("embedded"), "file"),
        ("admin.bootstrap_token", set.clone(), "file"),
        ("backends.keyed.headers.x-key", set.clone(), "file"),
        ("tracing.otlp.headers.x-key", set, "environment"),
        ("limits.max_streams", json!(10_000), "default"),
    ] {
        assert_eq!(setting(&first, key), (value, json!(source)), "{key}");
    }
    let status = Client::new(&world.gateways[0].admin).get("/config/status", &[]).await.json().await;
    for member in ["generation", "applied_at", "files", "restart_needed_for"] {
        assert_eq!(first[member], status[member], "{member}");
    }

    // What is read later applies, but for what needs a restart.
    let file = world.gateways[0].dir().join("drawbridge.yaml");
    let written = std::fs::read_to_string(&file).unwrap();
    let changed = format!("{written}limits: {{ max_streams: 7 }}\naudit: {{ queue: 5 }}\n");
    std::fs::write(&file, changed).unwrap();
    eventually(PATIENCE, async || shown(&reader).await["generation"] == 2).await;
    let second = shown(&reader).await;
    assert_eq!(setting(&second, "limits.max_streams"), (json!(7), json!("file")));
    assert_eq!(setting(&second, "audit.queue"), (json!(10_000), json!("default")));
    assert_eq!(second["restart_needed_for"], json!(["audit"]));
    assert_ne!(second["files"], first["files"]);
    assert_eq!(second["instance"], first["instance"]);

    // Like the rest of the API it is for operators alone.
    let ann = world.user("ann").await;
    let stranger = Operator::with(&world.gateways[0], &world.token(&ann).await);
    assert_eq!(stranger.ask(Method::GET, "config", None).await.status(), 401);
}
