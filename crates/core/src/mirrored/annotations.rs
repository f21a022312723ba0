//! Reading `x-mcp-header` in the `inputSchema` of a tool.
//!
//! An annotation counts where a property is reached through `properties` alone. Anywhere else in the schema it is
//! wrong, and so the whole tool is. Text that only looks like one (in a default, an example, a description, as the
//! name of a property) is none. References are not followed. The schema is read once, whatever is in it.

use std::ops::Range;

use drawbridge_wire::header::PARAM_PREFIX;
use drawbridge_wire::json::{self, JsonError, Scanner};

/// The annotation's key.
pub(super) const KEY: &str = "x-mcp-header";

/// More mirrored arguments than this, no tool has.
const MAX_ARGUMENTS: usize = 64;
/// The longest name of a header, and the longest path to an argument, in bytes.
const MAX_NAME: usize = 128;
const MAX_PATH: usize = 1024;

/// What the schema says that the argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Truth,
}

/// An argument that is mirrored in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Argument {
    /// The name of the header, in lower case.
    pub(super) header: String,
    /// The keys that lead to it from `arguments`.
    pub(super) path: Vec<String>,
    pub(super) kind: Kind,
}

/// The annotations of a schema.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    pub(super) arguments: Vec<Argument>,
    /// Why the tool can't be called as they say.
    pub(super) wrong: Option<&'static str>,
    /// Where they stand in the schema, key and value.
    places: Vec<Range<usize>>,
}

/// Reads the annotations of `schema`. Fails if it isn't JSON as far as that can be told, or has the key twice in one
/// object, so that nobody can say what it means.
pub(super) fn read(schema: &[u8]) -> Result<Annotations, JsonError> {
    let mut reader = Reader { schema, path: Vec::new(), found: Annotations::default() };
    reader.schema(&mut Scanner::new(schema), 0, Place::Root)?;
    Ok(reader.found)
}

impl Annotations {
    /// The schema without any of them.
    pub(super) fn strip(&self, schema: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(schema.len());
        let mut copied = 0;
        for place in &self.places {
            let blank = |b: &u8| b.is_ascii_whitespace();
            let after = place.end + schema[place.end..].iter().take_while(|b| blank(b)).count();
            let before = place.start - schema[..place.start].iter().rev().take_while(|b| blank(b)).count();
            // Each takes one comma along: the one behind it, or the one before the last member.
            let cut = if schema.get(after) == Some(&b',') {
                place.start..after + 1
            } else if schema[..before].ends_with(b",") {
                before - 1..place.end
            } else {
                place.clone()
            };
            out.extend_from_slice(&schema[copied..cut.start]);
            copied = cut.end;
        }
        out.extend_from_slice(&schema[copied..]);
        out
    }
}

/// How a schema is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    /// Through `properties` alone.
    Property,
    Elsewhere,
}

/// Keywords whose value is a schema, or a list of them.
const SCHEMAS: [&str; 15] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contentSchema",
    "oneOf",
    "anyOf",
    "allOf",
    "not",
    "if",
    "then",
];
/// Keywords whose value is an object of schemas.
const MAPS: [&str; 5] = ["patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

struct Reader<'s> {
    schema: &'s [u8],
    path: Vec<String>,
    found: Annotations,
}

