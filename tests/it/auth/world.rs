//! Gateways that ask who somebody is, their records, and a browser to log in with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{Records, Token, User, UserClaims};
use drawbridge_auth::token::{Secret, SecretKind, TokenKind};
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_testkit::client::{Client, Reply, header_map};
use drawbridge_testkit::fleet::{SEAL, ready};
use drawbridge_testkit::gateway::{DemoBackend, Gateway, Setup};
use drawbridge_testkit::postgres::PostgresDatabase;
use drawbridge_testkit::redis::RedisServer;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What the gateways say that they are. Nobody listens there: tests speak to each of them directly.
pub(super) const P: &str = "http://localhost:9";
/// The default resource.
pub(super) const R: &str = "http://localhost:9/mcp";
/// Where the client of most tests is answered.
pub(super) const REDIRECT: &str = "http://localhost:3118/callback";

/// Gateways over one database.
pub(super) struct World {
    pub(super) gateways: Vec<Gateway>,
    pub(super) records: SqlRecords,
    pub(super) redis: Option<RedisServer>,
    pub(super) database: Option<PostgresDatabase>,
    _demo: DemoBackend,
}

fn setup(demo: &DemoBackend, mode: &str, more: &str) -> Setup {
    Gateway::setup()
        .url("demo", &demo.url, "auto")
        .config(&format!("public: {{ url: \"{P}\" }}"))
        .config(SEAL)
        .config("endpoints: { dev: { backends: [demo] } }")
        .config(&format!("auth:\n  mode: {mode}\n{more}"))
}

impl World {
    /// One gateway with its own database.
    pub(super) async fn one() -> Self {
        Self::with("embedded", "").await
    }

    /// One gateway of this mode, and more lines of `auth`, each indented by two spaces.
    pub(super) async fn with(mode: &str, more: &str) -> Self {
        Self::over(mode, more, |setup| setup).await
    }

    /// The same with more backends, that `add` adds.
    pub(super) async fn over(mode: &str, more: &str, add: impl FnOnce(Setup) -> Setup) -> Self {
        let demo = DemoBackend::start().await;
        let gateway = add(setup(&demo, mode, more)).start().await;
        ready(&gateway).await;
        let file = gateway.dir().join("data/drawbridge.db");
        let records =
            SqlRecords::open(&format!("sqlite:{}", file.display()), &SqlOptions::default()).unwrap();
        Self { gateways: vec![gateway], records, redis: None, database: None, _demo: demo }
    }

    /// None: records alone, for servers that a test makes itself.
    pub(super) async fn around(records: SqlRecords) -> Self {
        let demo = DemoBackend::start().await;
        Self { gateways: Vec::new(), records, redis: None, database: None, _demo: demo }
    }

    /// Several that share PostgreSQL and Redis.
    pub(super) async fn several(count: usize) -> Self {
        Self::several_with(count, |setup| setup).await
    }

    /// The same with more backends or other settings, that `add` adds.
    pub(super) async fn several_with(count: usize, add: impl FnOnce(Setup) -> Setup) -> Self {
        let database = PostgresDatabase::fresh().await;
        let world = Self::several_over(count, &database.url(), add).await;
        Self { database: Some(database), ..world }
    }

    /// Several that share this database and a Redis.
    pub(super) async fn several_over(count: usize, database: &str, add: impl FnOnce(Setup) -> Setup) -> Self {
        Self::several_as(count, database, "", add).await
    }

    /// The same with more lines of `auth`.
    pub(super) async fn several_as(
        count: usize,
        database: &str,
        more: &str,
        add: impl FnOnce(Setup) -> Setup,
    ) -> Self {
        let (demo, redis) = (DemoBackend::start().await, RedisServer::start().await);
        let setup = add(setup(&demo, "embedded", more))
            .config(&format!("redis: {{ url: \"{}\" }}", redis.url()))
            .config(&format!("database: {{ url: \"{database}\" }}"));
        let mut gateways = Vec::new();
        for _ in 0..count {
            let gateway = setup.clone().start().await;
            ready(&gateway).await;
            gateways.push(gateway);
        }
        let records = SqlRecords::open(database, &SqlOptions::default()).unwrap();
        Self { gateways, records, redis: Some(redis), database: None, _demo: demo }
    }

    /// Where the records of a gateway with its own database are.
    pub(super) fn database_url(&self) -> String {
        format!("sqlite:{}", self.gateways[0].dir().join("data/drawbridge.db").display())
    }

    /// A client without a token, of the instance with this number.
    pub(super) fn client(&self, number: usize) -> Client {
        self.gateways[number].client()
    }

