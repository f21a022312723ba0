//! Who is at the browser: somebody with a sign-in token, or whoever an identity provider says it is.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use chrono::Utc;
use drawbridge_auth::records::{Revocation, User, UserClaims};
use drawbridge_auth::revoking::RevocationKey;
use drawbridge_auth::signing::MAX_LIFETIME;
use drawbridge_auth::token;
use drawbridge_auth::verifier::Refused;
use drawbridge_core::seal::Purpose;
use http::{HeaderMap, Request, Response, StatusCode};

use crate::Inner;
use crate::browser::{Browser, Login};
use crate::clients::Shared;
use crate::errand::Errand;
use crate::form::Form;
use crate::limits::Limited;
use crate::oidc::{Attempt, NotSignedIn};
use crate::pages::{self, SignIn};
use crate::text::Text;

/// An answer of the provider is remembered for so long, which is longer than its transaction lasts.
const ATTEMPT_TIME: Duration = Duration::from_secs(900);

impl Inner {
    /// Lets somebody log in for an errand.
    pub(crate) async fn ask_for_login(&self, errand: &Errand, text: &'static Text) -> Response<Body> {
        let sealed = errand.seal(self);
        let Some(provider) = &self.provider else {
            return self.sign_in_page(&sealed, text, false);
        };
        match provider.begin(self, &sealed, errand.asks_for_login()).await {
            Ok(url) => pages::redirect(&url),
            Err(why) => {
                tracing::warn!("the identity provider can't be reached: {why}");
                self.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable)
            }
        }
    }

    fn sign_in_page(&self, sealed: &str, text: &Text, is_wrong: bool) -> Response<Body> {
        let gateway = &self.options.resource_name;
        let status = if is_wrong { StatusCode::FORBIDDEN } else { StatusCode::OK };
        pages::page(status, &SignIn { text, gateway, transaction: sealed, is_wrong })
    }

    /// Goes on with an errand as `user`, who has just logged in.
    async fn logged_in(
        &self,
        errand: Errand,
        user: &User,
        key: Option<RevocationKey>,
        headers: &HeaderMap,
        text: &'static Text,
    ) -> Response<Body> {
        let browser = Browser::of(self, headers);
        let login = Login::now(user, &browser, key);
        tracing::info!(user.id = user.id, "signed in");
        self.note_sign_in(user, login.is_by_token()).await;
        let mut response = match errand {
            Errand::Authorize(transaction) => self.ask_for_consent(*transaction, &login, headers, text).await,
            Errand::Visit(visit) => pages::redirect(&visit.path),
        };
        login.set(self, response.headers_mut());
        response
    }

    /// Tells whoever is concerned that somebody may not come in.
    fn turn_away(&self, errand: &Errand, why: &str, text: &Text) -> Response<Body> {
        match errand {
            Errand::Authorize(transaction) => self.deny(transaction, why, text),
            Errand::Visit(_) => self.trouble(text, StatusCode::FORBIDDEN, text.not_allowed),
        }
    }

    /// Whether a form was sent by the page that it belongs to, as far as the browser says.
    pub(crate) fn is_own_form(&self, headers: &HeaderMap) -> bool {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let origin = text("origin").is_none_or(|origin| origin == self.origin.as_str() || origin == "null");
        let site = text("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"));
        origin && site
    }
}

/// `POST /login`: somebody signs in with a token.
pub(crate) async fn sign_in(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    if inner.provider.is_some() {
        return crate::not_found();
    }
    if !inner.is_own_form(request.headers()) {
        return inner.trouble(text, StatusCode::FORBIDDEN, text.forged);
    }
    let address = crate::address(&request);
    let (head, body) = request.into_parts();
    let Ok(form) = Form::read(&head.headers, body).await else {
        return inner.trouble(text, StatusCode::BAD_REQUEST, text.expired);
    };
    let browser = Browser::of(&inner, &head.headers);
    let sealed = form.get("transaction").unwrap_or_default();
    let Some(errand) = Errand::open(&inner, sealed, &browser) else {
        return inner.trouble(text, StatusCode::BAD_REQUEST, text.expired);
    };
    if inner.limit(Limited::SignIn, address).await.is_err() {
        return inner.trouble(text, StatusCode::TOO_MANY_REQUESTS, text.slow_down);
    }
    let secret = form.get("token").unwrap_or_default().trim();
    match inner.verifier.sign_in(secret, address).await {
        Ok((user, key)) => inner.logged_in(errand, &user, Some(key), &head.headers, text).await,
        Err(Refused::Invalid(why) | Refused::Unfit(why)) => {
            tracing::info!(
                reason = why,
                client.address = address.map(tracing::field::display),
                "sign-in refused"
            );
            inner.note_turned_away("refused", why, address).await;
            inner.sign_in_page(sealed, text, true)
        }
        Err(Refused::TooOften(_)) => inner.trouble(text, StatusCode::TOO_MANY_REQUESTS, text.slow_down),
        Err(Refused::Unavailable(why)) => {
            tracing::warn!("nobody can sign in: {why}");
            inner.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable)
        }
    }
}

