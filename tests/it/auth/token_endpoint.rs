//! Codes, refresh tokens and their ends.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;
use drawbridge_auth::records::Records;
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::Value;

use super::world::{Browser, R, REDIRECT, Request, VERIFIER, World, oauth_error, post_form};

/// A code that somebody has got.
async fn code(world: &World, client_id: &str) -> String {
    let ann = world.user("ann").await;
    let sign_in = world.sign_in_token(&ann).await;
    Browser::new(&world.client(0)).allow(&Request::of(client_id), &sign_in).await
}

#[tokio::test]
async fn t78_a_code_is_good_once_and_ends_its_grant_if_it_comes_again() {
    let world = World::several(2).await;
    let client_id = world.register().await;
    let code_ = code(&world, &client_id).await;
    let begun = std::time::Instant::now();
    let given = world.redeem(0, &client_id, &code_).await.json().await;
    let access = given["access_token"].as_str().unwrap();
    for number in 0..2 {
        assert_eq!(world.status(number, "/mcp", access).await, 200);
    }
    // Within two seconds it is a proxy that tried again, later it is a thief.
    eventually(PATIENCE, async || {
        let again = oauth_error(world.redeem(1, &client_id, &code_).await).await;
        assert_eq!(again, (400, "invalid_grant".to_owned()));
        let is_dead = world.status(0, "/mcp", access).await == 401;
        assert!(!is_dead || begun.elapsed() > Duration::from_secs(2), "too soon");
        is_dead
    })
    .await;
    eventually(Duration::from_secs(1), async || world.status(1, "/mcp", access).await == 401).await;
}

#[tokio::test]
async fn t78_of_two_that_redeem_a_code_at_once_one_succeeds() {
    let world = World::several(2).await;
    let client_id = world.register().await;
    let code = code(&world, &client_id).await;
    let (one, two) = tokio::join!(world.redeem(0, &client_id, &code), world.redeem(1, &client_id, &code));
    let mut statuses = [one.status(), two.status()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400]);
}