    /// A user.
    pub(super) async fn user(&self, name: &str) -> User {
        let claims = UserClaims {
            issuer: "local".to_owned(),
            subject: name.to_owned(),
            email: None,
            name: Some(name.to_owned()),
            groups: BTreeSet::new(),
        };
        self.records.enter_user(&drawbridge_auth::fresh_id(), &claims, Utc::now()).await.unwrap()
    }

    /// A token of `owner` with these scopes, changed by `change`.
    pub(super) async fn token_with(
        &self,
        owner: &User,
        scopes: &[&str],
        change: impl FnOnce(&mut Token),
    ) -> (Token, Secret) {
        let (id, now) = (drawbridge_auth::fresh_id(), Utc::now());
        let secret = Secret::fresh(SecretKind::Personal);
        let mut token = Token {
            chain: id.clone(),
            id,
            kind: TokenKind::Personal,
            name: "a test's".to_owned(),
            owner: Some(owner.id.clone()),
            service: None,
            hint: secret.hint().to_owned(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            endpoints: BTreeSet::new(),
            networks: BTreeSet::new(),
            groups: BTreeSet::new(),
            version: 1,
            created_by: "a test".to_owned(),
            created_at: now,
            expires_at: Some(now + TimeDelta::days(1)),
            last_used_at: None,
            last_used_from: None,
            revoked_at: None,
            revoked_by: None,
            rotated_to: None,
        };
        change(&mut token);
        self.records.add_token(&token, &secret.hash()).await.unwrap();
        (token, secret)
    }

    /// The secret of a token of `owner` for reading and writing.
    pub(super) async fn token(&self, owner: &User) -> String {
        self.token_with(owner, &["mcp:read", "mcp:write"], |_| ()).await.1.expose().to_owned()
    }

    /// The secret with which `owner` signs in.
    pub(super) async fn sign_in_token(&self, owner: &User) -> String {
        self.token_with(owner, &["login"], |_| ()).await.1.expose().to_owned()
    }

    /// A registered client that is answered at `REDIRECT`.
    pub(super) async fn register(&self) -> String {
        let body = json!({ "client_name": "A test", "redirect_uris": [REDIRECT] });
        let reply = self.client(0).post("/register", &[], body.to_string()).await;
        assert_eq!(reply.status(), 201);
        reply.json().await["client_id"].as_str().unwrap().to_owned()
    }

    /// Logs `user` in for a fresh client, all at the instance with this number.
    pub(super) async fn log_in(&self, user: &User, number: usize) -> Tokens {
        let client_id = self.register().await;
        let sign_in = self.sign_in_token(user).await;
        let browser = Browser::new(&self.client(number));
        let code = browser.allow(&Request::of(&client_id), &sign_in).await;
        let reply = self.redeem(number, &client_id, &code).await;
        assert_eq!(reply.status(), 200);
        Tokens::of(client_id, &reply.json().await)
    }

    /// Presents a code.
    pub(super) async fn redeem(&self, number: usize, client_id: &str, code: &str) -> Reply {
        let form = [
            ("grant_type", "authorization_code"),
            ("client_id", client_id),
            ("code", code),
            ("redirect_uri", REDIRECT),
            ("code_verifier", VERIFIER),
        ];
        post_form(&self.client(number), "/token", &form).await
    }

    /// Presents a refresh token.
    pub(super) async fn refresh(&self, number: usize, client_id: &str, token: &str) -> Reply {
        let form = [("grant_type", "refresh_token"), ("client_id", client_id), ("refresh_token", token)];
        post_form(&self.client(number), "/token", &form).await
    }

    /// The status of a `tools/list` with this token at an endpoint.
    pub(super) async fn status(&self, number: usize, path: &str, token: &str) -> u16 {
        list(&self.client(number).bearer(token), path).await.status()
    }
}

/// What a login comes to.
#[derive(Debug, Clone)]
pub(super) struct Tokens {
    pub(super) client_id: String,
    pub(super) access: String,
    pub(super) refresh: String,
}

impl Tokens {
    pub(super) fn of(client_id: String, answer: &Value) -> Self {
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        Self { client_id, access: text("access_token"), refresh: text("refresh_token") }
    }
}

/// A request that needs a token.
pub(super) async fn list(client: &Client, path: &str) -> Reply {
    let body = drawbridge_testkit::client::request(1, "tools/list", json!({}));
    client.post(path, &[], body.to_string()).await
}

/// Posts a form.
pub(super) async fn post_form(client: &Client, path: &str, form: &[(&str, &str)]) -> Reply {
    let body = encoded(form);
    client.post(path, &[("content-type", "application/x-www-form-urlencoded")], body).await
}

pub(super) fn encoded(form: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish()
}

/// The `error` of an answer that is one, and is not to be kept.
pub(super) async fn oauth_error(reply: Reply) -> (u16, String) {
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let status = reply.status();
    (status, reply.json().await["error"].as_str().unwrap().to_owned())
}

/// What the requests of tests prove themselves with.
pub(super) const VERIFIER: &str = "a-verifier-of-a-test-that-is-long-enough-for-rfc7636";

/// A request for authorization, of which parameters can be changed.
#[derive(Debug, Clone)]
pub(super) struct Request(Vec<(String, String)>);

impl Request {
    /// What a well-behaved client asks.
    pub(super) fn of(client_id: &str) -> Self {
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER));
        Self(Vec::new())
            .with("client_id", client_id)
            .with("redirect_uri", REDIRECT)
            .with("response_type", "code")
            .with("code_challenge", &challenge)
            .with("code_challenge_method", "S256")
            .with("state", "a state/+&=")
            .with("resource", R)
            .with("scope", "mcp:read mcp:write")
    }

    /// The same with another value.
    #[must_use]
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.0.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with one more of it.
    #[must_use]
    pub(super) fn and(mut self, name: &str, value: &str) -> Self {
        self.0.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same without it.
    #[must_use]
    pub(super) fn without(mut self, name: &str) -> Self {
        self.0.retain(|(known, _)| known != name);
        self
    }

    pub(super) fn path(&self) -> String {
        let pairs: Vec<(&str, &str)> = self.0.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        format!("/authorize?{}", encoded(&pairs))
    }
}

