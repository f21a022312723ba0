//! Who is calling and what it can do.

use std::sync::Arc;

use bytes::Bytes;
use drawbridge_wire::ProtocolVersion;
use drawbridge_wire::json;

/// Whom a request is from. Part of every handle, pool key and stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The principal of a gateway that asks nobody who they are.
    pub fn anonymous() -> Self {
        Self::named("anonymous")
    }

    /// The principal called `name`.
    pub fn named(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How a client gives the answers a backend asks for while a call runs. A client that answers live also takes
/// changes unasked, one that answers by retry listens for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answers {
    /// By messages of their own, while the call goes on.
    Live,
    /// By sending the call again with the answers.
    ByRetry,
}

/// A client as far as a backend may know it.
#[derive(Debug, Clone)]
pub struct Client {
    /// Whom its requests are from.
    pub principal: Principal,
    /// The protocol version it speaks.
    pub version: ProtocolVersion,
    /// Its capabilities, a raw JSON object.
    pub capabilities: Bytes,
    /// Its `clientInfo`, a raw JSON object, if it gave one.
    pub info: Option<Bytes>,
    /// How it answers.
    pub answers: Answers,
}

/// Equal for clients that a backend can't tell apart but by their name. Lists of a backend may depend on all
/// of these, so nothing is shared across keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProfileKey {
    principal: Principal,
    version: ProtocolVersion,
    capabilities: Bytes,
    answers: Answers,
}

/// Capabilities that let a backend ask the client something.
const ASKING: [&str; 3] = ["elicitation", "sampling", "roots"];

impl Client {
    /// The key of its profile.
    pub fn profile(&self) -> ProfileKey {
        ProfileKey {
            principal: self.principal.clone(),
            version: self.version,
            capabilities: self.capabilities.clone(),
            answers: self.answers,
        }
    }

    /// Whether a backend may ask this client something.
    pub fn can_be_asked(&self) -> bool {
        ASKING.iter().any(|key| json::member(&self.capabilities, key).is_some())
    }

    /// The capabilities to declare to a backend whose asks come as `answers` says: all, or, where this client
    /// can't answer that way, those that promise no answer.
    pub fn capabilities_towards(&self, answers: Answers) -> Bytes {
        if self.answers == answers {
            return self.capabilities.clone();
        }
        json::filter_members(&self.capabilities, |key| !ASKING.contains(&key) && !is_era_bound(key))
    }

    /// The same client without the promise to handle tasks, for routes that can't tell whose task an id is.
    #[must_use]
    pub fn without_tasks(&self) -> Self {
        let capabilities = json::filter_members(&self.capabilities, |key| key != "tasks");
        let extensions = json::member(&capabilities, "extensions")
            .map(|raw| json::filter_members(raw, |key| key != TASKS_EXTENSION));
        let capabilities = match extensions {
            Some(raw) => json::replace_member(&capabilities, "extensions", &raw),
            None => capabilities,
        };
        Self { capabilities, ..self.clone() }
    }
}

const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Capabilities whose methods differ with how a client answers, so they hold on one side only.
fn is_era_bound(key: &str) -> bool {
    key == "tasks" || key == "extensions"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_answers_otherwise_promises_no_answers() {
        let client = Client {
            principal: Principal::anonymous(),
            version: ProtocolVersion::V2025_11_25,
            capabilities: Bytes::from_static(
                br#"{"sampling":{},"experimental":{"x": 1},"elicitation":{"url":{}}}"#,
            ),
            info: None,
            answers: Answers::Live,
        };
        assert!(client.can_be_asked());
        assert_eq!(client.capabilities_towards(Answers::Live), client.capabilities);
        assert_eq!(client.capabilities_towards(Answers::ByRetry), r#"{"experimental":{"x": 1}}"#);
    }
}
