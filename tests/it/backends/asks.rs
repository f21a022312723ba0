//! What backends with sessions ask of clients with sessions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, Request, Stream, legacy, text_result};
use drawbridge_testkit::client::{Reply as Answer, Session, text};
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::{in_front_of, spawn};

/// A backend that asks.
///
/// | tool | asks |
/// |---|---|
/// | `ask` | on the stream of the call, and answers with what it was told |
/// | `ask-aside` | on its GET stream, for which it waits |
/// | `withdraw` | on the stream of the call, takes it back when `proceed` says so, and answers |
/// | `ping` | sends a ping on the stream of the call |
struct Asking {
    backend: Backend,
    /// Its GET stream.
    aside: watch::Receiver<Option<Stream>>,
    proceed: watch::Sender<bool>,
}

fn elicitation(id: &Value) -> Value {
    let schema = json!({ "type": "object", "properties": { "env": { "type": "string" } } });
    let params = json!({ "message": "Which?", "requestedSchema": schema, "_meta": { "x.example/y": 1 } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params })
}

async fn answer_to(answers: &mut broadcast::Receiver<Value>, id: &Value) -> Value {
    loop {
        let answer = answers.recv().await.unwrap();
        if answer["id"] == *id {
            return answer;
        }
    }
}

/// How many streams were asked for in a session; another one is that of the probe.
fn streams_of_sessions(backend: &Backend) -> usize {
    backend.requests_of("GET").iter().filter(|r| r.header("mcp-session-id") == "s").count()
}

fn done(request: &Request, what: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": request.id(), "result": text_result(&what.to_string()) })
}

impl Asking {
    async fn start() -> Self {
        let (answers, _) = broadcast::channel::<Value>(64);
        let (opened, aside) = watch::channel(None);
        let (proceed, go_on) = watch::channel(false);
        let get = aside.clone();
        let opened = Arc::new(opened);
        let backend = Backend::start(move |r| {
            let (answers, opened) = (answers.clone(), opened.clone());
            let (mut get, mut go_on) = (get.clone(), go_on.clone());
            async move {
                if r.rpc() == "answer" {
                    let _ = answers.send(r.body.clone());
                    return Reply::status(202);
                }
                if r.rpc() == "GET" && r.header("mcp-session-id") == "s" {
                    let (reply, stream) = Reply::stream();
                    stream.raw(": open\n\n").await;
                    opened.send_replace(Some(stream));
                    return reply;
                }
                let mut heard = answers.subscribe();
                // Ids of the backend's own, of either type.
                let id = r.body["params"]["arguments"]["id"].clone();
                match r.name() {
                    "ask" => {
                        let (reply, stream) = Reply::stream();
                        spawn(async move {
                            stream.event(&elicitation(&id)).await;
                            let told = answer_to(&mut heard, &id).await;
                            stream.event(&done(&r, &told)).await;
                        });
                        reply
                    }
                    "ask-aside" => {
                        let stream = get.wait_for(Option::is_some).await.unwrap().clone().unwrap();
                        stream.event(&elicitation(&id)).await;
                        let told = answer_to(&mut heard, &id).await;
                        Reply::json(&done(&r, &told))
                    }
                    "withdraw" => {
                        let (reply, stream) = Reply::stream();
                        spawn(async move {
                            stream.event(&elicitation(&id)).await;
                            go_on.wait_for(|go| *go).await.unwrap();
                            let params = json!({ "requestId": id });
                            let method = "notifications/cancelled";
                            stream
                                .event(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
                                .await;
                            stream.event(&done(&r, &json!("never mind"))).await;
                        });
                        reply
                    }
                    "ping" => {
                        let (reply, stream) = Reply::stream();
                        spawn(async move {
                            stream.event(&json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })).await;
                            let told = answer_to(&mut heard, &id).await;
                            stream.event(&done(&r, &told)).await;
                        });
                        reply
                    }
                    _ => legacy(&r, "s"),
                }
            }
        })
        .await;
        Self { backend, aside, proceed }
    }

    async fn stream(&self) -> Stream {
        let mut aside = self.aside.clone();
        let found = async { aside.wait_for(Option::is_some).await.unwrap().clone().unwrap() };
        drawbridge_testkit::soon("the backend's GET stream", found).await
    }
}

