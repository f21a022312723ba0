//! Tokens of another issuer: whose keys are fetched, and how often.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use drawbridge_testkit::backend::{Backend, Reply, Request};
use drawbridge_testkit::client::request;
use drawbridge_testkit::fleet::ready;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

const R: &str = "http://localhost:9/mcp";

/// A key of the issuer.
#[derive(Clone)]
pub(super) struct Key {
    kid: String,
    signs: EncodingKey,
    public: Value,
}

impl Key {
    pub(super) fn fresh(kid: &str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let signs = EncodingKey::from_ec_der(&pair.serialize_der());
        let mut jwk = Jwk::from_encoding_key(&signs, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(kid.to_owned());
        Self { kid: kid.to_owned(), signs, public: serde_json::to_value(jwk).unwrap() }
    }

    /// An ID token that says this.
    pub(super) fn id_token(&self, claims: &Value) -> String {
        self.sign("JWT", claims)
    }

    /// A token of this type that says this.
    pub(super) fn sign(&self, typ: &str, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some(typ.to_owned());
        header.kid = Some(self.kid.clone());
        jsonwebtoken::encode(&header, claims, &self.signs).unwrap()
    }
}

type Answer = Arc<Mutex<Box<dyn Fn(&str) -> Reply + Send>>>;

/// An issuer of tokens, and a gateway that accepts them.
struct World {
    issuer: Backend,
    answers: Answer,
    gateway: Gateway,
    _demo: DemoBackend,
}

pub(super) fn keys(keys: &[&Key]) -> Value {
    json!({ "keys": keys.iter().map(|key| key.public.clone()).collect::<Vec<_>>() })
}

impl World {
    async fn with(first: Value, more: &str) -> Self {
        Self::with_more(first, |_| more.to_owned()).await
    }

    /// `more` is told the URL of the issuer.
    async fn with_more(first: Value, more: impl FnOnce(&str) -> String) -> Self {
        let answers: Answer = Arc::new(Mutex::new(Box::new(move |_| Reply::json(&first))));
        let base = Arc::new(Mutex::new(String::new()));
        let (of_answers, of_base) = (answers.clone(), base.clone());
        let issuer = Backend::start(move |request: Request| {
            let (answers, base) = (of_answers.clone(), of_base.lock().unwrap().clone());
            async move {
                if request.path.contains("openid-configuration") {
                    return Reply::json(&json!({ "issuer": base, "jwks_uri": format!("{base}/keys") }));
                }
                let answer = answers.lock().unwrap();
                answer(&request.path)
            }
        })
        .await;
        let url = issuer.url_of("");
        base.lock().unwrap().clone_from(&url);
        let more = more(&url);
        let demo = DemoBackend::start().await;
        let gateway = Gateway::setup()
            .url("demo", &demo.url, "auto")
            .config("public: { url: \"http://localhost:9\" }")
            .config(&format!(
                "auth: {{ mode: external, external: [{{ issuer: \"{url}\", audiences: [api], client_ids: [web]{more} }}] }}"
            ))
            .start()
            .await;
        ready(&gateway).await;
        Self { issuer, answers, gateway, _demo: demo }
    }

    fn answer(&self, answer: impl Fn(&str) -> Reply + Send + 'static) {
        *self.answers.lock().unwrap() = Box::new(answer);
    }

    fn token(&self, key: &Key, changes: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("at+jwt".to_owned());
        header.kid = Some(key.kid.clone());
        let now = Utc::now().timestamp();
        let mut claims = json!({ "iss": self.issuer.url_of(""), "sub": "ann", "aud": R, "client_id": "c",
            "iat": now, "exp": now + 600, "scope": "mcp:read mcp:write", "jti": rand::random::<u64>().to_string() });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        jsonwebtoken::encode(&header, &claims, &key.signs).unwrap()
    }

    async fn status(&self, token: &str) -> u16 {
        let body = request(1, "tools/list", json!({})).to_string();
        self.gateway.client().bearer(token).post("/mcp", &[], body).await.status()
    }

