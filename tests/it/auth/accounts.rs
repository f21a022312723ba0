//! Backends at which each user has an account: connecting it in a browser, keeping it, renewing it, and what hosts see of
//! all that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drawbridge_auth::fetch::{Fetch, NotFetched};
use drawbridge_auth::records::User;
use drawbridge_auth::resource::Origin;
use drawbridge_auth::vault::{Connection, ConnectionStatus, Vault as _};
use drawbridge_core::credentials::Credentials as _;
use drawbridge_core::seal::{KeyRing, SealKey};
use drawbridge_core::state::MemoryState;
use drawbridge_core::{Principal, Subject, SubjectKind, Tasks};
use drawbridge_credentials::authority::{Authorities, Pins};
use drawbridge_credentials::connections::Connections;
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_testkit::backend::{Backend, Reply, legacy, text_result};
use drawbridge_testkit::client::{Modern, Session, text};
use drawbridge_testkit::fleet::ready;
use drawbridge_testkit::gateway::{Gateway, Setup};
use drawbridge_testkit::provider::{Checker, Provider};
use drawbridge_testkit::{PATIENCE, eventually, soon};
use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use super::own_credentials::guarded;
use super::world::{Browser, P, Page, World, encoded};
use crate::backends::spawn;
use crate::outbound::Authority;

/// Gateways before a backend at which users have accounts.
struct Place {
    world: World,
    provider: Provider,
    backend: Backend,
}

fn with(setup: Setup, backend: &Backend, provider: &Provider, era: &str) -> Setup {
    let settings = format!(
        "{{ url: \"{}\", era: {era}, auth: {{ kind: user_oauth, issuer: \"{}\" }} }}",
        backend.url(),
        provider.issuer()
    );
    setup.backend("gh", &settings)
}

impl Place {
    async fn one() -> Self {
        let provider = Provider::start().await;
        let backend = guarded(provider.checker()).await;
        let world = World::over("embedded", "", |setup| with(setup, &backend, &provider, "modern")).await;
        Self { world, provider, backend }
    }

    async fn several(count: usize) -> Self {
        let provider = Provider::start().await;
        let backend = guarded(provider.checker()).await;
        let world = World::several_with(count, |setup| with(setup, &backend, &provider, "modern")).await;
        Self { world, provider, backend }
    }

    /// A stateless client of a user at an instance.
    async fn client(&self, user: &User, number: usize, capabilities: Value) -> Modern {
        let token = self.world.token(user).await;
        Modern::new(&self.world.client(number).bearer(&token), "/mcp", capabilities)
    }

    async fn connection(&self, user: &User) -> Option<Connection> {
        self.world.records.connection(&user.id, "gh").await.unwrap()
    }

    /// A browser in which a user has logged in, at this page.
    async fn browser(&self, user: &User, path: &str) -> (Browser, Page) {
        let browser = Browser::new(&self.world.client(0));
        let sign_in = self.world.sign_in_token(user).await;
        let page = log_in(&browser, path, &sign_in).await;
        (browser, page)
    }

    /// Connects a user's account, who is `subject` at the provider.
    async fn connect(&self, user: &User, subject: &str) -> Browser {
        self.provider.rule(|rules| rules.subject = subject.to_owned());
        let (browser, page) = self.browser(user, "/connect/gh").await;
        let done = self.go_on(&browser, &page).await;
        assert_eq!(done.status, 200, "{}", done.text);
        browser
    }

    /// From the page that asks to the one that says how it went.
    async fn go_on(&self, browser: &Browser, page: &Page) -> Page {
        let sent = browser.post("/connect/gh", &[("transaction", &page.transaction())]).await;
        let to = sent.location().unwrap_or_else(|| panic!("{}", sent.text)).to_owned();
        assert!(to.starts_with(&self.provider.issuer()), "{to}");
        let back = self.provider.agree(&to);
        browser.get(back.strip_prefix(P).unwrap()).await
    }
}

/// Opens a page that only somebody who has logged in sees.
pub(super) async fn log_in(browser: &Browser, path: &str, sign_in: &str) -> Page {
    let page = browser.get(path).await;
    assert!(page.text.contains("action=\"/login\""), "{}", page.text);
    let sent = browser.post("/login", &[("transaction", &page.transaction()), ("token", sign_in)]).await;
    assert_eq!((sent.status, sent.location()), (303, Some(path)));
    browser.get(path).await
}

/// The seal key of the gateways.
fn key() -> [u8; 32] {
    std::array::from_fn(|n| u8::try_from(n).unwrap())
}

fn urls() -> Value {
    json!({ "elicitation": { "url": {} } })
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "arguments": {} })
}

/// The link in an answer that is words.
fn link_in(text: &str) -> &str {
    let at = text.find("http").unwrap_or_else(|| panic!("no link: {text}"));
    text[at..].split_whitespace().next().unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn t54_a_stateless_client_that_opens_urls_is_asked_to_and_its_call_goes_on() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    let client = place.client(&ann, 0, urls()).await;
    let asked = client.call("tools/call", tool("gh__echo")).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let ask = &asked["inputRequests"]["connect"];
    assert_eq!((&ask["method"], &ask["params"]["mode"]), (&json!("elicitation/create"), &json!("url")));
    assert!(ask["params"].get("elicitationId").is_none());
    let url = ask["params"]["url"].as_str().unwrap();
    assert!(url.starts_with(&format!("{P}/connect/gh?e=")), "{url}");
    assert!(!url.contains(&ann.id) && !url.contains("ann") && url.len() < 512, "{url}");

    let retry = |action: &str, asked: &Value| {
        let mut params = tool("gh__echo");
        params["inputResponses"] = json!({ "connect": { "action": action } });
        params["requestState"] = asked["requestState"].clone();
        params
    };
    let refused = client.call("tools/call", retry("decline", &asked)).await;
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    // The host says that the user is done, who is not yet.
    let again = {
        let (waiting, params) = (client.clone(), retry("accept", &asked));
        spawn(async move { waiting.call("tools/call", params).await })
    };
    let (browser, page) = place.browser(&ann, url.strip_prefix(P).unwrap()).await;
    assert!(page.text.contains("gh") && page.text.contains("localhost"), "{}", page.text);
    let done = place.go_on(&browser, &page).await;
    assert!(done.status == 200 && done.text.contains("return to your application"), "{}", done.text);
    let answer = soon("the call", again).await.unwrap();
    assert_eq!(text(&answer), "somebody", "{answer}");
    assert_eq!(text(&client.tool("gh__echo", json!({})).await), "somebody");
    // Nothing of it reaches a host.
    let log = place.world.gateways[0].program.stderr();
    assert!(!log.contains("access-") && !log.contains("refresh-") && !log.contains("code-"), "{log}");
    assert_eq!(place.provider.clients(), 1);
}

