//! Backends that are called with a credential of the operator's: fixed ones, and tokens that the gateway gets in its own
//! name.

use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, Request, legacy, modern, text_result};
use drawbridge_testkit::client::text;
use drawbridge_testkit::fleet::Fleet;
use drawbridge_testkit::gateway::{Gateway, Setup};
use drawbridge_testkit::provider::{Checker, Provider};
use drawbridge_testkit::{PATIENCE, eventually};
use futures_util::future::join_all;
use serde_json::json;

/// A stateless backend that tells callers who they are to it.
pub(super) fn tells(request: &Request, whom: &str) -> Reply {
    match request.rpc() {
        "tools/call" => {
            let mut result = text_result(whom);
            result["resultType"] = json!("complete");
            Reply::result(request, result)
        }
        _ => modern(request),
    }
}

/// A backend that takes the tokens of a provider.
pub(super) async fn guarded(checker: Checker) -> Backend {
    Backend::start(move |request| {
        let checker = checker.clone();
        async move {
            match checker.check(&request) {
                Ok(subject) => tells(&request, &subject),
                Err(refusal) => *refusal,
            }
        }
    })
    .await
}

/// The settings of a backend, with `more` beside the kind.
fn settings(backend: &Backend, kind: &str, more: &str) -> String {
    format!("{{ url: \"{}\", era: modern, auth: {{ kind: {kind}, {more} }} }}", backend.url())
}

fn own_token(setup: Setup, backend: &Backend, provider: &Provider) -> Setup {
    provider.add_client("gateway", Some("a secret: of/the gateway"));
    let more = format!(
        "issuer: \"{}\", client_id: gateway, client_secret: \"a secret: of/the gateway\", scopes: [read, write]",
        provider.issuer()
    );
    setup.backend("it", &settings(backend, "client_credentials", &more))
}

#[tokio::test]
async fn t48_parallel_calls_at_two_instances_make_one_request_for_a_token() {
    let provider = Provider::start().await;
    let backend = guarded(provider.checker()).await;
    let fleet = Fleet::start(2, own_token(Gateway::setup(), &backend, &provider)).await;
    let clients: Vec<_> = (0..2).map(|number| fleet.modern(number, json!({}))).collect();
    let calls = (0..50).map(|n| {
        let client = clients[n % 2].clone();
        async move { text(&client.tool("echo", json!({})).await).to_owned() }
    });
    assert!(join_all(calls).await.iter().all(|answer| answer == "gateway"));
    let asked = provider.asked("client_credentials");
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!((&*asked[0]["resource"], &*asked[0]["scope"]), (&*backend.url(), "read write"));
    assert!(!asked[0].contains_key("client_secret"), "Basic is what servers take that say nothing else");
    // An instance that comes later finds it.
    let mut fleet = fleet;
    let later = fleet.add().await;
    assert_eq!(text(&fleet.modern(later, json!({})).tool("echo", json!({})).await), "gateway");
    assert_eq!(provider.asked("client_credentials").len(), 1);
    for gateway in &fleet.gateways {
        let log = gateway.program.stderr();
        assert!(!log.contains("access-") && !log.contains("a secret"), "{log}");
    }
}

#[tokio::test]
async fn t48_a_token_is_renewed_before_it_ends_and_no_call_waits_for_that() {
    let provider = Provider::start().await;
    provider.rule(|rules| rules.life = Some(5));
    let backend = guarded(provider.checker()).await;
    let gateway = own_token(Gateway::setup(), &backend, &provider).start().await;
    let client = gateway.modern();
    eventually(PATIENCE, async || {
        assert_eq!(text(&client.tool("echo", json!({})).await), "gateway");
        provider.asked("client_credentials").len() == 3
    })
    .await;
}

#[tokio::test]
async fn t48_a_refused_token_is_renewed_once_and_then_nothing_is_sent_for_a_while() {
    let provider = Provider::start().await;
    let backend = guarded(provider.checker()).await;
    let gateway = own_token(Gateway::setup(), &backend, &provider).start().await;
    let client = gateway.modern();
    assert_eq!(text(&client.tool("echo", json!({})).await), "gateway");
    // The server has revoked it, and gives another.
    provider.expire_all();
    let calls = (0..10).map(|_| client.tool("echo", json!({})));
    assert!(join_all(calls).await.iter().all(|answer| text(answer) == "gateway"));
    assert_eq!(provider.asked("client_credentials").len(), 2);

    // A backend that takes none at all.
    let refusing = Backend::start(|_| async { Reply::status(401) }).await;
    let gateway = own_token(Gateway::setup(), &refusing, &provider).start().await;
    let client = gateway.modern();
    for _ in 0..3 {
        let answer = client.tool("echo", json!({})).await;
        assert_eq!(answer["error"]["data"]["code"], "backend_refused", "{answer}");
    }
    assert_eq!(refusing.requests().len(), 2, "once with each token");
    assert_eq!(provider.asked("client_credentials").len(), 4);
}

