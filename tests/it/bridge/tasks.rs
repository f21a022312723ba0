//! Tasks of one era for clients of the other, and for clients that know none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use drawbridge_testkit::backend::{Backend, Reply, Request, legacy, modern, text_result};
use drawbridge_testkit::client::{Modern, Reply as Answer, text};
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{all, session};
use crate::backends::{in_front_of, spawn};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

pub(crate) fn with_extension(mut capabilities: Value) -> Value {
    capabilities["extensions"] = json!({ EXTENSION: {} });
    capabilities
}

fn form() -> Value {
    json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } })
}

/// A stateless backend whose tools are tasks that end as their name says.
async fn stateless() -> Backend {
    let answers = Arc::new(Mutex::new(HashMap::<String, Value>::new()));
    Backend::start(move |r| {
        let answers = answers.clone();
        async move {
            let declared =
                &r.body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"];
            let knows = declared[EXTENSION].is_object();
            let task = |status: &str| {
                json!({ "resultType": "complete", "taskId": r.body["params"]["taskId"], "status": status,
                        "createdAt": "2026-08-01T10:00:00Z", "lastUpdatedAt": "2026-08-01T10:00:00Z",
                        "ttlMs": 60000, "pollIntervalMs": 50 })
            };
            match r.rpc() {
                "tools/call" if knows => {
                    let mut created = task("working");
                    created["resultType"] = json!("task");
                    created["taskId"] = json!(r.name());
                    Reply::result(&r, created)
                }
                "tools/call" => Reply::error(&r, 400, -32021, "tasks only"),
                "tasks/get" => {
                    let id = r.body["params"]["taskId"].as_str().unwrap();
                    let answered = answers.lock().unwrap().get(id).cloned();
                    let mut state = match id {
                        "fails" => task("failed"),
                        "asks" if answered.is_none() => task("input_required"),
                        "never" => task("working"),
                        _ => task("completed"),
                    };
                    match id {
                        "fails" => state["error"] = json!({ "code": -32050, "message": "broken", "data": 7 }),
                        "asks" if answered.is_none() => {
                            state["inputRequests"] =
                                json!({ "k": { "method": "elicitation/create", "params": form() } });
                        }
                        _ => {
                            let mut result = text_result(&json!(answered).to_string());
                            result["isError"] = json!(id == "is-error");
                            state["result"] = result;
                        }
                    }
                    Reply::result(&r, state)
                }
                "tasks/update" => {
                    let id = r.body["params"]["taskId"].as_str().unwrap().to_owned();
                    answers.lock().unwrap().insert(id, r.body["params"]["inputResponses"].clone());
                    Reply::result(&r, json!({ "resultType": "complete" }))
                }
                "tasks/cancel" => Reply::result(&r, json!({ "resultType": "complete" })),
                _ => modern(&r),
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_client_with_a_session_gets_the_end_of_a_task_as_its_answer() {
    let backend = stateless().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = session(&gateway, "2025-11-25", all()).await;
    let done = session.tool("done", json!({})).await;
    assert_eq!(text(&done), "null");
    assert!(done["result"].get("resultType").is_none());
    assert_eq!(session.tool("is-error", json!({})).await["result"]["isError"], true);
    let failed = session.tool("fails", json!({})).await["error"].clone();
    assert_eq!((&failed["message"], &failed["data"]), (&json!("broken"), &json!(7)));
    // What the task asks is asked on the stream of the call.
    let mut stream = session.request("tools/call", json!({ "name": "asks" })).await;
    let asked = stream.message().await;
    assert_eq!(asked["method"], "elicitation/create");
    let body = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } });
    session.post(body.to_string()).await;
    assert_eq!(text(&stream.answer().await), json!({ "k": { "action": "decline" } }).to_string());
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_its_task_runs_cancels_the_task() {
    let backend = stateless().await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = session(&gateway, "2025-11-25", all()).await;
    let id = session.next_id();
    let body = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "never" } });
    let calling = session.post(body.to_string());
    let cancelling = async {
        backend.wait_for("tasks/get").await;
        session.notify("notifications/cancelled", json!({ "requestId": id })).await;
    };
    tokio::join!(calling, cancelling);
    let cancelled = backend.wait_for("tasks/cancel").await;
    assert_eq!(cancelled.body["params"]["taskId"], "never");
    assert_eq!(cancelled.header("mcp-name"), "never");
}

/// A backend with sessions and core tasks: `asks` asks on the stream of `tasks/result`.
pub(crate) struct WithTasks {
    pub(crate) backend: Backend,
}

