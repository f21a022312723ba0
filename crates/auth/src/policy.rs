//! What callers may, down to single tools: the scopes of their credentials, and the operator's rules.
//!
//! Rules are for tools, prompts and resources of backends, under the names that they have there. One that denies wins;
//! where there are rules, what none allows is denied. Without rules everybody may everything, within their scopes: tools
//! that don't only read need [`scope::WRITE`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use drawbridge_core::BackendName;
use drawbridge_core::glob::Glob;
use drawbridge_core::rights::{Item, Kind as Sort, Rights, Verdict};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::identity::{Identity, Kind};
use crate::scope::{self, Scopes};

/// What to do about a tool that needs a scope which the caller does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepUp {
    /// It is not there for the caller.
    #[default]
    Hide,
    /// It is listed, and who calls it is told to get the scope.
    Challenge,
}

/// Whether a rule allows or denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It allows.
    Allow,
    /// It denies, whatever others allow.
    Deny,
}

/// One rule: who may, or may not, what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whether they may.
    pub effect: Effect,
    /// Where.
    pub backends: Vec<Glob>,
    /// What there.
    pub what: What,
    /// Who.
    pub when: When,
}

/// What a rule is about. One that names nothing is about everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct What {
    /// Tools.
    pub tools: Vec<Glob>,
    /// Prompts.
    pub prompts: Vec<Glob>,
    /// Resources by their URIs, and templates.
    pub resources: Vec<Glob>,
}

/// Whom a rule is for: whoever meets all conditions that there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct When {
    /// People or programs.
    pub kind: Option<Kind>,
    /// One of these: ids of users, the subjects that they are at their provider, names of services.
    pub subjects: Vec<Glob>,
    /// A member of one of these.
    pub groups_any: BTreeSet<String>,
    /// With all of these scopes.
    pub scopes_all: BTreeSet<String>,
    /// By one of these clients.
    pub clients: Vec<Glob>,
    /// At one of these endpoints; the default one is `/mcp`.
    pub endpoints: BTreeSet<String>,
    /// From one of these networks.
    pub networks: Vec<IpNet>,
}

/// All rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// `None`: everything is allowed to everybody.
    pub rules: Option<Vec<Rule>>,
    /// What is done about missing scopes.
    pub step_up: StepUp,
}

/// Who makes a request and how, as far as rules go. Instances tell each other, so it has a form on the wire too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    kind: Kind,
    /// What the caller is known as.
    subjects: Vec<String>,
    groups: BTreeSet<String>,
    scopes: BTreeSet<String>,
    client: String,
    endpoint: String,
    address: Option<IpAddr>,
    /// The challenge to a caller that lacks a scope, for a host that looks for it in results.
    challenge: Option<String>,
}

impl Facts {
    /// Those of `identity` at an endpoint (the default one is `/mcp`), from an address. `challenge` is for hosts that look
    /// for challenges in results.
    pub fn of(
        identity: &Identity,
        endpoint: &str,
        address: Option<IpAddr>,
        challenge: Option<String>,
    ) -> Self {
        Self {
            kind: identity.kind,
            subjects: [Some(&identity.subject), identity.known_as.as_ref()]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            groups: identity.groups.clone(),
            scopes: identity.scopes.as_set().clone(),
            client: identity.client.clone(),
            endpoint: endpoint.to_owned(),
            address,
            challenge,
        }
    }
}

impl When {
    fn is_met(&self, facts: &Facts) -> bool {
        let any = |patterns: &[Glob], name: &str| patterns.iter().any(|pattern| pattern.matches(name));
        self.kind.is_none_or(|kind| kind == facts.kind)
            && (self.subjects.is_empty() || facts.subjects.iter().any(|subject| any(&self.subjects, subject)))
            && (self.groups_any.is_empty() || !self.groups_any.is_disjoint(&facts.groups))
            && (self.scopes_all.is_empty()
                || Scopes::new(facts.scopes.iter().map(String::as_str))
                    .allow_all(self.scopes_all.iter().map(String::as_str)))
            && (self.clients.is_empty() || any(&self.clients, &facts.client))
            && (self.endpoints.is_empty() || self.endpoints.contains(&facts.endpoint))
            && (self.networks.is_empty()
                || facts.address.is_some_and(|address| {
                    self.networks.iter().any(|network| network.contains(&address.to_canonical()))
                }))
    }
}

