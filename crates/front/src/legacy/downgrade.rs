//! What newer servers say, as older clients can read it.

use bytes::Bytes;
use drawbridge_core::client::is_by_url;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Message, ProtocolVersion, json, method};

/// A request for the client as its version has it; `None` if that version can't express it.
pub(super) fn ask(request: &Message, version: ProtocolVersion, id: &Id) -> Option<Message> {
    let edit = Edit::new(request).id(id);
    let params = request.raw(Field::Params).unwrap_or(b"{}");
    let params = match request.method().as_ref() {
        method::ELICITATION_CREATE if is_by_url(params) => with_elicitation_id(params, id),
        method::ELICITATION_CREATE if version < ProtocolVersion::V2025_11_25 => plain_form(params)?,
        method::SAMPLING_CREATE_MESSAGE if version < ProtocolVersion::V2025_11_25 => single_contents(params),
        _ => None,
    };
    Some(
        match params {
            Some(params) => edit.set(Field::Params, params),
            None => edit,
        }
        .into_message(),
    )
}

/// Clients of 2025-11-25 tell URL elicitations apart by an id, which 2026-07-28 does not have.
fn with_elicitation_id(params: &[u8], id: &Id) -> Option<Bytes> {
    let missing = json::member(params, "elicitationId").is_none();
    missing.then(|| json::replace_member(params, "elicitationId", id.literal()))
}

/// A form of 2025-06-18: no `mode`, choices as `enum` with `enumNames`, one choice at a time, defaults for booleans only.
/// `None` in the place of new params means that nothing has to change.
#[expect(clippy::option_option, reason = "not expressible, nothing to change, or changed")]
fn plain_form(params: &[u8]) -> Option<Option<Bytes>> {
    let schema = json::member(params, "requestedSchema").unwrap_or(b"{}");
    let properties =
        json::member(schema, "properties").and_then(|raw| json::members(raw).ok()).unwrap_or_default();
    let mut changed = json::member(params, "mode").is_some();
    let mut plain = Vec::with_capacity(properties.len());
    for (name, property) in &properties {
        let value = plain_field(property)?;
        changed |= value.is_some();
        plain.push((name.as_ref(), value.unwrap_or_else(|| Bytes::copy_from_slice(property))));
    }
    if !changed {
        return Some(None);
    }
    let properties = json::object(plain.iter().map(|(name, value)| (*name, &value[..])));
    let schema = json::replace_member(schema, "properties", &properties);
    let params = json::filter_members(params, |key| key != "mode");
    Some(Some(json::replace_member(&params, "requestedSchema", &schema)))
}

#[expect(clippy::option_option, reason = "as of plain_form")]
fn plain_field(property: &[u8]) -> Option<Option<Bytes>> {
    let kind = json::member(property, "type").and_then(json::decode_string).unwrap_or_default();
    if kind == "array" {
        return None;
    }
    let has_default = kind != "boolean" && json::member(property, "default").is_some();
    let titled = json::member(property, "oneOf").or_else(|| json::member(property, "anyOf"));
    if !has_default && titled.is_none() {
        return Some(None);
    }
    let kept = json::filter_members(property, |key| {
        !matches!(key, "oneOf" | "anyOf") && (key != "default" || kind == "boolean")
    });
    let Some(titled) = titled else { return Some(Some(kept)) };
    let choices = json::elements(titled).ok()?;
    let part = |key| choices.iter().map(|choice| json::member(choice, key)).collect::<Option<Vec<_>>>();
    let values = json::array(part("const")?);
    let field = json::replace_member(&kept, "enum", &values);
    Some(Some(match part("title") {
        Some(titles) => json::replace_member(&field, "enumNames", &json::array(titles)),
        None => field,
    }))
}

