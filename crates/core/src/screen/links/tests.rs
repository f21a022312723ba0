use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::*;
use crate::backend::BackendName;
use crate::call::AskKey;
use crate::glob::Glob;
use crate::screen::Trust;

fn trusted(hosts: &[&str]) -> Trusted {
    let hosts = hosts.iter().map(|host| Glob::parse(host).unwrap()).collect();
    Trusted {
        name: BackendName::parse("gh").unwrap(),
        trust: Trust { hosts, ..Trust::default() },
        list_timeout: Duration::from_secs(1),
        reads: Mutex::default(),
    }
}

fn value(message: &Message) -> Value {
    serde_json::from_slice(message.bytes()).unwrap()
}

fn elicitation(url: &str) -> Value {
    json!({ "mode": "url", "url": url, "message": "Sign in", "elicitationId": "7" })
}

fn round(params: &Value, resume: Resume) -> (Event, oneshot::Receiver<Message>) {
    let (reply, answer) = oneshot::channel();
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params });
    let request = Message::parse(request.to_string().into()).unwrap();
    let reply = (resume == Resume::Live).then(|| reply.into());
    let asks = [Ask { key: AskKey::next(), request, reply }].into_iter().collect();
    (Event::Asks(Box::new(Round { asks, resume, source: None })), answer)
}

#[tokio::test]
async fn t94_a_backend_leads_users_to_its_own_host_and_to_those_that_are_named_alone() {
    let trusted = trusted(&["mcp.gh.example", "*.login.example", "::1"]);
    for url in [
        "https://mcp.gh.example/x?y=1",
        "http://MCP.gh.example:8080/",
        "https://a.login.example/",
        "https://[::1]/x",
    ] {
        let (event, _answer) = round(&elicitation(url), Resume::Live);
        let Some(Event::Asks(passed)) = trusted.open(event, true) else { panic!("{url}") };
        let params = &value(&passed.asks[0].request)["params"];
        assert_eq!(
            *params,
            json!({ "mode": "url", "url": url, "message": "[gh] Sign in", "elicitationId": "7" })
        );
    }
    for url in [
        "https://evil.example/",
        "https://mcp.gh.example@evil.example/",
        "https://evil.example/mcp.gh.example",
        "https://login.example/",
        "https://mcp.gh.example.evil.example",
        "javascript:alert(1)//mcp.gh.example",
        "file:///etc/passwd",
        "//mcp.gh.example/",
        "https:\\\\evil.example\\@mcp.gh.example",
        "https://mcp.gh.example\\@evil.example",
        "https://mcp.gh.example@mcp.gh.example/",
        "https://mcp.gh.example/\n",
        "https://mcp.gh.example.",
        "",
    ] {
        // A backend that waits is told that nobody is asked.
        let (event, answer) = round(&elicitation(url), Resume::Live);
        assert!(trusted.open(event, true).is_none(), "{url}");
        assert_eq!(value(&answer.await.unwrap())["error"]["code"], -32602);
        // One that has ended its call ends it: there is nobody else to tell.
        let (event, _) = round(&elicitation(url), Resume::State(None));
        let Some(Event::Done(told)) = trusted.open(event, true) else { panic!("{url}") };
        let result = &value(&told.message)["result"];
        assert_eq!(result["isError"], true);
        assert!(
            result["content"][0]["text"]
                .as_str()
                .unwrap()
                .starts_with("The server \"gh\" wants the user to open")
        );
        let (event, _) = round(&elicitation(url), Resume::State(None));
        assert!(matches!(trusted.open(event, false), Some(Event::Fail(_))));
        // So does the error of 2025-11-25.
        let required = |url: &str| {
            let data = json!({ "elicitations": [elicitation(url)] });
            let error = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32042, "message": "?", "data": data } });
            let message = Message::parse(error.to_string().into()).unwrap();
            Event::Done(Reply { message, shape: Shape::Plain })
        };
        let Some(Event::Done(told)) = trusted.open(required(url), true) else { panic!("{url}") };
        assert_eq!(value(&told.message)["result"]["isError"], true);
        let Some(Event::Done(passed)) = trusted.open(required("https://mcp.gh.example/"), true) else {
            panic!()
        };
        let first = &value(&passed.message)["error"]["data"]["elicitations"][0];
        assert_eq!(first["message"], "[gh] Sign in");
    }
    // A form leads nowhere.
    let form = json!({ "message": "?", "requestedSchema": {}, "url": "https://evil.example" });
    let (event, _answer) = round(&form, Resume::Live);
    let Some(Event::Asks(passed)) = trusted.open(event, true) else { panic!() };
    assert_eq!(value(&passed.asks[0].request)["params"], form);
}

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_not_asked() {
    let trusted = trusted(&["a.example"]);
    for params in [
        r#"{"mode":"url","url":"https://a.example/","url":"https://evil.example/"}"#,
        r#"{"mode":"form","mode":"url","url":"https://evil.example/"}"#,
        r#"{"mode":"form","\u006dode":"url","url":"https://evil.example/"}"#,
    ] {
        let (event, answer) = round(&json!({}), Resume::Live);
        let Event::Asks(mut asked) = event else { panic!() };
        let request = &asked.asks[0].request;
        asked.asks[0].request = Edit::new(request).set(Field::Params, params).into_message();
        assert!(trusted.open(Event::Asks(asked), true).is_none(), "{params}");
        assert_eq!(value(&answer.await.unwrap())["error"]["code"], -32602);
    }
    // A message that says of one request two things is not passed on as it is.
    let (event, _) = round(&json!({}), Resume::State(None));
    let Event::Asks(mut asked) = event else { panic!() };
    let request = &asked.asks[0].request;
    let method = "\"roots/list\"";
    asked.asks[0].request = Edit::new(request).set(Field::Method, method).into_message();
    let twice = br#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"1":{"method":"roots/list","method":"elicitation/create","params":{"mode":"url","url":"https://evil.example/"}}}}}"#;
    asked.source = Some(Message::parse(twice[..].into()).unwrap());
    let Some(Event::Asks(passed)) = trusted.open(Event::Asks(asked), true) else { panic!() };
    assert!(!passed.source.unwrap().bytes().windows(4).any(|part| part == b"evil"));
    // A code is a number, however it is written.
    for code in ["-32042", "-32042.0", "-3.2042e4"] {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"?","data":{{"elicitations":[{{"url":"https://evil.example/"}}]}}}}}}"#
        );
        let reply = Reply { message: Message::parse(text.into()).unwrap(), shape: Shape::Plain };
        let Some(Event::Done(told)) = trusted.open(Event::Done(reply), true) else { panic!("{code}") };
        assert_eq!(value(&told.message)["result"]["isError"], true, "{code}");
    }
}

