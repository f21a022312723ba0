//! Checks of names and of the endpoints that refer to them.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::check::{Checker, policies, rate};
use crate::config::model::{Config, Endpoint};
use crate::config::problem::suggest;
use crate::config::raw;

/// Names that a path below an endpoint already uses.
pub(in crate::config) const RESERVED: [&str; 2] = ["sse", "messages"];

/// Why a name can't be used.
pub(in crate::config) struct NameFault {
    pub(in crate::config) message: String,
    pub(in crate::config) hint: &'static str,
}

/// The fault of a backend or endpoint name, if it has one.
pub(in crate::config) fn name_fault(name: &str) -> Option<NameFault> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if RESERVED.contains(&name) {
        let message = format!("the name `{name}` is reserved for paths of the gateway");
        return Some(NameFault { message, hint: "choose another name" });
    }
    if name.is_empty() || name.len() > 32 || !name.bytes().all(allowed) {
        let hint = "use 1 to 32 lower-case letters, digits or `-`";
        return Some(NameFault { message: "not a usable name".to_owned(), hint });
    }
    None
}

/// Checks the endpoints against the backends of all files and adds them to the configuration.
///
/// `known` holds every backend that was named, also those with a fault of their own.
pub(in crate::config) fn endpoints(
    checker: &mut Checker<'_>,
    config: &mut Config,
    known: &BTreeSet<String>,
    raw: BTreeMap<String, raw::Endpoint>,
) {
    for (name, endpoint) in raw {
        let path = format!("endpoints.{name}");
        if let Some(fault) = name_fault(&name) {
            checker.problem(&path, fault.message, fault.hint);
        }
        if known.contains(&name) {
            let message = format!("a backend is called `{name}` too, and both would be `/mcp/{name}`");
            checker.problem(&path, message, "rename one of them");
        }
        members(checker, &path, known, &endpoint.backends);
        let of = [endpoint.tools, endpoint.prompts, endpoint.resources];
        let selection = policies::selection(checker, &path, of);
        config.endpoints.insert(name, Endpoint { backends: endpoint.backends, selection });
    }
    rate::names(checker, config, known);
    policies::names(checker, config, known);
}

fn members(checker: &mut Checker<'_>, path: &str, known: &BTreeSet<String>, members: &[String]) {
    if members.is_empty() {
        checker.problem(&format!("{path}.backends"), "the list is empty", "name at least one backend");
    }
    for (index, member) in members.iter().enumerate() {
        let path = format!("{path}.backends[{index}]");
        if !known.contains(member) {
            let hint = match known.is_empty() {
                true => "declare it under `backends` first".to_owned(),
                false => suggest(member, known.iter().map(String::as_str)),
            };
            checker.problem(&path, format!("there is no backend `{member}`"), hint);
        } else if members[..index].contains(member) {
            checker.problem(&path, format!("the backend `{member}` is named twice"), "keep one of the two");
        }
    }
}