/// Messages with one block of content each, as before 2025-11-25: one that has several becomes several.
fn single_contents(params: &[u8]) -> Option<Bytes> {
    let messages = json::elements(json::member(params, "messages")?).ok()?;
    let blocks = |message: &[u8]| {
        json::member(message, "content").and_then(|raw| json::elements(raw).ok().map(|e| e.len()))
    };
    if messages.iter().all(|message| blocks(message).is_none()) {
        return None;
    }
    let mut single: Vec<Bytes> = Vec::new();
    for message in messages {
        let content = json::member(message, "content").unwrap_or(b"null");
        match json::elements(content) {
            Ok(blocks) => {
                single.extend(blocks.iter().map(|block| json::replace_member(message, "content", block)))
            }
            Err(_) => single.push(Bytes::copy_from_slice(message)),
        }
    }
    Some(json::replace_member(params, "messages", &json::array(single.iter().map(|m| &m[..]))))
}

/// A result of a stateless server without what clients of `version` can't read: `None` if it is fine as it is.
pub(super) fn result(method: &str, result: &[u8], version: ProtocolVersion) -> Option<Bytes> {
    match method {
        method::TOOLS_CALL => tool_result(result, version),
        method::TOOLS_LIST => {
            memchr::memmem::find(result, b"\"outputSchema\"").and_then(|_| tool_list(result))
        }
        _ => None,
    }
}

fn is_object(raw: &[u8]) -> bool {
    raw.starts_with(b"{")
}

/// Structured content must be an object before 2026-07-28, and links to resources came with 2025-06-18.
fn tool_result(result: &[u8], version: ProtocolVersion) -> Option<Bytes> {
    let structured = json::member(result, "structuredContent").filter(|raw| !is_object(raw));
    let wrapped = structured.map(|raw| json::object([("result", raw)]));
    let changed =
        wrapped.as_deref().map(|wrapped| json::replace_member(result, "structuredContent", wrapped));
    if version >= ProtocolVersion::V2025_06_18 || memchr::memmem::find(result, b"resource_link").is_none() {
        return changed;
    }
    let content = json::elements(json::member(result, "content")?).ok()?;
    let content: Vec<Bytes> = content.iter().map(|block| without_link(block)).collect();
    let content = json::array(content.iter().map(|block| &block[..]));
    Some(json::replace_member(changed.as_deref().unwrap_or(result), "content", &content))
}

/// A link as text.
fn without_link(block: &[u8]) -> Bytes {
    let text = |key| json::member(block, key).and_then(json::decode_string);
    if text("type").as_deref() != Some("resource_link") {
        return Bytes::copy_from_slice(block);
    }
    let name = text("title").or_else(|| text("name")).unwrap_or_default();
    let line = json::encode_string(&format!("{name}: {}", text("uri").unwrap_or_default()));
    json::object([("type", &b"\"text\""[..]), ("text", line.as_bytes())])
}

fn tool_list(result: &[u8]) -> Option<Bytes> {
    let tools = json::elements(json::member(result, "tools")?).ok()?;
    let changed: Vec<Option<Bytes>> = tools.iter().map(|tool| plain_tool(tool)).collect();
    if changed.iter().all(Option::is_none) {
        return None;
    }
    let tools = tools.iter().zip(&changed).map(|(tool, changed)| changed.as_deref().unwrap_or(tool));
    Some(json::replace_member(result, "tools", &json::array(tools)))
}

