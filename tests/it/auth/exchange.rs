//! Backends that get what users have logged in with, exchanged (RFC 8693): test 56 of the authorization digest.

use std::time::Duration;

use drawbridge_auth::records::{Records, User, UserClaims};
use drawbridge_auth::vault::{Connection, Vault};
use drawbridge_testkit::backend::{Backend, Reply, Request as Seen};
use drawbridge_testkit::client::{Client, Modern, Session, text};
use drawbridge_testkit::gateway::Setup;
use drawbridge_testkit::postgres::PostgresDatabase;
use drawbridge_testkit::provider::Provider;
use drawbridge_testkit::{PATIENCE, eventually};
use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use super::external::{Key, keys};
use super::own_credentials::guarded;
use super::world::{Browser, P, Page, Request, Tokens, World};

/// Where what a user has logged in with is kept.
const LOGIN: &str = "auth.login";
pub(super) const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// Gateways before a backend that gets what users have logged in with.
pub(super) struct Place {
    pub(super) world: World,
    pub(super) provider: Provider,
    pub(super) backend: Backend,
}

pub(super) async fn provider() -> Provider {
    let provider = Provider::start().await;
    let key = Key::fresh("k");
    provider.identify(keys(&[&key]), move |claims| key.id_token(claims));
    provider.add_client("gate", Some("a secret: of/the gate"));
    provider
}

pub(super) fn login(provider: &Provider) -> String {
    let issuer = provider.issuer();
    format!(
        "  login: {{ issuer: \"{issuer}\", client_id: gate, client_secret: \"a secret: of/the gate\", scopes: [openid, offline_access] }}\n"
    )
}

fn with(setup: Setup, backend: &Backend, more: &str) -> Setup {
    let settings =
        format!("{{ url: \"{}\", era: modern, auth: {{ kind: token_exchange{more} }} }}", backend.url());
    setup.backend("ex", &settings).config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))
}

impl Place {
    /// One gateway, with `more` beside the kind.
    async fn one(more: &str) -> Self {
        let provider = provider().await;
        let backend = guarded(provider.checker()).await;
        Self::before(provider, backend, more).await
    }

    async fn before(provider: Provider, backend: Backend, more: &str) -> Self {
        let world = World::over("embedded", &login(&provider), |setup| with(setup, &backend, more)).await;
        Self { world, provider, backend }
    }

    async fn several(count: usize) -> Self {
        let provider = provider().await;
        let backend = guarded(provider.checker()).await;
        let database = PostgresDatabase::fresh().await;
        let mut world =
            World::several_as(count, &database.url(), &login(&provider), |setup| with(setup, &backend, ""))
                .await;
        world.database = Some(database);
        Self { world, provider, backend }
    }

    /// Follows the browser to the provider, where it is `subject`, and back.
    async fn at_provider(&self, browser: &Browser, page: &Page, subject: &str) -> Page {
        self.provider.rule(|rules| rules.subject = subject.to_owned());
        let to = page.location().unwrap_or_else(|| panic!("{}", page.text)).to_owned();
        assert!(to.starts_with(&self.provider.issuer()), "{to}");
        let back = self.provider.agree(&to);
        browser.get(back.strip_prefix(P).unwrap()).await
    }

    /// Logs somebody in who is `subject` at the provider.
    pub(super) async fn log_in(&self, subject: &str) -> Tokens {
        self.log_in_with(self.world.register().await, subject).await
    }

    /// The same with a client that is known.
    pub(super) async fn log_in_with(&self, client_id: String, subject: &str) -> Tokens {
        let browser = Browser::new(&self.world.client(0));
        let page = browser.get(&Request::of(&client_id).path()).await;
        let page = self.at_provider(&browser, &page, subject).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let answered = browser.decide(&page, "allow", &["mcp:read", "mcp:write"]).await;
        let code = answered.parameter("code").unwrap_or_else(|| panic!("{}", answered.text));
        let reply = self.world.redeem(0, &client_id, &code).await;
        assert_eq!(reply.status(), 200);
        Tokens::of(client_id, &reply.json().await)
    }

