//! `/admin/v1/tokens`: tokens that are issued here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, TimeDelta, Utc};
use drawbridge_auth::records::{self, SecretHash, TokenFilter, TokenStatus};
use drawbridge_auth::revoking::{RevocationKey, Told};
use drawbridge_auth::token::{self, Secret, SecretKind, TokenKind};
use drawbridge_core::state::Quota;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::admission::{Caller, limit};
use super::asked::{Asked, Listed, Sent, only_if, page, tagged};
use super::lifetime::{Lifetime, present};
use super::new_token::checked;
use super::problem::Problem;
use super::{Api, ended};

/// For how long a key of a request is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
const MAX_KEY: usize = 255;
const OVERLAP_SECONDS: u32 = 3600;
const MAX_OVERLAP_SECONDS: u32 = 86_400;

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Acts as a user at MCP endpoints.
    Personal,
    /// Acts as a service at MCP endpoints.
    Service,
    /// For the admin API alone.
    Admin,
}

impl From<Kind> for TokenKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Personal => Self::Personal,
            Kind::Service => Self::Service,
            Kind::Admin => Self::Admin,
        }
    }
}

impl From<TokenKind> for Kind {
    fn from(kind: TokenKind) -> Self {
        match kind {
            TokenKind::Personal => Self::Personal,
            TokenKind::Service => Self::Service,
            TokenKind::Admin => Self::Admin,
        }
    }
}

/// Whether a token is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It is.
    Active,
    /// Its time has passed.
    Expired,
    /// It was revoked.
    Revoked,
}

impl From<TokenStatus> for Status {
    fn from(status: TokenStatus) -> Self {
        match status {
            TokenStatus::Active => Self::Active,
            TokenStatus::Expired => Self::Expired,
            TokenStatus::Revoked => Self::Revoked,
        }
    }
}

/// A token, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Token {
    id: String,
    kind: Kind,
    /// For people.
    name: String,
    /// The id of the user that a personal token acts as.
    owner: Option<String>,
    /// The name of the service that a service token acts as.
    service: Option<String>,
    /// The last four characters of the secret.
    hint: String,
    scopes: BTreeSet<String>,
    /// Names of endpoints; empty for the default one, `*` for all.
    endpoints: BTreeSet<String>,
    /// The networks that it is accepted from, in CIDR notation; empty for all.
    networks: BTreeSet<String>,
    /// The groups of a service.
    groups: BTreeSet<String>,
    status: Status,
    /// Who made it.
    created_by: String,
    created_at: DateTime<Utc>,
    /// Null if it has no end.
    expires_at: Option<DateTime<Utc>>,
    /// Whole days that are left.
    expires_in_days: Option<i64>,
    /// Up to a minute late.
    last_used_at: Option<DateTime<Utc>>,
    last_used_from: Option<String>,
    revoked_at: Option<DateTime<Utc>>,
    revoked_by: Option<String>,
    /// The id of its successor.
    rotated_to: Option<String>,
}

impl From<records::Token> for Token {
    fn from(token: records::Token) -> Self {
        let now = Utc::now();
        Self {
            status: token.status(now).into(),
            expires_in_days: token.expires_at.map(|end| (end - now).num_days().max(0)),
            id: token.id,
            kind: token.kind.into(),
            name: token.name,
            owner: token.owner,
            service: token.service,
            hint: token.hint,
            scopes: token.scopes,
            endpoints: token.endpoints,
            networks: token.networks,
            groups: token.groups,
            created_by: token.created_by,
            created_at: token.created_at,
            expires_at: token.expires_at,
            last_used_at: token.last_used_at,
            last_used_from: token.last_used_from,
            revoked_at: token.revoked_at,
            revoked_by: token.revoked_by,
            rotated_to: token.rotated_to,
        }
    }
}

/// A new token and its secret, which is shown this once.
#[derive(Serialize, ToSchema)]
pub(crate) struct Issued {
    #[serde(flatten)]
    about: Token,
    /// The secret.
    token: String,
}

/// A token that is to be made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    pub(super) kind: Kind,
    /// For people.
    pub(super) name: String,
    /// The id of the user; for personal tokens.
    pub(super) owner: Option<String>,
    /// The name of the service; for service tokens.
    pub(super) service: Option<String>,
    /// `mcp:read` and `mcp:write` if it is missing; an admin token has to name its own.
    pub(super) scopes: Option<BTreeSet<String>>,
    /// Names of endpoints; empty for the default one, `*` for all.
    #[serde(default)]
    pub(super) endpoints: BTreeSet<String>,
    /// From where it is to be accepted, in CIDR notation; empty for everywhere.
    #[serde(default)]
    pub(super) networks: BTreeSet<String>,
    /// The groups of a service.
    #[serde(default)]
    pub(super) groups: BTreeSet<String>,
    /// `90d` if it is missing, 366 days at most. A service token can have `null`: no end.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Lifetime>)]
    pub(super) expires_in: Option<Option<Lifetime>>,
}

