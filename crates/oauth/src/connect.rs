//! Users connect their accounts at other servers: `/connect/{backend}`, `/connect/callback/{backend}`.
//!
//! ```text
//! a link that a host shows ─▶ GET /connect/gh?e=… ─▶ (login) ─▶ is it this user's? ─▶ "Go on?"
//! POST /connect/gh ─▶ the other server, with a state that is sealed and this browser's alone
//! GET /connect/callback/gh ─▶ same browser, same user, once ─▶ kept; "return to your application"
//! ```
//!
//! For backends that each user has a key for ([`KeySite`]) the page asks for that, and nobody goes anywhere. For those that
//! get what users have logged in with ([`drawbridge_credentials::exchange`]) a link lets them log in again,
//! and nothing else.
//!
//! Somebody who comes from a consent ([`crate::way_back`]) goes on there.
//!
//! A link has no power: whoever opens another's is turned away, so that nobody connects an account to somebody else's
//! user.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::User;
use drawbridge_auth::token;
use drawbridge_core::seal::Purpose;
use drawbridge_credentials::connections::{Attempt, CameBack, Connections, KeySite, NotConnected, key_in};
use http::{HeaderMap, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};

use crate::Inner;
use crate::browser::{Browser, Login};
use crate::clients::Shared;
use crate::errand::{Errand, Visit};
use crate::form::Form;
use crate::limits::Limited;
use crate::login::hex;
use crate::pages::{self, Connect, Connected, Key, Way};
use crate::text::{Text, printable};
use crate::way_back::WayBack;

/// What was begun is over after this many seconds.
const LIFETIME: i64 = 600;
/// An answer is remembered for so long, which is longer than it is good.
pub(crate) const ONCE: Duration = Duration::from_secs(900);
/// Whoever has logged in within this time need not do so again.
const JUST: TimeDelta = TimeDelta::seconds(60);
/// A link is no longer than this many bytes.
const MAX_LINK: usize = 2048;

/// What the gateway gives a browser, sealed.
#[derive(Serialize, Deserialize)]
enum Sealed {
    /// In the forms of the pages: this browser's, of this user.
    #[serde(rename = "f")]
    Form(Whose),
    /// In the `state` of the other server.
    #[serde(rename = "s")]
    State { whose: Whose, attempt: Attempt },
}

#[derive(Serialize, Deserialize)]
struct Whose {
    #[serde(rename = "u")]
    user: String,
    #[serde(rename = "w")]
    browser: String,
    #[serde(rename = "b")]
    backend: String,
    #[serde(rename = "t")]
    at: i64,
    /// Where they go on afterwards.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    back: Option<WayBack>,
}

impl Whose {
    /// Of somebody at a page, now.
    fn of(visitor: &Visitor<'_>, backend: &str) -> Self {
        Self {
            user: visitor.user.id.clone(),
            browser: visitor.browser.name(),
            backend: backend.to_owned(),
            at: Utc::now().timestamp(),
            back: visitor.back.clone(),
        }
    }

    fn is(&self, user: &User, browser: &Browser, backend: &str) -> bool {
        let is_fresh = (0..=LIFETIME).contains(&(Utc::now().timestamp() - self.at));
        is_fresh && self.user == user.id && self.browser == browser.name() && self.backend == backend
    }
}

impl Sealed {
    fn seal(&self, inner: &Inner) -> String {
        inner.ring.seal(Purpose::Connect, &serde_json::to_vec(self).unwrap_or_default())
    }

    fn open(inner: &Inner, sealed: &str) -> Option<Self> {
        serde_json::from_slice(&inner.ring.open(Purpose::Connect, sealed)?).ok()
    }
}

/// Somebody at a page, or what they are shown in its place.
pub(crate) struct Visitor<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) text: &'static Text,
    browser: Browser,
    pub(crate) login: Login,
    pub(crate) user: User,
    pub(crate) connections: &'a Connections,
    /// What they have come from, and go on with.
    back: Option<WayBack>,
}

type Page = Box<Response<Body>>;

