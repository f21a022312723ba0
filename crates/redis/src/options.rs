//! What Redis is and how it is used.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::observer::{Observer, Silent};
use crate::url::ServerUrl;

/// Gives the password whenever a connection is made, so that one that was changed is found without a restart. May
/// read a small file; the error says why there is none, and must not repeat a secret.
pub type PasswordProvider = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// How much the event log keeps of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventLimits {
    /// Events of one stream; the oldest go first.
    pub max_events: usize,
    /// Bytes of one stream's events.
    pub max_bytes: usize,
    /// How long a stream is kept after its last event.
    pub ttl: Duration,
}

impl Default for EventLimits {
    fn default() -> Self {
        Self { max_events: 1000, max_bytes: 8 << 20, ttl: Duration::from_secs(300) }
    }
}

/// What Redis is and how it is used. Its `Debug` shows no password.
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) url: ServerUrl,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<PasswordProvider>,
    pub(crate) ca_bundles: Vec<PathBuf>,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) events: EventLimits,
    pub(crate) observer: Arc<dyn Observer>,
}

impl RedisOptions {
    /// The deadline where none is set.
    pub const TIMEOUT: Duration = Duration::from_secs(2);
    /// The prefix of keys where none is set.
    pub const PREFIX: &'static str = "drawbridge";

    /// Options with the defaults.
    pub fn new(url: ServerUrl) -> Self {
        let username = url.username.clone();
        let password = url.password.clone();
        Self {
            username,
            password: password.map(|fixed| Arc::new(move || Ok(fixed.clone())) as PasswordProvider),
            url,
            ca_bundles: Vec::new(),
            prefix: Self::PREFIX.to_owned(),
            timeout: Self::TIMEOUT,
            events: EventLimits::default(),
            observer: Arc::new(Silent),
        }
    }

    /// Options for the server at a URL.
    ///
    /// # Errors
    ///
    /// What is wrong with the URL.
    pub fn parse(url: &str) -> Result<Self, Error> {
        Ok(Self::new(url.parse()?))
    }

    /// The user of the access control list, in place of the URL's.
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }

    /// Where the password comes from, in place of the URL's.
    #[must_use]
    pub fn password(mut self, provider: PasswordProvider) -> Self {
        self.password = Some(provider);
        self
    }

    /// PEM files with certificates of authorities that are believed beside those of the system.
    #[must_use]
    pub fn ca_bundles(mut self, files: Vec<PathBuf>) -> Self {
        self.ca_bundles = files;
        self
    }

    /// What all keys begin with; two gateways with one Redis need two.
    ///
    /// # Errors
    ///
    /// If it has anything but 1 to 64 letters, digits, `.`, `_`, `-` or `:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        let prefix = prefix.into();
        if !Self::is_prefix(&prefix) {
            return Err(Error::Prefix);
        }
        self.prefix = prefix;
        Ok(self)
    }

    /// Whether keys can begin with a text.
    pub fn is_prefix(text: &str) -> bool {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':');
        (1..=64).contains(&text.len()) && text.bytes().all(legal)
    }

    /// The deadline for a connection, and for whatever a port asks, with all attempts.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How much the event log keeps.
    #[must_use]
    pub fn events(mut self, limits: EventLimits) -> Self {
        self.events = limits;
        self
    }

    /// Who is told what happens.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("servers", &self.url.servers)
            .field("tls", &self.url.tls)
            .field("database", &self.url.database)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "redacted"))
            .field("ca_bundles", &self.ca_bundles)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}
