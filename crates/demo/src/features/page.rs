//! Lists in pages. A cursor holds all it needs, so it is good in any session.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::call::{Halt, Outcome};

/// Entries of a page.
pub(crate) const SIZE: usize = 5;

/// The page of `entries` that `params.cursor` names, as the result member `list`.
pub(crate) fn page(list: &str, entries: &[Value], params: &Value) -> Outcome {
    let start = match &params["cursor"] {
        Value::Null => 0,
        cursor => cursor
            .as_str()
            .and_then(|cursor| read(list, cursor))
            .filter(|start| *start < entries.len())
            .ok_or_else(|| Halt::params("the cursor is not one of ours"))?,
    };
    let end = entries.len().min(start + SIZE);
    let mut result = Map::new();
    result.insert(list.to_owned(), entries[start..end].into());
    if end < entries.len() {
        result.insert("nextCursor".to_owned(), write(list, end).into());
    }
    Ok(result.into())
}

fn write(list: &str, start: usize) -> String {
    URL_SAFE_NO_PAD.encode(format!("{list} {start}"))
}

fn read(list: &str, cursor: &str) -> Option<usize> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    text.strip_prefix(list)?.strip_prefix(' ')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pages_hold_every_entry_once() {
        let entries: Vec<Value> = (0..12).map(Value::from).collect();
        let (mut seen, mut params) = (Vec::new(), json!({}));
        loop {
            let result = page("x", &entries, &params).unwrap();
            seen.extend(result["x"].as_array().unwrap().clone());
            let Some(cursor) = result.get("nextCursor") else { break };
            params = json!({ "cursor": cursor });
        }
        assert_eq!(seen, entries);
        for bad in [json!(""), json!(7), json!(write("y", 5)), json!(write("x", 12))] {
            assert!(page("x", &entries, &json!({ "cursor": bad })).is_err());
        }
    }
}
