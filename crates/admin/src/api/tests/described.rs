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