impl Inner {
    /// Who has logged in with this browser; else they log in first and come back to `path`.
    pub(crate) async fn visitor(
        &self,
        headers: &HeaderMap,
        path: String,
        text: &'static Text,
    ) -> Result<Visitor<'_>, Page> {
        let connections = self.connections.as_deref().ok_or_else(|| Box::new(crate::not_found()))?;
        let browser = Browser::of(self, headers);
        let found = match Login::of(self, headers, &browser) {
            Some(login) => match self.records.user(&login.user).await {
                Ok(Some(user)) if user.disabled_at.is_some() => {
                    return Err(Box::new(self.trouble(text, StatusCode::FORBIDDEN, text.not_allowed)));
                }
                Ok(user) => user.filter(|user| user.version == login.version).map(|user| (login, user)),
                Err(error) => return Err(Box::new(self.away(text, &error))),
            },
            None => None,
        };
        match found {
            Some((login, user)) => {
                Ok(Visitor { inner: self, text, browser, login, user, connections, back: None })
            }
            None => {
                let errand = Errand::Visit(Visit::of(path, &browser));
                let mut response = self.ask_for_login(&errand, text).await;
                browser.set(self, response.headers_mut());
                Err(Box::new(response))
            }
        }
    }

    /// A link or a page is too old, or another browser's.
    pub(crate) fn too_old(&self, text: &Text, status: StatusCode) -> Response<Body> {
        self.trouble_on_the_way(text, status, text.link_expired, Way::Accounts)
    }

    pub(crate) fn away(&self, text: &Text, error: &dyn std::fmt::Display) -> Response<Body> {
        tracing::warn!("an account can't be connected now: {error}");
        self.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable)
    }
}

impl Visitor<'_> {
    /// A page that leads to what the user has come from, or to their accounts.
    pub(crate) fn page(&self, status: StatusCode, what: &str) -> Response<Body> {
        let back = self.back.as_ref().map(WayBack::path);
        let way = back.as_deref().map_or(Way::Accounts, Way::Back);
        self.inner.trouble_on_the_way(self.text, status, what, way)
    }

    /// An account is connected: the user goes on with what they have come from.
    fn done(&self, backend: &str) -> Response<Body> {
        if let Some(back) = &self.back {
            return pages::redirect(&back.path());
        }
        let (text, gateway) = (self.text, &self.inner.options.resource_name);
        pages::page(StatusCode::OK, &Connected { text, gateway, backend })
    }

    /// The page on which an account is connected.
    fn path(&self, backend: &str) -> String {
        self.back.as_ref().map_or_else(|| format!("/connect/{backend}"), |back| back.connect(backend))
    }

    /// What a form of this browser has, about a backend or what stands for one.
    pub(crate) fn form(&self, backend: &str) -> String {
        Sealed::Form(Whose::of(self, backend)).seal(self.inner)
    }

    /// What lets somebody else log in and come back to `path`.
    pub(crate) fn switch(&self, path: &str) -> String {
        Errand::Visit(Visit::by_another(path.to_owned(), &self.browser)).seal(self.inner)
    }

    /// What somebody is shown who can't connect. The particulars are for the operator.
    pub(crate) fn why_not(&self, backend: &str, why: &NotConnected) -> Response<Body> {
        let text = self.text;
        match why {
            NotConnected::NoSite => crate::not_found(),
            NotConnected::Unavailable(_) => self.inner.away(text, why),
            NotConnected::Denied => self.page(StatusCode::FORBIDDEN, text.connect_denied),
            NotConnected::Refused(_) => {
                tracing::warn!(backend.name = backend, user.id = self.user.id, "not connected: {why}");
                self.page(StatusCode::BAD_REQUEST, text.connect_failed)
            }
            NotConnected::NoServer(_) => {
                tracing::error!(backend.name = backend, "nobody can connect: {why}");
                self.page(StatusCode::BAD_GATEWAY, text.connect_impossible)
            }
        }
    }

    /// Whether the user comes from logging in, and what that gave is there.
    async fn has_just_logged_in(&self) -> bool {
        let is_recent = Utc::now() - self.login.time() < JUST;
        // If that can't be told, logging in again does no harm.
        is_recent && self.connections.has_login(&self.user.id).await.unwrap_or(false)
    }

    /// The page on which the user gives a key, at first or after something that is none.
    fn ask_for_key(&self, site: &KeySite, switch: &str, is_wrong: bool) -> Response<Body> {
        let (text, gateway) = (self.text, &self.inner.options.resource_name);
        let form = self.form(&site.name);
        let status = if is_wrong { StatusCode::BAD_REQUEST } else { StatusCode::OK };
        let (transaction, user, help) = (&form, &self.shown(), site.help.as_deref());
        let (backend, host) = (&site.name, site.host());
        let page = Key { text, gateway, transaction, backend, host, help, user, switch, is_wrong };
        pages::page(status, &page)
    }

    async fn keep_key(&self, backend: &str, form: &Form) -> Response<Body> {
        let Some(site) = self.connections.key_site(backend) else { return crate::not_found() };
        let Some(key) = form.get("key").and_then(key_in) else {
            return self.ask_for_key(&site, &self.switch(&self.path(backend)), true);
        };
        match self.connections.keep_key(&self.user.id, backend, key).await {
            Ok(()) => self.done(backend),
            Err(why) => self.why_not(backend, &why),
        }
    }

    pub(crate) fn shown(&self) -> String {
        let user = &self.user;
        printable(user.name.as_deref().or(user.email.as_deref()).unwrap_or(&user.subject), 120)
    }
}

