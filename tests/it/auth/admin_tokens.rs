//! Tokens that administrators issue: tests 87 to 90 of the authorization digest.

use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_testkit::client::{Client, Reply, header_map, initialize};
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::fleet::{Fleet, SEAL, ready};
use drawbridge_testkit::gateway::{DemoBackend, Gateway, Setup, command};
use drawbridge_testkit::postgres::PostgresDatabase;
use drawbridge_testkit::redis::RedisServer;
use drawbridge_testkit::{PATIENCE, eventually, secrets, soon};
use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

/// The first administrator's token, in the configuration of all gateways here.
pub(super) const FIRST: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";
/// In this time all instances refuse what was revoked.
const BOUND: Duration = Duration::from_secs(1);

/// A gateway in front of the demo backend that asks callers for tokens.
pub(super) fn guarded(demo: &DemoBackend) -> Setup {
    Gateway::setup()
        .url("demo", &demo.url, "legacy")
        .config("auth: { mode: tokens }")
        .config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))
}

/// An administrator at one gateway.
#[derive(Clone)]
pub(super) struct Operator {
    client: Client,
    secret: String,
}

impl Operator {
    pub(super) fn at(gateway: &Gateway) -> Self {
        Self::with(gateway, FIRST)
    }

    pub(super) fn with(gateway: &Gateway, secret: &str) -> Self {
        Self { client: Client::new(&gateway.admin), secret: secret.to_owned() }
    }

    pub(super) async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        let bearer = format!("Bearer {}", self.secret);
        let headers = header_map(&[("authorization", &bearer), ("content-type", "application/json")]);
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        self.client.send(method, &format!("/admin/v1/{path}"), &headers, body).await
    }

    pub(super) async fn made(&self, path: &str, body: Value) -> Value {
        let reply = self.ask(Method::POST, path, Some(body)).await;
        assert_eq!(reply.status(), 201);
        reply.json().await
    }

    pub(super) async fn user(&self, subject: &str) -> String {
        text(&self.made("users", json!({ "subject": subject })).await, "id")
    }

    /// The id and the secret of a new personal token.
    async fn personal(&self, owner: &str, more: Value) -> (String, String) {
        let mut new = json!({ "kind": "personal", "name": "laptop", "owner": owner });
        new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = self.made("tokens", new).await;
        (text(&made, "id"), text(&made, "token"))
    }

    async fn revoke(&self, id: &str) -> Reply {
        let reply = self.ask(Method::DELETE, &format!("tokens/{id}"), None).await;
        assert_eq!(reply.status(), 204);
        reply
    }
}

fn text(value: &Value, member: &str) -> String {
    value[member].as_str().unwrap().to_owned()
}

/// The status that an endpoint answers with to somebody with this token.
pub(super) async fn status_at(gateway: &Gateway, path: &str, secret: &str) -> u16 {
    let bearer = format!("Bearer {secret}");
    let body = initialize("2025-11-25", json!({})).to_string();
    gateway.client().post(path, &[("authorization", &bearer)], body).await.status()
}