#[tokio::test]
async fn t54_who_can_not_be_asked_to_open_a_url_is_told_in_words() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    for capabilities in [json!({}), json!({ "elicitation": {} }), json!({ "elicitation": { "form": {} } })] {
        let client = place.client(&ann, 0, capabilities.clone()).await;
        let answer = client.call("tools/call", tool("gh__echo")).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(link_in(text(&answer)).starts_with(&format!("{P}/connect/gh?e=")), "{answer}");
        let token = place.world.token(&ann).await;
        let session =
            Session::open(&place.world.client(0).bearer(&token), "/mcp", "2025-11-25", capabilities).await;
        let answer = session.tool("gh__echo", json!({})).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(text(&answer).contains(P), "{answer}");
        let prompt = session.call("prompts/get", json!({ "name": "gh__x" })).await;
        assert_eq!(prompt["error"]["data"]["code"], "not_connected", "{prompt}");
        assert!(prompt.to_string().contains(P));
    }
    // A service has nobody who could connect anything.
    let (_, secret) = place
        .world
        .token_with(&ann, &["mcp:read", "mcp:write"], |token| {
            (token.owner, token.service) = (None, Some("ci".to_owned()));
        })
        .await;
    let service = Modern::new(&place.world.client(0).bearer(secret.expose()), "/mcp", urls());
    let answer = service.call("tools/call", tool("gh__echo")).await;
    assert!(answer["result"]["isError"] == true && !text(&answer).contains("http"), "{answer}");
    assert_eq!(place.backend.requests().len(), 0);
}

#[tokio::test]
async fn t54_a_session_that_listens_at_another_instance_than_it_was_given_the_link_hears_when_it_is_done() {
    let place = Place::several(3).await;
    let ann = place.world.user("ann").await;
    let token = place.world.token(&ann).await;
    let session = Session::open(&place.world.client(0).bearer(&token), "/mcp", "2025-11-25", urls()).await;
    let elsewhere = Session { client: place.world.client(1).bearer(&token), ..session.clone() };
    let mut stream = elsewhere.get(None).await;
    assert_eq!(stream.status(), 200);
    let answer = session.tool("gh__echo", json!({})).await;
    let asked = &answer["error"]["data"]["elicitations"][0];
    let (browser, page) = place.browser(&ann, asked["url"].as_str().unwrap().strip_prefix(P).unwrap()).await;
    assert_eq!(place.go_on(&browser, &page).await.status, 200);
    let complete = async {
        loop {
            let message = stream.message().await;
            if message["method"] == "notifications/elicitation/complete" {
                return message;
            }
        }
    };
    let complete = tokio::time::timeout(PATIENCE, complete).await.unwrap();
    assert_eq!(complete["params"]["elicitationId"], asked["elicitationId"]);
}

#[tokio::test]
async fn t54_a_session_gets_the_error_of_its_era_and_hears_when_it_is_done() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    let client = place.world.client(0).bearer(&place.world.token(&ann).await);
    let session = Session::open(&client, "/mcp", "2025-11-25", urls()).await;
    let mut stream = session.get(None).await;
    let answer = session.tool("gh__echo", json!({})).await;
    assert_eq!(answer["error"]["code"], -32042, "{answer}");
    let asked = &answer["error"]["data"]["elicitations"][0];
    assert_eq!(asked["mode"], "url");
    let url = asked["url"].as_str().unwrap();
    let (browser, page) = place.browser(&ann, url.strip_prefix(P).unwrap()).await;
    assert_eq!(place.go_on(&browser, &page).await.status, 200);
    let (mut complete, mut changed) = (None, false);
    while complete.is_none() || !changed {
        let message = stream.message().await;
        match message["method"].as_str().unwrap() {
            "notifications/elicitation/complete" => {
                complete = Some(message["params"]["elicitationId"].clone())
            }
            "notifications/tools/list_changed" => changed = true,
            _ => {}
        }
    }
    assert_eq!(complete.as_ref(), Some(&asked["elicitationId"]));
    assert_eq!(text(&session.tool("gh__echo", json!({})).await), "somebody");
}

