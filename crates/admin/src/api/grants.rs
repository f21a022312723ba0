//! `/admin/v1/grants`: what users let OAuth clients do.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use chrono::{DateTime, Utc};
use drawbridge_auth::records::{self, GrantFilter};
use drawbridge_auth::revoking::{RevocationKey, Told};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::admission::Caller;
use super::asked::{Asked, Listed, page, tagged};
use super::problem::Problem;
use super::{Api, REASON, ended};

/// What a user lets a client do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Grant {
    id: String,
    /// The id of the user.
    user: String,
    /// The `client_id`.
    client: String,
    /// For display.
    client_name: Option<String>,
    /// The resource that its tokens are for.
    resource: String,
    scopes: BTreeSet<String>,
    /// When the user logged in.
    auth_time: DateTime<Utc>,
    /// When the user agreed.
    created_at: DateTime<Utc>,
    /// When it was last used to get a token.
    last_used_at: DateTime<Utc>,
    /// Until when it can be refreshed at most.
    expires_at: DateTime<Utc>,
    revoked_at: Option<DateTime<Utc>>,
    revoke_reason: Option<String>,
}

impl From<records::Grant> for Grant {
    fn from(grant: records::Grant) -> Self {
        Self {
            id: grant.id,
            user: grant.user,
            client: grant.client,
            client_name: grant.client_name,
            resource: grant.resource,
            scopes: grant.scopes,
            auth_time: grant.auth_time,
            created_at: grant.created_at,
            last_used_at: grant.last_used_at,
            expires_at: grant.expires_at,
            revoked_at: grant.revoked_at,
            revoke_reason: grant.revoke_reason,
        }
    }
}

/// Which grants a list has.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only this user's (its id).
    user: Option<String>,
    /// Only this client's (its `client_id`).
    client: Option<String>,
    /// Those that have ended too.
    #[serde(default)]
    ended: bool,
    /// Where the part begins: `next` of the part before.
    cursor: Option<String>,
    /// The most items, from 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

fn missing() -> Problem {
    Problem::not_found("there is no grant with this id")
}

/// Lists grants, the newest first.
#[utoipa::path(get, path = "/admin/v1/grants", tag = "grants", operation_id = "listGrants", params(Filter),
    responses((status = 200, body = Listed<Grant>)))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Filter>,
) -> Result<Json<Listed<Grant>>, Problem> {
    let filter = GrantFilter { user: asked.user, client: asked.client, ended: asked.ended };
    let found = api.records.grants(&filter, &page(asked.cursor, asked.limit)?, Utc::now()).await?;
    Ok(Json(Listed { items: found.items.into_iter().map(Grant::from).collect(), next: found.next }))
}

/// Shows a grant.
#[utoipa::path(get, path = "/admin/v1/grants/{id}", tag = "grants", operation_id = "getGrant", params(("id" = String, Path)),
    responses((status = 200, body = Grant), (status = 404, body = Problem)))]
pub(crate) async fn show(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let grant = api.records.grant(&id).await?.ok_or_else(missing)?;
    let revoked = grant.revoked_at.map_or(0, |at| at.timestamp_micros());
    let tag = format!("\"{}-{revoked}\"", grant.last_used_at.timestamp_micros());
    Ok(tagged(&tag, Grant::from(grant)))
}

/// Revokes a grant and all tokens that came of it: all instances refuse them within a second.
#[utoipa::path(delete, path = "/admin/v1/grants/{id}", tag = "grants", operation_id = "revokeGrant", params(("id" = String, Path)),
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

pub(super) async fn end(api: &Api, caller: &Caller, id: &str) -> Result<Option<Told>, Problem> {
    let Some(before) = api.records.revoke_grant(id, REASON, Utc::now()).await? else { return Ok(None) };
    let told = api.revoke(&[RevocationKey::grant(id)]).await?;
    let outcome = if before.revoked_at.is_some() { "unchanged" } else { "ok" };
    let detail = json!({ "user": before.user, "client": before.client });
    api.note_as(&caller.actor, "grant.revoke", id, outcome, detail).await?;
    Ok(Some(told))
}
