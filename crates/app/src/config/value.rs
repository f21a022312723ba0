//! Values with a form of their own: sizes, durations, secrets.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// The longest duration a file may name: a longer one is a slip, and would overflow a clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A size in bytes: a whole number, or text such as `16MiB`, `64KiB`, `4MB`; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteSize(pub(super) usize);

impl ByteSize {
    fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor: usize = match unit.strip_prefix(' ').unwrap_or(unit) {
            "" | "B" => 1,
            "kB" | "KB" => 1000,
            "KiB" => 1 << 10,
            "MB" => 1_000_000,
            "MiB" => 1 << 20,
            "GB" => 1_000_000_000,
            "GiB" => 1 << 30,
            _ => return None,
        };
        let bytes = number.parse::<usize>().ok()?.checked_mul(factor)?;
        (bytes > 0).then_some(Self(bytes))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size above 0, in bytes or with a unit such as `64KiB` or `16MiB`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
        ByteSize::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<ByteSize, E> {
        match usize::try_from(bytes) {
            Ok(bytes) if bytes > 0 => Ok(ByteSize(bytes)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(bytes), &self)),
        }
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<ByteSize, E> {
        match u64::try_from(bytes) {
            Ok(bytes) => self.visit_u64(bytes),
            Err(_negative) => Err(E::invalid_value(Unexpected::Signed(bytes), &self)),
        }
    }
}

impl JsonSchema for ByteSize {
    fn inline_schema() -> bool {
        false
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a size in bytes: a whole number, or text with a unit such as `64KiB` or `16MiB`",
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "string", "pattern": "^0*[1-9][0-9]* ?(B|kB|KB|KiB|MB|MiB|GB|GiB)?$" },
            ],
        })
    }
}

/// A length of time such as `30s`, `10m` or `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with a unit such as `500ms`, `30s`, `10m` or `1h`, at most `365d`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
        match humantime::parse_duration(text) {
            Ok(duration) if duration <= LONGEST && text != "0" => Ok(Span(duration)),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        false
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a duration with a unit, such as `500ms`, `30s`, `10m` or `1h`, at most `365d`",
            "type": "string",
            "pattern": "^\\s*([0-9]+\\s*[a-zA-Z]+\\s*)+$",
        })
    }
}

/// How long something is kept: a duration, or `forever`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retention(pub(super) Option<Duration>);

/// A longer time is a slip.
const LONGEST_KEPT: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

impl<'de> Deserialize<'de> for Retention {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RetentionVisitor)
    }
}

struct RetentionVisitor;

impl Visitor<'_> for RetentionVisitor {
    type Value = Retention;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`forever`, or a duration with a unit such as `30d` or `7years`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Retention, E> {
        if text == "forever" {
            return Ok(Retention(None));
        }
        match humantime::parse_duration(text) {
            Ok(kept) if kept <= LONGEST_KEPT && text != "0" => Ok(Retention(Some(kept))),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

impl JsonSchema for Retention {
    fn inline_schema() -> bool {
        false
    }

    fn schema_name() -> Cow<'static, str> {
        "Retention".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`forever`, or a duration with a unit, such as `30d` or `7years`",
            "type": "string",
            "pattern": "^(forever|\\s*([0-9]+\\s*[a-zA-Z]+\\s*)+)$",
        })
    }
}

/// A secret as written: a literal, or the place where it is kept.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum SecretSource {
    Literal(String),
    Env(String),
    File(PathBuf),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretReference {
    env: Option<String>,
    file: Option<PathBuf>,
}

impl<'de> Deserialize<'de> for SecretSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

struct SecretVisitor;

impl SecretVisitor {
    /// A number or a truth value has already lost its spelling (`0x1f`, `007`), so it can't be a secret.
    fn refuse<E: Error>() -> E {
        E::custom("expected text in quotes, `{ env: NAME }` or `{ file: PATH }`")
    }
}

impl<'de> Visitor<'de> for SecretVisitor {
    type Value = SecretSource;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, `{ env: NAME }` or `{ file: PATH }`")
    }

    fn visit_str<E>(self, text: &str) -> Result<SecretSource, E> {
        Ok(SecretSource::Literal(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<SecretSource, E> {
        Err(Self::refuse())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<SecretSource, E> {
        Err(Self::refuse())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<SecretSource, E> {
        Err(Self::refuse())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<SecretSource, E> {
        Err(Self::refuse())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SecretSource, A::Error> {
        let reference = SecretReference::deserialize(MapAccessDeserializer::new(map))?;
        match (reference.env, reference.file) {
            (Some(name), None) => Ok(SecretSource::Env(name)),
            (None, Some(path)) => Ok(SecretSource::File(path)),
            _ => Err(A::Error::custom("expected exactly one of the keys `env` and `file`")),
        }
    }
}

impl JsonSchema for SecretSource {
    fn inline_schema() -> bool {
        false
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a secret: the text itself, or the environment variable or file that holds it",
            "anyOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "env": { "type": "string" } },
                    "required": ["env"],
                    "additionalProperties": false,
                },
                {
                    "type": "object",
                    "properties": { "file": { "type": "string" } },
                    "required": ["file"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}
