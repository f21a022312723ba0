//! An endpoint: a path in front of one or more backends.
//!
//! With one backend it is transparent. With several, [`crate::aggregate`] routes and merges.

use std::sync::Arc;

use bytes::Bytes;
use drawbridge_wire::{json, method};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::aggregate::Aggregate;
use crate::audit::CallAudit;
use crate::backend::{Backend, BackendName, Conversation, Description};
use crate::call::{Call, Events};
use crate::client::{Answers, Client, TASKS_EXTENSION};
use crate::fault::Fault;
use crate::metrics;
use crate::rights::{Item, Kind, Rights, Selected, Selection, Verdict};
use crate::rounds::{self, Rounds};
use crate::seal::KeyRing;

/// Whoever makes calls: a session, or a client without one.
pub trait Conversing: Send + Sync {
    /// Who it is.
    fn client(&self) -> &Arc<Client>;

    /// Its conversation with the backend at `index` of the endpoint.
    fn conversation(&self, index: usize) -> Arc<dyn Conversation>;
}

/// What the default endpoint is called in metrics and logs. No other can have this name.
pub const DEFAULT: &str = "/mcp";

/// A path in front of backends.
pub struct Endpoint {
    name: Option<BackendName>,
    backends: Vec<Arc<dyn Backend>>,
    aggregate: Option<Aggregate>,
    rounds: Arc<Rounds>,
    metrics: Arc<metrics::Endpoint>,
    audit: Option<Arc<dyn CallAudit>>,
    selection: Arc<Selection>,
    asks_callers: bool,
    replaced: CancellationToken,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint called `name` (`None`: the default one) in front of `backends`.
    pub fn new(
        name: Option<BackendName>,
        backends: Vec<Arc<dyn Backend>>,
        keys: Arc<KeyRing>,
        rounds: Arc<Rounds>,
    ) -> Self {
        let aggregate = (backends.len() > 1).then(|| {
            let names = backends.iter().map(|b| b.name().clone()).collect();
            Aggregate::new(name.as_ref().map(ToString::to_string).unwrap_or_default(), names, keys)
        });
        Self {
            name,
            backends,
            aggregate,
            rounds,
            metrics: Arc::default(),
            audit: None,
            selection: Arc::default(),
            asks_callers: false,
            replaced: CancellationToken::new(),
        }
    }

    /// The same endpoint, whose requests are counted in `metrics`.
    #[must_use]
    pub fn counted(self, metrics: Arc<metrics::Endpoint>) -> Self {
        Self { metrics, ..self }
    }

    /// The same endpoint, whose requests are noted in `audit`.
    #[must_use]
    pub fn audited(self, audit: Option<Arc<dyn CallAudit>>) -> Self {
        Self { audit, ..self }
    }

    /// The same endpoint, which has only what is selected of what its backends have.
    #[must_use]
    pub fn selecting(self, selection: Selection) -> Self {
        Self { selection: Arc::new(selection), ..self }
    }

    /// The same endpoint, at which nobody may anything whose rights are not known.
    #[must_use]
    pub fn asking_callers(self, asks_callers: bool) -> Self {
        Self { asks_callers, ..self }
    }

    /// What it has of what its backends have.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Where its requests are noted, if they are.
    pub fn audit(&self) -> Option<&Arc<dyn CallAudit>> {
        self.audit.as_ref()
    }

    /// Where its requests are counted.
    pub fn metrics(&self) -> &metrics::Endpoint {
        &self.metrics
    }

    /// Cancelled when another endpoint has taken its place, or none. Calls that run go on; what lasts for as long as a
    /// client wants is to end.
    pub fn replaced(&self) -> &CancellationToken {
        &self.replaced
    }

    /// The backend that a request goes to, as far as that can be told without asking: the only one, the one that the
    /// name has as a prefix, or the one that is known to own the URI.
    pub fn backend_of(&self, method: &str, name: Option<&str>) -> Option<&BackendName> {
        let index = match &self.aggregate {
            None => 0,
            Some(aggregate) => aggregate.backend_of(method, name?)?,
        };
        self.backends.get(index).map(|backend| backend.name())
    }

