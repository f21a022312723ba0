//! What stateless backends get from the gateway, and what of their errors stays with it.

use drawbridge_testkit::backend::{Backend, Reply, Request, modern};
use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::{fault, in_front_of};

fn decoded(name: &str) -> String {
    drawbridge_wire::header::decode(name).expect("a name").into_owned()
}

/// Checks that the headers of a request say what its body says.
fn headers_match(r: &Request) {
    let meta = &r.body["params"]["_meta"];
    assert_eq!(r.header("mcp-protocol-version"), "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert!(meta["io.modelcontextprotocol/clientCapabilities"].is_object(), "{}", r.body);
    assert_eq!(r.header("mcp-method"), r.rpc());
    assert_eq!(r.header("mcp-session-id"), "");
    assert_eq!(r.headers.get_all("mcp-name").iter().count(), usize::from(r.rpc() == "tools/call"));
    if r.rpc() == "tools/call" {
        assert_eq!(decoded(r.header("mcp-name")), r.name());
    }
    for media in ["application/json", "text/event-stream"] {
        assert!(r.header("accept").contains(media));
    }
}

#[tokio::test]
async fn r056_headers_towards_a_modern_backend_match_its_body() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let session = gateway.session().await;
    let odd = "größe ändern";
    session.call("tools/list", json!({})).await;
    session.tool("echo", json!({})).await;
    session.tool(odd, json!({})).await;
    let modern = gateway.modern();
    modern.call("tools/list", json!({})).await;
    let body = modern.body("tools/call", json!({ "name": odd, "arguments": { "region": "eu" } }));
    let name = drawbridge_wire::header::encode(odd).into_owned();
    let reply = modern.post_with(&body, &[("mcp-name", &name), ("mcp-param-region", "eu")]).await;
    assert_eq!(text(&reply.answer().await), "ok");
    let seen = backend.requests();
    seen.iter().for_each(headers_match);
    assert_eq!(seen.last().unwrap().header("mcp-param-region"), "eu", "R055");
    assert_eq!(seen.iter().filter(|r| r.name() == odd).count(), 2);
}

#[tokio::test]
async fn r056_headers_match_bodies_that_were_rewritten() {
    let one = Backend::start(|r| async move { modern(&r) }).await;
    let two = Backend::start(|r| async move { modern(&r) }).await;
    let gateway =
        Gateway::setup().url("one", &one.url(), "auto").url("two", &two.url(), "auto").start().await;
    assert_eq!(text(&gateway.session().await.tool("one__echo", json!({})).await), "ok");
    assert_eq!(text(&gateway.modern().tool("two__echo", json!({})).await), "ok");
    for backend in [&one, &two] {
        // That it refuses a handshake is found out by trying one.
        backend.requests().iter().filter(|r| r.rpc() != "initialize").for_each(headers_match);
        assert_eq!(backend.count("initialize"), 1);
        assert_eq!(backend.requests_of("tools/call").iter().map(Request::name).collect::<Vec<_>>(), ["echo"]);
    }
}

/// A state that every careless decoder and encoder would change.
const STATE: &str = r#""v1.k\u00e9\/ \u2028 é+/==\"""#;

fn asks(r: &Request) -> Reply {
    let state = if r.name() == "stateless" { String::new() } else { format!(r#","requestState":{STATE}"#) };
    let asks = r#"{"env":{"method":"elicitation/create","params":{"message":"Which?","requestedSchema":{"type":"object","properties":{}}}}}"#;
    let id = r.id();
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"input_required","inputRequests":{asks}{state}}}}}"#
    );
    Reply::text(200, "application/json", text)
}

