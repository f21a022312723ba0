//! What belongs to one caller is nothing to another.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{Records, Revocation};
use drawbridge_auth::revoking::RevocationKey;
use drawbridge_testkit::client::{Client, Session, notification, request};
use drawbridge_testkit::{PATIENCE, eventually};
use http::Method;
use serde_json::json;

use super::world::World;

async fn session(client: &Client) -> Session {
    Session::open(client, "/mcp", "2025-11-25", json!({})).await
}

/// Another's session with one's own token.
fn with(client: &Client, session: &Session) -> Session {
    Session { client: client.clone(), ..session.clone() }
}

#[tokio::test]
async fn t33_t35_t37_a_session_of_another_does_not_exist() {
    let world = World::one().await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let tokens = world.log_in(&ann, 0).await;
    let anns = session(&world.client(0).bearer(&tokens.access)).await;
    let mut stream = anns.get(None).await;
    assert_eq!(stream.status(), 200);
    let bobs_token = world.token(&bob).await;
    let anns_other_token = world.token(&ann).await;
    for other in [bobs_token, anns_other_token] {
        let client = world.client(0).bearer(&other);
        let theirs = with(&client, &anns);
        let made_up = Session { id: "k1.AAAA".to_owned(), ..theirs.clone() };
        let mut bodies = Vec::new();
        for session in [&theirs, &made_up] {
            let list = session.request("tools/list", json!({})).await;
            assert_eq!(list.status(), 404);
            bodies.push(list.text().await);
            assert_eq!(session.get(None).await.status(), 404);
            assert_eq!(session.get(Some("x.1.1")).await.status(), 404);
            assert_eq!(session.delete().await.status(), 404);
            let answer = json!({ "jsonrpc": "2.0", "id": "x-1", "result": {} });
            assert_eq!(session.post(answer.to_string()).await.status(), 404);
            let note = notification("notifications/cancelled", json!({ "requestId": 1 }));
            assert_eq!(session.post(note.to_string()).await.status(), 404);
        }
        assert_eq!(
            bodies[0].replace("k1.AAAA", ""),
            bodies[1].replace("k1.AAAA", ""),
            "nothing tells them apart"
        );
    }
    let answer = anns.tool("echo", json!({ "message": "still here" })).await;
    assert!(answer.to_string().contains("still here"), "{answer}");
    // What was posted to the session by others would be there before this change of level is answered.
    let is_there = |seen: &[u8]| String::from_utf8_lossy(seen).contains("cancelled");
    assert!(!stream.reads(Duration::from_millis(50), is_there).await);
}

#[tokio::test]
async fn t34_a_session_goes_on_with_a_refreshed_token() {
    let world = World::several(2).await;
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    let first = session(&world.client(0).bearer(&tokens.access)).await;
    first.tool("echo", json!({ "message": "x" })).await;
    let given = world.refresh(1, &tokens.client_id, &tokens.refresh).await.json().await;
    for number in 0..2 {
        let client = world.client(number).bearer(given["access_token"].as_str().unwrap());
        assert_eq!(with(&client, &first).request("tools/list", json!({})).await.status(), 200);
    }
}

#[tokio::test]
async fn t36_events_of_another_can_not_be_fetched() {
    let world = World::one().await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let anns = session(&world.client(0).bearer(&world.token(&ann).await)).await;
    let mut stream =
        anns.request("tools/call", json!({ "name": "echo", "arguments": { "message": "secret" } })).await;
    let last = if stream.is_stream() { stream.event().await.and_then(|event| event.id) } else { None };
    let last = last.map_or_else(|| "x.1.0".to_owned(), |id| String::from_utf8(id.to_vec()).unwrap());
    let theirs = with(&world.client(0).bearer(&world.token(&bob).await), &anns);
    let reply = theirs.get(Some(&last)).await;
    assert_eq!(reply.status(), 404);
    assert!(!reply.text().await.contains("secret"));
}

#[tokio::test]
async fn an_sse_connection_of_another_can_not_be_posted_to() {
    let world = World::several(2).await;
    let (ann, bob) = (world.user("ann").await, world.user("bob").await);
    let (anns, bobs) = (world.token(&ann).await, world.token(&bob).await);
    let mut stream = world.client(0).bearer(&anns).get("/mcp/sse", &[]).await;
    let path = stream.event().await.unwrap().data;
    let path = String::from_utf8(path.to_vec()).unwrap();
    let ping = request(1, "ping", json!({})).to_string();
    for number in 0..2 {
        let client = world.client(number);
        assert_eq!(client.bearer(&bobs).post(&path, &[], ping.clone()).await.status(), 404, "{number}");
        assert_eq!(client.post(&path, &[], ping.clone()).await.status(), 401, "{number}");
        assert_eq!(client.bearer(&anns).post(&path, &[], ping.clone()).await.status(), 202, "{number}");
    }
}

#[tokio::test]
async fn t32_t40_a_stream_ends_within_a_second_of_its_credentials_end_at_another_instance() {
    let world = World::several(2).await;
    let ann = world.user("ann").await;
    let tokens = world.log_in(&ann, 0).await;
    let second = session(&world.client(1).bearer(&tokens.access)).await;
    let mut of_session = second.get(None).await;
    let mut sse = world.client(1).bearer(&tokens.access).get("/mcp/sse", &[]).await;
    assert_eq!((of_session.status(), sse.status()), (200, 200));
    let form = [("client_id", tokens.client_id.as_str()), ("token", tokens.refresh.as_str())];
    assert_eq!(super::world::post_form(&world.client(0), "/revoke", &form).await.status(), 200);
    let begun = std::time::Instant::now();
    while of_session.event().await.is_some() {}
    while sse.event().await.is_some() {}
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(world.status(1, "/mcp", &tokens.access).await, 401);
}

#[tokio::test]
async fn a_stream_ends_when_its_token_expires() {
    let world = World::one().await;
    let ann = world.user("ann").await;
    let soon = Utc::now() + TimeDelta::seconds(2);
    let (_, secret) =
        world.token_with(&ann, &["mcp:read", "mcp:write"], |token| token.expires_at = Some(soon)).await;
    let anns = session(&world.client(0).bearer(secret.expose())).await;
    let mut stream = anns.get(None).await;
    while stream.event().await.is_some() {}
    assert!(Utc::now() >= soon);
    assert_eq!(anns.client.send(Method::GET, "/mcp", &http::HeaderMap::new(), "").await.status(), 401);
}

#[tokio::test]
async fn what_was_revoked_while_redis_was_away_is_refused_everywhere_within_a_second() {
    let mut world = World::several(2).await;
    let ann = world.user("ann").await;
    let (token, secret) = world.token_with(&ann, &["mcp:read", "mcp:write"], |_| ()).await;
    for number in 0..2 {
        assert_eq!(world.status(number, "/mcp", secret.expose()).await, 200);
    }
    drop(world.redis.take());
    // Whoever revokes it writes it into the database first.
    world.records.revoke_token(&token.id, "a test", Utc::now()).await.unwrap();
    let revocation = Revocation {
        key: RevocationKey::token(&token.id, token.version),
        until: Utc::now() + TimeDelta::hours(1),
    };
    world.records.add_revocations(&[revocation], Utc::now()).await.unwrap();
    // That Redis is away is known after a second.
    for number in 0..2 {
        eventually(Duration::from_millis(2500), async || {
            world.status(number, "/mcp", secret.expose()).await == 401
        })
        .await;
    }
    let other = world.token(&ann).await;
    eventually(PATIENCE, async || world.status(0, "/mcp", &other).await == 200).await;
}
