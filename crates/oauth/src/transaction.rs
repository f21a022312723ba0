//! An authorization request on its way through login and consent. It is nowhere but in the browser, sealed, so any
//! instance goes on with it, and whoever starts many costs nothing.

use chrono::{DateTime, Utc};
use drawbridge_auth::records::Time;
use drawbridge_auth::scope::{OFFERED, Scopes};
use drawbridge_core::seal::Purpose;
use serde::{Deserialize, Serialize};

use crate::Inner;
use crate::browser::Browser;

/// A transaction is over after this many seconds.
pub(crate) const LIFETIME: i64 = 600;
/// A code is good for this many seconds: people carry it by hand over SSH.
const CODE_LIFETIME: i64 = 300;

/// What a client has asked for, all of it checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transaction {
    /// Names the transaction, and the grant that comes of it.
    #[serde(rename = "i")]
    pub(crate) id: String,
    #[serde(rename = "c")]
    pub(crate) client: String,
    /// Whether it is not known yet where the client may be answered, so that nothing may be sent there.
    #[serde(rename = "k", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unchecked: bool,
    #[serde(rename = "r")]
    pub(crate) redirect_uri: String,
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    #[serde(rename = "o")]
    pub(crate) scopes: Vec<String>,
    /// The endpoint that is the resource.
    #[serde(rename = "e", skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// The PKCE challenge, by S256.
    #[serde(rename = "h")]
    pub(crate) challenge: String,
    /// Which browser.
    #[serde(rename = "b")]
    pub(crate) browser: String,
    /// When it began, in seconds since 1970.
    #[serde(rename = "t")]
    pub(crate) at: i64,
    /// Somebody must log in anew.
    #[serde(rename = "l", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) asks_for_login: bool,
    /// Whom the consent page was shown to.
    #[serde(rename = "u", skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
}

impl Transaction {
    pub(crate) fn seal(&self, inner: &Inner) -> String {
        inner.ring.seal(Purpose::Authorization, &serde_json::to_vec(self).unwrap_or_default())
    }

    /// A transaction of this browser that is not over.
    pub(crate) fn open(inner: &Inner, sealed: &str, browser: &Browser) -> Option<Self> {
        let this: Self = serde_json::from_slice(&inner.ring.open(Purpose::Authorization, sealed)?).ok()?;
        let is_fresh = (0..=LIFETIME).contains(&(Utc::now().timestamp() - this.at));
        (is_fresh && this.browser == browser.name()).then_some(this)
    }
}

/// The scopes of a request: those of the asked that there are, all if there is none of them.
pub(crate) fn scopes(asked: Option<&str>) -> Scopes {
    let known = Scopes::parse(asked.unwrap_or_default()).offered();
    if known.is_empty() { Scopes::new(OFFERED) } else { known }
}

/// What an authorization code says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Code {
    /// The grant that it is good for, once.
    #[serde(rename = "i")]
    pub(crate) grant: String,
    #[serde(rename = "c")]
    pub(crate) client: String,
    #[serde(rename = "n", skip_serializing_if = "Option::is_none")]
    pub(crate) client_name: Option<String>,
    #[serde(rename = "r")]
    pub(crate) redirect_uri: String,
    #[serde(rename = "o")]
    pub(crate) scopes: Vec<String>,
    #[serde(rename = "e", skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    #[serde(rename = "h")]
    pub(crate) challenge: String,
    #[serde(rename = "u")]
    pub(crate) user: String,
    #[serde(rename = "v")]
    pub(crate) user_version: i64,
    /// When the user logged in, in seconds since 1970.
    #[serde(rename = "a")]
    pub(crate) auth_time: i64,
    /// When it was made, in seconds since 1970.
    #[serde(rename = "t")]
    pub(crate) at: i64,
    /// What ends the login that it came of, if that was with a token.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

impl Code {
    pub(crate) fn seal(&self, inner: &Inner) -> String {
        inner.ring.seal(Purpose::Code, &serde_json::to_vec(self).unwrap_or_default())
    }

    /// A code that is not too old. Whether it was used is in the records.
    pub(crate) fn open(inner: &Inner, sealed: &str) -> Option<Self> {
        let this: Self = serde_json::from_slice(&inner.ring.open(Purpose::Code, sealed)?).ok()?;
        (0..=CODE_LIFETIME).contains(&(Utc::now().timestamp() - this.at)).then_some(this)
    }

    pub(crate) fn auth_time(&self) -> Time {
        DateTime::from_timestamp(self.auth_time, 0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_asks_for_that_there_is_not_is_left_out() {
        for (asked, granted) in [
            (None, "mcp:read mcp:write"),
            (Some("openid email profile"), "mcp:read mcp:write"),
            (Some("mcp:read nonsense"), "mcp:read"),
            (Some("offline_access mcp:write"), "mcp:write"),
            (Some("admin:* login"), "mcp:read mcp:write"),
            (Some(""), "mcp:read mcp:write"),
        ] {
            assert_eq!(scopes(asked).to_string(), granted, "{asked:?}");
        }
    }
}