impl Reader<'_> {
    fn schema(&mut self, s: &mut Scanner<'_>, depth: u32, place: Place) -> Result<(), JsonError> {
        if s.peek() != Some(b'{') {
            return s.value(depth).map(drop);
        }
        if depth >= json::MAX_DEPTH {
            return Err(JsonError { reason: "nested too deeply", at: s.position() });
        }
        let mut annotation: Option<Range<usize>> = None;
        let mut kind = None;
        s.object::<JsonError>(|s, key| {
            let name = json::decode_string(&self.schema[key.clone()]).unwrap_or_default();
            match name.as_ref() {
                KEY if annotation.is_some() => {
                    return Err(JsonError { reason: "an annotation is there twice", at: key.start });
                }
                KEY => {
                    let value = s.value(depth + 1)?;
                    self.found.places.push(key.start..value.end);
                    annotation = Some(value);
                }
                "type" => {
                    let value = s.value(depth + 1)?;
                    kind = kind_of(&self.schema[value]);
                }
                "properties" => {
                    let inner = if place == Place::Elsewhere { place } else { Place::Property };
                    self.map(s, depth + 1, inner)?;
                }
                name if SCHEMAS.contains(&name) || name == "else" => self.some(s, depth + 1)?,
                name if MAPS.contains(&name) => self.map(s, depth + 1, Place::Elsewhere)?,
                _ => {
                    s.value(depth + 1)?;
                }
            }
            Ok(())
        })?;
        if let Some(value) = annotation {
            self.enter(&value, kind, place);
        }
        Ok(())
    }

    /// A schema or a list of schemas that are not reached as properties.
    fn some(&mut self, s: &mut Scanner<'_>, depth: u32) -> Result<(), JsonError> {
        match s.peek() {
            Some(b'[') => s.array(|s| self.schema(s, depth + 1, Place::Elsewhere)).map(drop),
            _ => self.schema(s, depth, Place::Elsewhere),
        }
    }

    /// An object of schemas.
    fn map(&mut self, s: &mut Scanner<'_>, depth: u32, place: Place) -> Result<(), JsonError> {
        if s.peek() != Some(b'{') {
            return s.value(depth).map(drop);
        }
        s.object::<JsonError>(|s, key| {
            if place != Place::Property {
                return self.schema(s, depth + 1, place);
            }
            let name = json::decode_string(&self.schema[key]).unwrap_or_default().into_owned();
            self.path.push(name);
            let read = self.schema(s, depth + 1, place);
            self.path.pop();
            read
        })
        .map(drop)
    }

    fn enter(&mut self, value: &Range<usize>, kind: Option<Kind>, place: Place) {
        let name = json::decode_string(&self.schema[value.clone()]).unwrap_or_default();
        let header = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase());
        let wrong = match kind {
            _ if place != Place::Property => Some("on a place that is not reached through properties alone"),
            None => Some("on a property that is not a string, an integer or a boolean"),
            _ if !is_token(&name) => Some("with a name that no header can have"),
            _ if name.len() > MAX_NAME || self.path.iter().map(String::len).sum::<usize>() > MAX_PATH => {
                Some("with a name that is too long")
            }
            _ if self.found.arguments.iter().any(|a| a.header == header) => {
                Some("with a name that another property has too")
            }
            _ if self.found.arguments.len() >= MAX_ARGUMENTS => Some("on too many properties"),
            Some(kind) => {
                self.found.arguments.push(Argument { header, path: self.path.clone(), kind });
                None
            }
        };
        self.found.wrong = self.found.wrong.or(wrong);
    }
}

/// The type that can be mirrored, if the schema allows no other one (but null).
fn kind_of(raw: &[u8]) -> Option<Kind> {
    let one = |raw: &[u8]| match json::decode_string(raw)?.as_ref() {
        "string" => Some(Kind::Text),
        "integer" => Some(Kind::Integer),
        "boolean" => Some(Kind::Truth),
        _ => None,
    };
    if raw.first() != Some(&b'[') {
        return one(raw);
    }
    let mut types = json::elements(raw).ok()?;
    types.retain(|t| *t != b"\"null\"");
    match types[..] {
        [only] => one(only),
        _ => None,
    }
}

