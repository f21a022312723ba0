//! Backends at which each user has a key, which they give on a page of the gateway.

use drawbridge_auth::records::User;
use drawbridge_auth::vault::{ConnectionStatus, Vault as _};
use drawbridge_testkit::backend::{Backend, Reply};
use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::gateway::Setup;
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};

use super::accounts::log_in;
use super::own_credentials::tells;
use super::world::{Browser, P, Page, World};

/// Takes the keys `key-NAME` in `header` after `prefix`.
async fn takes_keys(header: &'static str, prefix: &'static str) -> Backend {
    Backend::start(move |request| async move {
        match request.header(header).strip_prefix(prefix).and_then(|key| key.strip_prefix("key-")) {
            Some("over") | None => Reply::status(401),
            Some(name) => tells(&request, name),
        }
    })
    .await
}

fn with(setup: Setup, backend: &Backend, more: &str) -> Setup {
    let settings =
        format!("{{ url: \"{}\", era: modern, auth: {{ kind: user_secret{more} }} }}", backend.url());
    setup.backend("notes", &settings)
}

struct Place {
    world: World,
    backend: Backend,
}

impl Place {
    async fn client(&self, user: &User, number: usize) -> Modern {
        let token = self.world.token(user).await;
        let client = self.world.client(number).bearer(&token);
        Modern::new(&client, "/mcp", json!({ "elicitation": { "url": {} } }))
    }

    async fn browser(&self, user: &User) -> (Browser, Page) {
        let browser = Browser::new(&self.world.client(0));
        let sign_in = self.world.sign_in_token(user).await;
        let page = log_in(&browser, "/connect/notes", &sign_in).await;
        (browser, page)
    }

    async fn status(&self, user: &User) -> Option<ConnectionStatus> {
        let row = self.world.records.connection(&user.id, "notes").await.unwrap();
        row.map(|row| row.status)
    }
}

async fn give(browser: &Browser, page: &Page, key: &str) -> Page {
    browser.post("/connect/notes", &[("transaction", &page.transaction()), ("key", key)]).await
}

async fn asked(client: &Modern) -> Value {
    client.call("tools/call", json!({ "name": "notes__echo", "arguments": {} })).await["result"].clone()
}

#[tokio::test]
async fn each_user_gives_a_key_of_their_own_once_and_it_is_good_at_every_instance() {
    let backend = takes_keys("x-api-key", "").await;
    let more = ", header: X-Api-Key, help: \"https://notes.example/keys\"";
    let world = World::several_with(2, |setup| with(setup, &backend, more)).await;
    let place = Place { world, backend };
    let (ann, bob) = (place.world.user("ann").await, place.world.user("bob").await);
    let client = place.client(&ann, 1).await;
    let result = asked(&client).await;
    let url =
        result["inputRequests"]["connect"]["params"]["url"].as_str().unwrap_or_else(|| panic!("{result}"));
    assert!(url.starts_with(&format!("{P}/connect/notes?e=")), "{url}");
    let (browser, page) = place.browser(&ann).await;
    assert!(page.text.contains("type=\"password\"") && page.text.contains("https://notes.example/keys"));
    // What is no key is asked for again, and not repeated.
    for no_key in ["", "a\nb", "pl4nted-\u{e9}"] {
        let again = give(&browser, &page, no_key).await;
        assert_eq!(again.status, 400, "{no_key:?}");
        assert!(again.text.contains("This is no key") && !again.text.contains("pl4nted"), "{}", again.text);
    }
    let done = give(&browser, &page, " key-ann ").await;
    assert!(done.status == 200 && done.text.contains("Connected"), "{}", done.text);
    for number in 0..2 {
        let client = place.client(&ann, number).await;
        eventually(PATIENCE, async || text(&client.tool("notes__echo", json!({})).await) == "ann").await;
    }
    // It is hers alone, in the records nobody can read it, and no log has it.
    assert_eq!(asked(&place.client(&bob, 0).await).await["resultType"], "input_required");
    let row = place.world.records.connection(&ann.id, "notes").await.unwrap().unwrap();
    assert!(!row.access.contains("key-ann") && row.refresh.is_none());
    for gateway in &place.world.gateways {
        assert!(!gateway.program.stderr().contains("key-ann"));
    }
    // She takes it back.
    let list = browser.get("/connections").await;
    assert!(list.text.contains("· connected"), "{}", list.text);
    browser.post("/connections/notes/disconnect", &[("transaction", &list.transaction())]).await;
    assert_eq!(place.status(&ann).await, None);
    assert_eq!(asked(&client).await["resultType"], "input_required");
}

#[tokio::test]
async fn a_key_that_the_backend_takes_no_more_is_asked_for_again() {
    let backend = takes_keys("authorization", "Bearer ").await;
    let world = World::over("embedded", "", |setup| with(setup, &backend, "")).await;
    let place = Place { world, backend };
    let ann = place.world.user("ann").await;
    let client = place.client(&ann, 0).await;
    let (browser, page) = place.browser(&ann).await;
    assert_eq!(give(&browser, &page, "key-over").await.status, 200);
    assert_eq!(asked(&client).await["resultType"], "input_required");
    assert_eq!(place.status(&ann).await, Some(ConnectionStatus::NeedsReauth));
    let page = browser.get("/connect/notes").await;
    assert_eq!(give(&browser, &page, "key-ann").await.status, 200);
    assert_eq!(text(&client.tool("notes__echo", json!({})).await), "ann");
}

#[tokio::test]
async fn a_key_is_not_sent_to_where_the_backend_has_moved() {
    let first = takes_keys("x-api-key", "Token ").await;
    let more = ", header: X-Api-Key, scheme: Token";
    let world = World::over("embedded", "", |setup| with(setup, &first, more)).await;
    let place = Place { world, backend: first };
    let ann = place.world.user("ann").await;
    let (browser, page) = place.browser(&ann).await;
    assert_eq!(give(&browser, &page, "key-ann").await.status, 200);
    let client = place.client(&ann, 0).await;
    assert_eq!(text(&client.tool("notes__echo", json!({})).await), "ann");
    let elsewhere = takes_keys("x-api-key", "Token ").await;
    let file = place.world.gateways[0].dir().join("drawbridge.yaml");
    let moved = std::fs::read_to_string(&file).unwrap().replace(&place.backend.url(), &elsewhere.url());
    std::fs::write(&file, moved).unwrap();
    eventually(PATIENCE, async || asked(&client).await["resultType"] == "input_required").await;
    assert!(elsewhere.requests().iter().all(|request| request.header("x-api-key").is_empty()));
}