#[tokio::test]
async fn t54_until_it_is_connected_a_backend_has_one_tool_and_listeners_hear_of_the_others() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    let client = place.client(&ann, 0, json!({})).await;
    let list = client.call("tools/list", json!({})).await;
    let all = names(&list);
    assert!(all.contains(&"gh__connect") && all.iter().any(|name| name.starts_with("demo__")), "{all:?}");
    assert!(!all.contains(&"gh__echo"));
    let answer = client.tool("gh__connect", json!({})).await;
    let link = link_in(text(&answer)).to_owned();

    let listening = json!({ "notifications": { "toolsListChanged": true } });
    let mut listen = client.request("subscriptions/listen", listening).await;
    assert_eq!(listen.message().await["method"], "notifications/subscriptions/acknowledged");
    let (browser, page) = place.browser(&ann, link.strip_prefix(P).unwrap()).await;
    assert_eq!(place.go_on(&browser, &page).await.status, 200);
    assert_eq!(listen.message().await["method"], "notifications/tools/list_changed");
    let list = client.call("tools/list", json!({})).await;
    let all = names(&list);
    assert!(all.contains(&"gh__echo") && !all.contains(&"gh__connect"), "{all:?}");
    // A model that makes sure is not confused.
    let answer = client.tool("gh__connect", json!({})).await;
    assert_eq!(text(&answer), "somebody", "this backend has every tool: {answer}");

    // And back again.
    let page = browser.get("/connections").await;
    assert!(page.text.contains("Disconnect"), "{}", page.text);
    let gone = browser.post("/connections/gh/disconnect", &[("transaction", &page.transaction())]).await;
    assert_eq!((gone.status, gone.location()), (303, Some("/connections")));
    assert_eq!(listen.message().await["method"], "notifications/tools/list_changed");
    assert!(names(&client.call("tools/list", json!({})).await).contains(&"gh__connect"));
    assert!(place.connection(&ann).await.is_none());
    assert_eq!(place.provider.ended(), 1, "the server was told");
    let page = browser.get("/connections").await;
    assert!(page.text.contains("not connected") && !page.text.contains("Disconnect"), "{}", page.text);
}

#[tokio::test]
async fn t53_a_link_is_of_use_to_its_own_user_alone() {
    let place = Place::one().await;
    let (ann, bob) = (place.world.user("ann").await, place.world.user("bob").await);
    let client = place.client(&ann, 0, json!({})).await;
    let link = link_in(text(&client.tool("gh__echo", json!({})).await)).strip_prefix(P).unwrap().to_owned();
    // Bob logs in because of it, and again when he is logged in.
    let (bobs, page) = place.browser(&bob, &link).await;
    assert!(page.is_error_page(403) && page.text.contains("another account"), "{}", page.text);
    let page = bobs.get(&link).await;
    assert!(page.is_error_page(403), "{}", page.text);
    // The page lets Ann log in in Bob's place, and come back to her link.
    let switch = [("transaction", page.transaction())];
    let shared = place.browser(&bob, &link).await.0;
    let elsewhere = shared.post("/connections/switch", &[("transaction", &switch[0].1)]).await;
    assert!(elsewhere.is_error_page(403), "another browser's: {}", elsewhere.text);
    let asked =
        shared.post("/connections/switch", &[("transaction", &shared.get(&link).await.transaction())]).await;
    let anns_token = place.world.sign_in_token(&ann).await;
    let form = [("transaction", asked.transaction()), ("token", anns_token)];
    let form = form.each_ref().map(|(key, value)| (*key, value.as_str()));
    let came = shared.post("/login", &form).await;
    assert_eq!(came.location(), Some(link.as_str()), "{}", came.text);
    let page = shared.get(&link).await;
    assert!(page.status == 200 && page.text.contains("ann"), "{}", page.text);
    assert!(place.connection(&ann).await.is_none() && place.connection(&bob).await.is_none());
    // A link for another backend, an altered one, and nothing that says where to go then.
    for path in [link.replace("/connect/gh", "/connect/demo"), link.replace("/connect/gh", "/connect/none")] {
        assert_eq!(bobs.get(&path).await.status, 404, "{path}");
    }
    let mut forged = link.clone();
    forged.replace_range(
        link.len() - 5..link.len() - 4,
        if &link[link.len() - 5..link.len() - 4] == "A" { "B" } else { "A" },
    );
    assert!(bobs.get(&forged).await.is_error_page(400));

    // What Ann has begun can't be ended by Bob, nor in another browser of hers, nor without a form of ours.
    let (anns, _) = place.browser(&ann, "/connections").await;
    let page = anns.get(&format!("{link}&return_to=https%3A%2F%2Fevil.example")).await;
    let transaction = page.transaction();
    let elsewhere = [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")];
    let stolen = anns.post_with("/connect/gh", &[("transaction", &transaction)], &elsewhere).await;
    assert!(stolen.is_error_page(403), "{}", stolen.text);
    assert!(bobs.post("/connect/gh", &[("transaction", &transaction)]).await.is_error_page(403));
    assert!(anns.post("/connect/gh", &[("transaction", "x")]).await.is_error_page(403));
    let sent = anns.post("/connect/gh", &[("transaction", &transaction)]).await;
    assert!(!sent.location().unwrap().contains("evil"));
    let back = place.provider.agree(sent.location().unwrap());
    let back = back.strip_prefix(P).unwrap();
    assert!(bobs.get(back).await.is_error_page(403));
    let (others, _) = place.browser(&ann, "/connections").await;
    assert!(others.get(back).await.is_error_page(403));
    assert!(Browser::new(&place.world.client(0)).get(back).await.is_error_page(403));
    assert_eq!(anns.get(back).await.status, 200);
    assert!(anns.get(back).await.is_error_page(400), "it is good once");
    assert!(place.connection(&ann).await.is_some() && place.connection(&bob).await.is_none());
    assert_eq!(place.provider.asked("authorization_code").len(), 1);
}

#[tokio::test]
async fn t47_an_answer_of_another_server_or_for_another_backend_is_not_shown_to_this_one() {
    let provider = Provider::start().await;
    let backend = guarded(provider.checker()).await;
    let world = World::over("embedded", "", |setup| {
        let other = format!(
            "{{ url: \"{}\", auth: {{ kind: user_oauth, issuer: \"{}\" }} }}",
            backend.url_of("/other"),
            provider.issuer()
        );
        with(setup, &backend, &provider, "modern").backend("other", &other)
    })
    .await;
    let place = Place { world, provider, backend };
    let ann = place.world.user("ann").await;
    let (browser, _) = place.browser(&ann, "/connections").await;
    let answer = async |iss: Option<String>| {
        place.provider.rule(|rules| rules.iss = iss);
        let page = browser.get("/connect/gh").await;
        let sent = browser.post("/connect/gh", &[("transaction", &page.transaction())]).await;
        let back = place.provider.agree(sent.location().unwrap());
        back.strip_prefix(P).unwrap().to_owned()
    };
    let wrong = answer(Some(format!("{}/", place.provider.issuer()))).await;
    assert!(browser.get(&wrong).await.is_error_page(400));
    place.provider.rule(|rules| {
        rules.metadata = json!({ "authorization_response_iss_parameter_supported": true });
    });
    let missing = answer(None).await;
    assert!(browser.get(&missing).await.is_error_page(400));
    let right = answer(Some(place.provider.issuer())).await;
    let elsewhere = right.replace("/connect/callback/gh", "/connect/callback/other");
    assert!(browser.get(&elsewhere).await.is_error_page(400));
    assert_eq!(place.provider.asked("authorization_code").len(), 0, "no code was shown");
    assert_eq!(browser.get(&right).await.status, 200);
    // The user says no there.
    let page = browser.get("/connect/gh").await;
    let sent = browser.post("/connect/gh", &[("transaction", &page.transaction())]).await;
    let to = url::Url::parse(sent.location().unwrap()).unwrap();
    let (_, state) = to.query_pairs().find(|(name, _)| name == "state").unwrap();
    let (issuer, state) = (place.provider.issuer(), state.into_owned());
    let query = encoded(&[("error", "access_denied"), ("state", &state), ("iss", &issuer)]);
    let denied = browser.get(&format!("/connect/callback/gh?{query}")).await;
    assert!(denied.is_error_page(403) && denied.text.contains("did not agree"), "{}", denied.text);
}

#[tokio::test]
async fn t47_a_server_that_is_not_as_it_must_be_is_not_used() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    let (browser, _) = place.browser(&ann, "/connections").await;
    let issuer = place.provider.issuer();
    for metadata in [
        json!({ "issuer": format!("{issuer}/") }),
        json!({ "code_challenge_methods_supported": ["plain"] }),
        json!({ "code_challenge_methods_supported": null }),
        json!({ "authorization_endpoint": null }),
        json!({ "authorization_endpoint": "javascript:alert(1)" }),
        json!({ "token_endpoint": "http://169.254.169.254/token" }),
    ] {
        place.provider.rule(|rules| rules.metadata = metadata.clone());
        let page = browser.get("/connect/gh").await;
        assert!(page.is_error_page(502), "{metadata}: {}", page.text);
        assert!(!page.text.contains(&issuer));
    }
    place.provider.rule(|rules| rules.metadata = json!({ "registration_endpoint": null }));
    let page = browser.get("/connect/gh").await;
    let sent = browser.post("/connect/gh", &[("transaction", &page.transaction())]).await;
    assert!(sent.is_error_page(502), "the gateway can't register: {}", sent.text);
    place.provider.rule(|rules| rules.metadata = json!({}));
    assert_eq!(browser.get("/connect/gh").await.status, 200);
}