fn status_of(id: &str, answered: bool) -> &'static str {
    match id {
        "is-error" | "fails" => "failed",
        "asks" if !answered => "input_required",
        "never" => "working",
        _ => "completed",
    }
}

impl WithTasks {
    pub(crate) async fn start() -> Self {
        let (answers, _) = broadcast::channel::<Value>(16);
        let answered = Arc::new(Mutex::new(None::<Value>));
        let backend = Backend::start(move |r| {
            let (answers, answered) = (answers.clone(), answered.clone());
            async move { Self::answer(r, &answers, &answered).await }
        })
        .await;
        Self { backend }
    }

    async fn answer(
        r: Request,
        answers: &broadcast::Sender<Value>,
        answered: &Arc<Mutex<Option<Value>>>,
    ) -> Reply {
        let known = answered.lock().unwrap().clone();
        let task = |id: &str| {
            json!({ "taskId": id, "status": status_of(id, known.is_some()), "createdAt": "2026-08-01T10:00:00Z",
                    "lastUpdatedAt": "2026-08-01T10:00:00Z", "ttl": 60000, "pollInterval": 50 })
        };
        let id = r.body["params"]["taskId"].as_str().unwrap_or_default().to_owned();
        match r.rpc() {
            "initialize" => {
                let result = json!({
                    "protocolVersion": "2025-11-25", "serverInfo": { "name": "t", "version": "1" },
                    "capabilities": { "tools": {}, "tasks": { "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } } },
                });
                Reply::result(&r, result).header("mcp-session-id", "s")
            }
            "tools/list" => {
                let tool = |name: &str, support: &str| json!({ "name": name, "inputSchema": { "type": "object" }, "execution": { "taskSupport": support } });
                let required =
                    ["asks", "is-error", "fails", "never", "done"].map(|name| tool(name, "required"));
                let mut tools = required.to_vec();
                tools.extend([tool("optional", "optional"), tool("plain", "forbidden")]);
                Reply::result(&r, json!({ "tools": tools }))
            }
            "tools/call" if r.body["params"]["task"].is_object() => {
                Reply::result(&r, json!({ "task": task(r.name()) }))
            }
            "tools/call" if matches!(r.name(), "optional" | "plain") => {
                Reply::result(&r, text_result("at once"))
            }
            "tools/call" => Reply::error(&r, 200, -32601, "only as a task"),
            "tasks/get" if id == "unknown" => Reply::error(&r, 200, -32602, "no such task"),
            "tasks/get" => Reply::result(&r, task(&id)),
            "tasks/cancel" if id == "done" => Reply::error(&r, 200, -32602, "it has ended"),
            "tasks/cancel" => Reply::result(&r, task(&id)),
            "tasks/result" if id == "fails" => Reply::error(&r, 200, -32050, "broken"),
            "tasks/result" if id == "asks" && known.is_none() => {
                let (reply, stream) = Reply::stream();
                let (mut answers, answered) = (answers.subscribe(), answered.clone());
                spawn(async move {
                    let ask = json!({ "jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": form() });
                    stream.event(&ask).await;
                    let answer = answers.recv().await.unwrap();
                    *answered.lock().unwrap() = Some(answer["result"].clone());
                    let result = text_result(&answer["result"].to_string());
                    stream.event(&json!({ "jsonrpc": "2.0", "id": r.id(), "result": result })).await;
                });
                reply
            }
            "tasks/result" if id == "never" => std::future::pending().await,
            "tasks/result" => {
                let mut result = text_result(&json!(known).to_string());
                result["isError"] = json!(id == "is-error");
                Reply::result(&r, result)
            }
            "answer" => {
                let _ = answers.send(r.body.clone());
                Reply::status(202)
            }
            _ => legacy(&r, "s"),
        }
    }
}

#[tokio::test]
async fn r120_a_stateless_client_follows_the_tasks_of_a_session_in_its_own_form() {
    let tasks = WithTasks::start().await;
    let gateway = in_front_of(&tasks.backend, "era: legacy", "").await;
    let modern = Modern::new(&gateway.client(), "/mcp", with_extension(all()));
    let discovered = modern.call("server/discover", json!({})).await["result"]["capabilities"].clone();
    assert!(
        discovered["extensions"][EXTENSION].is_object() && discovered.get("tasks").is_none(),
        "{discovered}"
    );
    for (tool, status) in
        [("done", "completed"), ("is-error", "completed"), ("fails", "failed"), ("never", "working")]
    {
        let created = modern.tool(tool, json!({})).await["result"].clone();
        assert_eq!(created["resultType"], "task", "{created}");
        let id = &created["taskId"];
        assert_eq!((&created["ttlMs"], &created["pollIntervalMs"]), (&json!(60000), &json!(50)));
        let state = modern.call("tasks/get", json!({ "taskId": id })).await["result"].clone();
        assert_eq!((&state["resultType"], &state["status"]), (&json!("complete"), &json!(status)), "{state}");
        match tool {
            "done" => assert_eq!(state["result"]["isError"], false),
            "is-error" => assert_eq!(state["result"]["isError"], true),
            "fails" => assert_eq!(state["error"]["message"], "broken"),
            _ => assert!(state.get("result").is_none()),
        }
    }
    // R117, R118: a task that nobody knows; an end that can't be cancelled.
    assert_eq!(modern.call("tasks/get", json!({ "taskId": "unknown" })).await["error"]["code"], -32602);
    let done = id_of(&modern, "done").await;
    assert_eq!(
        modern.call("tasks/cancel", json!({ "taskId": done })).await["result"]["resultType"],
        "complete"
    );
    assert_eq!(modern.tool("optional", json!({})).await["result"]["resultType"], "task");
    assert_eq!(text(&modern.tool("plain", json!({})).await), "at once");
    for method in ["tasks/result", "tasks/list"] {
        assert_eq!(modern.call(method, json!({ "taskId": "done" })).await["error"]["code"], -32601, "R119");
    }
}

#[tokio::test]
async fn what_a_task_of_a_session_asks_is_in_the_task_and_answered_by_an_update() {
    let tasks = WithTasks::start().await;
    let gateway = in_front_of(&tasks.backend, "era: legacy", "").await;
    let modern = Modern::new(&gateway.client(), "/mcp", with_extension(all()));
    let id = id_of(&modern, "asks").await;
    let get = || modern.call("tasks/get", json!({ "taskId": id }));
    let state = get().await["result"].clone();
    assert_eq!(state["status"], "input_required");
    let (key, request) = state["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(*request, json!({ "method": "elicitation/create", "params": form() }));
    assert_eq!(get().await["result"]["inputRequests"], state["inputRequests"], "asked once, under one key");
    let bad = json!({ "taskId": id, "inputResponses": { key: 7 } });
    assert_eq!(modern.call("tasks/update", bad).await["error"]["code"], -32602);
    let answers = json!({ key: { "action": "decline" }, "made-up": {} });
    let updated = modern.call("tasks/update", json!({ "taskId": id, "inputResponses": answers })).await;
    assert_eq!(updated["result"]["resultType"], "complete", "{updated}");
    eventually(PATIENCE, async || get().await["result"]["status"] == "completed").await;
    assert_eq!(get().await["result"]["result"]["content"][0]["text"], r#"{"action":"decline"}"#);
    assert_eq!(tasks.backend.count("answer"), 1);
}

#[tokio::test]
async fn r116_a_client_without_the_extension_gets_the_end_of_a_task_as_its_answer() {
    let tasks = WithTasks::start().await;
    let gateway = in_front_of(&tasks.backend, "era: legacy", "").await;
    let modern = Modern::new(&gateway.client(), "/mcp", all());
    assert_eq!(text(&modern.tool("done", json!({})).await), "null");
    assert_eq!(text(&modern.tool("optional", json!({})).await), "at once");
    let refused = modern.call("tasks/get", json!({ "taskId": "done" })).await;
    assert_eq!(refused["error"]["code"], -32021, "R118");
    assert!(refused["error"]["data"]["requiredCapabilities"]["extensions"][EXTENSION].is_object());
    // What the task asks meanwhile parks the call.
    let params = json!({ "name": "asks", "arguments": {} });
    let asked = modern.call("tools/call", params.clone()).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let retry = super::retry(&params, json!({ key: { "action": "cancel" } }), &asked);
    assert_eq!(text(&modern.call("tools/call", retry).await), r#"{"action":"cancel"}"#);
}

/// The id of a task that a tool becomes, as its caller knows it.
async fn id_of(modern: &Modern, tool: &str) -> String {
    modern.tool(tool, json!({})).await["result"]["taskId"].as_str().unwrap().to_owned()
}

/// Opens a listen for these tasks; its stream begins with the acknowledgement.
async fn listen_to(modern: &Modern, ids: &[&str]) -> (Answer, Value) {
    let wanted = json!({ "notifications": { "taskIds": ids } });
    let mut stream = modern.request("subscriptions/listen", wanted).await;
    let ack = stream.message().await["params"]["notifications"].clone();
    (stream, ack)
}

#[tokio::test]
async fn r118_a_stateless_client_that_listens_to_tasks_of_a_session_is_told_how_they_stand() {
    let tasks = WithTasks::start().await;
    let streams = Arc::new(Mutex::new(Vec::new()));
    let opened = streams.clone();
    let (answers, _) = broadcast::channel::<Value>(16);
    tasks.backend.behave(move |r| {
        let (opened, answers) = (opened.clone(), answers.clone());
        async move {
            if r.rpc() != "GET" || r.header("mcp-session-id").is_empty() {
                return WithTasks::answer(r, &answers, &Mutex::default().into()).await;
            }
            let (reply, stream) = Reply::stream();
            opened.lock().unwrap().push(stream);
            reply
        }
    });
    let gateway = in_front_of(&tasks.backend, "era: legacy", "").await;
    let modern = Modern::new(&gateway.client(), "/mcp", with_extension(all()));
    let (done_id, fails) = (id_of(&modern, "done").await, id_of(&modern, "fails").await);
    let (mut stream, ack) = listen_to(&modern, &[&done_id, &fails, "done", "made-up"]).await;
    assert_eq!(ack, json!({ "taskIds": [done_id, fails] }));
    eventually(PATIENCE, async || !streams.lock().unwrap().is_empty()).await;
    let upstream = streams.lock().unwrap()[0].clone();
    let status = |id: &str| {
        let params = json!({ "taskId": id, "status": "working", "createdAt": "2026-08-01T10:00:00Z",
                             "lastUpdatedAt": "2026-08-01T10:00:00Z", "ttl": 60000 });
        json!({ "jsonrpc": "2.0", "method": "notifications/tasks/status", "params": params })
    };
    for id in ["never", "done", "fails"] {
        upstream.event(&status(id)).await;
    }
    // Of "never" it did not want to hear.
    let done = stream.message().await;
    assert_eq!(done["method"], "notifications/tasks");
    let task = &done["params"];
    assert_eq!((&task["taskId"], &task["status"]), (&json!(done_id), &json!("completed")), "{done}");
    assert_eq!((&task["result"]["isError"], &task["ttlMs"]), (&json!(false), &json!(60000)));
    assert!(task.get("resultType").is_none());
    assert!(!task["_meta"]["io.modelcontextprotocol/subscriptionId"].is_null());
    assert_eq!(stream.message().await["params"]["error"]["message"], "broken");
    let unaware = Modern::new(&gateway.client(), "/mcp", all());
    let wanted = json!({ "notifications": { "taskIds": [done_id] } });
    let refused = unaware.call("subscriptions/listen", wanted).await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
}

#[tokio::test]
async fn a_stateless_client_hears_of_its_own_tasks_at_a_stateless_backend() {
    let streams = Arc::new(Mutex::new(Vec::new()));
    let opened = streams.clone();
    let backend = Backend::start(move |r| {
        let opened = opened.clone();
        async move {
            match r.rpc() {
                "subscriptions/listen" => {}
                "tools/call" => {
                    return Reply::result(&r, json!({ "resultType": "task", "taskId": r.name() }));
                }
                _ => return modern(&r),
            }
            let (reply, stream) = Reply::stream();
            let params = json!({ "notifications": r.body["params"]["notifications"], "_meta": {} });
            let method = "notifications/subscriptions/acknowledged";
            stream.event(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
            opened.lock().unwrap().push(stream);
            reply
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let client = Modern::new(&gateway.client(), "/mcp", with_extension(all()));
    let (first, second) = (id_of(&client, "t1").await, id_of(&client, "t2").await);
    let (mut one, ack) = listen_to(&client, &[&first]).await;
    assert_eq!(ack, json!({ "taskIds": [first] }));
    let (mut other, _) = listen_to(&client, &[&second]).await;
    eventually(PATIENCE, async || {
        let asked = backend.requests_of("subscriptions/listen").pop().unwrap();
        asked.body["params"]["notifications"] == json!({ "taskIds": ["t1", "t2"] })
    })
    .await;
    let upstream = streams.lock().unwrap().last().unwrap().clone();
    for id in ["t2", "t1"] {
        let params = json!({ "taskId": id, "status": "working" });
        upstream.event(&json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": params })).await;
    }
    assert_eq!(one.message().await["params"]["taskId"], first);
    assert_eq!(other.message().await["params"]["taskId"], second);
}
