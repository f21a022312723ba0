//! The texts that are sent: prepared answers, and the requests that ask for them.

use std::fmt::Write as _;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::json;

/// The legacy version that the load speaks.
pub(crate) const LEGACY: &str = "2025-11-25";
/// The modern version.
pub(crate) const MODERN: &str = "2026-07-28";
/// How many tools the backend lists.
pub(crate) const TOOLS: usize = 200;
/// How many progress notifications a burst has.
pub(crate) const BURST: usize = 10;

/// What a tool answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Its name at the backend.
    pub(crate) name: &'static str,
    /// Bytes of the text in its answer.
    pub(crate) size: usize,
    /// Answers with an event stream.
    pub(crate) sse: bool,
    /// Sends progress first.
    pub(crate) burst: bool,
}

const fn tool(name: &'static str, size: usize, sse: bool, burst: bool) -> Tool {
    Tool { name, size, sse, burst }
}

/// All tools that can be called.
pub(crate) const CALLABLE: [Tool; 6] = [
    tool("echo100", 100, false, false),
    tool("echo10k", 10_000, false, false),
    tool("echo1m", 1_000_000, false, false),
    tool("sse100", 100, true, false),
    tool("sse10k", 10_000, true, false),
    tool("sse_burst", 100, true, true),
];

/// The tool that asks something before it answers; only in sessions.
pub(crate) const ASKING: &str = "ask";

/// What it asks, as an event.
pub(crate) const ASK: &str = concat!(
    r#"data: {"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"Which one?","#,
    r#""requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}"#,
    "\n\n"
);

/// The notification that the list of tools has changed.
pub(crate) const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
/// Where such a notification of the bench's backend has its number.
pub(crate) const CHANGE_NUMBER: &str = "drawbridge-bench/number";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

const SERVER_INFO: &str =
    r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bench","version":"1.0.0"}}"#;
const CAPABILITIES: &str = r#"{"tools":{"listChanged":true}}"#;

/// The part of an answer after its id, for both eras.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    legacy: Bytes,
    modern: Bytes,
}

