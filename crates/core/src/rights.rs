//! What a caller may, as far as single tools, prompts and resources go. Who decides that is behind [`Rights`]; where it
//! is asked is [`crate::screen`], for lists as for calls.

use std::fmt;
use std::sync::Arc;

use crate::aggregate::names;
use crate::backend::BackendName;
use crate::glob::Glob;

/// What kind of thing a caller names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tool, and whether calling it changes nothing.
    Tool {
        /// Whether it only reads.
        reads: bool,
    },
    /// A prompt.
    Prompt,
    /// A resource, by its URI, or a template, by its pattern.
    Resource,
}

/// Something that a caller names.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// Where it is.
    pub backend: &'a BackendName,
    /// What it is.
    pub kind: Kind,
    /// What its backend calls it.
    pub name: &'a str,
}

/// Whether something is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Allowed,
    /// It is not, and for this caller it does not exist.
    Hidden,
    /// It would be with this scope, which the caller may get.
    Lacks(&'static str),
}

/// What a caller may.
pub trait Rights: Send + Sync + fmt::Debug {
    /// Whether that includes `item`.
    fn on(&self, item: &Item<'_>) -> Verdict;

    /// Whether the caller may anything at this backend, and there what is not in the protocol, or only what `is_known`.
    fn reaches(&self, _backend: &BackendName, _is_known: bool) -> bool {
        true
    }

    /// In words for another instance, which goes on with what was begun here.
    fn carried(&self) -> Option<String>;

    /// Whether other callers may see other things of this kind.
    fn differ(&self, kind: Kind) -> bool;

    /// What to tell a client that lacks a scope, for hosts that look for it in results: the value of a
    /// `WWW-Authenticate` header.
    fn challenge(&self, _scope: &str) -> Option<String> {
        None
    }

    /// The scope that a tool needs, for hosts that want to read that in lists.
    fn scope_shown(&self, _item: &Item<'_>) -> Option<&'static str> {
        None
    }
}

/// Which things an endpoint has of those that its backends have, by the names that they have there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Of tools.
    pub tools: Patterns,
    /// Of prompts.
    pub prompts: Patterns,
    /// Of resources, by their URIs.
    pub resources: Patterns,
}

/// Names that are meant, and of these some that are not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patterns {
    /// All where there is none.
    pub allow: Vec<Glob>,
    /// Wins over `allow`.
    pub deny: Vec<Glob>,
}

impl Patterns {
    pub(crate) fn have(&self, name: &str) -> bool {
        let any = |patterns: &[Glob]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }
}

impl Selection {
    /// Whether all are there.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    fn has(&self, item: &Item<'_>, is_merged: bool) -> bool {
        let exposed = || match is_merged {
            true => names::expose(item.backend.as_str(), item.name),
            false => item.name.to_owned(),
        };
        match item.kind {
            Kind::Tool { .. } => self.tools.have(&exposed()),
            Kind::Prompt => self.prompts.have(&exposed()),
            Kind::Resource => self.resources.have(item.name),
        }
    }
}

/// What a caller may at an endpoint that has not everything.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(crate) selection: Arc<Selection>,
    pub(crate) is_merged: bool,
    pub(crate) rights: Option<Arc<dyn Rights>>,
}

impl Rights for Selected {
    fn on(&self, item: &Item<'_>) -> Verdict {
        if !self.selection.has(item, self.is_merged) {
            return Verdict::Hidden;
        }
        self.rights.as_ref().map_or(Verdict::Allowed, |rights| rights.on(item))
    }

    fn reaches(&self, backend: &BackendName, is_known: bool) -> bool {
        self.rights.as_ref().is_none_or(|rights| rights.reaches(backend, is_known))
    }

    fn carried(&self) -> Option<String> {
        self.rights.as_ref()?.carried()
    }

    fn differ(&self, kind: Kind) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.differ(kind))
    }

    fn challenge(&self, scope: &str) -> Option<String> {
        self.rights.as_ref()?.challenge(scope)
    }

    fn scope_shown(&self, item: &Item<'_>) -> Option<&'static str> {
        self.rights.as_ref()?.scope_shown(item)
    }
}