    /// What is left here of what a caller may.
    pub fn here(&self, rights: Option<Arc<dyn Rights>>) -> Option<Arc<dyn Rights>> {
        if self.selection.is_everything() {
            return rights;
        }
        let (selection, is_merged) = (self.selection.clone(), self.aggregate.is_some());
        Some(Arc::new(Selected { selection, is_merged, rights }))
    }

    /// The scope that somebody with these rights lacks for the call of a tool, as far as that can be told without asking.
    pub fn lacks(&self, rights: &dyn Rights, tool: &str) -> Option<&'static str> {
        let (index, name) = match &self.aggregate {
            None => (0, tool.to_owned()),
            Some(aggregate) => (aggregate.backend_of(method::TOOLS_CALL, tool)?, aggregate.own_name(tool)?),
        };
        let backend = self.backends.get(index)?;
        let kind = Kind::Tool { reads: backend.reads(&name)? };
        match rights.on(&Item { backend: backend.name(), kind, name: &name }) {
            Verdict::Lacks(scope) => Some(scope),
            Verdict::Allowed | Verdict::Hidden => None,
        }
    }

    /// Its name; `None` for the default endpoint.
    pub fn name(&self) -> Option<&BackendName> {
        self.name.as_ref()
    }

    /// Its name for people: that of the default endpoint is its path.
    pub fn display_name(&self) -> &str {
        self.name.as_ref().map_or(DEFAULT, BackendName::as_str)
    }

    /// Its name in handles and messages; empty for the default endpoint.
    pub(crate) fn label(&self) -> String {
        self.name.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// The names of what is behind it, for messages.
    pub fn backend_names(&self) -> String {
        let names: Vec<_> = self.backends.iter().map(|backend| backend.name().as_str()).collect();
        names.join(" or ")
    }

    pub(crate) fn rounds(&self) -> &Arc<Rounds> {
        &self.rounds
    }

    /// What is behind it.
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }

    /// The one backend, where there is just one.
    fn only(&self) -> Option<&Arc<dyn Backend>> {
        self.aggregate.is_none().then(|| self.backends.first()).flatten()
    }

    /// What the endpoint is to `client`. With several backends, those that don't answer in time are left out;
    /// fails only if none does.
    pub async fn describe(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        if let Some(backend) = self.only() {
            return backend.describe(client).await;
        }
        let asked = self.backends.iter().map(|backend| async move {
            let waited = tokio::time::timeout(backend.list_timeout(), backend.describe(client)).await;
            let deadline = crate::fault::Deadline::List;
            let late = || Fault::Timeout { backend: backend.name().to_string(), deadline };
            let answer = waited.unwrap_or_else(|_| Err(late()));
            if let Err(fault) = &answer {
                tracing::warn!(backend.name = %backend.name(), error.code = fault.code(), "left out of the endpoint: {fault}");
            }
            answer
        });
        let answers = join_all(asked).await;
        let mut first_fault = None;
        let mut found = Vec::new();
        for (backend, answer) in self.backends.iter().zip(answers) {
            match answer {
                Ok(description) => found.push((backend.name().as_str(), description)),
                Err(fault) => first_fault = first_fault.or(Some(fault)),
            }
        }
        match first_fault {
            Some(fault) if found.is_empty() => Err(fault),
            _ => Ok(Arc::new(merge_descriptions(&found))),
        }
    }

    /// Starts a call, or goes on with one. What the backends ask of the client comes in the way that it answers.
    pub fn call(self: &Arc<Self>, who: &Arc<dyn Conversing>, mut call: Call) -> Events {
        if self.asks_callers && call.rights.is_none() {
            return crate::call::once(crate::call::Event::Fail(Fault::method_not_found(
                &call.request.method(),
            )));
        }
        call.rights = self.here(call.rights.take());
        match call.client.answers {
            Answers::Live => rounds::live(self, who, call),
            Answers::ByRetry => self.rounds.by_retry(self, who, call),
        }
    }

    /// Sends a call to the backend that it is for.
    pub(crate) fn route(self: &Arc<Self>, who: &Arc<dyn Conversing>, call: Call) -> Events {
        match &self.aggregate {
            None if self.backends.is_empty() => {
                crate::call::once(crate::call::Event::Fail(Fault::method_not_found(&call.request.method())))
            }
            None => who.conversation(0).call(call),
            Some(aggregate) => aggregate.call(self, who, call),
        }
    }

    pub(crate) fn aggregate(&self) -> Option<&Aggregate> {
        self.aggregate.as_ref()
    }
}

