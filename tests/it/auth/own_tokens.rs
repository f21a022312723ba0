//! Personal tokens that users make for themselves (section 3.3 of the authorization digest).

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{PageRequest, Records as _, TokenFilter};
use drawbridge_testkit::postgres::PostgresDatabase;
use drawbridge_testkit::provider::Provider;
use http::Method;
use serde_json::json;

use super::accounts::log_in;
use super::admin_tokens::{FIRST, Operator};
use super::external::{Key, keys};
use super::world::{Browser, P, Page, World, list};

/// Gateways at which users log in with a provider.
struct Place {
    world: World,
    provider: Provider,
}

impl Place {
    async fn with(count: usize, more: &str) -> Self {
        let (provider, key) = (Provider::start().await, Key::fresh("k"));
        provider.identify(keys(&[&key]), move |claims| key.id_token(claims));
        provider.add_client("gate", Some("a secret"));
        let auth = format!(
            "  login: {{ issuer: \"{}\", client_id: gate, client_secret: a secret }}\n{more}",
            provider.issuer()
        );
        let admin = format!("admin: {{ bootstrap_token: {FIRST} }}");
        let world = if count == 1 {
            World::over("embedded", &auth, |setup| setup.config(&admin)).await
        } else {
            let database = PostgresDatabase::fresh().await;
            let mut world =
                World::several_as(count, &database.url(), &auth, |setup| setup.config(&admin)).await;
            world.database = Some(database);
            world
        };
        Self { world, provider }
    }

    /// A browser in which `subject` has logged in, and the page of what they have.
    async fn browser(&self, subject: &str) -> (Browser, Page) {
        let browser = Browser::new(&self.world.client(0));
        self.provider.rule(|rules| rules.subject = subject.to_owned());
        let page = browser.get("/connections").await;
        let back = self.provider.agree(page.location().unwrap_or_else(|| panic!("{}", page.text)));
        let came = browser.get(back.strip_prefix(P).unwrap()).await;
        assert_eq!((came.status, came.location()), (303, Some("/connections")));
        let page = browser.get("/connections").await;
        assert_eq!(page.status, 200, "{}", page.text);
        (browser, page)
    }
}

/// The hidden field of a form of the page.
fn field(page: &Page, action: &str) -> Option<String> {
    let at = page.text.find(&format!("action=\"{action}"))?;
    let field = "name=\"transaction\" value=\"";
    let at = at + page.text[at..].find(field)? + field.len();
    Some(page.text[at..].split('"').next().unwrap().to_owned())
}

/// The secret that a page shows.
fn secret(page: &Page) -> &str {
    let at = page.text.find("drb_pat_").unwrap_or_else(|| panic!("{}", page.text));
    &page.text[at..at + 48]
}

async fn make(browser: &Browser, page: &Page, changes: &[(&str, &str)]) -> Page {
    let transaction = field(page, "/connections/tokens\"").unwrap_or_else(|| panic!("{}", page.text));
    let mut form = vec![("name", "laptop"), ("scope", "mcp:read"), ("days", "30"), ("endpoint", "")];
    form.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
    form.extend(changes);
    form.push(("transaction", &transaction));
    browser.post("/connections/tokens", &form).await
}

