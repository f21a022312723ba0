//! Keys that users get at a backend themselves and give to the gateway on a page of its own. One is bound to where the
//! backend is: at another place it is of no use.

use std::collections::BTreeMap;
use std::sync::Arc;

use drawbridge_auth::records::RecordsError;
use drawbridge_auth::vault::Connection;
use drawbridge_core::credentials::Credential;
use url::Url;

use super::sealed::Opened;
use super::{Connections, NotConnected, Shown};

/// A key is no longer than this many bytes.
const MAX_KEY: usize = 4096;
/// What keys of users have in the place of an issuer begins with.
const PLACE: &str = "key:";

/// A backend at which each user has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySite {
    /// The backend's name.
    pub name: String,
    /// Where it is.
    pub url: Url,
    /// The header that it wants the key in.
    pub header: String,
    /// What stands before the key there.
    pub scheme: Option<String>,
    /// Where users get a key.
    pub help: Option<String>,
}

impl KeySite {
    /// Where keys for it are good.
    pub(super) fn place(&self) -> String {
        format!("{PLACE}{}", self.url.origin().ascii_serialization())
    }

    /// Its host, as it is shown.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    fn credential(&self, opened: &Opened) -> Credential {
        let value = match &self.scheme {
            Some(scheme) => format!("{scheme} {}", opened.access),
            None => opened.access.clone(),
        };
        Credential::new([(self.header.clone(), value)], &opened.version())
    }
}

/// Whether this is where a key is good, and no issuer.
pub(super) fn is_place(issuer: &str) -> bool {
    issuer.starts_with(PLACE)
}

/// What of a pasted text is a key: one line that HTTP can carry in a header.
pub fn key_in(pasted: &str) -> Option<&str> {
    let key = pasted.trim();
    let is_key = (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    is_key.then_some(key)
}

impl Connections {
    /// The backends that users give a key for, from now on.
    pub fn set_keys(&self, sites: Vec<KeySite>) {
        let sites: BTreeMap<_, _> =
            sites.into_iter().map(|site| (site.name.clone(), Arc::new(site))).collect();
        *self.keys.write() = sites;
        self.known.lock().clear();
    }

    /// The backend of this name, if it is one that users give a key for.
    pub fn key_site(&self, backend: &str) -> Option<Arc<KeySite>> {
        self.keys.read().get(backend).cloned()
    }

    /// Keeps the key that a user has for a backend, in the place of the one before.
    ///
    /// # Errors
    ///
    /// If there is no such backend (any more), or it can't be kept.
    pub async fn keep_key(&self, user: &str, backend: &str, key: &str) -> Result<(), NotConnected> {
        let site = self.key_site(backend).ok_or(NotConnected::NoSite)?;
        let mut row = super::sealed::row(user, backend, &site.place());
        self.fill(&mut row, key, None, None);
        self.vault.put_connection(&row).await?;
        tracing::info!(backend.name = backend, user.id = user, "connected");
        self.tell(user, backend, true).await;
        Ok(())
    }

    /// What a backend gets of a connection.
    pub(super) fn credential(&self, opened: &Opened) -> Credential {
        match self.key_site(&opened.row.backend) {
            Some(site) => site.credential(opened),
            None => opened.credential(),
        }
    }

    /// What there is to show of the backends that users give a key for.
    pub(super) fn shown_keys(&self, rows: &[Connection]) -> Vec<Shown> {
        let sites = self.keys.read();
        sites.values().map(|site| Shown::of(&site.name, site.host(), rows)).collect()
    }

    /// What `user` has at each of all backends.
    ///
    /// # Errors
    ///
    /// If the records can't be read.
    pub async fn shown(&self, user: &str) -> Result<Vec<Shown>, RecordsError> {
        let rows = self.vault.connections(user).await?;
        let mut shown = self.shown_sites(&rows);
        shown.extend(self.shown_keys(&rows));
        shown.extend(self.shown_logins(&rows));
        Ok(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_line_that_a_header_can_carry() {
        assert_eq!(key_in("  sk-1 \r\n"), Some("sk-1"));
        assert_eq!(key_in("user:pass word"), Some("user:pass word"));
        for no_key in ["", " \n", "a\nb", "a\u{0}b", "kéy", &"k".repeat(MAX_KEY + 1)] {
            assert_eq!(key_in(no_key), None, "{no_key:?}");
        }
    }

    #[test]
    fn a_place_is_scheme_host_and_port() {
        let site = |url: &str| KeySite {
            name: "b".to_owned(),
            url: url.parse().unwrap(),
            header: "x-api-key".to_owned(),
            scheme: None,
            help: None,
        };
        assert_eq!(site("https://b.example/mcp").place(), site("https://b.example:443/other").place());
        for elsewhere in ["https://c.example/mcp", "http://b.example/mcp", "https://b.example:8443/mcp"] {
            assert_ne!(site("https://b.example/mcp").place(), site(elsewhere).place());
        }
        assert!(is_place(&site("https://b.example").place()) && !is_place("https://as.example"));
    }
}
