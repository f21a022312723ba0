//! Stateless clients in front of backends with sessions: the call waits while its client is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drawbridge_testkit::backend::{Backend, Reply, Request, Stream, legacy, text_result};
use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{ASKING, all, answer_to, demos, modern, retry};
use crate::backends::{in_front_of, message, spawn};

/// A backend whose tool `plan` does what the argument `steps` says, one after the other, on the stream of its call:
///
/// | step | does |
/// |---|---|
/// | `{"ask": id, ...params}` | asks (a form, unless `method` says otherwise) and goes on |
/// | `{"await": id}` | waits for the answer to that ask |
/// | `{"withdraw": id}` | takes the ask back |
/// | `{"progress": n}` | tells its progress |
/// | `{"log": level}` | logs |
///
/// and then says what answers it got.
pub(crate) struct Planned {
    pub(crate) backend: Backend,
    /// How many plans were begun.
    begun: Arc<AtomicUsize>,
}

fn ask_of(step: &Value) -> Value {
    let method = step["method"].as_str().unwrap_or("elicitation/create");
    let params = match &step["params"] {
        Value::Null => {
            json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } })
        }
        given => given.clone(),
    };
    json!({ "jsonrpc": "2.0", "id": step["ask"], "method": method, "params": params })
}

fn note(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

async fn follow(plan: Request, stream: Stream, mut answers: broadcast::Receiver<Value>) {
    let (mut came, mut heard) = (Vec::new(), Vec::new());
    for step in plan.body["params"]["arguments"]["steps"].as_array().unwrap() {
        if step.get("ask").is_some() {
            stream.event(&ask_of(step)).await;
        } else if let Some(id) = step.get("await") {
            let answer = loop {
                if let Some(at) = came.iter().position(|answer: &Value| answer["id"] == *id) {
                    break came.remove(at);
                }
                tokio::select! {
                    answer = answers.recv() => came.push(answer.unwrap()),
                    () = stream.gone() => return,
                }
            };
            heard.push(answer);
        } else if let Some(id) = step.get("withdraw") {
            stream.event(&note("notifications/cancelled", &json!({ "requestId": id }))).await;
        } else if let Some(progress) = step.get("progress") {
            let token = &plan.body["params"]["_meta"]["progressToken"];
            let params = json!({ "progressToken": token, "progress": progress });
            stream.event(&note("notifications/progress", &params)).await;
        } else if let Some(level) = step.get("log") {
            let params = json!({ "level": level, "data": level });
            stream.event(&note("notifications/message", &params)).await;
        }
    }
    let result = text_result(&json!(heard).to_string());
    stream.event(&json!({ "jsonrpc": "2.0", "id": plan.id(), "result": result })).await;
}

impl Planned {
    pub(crate) async fn start() -> Self {
        let (answers, _) = broadcast::channel::<Value>(64);
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let backend = Backend::start(move |r| {
            let (answers, count) = (answers.clone(), count.clone());
            async move {
                match r.rpc() {
                    "answer" => {
                        let _ = answers.send(r.body.clone());
                        Reply::status(202)
                    }
                    "tools/call" if r.name() == "plan" => {
                        count.fetch_add(1, Ordering::Relaxed);
                        let (reply, stream) = Reply::stream();
                        spawn(follow(r, stream, answers.subscribe()));
                        reply
                    }
                    _ => legacy(&r, "s"),
                }
            }
        })
        .await;
        Self { backend, begun }
    }

    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

pub(crate) fn plan(steps: &Value) -> Value {
    json!({ "name": "plan", "arguments": { "steps": steps } })
}

/// The answers that a plan got, from its result.
pub(crate) fn heard(answer: &Value) -> Vec<Value> {
    serde_json::from_str(text(answer)).unwrap()
}

pub(crate) fn accept(value: &str) -> Value {
    json!({ "action": "accept", "content": { "v": value } })
}

/// The result of a request that asks.
pub(crate) fn asked(answer: &Value) -> Value {
    assert_eq!(answer["result"]["resultType"], "input_required", "{answer}");
    answer["result"].clone()
}

pub(crate) fn keys(asked: &Value) -> Vec<String> {
    asked["inputRequests"].as_object().unwrap().keys().cloned().collect()
}

#[tokio::test]
async fn r101_a_call_that_asks_is_parked_and_goes_on_with_the_retry() {
    let (_demo, gateways) = demos("legacy").await;
    for (transport, gateway) in &gateways {
        for (tool, expected) in ASKING {
            let params = json!({ "name": tool, "arguments": {} });
            let asked = asked(&modern(gateway).call("tools/call", params.clone()).await);
            let (key, request) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
            assert!(request.get("id").is_none() && request.get("jsonrpc").is_none(), "{request}");
            let answer = answer_to(request["method"].as_str().unwrap());
            // From another connection.
            let params = retry(&params, json!({ key: answer }), &asked);
            let answer = modern(gateway).call("tools/call", params).await;
            assert_eq!(answer["result"]["resultType"], "complete", "{transport}: {answer}");
            assert_eq!(text(&answer), expected, "{transport}");
        }
    }
}

#[tokio::test]
async fn r101_the_backend_sees_one_call_and_the_answer_under_its_own_id() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    for id in [json!(7), json!("7"), json!("é\u{1f600}")] {
        let params = plan(&json!([{ "ask": id }, { "await": id }]));
        let asked = asked(&modern.call("tools/call", params.clone()).await);
        let key = keys(&asked).remove(0);
        let answer = modern.call("tools/call", retry(&params, json!({ key: accept("x") }), &asked)).await;
        assert_eq!(heard(&answer), [json!({ "jsonrpc": "2.0", "id": id, "result": accept("x") })]);
    }
    assert_eq!((planned.begun(), planned.backend.count("tools/call")), (3, 3));
    let call = planned.backend.requests_of("tools/call").remove(0);
    let text = String::from_utf8(call.text.to_vec()).unwrap();
    assert!(!text.contains("inputResponses") && !text.contains("io.modelcontextprotocol"), "{text}");
}

#[tokio::test]
async fn r082_several_asks_come_in_one_round_and_what_is_missing_is_asked_for_again() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let steps =
        json!([{ "ask": 1 }, { "ask": 2 }, { "await": 2 }, { "await": 1 }, { "ask": 3 }, { "await": 3 }]);
    let params = plan(&steps);
    let first = asked(&modern.call("tools/call", params.clone()).await);
    let both = keys(&first);
    assert_eq!(both.len(), 2);
    // One answer, and one to nothing.
    let answers = json!({ both[0].as_str(): accept("1"), "made-up": { "action": "decline" } });
    let second = asked(&modern.call("tools/call", retry(&params, answers, &first)).await);
    assert_eq!(keys(&second), both[1..], "only what is missing");
    let answers = json!({ both[1].as_str(): accept("2") });
    let third = asked(&modern.call("tools/call", retry(&params, answers, &second)).await);
    let last = keys(&third);
    assert!(last.len() == 1 && !both.contains(&last[0]), "keys are never used twice: {last:?}");
    let answers = json!({ last[0].as_str(): accept("3") });
    let answer = modern.call("tools/call", retry(&params, answers, &third)).await;
    let heard = heard(&answer);
    let told = |n: usize| (&heard[n]["id"], &heard[n]["result"]["content"]["v"]);
    assert_eq!(
        [told(0), told(1), told(2)],
        [(&json!(2), &json!("2")), (&json!(1), &json!("1")), (&json!(3), &json!("3"))]
    );
    assert_eq!(planned.begun(), 1);
}

