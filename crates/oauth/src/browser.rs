//! What a browser carries: one cookie that tells it from others, one that says who has logged in with it. Nothing of
//! either is stored here.

use chrono::{DateTime, TimeDelta, Utc};
use drawbridge_auth::records::User;
use drawbridge_auth::revoking::RevocationKey;
use drawbridge_core::seal::Purpose;
use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Inner;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Who has logged in stays so for this long.
const LOGIN_TIME: TimeDelta = TimeDelta::hours(12);

/// Tells a browser from others. Sealed transactions name it, so that what was begun in one can't go on in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Browser {
    secret: String,
    is_new: bool,
}

/// Who has logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Login {
    #[serde(rename = "u")]
    pub(crate) user: String,
    /// Of the user, then.
    #[serde(rename = "v")]
    pub(crate) version: i64,
    /// When, in seconds since 1970.
    #[serde(rename = "t")]
    pub(crate) at: i64,
    /// In which browser.
    #[serde(rename = "b")]
    browser: String,
    /// What ends it, if it came of a token.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

impl Browser {
    /// The browser that sends these headers, or a new one.
    pub(crate) fn of(inner: &Inner, headers: &HeaderMap) -> Self {
        let known = cookie(inner, headers, "browser").filter(|secret| secret.len() == 43);
        match known {
            Some(secret) => Self { secret: secret.to_owned(), is_new: false },
            None => Self { secret: URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()), is_new: true },
        }
    }

    /// What transactions name it by.
    pub(crate) fn name(&self) -> String {
        URL_SAFE_NO_PAD.encode(&Sha256::digest(&self.secret)[..16])
    }

    /// The header that lets a new browser be known next time.
    pub(crate) fn set(&self, inner: &Inner, headers: &mut HeaderMap) {
        if self.is_new {
            set_cookie(inner, headers, "browser", &self.secret, TimeDelta::days(30));
        }
    }
}

impl Login {
    /// A login of `user` just now.
    pub(crate) fn now(user: &User, browser: &Browser, key: Option<RevocationKey>) -> Self {
        let (at, key) = (Utc::now().timestamp(), key.map(|key| key.to_string()));
        Self { user: user.id.clone(), version: user.version, at, browser: browser.name(), key }
    }

    /// Who has logged in with this browser, if that is not too long ago. Whether the user may still is for others.
    pub(crate) fn of(inner: &Inner, headers: &HeaderMap, browser: &Browser) -> Option<Self> {
        let sealed = cookie(inner, headers, "login")?;
        let login: Self = serde_json::from_slice(&inner.ring.open(Purpose::Login, sealed)?).ok()?;
        let is_fresh = Utc::now().timestamp() - login.at < LOGIN_TIME.num_seconds();
        let is_good = is_fresh && login.browser == browser.name() && !inner.has_ended(login.key.as_deref());
        is_good.then_some(login)
    }

    /// Whether it was with a token.
    pub(crate) fn is_by_token(&self) -> bool {
        self.key.is_some()
    }

    /// When.
    pub(crate) fn time(&self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.at, 0).unwrap_or_default()
    }

    pub(crate) fn set(&self, inner: &Inner, headers: &mut HeaderMap) {
        let sealed = inner.ring.seal(Purpose::Login, &serde_json::to_vec(self).unwrap_or_default());
        set_cookie(inner, headers, "login", &sealed, LOGIN_TIME);
    }

    /// Nobody is logged in any more.
    pub(crate) fn clear(inner: &Inner, headers: &mut HeaderMap) {
        set_cookie(inner, headers, "login", "", TimeDelta::zero());
    }
}

impl Inner {
    /// Whether the token was revoked that a login came of.
    pub(crate) fn has_ended(&self, key: Option<&str>) -> bool {
        // What names a key that can't be read is no longer good.
        key.is_some_and(|key| RevocationKey::parse(key).is_none_or(|key| self.revocations.is_revoked(&key)))
    }

    /// Cookies that only this host can have set, where that can be had.
    fn cookie_name(&self, what: &str) -> String {
        if self.origin.is_secure() {
            format!("__Host-drawbridge_{what}")
        } else {
            format!("drawbridge_{what}")
        }
    }
}

fn all_cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|all| all.split(';')).filter_map(|one| one.trim().split_once('='))
}

/// A cookie of ours.
pub(crate) fn cookie<'h>(inner: &Inner, headers: &'h HeaderMap, what: &str) -> Option<&'h str> {
    let name = inner.cookie_name(what);
    all_cookies(headers).find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// The names of our cookies that begin so.
pub(crate) fn cookies(inner: &Inner, headers: &HeaderMap, beginning: &str) -> Vec<String> {
    let before = inner.cookie_name("");
    let own = all_cookies(headers).filter_map(|(name, _)| name.strip_prefix(&before));
    own.filter(|name| name.starts_with(beginning)).map(str::to_owned).collect()
}

pub(crate) fn set_cookie(inner: &Inner, headers: &mut HeaderMap, what: &str, value: &str, age: TimeDelta) {
    let secure = if inner.origin.is_secure() { "; Secure" } else { "" };
    let text = format!(
        "{}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={}{secure}",
        inner.cookie_name(what),
        age.num_seconds()
    );
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.append(SET_COOKIE, value);
    }
}
