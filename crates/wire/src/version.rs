//! Protocol versions and what each of them can do.

use std::fmt;

/// A revision of the MCP specification. Ordered by date. Code asks for a property, not for a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the dates")]
pub enum ProtocolVersion {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

impl ProtocolVersion {
    /// All versions, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];
    /// The newest version that opens with `initialize`.
    pub const LATEST_WITH_INITIALIZE: Self = Self::V2025_11_25;
    /// The newest version.
    pub const LATEST: Self = Self::V2026_07_28;

    /// The version named `text`, such as `2025-11-25`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.as_str() == text)
    }

    /// The name of the version, its date.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// Whether it opens with the `initialize` handshake and has sessions (the legacy era); otherwise each
    /// request carries its own metadata (the modern era).
    pub fn has_initialize(self) -> bool {
        self <= Self::LATEST_WITH_INITIALIZE
    }

    /// Whether JSON-RPC batches are part of it.
    pub fn has_batches(self) -> bool {
        self == Self::V2025_03_26
    }

    /// Whether a stream starts with an empty event that carries an id, so that it can be resumed from its
    /// very start (older clients fail on empty data).
    pub fn primes_streams(self) -> bool {
        self == Self::V2025_11_25
    }

    /// Whether servers may ask its clients to fill in forms.
    pub fn has_elicitation(self) -> bool {
        self >= Self::V2025_06_18
    }

    /// Whether servers may ask its clients to have a URL opened.
    pub fn has_url_elicitation(self) -> bool {
        self >= Self::V2025_11_25
    }

    /// What the gateway answers to an `initialize` that names `requested`: the same version if it has an
    /// `initialize`, else the newest that has (MCP 2025-11-25, lifecycle § Version Negotiation).
    pub fn negotiate(requested: &str) -> Self {
        Self::parse(requested).filter(|v| v.has_initialize()).unwrap_or(Self::LATEST_WITH_INITIALIZE)
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
