//! The authorization endpoint (RFC 6749 § 4.1.1, RFC 7636, RFC 8707, RFC 9207). Until the client and its redirect URI
//! are proven, whatever is wrong is told on a page; from then on the client is told.

use axum::body::Body;
use axum::extract::State;
use chrono::Utc;
use drawbridge_auth::named_clients::ClientGrant;
use drawbridge_auth::scope::Scopes;
use http::{HeaderMap, Method, Request, Response, StatusCode};

use crate::browser::{Browser, Login};
use crate::clients::{Client, Shared};
use crate::form::{self, Form, Twice};
use crate::limits::Limited;
use crate::pages::{self, ErrorPage, Way};
use crate::text::{Text, printable};
use crate::transaction::{Transaction, scopes};
use crate::{Inner, redirect};

const MAX_STATE: usize = 4096;

/// `GET` and `POST /authorize`.
pub(crate) async fn authorize(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    if request.headers().get("sec-purpose").is_some_and(|purpose| purpose.as_bytes().starts_with(b"prefetch"))
    {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    }
    if inner.limit(Limited::Authorize, crate::address(&request)).await.is_err() {
        return inner.trouble(text, StatusCode::TOO_MANY_REQUESTS, text.slow_down);
    }
    let (head, body) = request.into_parts();
    let form = if head.method == Method::POST {
        match form::read(body).await {
            Ok(bytes) => Form::parse(&bytes),
            Err(_) => return inner.trouble(text, StatusCode::BAD_REQUEST, text.bad_request),
        }
    } else {
        Form::parse(head.uri.query().unwrap_or_default().as_bytes())
    };
    match inner.check(&form, &head.headers, text).await {
        Ok(transaction) => inner.go_on(transaction, &head.headers, text).await,
        Err(response) => *response,
    }
}

impl Inner {
    /// What a request asks for, or what is answered if it is wrong.
    async fn check(
        &self,
        form: &Form,
        headers: &HeaderMap,
        text: &'static Text,
    ) -> Result<Transaction, Box<Response<Body>>> {
        let page = |status, what: &str, detail: Option<&str>| {
            let page = ErrorPage { status, what, detail, way: Way::Nowhere };
            Box::new(page.render(text, &self.options.resource_name))
        };
        let malformed = |detail: &str| page(StatusCode::BAD_REQUEST, text.bad_request, Some(detail));
        let repeated = form.repeated(&["resource"]);
        if let Some(Twice(name)) = repeated.as_ref().filter(|Twice(name)| is_of_client(name)) {
            return Err(malformed(&format!("{name} is there twice")));
        }
        let id = form.get("client_id").ok_or_else(|| malformed("client_id is missing"))?;
        let found = self.registered(id).await.map_err(|error| {
            tracing::warn!("an authorization request can't be checked: {error}");
            page(StatusCode::SERVICE_UNAVAILABLE, text.unavailable, None)
        })?;
        // A document is fetched once somebody has logged in, and says where its client may be answered only then.
        let is_unchecked = found.is_none();
        if is_unchecked && !self.documents.may_be(id) {
            return Err(page(StatusCode::BAD_REQUEST, text.unknown_client, None));
        }
        let may_not =
            |client: &Client| client.is_disabled || !client.may_ask_for(ClientGrant::AuthorizationCode);
        if found.as_ref().is_some_and(may_not) {
            return Err(page(StatusCode::FORBIDDEN, text.disabled_client, None));
        }
        let uri = form.get("redirect_uri").ok_or_else(|| malformed("redirect_uri is missing"))?;
        let is_wrong = found.as_ref().is_some_and(|client| !client.may_be_answered_at(uri));
        if uri.len() > redirect::MAX_BYTES || is_wrong {
            return Err(page(StatusCode::BAD_REQUEST, text.bad_redirect, Some(&printable(uri, 300))));
        }
        let state = form.get("state");
        let refuse = |error: &str, description: &str| {
            if is_unchecked {
                return malformed(description);
            }
            Box::new(self.answer_client(uri, state, &[("error", error), ("error_description", description)]))
        };
        if state.is_some_and(|state| state.len() > MAX_STATE) {
            return Err(malformed("state has more than 4096 bytes"));
        }
        if let Some(Twice(name)) = repeated {
            return Err(refuse("invalid_request", &format!("{} is there twice", printable(&name, 64))));
        }
        if form.get("response_type") != Some("code") {
            return Err(refuse("unsupported_response_type", "response_type must be code"));
        }
        if form.get("response_mode").is_some_and(|mode| mode != "query") {
            return Err(refuse("invalid_request", "response_mode must be query"));
        }
        let challenge = form.get("code_challenge").filter(|challenge| is_challenge(challenge));
        let (Some(challenge), Some("S256")) = (challenge, form.get("code_challenge_method")) else {
            return Err(refuse("invalid_request", "PKCE is needed: code_challenge with the method S256"));
        };
        let endpoint = self
            .endpoint_of(form.all("resource"))
            .ok_or_else(|| refuse("invalid_target", "resource is not one of this server"))?;
        if form.has("request") {
            return Err(refuse("request_not_supported", "request objects are not supported"));
        }
        if form.has("request_uri") {
            return Err(refuse("request_uri_not_supported", "request objects are not supported"));
        }
        let prompts: Vec<&str> = form.get("prompt").unwrap_or_default().split(' ').collect();
        if prompts.contains(&"none") {
            return Err(refuse("consent_required", "consent is always asked for"));
        }
        let asked = asked_scopes(found.as_ref(), form.get("scope"));
        Ok(Transaction {
            id: drawbridge_auth::fresh_id(),
            client: id.to_owned(),
            is_unchecked,
            redirect_uri: uri.to_owned(),
            state: state.map(str::to_owned),
            scopes: asked.iter().map(str::to_owned).collect(),
            endpoint,
            challenge: challenge.to_owned(),
            browser: Browser::of(self, headers).name(),
            at: Utc::now().timestamp(),
            asks_for_login: prompts.contains(&"login") || form.has("max_age"),
            user: None,
        })
    }

