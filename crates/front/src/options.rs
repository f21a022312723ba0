//! Limits and times of the public face.

use std::sync::Arc;
use std::time::Duration;

use drawbridge_auth::policy::Rules;

use crate::limits::Limits;

/// What the configuration says about the public face.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// The largest section of headers, in bytes; for whoever reads them.
    pub max_header_bytes: usize,
    /// Connections open at once; for whoever accepts them.
    pub max_connections: usize,
    /// Requests being answered at once.
    pub max_in_flight: usize,
    /// Those and open streams together: each may need a connection to a backend, however many share one of a client.
    pub max_open: usize,
    /// Sessions that something is kept for, on this instance.
    pub max_sessions: usize,
    /// Streams open at once.
    pub max_streams: usize,
    /// What is kept for a session is dropped after this time without use.
    pub session_idle: Duration,
    /// A quiet stream gets a comment this often.
    pub keep_alive: Duration,
    /// When clients whose stream ends should come back.
    pub retry: Duration,
    /// A request without an answer for this long is answered by a stream.
    pub sse_after: Duration,
    /// Origins that browsers may call from, beside that of the gateway itself.
    pub allowed_origins: Vec<String>,
    /// Host names that the gateway answers to. Empty: loopback names if it listens on loopback, else any.
    pub allowed_hosts: Vec<String>,
    /// The URL that clients know, if it is another than that of the listener.
    pub public_url: Option<url::Url>,
    /// Whether the listener is bound to loopback.
    pub on_loopback: bool,
    /// Whether pages of the visitor's own machine may call wherever the gateway listens: they need a token to.
    pub loopback_origins: bool,
    /// How often requests and calls may come.
    pub limits: Arc<Limits>,
    /// What callers may, beyond what their credentials say.
    pub rules: Arc<Rules>,
    /// Networks of proxies that may say where a request has come from.
    pub trusted_proxies: Vec<ipnet::IpNet>,
}

impl Default for FrontOptions {
    /// The defaults of the configuration reference.
    fn default() -> Self {
        Self {
            max_body_bytes: 4 << 20,
            max_header_bytes: 64 << 10,
            max_connections: 20_000,
            max_in_flight: 10_000,
            max_open: usize::MAX,
            max_sessions: 100_000,
            max_streams: 10_000,
            session_idle: Duration::from_secs(1800),
            keep_alive: Duration::from_secs(15),
            retry: Duration::from_secs(1),
            sse_after: Duration::from_secs(1),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            public_url: None,
            on_loopback: true,
            loopback_origins: false,
            limits: Arc::default(),
            rules: Arc::default(),
            trusted_proxies: Vec::new(),
        }
    }
}

impl FrontOptions {
    /// How many requests may be answered at once while so many `streams` are open.
    pub(crate) fn most_in_flight(&self, streams: usize) -> usize {
        self.max_in_flight.min(self.max_open.saturating_sub(streams))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_on_one_connection_do_not_take_more_files_than_there_are() {
        let options = FrontOptions { max_in_flight: 100, max_open: 150, ..FrontOptions::default() };
        assert_eq!(
            [0, 50, 51, 149, 200].map(|streams| options.most_in_flight(streams)),
            [100, 100, 99, 1, 0]
        );
    }
}
