//! What the audit trail says.

use drawbridge_auth::audit::{AuditFilter, AuditStore as _, hash};
use serde_json::{Value, json};

use super::world::World;

#[tokio::test]
async fn all_that_changes_something_is_written_down_in_one_chain() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    let (id, secret) = world.personal(&alice).await;
    world.post(&format!("/admin/v1/tokens/{id}/rotate"), json!({})).await.expect(201);
    world.ask("DELETE", &format!("/admin/v1/tokens/{id}"), None).await;
    world.ask("POST", &format!("/admin/v1/users/{alice}/disable"), None).await.expect(200);
    world.get("/admin/v1/tokens").await.expect(200);

    let trail = world.get("/admin/v1/audit").await;
    assert!(!trail.text().contains(&secret));
    let trail = trail.expect(200);
    let items = trail["items"].as_array().unwrap();
    let actions: Vec<&str> = items.iter().map(|item| item["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["user.create", "token.create", "token.rotate", "token.revoke", "user.disable"]);
    assert!(items.iter().all(|item| item["actor"].as_str().unwrap().starts_with("token:")));

    let entries = world.records.audit(&AuditFilter::default(), None, 100).await.unwrap().items;
    let mut before = String::new();
    for (number, entry) in (1..).zip(&entries) {
        assert_eq!((entry.number, &entry.chain), (number, &entries[0].chain));
        assert_eq!(entry.hash, hash(&before, entry));
        before.clone_from(&entry.hash);
    }
}

#[tokio::test]
async fn the_trail_comes_in_parts_and_in_lines() {
    let world = World::new().await;
    for subject in ["a", "b", "c"] {
        world.user(subject).await;
    }
    let part = world.get("/admin/v1/audit?limit=2").await.expect(200);
    assert_eq!(part["items"].as_array().unwrap().len(), 2);
    let path = format!("/admin/v1/audit?limit=2&cursor={}", part["next"].as_str().unwrap());
    let rest = world.get(&path).await.expect(200);
    assert_eq!(rest["items"].as_array().unwrap().len(), 1);
    assert_eq!(rest["next"], Value::Null);

    let headers = [("accept", "application/x-ndjson")];
    let lines = world.ask_as(&world.admin, "GET", "/admin/v1/audit?limit=2", &headers, None).await;
    assert_eq!(lines.header("content-type"), "application/x-ndjson");
    assert_eq!(lines.header("x-next-cursor"), part["next"].as_str().unwrap());
    let read: Vec<Value> = lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(Value::from(read), part["items"]);
}

#[tokio::test]
async fn parts_are_of_what_is_asked_for() {
    let world = World::new().await;
    let alice = world.user("alice").await;
    world.user("bob").await;
    world.ask("POST", &format!("/admin/v1/users/{alice}/disable"), None).await.expect(200);
    let all = world.get("/admin/v1/audit").await.expect(200);
    let (chain, second) =
        (all["items"][0]["chain"].as_str().unwrap(), all["items"][1]["at"].as_str().unwrap());
    let numbers = async |query: &str| {
        let part = world.get(&format!("/admin/v1/audit?{query}")).await.expect(200);
        let items = part["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["number"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&format!("chain={chain}")).await, [1, 2, 3]);
    assert_eq!(numbers("chain=other").await, [0; 0]);
    assert_eq!(numbers("action=user.create&limit=1").await, [1]);
    assert_eq!(numbers(&format!("target={alice}&action=user.disable")).await, [3]);
    assert_eq!(numbers(&format!("since={second}")).await, [2, 3]);
    assert_eq!(numbers(&format!("until={second}")).await, [1]);
    assert_eq!(numbers("kind=action&outcome=ok").await, [1, 2, 3]);
    assert_eq!(numbers("kind=call").await, [0; 0]);
    for wrong in ["kind=other", "since=yesterday", "actors=x"] {
        world.get(&format!("/admin/v1/audit?{wrong}")).await.problem(400);
    }
}
