//! Clients that describe themselves by a document. A document is at a public name and at port 443, neither of which a
//! test has, so the authorization server is made here of its parts, with a fetcher of the test: what this can't show is
//! that the program fetches through the guarded client. That one's own tests are in `drawbridge_upstream::guarded`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use chrono::Utc;
use drawbridge_auth::audit::AuditTrail;
use drawbridge_auth::fetch::{Fetch, NotFetched};
use drawbridge_auth::named_clients::NamedClients;
use drawbridge_auth::records::{Records, User};
use drawbridge_auth::resource::Origin;
use drawbridge_auth::revoking::Revocations;
use drawbridge_auth::signing::Signer;
use drawbridge_auth::verifier::{Issuer, Verifier};
use drawbridge_core::Tasks;
use drawbridge_core::revocation::MemoryRevocations;
use drawbridge_core::seal::{KeyRing, SealKey};
use drawbridge_core::state::{MemoryClaims, MemoryLimiter, WithFallback};
use drawbridge_oauth::oidc::{Provider, ProviderOptions};
use drawbridge_oauth::options::{Options, Registration};
use drawbridge_oauth::{Endpoints, Parts};
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_testkit::client::{Client, Reply};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::world::{Browser, P, REDIRECT, Request, VERIFIER, World, oauth_error, post_form};
use crate::backends::spawn;

/// The default endpoint alone, with nothing behind it.
struct OneEndpoint;

