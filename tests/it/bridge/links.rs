//! Pages that backends want users to open.

use drawbridge_testkit::backend::{Backend, Reply, Request, legacy, modern, text_result};
use drawbridge_testkit::client::{Modern, text};
use serde_json::{Value, json};

use super::{all, session};
use crate::backends::in_front_of;

/// A backend whose tools want a page at the host to be opened that they are called.
async fn leading(era: &'static str) -> Backend {
    Backend::start(move |request: Request| async move {
        let url = format!("https://{}/login", request.name());
        let params = json!({ "mode": "url", "message": "Sign in", "url": url, "elicitationId": "e" });
        let answered = request.body["params"]["inputResponses"].is_object();
        match (request.rpc(), era) {
            ("tools/call", "modern") if !answered => {
                let asks = json!({ "a": { "method": "elicitation/create", "params": params } });
                Reply::result(&request, json!({ "resultType": "input_required", "inputRequests": asks }))
            }
            ("tools/call", "legacy") => {
                let error =
                    json!({ "code": -32042, "message": "first", "data": { "elicitations": [params] } });
                Reply::json(&json!({ "jsonrpc": "2.0", "id": request.id(), "error": error }))
            }
            ("tools/call", _) => {
                let mut result = text_result("opened");
                result["resultType"] = json!("complete");
                Reply::result(&request, result)
            }
            (_, "modern") => modern(&request),
            _ => legacy(&request, ""),
        }
    })
    .await
}

#[tokio::test]
async fn t94_a_page_elsewhere_is_opened_by_nobody_and_the_call_says_why() {
    for era in ["legacy", "modern"] {
        let backend = leading(era).await;
        let gateway =
            in_front_of(&backend, &format!("era: {era}, elicitation_hosts: [login.example]"), "").await;
        let stateless = Modern::new(&gateway.client(), "/mcp", all());
        let session = session(&gateway, "2025-11-25", all()).await;
        let call = |host: &str| json!({ "name": host, "arguments": {} });
        for answer in [
            stateless.call("tools/call", call("evil.example")).await,
            session.call("tools/call", call("evil.example")).await,
        ] {
            assert_eq!(answer["result"]["isError"], true, "{era} {answer}");
            let said = text(&answer);
            assert!(said.contains("evil.example") && said.contains("elicitation_hosts"), "{said}");
        }
        let log = gateway.program.stderr();
        assert!(
            log.contains("elicitation_hosts") && log.contains("evil.example"),
            "the operator is told: {log}"
        );
        // To its own host and to those that are named users are led, and told by whom.
        for host in [backend.url().split(['/', ':']).nth(3).unwrap(), "login.example"] {
            let asked = stateless.call("tools/call", call(host)).await["result"].clone();
            assert_eq!(asked["resultType"], "input_required", "{era} {host} {asked}");
            let (_, ask) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
            assert_eq!(ask["params"]["message"], "[scripted] Sign in");
            let url: &Value = &ask["params"]["url"];
            assert_eq!(*url, format!("https://{host}/login"));
        }
    }
}