#[tokio::test]
async fn r082_malformed_answers_are_refused_and_the_call_waits_on() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    let key = keys(&asked).remove(0);
    for bad in
        [json!("no"), json!([]), json!({ key.as_str(): "yes" }), json!({ key.as_str(): null }), json!(7)]
    {
        let answer = modern.call("tools/call", retry(&params, bad.clone(), &asked)).await;
        assert_eq!(answer["error"]["code"], -32602, "{bad}: {answer}");
    }
    for bad in [json!({}), json!({ "action": "yes" }), json!({ "action": "accept", "content": "x" })] {
        let bad = json!({ key.as_str(): bad });
        let answer = modern.call("tools/call", retry(&params, bad, &asked)).await;
        assert!(message(&answer).contains("elicitation/create"), "it says what is wrong: {answer}");
    }
    let answer = modern.call("tools/call", retry(&params, json!({ key: accept("1") }), &asked)).await;
    assert_eq!(heard(&answer).len(), 1);
}

#[tokio::test]
async fn r079_a_state_is_good_for_its_own_call_only() {
    let planned = Planned::start().await;
    let gateway =
        in_front_of(&planned.backend, "era: legacy", "endpoints: { other: { backends: [scripted] } }").await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    let key = keys(&asked).remove(0);
    let good = retry(&params, json!({ key: accept("1") }), &asked);
    let mut other_arguments = good.clone();
    other_arguments["arguments"]["more"] = json!(1);
    let mut other_tool = good.clone();
    other_tool["name"] = json!("echo");
    let mut forged = good.clone();
    let state = asked["requestState"].as_str().unwrap();
    let other_end = if state.ends_with('x') { "y" } else { "x" };
    forged["requestState"] = json!(format!("{}{other_end}", &state[..state.len() - 1]));
    let mut cut = good.clone();
    cut["requestState"] = json!(&state[..state.len() / 2]);
    let mut no_text = good.clone();
    no_text["requestState"] = json!({ "state": state });
    for bad in [other_arguments, other_tool, forged, cut, no_text] {
        let answer = modern.call("tools/call", bad.clone()).await;
        assert_eq!(answer["error"]["code"], -32602, "{bad}: {answer}");
    }
    let elsewhere = Modern::new(&gateway.client(), "/mcp/other", all());
    assert_eq!(elsewhere.call("tools/call", good.clone()).await["error"]["code"], -32602);
    let prompt = json!({ "name": "plan", "arguments": params["arguments"], "requestState": state });
    assert_eq!(modern.call("prompts/get", prompt).await["error"]["code"], -32602);
    assert_eq!(planned.begun(), 1, "no call began by any of them");
    assert_eq!(heard(&modern.call("tools/call", good).await).len(), 1, "and the right one works still");
}

