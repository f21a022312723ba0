//! What the other tests stand on.

use drawbridge_testkit::client::text;
use drawbridge_testkit::gateway::{DemoBackend, Gateway, demo_process};
use serde_json::json;

#[tokio::test]
async fn clients_of_both_eras_call_through_a_gateway() {
    let demo = DemoBackend::start().await;
    let (_program, url) = demo_process().await;
    let setup = Gateway::setup().url("old", &demo.url, "legacy").url("new", &url, "modern");
    let gateway = setup.start().await;
    let session = gateway.session().await;
    for tool in ["old__echo", "new__echo"] {
        assert_eq!(text(&session.tool(tool, json!({ "message": tool })).await), tool);
        assert_eq!(text(&gateway.modern().tool(tool, json!({ "message": tool })).await), tool);
    }
    assert!(gateway.stop().await.success());
}