/// A backend that names its authorization servers, at a place that a browser may connect from.
struct Naming {
    place: Place,
    other: Provider,
    named: Arc<std::sync::Mutex<Value>>,
    /// Has the file with its certificate.
    authority: Authority,
}

async fn naming(auth: &str) -> Naming {
    let authority = Authority::new(&["localhost", "127.0.0.1"]);
    let provider = Provider::start_tls(authority.tls.clone()).await;
    let other = Provider::start_tls(authority.tls.clone()).await;
    let named = Arc::new(std::sync::Mutex::new(json!({})));
    let (checker, naming) = (provider.checker(), named.clone());
    let backend = Backend::start(move |request| {
        let (checker, naming) = (checker.clone(), naming.clone());
        async move {
            if request.path == "/.well-known/oauth-protected-resource/mcp" {
                return Reply::json(&naming.lock().unwrap().clone());
            }
            match checker.check(&request) {
                Ok(subject) => super::own_credentials::tells(&request, &subject),
                Err(refusal) => *refusal,
            }
        }
    })
    .await;
    let world = World::over("embedded", "", |setup| {
        let settings = format!("{{ url: \"{}\", era: modern, auth: {{ {auth} }} }}", backend.url());
        let outbound = format!(
            "outbound: {{ ca_bundle: {}, allow_networks: [127.0.0.0/8, \"::1/128\"] }}",
            authority.bundle().display()
        );
        setup.backend("gh", &settings).config(&outbound)
    })
    .await;
    Naming { place: Place { world, provider, backend }, other, named, authority }
}

impl Naming {
    fn name(&self, resource: &str, servers: &[&Provider]) {
        let servers: Vec<String> = servers.iter().map(|server| server.issuer()).collect();
        let document =
            json!({ "resource": resource, "authorization_servers": servers, "scopes_supported": ["repo"] });
        *self.named.lock().unwrap() = document;
    }
}