#[tokio::test]
async fn r081_a_state_that_is_presented_twice_runs_nothing_twice() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    let key = keys(&asked).remove(0);
    let again = retry(&params, json!({ key: accept("1") }), &asked);
    let all = (0..8).map(|_| modern.call("tools/call", again.clone()));
    let answers = futures_util::future::join_all(all).await;
    let good = answers.iter().filter(|answer| answer["result"].is_object()).count();
    assert_eq!(good, 1, "{answers:?}");
    let refused: Vec<_> = answers.iter().filter(|answer| answer["error"]["code"] == -32602).collect();
    assert_eq!(refused.len(), 7, "{answers:?}");
    assert!(message(refused[0]).contains("used already"), "{}", refused[0]);
    assert_eq!((planned.begun(), planned.backend.count("answer")), (1, 1));
}

#[tokio::test]
async fn r085_a_call_whose_client_never_comes_back_is_answered_cancelled_and_forgotten() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "limits: { answer_timeout: 1s }").await;
    let modern = modern(&gateway);
    let sample = json!({ "messages": [], "maxTokens": 1 });
    let steps = json!([
        { "ask": 1 }, { "ask": 2, "method": "sampling/createMessage", "params": sample }, { "ask": 3, "method": "roots/list", "params": {} },
        { "await": 1 }, { "await": 9 },
    ]);
    let params = plan(&steps);
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    planned.backend.wait_for_nth("answer", 3).await;
    let answers = planned.backend.requests_of("answer");
    let to = |id: u64| &answers.iter().find(|r| r.body["id"] == id).unwrap().body;
    assert_eq!(to(1)["result"], json!({ "action": "cancel" }));
    assert_eq!(to(2)["error"]["code"], -1);
    assert!(to(3)["error"].is_object());
    // It did not end by itself, so it is told that nobody waits.
    let cancelled = planned.backend.wait_for("notifications/cancelled").await;
    let call = planned.backend.requests_of("tools/call").remove(0);
    assert_eq!(cancelled.body["params"]["requestId"], call.id());
    let key = keys(&asked).remove(0);
    let late = modern.call("tools/call", retry(&params, json!({ key: accept("1") }), &asked)).await;
    assert_eq!(late["error"]["code"], -32602);
    assert!(message(&late).contains("expired"), "{late}");
    assert_eq!(crate::backends::fault(&late), ("outcome_unknown", "unsafe"));
    assert_eq!(planned.begun(), 1);
}

