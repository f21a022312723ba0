//! What metrics want to know.

use std::fmt;
use std::time::Duration;

/// Is told what happens between this instance and Redis. Called from the tasks that do the work, so it must be quick
/// and must not block.
pub trait Observer: Send + Sync {
    /// A port has asked Redis something: which port, how long it took with all attempts, and whether an answer came.
    fn command(&self, port: &'static str, took: Duration, ok: bool) {
        let _ = (port, took, ok);
    }

    /// A connection was lost and stands again.
    fn reconnected(&self) {}

    /// A message went `out` (to an inbox or a topic) or came `in`.
    fn bus_message(&self, direction: &'static str) {
        let _ = direction;
    }
}

/// Tells nobody.
pub(crate) struct Silent;

impl Observer for Silent {}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
