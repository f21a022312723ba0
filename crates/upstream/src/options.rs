//! What the configuration says about a backend, as far as both transports share it.

use std::sync::Arc;
use std::time::Duration;

use drawbridge_core::fault::{Deadline, Size};
use drawbridge_core::fleet::Peers;
use drawbridge_core::{BackendName, Fault, metrics};

/// Which era a backend speaks, if the configuration says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EraChoice {
    /// Ask it.
    #[default]
    Auto,
    /// `initialize` and sessions.
    Legacy,
    /// Stateless, 2026-07-28.
    Modern,
}

/// How to reach an HTTP backend, if the configuration says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Find out.
    #[default]
    Auto,
    /// One endpoint for POST, GET and DELETE.
    StreamableHttp,
    /// The two-endpoint transport of 2024-11-05.
    Sse,
}

/// With whom a client shares its session at a backend with sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionScope {
    /// With nobody; clients without sessions share one per principal.
    #[default]
    ClientSession,
    /// With all clients of the same principal, version and capabilities.
    Principal,
    /// With all clients of the same version and capabilities.
    Shared,
    /// There is one for each call.
    None,
}

/// Deadlines and limits of a backend.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its configured name.
    pub name: BackendName,
    /// Its era.
    pub era: EraChoice,
    /// With whom its sessions are shared.
    pub session_scope: SessionScope,
    /// How long a finding about its era, or what it said about itself, is believed.
    pub era_ttl: Duration,
    /// Until a connection stands.
    pub connect_timeout: Duration,
    /// Until the first byte of an answer.
    pub first_byte_timeout: Duration,
    /// Between two bytes of an answer.
    pub idle_timeout: Duration,
    /// Until a backend that has to be started or connected to has shaken hands.
    pub start_timeout: Duration,
    /// For a whole call.
    pub timeout: Duration,
    /// How long merged lists wait for it.
    pub list_timeout: Duration,
    /// How long a session may be idle.
    pub session_idle: Duration,
    /// The other instances of the gateway.
    pub peers: Peers,
    /// The largest answer, in bytes.
    pub max_result_bytes: usize,
    /// The largest event of a stream, in bytes.
    pub max_event_bytes: usize,
    /// The largest line of a process, in bytes.
    pub max_line_bytes: usize,
    /// Where its processes are counted.
    pub metrics: Arc<metrics::Backend>,
}

impl Options {
    /// The defaults of the configuration reference, for a backend called `name`.
    pub fn new(name: BackendName) -> Self {
        Self {
            name,
            era: EraChoice::Auto,
            session_scope: SessionScope::default(),
            era_ttl: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(900),
            idle_timeout: Duration::from_secs(900),
            start_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(3600),
            list_timeout: Duration::from_secs(5),
            session_idle: Duration::from_secs(1800),
            peers: Peers::alone(),
            max_result_bytes: 16 << 20,
            max_event_bytes: 16 << 20,
            max_line_bytes: 16 << 20,
            metrics: Arc::default(),
        }
    }

    pub(crate) fn late(&self, deadline: Deadline) -> Fault {
        Fault::Timeout { backend: self.name.to_string(), deadline }
    }

    pub(crate) fn bad_answer(&self, detail: impl Into<String>) -> Fault {
        Fault::BadAnswer { backend: self.name.to_string(), detail: detail.into() }
    }

    pub(crate) fn unreachable(&self, detail: impl Into<String>) -> Fault {
        Fault::Unreachable { backend: self.name.to_string(), detail: detail.into() }
    }

    pub(crate) fn outcome_unknown(&self, detail: impl Into<String>) -> Fault {
        Fault::OutcomeUnknown { backend: self.name.to_string(), detail: detail.into() }
    }

    pub(crate) fn too_large(&self, size: Size) -> Fault {
        let limit = match size {
            Size::Result => self.max_result_bytes,
            Size::Event => self.max_event_bytes,
            Size::Line => self.max_line_bytes,
        };
        Fault::TooLarge { backend: self.name.to_string(), size, limit }
    }
}
