//! Three gateways behind HAProxy, of which one stands still or whose database goes away.

use std::time::{Duration, Instant};

use drawbridge_testkit::balancer::Balancer;
use drawbridge_testkit::client::{Session, request};
use drawbridge_testkit::postgres::PostgresServer;
use drawbridge_testkit::{PATIENCE, eventually};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;

use super::world::{Browser, REDIRECT, Request, World, list, post_form};

#[tokio::test]
async fn a_login_of_which_each_step_is_at_another_instance_behind_a_balancer() {
    let world = World::several(3).await;
    let balancer = Balancer::start(&world.gateways).await;
    let ann = world.user("ann").await;
    let sign_in = world.sign_in_token(&ann).await;
    for _ in 0..3 {
        let client = balancer.client();
        let body = json!({ "client_name": "A test", "redirect_uris": [REDIRECT] }).to_string();
        let registered = client.post("/register", &[], body).await;
        assert_eq!(registered.status(), 201);
        let id = registered.json().await["client_id"].as_str().unwrap().to_owned();
        let code = Browser::new(&client).allow(&Request::of(&id), &sign_in).await;
        let form = [
            ("grant_type", "authorization_code"),
            ("client_id", &id),
            ("code", &code),
            ("redirect_uri", REDIRECT),
            ("code_verifier", super::world::VERIFIER),
        ];
        let tokens = post_form(&client, "/token", &form).await.json().await;
        let (access, refresh) =
            (tokens["access_token"].as_str().unwrap(), tokens["refresh_token"].as_str().unwrap());
        let session = Session::open(&client.bearer(access), "/mcp", "2025-11-25", json!({})).await;
        for _ in 0..3 {
            let listed = session.request("tools/list", json!({})).await;
            assert_eq!(listed.status(), 200);
        }
        let form = [("grant_type", "refresh_token"), ("client_id", &*id), ("refresh_token", refresh)];
        let fresh = post_form(&client, "/token", &form).await.json().await;
        let fresh = fresh["access_token"].as_str().unwrap();
        for number in 0..3 {
            assert_eq!(world.status(number, "/mcp", fresh).await, 200);
        }
        let form = [("client_id", &*id), ("token", refresh)];
        assert_eq!(post_form(&client, "/revoke", &form).await.status(), 200);
        let revoked = Instant::now();
        for number in 0..3 {
            eventually(Duration::from_secs(1), async || world.status(number, "/mcp", fresh).await == 401)
                .await;
        }
        assert!(revoked.elapsed() < Duration::from_secs(1));
    }
    // Whoever has a step to take takes it at whichever instance: each had some.
    for gateway in &world.gateways {
        let page =
            drawbridge_testkit::client::Client::new(&gateway.admin).get("/metrics", &[]).await.text().await;
        let accepted = page
            .lines()
            .find_map(|line| line.strip_prefix("drawbridge_credentials_total{result=\"accepted\"} "))
            .unwrap();
        assert_ne!(accepted, "0");
    }
}

#[tokio::test]
async fn an_instance_that_stood_still_accepts_nothing_that_was_revoked_meanwhile() {
    let world = World::several(3).await;
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    let other = world.log_in(&ann, 1).await;
    let stands_still = &world.gateways[2];
    for token in [&tokens, &other] {
        assert_eq!(world.status(2, "/mcp", &token.access).await, 200);
    }
    let client = stands_still.client().bearer(&tokens.access);
    let mut stream = Session::open(&client, "/mcp", "2025-11-25", json!({})).await.get(None).await;
    stands_still.program.signal(Signal::STOP);
    let form = [("client_id", tokens.client_id.as_str()), ("token", tokens.refresh.as_str())];
    assert_eq!(post_form(&world.client(0), "/revoke", &form).await.status(), 200);
    let revoked = Instant::now();
    eventually(Duration::from_secs(1), async || world.status(1, "/mcp", &tokens.access).await == 401).await;
    // Requests that wait for it are the first that it sees.
    let mut waiting = JoinSet::new();
    for _ in 0..8 {
        let client = world.client(2).bearer(&tokens.access);
        waiting.spawn(async move { list(&client, "/mcp").await.status() });
    }
    // Longer than what an instance knows of revocations is current.
    eventually(PATIENCE, async || revoked.elapsed() > Duration::from_secs(4)).await;
    stands_still.program.signal(Signal::CONT);
    for status in waiting.join_all().await {
        assert!(status == 401 || status == 503, "{status}");
    }
    eventually(Duration::from_secs(2), async || world.status(2, "/mcp", &tokens.access).await == 401).await;
    while stream.event().await.is_some() {}
    eventually(PATIENCE, async || world.status(2, "/mcp", &other.access).await == 200).await;
}