#[tokio::test]
async fn an_ask_that_is_taken_back_while_its_call_is_parked_is_asked_for_no_more() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "ask": 2 }, { "await": 2 }, { "withdraw": 1 }]));
    let first = asked(&modern.call("tools/call", params.clone()).await);
    let answers = json!({ keys(&first)[1].as_str(): accept("2") });
    let second = asked(&modern.call("tools/call", retry(&params, answers, &first)).await);
    assert_eq!(keys(&second), keys(&first)[..1]);
    // The backend has ended the call meanwhile; whatever the client says, its answer is there.
    planned.backend.wait_for("answer").await;
    let answers = json!({ keys(&second)[0].as_str(): accept("1") });
    let answer = modern.call("tools/call", retry(&params, answers, &second)).await;
    assert_eq!(heard(&answer).len(), 1, "{answer}");
}

#[tokio::test]
async fn r106_what_this_request_does_not_declare_is_refused_by_the_gateway() {
    let planned = Planned::start().await;
    let settings = "era: legacy, elicitation_hosts: [x.example]";
    let gateway = in_front_of(&planned.backend, settings, "").await;
    let with = |capabilities: Value| Modern::new(&gateway.client(), "/mcp", capabilities);
    let url = json!({ "mode": "url", "message": "?", "url": "https://x.example", "elicitationId": "e" });
    let tools = json!({ "messages": [], "maxTokens": 1, "tools": [] });
    for (capabilities, step) in [
        (json!({}), json!({ "ask": 1 })),
        (json!({ "elicitation": {} }), json!({ "ask": 1, "params": url })),
        (json!({ "elicitation": { "url": {} } }), json!({ "ask": 1 })),
        (json!({ "sampling": {} }), json!({ "ask": 1, "method": "sampling/createMessage", "params": tools })),
        (json!({ "sampling": {} }), json!({ "ask": 1, "method": "roots/list", "params": {} })),
        (all(), json!({ "ask": 1, "method": "made/up", "params": {} })),
    ] {
        let answer =
            with(capabilities.clone()).call("tools/call", plan(&json!([step, { "await": 1 }]))).await;
        assert_eq!(heard(&answer)[0]["error"]["code"], -32601, "{capabilities} {step}");
    }
}

#[tokio::test]
async fn a_retry_that_declares_less_is_not_asked_again() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    let asked = asked(&modern(&gateway).call("tools/call", params.clone()).await);
    let less = Modern::new(&gateway.client(), "/mcp", json!({ "sampling": {} }));
    let answer = less.call("tools/call", retry(&params, json!({}), &asked)).await;
    assert_eq!(heard(&answer)[0]["error"]["code"], -32601);
}

