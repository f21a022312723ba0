//! Who may what, as it is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What somebody may, or may not.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Policy {
    /// This is allowed.
    pub(in crate::config) allow: Option<Matter>,
    /// Or this is denied, whatever else allows it.
    pub(in crate::config) deny: Option<Matter>,
    /// To whom: all that is named has to fit. Everybody where absent.
    pub(in crate::config) when: Option<When>,
}

/// What a policy is about. One that names neither tools nor prompts nor resources is about all of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Matter {
    /// Names of backends; in all of these lists `*` is any text.
    #[schemars(length(min = 1))]
    pub(in crate::config) backends: Vec<String>,
    /// Tools, as their backend calls them.
    pub(in crate::config) tools: Option<Vec<String>>,
    /// Prompts, as their backend calls them.
    pub(in crate::config) prompts: Option<Vec<String>>,
    /// URIs of resources.
    pub(in crate::config) resources: Option<Vec<String>>,
}

/// Whom a policy is for.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct When {
    /// People, or programs.
    pub(in crate::config) kind: Option<CallerKind>,
    /// One of these: ids of users, their subjects at the identity provider, names of services.
    pub(in crate::config) subjects: Option<Vec<String>>,
    /// Members of one of these groups.
    pub(in crate::config) groups_any: Option<Vec<String>>,
    /// With all of these scopes.
    pub(in crate::config) scopes_all: Option<Vec<String>>,
    /// By one of these clients.
    pub(in crate::config) clients: Option<Vec<String>>,
    /// At one of these endpoints; `/mcp` is the default one.
    pub(in crate::config) endpoints: Option<Vec<String>>,
    /// From one of these networks, in CIDR notation.
    pub(in crate::config) networks: Option<Vec<String>>,
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
    pub(in crate::config) allow: Option<Vec<String>>,
    /// Wins over `allow`.
    pub(in crate::config) deny: Option<Vec<String>>,
}
