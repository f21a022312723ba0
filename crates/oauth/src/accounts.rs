//! What users have here: their accounts at other services, and where the operator lets them, tokens of their own. To
//! connect an account is in [`crate::connect`].

use axum::body::Body;
use axum::extract::{Path, State};
use drawbridge_auth::vault::ConnectionStatus;
use drawbridge_credentials::connections::Shown;
use http::{Request, Response, StatusCode};

use crate::browser::Browser;
use crate::clients::Shared;
use crate::connect::{Visitor, sent};
use crate::errand::Errand;
use crate::form::Form;
use crate::limits::Limited;
use crate::pages::{self, Account, Accounts};
use crate::text::Text;

/// `GET /connections`.
pub(crate) async fn list(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    if inner.limit(Limited::Authorize, crate::address(&request)).await.is_err() {
        return inner.trouble(text, StatusCode::TOO_MANY_REQUESTS, text.slow_down);
    }
    match inner.visitor(request.headers(), "/connections".to_owned(), text).await {
        Ok(visitor) => visitor.list(StatusCode::OK, None).await,
        Err(page) => *page,
    }
}

/// `POST /connections/{backend}/disconnect`.
pub(crate) async fn disconnect(
    State(inner): State<Shared>,
    Path(backend): Path<String>,
    request: Request<Body>,
) -> Response<Body> {
    let text = Text::of(request.headers());
    match sent(&inner, &backend, request, text).await {
        Ok((visitor, _)) => match visitor.connections.disconnect(&visitor.user.id, &backend).await {
            Ok(()) => pages::redirect("/connections"),
            Err(why) => visitor.why_not(&backend, &why),
        },
        Err(page) => *page,
    }
}

/// `POST /connections/switch`: somebody else logs in.
pub(crate) async fn switch(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    if !inner.is_own_form(request.headers()) {
        return inner.trouble(text, StatusCode::FORBIDDEN, text.forged);
    }
    let (head, body) = request.into_parts();
    let browser = Browser::of(&inner, &head.headers);
    let form = Form::read(&head.headers, body).await.ok();
    let sealed = form.as_ref().and_then(|form| form.get("transaction"));
    match sealed.and_then(|sealed| Errand::open(&inner, sealed, &browser)) {
        Some(errand @ Errand::Visit(_)) if errand.asks_for_login() => {
            inner.switch(&errand, &browser, text).await
        }
        _ => inner.too_old(text, StatusCode::FORBIDDEN),
    }
}

impl Visitor<'_> {
    /// The page of the user's accounts. `wrong` is why no token was made.
    pub(crate) async fn list(&self, status: StatusCode, wrong: Option<&'static str>) -> Response<Body> {
        let shown = match self.connections.shown(&self.user.id).await {
            Ok(shown) => shown,
            Err(error) => return self.inner.away(self.text, &error),
        };
        let tokens = match self.own_tokens(wrong).await {
            Ok(tokens) => tokens,
            Err(error) => return self.inner.away(self.text, &error),
        };
        let accounts = shown.iter().map(|shown| self.account(shown)).collect();
        let (text, gateway, user) = (self.text, &self.inner.options.resource_name, self.shown());
        let switch = self.switch("/connections");
        pages::page(status, &Accounts { text, gateway, user: &user, switch: &switch, accounts, tokens })
    }

    fn account<'s>(&self, shown: &'s Shown) -> Account<'s> {
        Account {
            backend: &shown.backend,
            host: &shown.host,
            state: state_of(shown, self.text),
            is_known: shown.status.is_some(),
            transaction: self.form(&shown.backend),
        }
    }
}

/// How it is with an account, in words.
pub(crate) fn state_of(shown: &Shown, text: &'static Text) -> &'static str {
    match shown.status {
        None => text.not_connected,
        Some(ConnectionStatus::Connected) => text.is_connected,
        Some(ConnectionStatus::NeedsReauth | ConnectionStatus::NeedsScope) => text.needs_connect,
    }
}
