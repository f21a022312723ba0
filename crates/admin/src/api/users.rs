//! `/admin/v1/users`: who can have tokens, and who may no longer do anything.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use drawbridge_auth::records::{self, GrantFilter, PageRequest, TokenFilter, TokenStatus, UserClaims};
use drawbridge_auth::revoking::RevocationKey;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::admission::Caller;
use super::asked::{Asked, Listed, Sent, only_if, page, tagged};
use super::new_token::text;
use super::problem::Problem;
use super::{Api, mark};

/// Who vouches for users that are made here.
const LOCAL: &str = "local";
const MAX_GROUPS: usize = 256;
/// How many tokens or grants are read at once.
const BATCH: u32 = 200;

/// A user.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct User {
    id: String,
    /// Who vouches for the subject: an identity provider, or `local`.
    issuer: String,
    /// Whom the issuer means.
    subject: String,
    /// For display.
    email: Option<String>,
    /// For display.
    name: Option<String>,
    groups: BTreeSet<String>,
    created_at: DateTime<Utc>,
    /// When the issuer last said who this is.
    claims_at: Option<DateTime<Utc>>,
    /// Since when the user may do nothing.
    disabled_at: Option<DateTime<Utc>>,
}

impl From<records::User> for User {
    fn from(user: records::User) -> Self {
        Self {
            id: user.id,
            issuer: user.issuer,
            subject: user.subject,
            email: user.email,
            name: user.name,
            groups: user.groups,
            created_at: user.created_at,
            claims_at: user.claims_at,
            disabled_at: user.disabled_at,
        }
    }
}

/// A user that is to be made, or brought up to date. The issuer is `local`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewUser {
    /// No other has it.
    subject: String,
    /// For display.
    name: Option<String>,
    /// For display.
    email: Option<String>,
    /// All of them.
    #[serde(default)]
    groups: BTreeSet<String>,
}

/// Which users a list has.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only the one with this subject.
    subject: Option<String>,
    /// Who vouches for the subject; `local` if it is missing.
    issuer: Option<String>,
    /// Where the part begins: `next` of the part before.
    cursor: Option<String>,
    /// The most items, from 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// What was revoked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AllRevoked {
    /// How many tokens.
    tokens: usize,
    /// How many grants.
    grants: usize,
}

fn tag(user: &records::User) -> String {
    let said = user.claims_at.map_or(0, |at| at.timestamp_micros());
    format!("\"{}-{said}\"", user.version)
}

fn missing() -> Problem {
    Problem::not_found("there is no user with this id")
}

/// Makes a user, or brings the one with this subject up to date.
#[utoipa::path(post, path = "/admin/v1/users", tag = "users", operation_id = "createUser", request_body = NewUser,
    responses((status = 201, description = "The user is new.", body = User),
        (status = 200, description = "There was one with this subject.", body = User)))]
pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Sent(new): Sent<NewUser>,
) -> Result<Response, Problem> {
    text("subject", &new.subject)?;
    for (member, value) in [("name", &new.name), ("email", &new.email)] {
        value.iter().try_for_each(|value| text(member, value))?;
    }
    if new.groups.len() > MAX_GROUPS {
        return Err(Problem::invalid(format!("groups: {MAX_GROUPS} at most")));
    }
    new.groups.iter().try_for_each(|group| text("groups", group))?;
    let claims = UserClaims {
        issuer: LOCAL.to_owned(),
        subject: new.subject,
        email: new.email,
        name: new.name,
        groups: new.groups,
    };
    let id = drawbridge_auth::fresh_id();
    let user = api.records.enter_user(&id, &claims, Utc::now()).await?;
    let is_new = user.id == id;
    let mut told = None;
    if !is_new {
        // If groups have changed, this is what the user's version was before; if not, it is long gone.
        told = Some(api.revoke(&[RevocationKey::user(&user.id, user.version - 1)]).await?);
    }
    let action = if is_new { "user.create" } else { "user.update" };
    let detail = json!({ "subject": user.subject, "groups": user.groups });
    api.note(&caller, action, &user.id, detail).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = (status, tagged(&tag(&user), User::from(user))).into_response();
    if let Some(told) = told {
        mark(&mut response, told);
    }
    Ok(response)
}

/// Lists users, the newest first.
#[utoipa::path(get, path = "/admin/v1/users", tag = "users", operation_id = "listUsers", params(Filter),
    responses((status = 200, body = Listed<User>)))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Filter>,
) -> Result<Json<Listed<User>>, Problem> {
    let page = page(asked.cursor, asked.limit)?;
    if let Some(subject) = &asked.subject {
        let issuer = asked.issuer.as_deref().unwrap_or(LOCAL);
        let found = api.records.user_of(issuer, subject).await?;
        return Ok(Json(Listed { items: found.into_iter().map(User::from).collect(), next: None }));
    }
    if asked.issuer.is_some() {
        return Err(Problem::malformed("issuer goes with subject"));
    }
    let found = api.records.users(&page).await?;
    Ok(Json(Listed { items: found.items.into_iter().map(User::from).collect(), next: found.next }))
}

