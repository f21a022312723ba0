//! The consent page leads to the accounts that a client will need, and back to the same consent: of tests 75 and 76.

use drawbridge_auth::vault::Vault as _;
use drawbridge_testkit::backend::Backend;
use drawbridge_testkit::gateway::Setup;
use drawbridge_testkit::provider::Provider;

use super::own_credentials::guarded;
use super::world::{Browser, P, Page, R, Request, Tokens, World};

struct Place {
    world: World,
    provider: Provider,
    backend: Backend,
}

fn with(setup: Setup, backend: &Backend, provider: &Provider) -> Setup {
    let (url, issuer) = (backend.url(), provider.issuer());
    setup
        .backend(
            "gh",
            &format!("{{ url: \"{url}\", era: modern, auth: {{ kind: user_oauth, issuer: \"{issuer}\" }} }}"),
        )
        .backend(
            "notes",
            &format!("{{ url: \"{url}\", era: modern, auth: {{ kind: user_secret, header: x-key }} }}"),
        )
}

impl Place {
    async fn with(count: usize) -> Self {
        let provider = Provider::start().await;
        let backend = guarded(provider.checker()).await;
        let world = if count == 1 {
            World::over("embedded", "", |setup| with(setup, &backend, &provider)).await
        } else {
            World::several_with(count, |setup| with(setup, &backend, &provider)).await
        };
        Self { world, provider, backend }
    }
}

/// Where the page leads to connect an account, if it does.
fn link(page: &Page, backend: &str) -> Option<String> {
    let beginning = format!("href=\"/connect/{backend}?back=");
    let at = page.text.find(&beginning)? + "href=\"".len();
    Some(page.text[at..].split('"').next().unwrap().to_owned())
}

/// Where the browser goes on to after `page`.
fn to(page: &Page) -> String {
    assert_eq!(page.status, 303, "{}", page.text);
    page.location().unwrap().to_owned()
}

#[tokio::test]
async fn t76_what_a_client_will_need_is_connected_on_the_way_each_step_at_another_instance() {
    let place = Place::with(2).await;
    let ann = place.world.user("ann").await;
    let sign_in = place.world.sign_in_token(&ann).await;
    let client_id = place.world.register().await;
    let first = Browser::new(&place.world.client(0));
    let second = first.at(&place.world.client(1));
    let asked = first.sign_in(&Request::of(&client_id), &sign_in).await;
    for backend in ["gh", "notes"] {
        assert!(asked.text.contains(&format!("{backend} (")), "{}", asked.text);
        assert!(link(&asked, backend).is_some(), "{}", asked.text);
    }
    assert!(asked.text.contains("not connected") && link(&asked, "demo").is_none(), "{}", asked.text);

    // At the other server, and back at another instance.
    let page = second.get(&link(&asked, "gh").unwrap()).await;
    assert!(page.status == 200 && page.text.contains("Connect an account"), "{}", page.text);
    let sent = first.post("/connect/gh", &[("transaction", &page.transaction())]).await;
    let back = place.provider.agree(&to(&sent));
    let done = second.get(back.strip_prefix(P).unwrap()).await;
    let consent = to(&done);
    assert!(consent.starts_with("/consent?back="), "{consent}");
    assert!(place.world.records.connection(&ann.id, "gh").await.unwrap().is_some());
    let again = first.get(&consent).await;
    assert_eq!(again.status, 200, "{}", again.text);
    assert!(again.text.contains("A test") && link(&again, "gh").is_none(), "{}", again.text);
    assert_eq!(again.header("cache-control"), Some("no-store"));

    // A key is given on a page of the gateway.
    let page = first.get(&link(&again, "notes").unwrap()).await;
    let wrong =
        second.post("/connect/notes", &[("transaction", &page.transaction()), ("key", "not\na key")]).await;
    assert_eq!(wrong.status, 400);
    let kept = second.post("/connect/notes", &[("transaction", &wrong.transaction()), ("key", "sk-1")]).await;
    assert_eq!(to(&kept), consent);
    let whole = second.get(&consent).await;
    assert!(link(&whole, "notes").is_none() && !whole.text.contains("not connected"), "{}", whole.text);
    assert!(asked.text.contains("Connect what you need") && !whole.text.contains("Connect what you need"));

    // It is the same request all the time: what was shown at first can be answered, and once.
    let answered = second.decide(&asked, "allow", &["mcp:read"]).await;
    let code = answered.parameter("code").unwrap_or_else(|| panic!("{}", answered.text));
    assert_eq!(answered.parameter("state").as_deref(), Some("a state/+&="));
    let reply = place.world.redeem(1, &client_id, &code).await;
    assert_eq!(reply.status(), 200);
    let tokens = Tokens::of(client_id, &reply.json().await);
    assert_eq!(place.world.status(0, "/mcp", &tokens.access).await, 200);
    let late = first.decide(&whole, "allow", &["mcp:read"]).await;
    assert!(late.is_error_page(409), "{}", late.text);
    let gone = first.get(&consent).await;
    assert!(gone.is_error_page(400), "{}", gone.text);
}