/// `GET /login/callback`: the identity provider sends somebody back.
pub(crate) async fn callback(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    let address = crate::address(&request);
    let (head, _) = request.into_parts();
    let form = Form::parse(head.uri.query().unwrap_or_default().as_bytes());
    match came_back(&inner, &form, &head.headers, address, text).await {
        Ok((errand, Some(user))) => inner.logged_in(errand, &user, None, &head.headers, text).await,
        Ok((errand, None)) => {
            tracing::info!("a user was not let in: disabled, or in none of the allowed groups");
            inner.turn_away(&errand, "the user is not allowed here", text)
        }
        Err(page) => *page,
    }
}

/// Who came back from the provider for which errand, if they may come in; else what they are shown.
async fn came_back(
    inner: &Inner,
    form: &Form,
    headers: &HeaderMap,
    address: Option<IpAddr>,
    text: &'static Text,
) -> Result<(Errand, Option<User>), Box<Response<Body>>> {
    let page = |status, what| Box::new(inner.trouble(text, status, what));
    let unavailable = |why: &dyn std::fmt::Display| {
        tracing::warn!("a login can't be finished: {why}");
        Box::new(inner.trouble(text, StatusCode::SERVICE_UNAVAILABLE, text.unavailable))
    };
    let provider = inner.provider.as_ref().ok_or_else(|| Box::new(crate::not_found()))?;
    let state = form.get("state").unwrap_or_default();
    let opened = inner.ring.open(Purpose::Authorization, state);
    let attempt: Option<Attempt> = opened.and_then(|plain| serde_json::from_slice(&plain).ok());
    let attempt = attempt.ok_or_else(|| page(StatusCode::BAD_REQUEST, text.expired))?;
    let browser = Browser::of(inner, headers);
    let errand = Errand::open(inner, &attempt.transaction, &browser).ok_or_else(|| {
        // Somebody was sent a link that another has begun with.
        tracing::warn!("a login came back to a browser that it was not begun in, or too late");
        page(StatusCode::FORBIDDEN, text.expired)
    })?;
    let once = format!("oidc:{}", hex(&token::hash(state).0[..16]));
    match inner.claims.claim(&once, ATTEMPT_TIME).await {
        Ok(true) => {}
        Ok(false) => return Err(page(StatusCode::BAD_REQUEST, text.expired)),
        Err(why) => return Err(unavailable(&why)),
    }
    let finished = provider.finish(inner, form, &attempt).await;
    match &finished {
        Err(NotSignedIn::Refused(why)) => inner.note_turned_away("refused", why, address).await,
        Err(NotSignedIn::Denied) => {
            inner.note_turned_away("denied", "the provider has denied access", address).await
        }
        Err(NotSignedIn::Unavailable(_)) | Ok(_) => {}
    }
    let (claims, tokens) = finished.map_err(|why| match why {
        NotSignedIn::Unavailable(why) => unavailable(&why),
        NotSignedIn::Refused(why) => {
            tracing::warn!("a login was refused: {why}");
            page(StatusCode::BAD_REQUEST, text.provider_failed)
        }
        NotSignedIn::Denied => {
            tracing::info!("the identity provider has denied access");
            Box::new(inner.turn_away(&errand, "the login was denied", text))
        }
    })?;
    let user = inner.enter(&claims).await.map_err(|why| unavailable(&why))?;
    if user.is_none() {
        let why = format!("{} is disabled, or in none of the allowed groups", claims.subject);
        inner.note_turned_away("not_allowed", &why, address).await;
    }
    if let (Some(user), Some(connections)) = (&user, &inner.connections) {
        connections.keep_login(&user.id, &tokens).await;
    }
    Ok((errand, user))
}

impl Inner {
    /// The user of these claims, if they may come in.
    async fn enter(
        &self,
        claims: &UserClaims,
    ) -> Result<Option<User>, drawbridge_auth::records::RecordsError> {
        let allowed = &self.options.allowed_groups;
        let is_allowed = allowed.is_empty() || allowed.iter().any(|group| claims.groups.contains(group));
        if !is_allowed {
            return Ok(None);
        }
        let before = self.records.user_of(&claims.issuer, &claims.subject).await?;
        let user = self.records.enter_user(&drawbridge_auth::fresh_id(), claims, Utc::now()).await?;
        if let Some(before) = before.filter(|before| before.version != user.version) {
            // What was true of them before, their groups among it, is so no longer.
            let key = RevocationKey::user(&user.id, before.version);
            let _told =
                self.revocations.revoke(&[Revocation { key, until: Utc::now() + MAX_LIFETIME }]).await?;
        }
        Ok(Some(user).filter(|user| user.disabled_at.is_none()))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
