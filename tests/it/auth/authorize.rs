//! The way of a browser: the request, the sign-in, the consent.

use serde_json::json;

use super::world::{Browser, P, REDIRECT, Request, World, encoded};

async fn begun() -> (World, String, String, Browser) {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let sign_in = world.sign_in_token(&ann).await;
    let client_id = world.register().await;
    let browser = Browser::new(&world.client(0));
    (world, client_id, sign_in, browser)
}

#[tokio::test]
async fn t67_t72_nobody_is_sent_anywhere_before_the_client_is_proven() {
    let (_world, client_id, _, browser) = begun().await;
    let good = Request::of(&client_id);
    for request in [
        good.clone().with("client_id", "c_unknown"),
        good.clone().without("client_id"),
        good.clone().without("redirect_uri"),
        good.clone().with("redirect_uri", "http://localhost:3118/other"),
        good.clone().with("redirect_uri", "http://localhost:3118/callback?more=1"),
        good.clone().with("redirect_uri", "http://localhost.evil.com/callback"),
        good.clone().with("redirect_uri", "http://localhost:1@evil.com/callback"),
        good.clone().with("redirect_uri", "http://127.0.0.1:3118/callback"),
        good.clone().with("redirect_uri", "javascript:alert(1)"),
        good.clone().and("client_id", "c_other"),
        good.clone().and("redirect_uri", "https://evil.example/"),
        good.clone().with("state", &"x".repeat(5000)),
    ] {
        let page = browser.get(&request.path()).await;
        assert!(page.is_error_page(400), "{request:?}: {page:?}");
    }
    let hostile = good.with("redirect_uri", "https://evil.example/<script>alert(1)</script>");
    let page = browser.get(&hostile.path()).await;
    assert!(page.is_error_page(400) && !page.text.contains("<script>"), "{}", page.text);
}

#[tokio::test]
async fn t68_t69_t72_a_proven_client_is_told_what_is_wrong() {
    let (_world, client_id, _, browser) = begun().await;
    let good = Request::of(&client_id);
    let short = "a".repeat(42);
    for (request, error) in [
        (good.clone().without("code_challenge"), "invalid_request"),
        (good.clone().with("code_challenge_method", "plain"), "invalid_request"),
        (good.clone().without("code_challenge_method"), "invalid_request"),
        (good.clone().with("code_challenge", &short), "invalid_request"),
        (good.clone().with("response_type", "token"), "unsupported_response_type"),
        (good.clone().with("response_mode", "fragment"), "invalid_request"),
        (good.clone().with("resource", "https://other/"), "invalid_target"),
        (good.clone().with("resource", "http://localhost:9/mcp/nope"), "invalid_target"),
        (good.clone().and("resource", "http://localhost:9/mcp/dev"), "invalid_target"),
        (good.clone().with("request", "x"), "request_not_supported"),
        (good.clone().with("request_uri", "x"), "request_uri_not_supported"),
        (good.clone().with("prompt", "none"), "consent_required"),
        (good.clone().and("scope", "mcp:read"), "invalid_request"),
    ] {
        let page = browser.get(&request.path()).await;
        assert_eq!(page.status, 303, "{request:?}");
        assert!(page.location().unwrap().starts_with(REDIRECT));
        assert_eq!(page.parameter("error").as_deref(), Some(error), "{request:?}");
        assert_eq!(page.parameter("state").as_deref(), Some("a state/+&="));
        assert_eq!(page.parameter("iss").as_deref(), Some(P));
    }
}

#[tokio::test]
async fn t70_scopes_that_there_are_not_are_left_out_and_the_user_may_allow_less() {
    let (world, client_id, sign_in, browser) = begun().await;
    let request = Request::of(&client_id).with("scope", "openid email profile");
    let page = browser.sign_in(&request, &sign_in).await;
    assert!(page.text.contains("value=\"mcp:read\"") && page.text.contains("value=\"mcp:write\""));
    let page = browser.decide(&page, "allow", &["mcp:read", "admin:*"]).await;
    let code = page.parameter("code").unwrap();
    assert_eq!(world.redeem(0, &client_id, &code).await.json().await["scope"], "mcp:read");

    let request = Request::of(&client_id).with("scope", "mcp:read nonsense");
    let page = browser.get(&request.path()).await;
    let page = browser.decide(&page, "allow", &["mcp:read", "mcp:write"]).await;
    let code = page.parameter("code").unwrap();
    assert_eq!(world.redeem(0, &client_id, &code).await.json().await["scope"], "mcp:read");
}

