//! What operators see of instances, backends, endpoints and sessions, from any instance.

use drawbridge_testkit::client::Session;
use drawbridge_testkit::{PATIENCE, eventually};
use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use super::world::{R, World};

async fn items(operator: &Operator, path: &str) -> Vec<Value> {
    let reply = operator.ask(Method::GET, path, None).await;
    assert_eq!(reply.status(), 200, "{path}");
    reply.json().await["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn backends_say_what_they_speak_and_what_to_do_about_those_that_fail() {
    let world = World::over("embedded", "", |setup| {
        setup
            .config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))
            .backend("gone", "{ url: \"http://127.0.0.1:1/mcp?key=planted\" }")
            .backend("broken", "{ command: /nowhere/program, args: [\"--key=planted\"] }")
    })
    .await;
    let operator = Operator::at(&world.gateways[0]);
    let ann = world.user("ann").await;
    let endpoints = ["*".to_owned()].into();
    let (_, token) =
        world.token_with(&ann, &["mcp:read", "mcp:write"], |token| token.endpoints = endpoints).await;
    let client = world.client(0).bearer(token.expose());
    for backend in items(&operator, "backends").await {
        assert_eq!(backend["instances"][0]["state"], "untried", "{backend}");
    }
    for path in ["/mcp/demo", "/mcp/gone", "/mcp/broken"] {
        let body = drawbridge_testkit::client::initialize("2025-11-25", json!({})).to_string();
        client.post(path, &[], body).await.text().await;
    }
    let backend = async |name: &str| {
        let reply = operator.ask(Method::GET, &format!("backends/{name}"), None).await;
        assert_eq!(reply.status(), 200);
        reply.json().await
    };
    let demo = backend("demo").await;
    assert_eq!((&demo["kind"], &demo["era"]), (&json!("http"), &json!("auto")));
    assert_eq!(demo["endpoints"], json!(["demo", "dev"]));
    assert_eq!(demo["instances"][0]["state"], "up");
    assert_eq!(demo["instances"][0]["speaks"], "both");
    assert_eq!(demo["instances"][0]["last_error"], Value::Null);
    for (name, code, target) in [
        ("gone", "backend_unreachable", "http://127.0.0.1:1/mcp"),
        ("broken", "backend_not_started", "/nowhere/program"),
    ] {
        let backend = backend(name).await;
        assert_eq!(backend["target"], target);
        let state = &backend["instances"][0];
        assert_eq!((&state["state"], &state["last_error"]["code"]), (&json!("down"), &json!(code)));
        let advice = state["last_error"]["advice"].as_str().unwrap();
        assert!(advice.starts_with(if name == "gone" { "look whether it runs" } else { "run its command" }));
        assert!(!backend.to_string().contains("planted"), "{backend}");
    }
    assert_eq!(operator.ask(Method::GET, "backends/nobody", None).await.status(), 404);

    let endpoints = items(&operator, "endpoints").await;
    let of = |name: Value| endpoints.iter().find(|endpoint| endpoint["name"] == name).unwrap();
    assert_eq!((&of(Value::Null)["path"], &of(Value::Null)["resource"]), (&json!("/mcp"), &json!(R)));
    assert_eq!(of(json!("dev"))["backends"], json!(["demo"]));
    assert_eq!(of(json!("dev"))["resource"], format!("{R}/dev"));
}

#[tokio::test]
async fn sessions_of_all_instances_are_listed_and_ended_at_any() {
    let world =
        World::several_with(3, |setup| setup.config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))).await;
    let operator = Operator::at(&world.gateways[1]);
    eventually(PATIENCE, async || items(&operator, "instances").await.len() == 3).await;
    for instance in items(&operator, "instances").await {
        assert_eq!((&instance["answers"], &instance["is_draining"]), (&json!(true), &json!(false)));
        assert_eq!(instance["version"], env!("CARGO_PKG_VERSION"));
    }

    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let mut sessions = Vec::new();
    for (number, user) in [(0, &ann), (2, &bob)] {
        let client = world.client(number).bearer(&world.token(user).await);
        let session = Session::open(&client, "/mcp", "2025-11-25", json!({})).await;
        let stream = session.get(None).await;
        assert_eq!(stream.status(), 200);
        sessions.push((session, stream));
    }
    let listed = items(&operator, "sessions").await;
    assert_eq!(listed.len(), 2, "{listed:?}");
    let of = |user: &str| listed.iter().find(|session| session["caller"] == format!("user:{user}")).unwrap();
    let anns = of(&ann.id);
    assert_eq!((&anns["has_stream"], &anns["protocol_version"]), (&json!(true), &json!("2025-11-25")));
    assert!(anns["client_name"].is_string() && anns["oauth_client"].as_str().unwrap().starts_with("pat:"));
    assert_eq!(of(&bob.id)["instances"].as_array().unwrap().len(), 1);
    assert!(!format!("{listed:?}").contains(&sessions[0].0.id));
    // One at a time, none twice.
    let first = operator.ask(Method::GET, "sessions?limit=1", None).await.json().await;
    let next = first["next"].as_str().unwrap();
    let second =
        operator.ask(Method::GET, &format!("sessions?limit=1&cursor={next}"), None).await.json().await;
    assert_ne!(first["items"][0]["key"], second["items"][0]["key"]);
    assert_eq!(second["next"], Value::Null);

    let path = format!("sessions/{}", anns["key"].as_str().unwrap());
    assert_eq!(operator.ask(Method::DELETE, &path, None).await.status(), 204);
    let (mut anns, bobs) = (sessions.remove(0), sessions.remove(0));
    while anns.1.event().await.is_some() {}
    for number in 0..3 {
        let client = world.client(number).bearer(&world.token(&ann).await);
        let there = Session { client, ..anns.0.clone() };
        eventually(PATIENCE, async || there.request("ping", json!({})).await.status() == 404).await;
    }
    assert_eq!(bobs.0.request("ping", json!({})).await.status(), 200);
    let still = items(&operator, "sessions").await;
    assert_eq!(still.len(), 1, "{still:?}");
    assert_eq!(operator.ask(Method::DELETE, "sessions/nonsense", None).await.status(), 404);
    let audit = operator.ask(Method::GET, "audit", None).await.text().await;
    assert!(audit.contains("session.end"));
}
