//! The way from a consent to the accounts that its client will need, and back. What the client has asked for waits in the
//! browser meanwhile, sealed, in a cookie of its own: at another server the browser may be for a while, and may come back
//! to any instance. Links and forms have its name alone, so they lead nowhere but here.

use axum::body::Body;
use axum::extract::State;
use chrono::TimeDelta;
use http::{HeaderMap, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};

use crate::Inner;
use crate::browser::{self, Browser, Login};
use crate::clients::Shared;
use crate::form::Form;
use crate::limits::Limited;
use crate::text::Text;
use crate::transaction::{LIFETIME, Transaction};

/// What is larger does not wait: balancers take few kilobytes of headers.
const MAX_BYTES: usize = 3072;
/// So many wait in one browser.
const MOST: usize = 3;
/// What the names of the cookies begin with.
const COOKIE: &str = "asked_";

/// Names a transaction that waits in the browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct WayBack(String);

impl WayBack {
    /// Reads a name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_name = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_name.then(|| Self(text.to_owned()))
    }

    /// Where the consent goes on.
    pub(crate) fn path(&self) -> String {
        format!("/consent?back={}", self.0)
    }

    /// Where an account is connected before that.
    pub(crate) fn connect(&self, backend: &str) -> String {
        format!("/connect/{backend}?back={}", self.0)
    }

    fn cookie(&self) -> String {
        format!("{COOKIE}{}", self.0)
    }
}

/// A transaction that is to wait.
pub(crate) struct Waiting {
    /// Its name.
    pub(crate) back: WayBack,
    sealed: String,
}

impl Waiting {
    /// Lets a transaction wait, if it is not too large. Somebody has logged in for it.
    pub(crate) fn of(inner: &Inner, transaction: &Transaction) -> Option<Self> {
        let back = WayBack::parse(&transaction.id)?;
        let sealed = Transaction { asks_for_login: false, user: None, ..transaction.clone() }.seal(inner);
        (sealed.len() <= MAX_BYTES).then_some(Self { back, sealed })
    }

    /// Gives it to the browser, and takes those from it that have waited for longest if there are many.
    pub(crate) fn set(&self, inner: &Inner, asked: &HeaderMap, headers: &mut HeaderMap) {
        let own = self.back.cookie();
        let mut others = browser::cookies(inner, asked, COOKIE);
        others.retain(|name| *name != own);
        // Names begin with the time.
        others.sort_unstable();
        for name in &others[..(others.len() + 1).saturating_sub(MOST)] {
            browser::set_cookie(inner, headers, name, "", TimeDelta::zero());
        }
        browser::set_cookie(inner, headers, &own, &self.sealed, TimeDelta::seconds(LIFETIME));
    }
}

/// The transaction waits no longer: it was answered.
pub(crate) fn forget(inner: &Inner, transaction: &Transaction, asked: &HeaderMap, headers: &mut HeaderMap) {
    let own = WayBack::parse(&transaction.id).map(|back| back.cookie());
    if let Some(own) = own.filter(|own| browser::cookie(inner, asked, own).is_some()) {
        browser::set_cookie(inner, headers, &own, "", TimeDelta::zero());
    }
}

/// `GET /consent`: somebody comes back to what a client has asked for.
pub(crate) async fn come_back(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    if inner.limit(Limited::Authorize, crate::address(&request)).await.is_err() {
        return inner.trouble(text, StatusCode::TOO_MANY_REQUESTS, text.slow_down);
    }
    let (head, _) = request.into_parts();
    let form = Form::parse(head.uri.query().unwrap_or_default().as_bytes());
    let browser = Browser::of(&inner, &head.headers);
    let back = form.get("back").and_then(WayBack::parse);
    let waiting = back.as_ref().and_then(|back| {
        let sealed = browser::cookie(&inner, &head.headers, &back.cookie())?;
        Transaction::open(&inner, sealed, &browser).filter(|transaction| transaction.id == back.0)
    });
    let Some(transaction) = waiting else {
        return inner.trouble(text, StatusCode::BAD_REQUEST, text.expired);
    };
    match inner.records.grant(&transaction.id).await {
        Ok(None) => {}
        Ok(Some(_)) => return inner.trouble(text, StatusCode::CONFLICT, text.answered),
        Err(error) => {
            tracing::warn!("a consent can't be asked for again: {error}");
            return inner.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable);
        }
    }
    match Login::of(&inner, &head.headers, &browser) {
        Some(login) => inner.ask_for_consent(transaction, &login, &head.headers, text).await,
        None => inner.ask_for_login(&transaction.into(), text).await,
    }
}