/// `GET /connect/{backend}`.
pub(crate) async fn ask(
    State(inner): State<Shared>,
    Path(backend): Path<String>,
    request: Request<Body>,
) -> Response<Body> {
    let text = Text::of(request.headers());
    if inner.limit(Limited::Authorize, crate::address(&request)).await.is_err() {
        return inner.trouble(text, StatusCode::TOO_MANY_REQUESTS, text.slow_down);
    }
    let (head, _) = request.into_parts();
    let form = Form::parse(head.uri.query().unwrap_or_default().as_bytes());
    asked(&inner, &backend, &form, &head.headers, text).await.unwrap_or_else(|page| *page)
}

async fn asked(
    inner: &Inner,
    backend: &str,
    form: &Form,
    headers: &HeaderMap,
    text: &'static Text,
) -> Result<Response<Body>, Page> {
    let connections = inner.connections.as_ref().ok_or_else(|| Box::new(crate::not_found()))?;
    let is_by_login = connections.is_by_login(backend);
    if !connections.is_known(backend) {
        return Err(Box::new(crate::not_found()));
    }
    let (mut path, mut link) = (format!("/connect/{backend}"), None);
    let back = form.get("back").and_then(WayBack::parse);
    if let Some(back) = &back {
        path = back.connect(backend);
    } else if let Some(sealed) = form.get("e").filter(|sealed| sealed.len() <= MAX_LINK) {
        let opened = connections.link(sealed).filter(|link| link.backend == *backend);
        let old = || Box::new(inner.too_old(text, StatusCode::BAD_REQUEST));
        link = Some(opened.ok_or_else(old)?);
        path = format!("{path}?e={sealed}");
    }
    let visitor = Visitor { back, ..inner.visitor(headers, path.clone(), text).await? };
    let switch = visitor.switch(&path);
    if link.is_some_and(|link| link.user != visitor.user.id) {
        tracing::warn!(
            backend.name = backend,
            user.id = visitor.user.id,
            "a link to connect an account was opened by another user than it was made for"
        );
        let way = Way::Switch(&switch);
        return Ok(inner.trouble_on_the_way(text, StatusCode::FORBIDDEN, text.other_account, way));
    }
    if let Some(site) = connections.key_site(backend) {
        return Ok(visitor.ask_for_key(&site, &switch, false));
    }
    if is_by_login && visitor.has_just_logged_in().await {
        // That was all that was needed.
        return Ok(visitor.done(backend));
    }
    let asked = match connections.login_hosts(backend).filter(|_| is_by_login) {
        Some(hosts) => Ok(hosts),
        None => visitor.connections.ask(backend).await,
    };
    let (host, server) = match asked {
        Ok(hosts) => hosts,
        Err(why) => return Ok(visitor.why_not(backend, &why)),
    };
    let form = visitor.form(backend);
    let gateway = &inner.options.resource_name;
    let user = visitor.shown();
    let (host, server, user, switch) = (&host, &server, &user, &switch);
    let page = Connect { text, gateway, transaction: &form, backend, host, server, user, switch };
    Ok(pages::page(StatusCode::OK, &page))
}