#[tokio::test]
async fn t46_a_server_is_the_one_that_the_backend_named_first() {
    let naming = naming("kind: user_oauth").await;
    let (place, other) = (&naming.place, &naming.other);
    let ann = place.world.user("ann").await;
    let (browser, _) = place.browser(&ann, "/connections").await;
    let url = place.backend.url();
    // Of another resource, of none, of two.
    naming.name("https://elsewhere.example/mcp", &[&place.provider]);
    assert!(browser.get("/connect/gh").await.is_error_page(502));
    naming.name(&url, &[]);
    assert!(browser.get("/connect/gh").await.is_error_page(502));
    naming.name(&url, &[&place.provider, other]);
    assert!(browser.get("/connect/gh").await.is_error_page(502));
    assert_eq!(place.provider.requests().len() + other.requests().len(), 0, "nobody was asked");

    naming.name(&url, &[&place.provider]);
    place.connect(&ann, "ann at gh").await;
    let asked = place.provider.asked("authorization_code");
    assert_eq!(asked[0]["resource"], url);
    let client = place.client(&ann, 0, json!({})).await;
    assert_eq!(text(&client.tool("gh__echo", json!({})).await), "ann at gh");
    let row = place.connection(&ann).await.unwrap();
    assert_eq!((row.issuer, row.resource), (place.provider.issuer(), url.clone()));
    assert!(row.scopes.contains("repo"));

    // Now it names another. Nothing is sent there, and what there is goes on.
    naming.name(&url, &[other]);
    let page = browser.get("/connect/gh").await;
    assert!(page.is_error_page(502), "{}", page.text);
    let pinned = place.world.records.authority("gh").await.unwrap().unwrap();
    assert_eq!((pinned.issuer, pinned.found), (place.provider.issuer(), Some(other.issuer())));
    place.provider.expire_all();
    assert_eq!(text(&client.tool("gh__echo", json!({})).await), "ann at gh");
    assert_eq!(other.requests().len(), 0);
    let log = place.world.gateways[0].program.stderr();
    assert!(log.contains("nobody can connect until the configuration names one of them"), "{log}");
    // It was a mistake.
    naming.name(&url, &[&place.provider]);
    assert_eq!(browser.get("/connect/gh").await.status, 200);
    assert_eq!(place.world.records.authority("gh").await.unwrap().unwrap().found, None);
}

#[tokio::test]
async fn t48_the_gateways_own_token_is_from_the_server_that_the_backend_named_first() {
    let auth = "kind: client_credentials, client_id: gateway, client_secret: secret";
    let naming = naming(auth).await;
    let (place, other) = (&naming.place, &naming.other);
    place.provider.add_client("gateway", Some("secret"));
    place.provider.rule(|rules| rules.metadata = json!({ "code_challenge_methods_supported": null }));
    let (ann, url) = (place.world.user("ann").await, place.backend.url());
    naming.name(&url, &[&place.provider]);
    let client = place.client(&ann, 0, json!({})).await;
    assert_eq!(text(&client.tool("gh__echo", json!({})).await), "gateway");
    assert_eq!(place.provider.asked("client_credentials")[0]["resource"], url);
    let pinned = place.world.records.authority("gh").await.unwrap().unwrap();
    assert_eq!(pinned.issuer, place.provider.issuer());
    // Another instance that starts later finds that it names another, and sends no secret there.
    naming.name(&url, &[other]);
    let Naming { place, other, authority: _authority, .. } = naming;
    let mut world = place.world;
    let gateway = world.gateways.remove(0).restart().await;
    ready(&gateway).await;
    let client = Modern::new(&gateway.client().bearer(&world.token(&ann).await), "/mcp", json!({}));
    let answer = client.tool("gh__echo", json!({})).await;
    assert_eq!(answer["error"]["data"]["code"], "no_credential", "{answer}");
    assert_eq!(other.requests().len(), 0);
}

#[tokio::test]
async fn t46_a_server_that_only_the_backend_names_must_be_public_and_speak_tls() {
    let place = {
        let provider = Provider::start().await;
        let (checker, issuer) = (provider.checker(), provider.issuer());
        let backend = Backend::start(move |request| {
            let (checker, issuer) = (checker.clone(), issuer.clone());
            async move {
                if request.path.starts_with("/.well-known/oauth-protected-resource") {
                    let resource = format!("http://{}/mcp", request.header("host"));
                    return Reply::json(&json!({ "resource": resource, "authorization_servers": [issuer] }));
                }
                checker
                    .check(&request)
                    .map_or_else(|refusal| *refusal, |who| super::own_credentials::tells(&request, &who))
            }
        })
        .await;
        let settings = format!("{{ url: \"{}\", era: modern, auth: {{ kind: user_oauth }} }}", backend.url());
        let world = World::over("embedded", "", |setup| setup.backend("gh", &settings)).await;
        Place { world, provider, backend }
    };
    let ann = place.world.user("ann").await;
    let (browser, _) = place.browser(&ann, "/connections").await;
    assert!(browser.get("/connect/gh").await.is_error_page(503));
    assert_eq!(place.provider.requests().len(), 0);
    assert!(place.world.records.authority("gh").await.unwrap().is_none());
}

/// Connects `user` with a token that ends at once, waits for that, and lets later ones be good for long.
async fn expired(place: &Place, user: &User) {
    place.provider.rule(|rules| rules.life = Some(1));
    place.connect(user, "ann at gh").await;
    place.provider.rule(|rules| rules.life = Some(3600));
    let until = place.connection(user).await.unwrap().expires_at.unwrap();
    eventually(PATIENCE, async || chrono::Utc::now() > until).await;
}

#[tokio::test]
async fn t49_parallel_calls_at_two_instances_refresh_once() {
    let place = Place::several(2).await;
    let ann = place.world.user("ann").await;
    expired(&place, &ann).await;
    let clients = [place.client(&ann, 0, json!({})).await, place.client(&ann, 1, json!({})).await];
    let calls = (0..50).map(|n| {
        let client = clients[n % 2].clone();
        async move { text(&client.tool("gh__echo", json!({})).await).to_owned() }
    });
    let answers = join_all(calls).await;
    assert!(answers.iter().all(|answer| answer == "ann at gh"), "{answers:?}");
    let asked = place.provider.asked("refresh_token");
    assert_eq!((asked.len(), place.provider.ended()), (1, 0), "{asked:?}");
    assert_eq!(asked[0]["resource"], place.backend.url());
    // The next one has the token that came with it.
    place.provider.expire_all();
    let answers = join_all((0..20).map(|n| clients[n % 2].tool("gh__echo", json!({})))).await;
    assert!(answers.iter().all(|answer| text(answer) == "ann at gh"), "{answers:?}");
    assert_eq!((place.provider.asked("refresh_token").len(), place.provider.ended()), (2, 0));
    let row = place.connection(&ann).await.unwrap();
    assert_eq!((row.version, row.status), (3, ConnectionStatus::Connected));
}