#[tokio::test]
async fn a_user_makes_a_token_sees_it_and_ends_it_at_all_instances() {
    let place = Place::with(2, "  own_tokens: true\n").await;
    let (browser, page) = place.browser("ann").await;
    let elsewhere = browser.at(&place.world.client(1));
    assert!(page.text.contains("You have none."), "{}", page.text);
    let made = make(&elsewhere, &page, &[]).await;
    assert_eq!((made.status, made.header("cache-control")), (200, Some("no-store")), "{}", made.text);
    assert!(made.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));
    let token = secret(&made).to_owned();
    // A form that is sent again makes none.
    let again = make(&browser, &page, &[]).await;
    assert!(again.is_error_page(409) && !again.text.contains("drb_pat_"), "{}", again.text);
    for number in 0..2 {
        assert_eq!(place.world.status(number, "/mcp", &token).await, 200);
        assert_eq!(place.world.status(number, "/mcp/dev", &token).await, 401);
    }
    let issuer = place.provider.issuer();
    let ann = place.world.records.user_of(&issuer, "ann").await.unwrap().unwrap();
    let filter = TokenFilter { owner: Some(ann.id.clone()), ..TokenFilter::default() };
    let all = PageRequest { after: None, limit: 10 };
    let kept = place.world.records.tokens(&filter, &all, Utc::now()).await.unwrap().items;
    assert_eq!(
        (kept.len(), kept[0].name.as_str(), &*kept[0].created_by),
        (1, "laptop", &*format!("user:{}", ann.id))
    );
    let days = (kept[0].expires_at.unwrap() - Utc::now()).num_hours();
    assert!((719..=720).contains(&days), "{days}");
    assert!(kept[0].scopes.iter().eq(["mcp:read"]) && kept[0].endpoints.is_empty());

    // It is shown by its last characters.
    let page = browser.get("/connections").await;
    assert!(page.text.contains("laptop") && page.text.contains(&token[44..]), "{}", page.text);
    assert!(!page.text.contains(&token));
    let other = make(
        &browser,
        &page,
        &[("endpoint", "dev"), ("scope", "mcp:read"), ("scope", "mcp:write"), ("days", "366")],
    )
    .await;
    assert_eq!(place.world.status(1, "/mcp/dev", secret(&other)).await, 200);

    // Nobody else ends it, nor a page from elsewhere.
    let path = format!("/connections/tokens/{}/revoke", kept[0].id);
    let (bobs, bobs_page) = place.browser("bob").await;
    let bobs_form = field(&bobs_page, "/connections/tokens\"").unwrap();
    assert_eq!(bobs.post(&path, &[("transaction", &bobs_form)]).await.status, 404);
    let own = field(&page, &path).unwrap();
    assert!(bobs.post(&path, &[("transaction", &own)]).await.is_error_page(403));
    let forged =
        browser.post_with(&path, &[("transaction", &own)], &[("origin", "https://evil.example")]).await;
    assert!(forged.is_error_page(403));
    assert_eq!(place.world.status(0, "/mcp", &token).await, 200);
    let ended = elsewhere.post(&path, &[("transaction", &own)]).await;
    assert_eq!((ended.status, ended.location()), (303, Some("/connections")));
    let since = Instant::now();
    for number in 0..2 {
        loop {
            let asked = since.elapsed();
            if place.world.status(number, "/mcp", &token).await == 401 {
                break;
            }
            assert!(asked < Duration::from_secs(1), "instance {number} after {asked:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let operator = Operator::at(&place.world.gateways[0]);
    for (action, count) in [("token.create", 2), ("token.revoke", 1)] {
        let found =
            operator.ask(Method::GET, &format!("audit?kind=action&action={action}"), None).await.json().await;
        let items = found["items"].as_array().unwrap();
        assert_eq!((items.len(), &items[0]["actor"]), (count, &json!(format!("user:{}", ann.id))), "{found}");
        assert_eq!(
            (&items[0]["target"], &items[0]["detail"]["name"]),
            (&json!(kept[0].id), &json!("laptop"))
        );
        assert!(!found.to_string().contains(&token));
    }
    let logs: String = place.world.gateways.iter().map(|gateway| gateway.program.stderr()).collect();
    assert!(!logs.contains(&token));
}

#[tokio::test]
async fn what_is_no_token_that_a_user_may_have_is_not_made() {
    let place = Place::with(1, "  own_tokens: true\n").await;
    let (browser, page) = place.browser("ann").await;
    for (changes, why) in [
        (&[("name", " ")][..], "Say what the token is for"),
        (&[("name", "a\u{202e}b")], "Say what the token is for"),
        (&[("name", &*"x".repeat(129))], "Say what the token is for"),
        (&[("scope", "admin:*")], "Choose what the token allows"),
        (&[("scope", "mcp:read"), ("scope", "login")], "Choose what the token allows"),
        (&[("scope", "")], "Choose what the token allows"),
        (&[("days", "367")], "1 to 366 days"),
        (&[("days", "0")], "1 to 366 days"),
        (&[("days", "never")], "1 to 366 days"),
        (&[("endpoint", "nope")], "no such endpoint"),
        (&[("endpoint", "*")], "no such endpoint"),
    ] {
        let refused = make(&browser, &page, changes).await;
        assert!(refused.status == 400 && refused.text.contains(why), "{changes:?}: {}", refused.text);
    }
    let ann = place.world.records.user_of(&place.provider.issuer(), "ann").await.unwrap().unwrap();
    for number in 0..50 {
        place.world.token_with(&ann, &["mcp:read"], |token| token.name = format!("no. {number}")).await;
    }
    let refused = make(&browser, &page, &[]).await;
    assert!(
        refused.status == 409 && refused.text.contains("as many tokens as you may have"),
        "{}",
        refused.text
    );
    // A token is no login: it makes no other, whoever's it is.
    let token = place.world.token(&ann).await;
    let stranger = Browser::new(&place.world.client(0).bearer(&token));
    let form = field(&page, "/connections/tokens\"").unwrap();
    let sent = stranger.post("/connections/tokens", &[("transaction", &form), ("name", "x")]).await;
    assert!(sent.location().is_some_and(|to| to.starts_with(&place.provider.issuer())), "{}", sent.text);
    assert_eq!(list(&place.world.client(0).bearer(&token), "/connections/tokens").await.status(), 400);
}

#[tokio::test]
async fn who_has_signed_in_with_a_token_ends_tokens_and_makes_none() {
    let world = World::with("embedded", "  own_tokens: true\n").await;
    let ann = world.user("ann").await;
    let (token, secret) = world.token_with(&ann, &["mcp:read"], |token| token.name = "old".to_owned()).await;
    let sign_in = world.sign_in_token(&ann).await;
    let browser = Browser::new(&world.client(0));
    let page = log_in(&browser, "/connections", &sign_in).await;
    assert!(
        page.text.contains("You have signed in with a token")
            && field(&page, "/connections/tokens\"").is_none()
    );
    let path = format!("/connections/tokens/{}/revoke", token.id);
    let form = field(&page, &path).unwrap();
    let refused = browser
        .post(
            "/connections/tokens",
            &[("transaction", &form), ("name", "x"), ("scope", "mcp:read"), ("days", "1")],
        )
        .await;
    assert!(refused.is_error_page(403), "{}", refused.text);
    assert_eq!(world.status(0, "/mcp", secret.expose()).await, 200);
    assert_eq!(browser.post(&path, &[("transaction", &form)]).await.status, 303);
    assert_eq!(world.status(0, "/mcp", secret.expose()).await, 401);
    let expired = world
        .token_with(&ann, &["mcp:read"], |token| {
            token.name = "long gone".to_owned();
            token.expires_at = Some(Utc::now() - TimeDelta::seconds(1));
        })
        .await;
    let page = browser.get("/connections").await;
    assert!(!page.text.contains(&expired.0.name) && !page.text.contains(">old<"), "{}", page.text);
}

#[tokio::test]
async fn unless_the_operator_says_so_users_have_no_tokens_of_their_own() {
    let place = Place::with(1, "").await;
    let (browser, page) = place.browser("ann").await;
    assert!(!page.text.contains("/connections/tokens"), "{}", page.text);
    assert_eq!(browser.post("/connections/tokens", &[("name", "x")]).await.status, 404);
    assert_eq!(browser.post("/connections/tokens/x/revoke", &[]).await.status, 404);
}
