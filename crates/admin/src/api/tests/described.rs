//! The description of the API.

use axum::body::Body;

use super::world::{World, request};
use crate::api::openapi;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/admin-api.openapi.json");

#[test]
fn the_committed_description_is_up_to_date() {
    let generated = openapi().to_pretty_json().unwrap() + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PATH, &generated).unwrap();
    } else {
        let committed = std::fs::read_to_string(PATH).unwrap();
        assert_eq!(generated, committed, "run the test with UPDATE=1 to write the description");
    }
}

#[tokio::test]
async fn anybody_may_read_the_description() {
    let world = World::new().await;
    let answer = world.send(request("GET", "/admin/v1/openapi.json").body(Body::empty()).unwrap()).await;
    let document = answer.expect(200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert!(document["paths"]["/admin/v1/tokens/{id}/rotate"]["post"].is_object());
}

#[test]
fn operations_have_names_of_their_own_and_failures_are_problems() {
    let document = serde_json::to_value(openapi()).unwrap();
    let mut names = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} is twice");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.contains_key("default"));
            for (status, response) in responses {
                let what = format!("{method} {path}: {status}");
                assert!(response["description"].is_string(), "{what} has no description");
                let is_problem = response["content"]["application/problem+json"].is_object();
                assert_eq!(is_problem, !status.starts_with('2'), "{what}");
            }
        }
    }
    assert_eq!(names.len(), 30);
}
