//! Backends that are told who calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use drawbridge_auth::records::{Records as _, Token, User, UserClaims};
use drawbridge_auth::token::TokenKind;
use drawbridge_testkit::backend::{Backend, Reply, Request, Stream, legacy, modern, text_result};
use drawbridge_testkit::client::{Client, Modern, Session, text};
use drawbridge_testkit::gateway::Setup;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Value, json};

use super::exchange::{Place, login, provider};
use super::external::{Key, keys};
use super::world::{P, World, encoded, post_form};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const ACK: &str = "notifications/subscriptions/acknowledged";
const CHANGED: &str = "notifications/tools/list_changed";

const HEADERS: &str = "caller_headers: { X-User: \"{principal.sub}\", X-Mail: \"{principal.email}\", X-Name: \"{principal.name}\", X-Groups: \"{principal.groups}\", X-Client: \"{principal.client}\" }";

fn told(setup: Setup, backend: &Backend, more: &str) -> Setup {
    setup.backend("in", &format!("{{ url: \"{}\", {HEADERS}{more} }}", backend.url()))
}

/// A backend with sessions.
async fn with_sessions() -> Backend {
    let opened = Arc::new(AtomicUsize::new(0));
    Backend::start(move |request| {
        let opened = opened.clone();
        async move {
            match request.rpc() {
                "initialize" => legacy(&request, &format!("s{}", opened.fetch_add(1, Ordering::SeqCst))),
                "tools/call" => Reply::result(&request, text_result(request.header("x-user"))),
                _ => legacy(&request, request.header("mcp-session-id")),
            }
        }
    })
    .await
}

async fn user(world: &World, name: &str, email: Option<&str>, groups: &[&str]) -> User {
    let claims = UserClaims {
        issuer: "local".to_owned(),
        subject: name.to_owned(),
        email: email.map(str::to_owned),
        name: Some(name.to_owned()),
        groups: groups.iter().map(ToString::to_string).collect(),
    };
    world.records.enter_user(&drawbridge_auth::fresh_id(), &claims, Utc::now()).await.unwrap()
}

/// The secret of a token of `owner` for all endpoints.
async fn token(world: &World, owner: &User) -> String {
    let everywhere = |token: &mut Token| token.endpoints = BTreeSet::from(["*".to_owned()]);
    world.token_with(owner, &["mcp:read", "mcp:write"], everywhere).await.1.expose().to_owned()
}

fn of_calls(backend: &Backend) -> Vec<Request> {
    backend.requests_of("tools/call")
}

#[tokio::test]
async fn what_is_known_of_a_caller_is_told_and_what_a_client_says_of_it_is_not() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let world =
        World::over("embedded", "", |setup| told(setup, &backend, ", era: modern, identity_jwt: true")).await;
    let hostile = "Ann\r\nX-Admin: yes, \u{202e}M\u{fc}ller";
    let ann = user(&world, hostile, Some("ann@example.com"), &["dev", "a,b"]).await;
    let bob = user(&world, "bob", None, &[]).await;
    for who in [&ann, &bob, &ann] {
        let client = world.client(0).bearer(&token(&world, who).await);
        let client = ["x-user", "x-mail", "x-groups", "x-admin", "drawbridge-identity"]
            .into_iter()
            .fold(client, |client, name| client.always(name, "root"));
        let client = Modern::new(&client, "/mcp/in", json!({}));
        assert_eq!(text(&client.tool("echo", json!({})).await), "ok");
        let seen = of_calls(&backend).pop().unwrap();
        assert_eq!(seen.header("x-user"), who.id);
        assert!(seen.header("x-client").starts_with("pat:"));
        assert!(!format!("{:?}", seen.headers).contains("root"), "{:?}", seen.headers);
        assert!(!seen.headers.contains_key("x-admin"));
        if who.id == ann.id {
            assert_eq!(seen.header("x-mail"), "ann@example.com");
            assert_eq!(seen.header("x-groups"), "a%2Cb,dev");
            assert_eq!(seen.header("x-name"), "Ann%0D%0AX-Admin: yes%2C %E2%80%AEM%C3%BCller");
        } else {
            // What is not known of one is not another's, and not empty.
            assert!(!seen.headers.contains_key("x-mail") && !seen.headers.contains_key("x-groups"));
            assert_eq!(seen.header("x-name"), "bob");
        }
    }
    // A service is told from users.
    let (_, secret) = world
        .token_with(&ann, &["mcp:read", "mcp:write"], |token| {
            (token.kind, token.owner, token.service) = (TokenKind::Service, None, Some("ci".to_owned()));
            token.endpoints = BTreeSet::from(["*".to_owned()]);
        })
        .await;
    let secret = secret.expose().to_owned();
    let client = Modern::new(&world.client(0).bearer(&secret), "/mcp/in", json!({}));
    let answer = client.tool("echo", json!({})).await;
    assert_eq!(text(&answer), "ok");
    let seen = of_calls(&backend).pop().unwrap();
    assert_eq!(seen.header("x-user"), "service:ci");
    assert!(!seen.headers.contains_key("x-mail") && !seen.headers.contains_key("x-name"));
}