/// Which tokens a list has.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only this user's (its id).
    owner: Option<String>,
    /// Only of this kind.
    kind: Option<Kind>,
    /// Only those in one of these states: `active`, `expired`, `revoked`, with commas between them.
    status: Option<String>,
    /// Where the part begins: `next` of the part before.
    cursor: Option<String>,
    /// The most items, from 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// How a token is to be replaced.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rotation {
    /// For how long the old one is good beside the new one: an hour if it is missing, a day at most.
    #[schema(maximum = 86400, default = 3600)]
    overlap_seconds: Option<u32>,
}

/// A secret that somebody has found.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Found {
    /// The secret.
    token: String,
}

fn tag(token: &records::Token) -> String {
    format!("\"{}\"", token.version)
}

fn missing() -> Problem {
    Problem::not_found("there is no token with this id")
}

/// Makes a token. Its secret is in this answer and nowhere else.
#[utoipa::path(post, path = "/admin/v1/tokens", tag = "tokens", operation_id = "createToken", request_body = NewToken,
    params(("Idempotency-Key" = Option<String>, Header, description = "A request with a key that was sent before, within 24 hours, is refused with 409.")),
    responses((status = 201, body = Issued), (status = 409, body = Problem), (status = 422, body = Problem)))]
pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Sent(new): Sent<NewToken>,
) -> Result<Response, Problem> {
    let now = Utc::now();
    let asked = checked(new, &caller, now)?;
    if let Some(owner) = &asked.owner {
        let user = api.records.user(owner).await?;
        let user = user.ok_or_else(|| Problem::invalid("owner: there is no user with this id"))?;
        if user.disabled_at.is_some() {
            return Err(Problem::invalid("owner: this user is disabled"));
        }
    }
    claim(&api, &caller, &headers).await?;
    let secret = Secret::fresh(SecretKind::from(asked.kind));
    let token = records::Token { hint: secret.hint().to_owned(), ..asked };
    api.records.add_token(&token, &secret.hash()).await?;
    api.note(&caller, "token.create", &token.id, summary(&token)).await?;
    Ok(issued(token, &secret))
}

/// What the audit trail says of a token.
fn summary(token: &records::Token) -> serde_json::Value {
    json!({
        "kind": token.kind, "name": token.name, "owner": token.owner, "service": token.service,
        "scopes": token.scopes, "endpoints": token.endpoints, "networks": token.networks,
        "groups": token.groups, "expires_at": token.expires_at,
    })
}

fn issued(token: records::Token, secret: &Secret) -> Response {
    let tag = tag(&token);
    let body = Issued { about: token.into(), token: secret.expose().to_owned() };
    (StatusCode::CREATED, tagged(&tag, body)).into_response()
}

/// Takes the request's key, if it has one.
async fn claim(api: &Api, caller: &Caller, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(()) };
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Problem::malformed(format!("Idempotency-Key has from 1 to {MAX_KEY} characters")));
    }
    let digest = Sha256::digest(key.as_bytes());
    let digest: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    match api.claims.claim(&format!("admin:token:{}:{digest}", caller.actor), REMEMBERED).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Problem::conflict(
            "a request with this Idempotency-Key was made before, and its secret can't be shown again; look for the \
             token in the list, revoke it, and make another with another key",
        )),
        Err(why) => {
            tracing::warn!("an Idempotency-Key can't be remembered: {why}");
            Err(Problem::unavailable("the key can't be remembered now; try again in a moment"))
        }
    }
}

/// Lists tokens, the newest first.
#[utoipa::path(get, path = "/admin/v1/tokens", tag = "tokens", operation_id = "listTokens", params(Filter),
    responses((status = 200, body = Listed<Token>)))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Filter>,
) -> Result<Json<Listed<Token>>, Problem> {
    let states = asked.status.iter().flat_map(|states| states.split(',')).map(|state| match state {
        "active" => Ok(TokenStatus::Active),
        "expired" => Ok(TokenStatus::Expired),
        "revoked" => Ok(TokenStatus::Revoked),
        _ => Err(Problem::malformed("status is of: active, expired, revoked, with commas between them")),
    });
    let filter = TokenFilter {
        owner: asked.owner,
        kind: asked.kind.map(Into::into),
        status: states.collect::<Result<_, _>>()?,
    };
    let found = api.records.tokens(&filter, &page(asked.cursor, asked.limit)?, Utc::now()).await?;
    let items = found.items.into_iter().map(Token::from).collect();
    Ok(Json(Listed { items, next: found.next }))
}

/// Shows a token.
#[utoipa::path(get, path = "/admin/v1/tokens/{id}", tag = "tokens", operation_id = "getToken", params(("id" = String, Path)),
    responses((status = 200, body = Token), (status = 404, body = Problem)))]
