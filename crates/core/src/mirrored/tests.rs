//! Lists of tools on their way through.

use super::*;
use crate::call::Shape;
use crate::client::{Client, Principal};
use drawbridge_wire::{Id, ProtocolVersion};
use serde_json::{Value, json};

fn profile(name: &str) -> ProfileKey {
    let client = Client {
        principal: Principal::named(name),
        version: ProtocolVersion::V2026_07_28,
        capabilities: "{}".into(),
        info: None,
        answers: Answers::ByRetry,
    };
    client.profile()
}

fn mirrored() -> Mirrored {
    Mirrored::new(BackendName::parse("b").unwrap())
}

fn tool(name: &str, property: Value) -> Value {
    json!({ "name": name, "n": 1, "inputSchema": { "type": "object", "properties": { "a": property } } })
}

fn good(name: &str) -> Value {
    tool(name, json!({ "type": "string", "x-mcp-header": "A" }))
}

fn bad(name: &str) -> Value {
    tool(name, json!({ "type": "number", "x-mcp-header": "A" }))
}

fn plain(name: &str) -> Value {
    tool(name, json!({ "type": "string" }))
}

fn request(cursor: Option<&str>) -> Message {
    let params = cursor.map_or("{}".to_owned(), |cursor| format!(r#"{{"cursor":"{cursor}"}}"#));
    Message::request(&Id::from_number(1), "tools/list", params.as_bytes())
}

fn page(tools: &[Value], next: Option<&str>, shape: Shape) -> Reply {
    let mut result = json!({ "tools": tools, "ttlMs": 5 });
    if let Some(next) = next {
        result["nextCursor"] = json!(next);
    }
    Reply { message: Message::result(&Id::from_number(1), result.to_string().as_bytes()), shape }
}

fn names(reply: &Reply) -> Vec<String> {
    let message: Value = serde_json::from_slice(reply.message.bytes()).unwrap();
    assert_eq!(message["result"]["ttlMs"], 5);
    let tools = message["result"]["tools"].as_array().unwrap().clone();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn is_annotated_tool(mirrored: &Mirrored, profile: &ProfileKey, name: &str) -> bool {
    matches!(mirrored.find(profile, name), Tool::Annotated(_))
}

#[tokio::test(start_paused = true)]
async fn a_list_teaches_which_tools_have_mirrored_arguments_until_it_is_old() {
    let (mirrored, ann, bob) = (mirrored(), profile("ann"), profile("bob"));
    assert_eq!(mirrored.find(&ann, "t"), Tool::Unknown);
    let reply = page(&[good("t"), plain("u")], None, Shape::Marked);
    let before = reply.message.bytes().clone();
    let reply = mirrored.listed(&ann, Answers::ByRetry, &request(None), reply);
    assert_eq!(reply.message.bytes(), &before);
    assert!(is_annotated_tool(&mirrored, &ann, "t"));
    assert_eq!(mirrored.find(&ann, "u"), Tool::Plain);
    assert_eq!(mirrored.find(&bob, "t"), Tool::Unknown);
    // The list has changed.
    let _ = mirrored.listed(&ann, Answers::ByRetry, &request(None), page(&[good("u")], None, Shape::Marked));
    assert_eq!(mirrored.find(&ann, "t"), Tool::Plain);
    assert!(is_annotated_tool(&mirrored, &ann, "u"));
    tokio::time::advance(TTL).await;
    assert_eq!(mirrored.find(&ann, "u"), Tool::Unknown);
}

#[tokio::test(start_paused = true)]
async fn pages_add_up_and_what_they_name_again_is_replaced() {
    let (mirrored, ann) = (mirrored(), profile("ann"));
    let list = |cursor, tools: &[Value], next| {
        drop(mirrored.listed(&ann, Answers::ByRetry, &request(cursor), page(tools, next, Shape::Marked)));
    };
    list(None, &[good("a")], Some("2"));
    list(Some("2"), &[good("b")], None);
    assert!(is_annotated_tool(&mirrored, &ann, "a") && is_annotated_tool(&mirrored, &ann, "b"));
    list(Some("2"), &[plain("b")], None);
    assert_eq!(mirrored.find(&ann, "b"), Tool::Plain);
    assert!(is_annotated_tool(&mirrored, &ann, "a"));
}

#[test]
fn a_tool_with_a_wrong_annotation_is_dropped_or_stripped_alone() {
    let (mirrored, ann) = (mirrored(), profile("ann"));
    let tools = [good("good"), bad("bad"), plain("plain")];
    let of_stateless =
        mirrored.listed(&ann, Answers::ByRetry, &request(None), page(&tools, None, Shape::Marked));
    assert_eq!(names(&of_stateless), ["good", "plain"]);
    assert_eq!(mirrored.find(&ann, "bad"), Tool::Plain);
    let of_sessions =
        mirrored.listed(&ann, Answers::ByRetry, &request(None), page(&tools, None, Shape::Plain));
    assert_eq!(names(&of_sessions), ["good", "bad", "plain"]);
    assert_eq!(of_sessions.message.bytes().windows(12).filter(|w| w == b"x-mcp-header").count(), 1);
    // Between a client and a backend with sessions the annotation means nothing.
    let among_sessions =
        mirrored.listed(&ann, Answers::Live, &request(None), page(&tools, None, Shape::Plain));
    assert_eq!(among_sessions.message.bytes().windows(12).filter(|w| w == b"x-mcp-header").count(), 2);
}

#[test]
fn what_is_kept_is_bounded() {
    let mirrored = mirrored();
    let many: Vec<_> = (0..5_000).map(|n| good(&format!("tool-{n}"))).collect();
    for n in 0..MAX_PROFILES + 20 {
        let tools = if n == 0 { &many[..] } else { &many[..1] };
        let ann = profile(&format!("p{n}"));
        drop(mirrored.listed(&ann, Answers::ByRetry, &request(None), page(tools, None, Shape::Marked)));
        assert!(mirrored.profiles.lock().values().all(|known| known.bytes <= MAX_PROFILE_BYTES));
    }
    assert_eq!(mirrored.profiles.lock().len(), MAX_PROFILES);
}

#[test]
fn pages_that_are_none_pass_as_they_are() {
    let (mirrored, ann) = (mirrored(), profile("ann"));
    for result in
        [r#"{"x":"x-mcp-header"}"#, r#"{"tools":"x-mcp-header"}"#, r#"{"tools":["x-mcp-header"]}"#, "[]"]
    {
        let message = Message::result(&Id::from_number(1), result.as_bytes());
        let reply = Reply { message: message.clone(), shape: Shape::Marked };
        let reply = mirrored.listed(&ann, Answers::ByRetry, &request(None), reply);
        assert_eq!(reply.message.bytes(), message.bytes());
    }
}
