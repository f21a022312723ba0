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
use crate::config::raw::{self, AuthMode, CallerKind};

/// More rules would make each call slow.
const MAX_RULES: usize = 1000;

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

pub(super) fn selection(checker: &mut Checker<'_>, path: &str, raw: &raw::Endpoint) -> Selection {
    let mut patterns = |key: &str, raw: Option<&raw::Patterns>| Patterns {
        allow: globs(checker, &format!("{path}.{key}.allow"), raw.and_then(|raw| raw.allow.as_ref())),
        deny: globs(checker, &format!("{path}.{key}.deny"), raw.and_then(|raw| raw.deny.as_ref())),
    };
    Selection {
        tools: patterns("tools", raw.tools.as_ref()),
        prompts: patterns("prompts", raw.prompts.as_ref()),
        resources: patterns("resources", raw.resources.as_ref()),
    }
}

pub(super) fn policies(
    checker: &mut Checker<'_>,
    raw: Option<Vec<raw::Policy>>,
    mode: AuthMode,
) -> Option<Vec<Rule>> {
    let raw = raw?;
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
        tools: globs(checker, &path_of("tools"), matter.tools.as_ref()),
        prompts: globs(checker, &path_of("prompts"), matter.prompts.as_ref()),
        resources: globs(checker, &path_of("resources"), matter.resources.as_ref()),
    };
    for (name, list) in
        [("tools", &matter.tools), ("prompts", &matter.prompts), ("resources", &matter.resources)]
    {
        if list.as_ref().is_some_and(Vec::is_empty) {
            let hint = "name some, or remove the key; a policy that names nothing is about everything";
            checker.problem(&path_of(name), "the list is empty", hint);
        }
    }
    let when = when(checker, &format!("{path}.when"), raw.when.unwrap_or_default());
    Some(Rule { effect, backends, what, when })
}

fn when(checker: &mut Checker<'_>, path: &str, raw: raw::When) -> When {
    let mut networks = Vec::new();
    for (place, text) in raw.networks.iter().flatten().enumerate() {
        match text.parse::<IpNet>() {
            Ok(network) => networks.push(network),
            Err(_) => {
                let hint = "write it as `10.20.0.0/16`";
                checker.problem(&format!("{path}.networks[{place}]"), "not a network", hint);
            }
        }
    }
    for (place, name) in raw.scopes_all.iter().flatten().enumerate() {
        if !scope::OFFERED.contains(&name.as_str()) {
            let hint = suggest(name, scope::OFFERED);
            checker.problem(
                &format!("{path}.scopes_all[{place}]"),
                format!("there is no scope `{name}`"),
                hint,
            );
        }
    }
    let kind = raw.kind.map(|kind| match kind {
        CallerKind::User => Kind::User,
        CallerKind::Service => Kind::Service,
    });
    When {
        kind,
        subjects: globs(checker, &format!("{path}.subjects"), raw.subjects.as_ref()),
        groups_any: raw.groups_any.unwrap_or_default().into_iter().collect(),
        scopes_all: raw.scopes_all.unwrap_or_default().into_iter().collect(),
        clients: globs(checker, &format!("{path}.clients"), raw.clients.as_ref()),
        endpoints: raw.endpoints.unwrap_or_default().into_iter().collect(),
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
        for (n, name) in rule.when.endpoints.iter().enumerate() {
            if !endpoints.contains(name.as_str()) {
                let path = format!("policies[{place}].when.endpoints[{n}]");
                let hint = suggest(name, endpoints.iter().copied());
                checker.problem(&path, format!("there is no endpoint `{name}`"), hint);
            }
        }
    }
}
