//! The user decides. Consent is asked for each time: a silent yes is what confused deputies live on.

use axum::body::Body;
use axum::extract::State;
use chrono::Utc;
use drawbridge_auth::records::{RecordsError, User};
use drawbridge_auth::scope::{OFFERED, WRITE};
use drawbridge_auth::vault::ConnectionStatus;
use drawbridge_credentials::connections::Shown;
use http::{HeaderMap, Request, Response, StatusCode};
use url::Url;

use crate::browser::{Browser, Login};
use crate::clients::{Client, NoClient, Shared};
use crate::errand::Errand;
use crate::form::Form;
use crate::limits::Limited;
use crate::pages::{self, Consent, ErrorPage, Needed, Offer, Way};
use crate::redirect;
use crate::text::{Text, printable};
use crate::transaction::{Code, Transaction};
use crate::way_back::{self, Waiting};
use crate::{Inner, accounts};

impl Inner {
    /// Shows somebody who has logged in what a client wants.
    pub(crate) async fn ask_for_consent(
        &self,
        transaction: Transaction,
        login: &Login,
        headers: &HeaderMap,
        text: &'static Text,
    ) -> Response<Body> {
        let unavailable = |error: &dyn std::fmt::Display| {
            tracing::warn!("consent can't be asked for: {error}");
            self.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable)
        };
        let user = match self.records.user(&login.user).await {
            Ok(Some(user)) if user.disabled_at.is_none() && user.version == login.version => user,
            Ok(Some(user)) if user.disabled_at.is_some() => {
                return self.trouble(text, StatusCode::FORBIDDEN, text.not_allowed);
            }
            // What the login was about is no longer so.
            Ok(_) => return self.ask_for_login(&transaction.into(), text).await,
            Err(error) => return unavailable(&error),
        };
        let client = match self.client_of(&transaction, &user, text).await {
            Ok(client) => client,
            Err(page) => return *page,
        };
        let needed = match self.needed(&user, &transaction).await {
            Ok(needed) => needed,
            Err(error) => return unavailable(&error),
        };
        let is_needed = needed.iter().any(|account| account.status != Some(ConnectionStatus::Connected));
        let waiting = Waiting::of(self, &transaction).filter(|_| is_needed);
        let accounts = needed.iter().map(|account| account_of(account, waiting.as_ref(), text));
        let shown = Transaction { user: Some(user.id.clone()), is_unchecked: false, ..transaction.clone() };
        let sealed = shown.seal(self);
        let to = Url::parse(&transaction.redirect_uri).ok();
        let is_program = to.as_ref().is_some_and(|url| url.scheme() == "http" && redirect::is_loopback(url));
        let host = to.as_ref().and_then(Url::host_str).unwrap_or_default();
        let scheme = to.as_ref().map(Url::scheme).unwrap_or_default();
        let place = if scheme == "https" { host.to_owned() } else { format!("{scheme}://{host}") };
        let is_listed = to.as_ref().is_some_and(|url| {
            let is_own = client.named.is_some()
                || client.domain.is_some() && client.domain.as_deref() == url.host_str();
            is_own || redirect::is_listed(&transaction.redirect_uri, url, &self.options.redirect_uris)
        });
        let offers = transaction.scopes.iter().map(|scope| Offer {
            scope,
            means: if scope == WRITE { text.scope_write } else { text.scope_read },
        });
        let name = client.metadata.client_name.as_deref().unwrap_or(&client.id);
        let shown = user.name.as_deref().or(user.email.as_deref()).unwrap_or(&user.subject);
        let mut response = pages::page(
            StatusCode::OK,
            &Consent {
                text,
                gateway: &self.options.resource_name,
                transaction: &sealed,
                client: &printable(name, 80),
                verified_by: client.domain.as_deref(),
                is_named: client.named.is_some(),
                is_any_program: client.domain.is_some() && client.is_local(),
                user: &printable(shown, 120),
                resource: &self.origin.resource(transaction.endpoint.as_deref()),
                port: is_program.then(|| to.as_ref().and_then(Url::port_or_known_default)).flatten(),
                host: &place,
                is_listed,
                scopes: offers.collect(),
                accounts: accounts.collect(),
                can_connect: waiting.is_some(),
            },
        );
        if let Some(waiting) = waiting {
            waiting.set(self, headers, response.headers_mut());
        }
        response
    }

    /// The backends that a client will reach with an account of the user's own, and what the user has there.
    async fn needed(&self, user: &User, transaction: &Transaction) -> Result<Vec<Shown>, RecordsError> {
        let Some(connections) = &self.connections else { return Ok(Vec::new()) };
        let reached = self.endpoints.backends(transaction.endpoint.as_deref()).unwrap_or_default();
        if !reached.iter().any(|backend| connections.is_known(backend)) {
            return Ok(Vec::new());
        }
        let mut shown = connections.shown(&user.id).await?;
        shown.retain(|account| reached.contains(&account.backend));
        Ok(shown)
    }
}

/// What a user has at a backend, as the page says it: what is missing can be connected if the request can wait.
fn account_of<'s>(account: &'s Shown, waiting: Option<&Waiting>, text: &'static Text) -> Needed<'s> {
    let is_missing = account.status != Some(ConnectionStatus::Connected);
    Needed {
        backend: &account.backend,
        host: &account.host,
        state: accounts::state_of(account, text),
        link: waiting.filter(|_| is_missing).map(|waiting| waiting.back.connect(&account.backend)),
    }
}