    /// The endpoint that all of `resources` are: `Some(None)` for the default one, which is meant where there is none.
    pub(crate) fn endpoint_of<'r>(&self, resources: impl Iterator<Item = &'r str>) -> Option<Option<String>> {
        let mut meant: Option<Option<String>> = None;
        for resource in resources.filter(|resource| !resource.is_empty()) {
            let endpoint = self.origin.endpoint(resource)?;
            if meant.as_ref().is_some_and(|other| *other != endpoint) {
                return None;
            }
            meant = Some(endpoint);
        }
        let endpoint = meant.unwrap_or_default();
        self.endpoints.backends(endpoint.as_deref()).map(|_| endpoint)
    }

    /// Goes on with the login or, if somebody has, with the consent.
    pub(crate) async fn go_on(
        &self,
        transaction: Transaction,
        headers: &HeaderMap,
        text: &'static Text,
    ) -> Response<Body> {
        let browser = Browser::of(self, headers);
        // A browser that is new was given another name when the request was checked.
        let transaction = Transaction { browser: browser.name(), ..transaction };
        let login = Login::of(self, headers, &browser)
            .filter(|login| !transaction.asks_for_login || login.at > transaction.at);
        let mut response = match login {
            Some(login) => self.ask_for_consent(transaction, &login, headers, text).await,
            None => self.ask_for_login(&transaction.into(), text).await,
        };
        browser.set(self, response.headers_mut());
        response
    }

    /// Answers the client through the browser.
    pub(crate) fn answer_client(
        &self,
        redirect_uri: &str,
        state: Option<&str>,
        parameters: &[(&str, &str)],
    ) -> Response<Body> {
        let mut all = parameters.to_vec();
        all.extend(state.map(|state| ("state", state)));
        all.push(("iss", self.origin.as_str()));
        pages::redirect(&redirect::with(redirect_uri, &all))
    }

    /// Tells the client of a transaction that it gets nothing; the user, where it is not known yet that the client may be
    /// answered there.
    pub(crate) fn deny(&self, transaction: &Transaction, why: &str, text: &Text) -> Response<Body> {
        if transaction.is_unchecked {
            return self.trouble(text, StatusCode::FORBIDDEN, text.not_allowed);
        }
        let denied = [("error", "access_denied"), ("error_description", why)];
        self.answer_client(&transaction.redirect_uri, transaction.state.as_deref(), &denied)
    }

    /// A page that says what went wrong.
    pub(crate) fn trouble(&self, text: &Text, status: StatusCode, what: &str) -> Response<Body> {
        self.trouble_on_the_way(text, status, what, Way::Nowhere)
    }

    /// The same, with a way on.
    pub(crate) fn trouble_on_the_way(
        &self,
        text: &Text,
        status: StatusCode,
        what: &str,
        way: Way<'_>,
    ) -> Response<Body> {
        ErrorPage { status, what, detail: None, way }.render(text, &self.options.resource_name)
    }
}

/// What a client asks for of what it may have; all of that, if it asks for nothing of it.
fn asked_scopes(client: Option<&Client>, asked: Option<&str>) -> Scopes {
    let Some(client) = client else { return scopes(asked) };
    let asked = client.limited(scopes(asked));
    if asked.is_empty() { client.limited(scopes(None)) } else { asked }
}

/// Whether the parameter decides who is answered where.
fn is_of_client(name: &str) -> bool {
    matches!(name, "client_id" | "redirect_uri" | "state")
}

fn is_challenge(text: &str) -> bool {
    text.len() == 43 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}