#[test]
fn what_a_task_asks_leads_nowhere_else_either() {
    let trusted = trusted(&["a.example"]);
    let asks = |url: &str| json!({ "k": { "method": "elicitation/create", "params": elicitation(url) }, "r": { "method": "roots/list" } });
    let open = |url: &str| {
        let text = json!({ "jsonrpc": "2.0", "id": 1, "result": { "status": "input_required", "inputRequests": asks(url) } });
        let message = Message::parse(text.to_string().into()).unwrap();
        trusted.open(Event::Done(Reply { message, shape: Shape::Marked }), false).unwrap()
    };
    let Event::Done(passed) = open("https://a.example/") else { panic!() };
    let passed = &value(&passed.message)["result"];
    assert_eq!(passed["inputRequests"]["k"]["params"]["message"], "[gh] Sign in");
    assert_eq!(
        (&passed["inputRequests"]["r"], &passed["status"]),
        (&json!({ "method": "roots/list" }), &json!("input_required"))
    );
    assert!(matches!(open("https://evil.example/"), Event::Fail(_)));
    let told = |url: &str| {
        let params = json!({ "taskId": "7", "inputRequests": asks(url) });
        let text = json!({ "jsonrpc": "2.0", "method": "notifications/tasks", "params": params });
        let message = Message::parse(text.to_string().into()).unwrap();
        let Some(Event::Notify(message)) = trusted.open(Event::Notify(message), false) else { panic!() };
        value(&message)["params"].clone()
    };
    assert_eq!(told("https://a.example/")["inputRequests"]["k"]["params"]["message"], "[gh] Sign in");
    assert_eq!(told("https://evil.example/"), json!({ "taskId": "7" }));
}

#[test]
fn the_message_in_which_asks_came_says_the_same_and_keeps_the_rest() {
    let trusted = trusted(&["*.example"]);
    let params = elicitation("https://a.example/");
    let came_in = |message: &Value| {
        let (event, _) = round(&params, Resume::State(None));
        let Event::Asks(mut round) = event else { panic!() };
        round.asks[0].request =
            Edit::new(&round.asks[0].request).id(&drawbridge_wire::Id::from_text("k")).into_message();
        round.source = Some(Message::parse(message.to_string().into()).unwrap());
        let Some(Event::Asks(passed)) = trusted.open(Event::Asks(round), true) else { panic!() };
        value(&passed.source.unwrap())
    };
    let ask = json!({ "method": "elicitation/create", "params": params });
    let result = json!({ "resultType": "input_required", "inputRequests": { "k": ask }, "x": [1] });
    let passed = came_in(&json!({ "jsonrpc": "2.0", "id": 1, "result": result }));
    assert_eq!(passed["result"]["inputRequests"]["k"]["params"]["message"], "[gh] Sign in");
    assert_eq!(
        (&passed["result"]["x"], &passed["result"]["resultType"]),
        (&json!([1]), &json!("input_required"))
    );
    let data = json!({ "elicitations": [params], "x": 2 });
    let error = json!({ "code": -32042, "message": "first", "data": data });
    let passed = came_in(&json!({ "jsonrpc": "2.0", "id": 1, "error": error }));
    assert_eq!(passed["error"]["data"]["elicitations"][0]["message"], "[gh] Sign in");
    assert_eq!((&passed["error"]["data"]["x"], &passed["error"]["message"]), (&json!(2), &json!("first")));
}
