//! Who is calling and what it can do.

use std::sync::Arc;

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Message, ProtocolVersion, RpcError, code, json, method};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::fault::Fault;

/// Whom a request is from. Part of every handle, pool key and stream. Principals are the same if their names are.
#[derive(Debug, Clone)]
pub struct Principal {
    name: Arc<str>,
    subject: Option<Arc<Subject>>,
}

/// Who a caller is that was asked. Backends are told of it, if the configuration says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Whose name it is.
    #[serde(rename = "k")]
    pub kind: SubjectKind,
    /// The name.
    #[serde(rename = "n")]
    pub id: String,
    /// By which client it calls.
    #[serde(rename = "c")]
    pub client: String,
}

/// Who knows a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectKind {
    /// The gateway: it is the id of a user.
    User,
    /// The gateway: it is the name of a service.
    Service,
    /// An issuer of tokens, which alone knows what it means.
    External,
}

impl Principal {
    /// The principal of a gateway that asks nobody who they are.
    pub fn anonymous() -> Self {
        Self::named("anonymous")
    }

    /// The principal called `name`.
    pub fn named(name: &str) -> Self {
        Self { name: Arc::from(name), subject: None }
    }

    /// The same, which acts for `subject`. The name must be one that only this subject with this client has.
    #[must_use]
    pub fn of(self, subject: Subject) -> Self {
        Self { subject: Some(Arc::new(subject)), ..self }
    }

    /// Who it is, if it was asked.
    pub fn subject(&self) -> Option<&Subject> {
        self.subject.as_deref()
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The id of the user that it acts for, if it acts for one that the gateway knows.
    pub fn user(&self) -> Option<&str> {
        self.subject().filter(|subject| subject.kind == SubjectKind::User).map(|subject| &*subject.id)
    }
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Principal {}

impl std::hash::Hash for Principal {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
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
/// of these, so nothing is shared across keys but what a backend calls public.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProfileKey {
    principal: Principal,
    version: ProtocolVersion,
    capabilities: Bytes,
    answers: Answers,
}

impl ProfileKey {
    /// A digest that all instances of the gateway agree on.
    pub fn digest(&self) -> [u8; 16] {
        let mut hash = Sha256::new();
        let parts =
            [self.principal.as_str().as_bytes(), self.version.as_str().as_bytes(), &self.capabilities];
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update([u8::from(self.answers == Answers::Live)]);
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.finalize()[..16]);
        digest
    }
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
        ASKING.iter().any(|key| self.declared(key).is_some())
    }

    /// What the client declares under `capability`, if its version has such a thing.
    fn declared(&self, capability: &str) -> Option<&[u8]> {
        let known = capability != "elicitation" || self.version.has_elicitation();
        known.then(|| json::member(&self.capabilities, capability)).flatten()
    }

    /// Whether the client said that it answers `ask`: its kind, and the mode or the tools that it is about.
    pub fn declares(&self, ask: &Message) -> bool {
        let params = ask.raw(Field::Params).unwrap_or(b"{}");
        match ask.method().as_ref() {
            method::ELICITATION_CREATE => self.declared("elicitation").is_some_and(|modes| {
                let has = |mode| json::member(modes, mode).is_some();
                // No mode at all means forms.
                if is_by_url(params) { has("url") } else { has("form") || !has("url") }
            }),
            method::SAMPLING_CREATE_MESSAGE => self.declared("sampling").is_some_and(|sampling| {
                let with_tools =
                    ["tools", "toolChoice"].iter().any(|key| json::member(params, key).is_some());
                !with_tools || json::member(sampling, "tools").is_some()
            }),
            method::ROOTS_LIST => self.declared("roots").is_some(),
            _ => false,
        }
    }

    /// Whether it answers by retry and said that it knows the extension for tasks.
    pub fn knows_tasks_extension(&self) -> bool {
        self.answers == Answers::ByRetry
            && json::at(&self.capabilities, &["extensions", TASKS_EXTENSION]).is_some()
    }