#[tokio::test]
async fn t75_the_way_back_is_of_this_browser_and_leads_nowhere_else() {
    let place = Place::with(1).await;
    let (ann, bob) = (place.world.user("ann").await, place.world.user("bob").await);
    let sign_in = place.world.sign_in_token(&ann).await;
    let client_id = place.world.register().await;
    let browser = Browser::new(&place.world.client(0));
    let asked = browser.sign_in(&Request::of(&client_id), &sign_in).await;
    let connect = link(&asked, "gh").unwrap();
    let consent = connect.replace("/connect/gh", "/consent");
    assert_eq!(browser.get(&consent).await.status, 200);

    // Somebody else's browser knows of no such request, nor does this one of others.
    let others = Browser::new(&place.world.client(0));
    let bobs = place.world.sign_in_token(&bob).await;
    others.sign_in(&Request::of(&client_id), &bobs).await;
    assert!(others.get(&consent).await.is_error_page(400));
    for path in ["/consent", "/consent?back=x", "/consent?back=0123456789abcdef0123456789abcdef"] {
        assert!(browser.get(path).await.is_error_page(400), "{path}");
    }
    // What is no name of a request is nothing: the browser stays here.
    for other in
        ["https://evil.example/", "//evil.example", "/consent%0d%0ax:y", "0123456789ABCDEF0123456789ABCDEF"]
    {
        let page = browser.get(&format!("/connect/gh?back={other}")).await;
        assert!(page.status == 200 && !page.text.contains("evil"), "{}", page.text);
        let sent = browser.post("/connect/gh", &[("transaction", &page.transaction())]).await;
        let back = place.provider.agree(&to(&sent));
        let done = browser.get(back.strip_prefix(P).unwrap()).await;
        assert!(done.status == 200 && done.text.contains("return to your application"), "{}", done.text);
    }
    // A form from elsewhere does nothing.
    let page = browser.get(&connect).await;
    let form = [("transaction", &*page.transaction())];
    let forged = browser.post_with("/connect/gh", &form, &[("origin", "https://evil.example")]).await;
    assert!(forged.is_error_page(403), "{}", forged.text);

    // Whoever does not agree there comes back all the same.
    let sent = browser.post("/connect/gh", &form).await;
    let state = url::Url::parse(&to(&sent)).unwrap();
    let state = state.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned();
    let query = super::world::encoded(&[("error", "access_denied"), ("state", &state)]);
    let denied = browser.get(&format!("/connect/callback/gh?{query}")).await;
    assert!(
        denied.is_error_page(403) && denied.text.contains(&format!("href=\"{consent}\"")),
        "{}",
        denied.text
    );
    // Nobody is let in for an answer that was never given.
    let answer = browser.decide(&browser.get(&consent).await, "deny", &[]).await;
    assert_eq!(answer.parameter("error").as_deref(), Some("access_denied"));
    assert!(browser.get(&consent).await.is_error_page(400));
}

#[tokio::test]
async fn t76_an_endpoint_without_such_backends_asks_for_nothing_and_large_requests_wait_nowhere() {
    let place = Place::with(1).await;
    let ann = place.world.user("ann").await;
    let sign_in = place.world.sign_in_token(&ann).await;
    let client_id = place.world.register().await;
    let browser = Browser::new(&place.world.client(0));
    let dev = Request::of(&client_id).with("resource", &format!("{R}/dev"));
    let page = browser.sign_in(&dev, &sign_in).await;
    assert!(!page.text.contains("your accounts") && !page.text.contains("/connect/"), "{}", page.text);
    assert!(page.headers.get_all("set-cookie").iter().all(|c| !c.to_str().unwrap().contains("asked_")));

    let page = browser.get(&Request::of(&client_id).with("state", &"s".repeat(4000)).path()).await;
    assert!(page.text.contains("not connected") && link(&page, "gh").is_none(), "{}", page.text);
    let allowed = browser.decide(&page, "allow", &["mcp:read"]).await;
    assert!(allowed.parameter("code").is_some(), "{}", allowed.text);

    // Some wait in one browser, and not more: the latest.
    let mut asked = Vec::new();
    for _ in 0..5 {
        asked.push(browser.get(&Request::of(&client_id).path()).await);
    }
    let mut statuses = Vec::new();
    for page in &asked {
        let consent = link(page, "gh").unwrap().replace("/connect/gh", "/consent");
        statuses.push(browser.get(&consent).await.status);
    }
    assert_eq!(statuses, [400, 400, 200, 200, 200]);
    assert!(place.backend.requests().is_empty());
}
