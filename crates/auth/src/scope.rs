//! What a credential lets its holder do. Two coarse scopes at MCP endpoints, some more for the admin API; what single
//! tools need is for policies.

use std::collections::BTreeSet;

/// To discover, to list, to read, and to call tools that only read.
pub const READ: &str = "mcp:read";
/// To do everything else. Implies [`READ`].
pub const WRITE: &str = "mcp:write";
/// To sign in at the gateway's own pages where no identity provider is configured.
pub const LOGIN: &str = "login";
/// To see everything that the admin API shows.
pub const ADMIN_READ: &str = "admin:read";
/// To manage tokens, users, OAuth clients and grants. Implies [`ADMIN_READ`].
pub const ADMIN_TOKENS: &str = "admin:tokens";
/// Everything in the admin API.
pub const ADMIN_ALL: &str = "admin:*";

/// What hosts are told to ask for: the same everywhere.
pub const OFFERED: [&str; 2] = [READ, WRITE];

/// Scopes that a token of a user or a service can have.
pub const OF_USERS: [&str; 3] = [READ, WRITE, LOGIN];
/// Scopes that a token for the admin API can have.
pub const OF_ADMINS: [&str; 3] = [ADMIN_READ, ADMIN_TOKENS, ADMIN_ALL];

/// A set of scopes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scopes(BTreeSet<String>);

impl Scopes {
    /// These.
    pub fn new(scopes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(scopes.into_iter().map(Into::into).collect())
    }

    /// Those of a space-separated list.
    pub fn parse(text: &str) -> Self {
        Self::new(text.split(' ').filter(|scope| !scope.is_empty()))
    }

    /// Whether `scope` is among them or implied by one of them.
    pub fn allow(&self, scope: &str) -> bool {
        self.0.contains(scope)
            || match scope {
                READ => self.0.contains(WRITE),
                ADMIN_READ => self.0.iter().any(|scope| scope == ADMIN_TOKENS || scope == ADMIN_ALL),
                ADMIN_TOKENS => self.0.contains(ADMIN_ALL),
                _ => false,
            }
    }

    /// Whether all of `others` are allowed.
    pub fn allow_all<'s>(&self, others: impl IntoIterator<Item = &'s str>) -> bool {
        others.into_iter().all(|scope| self.allow(scope))
    }

    /// Those that are offered to hosts, of which nothing else is meant.
    #[must_use]
    pub fn offered(&self) -> Self {
        Self(self.0.iter().filter(|scope| OFFERED.contains(&scope.as_str())).cloned().collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The set itself.
    pub fn as_set(&self) -> &BTreeSet<String> {
        &self.0
    }
}

impl std::fmt::Display for Scopes {
    /// Separated by spaces.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, scope) in self.iter().enumerate() {
            if n > 0 {
                f.write_str(" ")?;
            }
            f.write_str(scope)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_implies_reading_and_nothing_implies_writing() {
        let write = Scopes::parse("mcp:write");
        assert!(write.allow(READ) && write.allow(WRITE) && !write.allow(ADMIN_READ));
        let read = Scopes::parse(" mcp:read  openid ");
        assert!(read.allow(READ) && !read.allow(WRITE));
        assert_eq!(read.to_string(), "mcp:read openid");
        assert_eq!(read.offered().to_string(), "mcp:read");
        let all = Scopes::parse("admin:*");
        assert!(all.allow_all([ADMIN_READ, ADMIN_TOKENS, ADMIN_ALL]) && !all.allow(READ));
        assert!(!Scopes::parse("admin:tokens").allow(ADMIN_ALL));
    }
}
