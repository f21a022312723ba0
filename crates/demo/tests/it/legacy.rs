use serde_json::{Value, json};

use crate::client::{PATIENCE, Reply, Server, initialize, methods, request, text};

struct Session {
    server: Server,
    id: String,
    version: String,
}

impl Session {
    async fn open(version: &str, capabilities: Value) -> Self {
        let server = Server::start().await;
        let reply = server.post(&[], &initialize(version, capabilities)).await;
        let id = reply.header("mcp-session-id");
        let answer = reply.json().await;
        assert_eq!(answer["result"]["protocolVersion"], version);
        let session = Self { server, id, version: version.to_owned() };
        let done = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(session.post(&done).await.status(), 202);
        session
    }

    async fn send(&self, verb: &str, more: &[(&str, &str)], body: &Value) -> Reply {
        let mut headers = vec![("mcp-session-id", &*self.id), ("mcp-protocol-version", &*self.version)];
        headers.extend(more);
        self.server.send(verb, "/mcp", &headers, body).await
    }

    async fn post(&self, body: &Value) -> Reply {
        self.send("POST", &[], body).await
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        self.post(&request(7, method, params)).await.json().await
    }

    async fn tool(&self, name: &str, arguments: Value) -> Reply {
        self.post(&request("c", "tools/call", json!({ "name": name, "arguments": arguments }))).await
    }
}

const LATEST: &str = "2025-11-25";

#[tokio::test]
async fn the_version_of_the_client_is_taken_if_it_is_known() {
    let server = Server::start().await;
    for (asked, given) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2099-01-01", LATEST),
        ("2026-07-28", LATEST),
    ] {
        let answer = server.post(&[], &initialize(asked, json!({}))).await.json().await;
        assert_eq!(answer["result"]["protocolVersion"], given);
        assert!(answer["result"]["instructions"].is_string());
    }
}

#[tokio::test]
async fn tools_come_in_pages() {
    let session = Session::open(LATEST, json!({})).await;
    let (mut names, mut params) = (Vec::new(), json!({}));
    loop {
        let answer = session.ask("tools/list", params).await;
        let tools = answer["result"]["tools"].as_array().unwrap();
        assert!(tools.len() <= 5);
        names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = answer["result"].get("nextCursor") else { break };
        params = json!({ "cursor": cursor });
    }
    assert_eq!(names.join(" "), "echo add whoami sleep region log elicit sample roots image big fail touch");
    let bad = session.ask("tools/list", json!({ "cursor": "x" })).await;
    assert_eq!(bad["error"]["code"], -32602);
}

#[tokio::test]
async fn plain_tools_answer_with_json() {
    let session = Session::open(LATEST, json!({})).await;
    let call = async |name, arguments| session.tool(name, arguments).await.json().await;
    assert_eq!(text(&call("echo", json!({ "message": "hi" })).await), "hi");
    assert_eq!(call("add", json!({ "a": 2, "b": 3 })).await["result"]["structuredContent"]["sum"], 5);
    assert_eq!(call("add", json!({ "a": 2 })).await["result"]["isError"], true);
    assert_eq!(text(&call("sleep", json!({ "ms": 20 })).await), "slept 20 ms");
    assert_eq!(text(&call("big", json!({ "bytes": 100_000 })).await).len(), 100_000);
    assert_eq!(call("fail", json!({})).await["result"]["isError"], true);
    assert_eq!(text(&call("region", json!({ "region": "eu" })).await), "region eu");
    assert_eq!(call("image", json!({})).await["result"]["content"][0]["mimeType"], "image/png");
    let who = call("whoami", json!({})).await["result"]["structuredContent"].clone();
    assert_eq!(who["era"], "legacy");
    assert_eq!(who["session"], session.id);
    assert_eq!(who["client"]["name"], "tiny");
    let unknown = call("nothing", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32602);
}

#[tokio::test]
async fn progress_and_logs_come_before_the_result_and_can_be_read_again() {
    let session = Session::open(LATEST, json!({})).await;
    let params = json!({ "name": "sleep", "arguments": { "ms": 300 }, "_meta": { "progressToken": "p" } });
    let mut reply = session.post(&request(1, "tools/call", params)).await;
    let priming = reply.event().await.unwrap();
    assert!(priming.data.is_empty() && priming.retry.is_some());
    let all = reply.messages().await;
    assert_eq!(
        methods(&all),
        ["notifications/progress"; 4].iter().copied().chain(["result"]).collect::<Vec<_>>()
    );
    assert_eq!(all[1]["params"]["progress"], 1);

    let id = String::from_utf8(priming.id.unwrap().to_vec()).unwrap();
    let again = session.send("GET", &[("last-event-id", &id)], &Value::Null).await;
    assert_eq!(again.messages().await, all);

    let logged = session.tool("log", json!({ "message": "m", "level": "error" })).await.messages().await;
    assert_eq!(methods(&logged), ["notifications/message", "result"]);
    session.ask("logging/setLevel", json!({ "level": "critical" })).await;
    let quiet = session.tool("log", json!({ "message": "m", "level": "error" })).await;
    assert!(!quiet.is_stream());
    let bad = session.ask("logging/setLevel", json!({ "level": "loud" })).await;
    assert_eq!(bad["error"]["code"], -32602);
}