impl Inner {
    /// The client of a transaction, fetched for `user` if need be, which may be answered where it wants to be; else what
    /// the user is shown.
    async fn client_of(
        &self,
        transaction: &Transaction,
        user: &User,
        text: &'static Text,
    ) -> Result<Client, Box<Response<Body>>> {
        let page = |status, what| Box::new(self.trouble(text, status, what));
        let id = &transaction.client;
        let is_fetched = self.documents.may_be(id) && !self.documents.is_fresh(id);
        if is_fetched && self.count(Limited::Document, &user.id).await.is_err() {
            return Err(page(StatusCode::TOO_MANY_REQUESTS, text.slow_down));
        }
        let client = match self.client(id).await {
            Ok(Some(client)) if !client.is_disabled => client,
            Ok(_) => return Err(page(StatusCode::BAD_REQUEST, text.unknown_client)),
            Err(NoClient::Document(_)) => return Err(page(StatusCode::BAD_REQUEST, text.bad_document)),
            Err(NoClient::Records(error)) => {
                tracing::warn!("a client can't be looked up: {error}");
                return Err(page(StatusCode::SERVICE_UNAVAILABLE, text.unavailable));
            }
        };
        if client.may_be_answered_at(&transaction.redirect_uri) {
            return Ok(client);
        }
        let detail = printable(&transaction.redirect_uri, 300);
        let wrong = ErrorPage {
            status: StatusCode::BAD_REQUEST,
            what: text.bad_redirect,
            detail: Some(&detail),
            way: Way::Nowhere,
        };
        Err(Box::new(wrong.render(text, &self.options.resource_name)))
    }
}

/// `POST /consent`.
pub(crate) async fn decide(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    if !inner.is_own_form(request.headers()) {
        return inner.trouble(text, StatusCode::FORBIDDEN, text.forged);
    }
    let (head, body) = request.into_parts();
    let bytes = crate::form::read(body).await.unwrap_or_default();
    let form = Form::parse(&bytes);
    let browser = Browser::of(&inner, &head.headers);
    let opened = form.get("transaction").and_then(|sealed| Transaction::open(&inner, sealed, &browser));
    let Some(transaction) = opened else {
        return inner.trouble(text, StatusCode::FORBIDDEN, text.expired);
    };
    let login = Login::of(&inner, &head.headers, &browser);
    let Some(login) = login.filter(|login| transaction.user.as_deref() == Some(login.user.as_str())) else {
        return inner.trouble(text, StatusCode::FORBIDDEN, text.expired);
    };
    // From the back button, or a second click: what was granted is granted once.
    match inner.records.grant(&transaction.id).await {
        Ok(None) => {}
        Ok(Some(_)) => return inner.trouble(text, StatusCode::CONFLICT, text.answered),
        Err(error) => {
            tracing::warn!("a consent can't be taken: {error}");
            return inner.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable);
        }
    }
    let mut response = match form.get("decision") {
        Some("switch") => {
            let anew = Transaction { user: None, asks_for_login: true, ..transaction.clone() };
            inner.switch(&anew.into(), &browser, text).await
        }
        Some("allow") => inner.grant(&transaction, &login, &form, text).await,
        _ => {
            inner.note_consent(&login.user, &transaction, None).await;
            inner.deny(&transaction, "the user has denied access", text)
        }
    };
    way_back::forget(&inner, &transaction, &head.headers, response.headers_mut());
    response
}

impl Inner {
    /// Lets somebody else log in for an errand that asks for it.
    pub(crate) async fn switch(
        &self,
        errand: &Errand,
        browser: &Browser,
        text: &'static Text,
    ) -> Response<Body> {
        let mut response = self.ask_for_login(errand, text).await;
        Login::clear(self, response.headers_mut());
        browser.set(self, response.headers_mut());
        response
    }

    async fn grant(
        &self,
        transaction: &Transaction,
        login: &Login,
        form: &Form,
        text: &'static Text,
    ) -> Response<Body> {
        let user = match self.records.user(&login.user).await {
            Ok(Some(user)) if user.disabled_at.is_none() && user.version == login.version => user,
            Ok(_) => return self.trouble(text, StatusCode::FORBIDDEN, text.not_allowed),
            Err(error) => {
                tracing::warn!("a consent can't be taken: {error}");
                return self.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable);
            }
        };
        let chosen: Vec<&str> = form.all("scope").collect();
        // An instance of another version may have begun this: what there is not here is not granted.
        let is_granted =
            |scope: &&String| OFFERED.contains(&scope.as_str()) && chosen.contains(&scope.as_str());
        let granted: Vec<String> = transaction.scopes.iter().filter(is_granted).cloned().collect();
        if granted.is_empty() {
            self.note_consent(&user.id, transaction, None).await;
            return self.deny(transaction, "the user allows nothing of it", text);
        }
        let client = match self.client_of(transaction, &user, text).await {
            Ok(client) => client,
            Err(page) => return *page,
        };
        self.note_consent(&user.id, transaction, Some(&granted)).await;
        let code = Code {
            grant: transaction.id.clone(),
            client: transaction.client.clone(),
            client_name: client.metadata.client_name,
            redirect_uri: transaction.redirect_uri.clone(),
            scopes: granted,
            endpoint: transaction.endpoint.clone(),
            challenge: transaction.challenge.clone(),
            user: user.id,
            user_version: user.version,
            auth_time: login.time().timestamp(),
            at: Utc::now().timestamp(),
            key: login.key.clone(),
        };
        let code = code.seal(self);
        self.answer_client(&transaction.redirect_uri, transaction.state.as_deref(), &[("code", &code)])
    }
}
