//! `/admin/v1/clients`: OAuth clients that have registered.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use chrono::{DateTime, Utc};
use drawbridge_auth::records::{self, GrantFilter};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::admission::Caller;
use super::asked::{Asked, Listed, only_if, page, tagged};
use super::problem::Problem;
use super::{Api, ended};

/// An OAuth client.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Client {
    /// The `client_id`.
    id: String,
    /// What it registered, as RFC 7591 names it.
    #[schema(value_type = Object)]
    metadata: serde_json::Value,
    created_at: DateTime<Utc>,
    /// When it last got a token, up to an hour late.
    last_used_at: Option<DateTime<Utc>>,
    /// Since when it gets no tokens.
    disabled_at: Option<DateTime<Utc>>,
}

impl From<records::OAuthClient> for Client {
    fn from(client: records::OAuthClient) -> Self {
        Self {
            id: client.id,
            metadata: client.metadata,
            created_at: client.created_at,
            last_used_at: client.last_used_at,
            disabled_at: client.disabled_at,
        }
    }
}

/// Which part of the clients a list has.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// Where the part begins: `next` of the part before.
    cursor: Option<String>,
    /// The most items, from 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

fn tag(client: &records::OAuthClient) -> String {
    format!("\"{}\"", client.disabled_at.map_or(0, |at| at.timestamp_micros()))
}

fn missing() -> Problem {
    Problem::not_found("there is no client with this id")
}

/// Lists clients, the newest first.
#[utoipa::path(get, path = "/admin/v1/clients", tag = "clients", operation_id = "listClients", params(Part),
    responses((status = 200, body = Listed<Client>)))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Part>,
) -> Result<Json<Listed<Client>>, Problem> {
    let found = api.records.clients(&page(asked.cursor, asked.limit)?).await?;
    Ok(Json(Listed { items: found.items.into_iter().map(Client::from).collect(), next: found.next }))
}

/// Shows a client.
#[utoipa::path(get, path = "/admin/v1/clients/{id}", tag = "clients", operation_id = "getClient", params(("id" = String, Path)),
    responses((status = 200, body = Client), (status = 404, body = Problem)))]
pub(crate) async fn show(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let (client, _) = api.records.client(&id).await?.ok_or_else(missing)?;
    Ok(tagged(&tag(&client), Client::from(client)))
}

/// Gives a client no more tokens. Those that it has are good until they end; to end them too, revoke its grants.
#[utoipa::path(post, path = "/admin/v1/clients/{id}/disable", tag = "clients", operation_id = "disableClient",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Client), (status = 404, body = Problem), (status = 412, body = Problem)))]
pub(crate) async fn disable(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    set_disabled(&api, &caller, &headers, &id, true).await
}

/// Gives a client tokens again.
#[utoipa::path(post, path = "/admin/v1/clients/{id}/enable", tag = "clients", operation_id = "enableClient",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Client), (status = 404, body = Problem), (status = 412, body = Problem)))]
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
    let (before, _) = api.records.client(id).await?.ok_or_else(missing)?;
    only_if(headers, &tag(&before))?;
    let after = api.records.set_client_disabled(id, disabled, Utc::now()).await?.ok_or_else(missing)?;
    let action = if disabled { "client.disable" } else { "client.enable" };
    let detail = json!({ "before": before.disabled_at, "after": after.disabled_at });
    api.note(caller, action, id, detail).await?;
    Ok(tagged(&tag(&after), Client::from(after)))
}

/// Forgets a client and revokes its grants. It may register again.
#[utoipa::path(delete, path = "/admin/v1/clients/{id}", tag = "clients", operation_id = "removeClient", params(("id" = String, Path)),
    responses((status = 204, description = "It is gone."), (status = 404, body = Problem)))]
pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    api.records.client(&id).await?.ok_or_else(missing)?;
    // So that it gets no grant between.
    api.records.set_client_disabled(&id, true, Utc::now()).await?;
    let grants =
        api.revoke_grants(&GrantFilter { client: Some(id.clone()), ..GrantFilter::default() }).await?;
    let told = api.revoke(&grants).await?;
    api.records.remove_client(&id).await?;
    api.note(&caller, "client.remove", &id, json!({ "grants": grants.len() })).await?;
    Ok(ended(told))
}