#[tokio::test]
async fn the_client_is_asked_on_the_stream_of_the_call() {
    let session = Session::open(LATEST, json!({ "elicitation": {}, "sampling": {}, "roots": {} })).await;
    let cases = [
        (
            "elicit",
            "elicitation/create",
            json!({ "action": "accept", "content": { "name": "Ada" } }),
            "Hello, Ada!",
        ),
        ("elicit", "elicitation/create", json!({ "action": "decline" }), "The user declined."),
        (
            "sample",
            "sampling/createMessage",
            json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "hello" } }),
            "m says: hello",
        ),
        ("roots", "roots/list", json!({ "roots": [{ "uri": "file:///r" }] }), "file:///r"),
    ];
    for (tool, method, answer, expected) in cases {
        let mut reply = session.tool(tool, json!({})).await;
        let asked = reply.message().await;
        assert_eq!(asked["method"], method);
        let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer });
        assert_eq!(session.post(&answer).await.status(), 202);
        assert_eq!(text(&reply.message().await), expected);
        assert!(reply.event().await.is_none());
    }
    let mut reply = session.tool("sample", json!({})).await;
    let id = reply.message().await["id"].clone();
    session.post(&json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -1, "message": "no" } })).await;
    assert_eq!(reply.message().await["result"]["isError"], true);
}

#[tokio::test]
async fn a_client_without_the_capability_is_told() {
    let session = Session::open(LATEST, json!({ "elicitation": { "url": {} } })).await;
    for tool in ["elicit", "sample", "roots"] {
        let answer = session.tool(tool, json!({})).await.json().await;
        assert_eq!(answer["result"]["isError"], true);
        assert!(text(&answer).contains("capability"), "{answer}");
    }
}

#[tokio::test]
async fn who_leaves_still_gets_the_answer() {
    let session = Session::open(LATEST, json!({})).await;
    let params = json!({ "name": "sleep", "arguments": { "ms": 200 }, "_meta": { "progressToken": 1 } });
    let mut reply = session.post(&request(1, "tools/call", params)).await;
    let start = String::from_utf8(reply.event().await.unwrap().id.unwrap().to_vec()).unwrap();
    let seen = reply.event().await.unwrap();
    drop(reply);
    let last = String::from_utf8(seen.id.unwrap().to_vec()).unwrap();
    let rest = session.send("GET", &[("last-event-id", &last)], &Value::Null).await.messages().await;
    assert_eq!(methods(&rest), ["notifications/progress", "notifications/progress", "result"]);
    let all = session.send("GET", &[("last-event-id", &start)], &Value::Null).await.messages().await;
    assert_eq!(all[1..], rest);
    assert_eq!(session.send("GET", &[("last-event-id", "s99-1")], &Value::Null).await.status(), 400);
}

#[tokio::test]
async fn a_call_can_be_cancelled() {
    let session = Session::open("2025-06-18", json!({})).await;
    let params = json!({ "name": "sleep", "arguments": { "ms": 60_000 }, "_meta": { "progressToken": 1 } });
    let mut reply = session.post(&request("long", "tools/call", params)).await;
    assert_eq!(reply.message().await["method"], "notifications/progress");
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "long" } });
    assert_eq!(session.post(&cancel).await.status(), 202);
    assert!(reply.messages().await.iter().all(|message| message.get("result").is_none()));
}

#[tokio::test]
async fn changes_come_on_the_stream_of_get() {
    let session = Session::open(LATEST, json!({})).await;
    let mut push = session.send("GET", &[], &Value::Null).await;
    assert_eq!(
        session.ask("resources/subscribe", json!({ "uri": "demo://counter" })).await["result"],
        json!({})
    );
    session.tool("touch", json!({})).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(push.message().await);
    }
    assert_eq!(
        methods(&seen),
        [
            "notifications/tools/list_changed",
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
            "notifications/resources/updated",
        ]
    );
    assert_eq!(seen[3]["params"]["uri"], "demo://counter");
    let counter = session.ask("resources/read", json!({ "uri": "demo://counter" })).await;
    assert_eq!(counter["result"]["contents"][0]["text"], "1");
    session.ask("resources/unsubscribe", json!({ "uri": "demo://counter" })).await;
    session.tool("touch", json!({})).await;
    session.tool("touch", json!({})).await;
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(push.message().await);
    }
    assert!(!methods(&seen).contains(&"notifications/resources/updated"));
}

