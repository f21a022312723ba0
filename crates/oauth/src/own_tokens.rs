//! Personal tokens that users make for themselves, on the page of their accounts, where the operator lets them. Whoever has
//! signed in with a token sees them and ends them, but makes none: a token would outlive itself.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::extract::{Path, State};
use chrono::{TimeDelta, Utc};
use drawbridge_auth::records::{PageRequest, RecordsError, Revocation, Token, TokenFilter, TokenStatus};
use drawbridge_auth::revoking::RevocationKey;
use drawbridge_auth::scope::OFFERED;
use drawbridge_auth::signing::MAX_LIFETIME;
use drawbridge_auth::token::{Secret, SecretKind, TokenKind};
use http::{Request, Response, StatusCode};

use crate::clients::Shared;
use crate::connect::{ONCE, Visitor, sent};
use crate::form::Form;
use crate::login::hex;
use crate::pages::{self, MadeToken, OwnToken, OwnTokens};
use crate::text::{Text, printable};

/// So many tokens are good at a time.
const MOST: u32 = 50;
const MAX_NAME: usize = 128;
const MAX_DAYS: i64 = 366;
/// What forms of tokens name in the place of a backend; none can have this name.
const FORM: &str = "auth.own_tokens";

/// `POST /connections/tokens`.
pub(crate) async fn make(State(inner): State<Shared>, request: Request<Body>) -> Response<Body> {
    let text = Text::of(request.headers());
    if !inner.options.own_tokens {
        return crate::not_found();
    }
    match sent(&inner, FORM, request, text).await {
        Ok((visitor, form)) => visitor.make_token(&form).await,
        Err(page) => *page,
    }
}