impl Endpoints for OneEndpoint {
    fn backends(&self, endpoint: Option<&str>) -> Option<Vec<String>> {
        endpoint.is_none().then(Vec::new)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What Claude Code has at this URL: any port of the user's machine.
const CLAUDE_CODE: &str = "https://claude.ai/oauth/claude-code-client-metadata";
const CHATGPT: &str = "https://chatgpt.com/oauth/abc/client.json";

fn claude_code() -> Value {
    json!({ "client_id": CLAUDE_CODE, "client_name": "Claude Code", "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
        "redirect_uris": ["http://localhost/callback", "http://127.0.0.1/callback"] })
}

#[derive(Clone)]
enum Answer {
    Json(Value),
    Other(u16, &'static str, String),
    Away,
}

/// Answers as the test says, and writes down what was asked.
#[derive(Default)]
struct Web {
    answers: Mutex<HashMap<String, Answer>>,
    asked: Mutex<Vec<String>>,
}

impl Web {
    fn at(&self, url: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(url.to_owned(), answer);
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[async_trait]
impl Fetch for Web {
    async fn fetch(
        &self,
        request: http::Request<Vec<u8>>,
        most: usize,
    ) -> Result<http::Response<Vec<u8>>, NotFetched> {
        let url = request.uri().to_string();
        self.asked.lock().unwrap().push(url.clone());
        let answer = self.answers.lock().unwrap().get(&url).cloned().unwrap_or(Answer::Away);
        let (status, media, body) = match answer {
            Answer::Json(value) => (200, "application/json; charset=utf-8", value.to_string()),
            Answer::Other(status, media, body) => (status, media, body),
            Answer::Away => return Err(NotFetched("connection to 10.0.0.7 refused".to_owned())),
        };
        if body.len() > most {
            return Err(NotFetched("too large".to_owned()));
        }
        let response = http::Response::builder().status(status).header("content-type", media);
        Ok(response.body(body.into_bytes()).unwrap())
    }
}

/// Authorization servers over one database and one web, each with a memory of its own.
struct Site {
    web: Arc<Web>,
    servers: Vec<Client>,
    world: World,
    _dir: TempDir,
}

impl Site {
    async fn new(count: usize) -> Self {
        Self::with(count, Registration::Curated).await
    }

    async fn with(count: usize, policy: Registration) -> Self {
        Self::made(count, policy, None).await
    }

    async fn made(count: usize, policy: Registration, provider: Option<ProviderOptions>) -> Self {
        let dir = TempDir::new().unwrap();
        let url = format!("sqlite:{}", dir.path().join("records.db").display());
        let sql = Arc::new(SqlRecords::open(&url, &SqlOptions::default()).unwrap());
        sql.migrate().await.unwrap();
        let (web, claims) = (Arc::new(Web::default()), Arc::new(MemoryClaims::default()));
        let mut servers = Vec::new();
        for _ in 0..count {
            let records: Arc<dyn Records> = sql.clone();
            let origin = Origin::of(&P.parse().unwrap());
            let key = SealKey { id: "k".to_owned(), secret: [7; 32] };
            let ring = Arc::new(KeyRing::new(&[key]).unwrap());
            let revocations = Revocations::new(records.clone(), Arc::new(MemoryRevocations::default()));
            revocations.read().await.unwrap();
            let signer = Arc::new(Signer::new(P, records.clone(), ring.clone()));
            signer.tend().await.unwrap();
            let clients = Arc::new(NamedClients::new(revocations.clone()));
            let own = Issuer {
                policy: signer.policy(),
                keys: signer.clone(),
                own: Some(clients.clone()),
                introspection: None,
            };
            let limiter = WithFallback::new(Arc::new(MemoryLimiter::default()));
            let resources = Some(origin.clone());
            let (of_verifier, revoked, tasks) = (records.clone(), revocations.clone(), Tasks::default());
            let verifier = Verifier::new(resources, of_verifier, revoked, vec![own], limiter, tasks.clone());
            let mut options = Options::default();
            options.client_documents.policy = policy;
            let router = drawbridge_oauth::server(Parts {
                origin,
                options,
                provider: provider.clone().map(|options| Provider::new(options, web.clone(), tasks.clone())),
                id_jag: Vec::new(),
                clients,
                guarded: web.clone(),
                records,
                signer,
                revocations,
                verifier: Arc::new(verifier),
                ring,
                claims: claims.clone(),
                limiter: Arc::new(MemoryLimiter::default()),
                endpoints: Arc::new(OneEndpoint),
                connections: None,
                tasks,
                trail: Arc::new(AuditTrail::new(sql.clone())),
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            servers.push(Client::new(&format!("http://{}", listener.local_addr().unwrap())));
            spawn(async move { axum::serve(listener, router).await });
        }
        let world = World::around(SqlRecords::open(&url, &SqlOptions::default()).unwrap()).await;
        Self { web, servers, world, _dir: dir }
    }

    fn browser(&self) -> Browser {
        Browser::new(&self.servers[0])
    }

    /// A user, and a token to sign in with.
    async fn user(&self) -> (User, String) {
        let user = self.world.user("ann").await;
        let token = self.world.sign_in_token(&user).await;
        (user, token)
    }

    async fn redeem(&self, number: usize, client_id: &str, code: &str, more: &[(&str, &str)]) -> Reply {
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", REDIRECT),
            ("code_verifier", VERIFIER),
        ];
        form.extend(Some(("client_id", client_id)).filter(|(_, id)| !id.is_empty()));
        form.extend(more);
        post_form(&self.servers[number], "/token", &form).await
    }
}

#[tokio::test]
async fn a_login_that_is_denied_sends_nobody_where_an_unread_document_may_not_allow() {
    let issuer = "https://login.example.com";
    let provider = ProviderOptions {
        issuer: issuer.to_owned(),
        client_id: "gateway".to_owned(),
        client_secret: None,
        scopes: Vec::new(),
        groups_claim: "groups".to_owned(),
    };
    let site = Site::made(1, Registration::Curated, Some(provider)).await;
    let metadata = json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys"),
        "authorization_endpoint": format!("{issuer}/auth"), "token_endpoint": format!("{issuer}/token") });
    site.web.at(&format!("{issuer}/.well-known/openid-configuration"), Answer::Json(metadata));
    let browser = site.browser();
    let request = Request::of(CLAUDE_CODE).with("redirect_uri", "https://evil.example/cb");
    let state = browser.get(&request.path()).await.parameter("state").unwrap();
    let query = super::world::encoded(&[("state", &state), ("error", "access_denied")]);
    let page = browser.get(&format!("/login/callback?{query}")).await;
    assert!(page.is_error_page(403), "{page:?}");
    // A client that is known is told.
    let body = json!({ "client_name": "A test", "redirect_uris": [REDIRECT] }).to_string();
    let registered = site.servers[0].post("/register", &[], body).await.json().await;
    let known = Request::of(registered["client_id"].as_str().unwrap());
    let state = browser.get(&known.path()).await.parameter("state").unwrap();
    let query = super::world::encoded(&[("state", &state), ("error", "access_denied")]);
    let told = browser.get(&format!("/login/callback?{query}")).await;
    assert_eq!(told.parameter("error").as_deref(), Some("access_denied"), "{told:?}");
}

/// Signs in without expecting more than an answer.
async fn sign_in(browser: &Browser, request: &Request, token: &str) -> super::world::Page {
    let page = browser.get(&request.path()).await;
    if page.status != 200 {
        return page;
    }
    browser.post("/login", &[("transaction", &page.transaction()), ("token", token)]).await
}

#[tokio::test]
async fn t62_a_client_that_describes_itself_logs_in_and_its_domain_is_shown() {
    let site = Site::new(2).await;
    site.web.at(CLAUDE_CODE, Answer::Json(claude_code()));
    let metadata = site.servers[0].get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    assert_eq!(metadata["client_id_metadata_document_supported"], true);
    assert_eq!(metadata["token_endpoint_auth_methods_supported"][0], "none");
    let (_, token) = site.user().await;
    let browser = site.browser();
    let page = browser.sign_in(&Request::of(CLAUDE_CODE), &token).await;
    for text in ["claude.ai", "“Claude Code”", "program on this computer", "3118", "Any program on this"]
    {
        assert!(page.text.contains(text), "{text}: {}", page.text);
    }
    assert!(!page.text.contains("Nobody has checked it"));
    let answered = browser.decide(&page, "allow", &["mcp:read"]).await;
    let code = answered.parameter("code").unwrap();
    assert_eq!(site.web.asked(), 1);
    // Another instance has no copy and fetches one.
    let reply = site.redeem(1, CLAUDE_CODE, &code, &[]).await;
    assert_eq!((reply.status(), site.web.asked()), (200, 2));
    let refresh = reply.json().await["refresh_token"].as_str().unwrap().to_owned();
    site.web.at(CLAUDE_CODE, Answer::Away);
    let form = [("grant_type", "refresh_token"), ("client_id", CLAUDE_CODE), ("refresh_token", &refresh)];
    let reply = post_form(&site.servers[0], "/token", &form).await;
    assert_eq!((reply.status(), site.web.asked()), (200, 2));
}

#[tokio::test]
async fn t63_what_is_no_document_is_a_page_that_gives_nothing_away() {
    let site = Site::with(1, Registration::Open).await;
    let (_, token) = site.user().await;
    for url in [
        "http://claude.ai/x",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://127.1/x",
        "https://localhost/x",
        "https://intranet/x",
        "https://a.internal/x",
        "https://a.local/x",
        "https://a.localhost/x",
        "https://a.example:8443/x",
        "https://a.example:443/x",
        "https://a.example",
        "https://a.example/",
        "https://a.example/a/../b",
        "https://a.example/a/%2e%2E/b",
        "https://a.example/a%2Fb",
        "https://u@a.example/x",
        "https://a.example/x?y=1",
        "https://a.example/x#y",
        "https://a.example\\x",
        "https://A.example/x",
        "https://a.example./x",
        "https://a.example/ x",
        &format!("https://a.example/{}", "x".repeat(512)),
    ] {
        let page = sign_in(&site.browser(), &Request::of(url), &token).await;
        assert!(page.is_error_page(400) && page.text.contains("not registered"), "{url}: {}", page.text);
    }
    assert_eq!(site.web.asked(), 0);

    let changed = |name: &str, value: Value| {
        let mut document = claude_code();
        document[name] = value;
        document
    };
    let html = "<html></html>".to_owned();
    let answers = [
        Answer::Away,
        Answer::Json(json!([])),
        Answer::Json(changed("client_id", json!("https://claude.ai/other"))),
        Answer::Json(changed("client_id", Value::Null)),
        Answer::Json(changed("client_secret", json!("x"))),
        Answer::Json(changed("client_secret_expires_at", json!(0))),
        Answer::Json(changed("client_name", Value::Null)),
        Answer::Json(changed("redirect_uris", json!([]))),
        Answer::Json(changed("redirect_uris", json!(vec![REDIRECT; 21]))),
        Answer::Json(changed("redirect_uris", json!([REDIRECT, "javascript:alert(1)"]))),
        Answer::Json(changed("grant_types", json!(["client_credentials"]))),
        Answer::Json(changed("token_endpoint_auth_method", json!("client_secret_post"))),
        Answer::Json(changed("token_endpoint_auth_method", json!("private_key_jwt"))),
        Answer::Json(changed("jwks_uri", json!("https://keys.example/jwks"))),
        Answer::Json(changed("jwks", json!({ "keys": [{ "kty": "oct", "k": "AAAA" }] }))),
        Answer::Json(changed("client_uri", json!("x".repeat(6 * 1024)))),
        Answer::Other(200, "text/html", html.clone()),
        Answer::Other(200, "application/json", html),
        Answer::Other(302, "application/json", claude_code().to_string()),
        Answer::Other(404, "application/json", claude_code().to_string()),
    ];
    // Who has logged in once need not again.
    let browser = site.browser();
    for (n, answer) in answers.into_iter().enumerate() {
        let url = format!("https://claude.ai/{n}");
        let answer = match answer {
            Answer::Json(mut document) if document["client_id"] == CLAUDE_CODE => {
                document["client_id"] = json!(url);
                Answer::Json(document)
            }
            other => other,
        };
        site.web.at(&url, answer);
        let page = sign_in(&browser, &Request::of(&url), &token).await;
        assert!(page.is_error_page(400), "{n}: {}", page.text);
        assert!(page.text.contains("description of itself") && !page.text.contains("10.0.0.7"), "{n}");
    }
}

#[tokio::test]
async fn t63_an_unlisted_host_is_unknown_where_only_known_ones_are_accepted() {
    let site = Site::new(1).await;
    for url in ["https://evil.example/x", "https://claude.ai.evil.example/x", "https://github.com/evil/x"] {
        assert!(site.browser().get(&Request::of(url).path()).await.is_error_page(400), "{url}");
    }
    let copilot = "https://github.com/copilot/cli/client-metadata.json";
    assert_eq!(site.browser().get(&Request::of(copilot).path()).await.status, 200);
    let closed = Site::with(1, Registration::Closed).await;
    assert!(closed.browser().get(&Request::of(CLAUDE_CODE).path()).await.is_error_page(400));
    let metadata = closed.servers[0].get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    assert_eq!(metadata["client_id_metadata_document_supported"], Value::Null);
}

#[tokio::test]
async fn t64_nobody_who_has_not_logged_in_makes_the_gateway_fetch() {
    let site = Site::new(1).await;
    site.web.at(CLAUDE_CODE, Answer::Json(claude_code()));
    assert_eq!(site.browser().get(&Request::of(CLAUDE_CODE).path()).await.status, 200);
    // Until the document was looked at, whatever is wrong is a page: nothing is sent to anywhere.
    for request in [
        Request::of(CLAUDE_CODE).with("response_type", "token"),
        Request::of(CLAUDE_CODE).with("code_challenge_method", "plain"),
        Request::of(CLAUDE_CODE).with("resource", "https://other.example/mcp"),
        Request::of(CLAUDE_CODE).with("prompt", "none"),
        Request::of(CLAUDE_CODE).with("request_uri", "https://evil.example"),
        Request::of(CLAUDE_CODE).and("scope", "mcp:read"),
    ] {
        let page = site.browser().get(&request.path()).await;
        assert!(page.is_error_page(400), "{request:?}: {}", page.text);
    }
    // Nor does a program that holds nothing that somebody has granted.
    let reply = site.redeem(0, CLAUDE_CODE, "no code", &[]).await;
    assert_eq!(oauth_error(reply).await, (400, "invalid_grant".to_owned()));
    let form = [("client_id", CLAUDE_CODE), ("token", "none")];
    assert_eq!(post_form(&site.servers[0], "/revoke", &form).await.status(), 200);
    assert_eq!(site.web.asked(), 0);
}

/// A key of a client.
struct Key {
    algorithm: Algorithm,
    signs: EncodingKey,
}

impl Key {
    fn ec() -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self { algorithm: Algorithm::ES256, signs: EncodingKey::from_ec_der(&pair.serialize_der()) }
    }

    fn rsa() -> Self {
        let pair = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048);
        // PKCS #1 is what PKCS #8 wraps, after 26 bytes for a key of this size.
        let der = pair.unwrap().serialize_der()[26..].to_vec();
        Self { algorithm: Algorithm::RS256, signs: EncodingKey::from_rsa_der(&der) }
    }

    fn set(&self) -> Value {
        let jwk = Jwk::from_encoding_key(&self.signs, self.algorithm).unwrap();
        json!({ "keys": [serde_json::to_value(jwk).unwrap()] })
    }

    fn assertion(&self, client: &str, changes: &Value) -> String {
        let now = Utc::now().timestamp();
        let mut claims = json!({ "iss": client, "sub": client, "aud": P, "exp": now + 300,
            "jti": rand::random::<u64>().to_string() });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, &self.signs).unwrap()
    }
}

fn proof(assertion: &str) -> [(&str, &str); 2] {
    [
        ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
        ("client_assertion", assertion),
    ]
}

fn refreshing<'a>(token: &'a str, assertion: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut form = vec![("grant_type", "refresh_token"), ("refresh_token", token)];
    form.extend(proof(assertion));
    form
}

