use chrono::{DateTime, Utc};
use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

fn entry(detail: Value) -> AuditEntry {
    AuditEntry {
        chain: "c".to_owned(),
        number: 1,
        at: Utc::now(),
        actor: "a".to_owned(),
        action: "token.create".to_owned(),
        target: "t".to_owned(),
        outcome: "ok".to_owned(),
        detail,
        hash: String::new(),
    }
}

#[test]
fn the_order_of_members_does_not_matter_and_all_else_does() {
    let one = entry(json!({ "a": 1, "b": { "y": [1, 2], "x": null } }));
    let same = AuditEntry { detail: json!({ "b": { "x": null, "y": [1, 2] }, "a": 1 }), ..one.clone() };
    assert_eq!(hash("", &one), hash("", &same));
    assert_ne!(hash("", &one), hash("0", &one));
    let others = [
        AuditEntry { number: 2, ..one.clone() },
        AuditEntry { actor: "b".to_owned(), ..one.clone() },
        AuditEntry { outcome: "denied".to_owned(), ..one.clone() },
        AuditEntry { detail: json!({ "a": 1, "b": { "y": [2, 1], "x": null } }), ..one.clone() },
    ];
    assert!(others.iter().all(|other| hash("", other) != hash("", &one)));
}

/// JSON as entries have it: numbers are whole.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The same with the members of each object in another order.
fn turned(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let turned: Map<String, Value> =
                members.iter().rev().map(|(name, value)| (name.clone(), turned(value))).collect();
            Value::Object(turned)
        }
        Value::Array(items) => items.iter().map(turned).collect(),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn what_was_written_and_read_has_the_same_hash(detail in any_json()) {
        let text = serde_json::to_string(&detail).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(canonical(&read), canonical(&detail));
        prop_assert_eq!(canonical(&turned(&detail)), canonical(&detail));
        let again: Value = serde_json::from_str(&canonical(&detail)).unwrap();
        prop_assert_eq!(again, read);
    }

    #[test]
    fn different_details_have_different_hashes(one in any_json(), other in any_json()) {
        prop_assume!(one != other);
        prop_assert_ne!(canonical(&one), canonical(&other));
    }

    #[test]
    fn no_field_runs_into_the_next(
        texts in prop::array::uniform4("[a\",:{}\\\\]{0,6}"),
        others in prop::array::uniform4("[a\",:{}\\\\]{0,6}"),
    ) {
        prop_assume!(texts != others);
        let at = DateTime::from_timestamp(0, 0).unwrap();
        let of = |[actor, action, target, outcome]: [String; 4]| {
            AuditEntry { at, actor, action, target, outcome, ..entry(Value::Null) }
        };
        prop_assert_ne!(hash("", &of(texts)), hash("", &of(others)));
    }
}