#[tokio::test]
async fn url_elicitations_lose_the_id_that_only_sessions_have() {
    let planned = Planned::start().await;
    let settings = "era: legacy, elicitation_hosts: [x.example]";
    let gateway = in_front_of(&planned.backend, settings, "").await;
    let url = json!({ "mode": "url", "message": "?", "url": "https://x.example", "elicitationId": "e" });
    let params = plan(&json!([{ "ask": 1, "params": url }, { "await": 1 }]));
    let asked = asked(&modern(&gateway).call("tools/call", params.clone()).await);
    let key = keys(&asked).remove(0);
    let expected = json!({ "mode": "url", "message": "[scripted] ?", "url": "https://x.example" });
    assert_eq!(asked["inputRequests"][key.as_str()]["params"], expected);
    let retry = retry(&params, json!({ key: { "action": "accept" } }), &asked);
    let answer = modern(&gateway).call("tools/call", retry).await;
    assert_eq!(heard(&answer)[0]["result"], json!({ "action": "accept" }));
}

#[tokio::test]
async fn progress_and_logs_after_a_retry_are_those_that_the_retry_wants() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let steps = json!([{ "progress": 1 }, { "log": "error" }, { "ask": 1 }, { "await": 1 }, { "progress": 2 }, { "log": "error" }, { "log": "debug" }]);
    let mut params = plan(&steps);
    params["_meta"] = json!({ "progressToken": "first" });
    let messages = modern.request("tools/call", params.clone()).await.messages().await;
    assert_eq!(messages.len(), 2, "no level, no logs: {messages:?}");
    assert_eq!(messages[0]["params"], json!({ "progressToken": "first", "progress": 1 }));
    let asked = asked(&messages[1]);
    let key = keys(&asked).remove(0);
    let mut params = retry(&params, json!({ key: accept("1") }), &asked);
    params["_meta"] = json!({ "progressToken": 2, "io.modelcontextprotocol/logLevel": "warning" });
    let messages = modern.request("tools/call", params).await.messages().await;
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert_eq!(messages[0]["params"], json!({ "progressToken": 2, "progress": 2 }));
    assert_eq!(messages[1]["params"]["level"], "error");
    assert_eq!(heard(&messages[2]).len(), 1);
}

#[tokio::test]
async fn r112_a_client_that_leaves_before_it_is_asked_or_after_its_retry_cancels_the_call() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "progress": 1 }, { "await": 9 }]));
    let mut body = modern.body("tools/call", params);
    body["params"]["_meta"]["progressToken"] = json!(1);
    let mut reply = modern.post_with(&body, &[]).await;
    assert_eq!(reply.message().await["method"], "notifications/progress");
    drop(reply);
    drop(modern);
    planned.backend.wait_for("notifications/cancelled").await;

    let modern = super::modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }, { "progress": 1 }, { "await": 9 }]));
    let mut first = params.clone();
    first["_meta"] = json!({ "progressToken": 1 });
    let asked = asked(&modern.call("tools/call", first).await);
    // The connection of the first request is gone, and the call waits all the same.
    drop(modern);
    let modern = super::modern(&gateway);
    let key = keys(&asked).remove(0);
    let mut params = retry(&params, json!({ key: accept("1") }), &asked);
    params["_meta"] = json!({ "progressToken": 1 });
    let mut reply = modern.request("tools/call", params).await;
    assert_eq!(reply.message().await["method"], "notifications/progress");
    assert_eq!(planned.backend.count("notifications/cancelled"), 1);
    drop((reply, modern));
    planned.backend.wait_for_nth("notifications/cancelled", 2).await;
}