#[tokio::test]
async fn t71_the_answer_has_what_the_client_sent_and_who_answers() {
    let (_world, client_id, sign_in, browser) = begun().await;
    let page = browser.sign_in(&Request::of(&client_id), &sign_in).await;
    let allowed = browser.decide(&page, "allow", &["mcp:read"]).await;
    assert_eq!((allowed.status, allowed.header("cache-control")), (303, Some("no-store")));
    assert!(allowed.parameter("code").is_some_and(|code| code.len() < 2048));
    assert_eq!(allowed.parameter("state").as_deref(), Some("a state/+&="));
    assert_eq!(allowed.parameter("iss").as_deref(), Some(P));
    for (decision, scopes) in [("deny", &["mcp:read"][..]), ("allow", &[])] {
        let page = browser.get(&Request::of(&client_id).path()).await;
        let denied = browser.decide(&page, decision, scopes).await;
        assert_eq!(denied.parameter("error").as_deref(), Some("access_denied"));
        assert_eq!(denied.parameter("state").as_deref(), Some("a state/+&="));
        assert_eq!(denied.parameter("iss").as_deref(), Some(P));
        assert_eq!(denied.parameter("code"), None);
    }
}

#[tokio::test]
async fn t73_who_is_signed_in_is_asked_for_consent_each_time() {
    let (_world, client_id, sign_in, browser) = begun().await;
    browser.allow(&Request::of(&client_id), &sign_in).await;
    let again = browser.get(&Request::of(&client_id).path()).await;
    assert_eq!((again.status, again.location()), (200, None));
    assert!(again.text.contains("name=\"decision\""), "{}", again.text);
    // A client may ask for a fresh login.
    let login = browser.get(&Request::of(&client_id).with("prompt", "login").path()).await;
    assert!(login.text.contains("type=\"password\""), "{}", login.text);
}

#[tokio::test]
async fn t75_a_consent_is_good_in_its_own_browser_for_its_own_user_from_its_own_page() {
    let (world, client_id, sign_in, browser) = begun().await;
    let page = browser.sign_in(&Request::of(&client_id), &sign_in).await;
    let transaction = page.transaction();
    let form = [("transaction", transaction.as_str()), ("decision", "allow"), ("scope", "mcp:read")];
    // From another browser, with or without a login of its own.
    let other = Browser::new(&world.client(0));
    assert!(other.post("/consent", &form).await.is_error_page(403));
    let bob = world.user("bob").await;
    let bobs = world.sign_in_token(&bob).await;
    let bobs_page = other.sign_in(&Request::of(&client_id), &bobs).await;
    assert!(other.post("/consent", &form).await.is_error_page(403));
    // Another's transaction in this browser, one changed, one for the step before, none.
    let sign_in_page = Browser::new(&world.client(0)).get(&Request::of(&client_id).path()).await;
    let mut changed = transaction.clone();
    changed.replace_range(40..41, if &transaction[40..41] == "A" { "B" } else { "A" });
    for forged in [bobs_page.transaction(), changed, sign_in_page.transaction(), String::new()] {
        let form = [("transaction", forged.as_str()), ("decision", "allow"), ("scope", "mcp:read")];
        assert!(browser.post("/consent", &form).await.is_error_page(403));
    }
    // From another page.
    for headers in [[("origin", "https://evil.example")], [("sec-fetch-site", "cross-site")]] {
        assert!(browser.post_with("/consent", &form, &headers).await.is_error_page(403));
    }
    // Somebody else has signed in at this browser since.
    let anew = Request::of(&client_id).with("prompt", "login");
    let login = browser.get(&anew.path()).await;
    browser.post("/login", &[("transaction", &login.transaction()), ("token", &bobs)]).await;
    assert!(browser.post("/consent", &form).await.is_error_page(403));
}

#[tokio::test]
async fn t75_a_page_that_was_loaded_twice_works_and_a_form_that_is_sent_twice_grants_once() {
    let (world, client_id, sign_in, browser) = begun().await;
    browser.sign_in(&Request::of(&client_id), &sign_in).await;
    let first = browser.get(&Request::of(&client_id).path()).await;
    let _second = browser.get(&Request::of(&client_id).path()).await;
    let one = browser.decide(&first, "allow", &["mcp:read"]).await.parameter("code").unwrap();
    let two = browser.decide(&first, "allow", &["mcp:read"]).await.parameter("code").unwrap();
    let mut statuses =
        [world.redeem(0, &client_id, &one).await.status(), world.redeem(0, &client_id, &two).await.status()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400]);
}