    pub(super) fn modern(&self, number: usize, token: &str) -> Modern {
        Modern::new(&self.world.client(number).bearer(token), "/mcp", json!({}))
    }

    pub(super) async fn user(&self, subject: &str) -> User {
        let found = self.world.records.user_of(&self.provider.issuer(), subject).await.unwrap();
        found.unwrap_or_else(|| panic!("no {subject}"))
    }

    /// Somebody whom the provider knows, and who has not logged in.
    async fn new_user(&self, subject: &str) -> User {
        let claims = UserClaims {
            issuer: self.provider.issuer(),
            subject: subject.to_owned(),
            email: None,
            name: None,
            groups: std::collections::BTreeSet::new(),
        };
        self.world
            .records
            .enter_user(&drawbridge_auth::fresh_id(), &claims, chrono::Utc::now())
            .await
            .unwrap()
    }

    async fn kept(&self, subject: &str) -> Option<Connection> {
        let user = self.user(subject).await;
        self.world.records.connection(&user.id, LOGIN).await.unwrap()
    }

    /// Whom the backend takes a user for.
    fn known_as(&self, subject: &str) -> String {
        format!("{subject}@{}", self.backend.url())
    }
}

pub(super) async fn call(client: &Modern) -> Value {
    client.call("tools/call", json!({ "name": "ex__echo", "arguments": {} })).await
}

/// The link in an answer that is words.
fn link_in(answer: &Value) -> String {
    let words = text(answer);
    let at = words.find("http").unwrap_or_else(|| panic!("no link: {words}"));
    words[at..].split_whitespace().next().unwrap().strip_prefix(P).unwrap().to_owned()
}

/// All that a server was sent.
fn all_of(request: &Seen) -> String {
    let body = String::from_utf8_lossy(&request.text);
    let plain: String =
        url::form_urlencoded::parse(&request.text).map(|(k, v)| format!("{k}={v}\n")).collect();
    format!("{} {:?} {body} {plain}", request.path, request.headers)
}