#[tokio::test]
async fn t55_two_callers_never_have_one_session_where_the_backend_is_told_of_them() {
    let backend = with_sessions().await;
    let world = World::over("embedded", "", |setup| told(setup, &backend, ", era: legacy")).await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    for who in [&ann, &bob, &ann] {
        let client = world.client(0).bearer(&token(&world, who).await);
        let stateless = Modern::new(&client, "/mcp/in", json!({}));
        let session = Session::open(&client, "/mcp/in", "2025-11-25", json!({})).await;
        for _ in 0..2 {
            assert_eq!(text(&stateless.tool("echo", json!({})).await), who.id);
            assert_eq!(text(&session.tool("echo", json!({})).await), who.id);
        }
    }
    let mut whose: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for request in backend.requests() {
        // Whoever asks what it speaks is somebody, too.
        let session = request.header("mcp-session-id").to_owned();
        if !session.is_empty() {
            whose.entry(session).or_default().insert(request.header("x-user").to_owned());
        }
    }
    assert!(whose.len() >= 4 && whose.values().all(|users| users.len() == 1), "{whose:?}");
}

/// A stateless backend that lets whoever wants listen, and what it tells them by.
async fn listened_to() -> (Backend, Arc<Mutex<Vec<(Request, Stream)>>>) {
    let streams = Arc::<Mutex<Vec<(Request, Stream)>>>::default();
    let opened = streams.clone();
    let backend = Backend::start(move |request| {
        let opened = opened.clone();
        async move {
            match request.rpc() {
                "server/discover" => Reply::result(
                    &request,
                    json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 60000,
                        "cacheScope": "public", "capabilities": { "tools": { "listChanged": true } } }),
                ),
                "subscriptions/listen" => {
                    let (reply, stream) = Reply::stream();
                    let said = json!({ "notifications": request.body["params"]["notifications"],
                        "_meta": { SUBSCRIPTION: request.id() } });
                    stream.event(&json!({ "jsonrpc": "2.0", "method": ACK, "params": said })).await;
                    opened.lock().unwrap().push((request, stream));
                    reply
                }
                _ => modern(&request),
            }
        }
    })
    .await;
    (backend, streams)
}

#[tokio::test]
async fn each_caller_of_a_fleet_is_told_of_in_a_listen_of_its_own() {
    let (backend, streams) = listened_to().await;
    let world = World::several_with(2, |setup| told(setup, &backend, ", era: modern")).await;
    let users = [world.user("ann").await, world.user("bob").await];
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    let mut open = Vec::new();
    for who in &users {
        let token = token(&world, who).await;
        for number in 0..2 {
            let client = Modern::new(&world.client(number).bearer(&token), "/mcp/in", json!({}));
            let mut stream = client.request("subscriptions/listen", wanted.clone()).await;
            assert_eq!(stream.message().await["method"], ACK);
            open.push((who.id.clone(), stream));
        }
    }
    // One for each caller, whichever instance asked for it, and with what is theirs.
    let listens: Vec<(Request, Stream)> = streams.lock().unwrap().clone();
    let whose: Vec<&str> = listens.iter().map(|(request, _)| request.header("x-user")).collect();
    let expected: BTreeSet<&str> = users.iter().map(|user| &*user.id).collect();
    assert_eq!(whose.len(), 2, "{whose:?}");
    assert_eq!(whose.iter().copied().collect::<BTreeSet<_>>(), expected);
    // What one is told, the other does not hear.
    let (request, told) =
        listens.iter().find(|(request, _)| request.header("x-user") == users[0].id).unwrap();
    let said = json!({ "_meta": { SUBSCRIPTION: request.id() } });
    told.event(&json!({ "jsonrpc": "2.0", "method": CHANGED, "params": said })).await;
    for (whose, stream) in &mut open {
        if *whose == users[0].id {
            assert_eq!(stream.message().await["method"], CHANGED);
        } else {
            while let Ok(Some(event)) = stream.event_within(Duration::from_millis(300)).await {
                assert!(!String::from_utf8_lossy(&event.data).contains(CHANGED));
            }
        }
    }
}

async fn in_jwks(client: &Client, token: &str, audience: &str) -> Value {
    let keys: JwkSet = serde_json::from_value(client.get("/jwks.json", &[]).await.json().await).unwrap();
    let header = jsonwebtoken::decode_header(token).unwrap();
    let key = keys.find(header.kid.as_deref().unwrap()).unwrap();
    let mut wanted = Validation::new(Algorithm::ES256);
    wanted.set_issuer(&[P]);
    wanted.set_audience(&[audience]);
    wanted.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    jsonwebtoken::decode::<Value>(token, &DecodingKey::from_jwk(key).unwrap(), &wanted).unwrap().claims
}