#[tokio::test]
async fn t65_a_client_with_a_key_of_its_own_must_prove_who_it_is() {
    let site = Site::new(2).await;
    let keys_at = "https://chatgpt.com/oauth/jwks.json";
    let document = |more: Value| {
        let mut document = json!({ "client_id": CHATGPT, "client_name": "ChatGPT", "redirect_uris": [REDIRECT],
            "token_endpoint_auth_method": "private_key_jwt" });
        for (name, value) in more.as_object().unwrap() {
            document[name] = value.clone();
        }
        Answer::Json(document)
    };
    let key = Key::rsa();
    site.web.at(CHATGPT, document(json!({ "jwks_uri": keys_at })));
    site.web.at(keys_at, Answer::Json(key.set()));
    let (_, token) = site.user().await;
    let code = site.browser().allow(&Request::of(CHATGPT), &token).await;
    let now = Utc::now().timestamp();
    assert_eq!(
        oauth_error(site.redeem(0, CHATGPT, &code, &[]).await).await,
        (401, "invalid_client".to_owned())
    );
    let confused = Key { algorithm: Algorithm::HS256, signs: EncodingKey::from_secret(&[7; 64]).unwrap() };
    for bad in [
        key.assertion(CHATGPT, &json!({ "aud": "https://other.example" })),
        key.assertion(CHATGPT, &json!({ "exp": now + 3600 })),
        key.assertion(CHATGPT, &json!({ "iss": "https://chatgpt.com" })),
        confused.assertion(CHATGPT, &json!({})),
        Key::rsa().assertion(CHATGPT, &json!({})),
        "x".repeat(17 * 1024),
    ] {
        let reply = site.redeem(0, CHATGPT, &code, &proof(&bad)).await;
        assert_eq!(oauth_error(reply).await, (401, "invalid_client".to_owned()));
    }
    let good = key.assertion(CHATGPT, &json!({}));
    let two = [proof(&good)[0], proof(&good)[1], ("client_secret", "x")];
    let reply = site.redeem(0, CHATGPT, &code, &two).await;
    assert_eq!(oauth_error(reply).await, (400, "invalid_request".to_owned()));
    let reply = site.redeem(0, "", &code, &proof(&good)).await;
    assert_eq!(reply.status(), 200);
    let refresh = reply.json().await["refresh_token"].as_str().unwrap().to_owned();
    // What was used at one instance is used up at the other.
    let reply = post_form(&site.servers[1], "/token", &refreshing(&refresh, &good)).await;
    assert_eq!(oauth_error(reply).await, (401, "invalid_client".to_owned()));
    let fresh = key.assertion(CHATGPT, &json!({ "aud": [format!("{P}/token")] }));
    assert_eq!(post_form(&site.servers[1], "/token", &refreshing(&refresh, &fresh)).await.status(), 200);

    // One that offers both need not, but what it signs must be right.
    let site = Site::new(1).await;
    let key = Key::ec();
    let both =
        json!({ "jwks": key.set(), "token_endpoint_auth_methods_supported": ["none", "private_key_jwt"] });
    site.web.at(CHATGPT, document(both));
    let (_, token) = site.user().await;
    let code = site.browser().allow(&Request::of(CHATGPT), &token).await;
    let wrong = Key::ec().assertion(CHATGPT, &json!({}));
    assert_eq!(site.redeem(0, CHATGPT, &code, &proof(&wrong)).await.status(), 401);
    assert_eq!(site.redeem(0, CHATGPT, &code, &[]).await.status(), 200);
}

