//! Checks of who may what, down to single tools.

use std::collections::BTreeSet;

use drawbridge_auth::identity::Kind;
use drawbridge_auth::policy::{Effect, Rule, What, When};
use drawbridge_auth::scope;
use drawbridge_core::endpoint::DEFAULT;
use drawbridge_core::glob::{Glob, MAX_GLOB_BYTES};
use drawbridge_core::rights::{Patterns, Selection};
use ipnet::IpNet;

use crate::config::check::Checker;
use crate::config::model::Config;
use crate::config::problem::suggest;
use crate::config::raw::{self, AuthMode, CallerKind, Given};

/// More rules would make each call slow.
const MAX_RULES: usize = 1000;

/// The list under a key, if there is a key. One with nothing in it is none.
fn list(checker: &mut Checker<'_>, path: &str, raw: Given<Vec<String>>) -> Option<Vec<String>> {
    match raw {
        Given::Absent => None,
        Given::Value(list) if !list.is_empty() => Some(list),
        Given::Nothing | Given::Value(_) => {
            let hint = "name some, or remove the key, which then stands for all";
            checker.problem(path, "the list is empty", hint);
            None
        }
    }
}

/// The patterns in the list under a key.
fn patterns(checker: &mut Checker<'_>, path: &str, raw: Given<Vec<String>>) -> Vec<Glob> {
    let list = list(checker, path, raw);
    globs(checker, path, list.as_ref())
}

/// Patterns, each of which is one.
pub(super) fn globs(checker: &mut Checker<'_>, path: &str, raw: Option<&Vec<String>>) -> Vec<Glob> {
    let mut checked = Vec::new();
    for (place, text) in raw.into_iter().flatten().enumerate() {
        match Glob::parse(text) {
            Some(glob) => checked.push(glob),
            None => {
                let hint = format!(
                    "write a name, or a pattern of 1 to {MAX_GLOB_BYTES} bytes in which `*` is any text"
                );
                checker.problem(&format!("{path}[{place}]"), "neither a name nor a pattern", hint);
            }
        }
    }
    checked
}

pub(super) fn selection(
    checker: &mut Checker<'_>,
    path: &str,
    [tools, prompts, resources]: [Option<raw::Patterns>; 3],
) -> Selection {
    let mut of = |key: &str, raw: Option<raw::Patterns>| {
        let raw::Patterns { allow, deny } = raw.unwrap_or_default();
        Patterns {
            allow: patterns(checker, &format!("{path}.{key}.allow"), allow),
            deny: patterns(checker, &format!("{path}.{key}.deny"), deny),
        }
    };
    Selection {
        tools: of("tools", tools),
        prompts: of("prompts", prompts),
        resources: of("resources", resources),
    }
}

pub(super) fn policies(
    checker: &mut Checker<'_>,
    raw: Given<Vec<raw::Policy>>,
    mode: AuthMode,
) -> Option<Vec<Rule>> {
    let raw = match raw {
        Given::Absent => return None,
        Given::Value(raw) => raw,
        Given::Nothing => {
            let hint = "write policies, `[]` to deny everything, or remove the key to allow everything";
            checker.problem("policies", "there is nothing under it", hint);
            return None;
        }
    };
    if mode == AuthMode::None {
        let hint = "set `auth.mode`; to leave something out for everybody, use `tools` of an endpoint";
        checker.problem("policies", "nobody is asked who they are, so nothing can depend on it", hint);
    }
    if raw.len() > MAX_RULES {
        let hint = format!("write {MAX_RULES} at most; a pattern is for many tools");
        checker.problem("policies", "too many", hint);
    }
    let rules = raw.into_iter().enumerate();
    Some(rules.filter_map(|(place, raw)| rule(checker, &format!("policies[{place}]"), raw)).collect())
}