impl Answer {
    fn new(result: &str, modern_extra: &str) -> Self {
        Self {
            legacy: format!(r#","result":{{{result}}}}}"#).into(),
            modern: format!(
                r#","result":{{"resultType":"complete",{result},{modern_extra}{SERVER_INFO}}}}}"#
            )
            .into(),
        }
    }

    /// What follows the id.
    pub(crate) fn tail(&self, modern: bool) -> Bytes {
        if modern { self.modern.clone() } else { self.legacy.clone() }
    }
}

/// A result whose text has `size` bytes on the wire: lines of 50 bytes, each ending in an escaped line break.
pub(crate) fn text_answer(size: usize) -> Answer {
    let line = r"Lorem ipsum dolor sit amet, consectetur adipisci\n";
    let text: String = line.chars().cycle().take(size).collect();
    Answer::new(&format!(r#""content":[{{"type":"text","text":"{text}"}}],"isError":false"#), "")
}

/// The list of tools. Modern clients are told not to keep it, so that each request is one.
pub(crate) fn list_answer() -> Answer {
    let mut tools = String::new();
    for number in 0..TOOLS {
        let name =
            CALLABLE.get(number).map_or_else(|| format!("search_records_{number:03}"), |t| t.name.to_owned());
        let schema = json!({
            "name": name,
            "title": format!("Search the records of collection {number}"),
            "description": "Finds the records that match the query and returns them newest first, a page at a time.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "query": { "type": "string", "description": "Words that the record must contain" },
                    "limit": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20 },
                    "order": { "type": "string", "enum": ["newest", "oldest", "relevance"] },
                },
                "required": ["query"],
            },
            "annotations": { "readOnlyHint": true, "openWorldHint": false },
        });
        if number > 0 {
            tools.push(',');
        }
        let _infallible = write!(tools, "{schema}");
    }
    Answer::new(&format!(r#""tools":[{tools}]"#), r#""ttlMs":0,"cacheScope":"private","#)
}

/// The answer to `initialize`.
pub(crate) fn initialize_answer() -> Answer {
    let info = r#""serverInfo":{"name":"bench","version":"1.0.0"}"#;
    Answer::new(&format!(r#""protocolVersion":"{LEGACY}","capabilities":{CAPABILITIES},{info}"#), "")
}

/// The answer to `server/discover`.
pub(crate) fn discover_answer(versions: &[&str]) -> Answer {
    let versions = json!(versions);
    Answer::new(
        &format!(r#""supportedVersions":{versions},"capabilities":{CAPABILITIES}"#),
        r#""ttlMs":60000,"cacheScope":"public","#,
    )
}

/// The start of every answer, up to where its tail follows.
pub(crate) fn head(id: &[u8], room: usize) -> BytesMut {
    let mut head = BytesMut::with_capacity(24 + id.len() + room);
    head.put_slice(br#"{"jsonrpc":"2.0","id":"#);
    head.put_slice(id);
    head
}

/// A progress notification as an event.
pub(crate) fn progress(token: &[u8], step: usize) -> Bytes {
    let mut event = BytesMut::with_capacity(192 + token.len());
    event.put_slice(
        br#"event: message
data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#,
    );
    event.put_slice(token);
    event.put_slice(format!(",\"progress\":{step},\"total\":{BURST}}}}}\n\n").as_bytes());
    event.freeze()
}

/// The first event of a stream that listens.
pub(crate) fn acknowledged(subscription: &str) -> Bytes {
    let wanted = r#""notifications":{"toolsListChanged":true}"#;
    event(
        "notifications/subscriptions/acknowledged",
        &format!(r#"{wanted},"_meta":{{"{SUBSCRIPTION}":{subscription}}}"#),
    )
}

/// The event that says that the list of tools has changed, for the time of that `number`.
pub(crate) fn changed(number: u64, subscription: Option<&str>) -> Bytes {
    let of = subscription.map(|id| format!(r#","{SUBSCRIPTION}":{id}"#)).unwrap_or_default();
    event(TOOLS_CHANGED, &format!(r#""_meta":{{"{CHANGE_NUMBER}":{number}{of}}}"#))
}

fn event(method: &str, params: &str) -> Bytes {
    format!(
        "event: message\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{{{params}}}}}\n\n"
    )
    .into()
}

/// A request for a stream of changes of the list of tools.
pub(crate) fn listen(id: u64) -> Bytes {
    request(id, "subscriptions/listen", r#""notifications":{"toolsListChanged":true},"#, true, false)
}

/// An `initialize` request.
pub(crate) fn initialize(id: u64) -> Bytes {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"{LEGACY}","capabilities":{{"elicitation":{{}}}},"clientInfo":{{"name":"bench-load","version":"1.0.0"}}}}}}"#
    )
    .into()
}

/// The notification that ends the handshake.
pub(crate) fn initialized() -> Bytes {
    Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
}

/// A request of either era. `members` are those of `params` besides `_meta`, each with its comma after it.
pub(crate) fn request(id: u64, method: &str, members: &str, modern: bool, progress: bool) -> Bytes {
    let mut meta = String::new();
    if modern {
        let _infallible = write!(
            meta,
            r#""io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientCapabilities":{{"elicitation":{{}}}},"io.modelcontextprotocol/clientInfo":{{"name":"bench-load","version":"1.0.0"}}"#
        );
    }
    if progress {
        let comma = if modern { "," } else { "" };
        let _infallible = write!(meta, r#"{comma}"progressToken":{id}"#);
    }
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{members}"_meta":{{{meta}}}}}}}"#)
        .into()
}

/// A call of `tool`.
pub(crate) fn call(id: u64, tool: &str, modern: bool, progress: bool) -> Bytes {
    let members = format!(
        r#""name":"{tool}","arguments":{{"query":"lorem ipsum dolor","limit":20,"order":"newest"}},"#
    );
    request(id, "tools/call", &members, modern, progress)
}

#[cfg(test)]
mod tests {
    use super::{call, discover_answer, head, initialize, initialize_answer, list_answer, text_answer};

    fn whole(answer: &super::Answer, modern: bool) -> serde_json::Value {
        let mut text = head(b"7", 0);
        text.extend_from_slice(&answer.tail(modern));
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn everything_sent_is_json() {
        for modern in [false, true] {
            for answer in [text_answer(100), list_answer(), discover_answer(&["a", "b"]), initialize_answer()]
            {
                let value = whole(&answer, modern);
                assert_eq!(value["id"], 7);
                assert_eq!(value["result"].get("resultType").is_some(), modern);
            }
            for progress in [false, true] {
                let value: serde_json::Value =
                    serde_json::from_slice(&call(3, "x", modern, progress)).unwrap();
                assert_eq!(value["params"]["name"], "x");
                assert_eq!(value["params"]["_meta"].get("progressToken").is_some(), progress);
            }
        }
        let value: serde_json::Value = serde_json::from_slice(&initialize(0)).unwrap();
        assert_eq!(value["method"], "initialize");
    }

    #[test]
    fn the_list_is_about_100_kb() {
        let size = list_answer().tail(false).len();
        assert!((90_000..130_000).contains(&size), "{size}");
    }
}