#[tokio::test]
async fn r105_an_error_that_wants_urls_opened_becomes_a_round_and_the_retry_calls_afresh() {
    let backend = Backend::start(|r| async move {
        let elicitations = json!([
            { "mode": "url", "elicitationId": "e1", "url": "https://a.example", "message": "A" },
            { "mode": "url", "elicitationId": "e2", "url": "https://b.example", "message": "B" },
        ]);
        if r.name() != "locked" {
            return legacy(&r, "s");
        }
        let first = r.body["params"]["arguments"]["first"].as_bool();
        let error =
            json!({ "code": -32042, "message": "open these", "data": { "elicitations": elicitations } });
        match first {
            Some(true) => Reply::json(&json!({ "jsonrpc": "2.0", "id": r.id(), "error": error })),
            _ => Reply::result(&r, text_result("open")),
        }
    })
    .await;
    let settings = "era: legacy, elicitation_hosts: [\"*.example\"]";
    let gateway = in_front_of(&backend, settings, "").await;
    let params = json!({ "name": "locked", "arguments": { "first": true } });
    let asked = asked(&modern(&gateway).call("tools/call", params.clone()).await);
    assert!(asked.get("requestState").is_none(), "nothing waits: {asked}");
    let requests: Vec<_> = asked["inputRequests"].as_object().unwrap().values().collect();
    let expected = json!({ "mode": "url", "url": "https://a.example", "message": "[scripted] A" });
    assert_eq!((requests.len(), &requests[0]["params"]), (2, &expected));
    let answers = json!({ "url-1": { "action": "accept" }, "url-2": { "action": "accept" } });
    let mut again = params.clone();
    again["inputResponses"] = answers;
    self::asked(&modern(&gateway).call("tools/call", again).await);
    assert_eq!(backend.count("tools/call"), 2);
    assert!(
        !String::from_utf8(backend.requests_of("tools/call")[1].text.to_vec())
            .unwrap()
            .contains("inputResponses")
    );
    // Who can't open URLs gets the error, with a code of its own era.
    let without = Modern::new(&gateway.client(), "/mcp", json!({ "elicitation": {} }));
    assert_eq!(without.call("tools/call", params.clone()).await["error"]["code"], -32603);
    // Clients with sessions know the error, if they can open URLs.
    let url = super::session(&gateway, "2025-11-25", json!({ "elicitation": { "url": {} } })).await;
    let error = url.call("tools/call", params.clone()).await["error"].clone();
    assert_eq!(
        (&error["code"], error["data"]["elicitations"].as_array().unwrap().len()),
        (&json!(-32042), 2)
    );
    let old = super::session(&gateway, "2025-06-18", json!({ "elicitation": {} })).await;
    assert_eq!(old.call("tools/call", params).await["result"]["isError"], true);
}

#[tokio::test]
async fn an_ask_aside_reaches_the_stateless_client_of_the_one_call_in_flight() {
    let (opened, streams) = tokio::sync::watch::channel(None::<Stream>);
    let opened = Arc::new(opened);
    let (answers, _) = broadcast::channel::<Value>(16);
    let backend = Backend::start(move |r| {
        let (opened, mut streams, answers) = (opened.clone(), streams.clone(), answers.clone());
        async move {
            match r.rpc() {
                "GET" if r.header("mcp-session-id") == "s" => {
                    let (reply, stream) = Reply::stream();
                    stream.raw(": open\n\n").await;
                    opened.send_replace(Some(stream));
                    reply
                }
                "answer" => {
                    let _ = answers.send(r.body.clone());
                    Reply::status(202)
                }
                "tools/call" if r.name() == "aside" => {
                    let mut heard = answers.subscribe();
                    let stream = streams.wait_for(Option::is_some).await.unwrap().clone().unwrap();
                    stream.event(&ask_of(&json!({ "ask": "g" }))).await;
                    let told = heard.recv().await.unwrap();
                    Reply::result(&r, text_result(&json!([told]).to_string()))
                }
                _ => legacy(&r, "s"),
            }
        }
    })
    .await;
    let gateway = in_front_of(&backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let params = json!({ "name": "aside", "arguments": {} });
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    let key = keys(&asked).remove(0);
    let answer = modern.call("tools/call", retry(&params, json!({ key: accept("1") }), &asked)).await;
    assert_eq!(heard(&answer)[0]["result"], accept("1"));
}

#[tokio::test]
async fn parked_calls_are_bounded_and_those_over_the_bound_end_in_an_error() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "limits: { max_parked_calls: 2 }").await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    for _ in 0..2 {
        asked(&modern.call("tools/call", params.clone()).await);
    }
    let full = modern.call("tools/call", params.clone()).await;
    assert_eq!(full["error"]["data"]["code"], "busy", "{full}");
    let told = planned.backend.wait_for("answer").await;
    assert_eq!(told.body["result"], json!({ "action": "cancel" }), "the backend waits for nobody");
}