#[tokio::test]
async fn t56_what_is_exchanged_is_the_providers_own_and_our_tokens_go_nowhere() {
    let place = Place::one(", scopes: [read, write]").await;
    let tokens = place.log_in("ann").await;
    let client = place.modern(0, &tokens.access);
    assert_eq!(text(&call(&client).await), place.known_as("ann"));

    let asked = place.provider.asked(GRANT);
    assert_eq!(asked.len(), 1);
    let form = &asked[0];
    assert!(form["subject_token"].starts_with("access-"), "{form:?}");
    for (name, value) in [
        ("subject_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("resource", place.backend.url().as_str()),
        ("scope", "read write"),
    ] {
        assert_eq!(form[name], value, "{name}");
    }
    assert!(!form.contains_key("audience") && !form.contains_key("client_secret"));
    let sent = place.provider.requests();
    let sent = sent.iter().find(|request| String::from_utf8_lossy(&request.text).contains("token-exchange"));
    assert!(sent.unwrap().header("authorization").starts_with("Basic "));

    // What was got is used again, for this user alone.
    for answer in join_all((0..5).map(|_| call(&client))).await {
        assert_eq!(text(&answer), place.known_as("ann"));
    }
    assert_eq!(place.provider.asked(GRANT).len(), 1);
    let bobs = place.log_in("bob").await;
    let bob = place.modern(0, &bobs.access);
    for answer in join_all((0..10).map(|_| call(&bob))).await {
        assert_eq!(text(&answer), place.known_as("bob"));
    }
    assert_eq!(place.provider.asked(GRANT).len(), 2, "at once for many calls");

    // Nothing of ours, and nothing that a client has sent, has left.
    for request in place.provider.requests().iter().chain(&place.backend.requests()) {
        let all = all_of(request);
        for ours in [&tokens.access, &tokens.refresh, &bobs.access, &bobs.refresh] {
            assert!(!all.contains(ours.as_str()), "{all}");
        }
    }
    // And nothing of the provider's is readable where it is kept, or logged.
    let row = place.kept("ann").await.unwrap();
    assert!(!format!("{}{:?}{:?}", row.access, row.refresh, row.id_token).contains("access-"));
    assert!(row.refresh.is_some() && row.id_token.is_some());
    let log = place.world.gateways[0].program.stderr();
    assert!(!log.contains("access-") && !log.contains("refresh-"), "{log}");
}

#[tokio::test]
async fn t56_an_id_token_can_be_exchanged_for_an_audience_and_nothing_is_kept_that_nobody_needs() {
    let place = Place::one(", subject_token: id_token, audience: tickets, client_auth: post").await;
    let tokens = place.log_in("ann").await;
    assert_eq!(text(&call(&place.modern(0, &tokens.access)).await), "ann@tickets");
    let asked = place.provider.asked(GRANT);
    let form = &asked[0];
    assert_eq!(form["subject_token_type"], "urn:ietf:params:oauth:token-type:id_token");
    assert!(form["subject_token"].starts_with("eyJ") && !form.contains_key("resource"), "{form:?}");
    assert_eq!(form["client_secret"], "a secret: of/the gate");

    let provider = provider().await;
    let world = World::with("embedded", &login(&provider)).await;
    let backend = Backend::start(async |_: Seen| Reply::status(500)).await;
    let place = Place { world, provider, backend };
    place.log_in("ann").await;
    assert!(place.kept("ann").await.is_none());
}

#[tokio::test]
async fn t56_a_login_that_is_over_is_renewed_and_one_that_can_not_be_is_asked_for() {
    let place = Place::one("").await;
    place.provider.rule(|rules| rules.life = Some(1));
    let tokens = place.log_in("ann").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    place.provider.rule(|rules| rules.life = Some(3600));
    let client = place.modern(0, &tokens.access);
    assert_eq!(text(&call(&client).await), place.known_as("ann"));
    assert_eq!((place.provider.asked("refresh_token").len(), place.provider.asked(GRANT).len()), (1, 1));
    assert_eq!(place.kept("ann").await.unwrap().version, 2);

    // The provider has ended the session there.
    place.provider.rule(|rules| rules.life = Some(1));
    let tokens = place.log_in("bob").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    place.provider.end_all();
    let client = place.modern(0, &tokens.access);
    let answer = call(&client).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(link_in(&answer).starts_with("/connect/ex?e="), "{answer}");
    assert!(text(&answer).contains("sign in again"), "{answer}");
}

#[tokio::test]
async fn t56_who_has_not_logged_in_gets_a_link_to_do_so() {
    let place = Place::one("").await;
    let bob = place.new_user("bob").await;
    let client = place.modern(0, &place.world.token(&bob).await);
    let answer = call(&client).await;
    let link = link_in(&answer);
    let list = client.call("tools/list", json!({})).await;
    assert!(list.to_string().contains("ex__connect") && !list.to_string().contains("ex__echo"), "{list}");

    // Whoever is another at the provider gets nowhere with it.
    let browser = Browser::new(&place.world.client(0));
    let page = browser.get(&link).await;
    let page = place.at_provider(&browser, &page, "eve").await;
    assert_eq!((page.status, page.location()), (303, Some(&*link)));
    assert!(browser.get(&link).await.is_error_page(403));
    assert_eq!(call(&client).await["result"]["isError"], true);

    let browser = Browser::new(&place.world.client(0));
    let page = browser.get(&link).await;
    let page = place.at_provider(&browser, &page, "bob").await;
    assert_eq!((page.status, page.location()), (303, Some(&*link)));
    let page = browser.get(&link).await;
    assert!(page.status == 200 && page.text.contains("return to your application"), "{}", page.text);
    assert_eq!(text(&call(&client).await), place.known_as("bob"));

    // What was forgotten has to be got again, by a button where a login from before is still there.
    let page = browser.get("/connections").await;
    assert!(page.text.contains("Disconnect"), "{}", page.text);
    let gone = browser.post("/connections/ex/disconnect", &[("transaction", &page.transaction())]).await;
    assert_eq!((gone.status, gone.location()), (303, Some("/connections")));
    assert!(place.kept("bob").await.is_none());
    assert_eq!(call(&client).await["result"]["isError"], true);
    let page = browser.get("/connect/ex").await;
    let sent = browser.post("/connect/ex", &[("transaction", &page.transaction())]).await;
    let page = place.at_provider(&browser, &sent, "bob").await;
    assert_eq!((page.status, page.location()), (303, Some("/connect/ex")));
    assert_eq!(text(&call(&client).await), place.known_as("bob"));

    // A service has nobody who could log in.
    let (_, secret) = place
        .world
        .token_with(&bob, &["mcp:read", "mcp:write"], |token| {
            (token.owner, token.service) = (None, Some("ci".to_owned()));
        })
        .await;
    let answer = call(&place.modern(0, secret.expose())).await;
    assert!(answer["result"]["isError"] == true && !text(&answer).contains("http"), "{answer}");
    assert!(text(&answer).contains("use an endpoint without it"), "{answer}");
}

#[tokio::test]
async fn t56_who_is_denied_is_told_and_faults_of_the_server_are_told_apart() {
    let place = Place::one("").await;
    let operator = Operator::at(&place.world.gateways[0]);
    for (code, subject) in [("access_denied", "ann"), ("invalid_grant", "bob")] {
        place.provider.rule(|rules| rules.exchange_fault = Some((400, json!({ "error": code }))));
        let before = place.provider.asked(GRANT).len();
        let client = place.modern(0, &place.log_in(subject).await.access);
        for _ in 0..3 {
            let answer = call(&client).await;
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert!(text(&answer).contains("does not allow"), "{answer}");
        }
        assert_eq!(place.provider.asked(GRANT).len(), before + 1, "it is not asked again and again");
    }
    let session = {
        let client = place.world.client(0).bearer(&place.log_in("bob").await.access);
        Session::open(&client, "/mcp", "2025-11-25", json!({})).await
    };
    let list = session.call("tools/list", json!({})).await.to_string();
    assert!(list.contains("demo__") && list.contains("ex__connect") && !list.contains("ex__echo"), "{list}");
    let prompt = session.call("prompts/get", json!({ "name": "ex__x" })).await;
    assert_eq!(prompt["error"]["data"]["code"], "not_allowed", "{prompt}");
    let before = place.provider.asked(GRANT).len();
    let again = call(&place.modern(0, &place.log_in("ann").await.access)).await;
    assert!(text(&again).contains("does not allow"), "{again}");
    assert_eq!(place.provider.asked(GRANT).len(), before + 1, "a new login is tried");

    place.provider.rule(|rules| rules.exchange_fault = Some((503, json!({ "error": "server_error" }))));
    let client = place.modern(0, &place.log_in("dan").await.access);
    let answer = call(&client).await;
    assert_eq!(answer["error"]["data"], json!({ "code": "no_credential", "retry": "safe" }), "{answer}");
    place.provider.rule(|rules| rules.exchange_fault = None);
    eventually(PATIENCE, async || call(&client).await["result"].is_object()).await;

    place.provider.rule(|rules| rules.exchange_fault = Some((401, json!({ "error": "invalid_client" }))));
    let client = place.modern(0, &place.log_in("eve").await.access);
    let answer = call(&client).await;
    assert_eq!(answer["error"]["data"]["code"], "no_credential", "{answer}");
    let shown = operator.ask(Method::GET, "backends/ex", None).await.json().await;
    let last = &shown["instances"][0]["last_error"];
    assert_eq!(last["code"], "no_credential", "{shown}");
    assert!(last["message"].as_str().unwrap().contains("invalid_client"), "{shown}");
    assert!(last["advice"].as_str().unwrap().contains("client_secret"), "{shown}");
}

#[tokio::test]
async fn t56_a_refused_token_is_got_anew_once() {
    let place = Place::one("").await;
    let client = place.modern(0, &place.log_in("ann").await.access);
    assert_eq!(text(&call(&client).await), place.known_as("ann"));
    place.provider.expire_exchanged();
    assert_eq!(text(&call(&client).await), place.known_as("ann"));
    assert_eq!(place.provider.asked(GRANT).len(), 2);

    let refusing = Backend::start(|_| async { Reply::status(401) }).await;
    let place = Place::before(provider().await, refusing, "").await;
    let client = place.modern(0, &place.log_in("ann").await.access);
    for _ in 0..3 {
        let answer = call(&client).await;
        assert_eq!(answer["error"]["data"]["code"], "backend_refused", "{answer}");
    }
    assert_eq!(place.provider.asked(GRANT).len(), 2);
}

#[tokio::test]
async fn t56_two_instances_serve_a_login_and_both_forget_it() {
    let place = Place::several(2).await;
    let tokens = place.log_in("ann").await;
    for number in 0..2 {
        let client = place.modern(number, &tokens.access);
        assert_eq!(text(&call(&client).await), place.known_as("ann"));
    }
    let ann = place.user("ann").await;
    let operator = Operator::at(&place.world.gateways[0]);
    let path = format!("users/{}/connections", ann.id);
    let shown = operator.ask(Method::GET, &path, None).await.json().await;
    assert_eq!(
        (&shown["items"][0]["backend"], &shown["items"][0]["status"]),
        (&json!("ex"), &json!("connected"))
    );
    let gone = operator.ask(Method::DELETE, &format!("{path}/ex"), None).await;
    assert_eq!(gone.status(), 204);
    assert!(place.kept("ann").await.is_none());
    let other = place.modern(1, &tokens.access);
    eventually(PATIENCE, async || call(&other).await["result"]["isError"] == true).await;

    // Whoever is disabled, or has everything revoked, leaves nothing of the provider's behind.
    for (subject, what) in [("bob", "disable"), ("dan", "revoke-all")] {
        let tokens = place.log_in(subject).await;
        assert_eq!(text(&call(&place.modern(1, &tokens.access)).await), place.known_as(subject));
        assert!(place.kept(subject).await.is_some());
        let user = place.user(subject).await;
        let done = operator.ask(Method::POST, &format!("users/{}/{what}", user.id), None).await;
        assert_eq!(done.status(), 200);
        assert!(place.kept(subject).await.is_none());
        // A token that an administrator gives later does not revive it.
        operator.ask(Method::POST, &format!("users/{}/enable", user.id), None).await;
        let token = place.world.token(&place.user(subject).await).await;
        let client = Client::new(&place.world.gateways[1].public).bearer(&token);
        let client = Modern::new(&client, "/mcp", json!({}));
        eventually(PATIENCE, async || call(&client).await["result"]["isError"] == true).await;
    }
    eventually(PATIENCE, async || place.provider.ended() == 3).await;
}

#[tokio::test]
async fn t56_who_lacks_what_a_login_gave_gets_it_on_the_way_through_a_consent() {
    let place = Place::one("").await;
    let request = Request::of(&place.world.register().await);
    let browser = Browser::new(&place.world.client(0));
    let page = place.at_provider(&browser, &browser.get(&request.path()).await, "ann").await;
    assert!(page.text.contains("ex (") && !page.text.contains("/connect/ex"), "{}", page.text);
    let ann = place.user("ann").await;
    assert!(place.world.records.remove_connection(&ann.id, LOGIN).await.unwrap().is_some());

    let page = browser.get(&request.path()).await;
    let at = page.text.find("/connect/ex?back=").unwrap_or_else(|| panic!("{}", page.text));
    let link = page.text[at..].split('"').next().unwrap();
    let asked = browser.get(link).await;
    let sent = browser.post("/connect/ex", &[("transaction", &asked.transaction())]).await;
    let came = place.at_provider(&browser, &sent, "ann").await;
    assert_eq!((came.status, came.location()), (303, Some(link)), "{}", came.text);
    let done = browser.get(link).await;
    let consent = done.location().unwrap_or_else(|| panic!("{}", done.text)).to_owned();
    assert_eq!(consent, link.replace("/connect/ex", "/consent"));
    let page = browser.get(&consent).await;
    assert!(page.status == 200 && !page.text.contains("/connect/ex"), "{}", page.text);
    let answered = browser.decide(&page, "allow", &["mcp:read"]).await;
    assert!(answered.parameter("code").is_some(), "{}", answered.text);
}