#[tokio::test]
async fn t49_without_redis_they_refresh_once_too() {
    let mut place = Place::several(2).await;
    let ann = place.world.user("ann").await;
    expired(&place, &ann).await;
    let clients = [place.client(&ann, 0, json!({})).await, place.client(&ann, 1, json!({})).await];
    for client in &clients {
        client.call("tools/list", json!({})).await;
    }
    place.world.redis.as_mut().unwrap().stop().await;
    let answers = join_all((0..20).map(|n| clients[n % 2].tool("gh__echo", json!({})))).await;
    assert!(answers.iter().all(|answer| text(answer) == "ann at gh"), "{answers:?}");
    assert_eq!((place.provider.asked("refresh_token").len(), place.provider.ended()), (1, 0));
}

#[tokio::test]
async fn t50_a_refresh_goes_on_when_the_host_has_gone() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    expired(&place, &ann).await;
    let gate = place.provider.hold();
    let client = place.client(&ann, 0, json!({})).await;
    let asked = || {
        let requests = place.provider.requests();
        requests.iter().filter(|r| r.path == "/token" && r.text.starts_with(b"grant_type=refresh")).count()
    };
    {
        let call = client.tool("gh__echo", json!({}));
        let mut call = std::pin::pin!(call);
        let seen = eventually(PATIENCE, async || asked() == 1);
        tokio::select! {
            answer = &mut call => panic!("{answer}"),
            () = seen => {}
        }
    }
    assert_eq!(place.connection(&ann).await.unwrap().version, 1);
    gate.add_permits(100);
    eventually(PATIENCE, async || place.connection(&ann).await.unwrap().version == 2).await;
    assert_eq!(text(&client.tool("gh__echo", json!({})).await), "ann at gh");
    assert_eq!((asked(), place.provider.ended()), (1, 0));
}

#[tokio::test]
async fn t51_a_server_in_trouble_costs_nothing_and_one_that_says_no_ends_it() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    expired(&place, &ann).await;
    let client = place.client(&ann, 0, json!({})).await;
    place.provider.rule(|rules| rules.fault = Some((500, json!({ "error": "server_error" }))));
    let answer = client.tool("gh__echo", json!({})).await;
    assert_eq!(answer["error"]["data"], json!({ "code": "no_credential", "retry": "safe" }), "{answer}");
    let row = place.connection(&ann).await.unwrap();
    assert_eq!((row.version, row.status), (1, ConnectionStatus::Connected));
    let asked = place.provider.asked("refresh_token").len();
    client.tool("gh__echo", json!({})).await;
    assert_eq!(place.provider.asked("refresh_token").len(), asked, "it is left alone for a while");
    place.provider.rule(|rules| rules.fault = None);
    eventually(PATIENCE, async || {
        let answer = client.tool("gh__echo", json!({})).await;
        answer["result"].is_object() && text(&answer) == "ann at gh"
    })
    .await;

    place.provider.expire_all();
    place.provider.end_all();
    let answer = client.tool("gh__echo", json!({})).await;
    assert!(answer["result"]["isError"] == true && text(&answer).contains("/connect/gh?e="), "{answer}");
    let row = place.connection(&ann).await.unwrap();
    assert_eq!(row.status, ConnectionStatus::NeedsReauth, "it is kept, to be seen");
    let asked = place.provider.asked("refresh_token").len();
    assert!(text(&client.tool("gh__echo", json!({})).await).contains("/connect/gh?e="));
    assert_eq!(place.provider.asked("refresh_token").len(), asked);
    let browser = place.connect(&ann, "ann again").await;
    assert_eq!(text(&client.tool("gh__echo", json!({})).await), "ann again");
    assert!(browser.get("/connections").await.text.contains("· connected"));
}

#[tokio::test]
async fn t51_a_backend_that_wants_more_has_the_user_asked_for_all_of_it() {
    let provider = Provider::start().await;
    let (checker, wants) = (provider.checker(), Arc::new(AtomicUsize::new(1)));
    let wanting = wants.clone();
    let backend = Backend::start(move |request| {
        let (checker, wanting) = (checker.clone(), wanting.clone());
        async move {
            match checker.check(&request) {
                Ok(_) if wanting.load(Ordering::SeqCst) > 0 && request.rpc() == "tools/call" => {
                    let challenge = "Bearer error=\"insufficient_scope\", scope=\"repo:write\"";
                    Reply::status(403).header("www-authenticate", challenge)
                }
                Ok(subject) => super::own_credentials::tells(&request, &subject),
                Err(refusal) => *refusal,
            }
        }
    })
    .await;
    let world = World::over("embedded", "", |setup| {
        let settings = format!(
            "{{ url: \"{}\", era: modern, auth: {{ kind: user_oauth, issuer: \"{}\", scopes: [repo:read] }} }}",
            backend.url(),
            provider.issuer()
        );
        setup.backend("gh", &settings)
    })
    .await;
    let place = Place { world, provider, backend };
    let ann = place.world.user("ann").await;
    let browser = place.connect(&ann, "ann at gh").await;
    let client = place.client(&ann, 0, json!({})).await;
    let answer = client.tool("gh__echo", json!({})).await;
    assert!(answer["result"]["isError"] == true && text(&answer).contains("/connect/gh?e="), "{answer}");
    assert_eq!(place.connection(&ann).await.unwrap().status, ConnectionStatus::NeedsScope);
    wants.store(0, Ordering::SeqCst);
    let page = browser.get("/connect/gh").await;
    let sent = browser.post("/connect/gh", &[("transaction", &page.transaction())]).await;
    let to = url::Url::parse(sent.location().unwrap()).unwrap();
    let (_, scope) = to.query_pairs().find(|(name, _)| name == "scope").unwrap();
    assert_eq!(scope, "repo:read repo:write");
    let back = place.provider.agree(to.as_str());
    assert_eq!(browser.get(back.strip_prefix(P).unwrap()).await.status, 200);
    assert_eq!(text(&client.tool("gh__echo", json!({})).await), "ann at gh");
}