pub(crate) async fn show(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let token = api.records.token(&id).await?.ok_or_else(missing)?;
    Ok(tagged(&tag(&token), Token::from(token)))
}

/// Revokes a token: all instances refuse it within a second.
#[utoipa::path(delete, path = "/admin/v1/tokens/{id}", tag = "tokens", operation_id = "revokeToken", params(("id" = String, Path)),
    responses((status = 204, description = "It is revoked. `X-Propagation: pending`: other instances have yet to read that in the database."),
        (status = 404, body = Problem)))]
pub(crate) async fn revoke(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let told = end(&api, &caller, &id).await?.ok_or_else(missing)?;
    Ok(ended(told))
}

async fn end(api: &Api, caller: &Caller, id: &str) -> Result<Option<Told>, Problem> {
    let Some(before) = api.records.revoke_token(id, &caller.actor, Utc::now()).await? else {
        return Ok(None);
    };
    let told = api.revoke(&[RevocationKey::of_revoked(&before)]).await?;
    let outcome = if before.revoked_at.is_some() { "unchanged" } else { "ok" };
    let detail = json!({ "kind": before.kind, "name": before.name, "owner": before.owner });
    api.note_as(&caller.actor, "token.revoke", id, outcome, detail).await?;
    Ok(Some(told))
}

/// Replaces a token by one that may the same. The old one ends after the overlap.
#[utoipa::path(post, path = "/admin/v1/tokens/{id}/rotate", tag = "tokens", operation_id = "rotateToken", request_body = Rotation,
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 201, body = Issued), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 412, body = Problem)))]
pub(crate) async fn rotate(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
    Sent(asked): Sent<Rotation>,
) -> Result<Response, Problem> {
    let overlap = asked.overlap_seconds.unwrap_or(OVERLAP_SECONDS);
    if overlap > MAX_OVERLAP_SECONDS {
        return Err(Problem::invalid(format!("overlap_seconds: {MAX_OVERLAP_SECONDS} at most")));
    }
    let now = Utc::now();
    let old = api.records.token(&id).await?.ok_or_else(missing)?;
    only_if(&headers, &tag(&old))?;
    if old.kind == TokenKind::Admin && !caller.scopes.allow_all(old.scopes.iter().map(String::as_str)) {
        return Err(Problem::forbidden("it may more than you"));
    }
    let not_active = || Problem::conflict("only a token that is active and has no successor can be rotated");
    if old.status(now) != TokenStatus::Active || old.rotated_to.is_some() {
        return Err(not_active());
    }
    let secret = Secret::fresh(SecretKind::from(old.kind));
    let successor = records::Token {
        id: drawbridge_auth::fresh_id(),
        hint: secret.hint().to_owned(),
        version: 0,
        created_by: caller.actor.clone(),
        created_at: now,
        expires_at: old.expires_at.map(|end| now + (end - old.created_at)),
        last_used_at: None,
        last_used_from: None,
        ..old.clone()
    };
    let end = now + TimeDelta::seconds(overlap.into());
    let hash: SecretHash = secret.hash();
    let rotated = api.records.rotate_token(&id, &successor, &hash, end, now).await?;
    let before = rotated.ok_or_else(not_active)?;
    // It ends earlier now than others may remember.
    let told = api.revoke(&[RevocationKey::token(&id, before.version)]).await?;
    let detail = json!({ "name": old.name, "successor": successor.id, "overlap_seconds": overlap });
    api.note(&caller, "token.rotate", &id, detail).await?;
    let mut response = issued(successor, &secret);
    super::mark(&mut response, told);
    Ok(response)
}

/// Revokes whatever this secret is, for those who find secrets. The answer does not tell whether it was one.
#[utoipa::path(post, path = "/admin/v1/tokens/revoke", tag = "tokens", operation_id = "revokeFoundSecret", request_body = Found,
    responses((status = 204, description = "If it was a token or a refresh token, it is revoked."),
        (status = 429, body = Problem)))]
pub(crate) async fn revoke_found(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Sent(found): Sent<Found>,
) -> Result<Response, Problem> {
    let quota = Quota { interval: Duration::from_secs(1), burst: 60 };
    limit(&*api.limiter, "found", caller.address, quota).await?;
    let secret = found.token.trim();
    let hash = token::hash(secret);
    let told = match token::parse(secret) {
        Some(SecretKind::Personal | SecretKind::Service | SecretKind::Admin) => {
            match api.records.token_by_secret(&hash).await? {
                Some((token, _)) => end(&api, &caller, &token.id).await?,
                None => None,
            }
        }
        Some(SecretKind::Refresh) => match api.records.grant_of_refresh(&hash).await? {
            Some(grant) => super::grants::end(&api, &caller, &grant.id).await?,
            None => None,
        },
        Some(SecretKind::Client) | None => None,
    };
    Ok(ended(told.unwrap_or(Told::Everyone)))
}
