//! Which backend a resource belongs to.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::backend::BackendName;

const MAX_OWNERS: usize = 50_000;

#[derive(Debug, Default)]
struct Known {
    /// Exact URIs and URI templates.
    uris: HashMap<String, usize, ahash::RandomState>,
    /// The text of a template up to its first expression, with its owner.
    prefixes: Vec<(String, usize)>,
}

/// What the lists have told so far; bounded, and learnt anew when it was emptied.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<Known>);

impl Owners {
    /// Notes that `backend` has `uri`. Returns the owner: the first that had it.
    pub(super) fn note(&self, uri: &str, backend: usize) -> usize {
        let mut known = self.0.lock();
        if known.uris.len() >= MAX_OWNERS {
            known.uris.clear();
        }
        *known.uris.entry(uri.to_owned()).or_insert(backend)
    }

    /// Notes a template of `backend`. Returns its owner.
    pub(super) fn note_template(&self, template: &str, backend: usize) -> usize {
        let owner = self.note(template, backend);
        let prefix = template.split('{').next().unwrap_or_default();
        let mut known = self.0.lock();
        let fits = known.prefixes.len() < MAX_OWNERS && !prefix.is_empty();
        if fits && !known.prefixes.iter().any(|(p, _)| p == prefix) {
            known.prefixes.push((prefix.to_owned(), owner));
            // The longest prefix is the closest match.
            known.prefixes.sort_by_key(|(p, _)| std::cmp::Reverse(p.len()));
        }
        owner
    }

    /// The owner of `uri`, by its exact form or by the closest template.
    pub(super) fn find(&self, uri: &str) -> Option<usize> {
        let known = self.0.lock();
        let exact = known.uris.get(uri).copied();
        exact.or_else(|| known.prefixes.iter().find(|(p, _)| uri.starts_with(p)).map(|(_, owner)| *owner))
    }
}

/// How a URI that another backend has too is written: a scheme that names the backend, before the URI.
pub(super) fn readdress(backend: &BackendName, uri: &str) -> String {
    format!("mcp+{backend}+{uri}")
}

/// The backend and its own URI, if `uri` was re-addressed.
pub(super) fn readdressed<'u>(names: &[BackendName], uri: &'u str) -> Option<(usize, &'u str)> {
    let (backend, inner) = uri.strip_prefix("mcp+")?.split_once('+')?;
    Some((names.iter().position(|n| n.as_str() == backend)?, inner))
}
