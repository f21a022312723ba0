//! What is measured.

use crate::texts::{CALLABLE, Tool};

/// The dialect of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// Handshake and session.
    Legacy,
    /// Metadata in each request.
    Modern,
}

/// What one iteration does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A call of the tool, in the session of the connection.
    Call(Tool),
    /// `tools/list`.
    List,
    /// `server/discover`.
    Discover,
    /// A whole session: `initialize`, `initialized`, a call, `DELETE`.
    Session,
    /// `initialize` and `initialized`, then forgotten.
    Abandon,
    /// `initialize`, `initialized` and a call, then forgotten.
    AbandonAfterCall,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// As in the table and in `--scenario`.
    pub(crate) name: String,
    pub(crate) era: Era,
    pub(crate) work: Work,
}

impl Scenario {
    /// Speaks the modern dialect.
    pub(crate) fn modern(&self) -> bool {
        self.era == Era::Modern
    }

    /// The most that Drawbridge may cost per request, in processor time of the bare proxy.
    pub(crate) fn aim(&self) -> f64 {
        match self.work {
            Work::Call(tool) if tool.size >= 1_000_000 => 1.3,
            _ => 1.5,
        }
    }
}

/// All scenarios that `run` knows.
pub(crate) fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (era, prefix) in [(Era::Legacy, "legacy"), (Era::Modern, "modern")] {
        let mut add = |name: &str, work| all.push(Scenario { name: format!("{prefix}-{name}"), era, work });
        for tool in CALLABLE {
            add(tool.name, Work::Call(tool));
        }
        add("tools-list", Work::List);
        match era {
            Era::Legacy => add("session", Work::Session),
            Era::Modern => add("discover", Work::Discover),
        }
    }
    all
}

/// The scenarios of `run --quick`.
pub(crate) const QUICK: [&str; 6] = [
    "legacy-echo100",
    "legacy-sse100",
    "legacy-session",
    "modern-echo100",
    "modern-echo1m",
    "modern-tools-list",
];

/// The scenario with this exact name.
pub(crate) fn named(name: &str) -> anyhow::Result<Scenario> {
    let all = all();
    let names: Vec<_> = all.iter().map(|scenario| scenario.name.as_str()).collect();
    let unknown = anyhow::anyhow!("no scenario is named {name:?}; there are: {}", names.join(", "));
    all.into_iter().find(|scenario| scenario.name == name).ok_or(unknown)
}

/// The iteration of `sessions`.
pub(crate) fn abandon(with_call: bool) -> Scenario {
    let (name, work) = if with_call {
        ("initialize + initialized + call", Work::AbandonAfterCall)
    } else {
        ("initialize + initialized", Work::Abandon)
    };
    Scenario { name: name.to_owned(), era: Era::Legacy, work }
}
