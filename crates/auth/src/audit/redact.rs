//! What is taken out of what was said in calls before it is written down: members by their names, values by where they
//! are, and whatever looks like a credential.

use std::collections::HashSet;
use std::sync::Arc;

use drawbridge_core::audit::{Part, Payload};
use serde_json::{Map, Value, json};

/// In place of what was taken out.
const REDACTED: &str = "[redacted]";
/// Members whose names say that they are secret, wherever they are.
const NAMES: [&str; 26] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "pin",
    "otp",
    "secret",
    "clientsecret",
    "token",
    "accesstoken",
    "refreshtoken",
    "idtoken",
    "authtoken",
    "bearertoken",
    "sessiontoken",
    "sessionid",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "authorization",
    "cookie",
    "setcookie",
    "credential",
    "credentials",
    "signature",
];
/// A text is kept up to this many bytes.
const MAX_TEXT: usize = 512;
/// So many rules are kept, each of so many bytes at most.
const MAX_RULES: usize = 200;
const MAX_RULE: usize = 256;

/// Why a rule is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    /// There are too many.
    #[error("there are more than {MAX_RULES} rules")]
    TooMany,
    /// It is too long.
    #[error("a rule has {MAX_RULE} bytes at most")]
    TooLong,
    /// It is empty, or a pointer that points to all or has a bad escape.
    #[error("a rule is the name of a member, or a JSON pointer such as /params/arguments/key")]
    Malformed,
}

/// A step of a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Any,
}

#[derive(Debug, Default)]
struct Rules {
    names: HashSet<String>,
    pointers: Vec<Vec<Step>>,
}

/// Takes out what is not to be written down.
#[derive(Debug, Clone)]
pub struct Redactor(Arc<Rules>);

impl Default for Redactor {
    fn default() -> Self {
        let names = NAMES.iter().map(|&name| name.to_owned()).collect();
        Self(Arc::new(Rules { names, pointers: Vec::new() }))
    }
}

impl Redactor {
    /// Takes out what `rules` name, and what is known to be secret. A rule is the name of a member, whatever its case and
    /// without regard to `-` and `_`, or a JSON pointer (RFC 6901) from `/params` or `/result` or `/error`, of which a step
    /// can be `*`: any.
    ///
    /// # Errors
    ///
    /// With the place of the first that is none.
    pub fn new(rules: &[String]) -> Result<Self, (usize, BadRule)> {
        if rules.len() > MAX_RULES {
            return Err((MAX_RULES, BadRule::TooMany));
        }
        let mut kept =
            Rules { names: NAMES.iter().map(|&name| name.to_owned()).collect(), ..Rules::default() };
        for (place, rule) in rules.iter().enumerate() {
            if rule.len() > MAX_RULE {
                return Err((place, BadRule::TooLong));
            }
            match rule.strip_prefix('/') {
                Some(pointer) => kept.pointers.push(steps(pointer).ok_or((place, BadRule::Malformed))?),
                None if folded(rule).is_empty() => return Err((place, BadRule::Malformed)),
                None => {
                    kept.names.insert(folded(rule));
                }
            }
        }
        Ok(Self(Arc::new(kept)))
    }

    /// What may be kept of what was said.
    pub fn payload(&self, payload: &Payload) -> Value {
        let mut all = Map::new();
        let mut put = |name: &str, part: &Option<Part>| {
            if let Some(part) = part {
                all.insert(name.to_owned(), self.part(name, part));
            }
        };
        put("params", &payload.request);
        put("result", &payload.answer);
        Value::Object(all)
    }

    fn part(&self, name: &str, part: &Part) -> Value {
        let bytes = match part {
            Part::Json(bytes) => bytes,
            Part::Omitted(bytes) => return json!({ "omitted_bytes": bytes }),
        };
        let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
            return json!({ "omitted_bytes": bytes.len() });
        };
        let under: Vec<&[Step]> = self.0.pointers.iter().filter_map(|steps| enter(steps, name)).collect();
        self.value(value, &under)
    }

    /// A value without what is not to be kept; `under` are the rests of pointers that lead here.
    fn value(&self, value: Value, under: &[&[Step]]) -> Value {
        if under.iter().any(|steps| steps.is_empty()) {
            return REDACTED.into();
        }
        let inside = |key: &str| under.iter().filter_map(|steps| enter(steps, key)).collect::<Vec<_>>();
        match value {
            Value::Object(members) => members
                .into_iter()
                .map(|(key, value)| {
                    let value = match self.0.names.contains(&folded(&key)) {
                        true => REDACTED.into(),
                        false => self.value(value, &inside(&key)),
                    };
                    (self.text(&key), value)
                })
                .collect(),
            Value::Array(items) => {
                let items = items.into_iter().enumerate();
                items.map(|(place, item)| self.value(item, &inside(&place.to_string()))).collect()
            }
            Value::String(text) => self.text(&text).into(),
            // A number that is no whole one may be read back as another.
            Value::Number(number) if !number.is_i64() && !number.is_u64() => number.to_string().into(),
            other => other,
        }
    }

    /// A text without control characters and without what looks like a credential, not longer than is kept.
    pub fn text(&self, text: &str) -> String {
        let kept = &text[..text.floor_char_boundary(MAX_TEXT)];
        let mut plain = String::with_capacity(kept.len());
        let mut rest = kept;
        while let Some(start) = rest.find(is_of_word) {
            plain.extend(rest[..start].chars().map(visible));
            rest = &rest[start..];
            let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            let word = &rest[..end];
            plain.push_str(if is_credential(word, &plain) { REDACTED } else { word });
            rest = &rest[end..];
        }
        plain.extend(rest.chars().map(visible));
        if kept.len() < text.len() {
            plain.push('…');
        }
        plain
    }
}