/// Shows a user.
#[utoipa::path(get, path = "/admin/v1/users/{id}", tag = "users", operation_id = "getUser", params(("id" = String, Path)),
    responses((status = 200, body = User), (status = 404, body = Problem)))]
pub(crate) async fn show(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let user = api.records.user(&id).await?.ok_or_else(missing)?;
    Ok(tagged(&tag(&user), User::from(user)))
}

/// Lets a user do nothing any more. Tokens and grants stay, and are good again once the user is enabled.
#[utoipa::path(post, path = "/admin/v1/users/{id}/disable", tag = "users", operation_id = "disableUser",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = User), (status = 404, body = Problem), (status = 412, body = Problem)))]
pub(crate) async fn disable(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    set_disabled(&api, &caller, &headers, &id, true).await
}

/// Lets a user do again what was allowed before.
#[utoipa::path(post, path = "/admin/v1/users/{id}/enable", tag = "users", operation_id = "enableUser",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = User), (status = 404, body = Problem), (status = 412, body = Problem)))]
pub(crate) async fn enable(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    set_disabled(&api, &caller, &headers, &id, false).await
}

async fn set_disabled(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    id: &str,
    disabled: bool,
) -> Result<Response, Problem> {
    let user = api.records.user(id).await?.ok_or_else(missing)?;
    only_if(headers, &tag(&user))?;
    let (before, after) =
        api.records.set_user_disabled(id, disabled, Utc::now()).await?.ok_or_else(missing)?;
    // Also if nothing has changed: what was told may not have been heard.
    let version = if before.version == after.version { after.version - 1 } else { before.version };
    let told = api.revoke(&[RevocationKey::user(id, version)]).await?;
    let action = if disabled { "user.disable" } else { "user.enable" };
    let detail = json!({ "before": before.disabled_at, "after": after.disabled_at });
    api.note(caller, action, id, detail).await?;
    if disabled {
        forget_login(api, id).await?;
    }
    let mut response = tagged(&tag(&after), User::from(after));
    mark(&mut response, told);
    Ok(response)
}

/// Revokes all active tokens and grants of a user, who may have new ones.
#[utoipa::path(post, path = "/admin/v1/users/{id}/revoke-all", tag = "users", operation_id = "revokeAllOfUser", params(("id" = String, Path)),
    responses((status = 200, body = AllRevoked), (status = 404, body = Problem)))]
pub(crate) async fn revoke_all(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    api.records.user(&id).await?.ok_or_else(missing)?;
    let tokens = revoke_tokens(&api, &caller, &id).await?;
    let grants = api.revoke_grants(&GrantFilter { user: Some(id.clone()), ..GrantFilter::default() }).await?;
    let all = AllRevoked { tokens: tokens.len(), grants: grants.len() };
    // Browsers in which the user has logged in, and codes that were not redeemed yet, name the version.
    let version = api.records.raise_user_version(&id).await?.ok_or_else(missing)?;
    let told = api.revoke(&[tokens, grants, vec![RevocationKey::user(&id, version)]].concat()).await?;
    let detail = json!({ "tokens": all.tokens, "grants": all.grants });
    api.note(&caller, "user.revoke_all", &id, detail).await?;
    forget_login(&api, &id).await?;
    let mut response = Json(all).into_response();
    mark(&mut response, told);
    Ok(response)
}

/// What a user has logged in with is of no more use to the gateway.
async fn forget_login(api: &Api, user: &str) -> Result<(), Problem> {
    match &api.gateway {
        Some(gateway) => gateway.forget_login(user).await.map_err(Problem::unavailable),
        None => Ok(()),
    }
}

async fn revoke_tokens(api: &Api, caller: &Caller, user: &str) -> Result<Vec<RevocationKey>, Problem> {
    let now = Utc::now();
    let filter = TokenFilter { owner: Some(user.to_owned()), kind: None, status: vec![TokenStatus::Active] };
    let mut page = PageRequest { after: None, limit: BATCH };
    let mut keys = Vec::new();
    loop {
        let found = api.records.tokens(&filter, &page, now).await?;
        for token in found.items {
            if let Some(before) = api.records.revoke_token(&token.id, &caller.actor, now).await? {
                keys.push(RevocationKey::of_revoked(&before));
            }
        }
        match found.next {
            Some(next) => page.after = Some(next),
            None => return Ok(keys),
        }
    }
}
