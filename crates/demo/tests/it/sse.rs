use serde_json::{Value, json};

use crate::client::{Server, initialize, request, text};

#[tokio::test]
async fn the_stream_carries_everything_to_the_client() {
    let server = Server::start().await;
    let mut stream = server.send("GET", "/sse", &[], &Value::Null).await;
    let endpoint = stream.event().await.unwrap();
    assert_eq!(endpoint.name.as_deref(), Some(&b"endpoint"[..]));
    let path = String::from_utf8(endpoint.data.to_vec()).unwrap();
    let post = async |body: &Value| {
        assert_eq!(server.send("POST", &path, &[], body).await.status(), 202);
    };
    post(&request(1, "tools/list", json!({}))).await;
    assert_eq!(stream.message().await["error"]["code"], -32600);
    post(&initialize("2024-11-05", json!({ "sampling": {} }))).await;
    assert_eq!(stream.message().await["result"]["protocolVersion"], "2024-11-05");
    post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;

    let tools = request(1, "tools/list", json!({}));
    post(&tools).await;
    let listed = stream.message().await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 5);
    assert!(listed["result"]["tools"][1].get("outputSchema").is_none());

    post(&request(2, "tools/call", json!({ "name": "sample" }))).await;
    let asked = stream.message().await;
    let answer = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "hi" } });
    post(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer })).await;
    assert_eq!(text(&stream.message().await), "m says: hi");

    post(&request(3, "tools/call", json!({ "name": "touch" }))).await;
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");

    assert_eq!(server.send("POST", "/messages?sessionId=x", &[], &tools).await.status(), 404);
}
