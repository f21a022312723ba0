//! How many files the process may have open, and how many connections that is enough for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is left for everything but clients and what is opened for them: listeners, runtimes, databases, Redis.
const OWN: u64 = 128;
/// More is of no use, and some systems say that there is no limit.
const MOST: u64 = 1 << 20;

/// The limits on open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// What the process was started with; for those that it starts.
    pub inherited: u64,
    /// What it may have now.
    pub limit: u64,
}

impl OpenFiles {
    /// Raises the limit to what the system allows. Few are a habit of old programs, and each connection takes one.
    pub fn raise() -> Self {
        let limits = getrlimit(Resource::Nofile);
        let inherited = limits.current.unwrap_or(MOST);
        let allowed = limits.maximum.unwrap_or(MOST).min(MOST);
        let raised = Rlimit { current: Some(allowed), maximum: limits.maximum };
        if allowed > inherited && setrlimit(Resource::Nofile, raised).is_ok() {
            return Self { inherited, limit: allowed };
        }
        Self { inherited, limit: inherited }
    }

    /// The limits as they are.
    pub fn now() -> Self {
        let inherited = getrlimit(Resource::Nofile).current.unwrap_or(MOST).min(MOST);
        Self { inherited, limit: inherited }
    }

    /// How many connections of clients it is enough for: each may need another one to a backend. So the listeners of
    /// operators can be reached however many clients there are.
    pub fn connections(self) -> usize {
        usize::try_from((self.limit.saturating_sub(OWN) / 2).max(1)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_backends_and_operators() {
        let enough_for = |limit| OpenFiles { inherited: limit, limit }.connections();
        assert_eq!([0, 128, 1024, 1 << 20].map(enough_for), [1, 1, 448, 524_224]);
    }
}