    /// Refuses what is about tasks to a client that did not say that it knows them.
    ///
    /// # Errors
    ///
    /// If it didn't.
    pub fn need_tasks_extension(&self) -> Result<(), Fault> {
        if self.knows_tasks_extension() {
            return Ok(());
        }
        let needed = format!(r#"{{"requiredCapabilities":{{"extensions":{{"{TASKS_EXTENSION}":{{}}}}}}}}"#);
        let what = "the client did not declare the extension for tasks";
        Err(Fault::Rpc(RpcError::new(code::MISSING_CLIENT_CAPABILITY, what).with_data(needed)))
    }

    /// The capabilities to declare to a backend whose asks come as `answers` says. Where the client gives its answers
    /// the other way, the engine turns one into the other; what only one way has is left out.
    pub fn capabilities_towards(&self, answers: Answers) -> Bytes {
        if self.answers == answers {
            return self.capabilities.clone();
        }
        let members = json::members(&self.capabilities).unwrap_or_default();
        let kept: Vec<(&str, Bytes)> = members
            .iter()
            .filter(|(key, _)| key != "tasks" && (key != "elicitation" || self.version.has_elicitation()))
            .map(|(key, value)| (key.as_ref(), bridged(key, value)))
            .collect();
        let capabilities = json::object(kept.iter().map(|(key, value)| (*key, &value[..])));
        if answers == Answers::Live {
            return capabilities;
        }
        // Tasks become answers on the way, so any client can take them.
        let extensions = json::member(&capabilities, "extensions").unwrap_or(b"{}");
        let extensions = json::replace_member(extensions, TASKS_EXTENSION, b"{}");
        json::replace_member(&capabilities, "extensions", &extensions)
    }
}

/// The extension for tasks of 2026-07-28.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A capability as it can be promised where asks come the other way.
fn bridged(key: &str, value: &[u8]) -> Bytes {
    let drop = match key {
        // Nobody could be told.
        "roots" => "listChanged",
        "extensions" => TASKS_EXTENSION,
        _ => return Bytes::copy_from_slice(value),
    };
    if value.starts_with(b"{") {
        json::filter_members(value, |k| k != drop)
    } else {
        Bytes::copy_from_slice(value)
    }
}

/// Whether an elicitation with these `params` wants a URL to be opened, instead of a form to be filled in.
pub fn is_by_url(params: &[u8]) -> bool {
    json::member(params, "mode").and_then(json::decode_string).as_deref() == Some("url")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Somebody with a session.
    pub(crate) fn somebody() -> Arc<Client> {
        Arc::new(client(ProtocolVersion::V2025_11_25, "{}"))
    }

    fn client(version: ProtocolVersion, capabilities: &'static str) -> Client {
        Client {
            principal: Principal::anonymous(),
            version,
            capabilities: Bytes::from_static(capabilities.as_bytes()),
            info: None,
            answers: Answers::Live,
        }
    }

    #[test]
    fn what_only_one_era_has_is_not_promised_to_the_other() {
        let capabilities = r#"{"sampling":{},"tasks":{},"roots":{"listChanged":true},"elicitation":{"url":{}},"extensions":{"io.modelcontextprotocol/tasks":{},"a/b":{"x": 1}}}"#;
        let client = client(ProtocolVersion::V2025_11_25, capabilities);
        assert!(client.can_be_asked());
        assert_eq!(client.capabilities_towards(Answers::Live), capabilities);
        assert_eq!(
            client.capabilities_towards(Answers::ByRetry),
            r#"{"sampling":{},"roots":{},"elicitation":{"url":{}},"extensions":{"a/b":{"x": 1},"io.modelcontextprotocol/tasks":{}}}"#
        );
    }

    #[test]
    fn a_client_declares_what_its_version_has_in_the_modes_it_names() {
        let ask = |method: &str, params: &str| {
            Message::request(&drawbridge_wire::Id::from_number(1), method, params.as_bytes())
        };
        let form = ask("elicitation/create", r#"{"message":"?","requestedSchema":{}}"#);
        let url = ask("elicitation/create", r#"{"mode":"url","message":"?","url":"https://x"}"#);
        let sample = ask("sampling/createMessage", r#"{"messages":[]}"#);
        let tools = ask("sampling/createMessage", r#"{"messages":[],"tools":[]}"#);
        let roots = ask("roots/list", "{}");
        for (version, capabilities, declared) in [
            (ProtocolVersion::V2025_11_25, "{}", [false, false, false, false, false]),
            (ProtocolVersion::V2025_11_25, r#"{"elicitation":{}}"#, [true, false, false, false, false]),
            (
                ProtocolVersion::V2025_11_25,
                r#"{"elicitation":{"url":{}}}"#,
                [false, true, false, false, false],
            ),
            (
                ProtocolVersion::V2025_06_18,
                r#"{"elicitation":{},"sampling":{}}"#,
                [true, false, true, false, false],
            ),
            (
                ProtocolVersion::V2025_03_26,
                r#"{"elicitation":{},"roots":{}}"#,
                [false, false, false, false, true],
            ),
            (ProtocolVersion::V2025_11_25, r#"{"sampling":{"tools":{}}}"#, [false, false, true, true, false]),
        ] {
            let client = client(version, capabilities);
            let found = [&form, &url, &sample, &tools, &roots].map(|ask| client.declares(ask));
            assert_eq!(found, declared, "{version} {capabilities}");
        }
    }
}