#[tokio::test]
async fn t52_what_is_copied_to_another_user_does_not_open() {
    let place = Place::one().await;
    let (ann, bob) = (place.world.user("ann").await, place.world.user("bob").await);
    place.connect(&ann, "ann at gh").await;
    let row = place.connection(&ann).await.unwrap();
    assert!(row.access.starts_with("k1.") && !row.access.contains("access-"));
    let copy = Connection { id: "copied".to_owned(), user: bob.id.clone(), ..row.clone() };
    place.world.records.put_connection(&copy).await.unwrap();
    let client = place.client(&bob, 0, json!({})).await;
    let answer = client.tool("gh__echo", json!({})).await;
    assert!(answer["result"]["isError"] == true && text(&answer).contains("/connect/gh?e="), "{answer}");
    assert_eq!(place.backend.count("tools/call"), 0);
    // Nor does one column in the place of another, or for another server.
    let carol = place.world.user("carol").await;
    place.connect(&carol, "carol at gh").await;
    let own = place.connection(&carol).await.unwrap();
    let swapped = Connection { access: own.refresh.clone().unwrap(), ..own.clone() };
    place.world.records.put_connection(&swapped).await.unwrap();
    let moved = Connection { issuer: "https://evil.example".to_owned(), ..own };
    let client = place.client(&carol, 0, json!({})).await;
    for row in [swapped, moved] {
        place.world.records.put_connection(&row).await.unwrap();
        let answer = client.tool("gh__echo", json!({})).await;
        assert!(text(&answer).contains("/connect/gh?e="), "{answer}");
    }
}

/// A backend with sessions that tells callers who they are to it.
async fn with_sessions(checker: Option<Checker>) -> Backend {
    let opened = Arc::new(AtomicUsize::new(0));
    Backend::start(move |request| {
        let (checker, opened) = (checker.clone(), opened.clone());
        async move {
            let subject = match checker.as_ref().map(|checker| checker.check(&request)) {
                Some(Err(refusal)) => return *refusal,
                Some(Ok(subject)) => subject,
                None => "anybody".to_owned(),
            };
            match request.rpc() {
                "initialize" => legacy(&request, &format!("s{}", opened.fetch_add(1, Ordering::SeqCst))),
                "tools/call" => Reply::result(&request, text_result(&subject)),
                _ => legacy(&request, request.header("mcp-session-id")),
            }
        }
    })
    .await
}

#[tokio::test]
async fn t55_two_users_never_have_one_session_at_a_backend_with_accounts() {
    let provider = Provider::start().await;
    let backend = with_sessions(Some(provider.checker())).await;
    let open = with_sessions(None).await;
    let world = World::over("embedded", "", |setup| {
        let shared = format!(
            "{{ url: \"{}\", era: legacy, session_scope: shared, auth: {{ kind: header, value: key }} }}",
            open.url()
        );
        with(setup, &backend, &provider, "legacy").backend("open", &shared)
    })
    .await;
    let place = Place { world, provider, backend };
    let (ann, bob) = (place.world.user("ann").await, place.world.user("bob").await);
    place.connect(&ann, "ann at gh").await;
    place.connect(&bob, "bob at gh").await;
    for (user, subject) in [(&ann, "ann at gh"), (&bob, "bob at gh"), (&ann, "ann at gh")] {
        let client = place.client(user, 0, json!({})).await;
        let session = Session::open(&client.client, "/mcp", "2025-11-25", json!({})).await;
        for _ in 0..2 {
            assert_eq!(text(&client.tool("gh__echo", json!({})).await), subject);
            assert_eq!(text(&session.tool("gh__echo", json!({})).await), subject);
            assert_eq!(text(&client.tool("open__echo", json!({})).await), "anybody");
        }
    }
    let mut whose: std::collections::BTreeMap<String, std::collections::BTreeSet<String>> =
        Default::default();
    for call in place.backend.requests_of("tools/call") {
        let subject = place.provider.subject(call.header("authorization")).unwrap();
        whose.entry(call.header("mcp-session-id").to_owned()).or_default().insert(subject);
    }
    assert!(whose.len() >= 4 && whose.values().all(|subjects| subjects.len() == 1), "{whose:?}");
    let shared: std::collections::BTreeSet<_> =
        open.requests_of("tools/call").iter().map(|call| call.header("mcp-session-id").to_owned()).collect();
    assert_eq!(shared.len(), 1, "those that may share do");
}

/// Reaches nobody.
struct Nobody;

#[async_trait::async_trait]
impl Fetch for Nobody {
    async fn fetch(
        &self,
        _: http::Request<Vec<u8>>,
        _: usize,
    ) -> Result<http::Response<Vec<u8>>, NotFetched> {
        Err(NotFetched("nobody is there".to_owned()))
    }
}