/// The rest of a pointer behind a member.
fn enter<'a>(steps: &'a [Step], key: &str) -> Option<&'a [Step]> {
    let (first, rest) = steps.split_first()?;
    let leads = match first {
        Step::Any => true,
        // An error is where its result would be.
        Step::Member(name) => name == key,
    };
    leads.then_some(rest)
}

fn steps(pointer: &str) -> Option<Vec<Step>> {
    let step = |text: &str| {
        if text == "*" {
            return Some(Step::Any);
        }
        let is_escaped = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        is_escaped.then(|| Step::Member(text.replace("~1", "/").replace("~0", "~")))
    };
    let steps: Vec<Step> = pointer.split('/').map(step).collect::<Option<_>>()?;
    let from = |name: &str| matches!(name, "params" | "result" | "error");
    match steps.first() {
        Some(Step::Member(name)) if name == "error" => {
            let mut steps = steps;
            steps[0] = Step::Member("result".to_owned());
            Some(steps)
        }
        Some(Step::Member(name)) if from(name) => Some(steps),
        _ => None,
    }
}

fn folded(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

fn visible(c: char) -> char {
    if c.is_control() { '\u{fffd}' } else { c }
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+' | '=' | '~')
}

/// Whether a word is a credential, or looks like one: a token of ours or of a well-known kind, a JSON Web Token, or
/// whatever comes after `Bearer` or `Basic`.
fn is_credential(word: &str, before: &str) -> bool {
    const PREFIXES: [&str; 11] =
        ["drb_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "sk-", "xoxb-", "xoxp-", "AKIA", "AIza"];
    let has_prefix =
        PREFIXES.iter().any(|prefix| word.starts_with(prefix) && word.len() >= prefix.len() + 12);
    let is_jwt = word.starts_with("eyJ") && word.matches('.').count() >= 2;
    let scheme = before.trim_end().rsplit(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    let is_after_scheme = before.ends_with(' ')
        && (scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("basic"))
        && word.len() >= 8;
    has_prefix || is_jwt || is_after_scheme
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(redactor: &Redactor, params: &Value) -> Value {
        let request = Some(Part::Json(params.to_string().into()));
        redactor.payload(&Payload { request, answer: None })["params"].clone()
    }

    #[test]
    fn what_is_named_or_pointed_to_is_taken_out() {
        let rules = ["Customer-Name", "/params/arguments/rows/*/card", "/params/name"];
        let redactor = Redactor::new(&rules.map(str::to_owned)).unwrap();
        let params = json!({
            "name": "pay",
            "arguments": {
                "customer_name": "Alice", "API-Key": { "deep": 1 }, "note": "fine", "amount": 1.25,
                "rows": [{ "card": "4111", "n": 1 }, { "card": ["4242"] }],
                "x": { "password": "hunter2" },
            },
        });
        let kept = json!({
            "name": REDACTED,
            "arguments": {
                "customer_name": REDACTED, "API-Key": REDACTED, "note": "fine", "amount": "1.25",
                "rows": [{ "card": REDACTED, "n": 1 }, { "card": REDACTED }],
                "x": { "password": REDACTED },
            },
        });
        assert_eq!(said(&redactor, &params), kept);
    }

    #[test]
    fn what_looks_like_a_credential_is_taken_out_of_texts() {
        let redactor = Redactor::default();
        for (text, kept) in [
            ("curl -H 'Authorization: Bearer abc123def456'", "curl -H 'Authorization: Bearer [redacted]'"),
            ("drb_pat_AAAAAAAAAAAAAAAA4NBV5w", "[redacted]"),
            ("see eyJhbGciOiJFUzI1NiJ9.eyJhIjoxfQ.c2ln.", "see [redacted]"),
            ("a bearer of news", "a bearer of news"),
            ("tickets__read", "tickets__read"),
            ("a\0b\nc", "a\u{fffd}b\u{fffd}c"),
        ] {
            assert_eq!(redactor.text(text), kept);
        }
        let long = redactor.text(&"ü".repeat(MAX_TEXT));
        assert!(long.len() <= MAX_TEXT + 3 && long.ends_with('…'));
    }

    #[test]
    fn what_is_no_json_or_too_large_leaves_its_size() {
        let redactor = Redactor::default();
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        for part in [Part::Json("{".into()), Part::Omitted(1), Part::Json(deep.into())] {
            let kept = redactor.payload(&Payload { request: Some(part), answer: None });
            assert!(kept["params"]["omitted_bytes"].is_u64(), "{kept}");
        }
    }

    #[test]
    fn a_rule_that_is_none_is_named() {
        for (rule, why) in [
            ("", BadRule::Malformed),
            ("-", BadRule::Malformed),
            ("/", BadRule::Malformed),
            ("/arguments/x", BadRule::Malformed),
            ("/params/~2", BadRule::Malformed),
            (&"x".repeat(MAX_RULE + 1), BadRule::TooLong),
        ] {
            assert_eq!(Redactor::new(&["a".to_owned(), rule.to_owned()]).unwrap_err(), (1, why), "{rule}");
        }
        assert!(Redactor::new(&["/error/data".to_owned()]).is_ok());
    }
}