#[tokio::test]
async fn resources_prompts_and_completions() {
    let session = Session::open(LATEST, json!({})).await;
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
    assert_eq!(
        session.ask("resources/list", json!({})).await["result"]["resources"].as_array().unwrap().len(),
        3
    );
    let templates = session.ask("resources/templates/list", json!({})).await;
    let template = templates["result"]["resourceTemplates"][0]["uriTemplate"].clone();
    let greeting = session.ask("resources/read", json!({ "uri": "demo://greeting/Ada" })).await;
    assert_eq!(greeting["result"]["contents"][0]["text"], "Hello, Ada!");
    let missing = session.ask("resources/read", json!({ "uri": "demo://nothing" })).await;
    assert_eq!(missing["error"]["code"], -32002);
    let complete = json!({ "ref": { "type": "ref/resource", "uri": template }, "argument": { "name": "name", "value": "a" } });
    let names = session.ask("completion/complete", complete).await;
    assert_eq!(names["result"]["completion"]["values"], json!(["Ada", "Alan"]));
    let complete = json!({ "ref": { "type": "ref/prompt", "name": "greet" }, "argument": { "name": "style", "value": "f" } });
    let styles = session.ask("completion/complete", complete).await;
    assert_eq!(styles["result"]["completion"]["values"], json!(["formal"]));
    let greet = json!({ "name": "greet", "arguments": { "name": "Ada", "style": "formal" } });
    let prompt = session.ask("prompts/get", greet).await;
    assert_eq!(prompt["result"]["messages"][0]["content"]["text"], "Write a formal greeting for Ada.");
    assert_eq!(session.ask("prompts/get", json!({ "name": "greet" })).await["error"]["code"], -32602);
    assert_eq!(session.ask("prompts/list", json!({})).await["result"]["prompts"][1]["name"], "tour");
    assert_eq!(session.ask("server/discover", json!({})).await["error"]["code"], -32601);
}

#[tokio::test]
async fn sessions_end_and_are_needed() {
    let session = Session::open(LATEST, json!({})).await;
    let list = request(1, "tools/list", json!({}));
    assert_eq!(session.server.post(&[], &list).await.status(), 400);
    assert_eq!(session.server.post(&[("mcp-session-id", "x")], &list).await.status(), 404);
    assert_eq!(session.send("GET", &[("accept", "text/plain")], &Value::Null).await.status(), 200);
    let push = session.send("GET", &[], &Value::Null).await;
    assert_eq!(session.send("DELETE", &[], &Value::Null).await.status(), 204);
    assert_eq!(push.messages().await.len(), 0);
    assert_eq!(session.post(&list).await.status(), 404);
    assert_eq!(session.server.send("GET", "/mcp", &[], &Value::Null).await.status(), 405);
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_lets_calls_finish() {
    let session = Session::open(LATEST, json!({})).await;
    let push = session.send("GET", &[], &Value::Null).await;
    let params = json!({ "name": "sleep", "arguments": { "ms": 100 }, "_meta": { "progressToken": 1 } });
    let running = session.post(&request(1, "tools/call", params)).await;
    session.server.demo.shut_down();
    assert_eq!(push.messages().await.len(), 0);
    assert!(running.messages().await.pop().unwrap().get("result").is_some());
    session.server.tasks.close();
    tokio::time::timeout(PATIENCE, session.server.tasks.wait()).await.unwrap();
}

#[tokio::test]
async fn other_sites_bad_versions_and_bad_bodies_are_refused() {
    let session = Session::open("2025-06-18", json!({})).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(session.send("POST", &[("origin", "https://example.com")], &ping).await.status(), 403);
    assert_eq!(session.send("POST", &[("origin", "http://localhost:1")], &ping).await.status(), 200);
    let bad = [("mcp-session-id", &*session.id), ("mcp-protocol-version", "1900-01-01")];
    assert_eq!(session.server.post(&bad, &ping).await.status(), 400);
    assert_eq!(session.post(&json!([ping])).await.status(), 400);
    let reply = session.post(&json!({ "jsonrpc": "1.0", "id": 1, "method": "ping" })).await;
    assert_eq!(reply.status(), 400);
}

#[tokio::test]
async fn batches_of_2025_03_26_are_answered() {
    let session = Session::open("2025-03-26", json!({})).await;
    let batch = json!([request(1, "ping", json!({})), request(2, "ping", json!({}))]);
    let mut ids: Vec<_> =
        session.post(&batch).await.messages().await.iter().map(|m| m["id"].as_i64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [Some(1), Some(2)]);
    let add = session.tool("add", json!({ "a": 1, "b": 1 })).await.json().await;
    assert!(add["result"].get("structuredContent").is_none());
}