/// A tool whose output schema is of an object: one of another type is wrapped as its results are, one that does not
/// name its type is left out, so that nothing is checked against it.
fn plain_tool(tool: &[u8]) -> Option<Bytes> {
    let schema = json::member(tool, "outputSchema")?;
    match json::member(schema, "type").and_then(json::decode_string).as_deref() {
        Some("object") => None,
        Some(_) => {
            let properties = json::object([("result", schema)]);
            let wrapped = json::object([
                ("type", &b"\"object\""[..]),
                ("properties", &properties[..]),
                ("required", b"[\"result\"]"),
            ]);
            Some(json::replace_member(tool, "outputSchema", &wrapped))
        }
        None => Some(json::filter_members(tool, |key| key != "outputSchema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, params: &str, version: ProtocolVersion) -> Option<String> {
        let request = Message::request(&Id::from_number(1), method, params.as_bytes());
        let message = ask(&request, version, &Id::from_text("a"))?;
        Some(String::from_utf8(message.raw(Field::Params).unwrap().to_vec()).unwrap())
    }

    #[test]
    fn forms_for_2025_06_18_have_plain_choices_and_no_mode() {
        let form = r#"{"mode":"form","message":"?","requestedSchema":{"type":"object","properties":{"a":{"type":"string","title":"A","oneOf":[{"const":"x","title":"X"},{"const":"y","title":"Y"}],"default":"x"},"b":{"type":"boolean","default":true}}}}"#;
        assert_eq!(
            asked("elicitation/create", form, ProtocolVersion::V2025_06_18).unwrap(),
            r#"{"message":"?","requestedSchema":{"type":"object","properties":{"a":{"type":"string","title":"A","enum":["x","y"],"enumNames":["X","Y"]},"b":{"type":"boolean","default":true}}}}"#
        );
        assert_eq!(asked("elicitation/create", form, ProtocolVersion::V2025_11_25).unwrap(), form);
        let several = r#"{"message":"?","requestedSchema":{"type":"object","properties":{"a":{"type":"array","items":{"enum":["x"]}}}}}"#;
        assert_eq!(asked("elicitation/create", several, ProtocolVersion::V2025_06_18), None);
        let plain = r#"{"message":"?",  "requestedSchema":{"properties":{"a":{"type":"string"}}}}"#;
        assert_eq!(asked("elicitation/create", plain, ProtocolVersion::V2025_06_18).unwrap(), plain);
    }

    #[test]
    fn urls_get_an_id_and_keep_the_one_they_have() {
        let bare = r#"{"mode":"url","message":"?","url":"https://x"}"#;
        let given = r#"{"mode":"url","message":"?","url":"https://x","elicitationId":"e"}"#;
        let asked = |params| asked("elicitation/create", params, ProtocolVersion::V2025_11_25).unwrap();
        assert_eq!(asked(bare), r#"{"mode":"url","message":"?","url":"https://x","elicitationId":"a"}"#);
        assert_eq!(asked(given), given);
    }

    #[test]
    fn a_message_of_several_blocks_becomes_several_messages() {
        let params = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":{"type":"text","text":"c"}}],"maxTokens":1}"#;
        assert_eq!(
            asked("sampling/createMessage", params, ProtocolVersion::V2025_06_18).unwrap(),
            r#"{"messages":[{"role":"user","content":{"type":"text","text":"a"}},{"role":"user","content":{"type":"text","text":"b"}},{"role":"assistant","content":{"type":"text","text":"c"}}],"maxTokens":1}"#
        );
    }

    #[test]
    fn structured_content_and_its_schema_are_wrapped_alike() {
        let new = ProtocolVersion::V2025_11_25;
        let list = br#"{"tools":[{"name":"a","outputSchema":{"type":"array"}},{"name":"b","outputSchema":{"type":"object"}},{"name":"c","outputSchema":{"anyOf":[]}}]}"#;
        assert_eq!(
            result(method::TOOLS_LIST, list, new).unwrap(),
            r#"{"tools":[{"name":"a","outputSchema":{"type":"object","properties":{"result":{"type":"array"}},"required":["result"]}},{"name":"b","outputSchema":{"type":"object"}},{"name":"c"}]}"#
        );
        assert_eq!(
            result(method::TOOLS_CALL, br#"{"content":[],"structuredContent":[1, 2]}"#, new).unwrap(),
            r#"{"content":[],"structuredContent":{"result":[1, 2]}}"#
        );
        assert_eq!(result(method::TOOLS_CALL, br#"{"content":[],"structuredContent":{}}"#, new), None);
        let link = br#"{"content":[{"type":"resource_link","name":"n","uri":"file:///x"}]}"#;
        assert_eq!(result(method::TOOLS_CALL, link, new), None);
        assert_eq!(
            result(method::TOOLS_CALL, link, ProtocolVersion::V2025_03_26).unwrap(),
            r#"{"content":[{"type":"text","text":"n: file:///x"}]}"#
        );
    }
}