    fn fetched(&self) -> usize {
        self.issuer.requests().iter().filter(|request| request.path == "/keys").count()
    }
}

#[tokio::test]
async fn tokens_of_a_named_issuer_are_accepted_and_clients_are_sent_there() {
    let key = Key::fresh("one");
    let world = World::with(keys(&[&key]), "").await;
    assert_eq!(world.status(&world.token(&key, &json!({}))).await, 200);
    assert_eq!(world.status(&world.token(&key, &json!({ "aud": ["api", "x"] }))).await, 200);
    assert_eq!(world.status(&world.token(&key, &json!({ "scope": null, "scp": ["mcp:read"] }))).await, 200);
    for changes in [
        json!({ "aud": "other" }),
        json!({ "iss": "https://other.example" }),
        json!({ "exp": Utc::now().timestamp() + 48 * 3600 }),
        json!({ "nonce": "n" }),
        json!({ "aud": ["api", "web"] }),
        json!({ "token_use": "id" }),
    ] {
        assert_eq!(world.status(&world.token(&key, &changes)).await, 401, "t22 {changes}");
    }
    let document =
        world.gateway.client().get("/.well-known/oauth-protected-resource/mcp", &[]).await.json().await;
    assert_eq!(document["authorization_servers"], json!([world.issuer.url_of("")]));
    assert_eq!(world.gateway.client().get("/authorize", &[]).await.status(), 404);
    assert_eq!(world.fetched(), 1);
}

#[tokio::test]
async fn t20_a_key_that_can_be_guessed_from_public_ones_is_none() {
    let key = Key::fresh("one");
    let oct = json!({ "kty": "oct", "kid": "planted", "k": "c2VjcmV0", "alg": "HS256" });
    let mut set = keys(&[&key]);
    set["keys"].as_array_mut().unwrap().push(oct);
    let world = World::with(set, "").await;
    let mut header = Header::new(Algorithm::HS256);
    header.typ = Some("at+jwt".to_owned());
    header.kid = Some("planted".to_owned());
    let claims = json!({ "iss": world.issuer.url_of(""), "sub": "ann", "aud": R, "client_id": "c",
        "exp": Utc::now().timestamp() + 600 });
    let planted = EncodingKey::from_secret(b"secret").unwrap();
    assert_eq!(world.status(&jsonwebtoken::encode(&header, &claims, &planted).unwrap()).await, 401);
    assert_eq!(world.status(&world.token(&key, &json!({}))).await, 200);
}

#[tokio::test]
async fn t26_keys_that_nobody_knows_cost_one_question() {
    let key = Key::fresh("one");
    let world = World::with(keys(&[&key]), "").await;
    assert_eq!(world.status(&world.token(&key, &json!({}))).await, 200);
    for n in 0..200 {
        let stranger = Key { kid: format!("k{n}"), ..key.clone() };
        assert_eq!(world.status(&world.token(&stranger, &json!({}))).await, 401);
    }
    assert!(world.fetched() <= 2, "{} questions", world.fetched());
}

#[tokio::test]
async fn t28_an_issuer_that_is_down_is_no_reason_to_throw_tokens_away() {
    let key = Key::fresh("one");
    let world = World::with(keys(&[&key]), "").await;
    world.answer(|_| Reply::status(500));
    let token = world.token(&key, &json!({}));
    let body = request(1, "tools/list", json!({})).to_string();
    let reply = world.gateway.client().bearer(&token).post("/mcp", &[], body).await;
    assert_eq!((reply.status(), reply.header("retry-after")), (503, Some("5")));
    assert_eq!(reply.header("www-authenticate"), None);
    assert_eq!(reply.json().await["error"], "temporarily_unavailable");
}

#[tokio::test]
async fn t29_a_set_of_keys_that_is_none_is_not_taken() {
    let key = Key::fresh("one");
    for answer in [
        (|_: &str| Reply::text(200, "application/json", "x".repeat(65 * 1024))) as fn(&str) -> Reply,
        |_| Reply::text(200, "text/html", "<html>"),
        |_| Reply::text(302, "text/plain", "").header("location", "/keys2"),
        |_| Reply::text(200, "application/json", "{\"keys\":1}"),
    ] {
        let world = World::with(keys(&[&key]), "").await;
        world.answer(answer);
        assert_eq!(world.status(&world.token(&key, &json!({}))).await, 503);
        assert!(world.issuer.requests().iter().all(|request| request.path != "/keys2"));
    }
    // An RSA key that is too short is left out, the others of its set are used.
    let weak = json!({ "kty": "RSA", "kid": "weak", "n": "AQAB".repeat(40), "e": "AQAB" });
    let mut set = keys(&[&key]);
    set["keys"].as_array_mut().unwrap().insert(0, weak);
    let world = World::with(set, "").await;
    assert_eq!(world.status(&world.token(&key, &json!({}))).await, 200);
}

/// A gateway that asks `issuer` about tokens that are no JSON Web Tokens.
async fn asking(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> World {
    let key = Key::fresh("one");
    let secret = "a secret: with + and ü";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, secret).unwrap();
    let world = World::with_more(
        keys(&[&key]),
        |url| {
            format!(
                ", introspection: {{ url: \"{url}/ask\", client_id: \"gate way\", client_secret: {{ file: \"{}\" }} }}",
                file.display()
            )
        },
    )
    .await;
    let answer = Arc::new(answer);
    world.issuer.behave(move |request: Request| {
        let answer = answer.clone();
        async move { answer(&request) }
    });
    world
}

#[tokio::test]
async fn t31_an_issuer_is_asked_about_tokens_that_say_nothing_and_believed_for_half_a_minute() {
    let active = json!({ "active": true, "sub": "ann", "client_id": "c", "aud": R, "token_type": "bearer",
        "scope": "mcp:read mcp:write", "exp": Utc::now().timestamp() + 600 });
    let world = asking(move |request| {
        let form: std::collections::HashMap<_, _> =
            url::form_urlencoded::parse(&request.text).into_owned().collect();
        let token = form["token"].as_str();
        let mut answer = active.clone();
        match token {
            "good" | "good/+=" => {}
            "for-api" => answer["aud"] = json!(["x", "api"]),
            "no-client" => drop(answer.as_object_mut().unwrap().remove("client_id")),
            "down" => return Reply::status(500),
            "garbled" => return Reply::text(200, "text/html", "<html>"),
            "inactive" => answer = json!({ "active": false }),
            "a-string" => answer["active"] = json!("true"),
            "no-audience" => drop(answer.as_object_mut().unwrap().remove("aud")),
            "other-audience" => answer["aud"] = json!(format!("{R}/dev")),
            "other-issuer" => answer["iss"] = json!("https://other.example"),
            "expired" => answer["exp"] = json!(Utc::now().timestamp() - 1),
            "not-yet" => answer["nbf"] = json!(Utc::now().timestamp() + 60),
            "dpop" => answer["token_type"] = json!("DPoP"),
            "bound" => answer["cnf"] = json!({ "jkt": "x" }),
            "forged-client" => answer["client_id"] = json!("\u{2205}"),
            "two-lines" => answer["sub"] = json!("ann\nbob"),
            "nobody" => answer = json!({ "active": true, "aud": R, "exp": answer["exp"] }),
            "old" => answer["iat"] = json!(Utc::now().timestamp() - 23 * 3600),
            other => panic!("{other}"),
        }
        Reply::json(&answer)
    })
    .await;
    for token in ["good", "good", "good/+=", "for-api", "no-client", "old"] {
        assert_eq!(world.status(token).await, 200, "{token}");
    }
    for token in [
        "garbled",
        "inactive",
        "a-string",
        "no-audience",
        "other-audience",
        "other-issuer",
        "expired",
        "not-yet",
        "dpop",
        "bound",
        "forged-client",
        "two-lines",
        "nobody",
    ] {
        assert_eq!(world.status(token).await, 401, "{token}");
    }
    assert_eq!(world.status("down").await, 503);
    let asked = world.issuer.requests();
    let of = |token: &str| {
        asked.iter().filter(|request| request.text.starts_with(format!("token={token}&").as_bytes())).count()
    };
    assert_eq!((of("good"), of("inactive")), (1, 1));
    let basic = STANDARD.encode("gate+way:a+secret%3A+with+%2B+and+%C3%BC");
    for request in &asked {
        assert_eq!(request.header("authorization"), format!("Basic {basic}"));
        assert_eq!(request.path, "/ask");
    }
    let log = world.gateway.program.stderr();
    for planted in ["good/+=", "good%2F", "a secret", &basic] {
        assert!(!log.contains(planted), "{planted}");
    }
}

#[tokio::test]
async fn t31_an_answer_is_held_to_the_same_as_what_tokens_say_themselves() {
    let world = asking(|request| {
        let now = Utc::now().timestamp();
        let mut answer = json!({ "active": true, "sub": "ann", "client_id": "c", "aud": R, "scope": "mcp:read",
            "iat": now, "exp": now + 600 });
        match request.text.split(|b| *b == b'&').next().unwrap() {
            b"token=good" => {}
            b"token=too-long" => answer["exp"] = json!(now + 48 * 3600),
            b"token=long-ago" => answer["iat"] = json!(now - 24 * 3600),
            b"token=endless" => drop(answer.as_object_mut().unwrap().remove("exp")),
            b"token=tomorrows" => answer["iat"] = json!(now + 300),
            b"token=of-a-login" => answer["aud"] = json!(["api", "web"]),
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
        Reply::json(&answer)
    })
    .await;
    assert_eq!(world.status("good").await, 200);
    for token in ["too-long", "long-ago", "endless", "tomorrows", "of-a-login"] {
        assert_eq!(world.status(token).await, 401, "{token}");
    }
    let log = world.gateway.program.stderr();
    assert!(log.contains("does not say when it ends (exp), so max_lifetime can't be checked"), "{log}");
}

#[tokio::test]
async fn t31_many_who_come_with_one_token_ask_its_issuer_once() {
    let world = asking(|_| {
        Reply::json(&json!({ "active": true, "sub": "ann", "client_id": "c", "aud": R, "scope": "mcp:read",
            "exp": Utc::now().timestamp() + 600 }))
    })
    .await;
    let all = futures_util::future::join_all((0..20).map(|_| world.status("one"))).await;
    assert!(all.iter().all(|status| *status == 200), "{all:?}");
    assert_eq!(world.issuer.requests().len(), 1);
}