fn rule(checker: &mut Checker<'_>, path: &str, raw: raw::Policy) -> Option<Rule> {
    let (effect, key, matter) = match (raw.allow, raw.deny) {
        (Some(allow), None) => (Effect::Allow, "allow", allow),
        (None, Some(deny)) => (Effect::Deny, "deny", deny),
        _ if checker.is_incomplete(path) => return None,
        _ => {
            let hint = "write `allow: { backends: [...], tools: [...] }`, or `deny`";
            checker.problem(path, "a policy has `allow` or `deny`, and not both", hint);
            return None;
        }
    };
    let path_of = |name: &str| format!("{path}.{key}.{name}");
    if matter.backends.is_empty() {
        checker.problem(&path_of("backends"), "the list is empty", "name backends, or `\"*\"` for all");
    }
    let backends = globs(checker, &path_of("backends"), Some(&matter.backends));
    let what = What {
        tools: patterns(checker, &path_of("tools"), matter.tools),
        prompts: patterns(checker, &path_of("prompts"), matter.prompts),
        resources: patterns(checker, &path_of("resources"), matter.resources),
    };
    let path = format!("{path}.when");
    let is_absent = matches!(raw.when, Given::Absent);
    let when = match raw.when {
        Given::Absent => When::default(),
        Given::Value(raw) => when(checker, &path, raw),
        Given::Nothing => When::default(),
    };
    if when == When::default() && !checker.is_incomplete(&path) && !is_absent {
        let hint = "name whom it is for, or remove the key, which then stands for everybody";
        checker.problem(&path, "there is nothing under it", hint);
    }
    Some(Rule { effect, backends, what, when })
}

fn when(checker: &mut Checker<'_>, path: &str, raw: raw::When) -> When {
    let path_of = |name: &str| format!("{path}.{name}");
    let mut networks = Vec::new();
    for (place, text) in list(checker, &path_of("networks"), raw.networks).iter().flatten().enumerate() {
        match text.parse::<IpNet>() {
            Ok(network) => networks.push(network),
            Err(_) => {
                let hint = "write it as `10.20.0.0/16`";
                checker.problem(&format!("{path}.networks[{place}]"), "not a network", hint);
            }
        }
    }
    let scopes = list(checker, &path_of("scopes_all"), raw.scopes_all).unwrap_or_default();
    for (place, name) in scopes.iter().enumerate() {
        if !scope::OFFERED.contains(&name.as_str()) {
            let hint = suggest(name, scope::OFFERED);
            checker.problem(
                &format!("{path}.scopes_all[{place}]"),
                format!("there is no scope `{name}`"),
                hint,
            );
        }
    }
    let kind = match raw.kind {
        Given::Absent => None,
        Given::Value(CallerKind::User) => Some(Kind::User),
        Given::Value(CallerKind::Service) => Some(Kind::Service),
        Given::Nothing => {
            checker.problem(&path_of("kind"), "there is nothing under it", "write `user` or `service`");
            None
        }
    };
    let mut names = |key: &str, raw| list(checker, &path_of(key), raw).unwrap_or_default();
    let (groups_any, endpoints) = (names("groups_any", raw.groups_any), names("endpoints", raw.endpoints));
    When {
        kind,
        subjects: patterns(checker, &path_of("subjects"), raw.subjects),
        groups_any: groups_any.into_iter().collect(),
        scopes_all: scopes.into_iter().collect(),
        clients: patterns(checker, &path_of("clients"), raw.clients),
        endpoints: endpoints.into_iter().collect(),
        networks,
    }
}

/// Checks that there is what policies name. `known` has the names of all backends.
pub(super) fn names(checker: &mut Checker<'_>, config: &Config, known: &BTreeSet<String>) {
    let endpoints: BTreeSet<&str> = known
        .iter()
        .chain(config.endpoints.keys())
        .map(String::as_str)
        .chain(std::iter::once(DEFAULT))
        .collect();
    for (place, rule) in config.policies.iter().flatten().enumerate() {
        let key = if rule.effect == Effect::Allow { "allow" } else { "deny" };
        for (n, glob) in rule.backends.iter().enumerate() {
            if !known.iter().any(|name| glob.matches(name)) {
                let path = format!("policies[{place}].{key}.backends[{n}]");
                let hint = suggest(glob.as_str(), known.iter().map(String::as_str));
                checker.problem(&path, format!("there is no backend `{}`", glob.as_str()), hint);
            }
        }
        let prefixed = |glob: &&Glob| {
            let prefix = glob.as_str().split_once("__").map(|(prefix, _)| prefix);
            prefix.is_some_and(|prefix| known.contains(prefix))
        };
        if let Some(glob) = rule.what.tools.iter().chain(&rule.what.prompts).find(prefixed) {
            let path = format!("policies[{place}].{key}");
            let message = format!(
                "{path}: `{}` begins as on paths with several backends; policies have the names that the backend has",
                glob.as_str()
            );
            checker.notice(&path, message);
        }
        for (n, name) in rule.when.endpoints.iter().enumerate() {
            if !endpoints.contains(name.as_str()) {
                let path = format!("policies[{place}].when.endpoints[{n}]");
                let hint = suggest(name, endpoints.iter().copied());
                checker.problem(&path, format!("there is no endpoint `{name}`"), hint);
            }
        }
    }
}