async fn who_can_be_asked(gateway: &Gateway) -> Session {
    Session::open(&gateway.client(), "/mcp", "2025-11-25", json!({ "elicitation": {}, "roots": {} })).await
}

async fn call(session: &Session, tool: &str, id: Value) -> Answer {
    session.request("tools/call", json!({ "name": tool, "arguments": { "id": id } })).await
}

fn accept(asked: &Value, env: &str) -> Value {
    let result = json!({ "action": "accept", "content": { "env": env } });
    json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result })
}

/// Checks an ask and answers it.
async fn answer(session: &Session, asked: &Value, env: &str) {
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    assert_eq!(asked["params"], elicitation(&Value::Null)["params"]);
    assert_eq!(session.post(accept(asked, env).to_string()).await.status(), 202);
}

fn told(answer: &Value) -> Value {
    serde_json::from_str(text(answer)).unwrap()
}

#[tokio::test]
async fn r031_an_ask_rides_on_the_stream_of_its_call_and_its_answer_has_the_backends_id() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    for id in [json!("e-1"), json!(1), json!("1")] {
        let mut reply = call(&session, "ask", id.clone()).await;
        let asked = reply.message().await;
        assert_ne!(asked["id"], id, "the gateway has ids of its own");
        answer(&session, &asked, "prod").await;
        let told = told(&reply.answer().await);
        assert_eq!(told["id"], id);
        assert_eq!(told["result"], json!({ "action": "accept", "content": { "env": "prod" } }));
    }
    let answers = asking.backend.requests_of("answer");
    assert!(answers.iter().all(|r| r.header("mcp-session-id") == "s"));
    assert_eq!(answers.len(), 3, "one for each");
}

#[tokio::test]
async fn two_sessions_that_are_asked_under_equal_ids_get_their_own_answers() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let (one, two) = (who_can_be_asked(&gateway).await, who_can_be_asked(&gateway).await);
    let mut first = call(&one, "ask", json!("first")).await;
    let mut second = call(&two, "ask", json!("second")).await;
    let (asked_first, asked_second) = (first.message().await, second.message().await);
    assert_ne!(asked_first["id"], asked_second["id"]);
    // An answer of another session is nobody's.
    assert_eq!(two.post(accept(&asked_first, "stolen").to_string()).await.status(), 202);
    answer(&two, &asked_second, "2").await;
    answer(&one, &asked_first, "1").await;
    assert_eq!(told(&first.answer().await)["result"]["content"]["env"], "1");
    assert_eq!(told(&second.answer().await)["result"]["content"]["env"], "2");
}

#[tokio::test]
async fn an_ask_aside_goes_to_the_one_call_in_flight_also_without_a_stream_of_the_client() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    // The client has opened no stream, and the first call comes at once.
    let mut reply = call(&session, "ask-aside", json!("g-1")).await;
    let asked = reply.message().await;
    answer(&session, &asked, "aside").await;
    let told = told(&reply.answer().await);
    assert_eq!((&told["id"], &told["result"]["content"]["env"]), (&json!("g-1"), &json!("aside")));
    assert_eq!(streams_of_sessions(&asking.backend), 1);
}

#[tokio::test]
async fn an_ask_outside_of_calls_goes_to_the_clients_stream() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    let mut standalone = session.get(None).await;
    asking.stream().await.event(&elicitation(&json!(5))).await;
    let asked = standalone.message().await;
    answer(&session, &asked, "idle").await;
    let answered = asking.backend.wait_for("answer").await;
    assert_eq!(
        (&answered.body["id"], &answered.body["result"]["content"]["env"]),
        (&json!(5), &json!("idle"))
    );
}

#[tokio::test]
async fn an_ask_outside_of_calls_waits_for_a_client_that_opens_its_stream_later() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    asking.stream().await.event(&elicitation(&json!(5))).await;
    let mut standalone = session.get(None).await;
    let asked = standalone.message().await;
    answer(&session, &asked, "later").await;
    assert_eq!(asking.backend.wait_for("answer").await.body["id"], 5);
}

