//! Who may what, as it is written.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// A value whose key may be absent, which is not the same as there with nothing under it: who comments out what stands
/// there means something else than everybody or everything.
#[derive(Debug, Default)]
pub(in crate::config) enum Given<T> {
    /// There is no key.
    #[default]
    Absent,
    /// There is nothing under it.
    Nothing,
    /// This.
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(from)?.map_or(Self::Nothing, Self::Value))
    }
}

impl<T: JsonSchema> JsonSchema for Given<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }
}

/// What somebody may, or may not.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Policy {
    /// This is allowed.
    pub(in crate::config) allow: Option<Matter>,
    /// Or this is denied, whatever else allows it.
    pub(in crate::config) deny: Option<Matter>,
    /// To whom: all that is named has to fit. Everybody where absent.
    #[serde(default)]
    pub(in crate::config) when: Given<When>,
}

/// What a policy is about. One that names neither tools nor prompts nor resources is about all of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Matter {
    /// Names of backends; in all of these lists `*` is any text.
    #[schemars(length(min = 1))]
    pub(in crate::config) backends: Vec<String>,
    /// Tools, as their backend calls them.
    #[serde(default)]
    pub(in crate::config) tools: Given<Vec<String>>,
    /// Prompts, as their backend calls them.
    #[serde(default)]
    pub(in crate::config) prompts: Given<Vec<String>>,
    /// URIs of resources.
    #[serde(default)]
    pub(in crate::config) resources: Given<Vec<String>>,
}

/// Whom a policy is for.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct When {
    /// People, or programs.
    #[serde(default)]
    pub(in crate::config) kind: Given<CallerKind>,
    /// One of these: ids of users, their subjects at the identity provider, names of services.
    #[serde(default)]
    pub(in crate::config) subjects: Given<Vec<String>>,
    /// Members of one of these groups.
    #[serde(default)]
    pub(in crate::config) groups_any: Given<Vec<String>>,
    /// With all of these scopes.
    #[serde(default)]
    pub(in crate::config) scopes_all: Given<Vec<String>>,
    /// By one of these clients.
    #[serde(default)]
    pub(in crate::config) clients: Given<Vec<String>>,
    /// At one of these endpoints; `/mcp` is the default one.
    #[serde(default)]
    pub(in crate::config) endpoints: Given<Vec<String>>,
    /// From one of these networks, in CIDR notation.
    #[serde(default)]
    pub(in crate::config) networks: Given<Vec<String>>,
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum CallerKind {
    /// A person, or what acts for one.
    User,
    /// A program of its own.
    Service,
}

/// What is done about a tool for which a caller lacks a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepUp {
    /// It is not there for that caller.
    #[default]
    Hide,
    /// It is listed, and its call is answered with how to get the scope.
    Challenge,
}

/// Names that are meant, and of these some that are not; `*` is any text.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Patterns {
    /// All where absent.
    #[serde(default)]
    pub(in crate::config) allow: Given<Vec<String>>,
    /// Wins over `allow`.
    #[serde(default)]
    pub(in crate::config) deny: Given<Vec<String>>,
}
