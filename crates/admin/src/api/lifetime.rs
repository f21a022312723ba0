//! How long a token is to be good: `90d`, a number of seconds, or `null` for ever.

use std::borrow::Cow;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A time from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(pub(crate) Duration);

impl<'de> Deserialize<'de> for Lifetime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form<'a> {
            Seconds(u64),
            Text(Cow<'a, str>),
        }
        let wrong = || D::Error::custom("a time such as \"90d\", or a number of seconds, is needed");
        match Form::deserialize(deserializer).map_err(|_| wrong())? {
            Form::Seconds(seconds) => Ok(Self(Duration::from_secs(seconds))),
            Form::Text(text) => humantime::parse_duration(&text).map(Self).map_err(|_| wrong()),
        }
    }
}

impl PartialSchema for Lifetime {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).examples([serde_json::json!("90d")]);
        let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
        OneOfBuilder::new().item(text).item(seconds).into()
    }
}

impl ToSchema for Lifetime {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Lifetime")
    }
}

/// Tells a member that is `null` from one that is missing.
pub(crate) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<Lifetime>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