/// Whether a text is a token of RFC 9110.
fn is_token(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn annotations(schema: &Value) -> Annotations {
        read(schema.to_string().as_bytes()).unwrap()
    }

    fn stripped(schema: &Value) -> Value {
        let text = schema.to_string();
        serde_json::from_slice(&read(text.as_bytes()).unwrap().strip(text.as_bytes())).unwrap()
    }

    #[test]
    fn properties_are_found_at_every_depth_with_their_paths() {
        let found = annotations(&json!({ "type": "object", "properties": {
            "region": { "x-mcp-header": "Region", "type": "string" },
            "deep": { "type": "object", "properties": {
                "n": { "type": ["integer", "null"], "x-mcp-header": "N" },
                "properties": { "type": "boolean", "x-mcp-header": "P" },
            } },
        } }));
        let argument = |header: &str, path: &[&str], kind| Argument {
            header: format!("mcp-param-{header}"),
            path: path.iter().map(|key| (*key).to_owned()).collect(),
            kind,
        };
        // serde_json writes keys in order.
        let expected = [
            argument("n", &["deep", "n"], Kind::Integer),
            argument("p", &["deep", "properties"], Kind::Truth),
            argument("region", &["region"], Kind::Text),
        ];
        assert_eq!(found.wrong, None);
        for argument in &expected {
            assert!(found.arguments.contains(argument), "{argument:?}");
        }
        assert_eq!(found.arguments.len(), expected.len());
    }

    #[test]
    fn what_only_looks_like_an_annotation_is_none() {
        let annotation = json!({ "x-mcp-header": "X" });
        let found = annotations(&json!({
            "properties": {
                "x-mcp-header": { "type": "string", "default": annotation, "examples": [annotation] },
                "a": { "enum": [annotation], "const": annotation, "description": "x-mcp-header" },
            },
            "unknown": { "properties": { "b": annotation } },
        }));
        assert_eq!(found, Annotations::default());
    }

    #[test]
    fn an_annotation_that_can_not_be_honoured_is_wrong() {
        let text = |name: Value| json!({ "type": "string", "x-mcp-header": name });
        let good = text(json!("X"));
        for (schema, why) in [
            (json!({ "type": "string", "x-mcp-header": "X" }), "not reached"),
            (json!({ "properties": { "a": { "x-mcp-header": "X" } } }), "not a string"),
            (json!({ "properties": { "a": { "type": "number", "x-mcp-header": "X" } } }), "not a string"),
            (json!({ "properties": { "a": { "type": "object", "x-mcp-header": "X" } } }), "not a string"),
            (json!({ "properties": { "a": { "type": "array", "x-mcp-header": "X" } } }), "not a string"),
            (
                json!({ "properties": { "a": { "type": ["string", "integer"], "x-mcp-header": "X" } } }),
                "not a string",
            ),
            (json!({ "properties": { "a": text(json!("")) } }), "no header"),
            (json!({ "properties": { "a": text(json!("a b")) } }), "no header"),
            (json!({ "properties": { "a": text(json!("a\r\nb")) } }), "no header"),
            (json!({ "properties": { "a": text(json!("é")) } }), "no header"),
            (json!({ "properties": { "a": text(json!(5)) } }), "no header"),
            (json!({ "properties": { "a": text(json!(null)) } }), "no header"),
            (json!({ "properties": { "a": text(json!("x".repeat(129))) } }), "too long"),
            (json!({ "properties": { "a": good, "b": text(json!("x")) } }), "another"),
            (json!({ "properties": { "a": { "type": "array", "items": good } } }), "not reached"),
            (json!({ "properties": { "a": { "anyOf": [good, { "type": "null" }] } } }), "not reached"),
            (json!({ "if": { "properties": { "a": good } } }), "not reached"),
            (json!({ "else": { "properties": { "a": good } } }), "not reached"),
            (
                json!({ "$defs": { "d": good }, "properties": { "a": { "$ref": "#/$defs/d" } } }),
                "not reached",
            ),
            (json!({ "patternProperties": { ".": good } }), "not reached"),
            (json!({ "not": { "not": { "items": [{ "properties": { "a": good } }] } } }), "not reached"),
        ] {
            let found = annotations(&schema);
            assert!(found.wrong.is_some_and(|wrong| wrong.contains(why)), "{schema}: {found:?}");
            assert!(!stripped(&schema).to_string().contains(&format!("\"{KEY}\":")), "{schema}");
        }
        assert!(
            read(br#"{"properties":{"a":{"x-mcp-header":"A","type":"string","x-mcp-header":"B"}}}"#).is_err()
        );
    }

    #[test]
    fn stripping_takes_the_annotations_and_one_comma_each() {
        for (schema, left) in [
            (
                r#"{"properties":{"a":{"x-mcp-header":"A","type":"array"}}}"#,
                r#"{"properties":{"a":{"type":"array"}}}"#,
            ),
            (
                r#"{"properties":{"a":{"type":"array" , "x-mcp-header" : "A" }}}"#,
                r#"{"properties":{"a":{"type":"array"  }}}"#,
            ),
            (
                r#"{"properties":{"a":{"x-mcp-header":"A"},"b":{"n":1.50,"x-mcp-header":1}}}"#,
                r#"{"properties":{"a":{},"b":{"n":1.50}}}"#,
            ),
        ] {
            assert_eq!(
                String::from_utf8(read(schema.as_bytes()).unwrap().strip(schema.as_bytes())).unwrap(),
                left
            );
        }
    }

    #[test]
    fn hostile_schemas_end_soon_and_without_harm() {
        let nest = |n: usize| {
            format!("{}{{\"x-mcp-header\":\"X\"}}{}", r#"{"properties":{"a":"#.repeat(n), "}}".repeat(n))
        };
        assert!(read(nest(50).as_bytes()).is_ok());
        assert!(read(nest(100_000).as_bytes()).is_err());
        assert!(read("[".repeat(100_000).as_bytes()).is_err());
        assert!(read(format!("{{\"anyOf\":{}", "[{\"anyOf\":".repeat(100_000)).as_bytes()).is_err());
        // A schema that refers to itself.
        assert_eq!(
            annotations(&json!({ "$ref": "#", "properties": { "a": { "$ref": "#" } } })),
            Annotations::default()
        );
        let many: serde_json::Map<String, Value> = (0..20_000)
            .map(|n| (format!("p{n}"), json!({ "type": "string", "x-mcp-header": format!("H{n}") })))
            .collect();
        let found = annotations(&json!({ "properties": many }));
        assert_eq!((found.arguments.len(), found.wrong), (MAX_ARGUMENTS, Some("on too many properties")));
        let long = "k".repeat(1 << 20);
        let found =
            annotations(&json!({ "properties": { long: { "type": "string", "x-mcp-header": "A" } } }));
        assert_eq!(found.arguments, []);
    }

    fn schema() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!({ "type": "string", "x-mcp-header": "A" })),
            Just(json!({ "type": "integer", "x-mcp-header": "b", "minimum": 0 })),
            Just(json!({ "type": "boolean" })),
            Just(json!({ "x-mcp-header": 3 })),
            Just(json!(true)),
        ];
        leaf.prop_recursive(6, 40, 4, |inner| {
            let keyword =
                prop::sample::select(vec!["properties", "$defs", "default", "patternProperties", "x"]);
            let list = prop::sample::select(vec!["anyOf", "items", "enum"]);
            prop_oneof![
                (keyword, prop::collection::btree_map("[a-c]", inner.clone(), 0..4), any::<bool>()).prop_map(
                    |(keyword, map, annotated)| {
                        let mut schema = json!({ keyword: map, "type": "object" });
                        if annotated {
                            schema[KEY] = json!("C");
                        }
                        schema
                    }
                ),
                (list, prop::collection::vec(inner, 0..4))
                    .prop_map(|(keyword, list)| json!({ keyword: list })),
            ]
        })
    }

    /// Without annotations where a schema may have them; what is data stays.
    fn plain(schema: &Value) -> Value {
        let Value::Object(members) = schema else { return schema.clone() };
        let kept = members.iter().filter(|(key, _)| *key != KEY).map(|(key, value)| {
            let value = match (key.as_str(), value) {
                ("properties" | "$defs" | "patternProperties", Value::Object(map)) => {
                    map.iter().map(|(k, v)| (k.clone(), plain(v))).collect()
                }
                ("anyOf" | "items", Value::Array(list)) => list.iter().map(plain).collect(),
                _ => value.clone(),
            };
            (key.clone(), value)
        });
        kept.collect()
    }

    proptest! {
        #[test]
        fn stripping_leaves_the_same_schema_without_annotations(schema in schema(), pretty in any::<bool>()) {
            let text = if pretty { format!("{schema:#}") } else { schema.to_string() };
            let left = read(text.as_bytes()).unwrap().strip(text.as_bytes());
            prop_assert_eq!(serde_json::from_slice::<Value>(&left).unwrap(), plain(&schema));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[\\{\\}\\[\\]:,\"a]{0,60}|.{0,60}") {
            let _ = read(text.as_bytes());
        }
    }
}