#[tokio::test]
async fn r083_a_request_state_is_echoed_byte_for_byte_and_none_is_invented() {
    let backend = Backend::start(|r| async move {
        let is_first = r.body["params"].get("inputResponses").is_none();
        if r.rpc() == "tools/call" && is_first && r.name() != "echo" { asks(&r) } else { modern(&r) }
    })
    .await;
    let gateway = in_front_of(&backend, "era: modern", "").await;
    let modern = Modern::new(&gateway.client(), "/mcp", json!({ "elicitation": { "form": {} } }));
    for tool in ["stateful", "stateless"] {
        let params = json!({ "name": tool, "arguments": {} });
        let asked = modern.request("tools/call", params.clone()).await.bytes().await;
        let asked: String = String::from_utf8(asked.to_vec()).unwrap();
        assert!(asked.contains("\"input_required\""));
        // The client carries a state of the gateway's, with the backend's inside.
        let asked: Value = serde_json::from_str(&asked).unwrap();
        let state = asked["result"]["requestState"].clone();
        assert_eq!(state.is_string(), tool == "stateful", "{asked}");
        // Another call in between has nothing of it.
        modern.tool("echo", json!({})).await;
        let mut body = modern.body("tools/call", params);
        body["params"]["inputResponses"] = json!({ "env": { "action": "accept", "content": {} } });
        body["params"]["requestState"] = json!("HERE");
        let text = match tool {
            "stateful" => body.to_string().replace("\"HERE\"", &state.to_string()),
            _ => body.to_string().replace(",\"requestState\":\"HERE\"", ""),
        };
        let own = Modern::headers(&body);
        let headers: Vec<_> = own.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let answer: Value = modern.client.post("/mcp", &headers, text).await.json().await;
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");

        let calls = backend.requests_of("tools/call");
        let [.., first, between, retry] = &calls[..] else { panic!("{} calls", calls.len()) };
        let text = |r: &Request| String::from_utf8(r.text.to_vec()).unwrap();
        assert_eq!(text(retry).contains(&format!("\"requestState\":{STATE}")), tool == "stateful");
        assert_eq!(text(retry).contains("requestState"), tool == "stateful");
        assert!(!text(between).contains("requestState"));
        assert_ne!(first.id(), retry.id(), "a retry has an id of its own");
    }
}

#[tokio::test]
async fn r110_errors_about_the_gateways_own_hop_are_not_relayed() {
    let backend = Backend::start(|r| async move {
        let data = match r.name() {
            "-32022" => json!({ "supported": ["2099-01-01"], "requested": "2026-07-28" }),
            "-32021" => json!({ "requiredCapabilities": { "sampling": {} } }),
            "-32020" => Value::Null,
            _ => return modern(&r),
        };
        let code: i64 = r.name().parse().unwrap();
        let error = json!({ "code": code, "message": "of the inner hop", "data": data });
        let body = json!({ "jsonrpc": "2.0", "id": r.id(), "error": error });
        Reply::text(400, "application/json", body.to_string())
    })
    .await;
    let gateway = in_front_of(&backend, "", "").await;
    let (session, modern) = (gateway.session().await, gateway.modern());
    for answer in [session.tool("-32022", json!({})).await, modern.tool("-32022", json!({})).await] {
        assert_eq!(fault(&answer).0, "backend_bad_answer");
        assert!(!answer.to_string().contains("2099"), "{answer}");
        assert_eq!(answer["error"]["code"], -32603);
    }
    assert_eq!(fault(&session.tool("-32020", json!({})).await).0, "backend_bad_answer");
    let failed = session.tool("-32021", json!({})).await;
    assert_eq!(failed["result"]["isError"], true, "a tool's failure is for the model to read: {failed}");
    assert!(text(&failed).contains("sampling"), "{failed}");
    // It is the stateless client itself that did not declare it.
    let reply = modern.request("tools/call", json!({ "name": "-32021" })).await;
    assert_eq!(reply.status(), 400);
    let answer = reply.answer().await;
    assert_eq!(answer["error"]["code"], -32021);
    assert_eq!(answer["error"]["data"]["requiredCapabilities"], json!({ "sampling": {} }));
}