#[tokio::test]
async fn who_calls_is_signed_for_one_backend_and_is_no_access_token() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let secret = "0123456789abcdef0123456789abcdef";
    let more = format!("  introspection_clients: [{{ id: tickets, secret: \"{secret}\" }}]\n");
    let url = backend.url();
    let world = World::over("embedded", &more, |setup| {
        setup
            .backend("in", &format!("{{ url: \"{url}\", era: modern, identity_jwt: true }}"))
            .backend("also", &format!("{{ url: \"{url}?other\", era: modern, identity_jwt: true, auth: {{ kind: header, value: k }} }}"))
            .backend("bare", &format!("{{ url: \"{url}\", era: modern }}"))
    })
    .await;
    let ann = user(&world, "Ann", Some("ann@example.com"), &["dev", "ops"]).await;
    let tokens = world.log_in(&ann, 0).await;
    let client = world.client(0);
    let everywhere = token(&world, &ann).await;
    let call = async |backend: &str| {
        let client = world.client(0).bearer(&everywhere);
        Modern::new(&client, &format!("/mcp/{backend}"), json!({})).tool("echo", json!({})).await
    };
    call("bare").await;
    assert!(!of_calls(&backend).pop().unwrap().headers.contains_key("drawbridge-identity"));
    call("also").await;
    let seen = of_calls(&backend).pop().unwrap();
    assert_eq!(seen.header("authorization"), "k");
    let other = seen.header("drawbridge-identity").to_owned();
    let answer =
        Modern::new(&client.bearer(&tokens.access), "/mcp", json!({})).tool("in__echo", json!({})).await;
    assert_eq!(text(&answer), "ok");
    let seen = of_calls(&backend).pop().unwrap();
    assert!(!seen.headers.contains_key("authorization"));
    let token = seen.header("drawbridge-identity").to_owned();
    assert_ne!(token, other);
    let claims = in_jwks(&client, &token, &url).await;
    for (name, value) in [
        ("sub", json!(ann.id)),
        ("iss", json!(P)),
        ("email", json!("ann@example.com")),
        ("name", json!("Ann")),
        ("groups", json!(["dev", "ops"])),
        ("client_id", json!(tokens.client_id)),
    ] {
        assert_eq!(claims[name], value, "{claims}");
    }
    assert!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap() <= 300);
    assert_eq!(jsonwebtoken::decode_header(&token).unwrap().typ.unwrap(), "drawbridge-identity+jwt");

    // At the gateway itself it is nothing.
    assert_eq!(world.status(0, "/mcp", &tokens.access).await, 200);
    for path in ["/mcp", "/mcp/in", "/mcp/demo"] {
        assert_eq!(world.status(0, path, &token).await, 401, "{path}");
    }
    let basic = format!("Basic {}", STANDARD.encode(format!("tickets:{secret}")));
    let headers = [("content-type", "application/x-www-form-urlencoded"), ("authorization", &*basic)];
    let said = client.post("/introspect", &headers, encoded(&[("token", &token)])).await.json().await;
    assert_eq!(said, json!({ "active": false }));
    let assertion = [
        ("grant_type", "refresh_token"),
        ("refresh_token", &tokens.refresh),
        ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
        ("client_assertion", &token),
    ];
    assert_ne!(post_form(&client, "/token", &assertion).await.status(), 200);
    let admin = Client::new(&world.gateways[0].admin).bearer(&token);
    assert_eq!(admin.get("/admin/v1/tokens", &[]).await.status(), 401);
    let log = world.gateways[0].program.stderr();
    assert!(!log.contains("eyJ"), "{log}");
}

#[tokio::test]
async fn groups_that_a_login_changes_are_told_at_once() {
    let provider = provider().await;
    let (key, groups) = (Key::fresh("k"), Arc::new(Mutex::new(json!(["dev"]))));
    let said = groups.clone();
    provider.identify(keys(&[&key]), move |claims| {
        let mut claims = claims.clone();
        claims["groups"] = said.lock().unwrap().clone();
        key.id_token(&claims)
    });
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let world = World::over("embedded", &login(&provider), |setup| {
        told(setup, &backend, ", era: modern, identity_jwt: true")
    })
    .await;
    let place = Place { world, provider, backend };
    let tokens = place.log_in("ann").await;
    let seen = async |access: &str| {
        let answer = place.modern(0, access).tool("in__echo", json!({})).await;
        assert_eq!(text(&answer), "ok");
        let seen = of_calls(&place.backend).pop().unwrap();
        let claims =
            in_jwks(&place.world.client(0), seen.header("drawbridge-identity"), &place.backend.url()).await;
        (seen.header("x-groups").to_owned(), claims["groups"].clone())
    };
    assert_eq!(seen(&tokens.access).await, ("dev".to_owned(), json!(["dev"])));
    *groups.lock().unwrap() = json!(["ops"]);
    let again = place.log_in_with(tokens.client_id.clone(), "ann").await;
    assert_eq!(seen(&again.access).await, ("ops".to_owned(), json!(["ops"])));
    *groups.lock().unwrap() = json!([]);
    let again = place.log_in_with(tokens.client_id.clone(), "ann").await;
    assert_eq!(seen(&again.access).await, (String::new(), Value::Null));
}
