use drawbridge_demo::Demo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::client::{PATIENCE, initialize, meta, request, text};

struct Pipes {
    input: DuplexStream,
    output: Lines<BufReader<DuplexStream>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Pipes {
    fn open() -> Self {
        let (input, served_input) = tokio::io::duplex(64 << 10);
        let (served_output, output) = tokio::io::duplex(64 << 10);
        let tasks = TaskTracker::new();
        let demo = Demo::new(tasks.clone());
        let server = tasks.spawn(async move { demo.stdio(served_input, served_output).await });
        Self { input, output: BufReader::new(output).lines(), server }
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await.unwrap().unwrap();
        serde_json::from_str(&line.expect("the output ended")).unwrap()
    }

    async fn ask(&mut self, message: &Value) -> Value {
        self.send(message).await;
        self.next().await
    }

    /// Closes the input; the server has to end.
    async fn close(self) {
        drop(self.input);
        tokio::time::timeout(PATIENCE, self.server).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn legacy() {
    let mut pipes = Pipes::open();
    let early = pipes.ask(&request(1, "tools/list", json!({}))).await;
    assert_eq!(early["error"]["code"], -32600);
    let opened = pipes.ask(&initialize("2025-06-18", json!({ "elicitation": {} }))).await;
    assert_eq!(opened["result"]["protocolVersion"], "2025-06-18");
    pipes.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    let asked = pipes.ask(&request(2, "tools/call", json!({ "name": "elicit" }))).await;
    assert_eq!(asked["method"], "elicitation/create");
    let answer = json!({ "action": "accept", "content": { "name": "Ada" } });
    let greeted = pipes.ask(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer })).await;
    assert_eq!(text(&greeted), "Hello, Ada!");

    let sleep = json!({ "name": "sleep", "arguments": { "ms": 60_000 } });
    pipes.send(&request(3, "tools/call", sleep)).await;
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 3 } });
    pipes.send(&cancel).await;
    assert_eq!(pipes.ask(&request(4, "ping", json!({}))).await["id"], 4);
    pipes.send(&request(5, "tools/call", json!({ "name": "touch" }))).await;
    assert_eq!(pipes.next().await["method"], "notifications/tools/list_changed");
    pipes.close().await;
}

#[tokio::test]
async fn modern() {
    let mut pipes = Pipes::open();
    let bare = pipes.ask(&request("p", "server/discover", json!({}))).await;
    assert_eq!(bare["error"]["code"], -32602);
    let discover = request("d", "server/discover", json!({ "_meta": meta(json!({})) }));
    assert_eq!(pipes.ask(&discover).await["result"]["resultType"], "complete");
    let listen = json!({ "notifications": { "promptsListChanged": true }, "_meta": meta(json!({})) });
    let ack = pipes.ask(&request(10, "subscriptions/listen", listen)).await;
    assert_eq!(ack["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 10);
    let call = |id: i64, name: &str| {
        let capabilities = json!({ "elicitation": {} });
        request(id, "tools/call", json!({ "name": name, "_meta": meta(capabilities) }))
    };
    let changed = pipes.ask(&call(11, "touch")).await;
    assert_eq!(changed["method"], "notifications/prompts/list_changed");
    assert_eq!(pipes.next().await["id"], 11);
    let first = pipes.ask(&call(12, "elicit")).await["result"].clone();
    assert_eq!(first["resultType"], "input_required");
    let mut again = call(13, "elicit");
    again["params"]["requestState"] = first["requestState"].clone();
    again["params"]["inputResponses"] = json!({ "name": { "action": "cancel" } });
    assert_eq!(text(&pipes.ask(&again).await), "The user cancelled.");
    let unknown = request(14, "ping", json!({ "_meta": meta(json!({})) }));
    assert_eq!(pipes.ask(&unknown).await["error"]["code"], -32601);
    let mut odd = call(15, "echo");
    odd["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    assert_eq!(pipes.ask(&odd).await["error"]["code"], -32022);
    pipes.close().await;
}

#[tokio::test]
async fn requests_before_the_end_of_the_input_are_answered() {
    let mut pipes = Pipes::open();
    let sleep = json!({ "name": "sleep", "arguments": { "ms": 100 }, "_meta": meta(json!({})) });
    pipes.send(&request(1, "tools/call", sleep)).await;
    pipes.input.shutdown().await.unwrap();
    assert_eq!(text(&pipes.next().await), "slept 100 ms");
    pipes.close().await;
}

#[tokio::test]
async fn lines_that_are_no_messages_get_an_error() {
    let mut pipes = Pipes::open();
    pipes.input.write_all(b"\n{oops\n").await.unwrap();
    assert_eq!(pipes.next().await["error"]["code"], -32700);
    pipes.close().await;
}