#[tokio::test]
async fn t75_a_form_that_is_sent_again_never_ends_what_it_has_granted() {
    let (world, client_id, sign_in, browser) = begun().await;
    let page = browser.sign_in(&Request::of(&client_id), &sign_in).await;
    let one = browser.decide(&page, "allow", &["mcp:read"]).await.parameter("code").unwrap();
    let two = browser.decide(&page, "allow", &["mcp:read"]).await.parameter("code").unwrap();
    let given = world.redeem(0, &client_id, &one).await.json().await;
    let access = given["access_token"].as_str().unwrap();
    // What comes later than this is not from a proxy that tried twice.
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
    for _ in 0..2 {
        assert_eq!(world.redeem(0, &client_id, &two).await.status(), 400);
        assert_eq!(world.status(0, "/mcp", access).await, 200, "the grant is alive");
    }
    let again = browser.decide(&page, "allow", &["mcp:read"]).await;
    assert!(again.is_error_page(409) && again.text.contains("already answered"), "{}", again.text);
    assert_eq!(world.status(0, "/mcp", access).await, 200);
    // The code that has made the grant still ends it.
    assert_eq!(world.redeem(0, &client_id, &one).await.status(), 400);
    assert_eq!(world.status(0, "/mcp", access).await, 401);
}

#[tokio::test]
async fn t76_the_consent_page_shows_who_asks_and_where_it_leads_and_nothing_runs_in_it() {
    let (world, _, sign_in, browser) = begun().await;
    let body = json!({ "client_name": "<script>alert(1)</script>\u{202e}evil", "redirect_uris": ["https://claude.ai/api/mcp/auth_callback"] });
    let registered = world.client(0).post("/register", &[], body.to_string()).await.json().await;
    let request = Request::of(registered["client_id"].as_str().unwrap())
        .with("redirect_uri", "https://claude.ai/api/mcp/auth_callback");
    let page = browser.sign_in(&request, &sign_in).await;
    assert!(!page.text.contains("<script") && !page.text.contains('\u{202e}'), "{}", page.text);
    assert!(page.text.contains("claude.ai") && page.text.contains("&#60;script&#62;"), "{}", page.text);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("frame-ancestors 'none'") && policy.contains("default-src 'none'"), "{policy}");
    assert!(!policy.contains("form-action"), "{policy}");
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
}

#[tokio::test]
async fn a_wrong_sign_in_token_is_said_so_and_only_some_may_be_tried() {
    let (world, client_id, sign_in, browser) = begun().await;
    let ann = world.user("ann").await;
    let for_mcp = world.token(&ann).await;
    let page = browser.get(&Request::of(&client_id).path()).await;
    let transaction = page.transaction();
    for token in ["", "nonsense", for_mcp.as_str(), "drb_pat_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA4NBV5w"] {
        let wrong = browser.post("/login", &[("transaction", &transaction), ("token", token)]).await;
        assert_eq!(wrong.status, 403);
        assert!(wrong.text.contains("role=\"alert\"") && wrong.text.contains("type=\"password\""));
        assert!(token.is_empty() || !wrong.text.contains(token), "what was tried is not shown");
    }
    let mut last = 0;
    for _ in 0..20 {
        last = browser.post("/login", &[("transaction", &transaction), ("token", "x")]).await.status;
    }
    assert_eq!(last, 429);
    let _ = sign_in;
}

#[tokio::test]
async fn a_prefetch_begins_nothing() {
    let (world, client_id, ..) = begun().await;
    let path = Request::of(&client_id).path();
    let reply = world.client(0).get(&path, &[("sec-purpose", "prefetch;prerender")]).await;
    assert_eq!((reply.status(), reply.header("set-cookie")), (204, None));
}

#[tokio::test]
async fn pages_are_in_the_language_of_the_browser() {
    let (world, client_id, ..) = begun().await;
    let path = Request::of(&client_id).path();
    let text = world.client(0).get(&path, &[("accept-language", "de-AT,de;q=0.9")]).await.text().await;
    assert!(text.contains("<html lang=\"de\">") && text.contains("Anmelden"), "{text}");
    let style = world.client(0).get("/oauth/style.css", &[]).await;
    assert_eq!(style.header("content-type"), Some("text/css; charset=utf-8"));
}

#[tokio::test]
async fn an_authorization_request_may_be_posted() {
    let (_world, client_id, _, browser) = begun().await;
    let path = Request::of(&client_id).path();
    let query = path.split_once('?').unwrap().1;
    let pairs: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(encoded(&pairs), query);
    let page = browser.post("/authorize", &pairs).await;
    assert!(page.text.contains("type=\"password\""), "{page:?}");
}
