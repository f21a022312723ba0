//! Which tokens are accepted where.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{Records, Token};
use drawbridge_auth::token::{Secret, SecretKind};
use drawbridge_core::seal::{KeyRing, Purpose, SealKey};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::world::{P, R, World, list};

const INVALID: &str = "Bearer error=\"invalid_token\", error_description=\"The access token is invalid or expired\", \
                       resource_metadata=\"http://localhost:9/.well-known/oauth-protected-resource/mcp\", \
                       scope=\"mcp:read mcp:write\"";

/// The key that the gateway signs with, as somebody who has all its secrets could use it.
struct Forge {
    key: EncodingKey,
    kid: String,
    public: Value,
    claims: Value,
}

impl Forge {
    async fn of(world: &World) -> Self {
        let mut secret = [0; 32];
        secret.copy_from_slice(&STANDARD.decode("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap());
        let ring = Arc::new(KeyRing::new(&[SealKey { id: "k1".to_owned(), secret }]).unwrap());
        let keys = world.records.signing_keys(Utc::now()).await.unwrap();
        let private = ring.open(Purpose::SigningKey, &keys[0].private).unwrap();
        let ann = world.user("ann").await;
        let now = Utc::now().timestamp();
        let claims = json!({ "iss": P, "sub": ann.id, "aud": R, "client_id": "c_x", "iat": now, "exp": now + 600,
            "jti": "j", "scope": "mcp:read mcp:write", "gid": "g", "rid": "r", "ver": ann.version });
        let (kid, public) = (keys[0].kid.clone(), keys[0].public.clone());
        Self { key: EncodingKey::from_ec_der(&private), kid, public, claims }
    }

    fn header(&self) -> Header {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("at+jwt".to_owned());
        header.kid = Some(self.kid.clone());
        header
    }

    /// A token with other claims: a value of null takes one out.
    fn claims(&self, changes: &Value) -> String {
        self.token(&self.header(), changes)
    }

    fn token(&self, header: &Header, changes: &Value) -> String {
        let mut claims = self.claims.clone();
        for (name, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        jsonwebtoken::encode(header, &claims, &self.key).unwrap()
    }
}

async fn is_invalid(world: &World, token: &str) -> bool {
    let reply = list(&world.client(0).bearer(token), "/mcp").await;
    let is_so = reply.status() == 401 && reply.header("www-authenticate") == Some(INVALID);
    is_so && reply.json().await["error"] == "invalid_token"
}

#[tokio::test]
async fn t13_to_t19_a_token_of_ours_is_accepted_for_what_it_says_and_in_its_time() {
    let world = World::one().await;
    let forge = Forge::of(&world).await;
    let now = Utc::now().timestamp();
    let good = forge.claims(&json!({}));
    assert_eq!(world.status(0, "/mcp", &good).await, 200, "t13");
    for (number, fine) in [
        ("t15", json!({ "exp": now - 27 })),
        ("t16", json!({ "nbf": now + 27 })),
        ("t17", json!({ "aud": ["x", R] })),
    ] {
        assert_eq!(world.status(0, "/mcp", &forge.claims(&fine)).await, 200, "{number} {fine}");
    }
    for (number, changes) in [
        ("t15", json!({ "exp": now - 33 })),
        ("t15", json!({ "exp": null })),
        ("t16", json!({ "nbf": now + 40 })),
        ("t17", json!({ "aud": format!("{R}/dev") })),
        ("t17", json!({ "aud": null })),
        ("t17", json!({ "aud": format!("{R}/") })),
        ("t17", json!({ "aud": P })),
        ("t18", json!({ "iss": "https://other" })),
        ("t18", json!({ "iss": format!("{P}/") })),
        ("t18", json!({ "iss": null })),
        ("t18", json!({ "iss": [P, "x"] })),
        ("sub", json!({ "sub": "" })),
        ("sub", json!({ "sub": null })),
        ("iat", json!({ "iat": now + 60 })),
        ("gid", json!({ "gid": null })),
        ("t22", json!({ "nonce": "n" })),
        ("t23", json!({ "cnf": { "jkt": "x" } })),
    ] {
        assert!(is_invalid(&world, &forge.claims(&changes)).await, "{number} {changes}");
    }
    assert_eq!(world.status(0, "/mcp/dev", &good).await, 401, "t17: another endpoint");
    let mut flipped = good.clone();
    let at = good.len() - 20;
    flipped.replace_range(at..=at, if &good[at..=at] == "A" { "B" } else { "A" });
    assert!(is_invalid(&world, &flipped).await, "t14");
    for (typ, is_fine) in [("JWT", false), ("application/AT+JWT", true), ("at+jwt", true)] {
        let mut header = forge.header();
        header.typ = Some(typ.to_owned());
        let accepted = world.status(0, "/mcp", &forge.token(&header, &json!({ "jti": typ }))).await == 200;
        assert_eq!(accepted, is_fine, "t19 {typ}");
    }
}

#[tokio::test]
async fn t20_t21_t24_a_token_does_not_choose_its_algorithm_or_key() {
    let world = World::one().await;
    let forge = Forge::of(&world).await;
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let none = format!("{}.{}.", part(&json!({ "alg": "none", "typ": "at+jwt" })), part(&forge.claims));
    assert!(is_invalid(&world, &none).await, "none");
    let mut hs = forge.header();
    hs.alg = Algorithm::HS256;
    for secret in [forge.public.to_string(), forge.public["x"].as_str().unwrap().to_owned()] {
        let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
        let token = jsonwebtoken::encode(&hs, &forge.claims, &key).unwrap();
        assert!(is_invalid(&world, &token).await, "HS256");
    }
    let hostile = drawbridge_testkit::backend::Backend::start(async |_| {
        drawbridge_testkit::backend::Reply::json(&json!({ "keys": [] }))
    })
    .await;
    let mut header = forge.header();
    header.jku = Some(hostile.url());
    header.x5u = Some(hostile.url());
    header.kid = Some("theirs".to_owned());
    assert!(is_invalid(&world, &forge.token(&header, &json!({}))).await, "jku");
    assert_eq!(hostile.connections(), 0, "nobody asks a server that a token names");
    let critical = json!({ "alg": "ES256", "typ": "at+jwt", "kid": forge.kid, "crit": ["x"], "x": 1 });
    let unsigned = format!("{}.{}.AAAA", part(&critical), part(&forge.claims));
    assert!(is_invalid(&world, &unsigned).await, "crit");
}

#[tokio::test]
async fn t25_t30_a_credential_is_one_short_bearer_token_in_the_header() {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let token = world.token(&ann).await;
    assert!(is_invalid(&world, &"x".repeat(9 * 1024)).await, "t25");
    let client = world.client(0);
    let body = drawbridge_testkit::client::request(1, "tools/list", json!({})).to_string();
    let any_case = client.post("/mcp", &[("authorization", &format!("bEaReR {token}"))], body.clone()).await;
    assert_eq!(any_case.status(), 200);
    let twice = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nauthorization: Bearer {token}\r\n\
         content-length: 2\r\n\r\n{{}}"
    );
    let answer = client.raw(twice.as_bytes(), std::time::Duration::from_millis(300)).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("invalid_request"), "{answer}");
    let basic = client.post("/mcp", &[("authorization", "Basic eDp5")], body.clone()).await;
    assert_eq!(basic.status(), 401);
    assert!(!basic.header("www-authenticate").unwrap().contains("error="));
    let query = client.post(&format!("/mcp?access_token={token}"), &[], body).await;
    assert_eq!(query.status(), 401);
    assert!(!world.gateways[0].program.stderr().contains(&token), "a token in the log");
}

#[tokio::test]
async fn issued_tokens_are_good_where_and_as_long_as_they_say() {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let now = Utc::now();
    let all = ["mcp:read", "mcp:write"];
    let secret = |made: (_, Secret)| made.1.expose().to_owned();
    let dev = secret(world.token_with(&ann, &all, |token| token.endpoints = ["dev".to_owned()].into()).await);
    assert_eq!((world.status(0, "/mcp/dev", &dev).await, world.status(0, "/mcp", &dev).await), (200, 401));
    let every = secret(world.token_with(&ann, &all, |token| token.endpoints = ["*".to_owned()].into()).await);
    assert_eq!(
        (world.status(0, "/mcp/dev", &every).await, world.status(0, "/mcp", &every).await),
        (200, 200)
    );
    let default = secret(world.token_with(&ann, &all, |_| ()).await);
    assert_eq!(
        (world.status(0, "/mcp/dev", &default).await, world.status(0, "/mcp", &default).await),
        (401, 200)
    );
    let old = secret(
        world.token_with(&ann, &all, |token| token.expires_at = Some(now - TimeDelta::seconds(1))).await,
    );
    assert!(is_invalid(&world, &old).await);
    let away = secret(
        world.token_with(&ann, &all, |token| token.networks = ["192.0.2.0/24".to_owned()].into()).await,
    );
    assert!(is_invalid(&world, &away).await);
    let near = secret(
        world.token_with(&ann, &all, |token| token.networks = ["127.0.0.0/8".to_owned()].into()).await,
    );
    assert_eq!(world.status(0, "/mcp", &near).await, 200);
    let sign_in = world.sign_in_token(&ann).await;
    assert_eq!(world.status(0, "/mcp", &sign_in).await, 403, "it is only for signing in");
    let stream = world.client(0).bearer(&sign_in).get("/mcp/sse", &[]).await;
    assert_eq!(stream.status(), 403, "nor does it open a stream");
    // A typing error is found without asking anybody.
    let mut typo = default.clone();
    typo.replace_range(10..11, if &default[10..11] == "A" { "B" } else { "A" });
    assert!(is_invalid(&world, &typo).await);
}

#[tokio::test]
async fn a_caller_who_comes_too_often_is_told_when_to_come_again_and_others_are_not() {
    let world = World::with("tokens", "limits: { caller_requests_per_minute: 60, caller_burst: 5 }\n").await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let (anns, bobs) = (world.token(&ann).await, world.token(&bob).await);
    for _ in 0..5 {
        assert_eq!(world.status(0, "/mcp", &anns).await, 200);
    }
    let reply = list(&world.client(0).bearer(&anns), "/mcp").await;
    assert_eq!(reply.status(), 429);
    assert!((1..=2).contains(&reply.header("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(world.status(0, "/mcp", &bobs).await, 200);
}

#[tokio::test]
async fn a_token_for_reading_lists_and_may_not_call() {
    let world = World::with("embedded", "  step_up: challenge").await;
    let ann = world.user("ann").await;
    let (_, read) = world.token_with(&ann, &["mcp:read"], |_| ()).await;
    let client = world.client(0).bearer(read.expose());
    assert_eq!(list(&client, "/mcp").await.status(), 200);
    let params = json!({ "name": "echo", "arguments": { "message": "x" } });
    let body = drawbridge_testkit::client::request(1, "tools/call", params).to_string();
    let reply = client.post("/mcp", &[], body.clone()).await;
    assert_eq!(reply.status(), 403);
    let challenge = reply.header("www-authenticate").unwrap();
    assert!(challenge.starts_with("Bearer error=\"insufficient_scope\""), "{challenge}");
    assert!(
        challenge.contains("scope=\"mcp:write\"") && challenge.contains("resource_metadata="),
        "{challenge}"
    );
    let write = world.token(&ann).await;
    assert_eq!(world.client(0).bearer(&write).post("/mcp", &[], body).await.status(), 200);
}

#[tokio::test]
async fn a_flood_of_invalid_tokens_gets_429_and_good_ones_of_its_address_are_let_in() {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let (warm, cold) = (world.token(&ann).await, world.token(&ann).await);
    let old = world.token_with(&ann, &["mcp:read"], |token| token.expires_at = Some(Utc::now())).await.1;
    assert_eq!(world.status(0, "/mcp", &warm).await, 200);
    let flood = async |many: usize| {
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..many {
            let guess = Secret::fresh(SecretKind::Personal);
            *seen.entry(world.status(0, "/mcp", guess.expose()).await).or_insert(0) += 1;
        }
        seen
    };
    let seen = flood(500).await;
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [401, 429], "{seen:?}");
    assert!(seen[&401] >= 300, "{seen:?}");

    let guess = Secret::fresh(SecretKind::Personal);
    let reply = list(&world.client(0).bearer(guess.expose()), "/mcp").await;
    assert_eq!((reply.status(), reply.header("www-authenticate")), (429, None));
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() <= 60);
    assert_eq!(world.status(0, "/mcp", &warm).await, 200);
    assert_eq!(world.status(0, "/mcp", &cold).await, 200);
    // Its host is to log in again, not to come back later.
    assert_eq!(world.status(0, "/mcp", old.expose()).await, 401);
    assert_eq!(list(&world.client(0), "/mcp").await.status(), 401);
    let log = world.gateways[0].program.stderr();
    assert_eq!(log.matches("too many invalid credentials from one address").count(), 1);
}

#[tokio::test]
async fn a_genuine_token_that_is_refused_is_no_guess_of_its_address() {
    let world = World::one().await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let of = async |owner, change: fn(&mut Token)| world.token_with(owner, &["mcp:read"], change).await.1;
    let elsewhere = of(&ann, |token| token.networks = ["192.0.2.0/24".to_owned()].into()).await;
    let for_dev = of(&ann, |token| token.endpoints = ["dev".to_owned()].into()).await;
    let of_bob = of(&bob, |_| ()).await;
    world.records.set_user_disabled(&bob.id, true, Utc::now()).await.unwrap();
    for round in 0..200 {
        for secret in [&elsewhere, &for_dev, &of_bob] {
            assert_eq!(world.status(0, "/mcp", secret.expose()).await, 401, "round {round}");
        }
    }
    let guess = Secret::fresh(SecretKind::Personal);
    assert_eq!(world.status(0, "/mcp", guess.expose()).await, 401, "nothing was counted before it");
    let log = world.gateways[0].program.stderr();
    assert!(!log.contains("too many invalid credentials from one address"));
}

#[tokio::test]
async fn a_token_is_limited_at_all_endpoints_together_and_its_successor_with_it() {
    let more = "limits: { token: { requests: 3, window: 1h } }\n";
    let world = World::with("tokens", more).await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let everywhere = |token: &mut Token| token.endpoints = ["*".to_owned()].into();
    let (first, secret) = world.token_with(&ann, &["mcp:read"], everywhere).await;
    let (_, next) = world
        .token_with(&ann, &["mcp:read"], |token| {
            everywhere(token);
            token.chain.clone_from(&first.chain);
        })
        .await;
    assert_eq!(world.status(0, "/mcp/demo", secret.expose()).await, 200);
    assert_eq!(world.status(0, "/mcp/dev", secret.expose()).await, 200);
    assert_eq!(world.status(0, "/mcp/dev", next.expose()).await, 200);
    assert_eq!(world.status(0, "/mcp/demo", next.expose()).await, 429);
    assert_eq!(world.status(0, "/mcp/dev", secret.expose()).await, 429);
    assert_eq!(world.status(0, "/mcp", &world.token(&bob).await).await, 200);
}

#[tokio::test]
async fn a_tool_can_be_limited_for_each_caller_alone() {
    let more = "limits: { tools: [{ name: echo, requests: 1, window: 1h, per: caller }] }\n";
    let world = World::with("tokens", more).await;
    let call = async |token: &str| {
        let params = json!({ "name": "echo", "arguments": { "message": "x" } });
        let body = drawbridge_testkit::client::request(1, "tools/call", params).to_string();
        let answer = world.client(0).bearer(token).post("/mcp", &[], body).await;
        assert_eq!(answer.status(), 200);
        answer.json().await["error"]["data"]["code"].as_str().map(str::to_owned)
    };
    for name in ["ann", "bob"] {
        let user = world.user(name).await;
        let token = world.token(&user).await;
        assert_eq!(call(&token).await, None);
        assert_eq!(call(&token).await.as_deref(), Some("rate_limited"));
    }
}
