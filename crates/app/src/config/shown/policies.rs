//! Who may what.

use drawbridge_auth::policy::{Effect, Rule, What, When};
use drawbridge_core::glob::Glob;
use drawbridge_core::rights::{Patterns, Selection};

use super::Sheet;

pub(super) fn patterns(globs: &[Glob]) -> Vec<&str> {
    globs.iter().map(Glob::as_str).collect()
}

pub(super) fn selection(sheet: &mut Sheet, key: &str, selection: &Selection) {
    let Selection { tools, prompts, resources } = selection;
    for (name, Patterns { allow, deny }) in [("tools", tools), ("prompts", prompts), ("resources", resources)]
    {
        sheet.put(&format!("{key}.{name}.allow"), patterns(allow));
        sheet.put(&format!("{key}.{name}.deny"), patterns(deny));
    }
}

pub(super) fn rules(sheet: &mut Sheet, rules: &[Rule]) {
    for (index, Rule { effect, backends, what, when }) in rules.iter().enumerate() {
        let key = format!("policies[{index}]");
        let about = format!("{key}.{}", if *effect == Effect::Allow { "allow" } else { "deny" });
        let What { tools, prompts, resources } = what;
        sheet.put(&format!("{about}.backends"), patterns(backends));
        sheet.put(&format!("{about}.tools"), patterns(tools));
        sheet.put(&format!("{about}.prompts"), patterns(prompts));
        sheet.put(&format!("{about}.resources"), patterns(resources));
        let When { kind, subjects, groups_any, scopes_all, clients, endpoints, networks } = when;
        sheet.put(&format!("{key}.when.kind"), kind);
        sheet.put(&format!("{key}.when.subjects"), patterns(subjects));
        sheet.put(&format!("{key}.when.groups_any"), groups_any);
        sheet.put(&format!("{key}.when.scopes_all"), scopes_all);
        sheet.put(&format!("{key}.when.clients"), patterns(clients));
        sheet.put(&format!("{key}.when.endpoints"), endpoints);
        let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
        sheet.put(&format!("{key}.when.networks"), networks);
    }
}