#[tokio::test]
async fn t48_a_server_that_gives_no_token_is_left_alone_for_a_while() {
    let provider = Provider::start().await;
    let backend = guarded(provider.checker()).await;
    let gateway = own_token(Gateway::setup(), &backend, &provider).start().await;
    provider.rule(|rules| rules.fault = Some((400, json!({ "error": "invalid_client" }))));
    let client = gateway.modern();
    let calls = (0..10).map(|_| client.tool("echo", json!({})));
    for answer in join_all(calls).await {
        assert_eq!(answer["error"]["data"]["code"], "no_credential", "{answer}");
        assert_eq!(answer["error"]["data"]["retry"], "safe");
        assert!(answer.to_string().contains("invalid_client"), "{answer}");
    }
    assert_eq!(provider.asked("client_credentials").len(), 1);
    assert_eq!(backend.requests().len(), 0);
    provider.rule(|rules| rules.fault = None);
    eventually(PATIENCE, async || client.tool("echo", json!({})).await["result"].is_object()).await;
}

#[tokio::test]
async fn t48_without_redis_each_instance_has_a_token_of_its_own() {
    let provider = Provider::start().await;
    let backend = guarded(provider.checker()).await;
    let mut fleet = Fleet::start(2, own_token(Gateway::setup(), &backend, &provider)).await;
    fleet.redis.stop().await;
    for number in 0..2 {
        let client = fleet.modern(number, json!({}));
        assert_eq!(text(&client.tool("echo", json!({})).await), "gateway");
    }
    assert_eq!(provider.asked("client_credentials").len(), 2);
}

#[tokio::test]
async fn sessions_and_their_streams_have_the_token_too() {
    let provider = Provider::start().await;
    let checker = provider.checker();
    let backend = Backend::start(move |request| {
        let checker = checker.clone();
        async move {
            match checker.check(&request) {
                Ok(_) => legacy(&request, "s"),
                Err(refusal) => *refusal,
            }
        }
    })
    .await;
    provider.add_client("gateway", Some("secret"));
    let endpoint = format!("{}/token", provider.issuer());
    let settings = format!(
        "{{ url: \"{}\", auth: {{ kind: client_credentials, token_endpoint: \"{endpoint}\", client_id: gateway, \
         client_secret: secret, client_auth: post, resource: \"\" }} }}",
        backend.url()
    );
    let gateway = Gateway::setup().backend("it", &settings).start().await;
    let session = gateway.session().await;
    assert_eq!(text(&session.tool("echo", json!({ "text": "hi" })).await), "hi");
    let stream = session.get(None).await;
    assert_eq!(stream.status(), 200);
    backend.wait_for("GET").await;
    session.delete().await;
    backend.wait_for("DELETE").await;
    assert!(
        backend.requests().iter().all(|request| provider.subject(request.header("authorization")).is_some())
    );
    let asked = provider.asked("client_credentials");
    assert_eq!((asked.len(), &*asked[0]["client_secret"]), (1, "secret"));
    assert!(!asked[0].contains_key("resource"));
}

#[tokio::test]
async fn fixed_credentials_are_what_their_files_say_when_they_are_used() {
    let backend = Backend::start(|request| async move { modern(&request) }).await;
    let dir = tempfile::TempDir::new().unwrap();
    let file = |name: &str| dir.path().join(name);
    for name in ["token", "password", "key"] {
        std::fs::write(file(name), format!("{name} 1\n")).unwrap();
    }
    let url = backend.url();
    let (token, password, key) = (file("token"), file("password"), file("key"));
    let header = format!(
        "{{ url: \"{url}\", era: modern, headers: {{ x-key: {{ file: {} }} }}, auth: {{ kind: header, value: {{ file: {} }} }} }}",
        key.display(),
        token.display()
    );
    let basic = format!(
        "{{ url: \"{url}\", era: modern, auth: {{ kind: basic, user: ann, password: {{ file: {} }} }} }}",
        password.display()
    );
    let gateway = Gateway::setup().backend("header", &header).backend("basic", &basic).start().await;
    let client = gateway.modern();
    let sent = async |tool: &str, header: &str| {
        client.tool(tool, json!({})).await;
        backend.requests_of("tools/call").last().unwrap().header(header).to_owned()
    };
    assert_eq!(sent("header__echo", "authorization").await, "token 1");
    assert_eq!(sent("header__echo", "x-key").await, "key 1");
    assert_eq!(sent("basic__echo", "authorization").await, "Basic YW5uOnBhc3N3b3JkIDE=");
    for name in ["token", "password", "key"] {
        std::fs::write(file(name), format!("{name} 2\n")).unwrap();
    }
    for (tool, header, expected) in [
        ("header__echo", "authorization", "token 2"),
        ("header__echo", "x-key", "key 2"),
        ("basic__echo", "authorization", "Basic YW5uOnBhc3N3b3JkIDI="),
    ] {
        eventually(Duration::from_secs(5), async || sent(tool, header).await == expected).await;
    }
}
