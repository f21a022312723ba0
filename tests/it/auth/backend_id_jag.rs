//! Backends whose own authorization server takes the word of the identity provider (ID-JAG).

use drawbridge_testkit::backend::Backend;
use drawbridge_testkit::client::text;
use drawbridge_testkit::provider::Provider;
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::json;

use super::exchange::{GRANT, Place, call, login, provider};
use super::own_credentials::guarded;
use super::world::World;

const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// A gateway before a backend, and the backend's authorization server.
async fn place() -> (Place, Provider) {
    let (provider, server) = (provider().await, Provider::start().await);
    server.add_client("drawbridge", Some("another secret"));
    let backend = guarded(server.checker()).await;
    let settings = settings(&backend, &server);
    let world = World::over("embedded", &login(&provider), |setup| setup.backend("ex", &settings)).await;
    (Place { world, provider, backend }, server)
}

fn settings(backend: &Backend, server: &Provider) -> String {
    format!(
        "{{ url: \"{}\", era: modern, auth: {{ kind: id_jag, issuer: \"{}\", client_id: drawbridge, client_secret: \"another secret\", scopes: [read] }} }}",
        backend.url(),
        server.issuer()
    )
}

#[tokio::test]
async fn t56_the_provider_vouches_to_the_server_of_the_backend_and_each_gets_its_own_secret_alone() {
    let (place, server) = place().await;
    for subject in ["ann", "bob"] {
        let tokens = place.log_in(subject).await;
        let client = place.modern(0, &tokens.access);
        for _ in 0..2 {
            assert_eq!(text(&call(&client).await), format!("{subject}@{}", place.backend.url()));
        }
    }
    let (vouched, redeemed) = (place.provider.asked(GRANT), server.asked(JWT_BEARER));
    assert_eq!((vouched.len(), redeemed.len()), (2, 2), "what was got is used again");
    let form = &vouched[0];
    for (name, value) in [
        ("subject_token_type", "urn:ietf:params:oauth:token-type:id_token"),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:id-jag"),
        ("audience", &server.issuer()),
        ("resource", &place.backend.url()),
        ("scope", "read"),
    ] {
        assert_eq!(form[name], value, "{name}");
    }
    assert!(form["subject_token"].starts_with("eyJ"));
    // What the provider has said goes to that server, and to the backend only what that has given for it.
    assert_eq!(redeemed[0]["scope"], "read");
    let all = |requests: Vec<drawbridge_testkit::backend::Request>| {
        requests
            .iter()
            .map(|r| format!("{:?} {}", r.headers, String::from_utf8_lossy(&r.text)))
            .collect::<String>()
    };
    let (to_provider, to_server, to_backend) =
        (all(place.provider.requests()), all(server.requests()), all(place.backend.requests()));
    assert!(!to_backend.contains(&redeemed[0]["assertion"]) && !to_backend.contains("eyJ"));
    assert!(!to_server.contains(&form["subject_token"]) && !to_server.contains("secret%3A"), "{to_server}");
    assert!(!to_provider.contains("another"), "{to_provider}");
    let log = place.world.gateways[0].program.stderr();
    assert!(!log.contains("eyJ") && !log.contains("access-"), "{log}");
}

#[tokio::test]
async fn t56_whom_the_organisation_does_not_let_is_told_so_whoever_says_it() {
    let (place, server) = place().await;
    for (code, subject) in [("access_denied", "ann"), ("invalid_grant", "bob")] {
        place.provider.rule(|rules| rules.exchange_fault = Some((400, json!({ "error": code }))));
        let client = place.modern(0, &place.log_in(subject).await.access);
        let answer = call(&client).await;
        assert!(answer["result"]["isError"] == true && text(&answer).contains("does not allow"), "{answer}");
    }
    assert!(server.asked(JWT_BEARER).is_empty());
    place.provider.rule(|rules| rules.exchange_fault = None);
    for (code, subject) in [("access_denied", "cid"), ("invalid_grant", "dan")] {
        server.rule(|rules| rules.fault = Some((400, json!({ "error": code }))));
        let before = server.asked(JWT_BEARER).len();
        let client = place.modern(0, &place.log_in(subject).await.access);
        for _ in 0..2 {
            let answer = call(&client).await;
            assert!(
                answer["result"]["isError"] == true && text(&answer).contains("does not allow"),
                "{answer}"
            );
        }
        assert_eq!(server.asked(JWT_BEARER).len(), before + 1, "it is not asked again and again");
    }
    // What is a fault of the server passes, and what is the operator's is told to the operator.
    server.rule(|rules| rules.fault = Some((503, json!({}))));
    let client = place.modern(0, &place.log_in("eve").await.access);
    assert_eq!(call(&client).await["error"]["data"]["code"], "no_credential");
    server.rule(|rules| rules.fault = None);
    eventually(PATIENCE, async || call(&client).await["result"].is_object()).await;
    server.rule(|rules| rules.fault = Some((401, json!({ "error": "invalid_client" }))));
    let client = place.modern(0, &place.log_in("fay").await.access);
    assert_eq!(call(&client).await["error"]["data"]["code"], "no_credential");
    let log = place.world.gateways[0].program.stderr();
    assert!(log.contains("nobody gets a token for the backend") && log.contains("invalid_client"), "{log}");
}

#[tokio::test]
async fn t56_what_a_provider_says_to_another_server_or_in_anothers_name_is_shown_to_nobody() {
    let (place, server) = place().await;
    for (number, changed) in [
        json!({ "aud": "https://elsewhere.example" }),
        json!({ "aud": [server.issuer(), "https://elsewhere.example"] }),
        json!({ "iss": "https://elsewhere.example" }),
    ]
    .into_iter()
    .enumerate()
    {
        place.provider.rule(|rules| rules.vouched = changed);
        let client = place.modern(0, &place.log_in(&format!("user {number}")).await.access);
        let answer = call(&client).await;
        assert_eq!(answer["error"]["data"]["code"], "no_credential", "{answer}");
    }
    assert!(server.asked(JWT_BEARER).is_empty() && place.backend.requests_of("tools/call").is_empty());
    // A server that calls itself otherwise than the configuration says is another one.
    let (place, server) = self::place().await;
    server.rule(|rules| rules.metadata = json!({ "issuer": "https://elsewhere.example" }));
    let client = place.modern(0, &place.log_in("ann").await.access);
    assert_eq!(call(&client).await["error"]["data"]["code"], "no_credential");
    assert!(server.asked(JWT_BEARER).is_empty());
}