/// How long the database is away: a look in the suite, a minute with `OUTAGE_SECONDS=60`.
fn outage() -> Duration {
    let seconds = std::env::var("OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(12))
}

#[tokio::test]
async fn while_the_database_is_away_known_tokens_work_and_none_that_was_revoked() {
    let mut database = PostgresServer::start().await;
    database.create_database("records");
    let world = World::several_over(3, &database.url("records"), |setup| setup).await;
    let balancer = Balancer::start(&world.gateways).await;
    let ann = world.user("ann").await;
    let (kept, ended) = (world.log_in(&ann, 0).await, world.log_in(&ann, 1).await);
    let (known, unknown) = (world.token(&ann).await, world.token(&ann).await);
    for number in 0..3 {
        assert_eq!(world.status(number, "/mcp", &known).await, 200);
        assert_eq!(world.status(number, "/mcp", &ended.access).await, 200);
    }
    let form = [("client_id", ended.client_id.as_str()), ("token", ended.refresh.as_str())];
    assert_eq!(post_form(&world.client(0), "/revoke", &form).await.status(), 200);
    database.kill();
    let begun = Instant::now();
    let mut rounds = 0;
    eventually(outage() + PATIENCE, async || {
        for number in 0..3 {
            // Known or not, an access token proves itself.
            assert_eq!(world.status(number, "/mcp", &kept.access).await, 200);
            assert_eq!(world.status(number, "/mcp", &known).await, 200);
            let revoked = world.status(number, "/mcp", &ended.access).await;
            assert!(revoked == 401 || begun.elapsed() < Duration::from_secs(1), "{revoked}");
            let reply = list(&world.client(number).bearer(&unknown), "/mcp").await;
            assert_eq!((reply.status(), reply.header("retry-after")), (503, Some("5")));
        }
        rounds += 1;
        begun.elapsed() >= outage()
    })
    .await;
    assert!(rounds > 1);
    // What would have to be written down is refused, and is not said to be done.
    let refused = world.refresh(0, &kept.client_id, &kept.refresh).await;
    assert_eq!((refused.status(), refused.header("retry-after").is_some()), (503, true));
    let form = [("client_id", kept.client_id.as_str()), ("token", kept.refresh.as_str())];
    assert_eq!(post_form(&world.client(1), "/revoke", &form).await.status(), 503);
    let session = Session::open(&balancer.client().bearer(&known), "/mcp", "2025-11-25", json!({})).await;
    let body = request(5, "tools/call", json!({ "name": "echo", "arguments": { "message": "still" } }));
    let called = session.client.post("/mcp", &session.headers(), body.to_string()).await;
    assert_eq!(called.status(), 200);

    database.restart().await;
    for number in 0..3 {
        eventually(PATIENCE, async || world.status(number, "/mcp", &unknown).await == 200).await;
        assert_eq!(world.status(number, "/mcp", &ended.access).await, 401);
    }
    eventually(PATIENCE, async || world.refresh(2, &kept.client_id, &kept.refresh).await.status() == 200)
        .await;
    eventually(PATIENCE, async || post_form(&world.client(1), "/revoke", &form).await.status() == 200).await;
    for number in 0..3 {
        eventually(Duration::from_secs(1), async || world.status(number, "/mcp", &kept.access).await == 401)
            .await;
    }
}