/// `POST /connections/tokens/{id}/revoke`.
pub(crate) async fn revoke(
    State(inner): State<Shared>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Response<Body> {
    let text = Text::of(request.headers());
    if !inner.options.own_tokens {
        return crate::not_found();
    }
    match sent(&inner, FORM, request, text).await {
        Ok((visitor, _)) => match visitor.revoke_token(&id).await {
            Ok(true) => pages::redirect("/connections"),
            Ok(false) => crate::not_found(),
            Err(error) => inner.away(text, &error),
        },
        Err(page) => *page,
    }
}

impl Visitor<'_> {
    /// The tokens of the user that are good, if users have such. `wrong` is what the form that was sent lacks.
    pub(crate) async fn own_tokens(
        &self,
        wrong: Option<&'static str>,
    ) -> Result<Option<OwnTokens<'_>>, RecordsError> {
        if !self.inner.options.own_tokens {
            return Ok(None);
        }
        let tokens = self.good_tokens().await?.iter().map(|token| shown(token, self.text)).collect();
        let endpoints = self.inner.endpoints.names();
        let transaction = self.form(FORM);
        Ok(Some(OwnTokens { tokens, endpoints, transaction, may_make: !self.login.is_by_token(), wrong }))
    }

    async fn good_tokens(&self) -> Result<Vec<Token>, RecordsError> {
        let filter = TokenFilter {
            owner: Some(self.user.id.clone()),
            kind: Some(TokenKind::Personal),
            status: vec![TokenStatus::Active],
        };
        let page = PageRequest { after: None, limit: MOST };
        Ok(self.inner.records.tokens(&filter, &page, Utc::now()).await?.items)
    }

    async fn make_token(&self, form: &Form) -> Response<Body> {
        let (inner, text) = (self.inner, self.text);
        if self.login.is_by_token() {
            return self.page(StatusCode::FORBIDDEN, text.tokens_by_login);
        }
        let asked = match self.asked_token(form) {
            Ok(asked) => asked,
            Err(wrong) => return self.list(StatusCode::BAD_REQUEST, Some(wrong)).await,
        };
        match self.good_tokens().await {
            Ok(tokens) if tokens.len() >= MOST as usize => {
                return self.list(StatusCode::CONFLICT, Some(text.tokens_too_many)).await;
            }
            Ok(_) => {}
            Err(error) => return inner.away(text, &error),
        }
        // A form that a browser sends again makes no second one.
        let sealed = form.get("transaction").unwrap_or_default();
        let once = format!("own-token:{}", hex(&drawbridge_auth::token::hash(sealed).0[..16]));
        match inner.claims.claim(&once, ONCE).await {
            Ok(true) => {}
            Ok(false) => return inner.too_old(text, StatusCode::CONFLICT),
            Err(why) => return inner.away(text, &why),
        }
        let secret = Secret::fresh(SecretKind::Personal);
        let token = Token { hint: secret.hint().to_owned(), ..asked };
        if let Err(error) = inner.records.add_token(&token, &secret.hash()).await {
            return inner.away(text, &error);
        }
        tracing::info!(user.id = self.user.id, token.id = token.id, "a user has made a token");
        inner.note_token(&self.user.id, "token.create", &token).await;
        let gateway = &inner.options.resource_name;
        let page =
            MadeToken { text, gateway, name: &printable(&token.name, MAX_NAME), secret: secret.expose() };
        pages::page(StatusCode::OK, &page)
    }

    /// The token that a form asks for, or what is wrong with it.
    fn asked_token(&self, form: &Form) -> Result<Token, &'static str> {
        let text = self.text;
        let name = form.get("name").unwrap_or_default().trim();
        if name.is_empty() || name.chars().count() > MAX_NAME || printable(name, MAX_NAME) != name {
            return Err(text.token_name_wrong);
        }
        let scopes: BTreeSet<String> = form.all("scope").map(str::to_owned).collect();
        if scopes.is_empty() || !scopes.iter().all(|scope| OFFERED.contains(&scope.as_str())) {
            return Err(text.token_scope_wrong);
        }
        let days = form.get("days").and_then(|days| days.trim().parse().ok());
        let days: i64 = days.filter(|days| (1..=MAX_DAYS).contains(days)).ok_or(text.token_days_wrong)?;
        let endpoint = form.get("endpoint");
        if self.inner.endpoints.backends(endpoint).is_none() {
            return Err(text.token_endpoint_wrong);
        }
        let (id, now) = (drawbridge_auth::fresh_id(), Utc::now());
        Ok(Token {
            chain: id.clone(),
            id,
            kind: TokenKind::Personal,
            name: name.to_owned(),
            owner: Some(self.user.id.clone()),
            service: None,
            hint: String::new(),
            scopes,
            endpoints: endpoint.map(str::to_owned).into_iter().collect(),
            networks: BTreeSet::new(),
            groups: BTreeSet::new(),
            version: 0,
            created_by: format!("user:{}", self.user.id),
            created_at: now,
            expires_at: Some(now + TimeDelta::days(days)),
            last_used_at: None,
            last_used_from: None,
            revoked_at: None,
            revoked_by: None,
            rotated_to: None,
        })
    }

    /// Ends a token of the user; whether there is one with this id.
    async fn revoke_token(&self, id: &str) -> Result<bool, RecordsError> {
        let (inner, now) = (self.inner, Utc::now());
        let found = inner.records.token(id).await?;
        let is_own = found.is_some_and(|token| {
            token.kind == TokenKind::Personal && token.owner.as_deref() == Some(&self.user.id)
        });
        if !is_own {
            return Ok(false);
        }
        let by = format!("user:{}", self.user.id);
        let Some(before) = inner.records.revoke_token(id, &by, now).await? else { return Ok(false) };
        let key = RevocationKey::of_revoked(&before);
        let _told = inner.revocations.revoke(&[Revocation { key, until: now + MAX_LIFETIME }]).await?;
        tracing::info!(user.id = self.user.id, token.id = id, "a user has revoked a token");
        inner.note_token(&self.user.id, "token.revoke", &before).await;
        Ok(true)
    }
}

fn shown(token: &Token, text: &Text) -> OwnToken {
    let day = |time: chrono::DateTime<Utc>| time.format("%Y-%m-%d").to_string();
    let endpoints: Vec<&str> = token.endpoints.iter().map(String::as_str).collect();
    OwnToken {
        id: token.id.clone(),
        name: printable(&token.name, MAX_NAME),
        hint: token.hint.clone(),
        scopes: token.scopes.iter().cloned().collect::<Vec<_>>().join(", "),
        endpoint: if endpoints.is_empty() { text.token_default.to_owned() } else { endpoints.join(", ") },
        used: token.last_used_at.map_or_else(|| text.token_unused.to_owned(), day),
        ends: token.expires_at.map_or_else(|| text.token_endless.to_owned(), day),
    }
}