impl Rule {
    fn is_about(&self, item: &Item<'_>) -> bool {
        let any = |patterns: &[Glob], name: &str| patterns.iter().any(|pattern| pattern.matches(name));
        let What { tools, prompts, resources } = &self.what;
        let is_all = tools.is_empty() && prompts.is_empty() && resources.is_empty();
        let named = match item.kind {
            Sort::Tool { .. } => tools,
            Sort::Prompt => prompts,
            Sort::Resource => resources,
        };
        any(&self.backends, item.backend.as_str()) && (is_all || any(named, item.name))
    }
}

impl Rules {
    /// What a caller may.
    pub fn allow(self: &Arc<Self>, facts: Facts) -> Allowance {
        let applying = self.rules.as_ref().map(|rules| {
            let met = rules.iter().enumerate().filter(|(_, rule)| rule.when.is_met(&facts));
            met.map(|(n, _)| n).collect()
        });
        let may_write = Scopes::new(facts.scopes.iter().map(String::as_str)).allow(scope::WRITE);
        Allowance { rules: self.clone(), applying, may_write, facts }
    }

    /// The same of a caller of another instance, as [`Rights::carried`] says it.
    pub fn allow_carried(self: &Arc<Self>, carried: &str) -> Option<Allowance> {
        Some(self.allow(serde_json::from_str(carried).ok()?))
    }

    /// Whether anything depends on who users are, beyond their credentials.
    pub fn need_users(&self) -> bool {
        self.rules.iter().flatten().any(|rule| {
            let When { groups_any, subjects, .. } = &rule.when;
            !groups_any.is_empty() || !subjects.is_empty()
        })
    }
}

/// What one caller may with one request.
#[derive(Debug)]
pub struct Allowance {
    rules: Arc<Rules>,
    /// The rules that are for the caller; `None` where there are none at all.
    applying: Option<Vec<usize>>,
    may_write: bool,
    facts: Facts,
}

impl Allowance {
    fn is_allowed(&self, item: &Item<'_>) -> bool {
        let (Some(rules), Some(applying)) = (&self.rules.rules, &self.applying) else { return true };
        let mut is_allowed = false;
        for rule in applying.iter().filter_map(|n| rules.get(*n)).filter(|rule| rule.is_about(item)) {
            match rule.effect {
                Effect::Deny => return false,
                Effect::Allow => is_allowed = true,
            }
        }
        is_allowed
    }
}

impl Rights for Allowance {
    fn reaches(&self, backend: &BackendName, is_known: bool) -> bool {
        let (Some(rules), Some(applying)) = (&self.rules.rules, &self.applying) else {
            return is_known || self.may_write;
        };
        let here: Vec<&Rule> = applying
            .iter()
            .filter_map(|n| rules.get(*n))
            .filter(|rule| rule.backends.iter().any(|pattern| pattern.matches(backend.as_str())))
            .collect();
        let is_all = |rule: &Rule| rule.what == What::default();
        let is_denied = here.iter().any(|rule| rule.effect == Effect::Deny && is_all(rule));
        // What is in no list of what is allowed is allowed only where everything is.
        let allows = |rule: &&&Rule| rule.effect == Effect::Allow && (is_known || is_all(rule));
        !is_denied && here.iter().any(|rule| allows(&rule)) && (is_known || self.may_write)
    }

    fn carried(&self) -> Option<String> {
        serde_json::to_string(&self.facts).ok()
    }

    fn on(&self, item: &Item<'_>) -> Verdict {
        if !self.is_allowed(item) {
            return Verdict::Hidden;
        }
        let Sort::Tool { reads } = item.kind else { return Verdict::Allowed };
        match self.rules.step_up {
            _ if reads || self.may_write => Verdict::Allowed,
            StepUp::Challenge => Verdict::Lacks(scope::WRITE),
            StepUp::Hide => Verdict::Hidden,
        }
    }

    fn differ(&self, kind: Sort) -> bool {
        self.applying.is_some() || (matches!(kind, Sort::Tool { .. }) && self.rules.step_up == StepUp::Hide)
    }

    fn challenge(&self, _scope: &str) -> Option<String> {
        self.facts.challenge.clone()
    }

    fn scope_shown(&self, item: &Item<'_>) -> Option<&'static str> {
        let Sort::Tool { reads } = item.kind else { return None };
        self.facts.challenge.is_some().then_some(if reads { scope::READ } else { scope::WRITE })
    }
}

#[cfg(test)]
mod tests;
