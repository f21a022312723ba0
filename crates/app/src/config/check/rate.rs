//! Checks of how often things may happen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use drawbridge_core::endpoint::DEFAULT;
use drawbridge_core::glob::{Glob, MAX_GLOB_BYTES};

use crate::config::check::Checker;
use crate::config::model::{Config, Rate, ToolRate};
use crate::config::problem::suggest;
use crate::config::raw::{self, Per};

/// What is meant if nobody says.
const WINDOW: Duration = Duration::from_secs(60);
/// More rules would make each call slow.
const MAX_TOOLS: usize = 100;

pub(super) fn rate(checker: &mut Checker<'_>, path: &str, raw: &raw::Rate) -> Rate {
    let window = checker.positive(&format!("{path}.window"), raw.window, WINDOW);
    Rate { requests: raw.requests, window, burst: raw.burst }
}

pub(super) fn endpoints(
    checker: &mut Checker<'_>,
    raw: BTreeMap<String, raw::Rate>,
) -> BTreeMap<String, Rate> {
    let checked = raw.into_iter().map(|(name, raw)| {
        let path = format!("limits.endpoints.{name}");
        let checked = rate(checker, &path, &raw);
        (name, checked)
    });
    checked.collect()
}

pub(super) fn tools(checker: &mut Checker<'_>, raw: Vec<raw::ToolRate>) -> Vec<ToolRate> {
    if raw.len() > MAX_TOOLS {
        let hint = format!("name {MAX_TOOLS} at most; a pattern such as `tickets__*` is for many tools");
        checker.problem("limits.tools", "too many", hint);
    }
    let mut checked = Vec::new();
    for (place, raw) in raw.into_iter().enumerate() {
        let path = format!("limits.tools[{place}]");
        let limited = raw::Rate { requests: raw.requests, window: raw.window, burst: raw.burst };
        let rate = rate(checker, &path, &limited);
        let Some(name) = Glob::parse(&raw.name) else {
            let hint =
                format!("write a name or a pattern of 1 to {MAX_GLOB_BYTES} bytes, such as `tickets__*`");
            checker.problem(&format!("{path}.name"), "not the name of a tool", hint);
            continue;
        };
        checked.push(ToolRate {
            name,
            rate,
            is_per_caller: raw.per == Some(Per::Caller),
            endpoint: raw.endpoint,
        });
    }
    checked
}

/// Checks that the endpoints exist that limits name. `known` has the names of all backends.
pub(super) fn names(checker: &mut Checker<'_>, config: &Config, known: &BTreeSet<String>) {
    let all: BTreeSet<&str> = known
        .iter()
        .chain(config.endpoints.keys())
        .map(String::as_str)
        .chain(std::iter::once(DEFAULT))
        .collect();
    let of_endpoints = config.limits.endpoints.keys().map(|name| (format!("limits.endpoints.{name}"), name));
    let of_tools = config.limits.tools.iter().enumerate();
    let of_tools = of_tools.filter_map(|(place, tool)| {
        Some((format!("limits.tools[{place}].endpoint"), tool.endpoint.as_ref()?))
    });
    for (path, name) in of_endpoints.chain(of_tools) {
        if !all.contains(name.as_str()) {
            let hint = suggest(name, all.iter().copied());
            checker.problem(&path, format!("there is no endpoint `{name}`"), hint);
        }
    }
}