/// The `serverInfo` of the gateway itself, raw JSON.
pub const SERVER_INFO: &str =
    concat!(r#"{"name":"drawbridge","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// Capabilities that a merged endpoint can honour, each with all that one of its backends has of them. Others can't be
/// told apart by backend.
const MERGED: [&[&str]; 7] = [
    &["tools"],
    &["resources"],
    &["prompts"],
    &["completions"],
    &["logging"],
    &["tasks"],
    &["extensions", TASKS_EXTENSION],
];
/// How deep what capabilities say is looked at, and how much one object of it.
const MAX_DEPTH: usize = 4;
const MAX_MEMBERS: usize = 64;

/// An object with the members of all of `objects`; those that several have are merged in the same way, or are those of
/// the first that is not `false`.
fn union<'o>(objects: &[&'o [u8]], depth: usize) -> Bytes {
    let mut found: Vec<(String, Vec<&[u8]>)> = Vec::new();
    let members = |raw: &&'o [u8]| json::members(raw).unwrap_or_default().into_iter().take(MAX_MEMBERS);
    for (key, value) in objects.iter().flat_map(members) {
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => found.push((key.into_owned(), vec![value])),
        }
    }
    let merged: Vec<(String, Bytes)> = found
        .into_iter()
        .map(|(key, values)| {
            let value = if depth < MAX_DEPTH && values.iter().all(|value| value.starts_with(b"{")) {
                union(&values, depth + 1)
            } else {
                let said = values.iter().find(|value| **value != b"false").unwrap_or(&values[0]);
                Bytes::copy_from_slice(said)
            };
            (key, value)
        })
        .collect();
    json::object(merged.iter().map(|(key, value)| (key.as_str(), &value[..])))
}

fn merge_descriptions(found: &[(&str, Arc<Description>)]) -> Description {
    let mut parts = Vec::new();
    for path in MERGED {
        let offers: Vec<_> = found.iter().filter_map(|(_, d)| json::at(&d.capabilities, path)).collect();
        if !offers.is_empty() {
            let wrap = |inner: Bytes, key: &&str| json::object([(*key, &inner[..])]);
            parts.push(path.iter().rev().fold(union(&offers, 0), wrap));
        }
    }
    let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    let capabilities = union(&parts, 0);
    let instructions: Vec<String> = found
        .iter()
        .filter_map(|(name, d)| {
            let text = json::decode_string(d.instructions.as_deref()?)?;
            Some(format!("# {name}\n\n{text}"))
        })
        .collect();
    Description {
        server_info: SERVER_INFO.into(),
        capabilities,
        instructions: (!instructions.is_empty())
            .then(|| json::encode_string(&instructions.join("\n\n")).into()),
        meta: None,
        cache: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_merged_to_what_all_together_can_do() {
        let one = |capabilities: &'static str, instructions: Option<&'static str>| {
            Arc::new(Description {
                server_info: "{}".into(),
                capabilities: capabilities.into(),
                instructions: instructions.map(Into::into),
                meta: None,
                cache: None,
            })
        };
        let merged = merge_descriptions(&[
            (
                "a",
                one(
                    r#"{"tools":{},"tasks":{"list":{}},"resources":{"subscribe":true},"x":{}}"#,
                    Some("\"Ask first.\""),
                ),
            ),
            (
                "b",
                one(
                    r#"{"tools":{"listChanged":true},"tasks":{"requests":{"tools":{"call":{}}}},
                        "resources":{"subscribe":false},"extensions":{"io.modelcontextprotocol/tasks":{},"y":{}}}"#,
                    None,
                ),
            ),
        ]);
        assert_eq!(
            merged.capabilities,
            r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"tasks":{"list":{},"requests":{"tools":{"call":{}}}},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#
        );
        assert_eq!(merged.instructions.unwrap(), r##""# a\n\nAsk first.""##);
    }
}