#[tokio::test]
async fn a_backend_whose_stream_hangs_holds_up_no_call() {
    let backend = Backend::start(|r| async move {
        let is_probe = r.header("mcp-session-id").is_empty();
        if r.rpc() == "GET" && !is_probe { std::future::pending().await } else { legacy(&r, "s") }
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    let started = std::time::Instant::now();
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn r030_r106_an_ask_that_the_client_did_not_declare_is_refused_by_the_gateway() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let params = json!({ "name": "ask", "arguments": { "id": "e" } });
    let replies = [
        gateway.session().await.request("tools/call", params.clone()).await,
        gateway.modern().request("tools/call", params).await,
    ];
    for reply in replies {
        let messages = reply.messages().await;
        assert_eq!(messages.len(), 1, "the client sees the answer alone: {messages:?}");
        assert_eq!(told(&messages[0])["error"]["code"], -32601);
    }
}

#[tokio::test]
async fn a_ping_of_the_backend_is_answered_by_the_gateway() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    let messages = call(&session, "ping", json!("p-1")).await.messages().await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(told(&messages[0]), json!({ "jsonrpc": "2.0", "id": "p-1", "result": {} }));
    asking.stream().await.event(&json!({ "jsonrpc": "2.0", "id": 9, "method": "ping" })).await;
    let pong = asking.backend.wait_for_nth("answer", 2).await;
    assert_eq!(pong.body, json!({ "jsonrpc": "2.0", "id": 9, "result": {} }));
}

#[tokio::test]
async fn an_ask_that_the_backend_takes_back_is_taken_back_from_the_client() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    let mut reply = call(&session, "withdraw", json!("w-1")).await;
    let asked = reply.message().await;
    asking.proceed.send_replace(true);
    let withdrawn = reply.message().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
    assert_eq!(text(&reply.answer().await), "\"never mind\"");
    // Too late: accepted and forgotten.
    assert_eq!(session.post(accept(&asked, "late").to_string()).await.status(), 202);
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    let answers = asking.backend.requests_of("answer");
    assert!(answers.iter().all(|r| r.body.get("result").is_none()), "{answers:?}");
}

#[tokio::test]
async fn changes_of_the_clients_roots_reach_the_backend() {
    let asking = Asking::start().await;
    let gateway = in_front_of(&asking.backend, "era: legacy", "").await;
    let session = who_can_be_asked(&gateway).await;
    assert_eq!(text(&session.tool("echo", json!({})).await), "ok");
    assert_eq!(session.notify("notifications/roots/list_changed", json!({})).await.status(), 202);
    let told = asking.backend.wait_for("notifications/roots/list_changed").await;
    assert_eq!(told.header("mcp-session-id"), "s");
}

#[tokio::test]
async fn a_stream_that_the_backend_closes_is_taken_up_again_and_the_client_is_let_go_meanwhile() {
    let gets = Arc::new(Mutex::new(Vec::new()));
    let seen = gets.clone();
    let backend = Backend::start(move |r| {
        let seen = seen.clone();
        async move {
            let done =
                |r: &Request| json!({ "jsonrpc": "2.0", "id": r.id(), "result": text_result("resumed") });
            match r.rpc() {
                "tools/call" => {
                    let (reply, stream) = Reply::stream();
                    *seen.lock().unwrap() = vec![done(&r)];
                    stream.raw("id: a-1\nretry: 20\ndata:\n\n").await;
                    reply
                }
                // Polled once in vain, then answered.
                "GET" if r.header("last-event-id") == "a-1" => {
                    let (reply, stream) = Reply::stream();
                    stream.raw("id: a-2\nretry: 20\ndata:\n\n").await;
                    reply
                }
                "GET" if r.header("last-event-id") == "a-2" => {
                    let (reply, stream) = Reply::stream();
                    let answer = seen.lock().unwrap().pop().unwrap();
                    stream.event_with_id("a-3", &answer).await;
                    reply
                }
                _ => legacy(&r, "s"),
            }
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let session = gateway.session().await;
    let mut stream = session.request("tools/call", json!({ "name": "anything", "arguments": {} })).await;
    let (mut last, mut retry) = (None, None);
    while let Some(event) = stream.event().await {
        last = event.id.map(|id| String::from_utf8_lossy(&id).into_owned()).or(last);
        retry = event.retry.or(retry);
    }
    assert_eq!(retry, Some(20), "the client is told when to come back");
    let answer = session.get(last.as_deref()).await.message().await;
    assert_eq!(answer["result"], text_result("resumed"));
    assert_eq!(backend.count("tools/call"), 1);
    assert_eq!(streams_of_sessions(&backend), 2);
}