#[tokio::test]
async fn t79_a_wrong_verifier_burns_a_code_and_all_else_that_is_wrong_does_not() {
    let world = World::one().await;
    let client_id = world.register().await;
    let other = {
        let body = serde_json::json!({ "client_name": "another", "redirect_uris": [REDIRECT] });
        let reply = world.client(0).post("/register", &[], body.to_string()).await;
        reply.json().await["client_id"].as_str().unwrap().to_owned()
    };
    let code_ = code(&world, &client_id).await;
    let form = |changes: &[(&'static str, &str)]| {
        let mut form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("client_id", client_id.clone()),
            ("code", code_.clone()),
            ("redirect_uri", REDIRECT.to_owned()),
            ("code_verifier", VERIFIER.to_owned()),
        ];
        for (name, value) in changes {
            form.retain(|(known, _)| known != name);
            form.push((name, (*value).to_owned()));
        }
        form
    };
    let present = async |changes: &[(&'static str, &str)]| {
        let form = form(changes);
        let form: Vec<(&str, &str)> = form.iter().map(|(n, v)| (*n, v.as_str())).collect();
        post_form(&world.client(0), "/token", &form).await
    };
    for (changes, error) in [
        (("resource", "https://other/"), "invalid_target"),
        (("resource", "http://localhost:9/mcp/dev"), "invalid_target"),
        (("client_id", other.as_str()), "invalid_grant"),
        (("redirect_uri", "http://localhost:3119/callback"), "invalid_grant"),
        (("code", "k1.nonsense"), "invalid_grant"),
    ] {
        assert_eq!(oauth_error(present(&[changes]).await).await, (400, error.to_owned()), "{changes:?}");
    }
    assert_eq!(present(&[("resource", R)]).await.status(), 200);

    for wrong in ["", "a-verifier-that-is-long-enough-and-not-the-right-one"] {
        let code_ = code(&world, &client_id).await;
        let changes = [("code", code_.as_str()), ("code_verifier", wrong)];
        assert_eq!(oauth_error(present(&changes).await).await.1, "invalid_grant");
        let right = present(&[("code", &code_)]).await;
        assert_eq!(oauth_error(right).await.1, "invalid_grant", "it was burnt");
    }
}

#[tokio::test]
async fn t80_the_answer_is_complete_and_a_malformed_request_is_said_to_be_one() {
    let world = World::one().await;
    let client_id = world.register().await;
    let code = code(&world, &client_id).await;
    let reply = world.redeem(0, &client_id, &code).await;
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let answer = reply.json().await;
    assert_eq!(answer["token_type"], "Bearer");
    assert_eq!(answer["expires_in"], 3600);
    assert_eq!(answer["scope"], "mcp:read mcp:write");
    assert!(answer["refresh_token"].as_str().unwrap().starts_with("drb_rt_"));
    assert!(answer["access_token"].is_string() && answer.as_object().unwrap().len() == 5, "{answer}");
    let json = world.client(0).post("/token", &[], "{}").await;
    assert_eq!(oauth_error(json).await, (400, "invalid_request".to_owned()));
    let twice = [("grant_type", "refresh_token"), ("grant_type", "refresh_token")];
    assert_eq!(oauth_error(post_form(&world.client(0), "/token", &twice).await).await.1, "invalid_request");
    let unknown = [("grant_type", "password"), ("client_id", client_id.as_str())];
    let unknown = post_form(&world.client(0), "/token", &unknown).await;
    assert_eq!(oauth_error(unknown).await.1, "unsupported_grant_type");
}

#[tokio::test]
async fn t81_an_unknown_client_registers_anew_and_a_database_that_is_away_costs_nobody_their_tokens() {
    let mut world = World::several(1).await;
    let client_id = world.register().await;
    let code_ = code(&world, &client_id).await;
    let unknown = oauth_error(world.redeem(0, "c_nobody", &code_).await).await;
    assert_eq!(unknown, (401, "invalid_client".to_owned()));
    let given = world.redeem(0, &client_id, &code_).await.json().await;
    let refresh = given["refresh_token"].as_str().unwrap();
    let access = given["access_token"].as_str().unwrap();
    assert_eq!(world.status(0, "/mcp", access).await, 200);
    // As far as clients can tell, its tables are gone.
    let database = world.database.take().unwrap();
    database.run("alter table oauth_clients rename to away");
    let reply = world.refresh(0, &client_id, refresh).await;
    assert_eq!(reply.header("retry-after"), Some("2"));
    assert_eq!(oauth_error(reply).await, (503, "temporarily_unavailable".to_owned()));
    assert_eq!(world.status(0, "/mcp", access).await, 200, "what is known is still known");
    database.run("alter table away rename to oauth_clients");
    assert_eq!(world.refresh(0, &client_id, refresh).await.status(), 200);
}

#[tokio::test]
async fn t82_a_refresh_token_is_good_once_but_for_those_who_come_together() {
    let world = World::several(2).await;
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    let refreshes = (0..20).map(|n| world.refresh(n % 2, &tokens.client_id, &tokens.refresh));
    let replies = futures_util::future::join_all(refreshes).await;
    let mut given = BTreeSet::new();
    for reply in replies {
        assert_eq!(reply.status(), 200);
        given.insert(reply.json().await["refresh_token"].as_str().unwrap().to_owned());
    }
    assert_eq!(given.len(), 1, "{given:?}");
    let successor = given.pop_first().unwrap();
    assert_ne!(successor, tokens.refresh);
    // Long after, the first one has been used, and so has its successor.
    let next = world.refresh(1, &tokens.client_id, &successor).await.json().await;
    let database = world.database.as_ref().unwrap();
    database
        .run("update refresh_tokens set consumed_at = consumed_at - 121000000 where consumed_at is not null");
    let reused = oauth_error(world.refresh(0, &tokens.client_id, &tokens.refresh).await).await;
    assert_eq!(reused, (400, "invalid_grant".to_owned()));
    let access = next["access_token"].as_str().unwrap();
    for number in 0..2 {
        eventually(Duration::from_secs(1), async || world.status(number, "/mcp", access).await == 401).await;
    }
    let latest = next["refresh_token"].as_str().unwrap();
    assert_eq!(world.refresh(0, &tokens.client_id, latest).await.status(), 400, "the grant is over");
}

#[tokio::test]
async fn t83_a_refresh_whose_answer_was_lost_is_given_again_and_what_is_anothers_is_not() {
    let world = World::several(1).await;
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    // The answer to this one never arrives.
    assert_eq!(world.refresh(0, &tokens.client_id, &tokens.refresh).await.status(), 200);
    let database = world.database.as_ref().unwrap();
    database
        .run("update refresh_tokens set consumed_at = consumed_at - 600000000 where consumed_at is not null");
    let again = world.refresh(0, &tokens.client_id, &tokens.refresh).await;
    assert_eq!(again.status(), 200);
    let refresh = again.json().await["refresh_token"].as_str().unwrap().to_owned();

    let body = serde_json::json!({ "client_name": "another", "redirect_uris": [REDIRECT] });
    let other = world.client(0).post("/register", &[], body.to_string()).await.json().await;
    let other = world.refresh(0, other["client_id"].as_str().unwrap(), &refresh).await;
    assert_eq!(oauth_error(other).await.1, "invalid_grant");
    let elsewhere = [
        ("grant_type", "refresh_token"),
        ("client_id", tokens.client_id.as_str()),
        ("refresh_token", refresh.as_str()),
        ("resource", "http://localhost:9/mcp/dev"),
    ];
    let elsewhere = post_form(&world.client(0), "/token", &elsewhere).await;
    assert_eq!(oauth_error(elsewhere).await.1, "invalid_target");
    assert_eq!(world.refresh(0, &tokens.client_id, &refresh).await.status(), 200, "the grant is alive");
}

#[tokio::test]
async fn t83_an_old_refresh_token_that_wins_is_found_out_when_the_rightful_answer_is_used() {
    let world = World::several(1).await;
    let ann = world.user("ann").await;
    let database = world.database.as_ref().unwrap();
    let later = "update refresh_tokens set consumed_at = consumed_at - 600000000 where successor is not null";
    for by in ["access_token", "refresh_token"] {
        let tokens = world.log_in(&ann, 0).await;
        let rightful = world.refresh(0, &tokens.client_id, &tokens.refresh).await.json().await;
        database.run(later);
        let thief = world.refresh(0, &tokens.client_id, &tokens.refresh).await;
        assert_eq!(thief.status(), 200, "nothing of the rightful answer was used yet");
        let thief = thief.json().await["access_token"].as_str().unwrap().to_owned();
        assert_eq!(world.status(0, "/mcp", &thief).await, 200);
        let used = rightful[by].as_str().unwrap();
        if by == "access_token" {
            world.status(0, "/mcp", used).await;
        } else {
            let reply = world.refresh(0, &tokens.client_id, used).await;
            assert_eq!(oauth_error(reply).await.1, "invalid_grant");
        }
        eventually(Duration::from_secs(5), async || world.status(0, "/mcp", &thief).await == 401).await;
    }
}

#[tokio::test]
async fn t84_a_disabled_user_gets_no_more_tokens() {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    world.records.set_user_disabled(&ann.id, true, Utc::now()).await.unwrap();
    let reply = world.refresh(0, &tokens.client_id, &tokens.refresh).await;
    assert_eq!(oauth_error(reply).await.1, "invalid_grant");
}

#[tokio::test]
async fn t85_a_client_may_end_what_is_its_own() {
    let world = World::several(2).await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let (anns, bobs) = (world.log_in(&ann, 0).await, world.log_in(&bob, 1).await);
    let body = serde_json::json!({ "client_name": "another", "redirect_uris": [REDIRECT] });
    let other = world.client(0).post("/register", &[], body.to_string()).await.json().await;
    let revoke = async |client_id: &str, token: &str| {
        let form = [("client_id", client_id), ("token", token)];
        post_form(&world.client(0), "/revoke", &form).await.status()
    };
    // Whoever asks about a token that is not theirs learns nothing and changes nothing.
    for token in [anns.refresh.as_str(), anns.access.as_str(), "nonsense"] {
        assert_eq!(revoke(other["client_id"].as_str().unwrap(), token).await, 200);
    }
    assert_eq!(world.status(1, "/mcp", &anns.access).await, 200);
    assert_eq!(revoke(&anns.client_id, &anns.refresh).await, 200);
    assert_eq!(revoke(&bobs.client_id, &bobs.access).await, 200);
    for (number, access) in [(0, &anns.access), (1, &anns.access), (0, &bobs.access), (1, &bobs.access)] {
        eventually(Duration::from_secs(1), async || world.status(number, "/mcp", access).await == 401).await;
    }
    assert_eq!(world.refresh(1, &anns.client_id, &anns.refresh).await.status(), 400);
}

#[tokio::test]
async fn a_whole_login_takes_each_step_at_another_instance() {
    let world = World::several(3).await;
    let ann = world.user("ann").await;
    let sign_in = world.sign_in_token(&ann).await;
    let client_id = world.register().await;
    let browser = Browser::new(&world.client(1));
    let page = browser.get(&Request::of(&client_id).path()).await;
    let form = [("transaction", page.transaction()), ("token", sign_in)];
    let form: Vec<(&str, &str)> = form.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let page = browser.at(&world.client(2)).post("/login", &form).await;
    let page = browser.at(&world.client(0)).decide(&page, "allow", &["mcp:read", "mcp:write"]).await;
    let code = page.parameter("code").unwrap();
    let given: Value = world.redeem(1, &client_id, &code).await.json().await;
    let access = given["access_token"].as_str().unwrap();
    assert_eq!(world.status(2, "/mcp", access).await, 200);
    let refresh = given["refresh_token"].as_str().unwrap();
    assert_eq!(world.refresh(2, &client_id, refresh).await.status(), 200);
    assert!(world.redis.is_some());
}
