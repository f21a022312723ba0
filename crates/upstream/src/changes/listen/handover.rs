//! One stream in the place of others: those stay until they have said what they had, and what both say is told once.

use std::collections::HashMap;
use std::time::Duration;

use drawbridge_wire::Message;
use drawbridge_wire::message::Field;
use tokio::time::Instant;

use super::Open;
use crate::changes::Filter;

/// A stream that nothing came on for this long has said all.
const QUIET: Duration = Duration::from_millis(500);
/// It is let go after this long in any case.
const AT_MOST: Duration = Duration::from_secs(5);

/// A stream that another has taken the place of.
pub(super) struct Leaving {
    pub(super) open: Open,
    /// How often each change came here, and on the other since.
    counts: HashMap<String, (usize, usize)>,
    quiet_at: Instant,
    ends_at: Instant,
}

/// What changes are the same.
fn about(message: &Message) -> String {
    let text = |field| message.text(field).unwrap_or_default();
    format!("{} {} {}", message.method(), text(Field::Uri), text(Field::TaskId))
}

impl Leaving {
    pub(super) fn new(open: Open) -> Self {
        let now = Instant::now();
        Self { open, counts: HashMap::new(), quiet_at: now + QUIET, ends_at: now + AT_MOST }
    }

    /// When it can be let go.
    pub(super) fn until(&self) -> Instant {
        self.quiet_at.min(self.ends_at)
    }

    /// A change came here; whether it is to be told.
    pub(super) fn tells(&mut self, message: &Message) -> bool {
        self.quiet_at = Instant::now() + QUIET;
        let (here, there) = self.counts.entry(about(message)).or_default();
        *here += 1;
        here > there
    }

    /// A change came on the other stream; whether it was told here already.
    pub(super) fn has_told(&mut self, message: &Message) -> bool {
        if !self.open.asked.wants(message) {
            return false;
        }
        let (here, there) = self.counts.entry(about(message)).or_default();
        *there += 1;
        let is_told = there <= here;
        if is_told {
            // If that was another one, it comes here too.
            self.quiet_at = Instant::now() + QUIET;
        }
        is_told
    }

    /// What may have changed unsaid, if it goes before it was quiet: a change on the other stream may have been taken for
    /// one that was told here.
    pub(super) fn missed(&self) -> Option<&Filter> {
        let is_quiet = self.quiet_at <= Instant::now();
        let differs = self.counts.values().any(|(here, there)| here > there);
        (!is_quiet && differs).then_some(&self.open.honoured)
    }
}
