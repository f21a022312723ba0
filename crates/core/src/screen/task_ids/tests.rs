use super::*;
use crate::client::tests::somebody;
use crate::seal::SealKey;
use serde_json::{Value, json};

fn keys() -> Arc<KeyRing> {
    Arc::new(KeyRing::new(&[SealKey { id: "k".to_owned(), secret: [3; 32] }]).unwrap())
}

fn handles(principal: &str) -> Handles {
    Handles { keys: keys(), place: format!("b:{principal}") }
}

fn message(value: &Value) -> Message {
    Message::parse(value.to_string().into()).unwrap()
}

fn value(message: &Message) -> Value {
    serde_json::from_slice(message.bytes()).unwrap()
}

fn request(method: &str, params: Value) -> Message {
    message(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }))
}

/// What a client gets of `result` in answer to a request.
fn given(handles: &Handles, about: &str, result: Value) -> Value {
    let message = message(&json!({ "jsonrpc": "2.0", "id": 1, "result": result }));
    let reply = Reply { message, shape: crate::call::Shape::Plain };
    value(&handles.reply(reply, about, &Given::new()).message)["result"].clone()
}

#[test]
fn a_handle_opens_for_its_principal_alone_wherever_it_stands() {
    let (ann, bob) = (handles("ann"), handles("bob"));
    let created = given(&ann, "tools/call", json!({ "task": { "taskId": "7", "status": "working" } }));
    let handle = created["task"]["taskId"].as_str().unwrap().to_owned();
    assert_ne!(handle, "7");
    assert_eq!(created["task"]["status"], "working");
    // Clients compare what they get.
    assert_eq!(given(&ann, "tools/call", json!({ "resultType": "task", "taskId": "7" }))["taskId"], handle);
    assert_eq!(given(&ann, "tasks/get", json!({ "taskId": "7", "status": "working" }))["taskId"], handle);
    let listed = given(&ann, "tasks/list", json!({ "tasks": [{ "taskId": "7" }, {}], "nextCursor": "c" }));
    assert_eq!(listed, json!({ "tasks": [{ "taskId": handle }], "nextCursor": "c" }));
    let result = json!({ "content": [], "taskId": "7", "_meta": { RELATED: { "taskId": "7" }, "a": 1 } });
    let result = given(&ann, "tasks/result", result);
    assert_eq!(result["taskId"], "7", "the tool's own");
    assert_eq!(result["_meta"], json!({ RELATED: { "taskId": handle }, "a": 1 }));

    for method in ["tasks/get", "tasks/update", "tasks/cancel", "tasks/result"] {
        let ask = |id: &str| request(method, json!({ "taskId": id, "x": [1] }));
        let (changed, _) = ann.request(&somebody(), &ask(&handle)).unwrap();
        assert_eq!(value(&changed.unwrap())["params"], json!({ "taskId": "7", "x": [1] }));
        let refused =
            |handles: &Handles, id: &str| handles.request(&somebody(), &ask(id)).unwrap_err().to_string();
        let unknown = refused(&ann, "never-was");
        assert_eq!(refused(&bob, &handle), unknown);
        assert_eq!(refused(&ann, "7"), unknown, "what the backend calls it");
        assert!(ann.request(&somebody(), &request(method, json!({ "taskId": 7 }))).is_err());
    }
}

#[test]
fn what_is_listened_to_comes_back_under_the_handles_that_were_given() {
    let old = KeyRing::new(&[SealKey { id: "old".to_owned(), secret: [1; 32] }]).unwrap();
    let before = Handles { keys: Arc::new(old), place: "b:ann".to_owned() };
    let handle = before.keys.seal_same(Purpose::Task, &before.place, b"7");
    let rotated = [("new", 2), ("old", 1)].map(|(id, n)| SealKey { id: id.to_owned(), secret: [n; 32] });
    let ann = Handles { keys: Arc::new(KeyRing::new(&rotated).unwrap()), place: "b:ann".to_owned() };
    let foreign = handles("bob").keys.seal_same(Purpose::Task, "b:bob", b"8");
    let filter = json!({ "toolsListChanged": true, "taskIds": [handle, foreign, "7", 9] });
    let (changed, given) = ann
        .request(&somebody(), &request("subscriptions/listen", json!({ "notifications": filter })))
        .unwrap();
    let asked = &value(&changed.unwrap())["params"]["notifications"];
    assert_eq!(*asked, json!({ "toolsListChanged": true, "taskIds": ["7"] }));
    let told = |method: &str, params: Value| {
        let message = message(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        value(&ann.notification(message, &given))["params"].clone()
    };
    let acknowledged = told(method::SUBSCRIPTIONS_ACKNOWLEDGED, json!({ "notifications": asked }));
    assert_eq!(acknowledged["notifications"]["taskIds"], json!([handle]));
    let status = told(method::TASKS_CHANGED, json!({ "taskId": "7", "status": "completed" }));
    assert_eq!(status, json!({ "taskId": handle, "status": "completed" }));
}

#[tokio::test]
async fn what_is_asked_for_a_task_is_answered_for_the_task() {
    let ann = handles("ann");
    let handle = ann.keys.seal_same(Purpose::Task, &ann.place, b"7");
    let about = |id: &str| json!({ RELATED: { "taskId": id } });
    let ask = |method: &str, params: Value| {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let request = request(method, params);
        let ask = crate::call::Ask { key: crate::call::AskKey::next(), request, reply: Some(reply.into()) };
        (ask, answer)
    };
    let (elicit, answer) = ask(method::ELICITATION_CREATE, json!({ "message": "?", "_meta": about("7") }));
    // The client's own task.
    let (poll, _) = ask("tasks/get", json!({ "taskId": "mine", "_meta": about("mine") }));
    let asks = smallvec::SmallVec::from_vec(vec![elicit, poll]);
    let mut round = ann.round(Round { asks, resume: crate::call::Resume::Live, source: None }, &Given::new());
    assert_eq!(value(&round.asks[0].request)["params"]["_meta"], about(&handle));
    assert_eq!(value(&round.asks[1].request)["params"], json!({ "taskId": "mine", "_meta": about("mine") }));
    let response =
        json!({ "jsonrpc": "2.0", "id": 1, "result": { "action": "accept", "_meta": about(&handle) } });
    assert!(round.asks[0].reply.take().unwrap().send(message(&response)));
    assert_eq!(value(&answer.await.unwrap())["result"]["_meta"], about("7"));
}
