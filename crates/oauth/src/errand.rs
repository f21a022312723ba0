//! What somebody logs in for: a client's request, or one of the gateway's own pages. Sealed, in the browser.

use chrono::Utc;
use drawbridge_core::seal::Purpose;
use serde::{Deserialize, Serialize};

use crate::Inner;
use crate::browser::Browser;
use crate::transaction::{LIFETIME, Transaction};

/// What somebody logs in for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// A client's request.
    #[serde(rename = "a")]
    Authorize(Box<Transaction>),
    /// A page.
    #[serde(rename = "v")]
    Visit(Visit),
}

/// A page that only somebody who has logged in sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Visit {
    /// Its path here, with its query.
    #[serde(rename = "p")]
    pub(crate) path: String,
    /// In which browser.
    #[serde(rename = "b")]
    pub(crate) browser: String,
    /// When, in seconds since 1970.
    #[serde(rename = "t")]
    pub(crate) at: i64,
    /// Somebody must log in anew.
    #[serde(rename = "l", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) asks_for_login: bool,
}

impl Visit {
    /// A visit of `path` by this browser.
    pub(crate) fn of(path: String, browser: &Browser) -> Self {
        Self { path, browser: browser.name(), at: Utc::now().timestamp(), asks_for_login: false }
    }

    /// The same by somebody else than who has logged in.
    pub(crate) fn by_another(path: String, browser: &Browser) -> Self {
        Self { asks_for_login: true, ..Self::of(path, browser) }
    }
}

impl From<Transaction> for Errand {
    fn from(transaction: Transaction) -> Self {
        Self::Authorize(Box::new(transaction))
    }
}

impl Errand {
    pub(crate) fn seal(&self, inner: &Inner) -> String {
        inner.ring.seal(Purpose::Authorization, &serde_json::to_vec(self).unwrap_or_default())
    }

    /// An errand of this browser that is not over.
    pub(crate) fn open(inner: &Inner, sealed: &str, browser: &Browser) -> Option<Self> {
        let this: Self = serde_json::from_slice(&inner.ring.open(Purpose::Authorization, sealed)?).ok()?;
        let (whose, at) = match &this {
            Self::Authorize(transaction) => (&transaction.browser, transaction.at),
            Self::Visit(visit) => (&visit.browser, visit.at),
        };
        let is_fresh = (0..=LIFETIME).contains(&(Utc::now().timestamp() - at));
        (is_fresh && *whose == browser.name()).then_some(this)
    }

    /// Whether a login from before is not enough.
    pub(crate) fn asks_for_login(&self) -> bool {
        match self {
            Self::Authorize(transaction) => transaction.asks_for_login,
            Self::Visit(visit) => visit.asks_for_login,
        }
    }
}
