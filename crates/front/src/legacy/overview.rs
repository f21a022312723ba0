//! Sessions as operators see them.

use drawbridge_wire::json;
use serde::{Deserialize, Serialize};

use super::session::Session;

/// A session that an instance keeps something for. Of the client it has what it said of itself, which nobody checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOverview {
    /// Names it, and lets nobody use it: 32 hexadecimal digits.
    pub key: String,
    /// The endpoint, if it has a name.
    pub endpoint: Option<String>,
    /// Whom it is of, such as `user:ID`; none where callers are not asked.
    pub caller: Option<String>,
    /// The OAuth client, or `pat:ID`.
    pub oauth_client: Option<String>,
    /// What the client calls itself.
    pub client_name: Option<String>,
    /// Its version.
    pub client_version: Option<String>,
    /// Of MCP.
    pub protocol_version: String,
    /// Calls that run.
    pub calls: usize,
    /// Whether its standalone stream is open here.
    pub has_stream: bool,
    /// Seconds since it was last used.
    pub idle_seconds: u64,
}

impl Session {
    pub(super) fn overview(&self) -> SessionOverview {
        let client = self.client();
        let said = |member: &str| {
            let value = json::decode_string(json::member(client.info.as_deref()?, member)?)?;
            Some(value.chars().filter(|c| !c.is_control()).take(100).collect())
        };
        let (calls, has_stream) = self.load();
        let caller = self.caller.as_ref();
        SessionOverview {
            key: self.key.to_string(),
            endpoint: self.endpoint().name().map(ToString::to_string),
            caller: caller.map(|caller| caller.name.clone()),
            oauth_client: caller.map(|caller| caller.client.clone()),
            client_name: said("name"),
            client_version: said("version"),
            protocol_version: client.version.as_str().to_owned(),
            calls,
            has_stream,
            idle_seconds: self.unused_for().as_secs(),
        }
    }
}