#[tokio::test]
async fn t65_a_client_that_registers_its_keys_proves_who_it_is_with_them() {
    let site = Site::new(1).await;
    let key = Key::ec();
    let body = json!({ "client_name": "signs", "redirect_uris": [REDIRECT], "jwks": key.set(),
        "token_endpoint_auth_method": "private_key_jwt" });
    let reply = site.servers[0].post("/register", &[], body.to_string()).await;
    assert_eq!(reply.status(), 201);
    let answer = reply.json().await;
    assert_eq!(answer["token_endpoint_auth_method"], "private_key_jwt");
    assert_eq!((&answer["jwks"], &answer["client_secret"]), (&key.set(), &Value::Null));
    let id = answer["client_id"].as_str().unwrap();
    let (_, token) = site.user().await;
    let code = site.browser().allow(&Request::of(id), &token).await;
    assert_eq!(site.redeem(0, id, &code, &[]).await.status(), 401);
    let wrong = Key::ec().assertion(id, &json!({}));
    assert_eq!(site.redeem(0, id, &code, &proof(&wrong)).await.status(), 401);
    let good = key.assertion(id, &json!({}));
    assert_eq!(site.redeem(0, id, &code, &proof(&good)).await.status(), 200);

    let mut secret = key.set();
    secret["keys"][0]["d"] = json!("AAAA");
    let body = json!({ "redirect_uris": [REDIRECT], "jwks": secret });
    let reply = site.servers[0].post("/register", &[], body.to_string()).await;
    assert_eq!(oauth_error(reply).await, (400, "invalid_client_metadata".to_owned()));
    let body = json!({ "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "private_key_jwt" });
    let answer = site.servers[0].post("/register", &[], body.to_string()).await.json().await;
    assert_eq!(answer["token_endpoint_auth_method"], "none");
}

#[tokio::test]
async fn t66_a_document_without_the_redirect_uri_is_a_page() {
    let site = Site::new(1).await;
    let (_, token) = site.user().await;
    let mut document = claude_code();
    document["redirect_uris"] = json!(["https://claude.ai/api/mcp/auth_callback"]);
    site.web.at(CLAUDE_CODE, Answer::Json(document));
    let page = sign_in(&site.browser(), &Request::of(CLAUDE_CODE), &token).await;
    assert!(page.is_error_page(400) && page.text.contains("has not registered"), "{}", page.text);
    let request = Request::of(CLAUDE_CODE).with("redirect_uri", "https://claude.ai/api/mcp/auth_callback");
    let page = sign_in(&site.browser(), &request, &token).await;
    assert_eq!(page.status, 200);
    assert!(!page.text.contains("Any program on this"), "{}", page.text);
}