/// A browser: it keeps cookies and follows nothing by itself. Clones are the same browser at other instances.
#[derive(Clone)]
pub(super) struct Browser {
    client: Client,
    cookies: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Browser {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone(), cookies: Arc::default() }
    }

    /// The same browser at another instance.
    pub(super) fn at(&self, client: &Client) -> Self {
        Self { client: client.clone(), cookies: self.cookies.clone() }
    }

    pub(super) async fn get(&self, path: &str) -> Page {
        self.send(Method::GET, path, &[], String::new()).await
    }

    pub(super) async fn post(&self, path: &str, form: &[(&str, &str)]) -> Page {
        self.post_with(path, form, &[("origin", P), ("sec-fetch-site", "same-origin")]).await
    }

    pub(super) async fn post_with(
        &self,
        path: &str,
        form: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Page {
        let mut all = vec![("content-type", "application/x-www-form-urlencoded")];
        all.extend(headers);
        self.send(Method::POST, path, &all, encoded(form)).await
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: String) -> Page {
        let mut headers = header_map(headers);
        let cookies: Vec<String> =
            self.cookies.lock().unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !cookies.is_empty() {
            headers.insert("cookie", cookies.join("; ").parse().unwrap());
        }
        let reply = self.client.send(method, path, &headers, body).await;
        for cookie in reply.headers().get_all("set-cookie") {
            let cookie = cookie.to_str().unwrap();
            assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.lock().unwrap().insert(name.to_owned(), value.to_owned());
        }
        let (status, headers) = (reply.status(), reply.headers().clone());
        Page { status, headers, text: reply.text().await }
    }

    /// Signs in for a request and gives the consent page.
    pub(super) async fn sign_in(&self, request: &Request, token: &str) -> Page {
        let page = self.get(&request.path()).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let page = self.post("/login", &[("transaction", &page.transaction()), ("token", token)]).await;
        assert_eq!(page.status, 200, "{}", page.text);
        page
    }

    /// Signs in, allows all, and gives the code.
    pub(super) async fn allow(&self, request: &Request, token: &str) -> String {
        let page = self.sign_in(request, token).await;
        let answered = self.decide(&page, "allow", &["mcp:read", "mcp:write"]).await;
        answered.parameter("code").unwrap_or_else(|| panic!("{}", answered.text))
    }

    /// Answers the consent page.
    pub(super) async fn decide(&self, page: &Page, decision: &str, scopes: &[&str]) -> Page {
        let transaction = page.transaction();
        let mut form = vec![("transaction", transaction.as_str()), ("decision", decision)];
        form.extend(scopes.iter().map(|scope| ("scope", *scope)));
        self.post("/consent", &form).await
    }
}

/// What a browser was answered.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Page {
    /// The hidden field of its form.
    pub(super) fn transaction(&self) -> String {
        let field = "name=\"transaction\" value=\"";
        let at = self.text.find(field).unwrap_or_else(|| panic!("no form: {}", self.text)) + field.len();
        self.text[at..].split('"').next().unwrap().to_owned()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Where the browser is sent.
    pub(super) fn location(&self) -> Option<&str> {
        self.header("location")
    }

    /// A parameter of where the browser is sent.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let url = url::Url::parse(self.location()?).unwrap();
        url.query_pairs().find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }

    /// The page says what is wrong, and the browser is sent nowhere.
    pub(super) fn is_error_page(&self, status: u16) -> bool {
        self.status == status
            && self.location().is_none()
            && self.header("content-type").is_some_and(|media| media.starts_with("text/html"))
    }
}