/// Waits until it is refused, which takes no longer than all instances may take.
async fn is_refused_soon(gateway: &Gateway, secret: &str, since: Instant) {
    let client = gateway.client();
    let bearer = format!("Bearer {secret}");
    loop {
        let asked = since.elapsed();
        let body = initialize("2025-11-25", json!({})).to_string();
        let status = client.post("/mcp", &[("authorization", &bearer)], body).await.status();
        if status == 401 {
            return;
        }
        assert!(asked < BOUND, "{status} after {asked:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Two gateways over one database, the second with a Redis that can be cut off.
struct Pair {
    a: Gateway,
    b: Gateway,
    redis: RedisServer,
    proxy: FaultProxy,
    database: PostgresDatabase,
    _demo: DemoBackend,
}

impl Pair {
    async fn start() -> Self {
        let (demo, redis) = (DemoBackend::start().await, RedisServer::start().await);
        let database = PostgresDatabase::fresh().await;
        let proxy = FaultProxy::start(redis.port()).await;
        let setup =
            guarded(&demo).config(SEAL).config(&format!("database: {{ url: \"{}\" }}", database.url()));
        let at = |url: &str| setup.clone().config(&format!("redis: {{ url: \"{url}\" }}"));
        let a = at(&redis.url()).start().await;
        let b = at(&format!("redis://127.0.0.1:{}", proxy.port)).start().await;
        ready(&a).await;
        ready(&b).await;
        Self { a, b, redis, proxy, database, _demo: demo }
    }
}

#[tokio::test]
async fn t87_a_secret_is_of_the_published_form_and_is_kept_nowhere() {
    let pair = Pair::start().await;
    let operator = Operator::at(&pair.a);
    let alice = operator.user("alice").await;
    let (id, secret) = operator.personal(&alice, json!({})).await;
    let body = secret.strip_prefix("drb_pat_").unwrap();
    assert!(body.len() == 40 && body.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{secret}");
    assert_eq!(status_at(&pair.a, "/mcp", &secret).await, 200);
    let last = if secret.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &secret[..secret.len() - 1]);
    assert_eq!(status_at(&pair.a, "/mcp", &wrong).await, 401);
    for path in ["tokens".to_owned(), format!("tokens/{id}"), "audit".to_owned()] {
        let shown = operator.ask(Method::GET, &path, None).await.text().await;
        assert!(shown.contains(&id) && !shown.contains(&secret) && !shown.contains("hash\":\"\""));
    }
    let rows = pair.database.run("select * from tokens") + &pair.database.run("select * from audit");
    assert!(rows.contains(&id) && !rows.contains(&secret) && !rows.contains(body));
}

#[tokio::test]
async fn t88_a_token_works_everywhere_at_once_and_nowhere_a_second_after_its_end() {
    let pair = Pair::start().await;
    let operator = Operator::at(&pair.a);
    let alice = operator.user("alice").await;

    let (id, secret) = operator.personal(&alice, json!({})).await;
    assert_eq!(status_at(&pair.b, "/mcp", &secret).await, 200);
    let revoked = operator.revoke(&id).await;
    let since = Instant::now();
    assert_eq!(revoked.header("x-propagation"), None);
    is_refused_soon(&pair.b, &secret, since).await;
    assert_eq!(status_at(&pair.a, "/mcp", &secret).await, 401);

    // All that a user may, and no longer.
    let (_, secret) = operator.personal(&alice, json!({})).await;
    assert_eq!(status_at(&pair.b, "/mcp", &secret).await, 200);
    let disabled = operator.ask(Method::POST, &format!("users/{alice}/disable"), None).await;
    assert_eq!(disabled.status(), 200);
    is_refused_soon(&pair.b, &secret, Instant::now()).await;
    operator.ask(Method::POST, &format!("users/{alice}/enable"), None).await;

    // Whoever hears nothing of it reads it in the database.
    let (id, secret) = operator.personal(&alice, json!({})).await;
    assert_eq!(status_at(&pair.b, "/mcp", &secret).await, 200);
    pair.proxy.set(Fault::Refuse);
    pair.proxy.cut();
    operator.revoke(&id).await;
    is_refused_soon(&pair.b, &secret, Instant::now()).await;

    // And whoever hears nothing and was told nothing, too.
    let (id, secret) = operator.personal(&alice, json!({})).await;
    assert_eq!(status_at(&pair.b, "/mcp", &secret).await, 200);
    pair.proxy.set(Fault::Silence);
    operator.revoke(&id).await;
    is_refused_soon(&pair.b, &secret, Instant::now()).await;
}

#[tokio::test]
async fn t88_without_redis_what_is_revoked_is_refused_as_soon() {
    let mut pair = Pair::start().await;
    let operator = Operator::at(&pair.a);
    let alice = operator.user("alice").await;
    let (id, secret) = operator.personal(&alice, json!({})).await;
    assert_eq!(status_at(&pair.b, "/mcp", &secret).await, 200);
    pair.redis.kill().await;
    let revoked = operator.revoke(&id).await;
    let since = Instant::now();
    assert_eq!(revoked.header("x-propagation"), Some("pending"));
    is_refused_soon(&pair.b, &secret, since).await;
    let (_, secret) = operator.personal(&alice, json!({})).await;
    assert_eq!(status_at(&pair.b, "/mcp", &secret).await, 200, "new ones work without it");
}

#[tokio::test]
async fn t88_a_burst_while_redis_restarts_is_heard_in_full() {
    let mut pair = Pair::start().await;
    let operator = Operator::at(&pair.a);
    let alice = operator.user("alice").await;
    let mut tokens = Vec::new();
    for _ in 0..200 {
        tokens.push(operator.personal(&alice, json!({})).await);
    }
    for some in tokens.chunks(20) {
        let statuses = join_all(some.iter().map(|(_, secret)| status_at(&pair.b, "/mcp", secret))).await;
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    }
    let burst = async {
        for some in tokens.chunks(20) {
            join_all(some.iter().map(|(id, _)| operator.revoke(id))).await;
        }
    };
    let restart = async {
        pair.redis.kill().await;
        pair.redis.restart().await;
    };
    tokio::join!(burst, restart);
    let since = Instant::now();
    for some in tokens.chunks(20) {
        join_all(some.iter().map(|(_, secret)| is_refused_soon(&pair.b, secret, since))).await;
    }
}

#[tokio::test]
async fn t89_what_a_token_is_for_is_all_that_it_is_good_for() {
    let demo = DemoBackend::start().await;
    let gateway = guarded(&demo).start().await;
    ready(&gateway).await;
    let operator = Operator::at(&gateway);
    let alice = operator.user("alice").await;
    let token = async |more| operator.personal(&alice, more).await.1;

    let personal = token(json!({})).await;
    assert_eq!(status_at(&gateway, "/mcp", &personal).await, 200);
    assert_eq!(status_at(&gateway, "/mcp/demo", &personal).await, 401);
    let named = token(json!({ "endpoints": ["demo"] })).await;
    assert_eq!(status_at(&gateway, "/mcp/demo", &named).await, 200);
    assert_eq!(status_at(&gateway, "/mcp", &named).await, 401);
    let all = token(json!({ "endpoints": ["*"] })).await;
    assert_eq!(status_at(&gateway, "/mcp/demo", &all).await, 200);
    assert_eq!(status_at(&gateway, "/mcp", &all).await, 200);

    let near = token(json!({ "networks": ["127.0.0.0/8"] })).await;
    assert_eq!(status_at(&gateway, "/mcp", &near).await, 200);
    let far = token(json!({ "networks": ["192.0.2.0/24", "2001:db8::/32"] })).await;
    assert_eq!(status_at(&gateway, "/mcp", &far).await, 401);

    let short = token(json!({ "expires_in": 2 })).await;
    assert_eq!(status_at(&gateway, "/mcp", &short).await, 200);
    eventually(PATIENCE, async || status_at(&gateway, "/mcp", &short).await == 401).await;

    // Each at the other's door.
    for secret in [personal.as_str(), "drb_adm_x", ""] {
        let other = Operator { secret: secret.to_owned(), ..operator.clone() };
        let refused = other.ask(Method::GET, "tokens", None).await;
        assert_eq!(refused.status(), 401);
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    }
    let reads = json!({ "kind": "admin", "name": "reader", "scopes": ["admin:read"] });
    let reads = text(&operator.made("tokens", reads).await, "token");
    assert_eq!(status_at(&gateway, "/mcp", &reads).await, 401);
    let reader = Operator { secret: reads, ..operator.clone() };
    assert_eq!(reader.ask(Method::GET, "tokens", None).await.status(), 200);
    let new = json!({ "kind": "service", "name": "ci", "service": "ci" });
    assert_eq!(reader.ask(Method::POST, "tokens", Some(new)).await.status(), 403);
}

#[tokio::test]
async fn t90_a_first_token_that_can_be_guessed_is_none() {
    for token in ["aaaaaaaaaaaa", "changeme-0123456789-0123456789-0123456789"] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("drawbridge.yaml");
        let text = format!("auth: {{ mode: tokens }}\nadmin: {{ bootstrap_token: {token} }}\n");
        std::fs::write(&file, text).unwrap();
        let mut command = command();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--config"])
            .arg(&file);
        let output = soon("the program to end", command.current_dir(dir.path()).output()).await.unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("admin.bootstrap_token") && !said.contains(token), "{said}");
    }
}

#[tokio::test]
async fn t90_the_first_token_is_no_longer_good_once_there_is_another() {
    let demo = DemoBackend::start().await;
    let gateway = guarded(&demo).config("log: { level: debug }").start().await;
    ready(&gateway).await;
    let operator = Operator::at(&gateway);
    let alice = operator.user("alice").await;
    let (id, secret) = operator.personal(&alice, json!({})).await;
    assert_eq!(status_at(&gateway, "/mcp", &secret).await, 200);
    operator.revoke(&id).await;
    assert_eq!(status_at(&gateway, "/mcp", &secret).await, 401);
    let new = json!({ "kind": "admin", "name": "ops", "scopes": ["admin:*"] });
    let admin = text(&operator.made("tokens", new).await, "token");
    assert_eq!(operator.ask(Method::GET, "tokens", None).await.status(), 401);
    let other = Operator { secret: admin, ..operator.clone() };
    assert_eq!(other.ask(Method::GET, "tokens", None).await.status(), 200);
    let audit = other.ask(Method::GET, "audit?action=token.create", None).await.json().await;
    assert_eq!(audit["items"][0]["actor"], "bootstrap");

    assert!(secrets::found(&format!("token={secret}")).is_some());
    let metrics = Client::new(&gateway.admin).get("/metrics", &[]).await.text().await;
    let said = gateway.program.stderr();
    for text in [&metrics, &said] {
        assert_eq!(secrets::found(text), None);
    }
}

#[tokio::test]
async fn what_can_not_be_written_down_is_not_said_to_be_done() {
    let demo = DemoBackend::start().await;
    let database = PostgresDatabase::fresh().await;
    let gateway =
        guarded(&demo).config(&format!("database: {{ url: \"{}\" }}", database.url())).start().await;
    ready(&gateway).await;
    let operator = Operator::at(&gateway);
    operator.user("alice").await;
    database.run("alter table audit rename to elsewhere");
    let refused = operator.ask(Method::POST, "users", Some(json!({ "subject": "bob" }))).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.text().await.contains("audit trail"));
    assert!(gateway.program.stderr().contains("user.create"), "the log says what was done");
    database.run("alter table elsewhere rename to audit");
    operator.user("carol").await;
    let audit = operator.ask(Method::GET, "audit", None).await.json().await;
    let numbers: Vec<_> = audit["items"].as_array().unwrap().iter().map(|item| &item["number"]).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let missing = &audit["items"][2];
    assert_eq!((&missing["action"], &missing["detail"]["entries"]), (&json!("audit.lost"), &json!(1)));
}

#[tokio::test]
async fn a_repeated_request_is_known_at_every_instance() {
    let demo = DemoBackend::start().await;
    let database = PostgresDatabase::fresh().await;
    let setup = guarded(&demo).config(&format!("database: {{ url: \"{}\" }}", database.url()));
    let fleet = Fleet::start(2, setup).await;
    let bearer = format!("Bearer {FIRST}");
    let new = json!({ "kind": "service", "name": "ci", "service": "ci" }).to_string();
    let mut statuses = Vec::new();
    for gateway in &fleet.gateways {
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", "one")];
        let client = Client::new(&gateway.admin);
        statuses.push(client.post("/admin/v1/tokens", &headers, new.clone()).await.status());
    }
    assert_eq!(statuses, [201, 409]);
}