#[tokio::test]
async fn a_gateway_that_stops_lets_parked_calls_end() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    asked(&modern(&gateway).call("tools/call", params).await);
    assert_eq!(gateway.stop().await.code(), Some(0));
    assert_eq!(planned.backend.wait_for("answer").await.body["result"], json!({ "action": "cancel" }));
}

#[tokio::test]
async fn a_backend_that_dies_while_a_call_is_parked_leaves_an_error_for_the_retry() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    let asked = asked(&modern.call("tools/call", params.clone()).await);
    planned.backend.cut_connections();
    let key = keys(&asked).remove(0);
    let answer = modern.call("tools/call", retry(&params, json!({ key: accept("1") }), &asked)).await;
    assert_eq!(answer["error"]["data"]["code"], "outcome_unknown", "{answer}");
    assert_eq!(planned.begun(), 1);
    eventually(PATIENCE, async || modern.tool("echo", json!({})).await["result"].is_object()).await;
}

#[tokio::test]
async fn the_log_level_of_a_stateless_request_is_set_in_the_session_of_the_backend() {
    let (_demo, gateways) = demos("legacy").await;
    for (transport, gateway) in &gateways {
        let modern = gateway.modern();
        for (level, expected) in
            [(None, 0), (Some("error"), 0), (Some("info"), 1), (Some("warning"), 0), (Some("debug"), 1)]
        {
            let mut params = json!({ "name": "log", "arguments": { "level": "info", "message": "hello" } });
            if let Some(level) = level {
                params["_meta"] = json!({ "io.modelcontextprotocol/logLevel": level });
            }
            let messages = modern.request("tools/call", params).await.messages().await;
            let logs = messages.iter().filter(|m| m["method"] == "notifications/message").count();
            assert_eq!(logs, expected, "{transport} {level:?}: {messages:?}");
        }
    }
}

#[tokio::test]
async fn a_retry_after_a_restart_is_not_told_to_call_again_without_a_look() {
    let planned = Planned::start().await;
    let gateway = in_front_of(&planned.backend, "era: legacy", "").await;
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    let asked = asked(&modern(&gateway).call("tools/call", params.clone()).await);
    let gateway = gateway.restart_after_kill().await;
    let key = keys(&asked).remove(0);
    let answer =
        modern(&gateway).call("tools/call", retry(&params, json!({ key: accept("1") }), &asked)).await;
    assert_eq!(answer["error"]["code"], -32602);
    assert_eq!(crate::backends::fault(&answer), ("outcome_unknown", "unsafe"));
    assert_eq!(planned.begun(), 1);
}

#[tokio::test]
async fn calls_whose_time_is_over_make_room_at_once() {
    let planned = Planned::start().await;
    let limits = "limits: { max_parked_calls: 1, answer_timeout: 300ms }";
    let gateway = in_front_of(&planned.backend, "era: legacy", limits).await;
    let modern = modern(&gateway);
    let params = plan(&json!([{ "ask": 1 }, { "await": 1 }]));
    asked(&modern.call("tools/call", params.clone()).await);
    eventually(PATIENCE, async || {
        modern.call("tools/call", params.clone()).await["result"]["resultType"] == "input_required"
    })
    .await;
}