#[tokio::test]
async fn t52_what_an_older_key_has_sealed_is_sealed_anew() {
    let place = Place::one().await;
    let ann = place.world.user("ann").await;
    place.connect(&ann, "ann at gh").await;
    let row = place.connection(&ann).await.unwrap();
    let (old, new) =
        (SealKey { id: "k1".to_owned(), secret: key() }, SealKey { id: "k2".to_owned(), secret: [2; 32] });
    let connections = |keys: &[SealKey]| {
        let authorities = Authorities {
            pins: Pins {
                vault: Arc::new(
                    SqlRecords::open(&place.world.database_url(), &SqlOptions::default()).unwrap(),
                ),
                guarded: Arc::new(Nobody),
            },
            ring: Arc::new(KeyRing::new(keys).unwrap()),
            state: MemoryState::new(1 << 20, PATIENCE).instance(false),
            origin: Origin::of(&P.parse().unwrap()),
            name: "a test's".to_owned(),
            assert: None,
        };
        Connections::new(authorities, Tasks::default())
    };
    // Without the old key nothing can be done, and nothing is lost.
    assert_eq!(connections(std::slice::from_ref(&new)).seal_anew().await.unwrap(), 0);
    let both = connections(&[new.clone(), old]);
    assert_eq!(both.seal_anew().await.unwrap(), 1);
    assert_eq!(both.seal_anew().await.unwrap(), 0);
    let sealed = place.connection(&ann).await.unwrap();
    assert!(sealed.access.starts_with("k2.") && sealed.refresh.as_deref().unwrap().starts_with("k2."));
    assert_eq!((sealed.version, sealed.expires_at), (row.version + 1, row.expires_at));
    let subject = Subject { kind: SubjectKind::User, id: ann.id.clone(), client: "a test's".to_owned() };
    let principal = Principal::named("ann").of(subject);
    let found = connections(&[new]).of("gh").find(&principal).await.unwrap();
    let (_, value) = found.headers().next().unwrap();
    assert_eq!(place.provider.subject(value).as_deref(), Some("ann at gh"));
}

#[tokio::test]
async fn the_gateway_is_known_by_its_document_where_that_is_understood() {
    const SECURE: &str = "https://localhost:9";
    let provider = Provider::start().await;
    provider.rule(|rules| rules.metadata = json!({ "client_id_metadata_document_supported": true }));
    let backend = guarded(provider.checker()).await;
    let setup =
        Gateway::setup().config(&format!("public: {{ url: \"{SECURE}\" }}\nauth: {{ mode: embedded }}"));
    let gateway = with(setup, &backend, &provider, "modern").start().await;
    ready(&gateway).await;
    let file = format!("sqlite:{}", gateway.dir().join("data/drawbridge.db").display());
    let world = World::around(SqlRecords::open(&file, &SqlOptions::default()).unwrap()).await;
    let (ann, client) = (world.user("ann").await, gateway.client());
    let document = client.get("/oauth/client-metadata.json", &[]).await.json().await;
    let id = format!("{SECURE}/oauth/client-metadata.json");
    assert_eq!(document["client_id"], id);
    assert_eq!(document["redirect_uris"], json!([format!("{SECURE}/connect/callback/gh")]));

    let (browser, sign_in) = (Browser::new(&client), world.sign_in_token(&ann).await);
    let own = [("origin", SECURE), ("sec-fetch-site", "same-origin")];
    let page = browser.get("/connect/gh").await;
    let form = [("transaction", &*page.transaction()), ("token", &*sign_in)];
    assert_eq!(browser.post_with("/login", &form, &own).await.status, 303);
    let page = browser.get("/connect/gh").await;
    let sent = browser.post_with("/connect/gh", &[("transaction", &page.transaction())], &own).await;
    let to = sent.location().unwrap();
    assert!(to.contains(&encoded(&[("client_id", &id)])), "{to}");
    let back = provider.agree(to);
    assert_eq!(browser.get(back.strip_prefix(SECURE).unwrap()).await.status, 200);
    let asked = provider.asked("authorization_code").pop().unwrap();
    assert!(!asked.contains_key("client_secret") && asked["client_id"] == id);
    // It proves that by a key of its own, and what proves it is no access token.
    let assertion = &asked["client_assertion"];
    let keys: jsonwebtoken::jwk::JwkSet =
        serde_json::from_value(client.get("/jwks.json", &[]).await.json().await).unwrap();
    let kid = jsonwebtoken::decode_header(assertion).unwrap().kid.unwrap();
    let key = jsonwebtoken::DecodingKey::from_jwk(keys.find(&kid).unwrap()).unwrap();
    let mut rules = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::ES256);
    rules.set_audience(&[provider.issuer()]);
    rules.set_issuer(&[&id]);
    let claims = jsonwebtoken::decode::<Value>(assertion, &key, &rules).unwrap().claims;
    assert_eq!(claims["sub"], id);
    let refused = super::world::list(&client.bearer(assertion), "/mcp").await;
    assert_eq!(refused.status(), 401);
    assert_eq!(provider.clients(), 0, "it did not register");
}

#[tokio::test]
async fn operators_see_what_a_user_has_connected_and_can_end_it() {
    let provider = Provider::start().await;
    let backend = guarded(provider.checker()).await;
    let first = format!("admin: {{ bootstrap_token: {FIRST} }}");
    let world =
        World::over("embedded", "", |setup| with(setup.config(&first), &backend, &provider, "modern")).await;
    let place = Place { world, provider, backend };
    let (ann, bob) = (place.world.user("ann").await, place.world.user("bob").await);
    place.connect(&ann, "octo-ann").await;
    let operator = Operator::at(&place.world.gateways[0]);
    let of = async |user: &User| {
        let path = format!("users/{}/connections", user.id);
        operator.ask(Method::GET, &path, None).await.json().await["items"][0].clone()
    };
    let anns = of(&ann).await;
    assert_eq!((&anns["backend"], &anns["status"]), (&json!("gh"), &json!("connected")), "{anns}");
    assert!(anns["since"].is_string());
    assert_eq!(of(&bob).await["status"], Value::Null);

    let path = format!("users/{}/connections/gh", ann.id);
    assert_eq!(operator.ask(Method::DELETE, &path, None).await.status(), 204);
    assert_eq!(of(&ann).await["status"], Value::Null);
    assert!(place.connection(&ann).await.is_none());
    let nowhere = format!("users/{}/connections/demo", ann.id);
    assert_eq!(operator.ask(Method::DELETE, &nowhere, None).await.status(), 404);
    let audit = operator.ask(Method::GET, "audit", None).await.text().await;
    assert!(audit.contains("connection.remove"), "{audit}");
}