/// `POST /connect/{backend}`.
pub(crate) async fn go(
    State(inner): State<Shared>,
    Path(backend): Path<String>,
    request: Request<Body>,
) -> Response<Body> {
    let text = Text::of(request.headers());
    match sent(&inner, &backend, request, text).await {
        Ok((visitor, _)) if visitor.connections.is_by_login(&backend) => {
            let errand = Errand::Visit(Visit::of(visitor.path(&backend), &visitor.browser));
            inner.ask_for_login(&errand, text).await
        }
        Ok((visitor, form)) if visitor.connections.key_site(&backend).is_some() => {
            visitor.keep_key(&backend, &form).await
        }
        Ok((visitor, _)) => {
            let whose = Whose::of(&visitor, &backend);
            let state = |attempt| Sealed::State { whose, attempt }.seal(&inner);
            match visitor.connections.begin(&visitor.user.id, &backend, state).await {
                Ok(url) => pages::redirect(&url),
                Err(why) => visitor.why_not(&backend, &why),
            }
        }
        Err(page) => *page,
    }
}

/// Who has sent a form of one of the pages, and the form.
pub(crate) async fn sent<'a>(
    inner: &'a Inner,
    backend: &str,
    request: Request<Body>,
    text: &'static Text,
) -> Result<(Visitor<'a>, Form), Page> {
    let page = |status, what| Box::new(inner.trouble(text, status, what));
    if !inner.is_own_form(request.headers()) {
        return Err(page(StatusCode::FORBIDDEN, text.forged));
    }
    let (head, body) = request.into_parts();
    let form = Form::read_but(&head.headers, body, &["scope"]).await;
    let form = form.map_err(|_| Box::new(inner.too_old(text, StatusCode::BAD_REQUEST)))?;
    let visitor = inner.visitor(&head.headers, "/connections".to_owned(), text).await?;
    match form.get("transaction").and_then(|sealed| Sealed::open(inner, sealed)) {
        Some(Sealed::Form(whose)) if whose.is(&visitor.user, &visitor.browser, backend) => {
            Ok((Visitor { back: whose.back, ..visitor }, form))
        }
        _ => Err(Box::new(inner.too_old(text, StatusCode::FORBIDDEN))),
    }
}

/// `GET /connect/callback/{backend}`: the other server sends somebody back.
pub(crate) async fn callback(
    State(inner): State<Shared>,
    Path(backend): Path<String>,
    request: Request<Body>,
) -> Response<Body> {
    let text = Text::of(request.headers());
    let (head, _) = request.into_parts();
    let form = Form::parse(head.uri.query().unwrap_or_default().as_bytes());
    came_back(&inner, &backend, &form, &head.headers, text).await.unwrap_or_else(|page| *page)
}

async fn came_back(
    inner: &Inner,
    backend: &str,
    form: &Form,
    headers: &HeaderMap,
    text: &'static Text,
) -> Result<Response<Body>, Page> {
    let too_old = |status| Box::new(inner.too_old(text, status));
    let state = form.get("state").unwrap_or_default();
    let Some(Sealed::State { whose, attempt }) = Sealed::open(inner, state) else {
        return Err(too_old(StatusCode::BAD_REQUEST));
    };
    // Each backend has its own place, so that one's server can't answer for another.
    if whose.backend != backend {
        tracing::warn!(backend.name = backend, "an answer for {} came to another backend", whose.backend);
        let way = Way::Accounts;
        let page = inner.trouble_on_the_way(text, StatusCode::BAD_REQUEST, text.connect_failed, way);
        return Err(Box::new(page));
    }
    let browser = Browser::of(inner, headers);
    if Login::of(inner, headers, &browser).is_none() {
        return Err(too_old(StatusCode::FORBIDDEN));
    }
    let visitor = inner.visitor(headers, "/connections".to_owned(), text).await?;
    if !whose.is(&visitor.user, &visitor.browser, backend) {
        tracing::warn!(
            backend.name = backend,
            "an account came back to another browser or user, or too late"
        );
        return Err(too_old(StatusCode::FORBIDDEN));
    }
    let visitor = Visitor { back: whose.back, ..visitor };
    let once = format!("connect:{}", hex(&token::hash(state).0[..16]));
    match inner.claims.claim(&once, ONCE).await {
        Ok(true) => {}
        Ok(false) => return Err(too_old(StatusCode::BAD_REQUEST)),
        Err(why) => return Err(Box::new(inner.away(text, &why))),
    }
    let came = CameBack { code: form.get("code"), error: form.get("error"), iss: form.get("iss") };
    let finished = visitor.connections.finish(&visitor.user.id, backend, &attempt, came).await;
    Ok(match finished {
        Ok(()) => visitor.done(backend),
        Err(why) => visitor.why_not(backend, &why),
    })
}
