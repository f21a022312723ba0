//! What the gateway is and does now: instances, backends, endpoints, and sessions that hold state or streams.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::admission::Caller;
use super::asked::{Asked, Listed, page};
use super::configuration::Configuration;
use super::problem::Problem;

/// What operators can see of a running gateway, and end.
#[async_trait]
pub trait Gateway: Send + Sync {
    /// All instances.
    async fn instances(&self) -> Vec<Instance>;
    /// All backends, as each instance sees them.
    async fn backends(&self) -> Vec<Backend>;
    /// All endpoints.
    fn endpoints(&self) -> Vec<Endpoint>;
    /// The configuration that applies here.
    fn configuration(&self) -> Configuration;
    /// Up to `most` of the sessions behind the one with the key `after`, by their keys, and whether there are more.
    async fn sessions(&self, after: Option<String>, most: usize) -> (Vec<Session>, bool);
    /// Ends a session at all instances. `false` for what is no key of one.
    async fn end_session(&self, key: &str) -> bool;
    /// What a user has connected, at each backend where users can.
    ///
    /// # Errors
    ///
    /// Why that can't be told now.
    async fn connections(&self, user: &str) -> Result<Vec<Connection>, String>;
    /// Forgets what a user has connected at a backend, and revokes it there. `false` if users can't connect there.
    ///
    /// # Errors
    ///
    /// Why that can't be done now.
    async fn disconnect(&self, user: &str, backend: &str) -> Result<bool, String>;
    /// Forgets what a user has logged in with at the identity provider, and what was got with it.
    ///
    /// # Errors
    ///
    /// Why that can't be done now.
    async fn forget_login(&self, user: &str) -> Result<(), String>;
}

/// A backend at which users have accounts of their own, and what one of them has there.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Connection {
    /// The backend.
    pub backend: String,
    /// Where it is.
    pub host: String,
    /// `connected`; `needs_reauth` or `needs_scope` if the user has to do so again; null if they never were.
    pub status: Option<String>,
    /// Since when.
    pub since: Option<DateTime<Utc>>,
}

/// A running instance.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Of this run; another after a restart.
    pub id: String,
    /// Whether it has answered. Of one that has not, nothing more is known.
    pub answers: bool,
    /// `instance_id`, or what the process made up.
    pub name: Option<String>,
    /// Of the program.
    pub version: Option<String>,
    /// When it started.
    pub started_at: Option<DateTime<Utc>>,
    /// Whether it takes no new work, since it is going to end.
    pub is_draining: Option<bool>,
    /// Sessions that it keeps something for.
    pub sessions: Option<u64>,
    /// Open streams.
    pub streams: Option<u64>,
    /// Requests that are being answered.
    pub in_flight: Option<u64>,
    /// Calls that wait for an answer of their client.
    pub parked: Option<u64>,
}

/// A backend of the configuration.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Backend {
    /// Its name.
    pub name: String,
    /// `http` or `stdio`.
    pub kind: String,
    /// Its URL without what may be secret, or its command without arguments.
    pub target: String,
    /// The configured `era`.
    pub era: String,
    /// The configured `session_scope`.
    pub session_scope: String,
    /// Endpoints that it is behind, but for the default one.
    pub endpoints: Vec<String>,
    /// How each instance finds it.
    pub instances: Vec<BackendState>,
}

/// How an instance finds a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackendState {
    /// The id of the instance.
    pub instance: String,
    /// `up`, `down`, or `untried`: nobody has asked for it yet.
    pub state: String,
    /// What it was found to speak: `modern`, `legacy`, `both`, `sse`; null if that is not known.
    pub speaks: Option<String>,
    /// What went wrong last, also if it is up again.
    pub last_error: Option<LastError>,
}

/// What went wrong at a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastError {
    /// When.
    pub at: DateTime<Utc>,
    /// As in logs and answers.
    pub code: String,
    /// What it says.
    pub message: String,
    /// What to do.
    pub advice: String,
}

/// An endpoint of the configuration.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Endpoint {
    /// Its name; null for the default one.
    pub name: Option<String>,
    /// Its path.
    pub path: String,
    /// The resource that tokens for it name.
    pub resource: Option<String>,
    /// The backends behind it, in order.
    pub backends: Vec<String>,
}

/// A session that some instance keeps something for. What the client says of itself is not checked.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Session {
    /// Names it; nobody can use it with that.
    pub key: String,
    /// The endpoint, if it has a name.
    pub endpoint: Option<String>,
    /// Whom it is of, such as `user:ID`.
    pub caller: Option<String>,
    /// The OAuth client, or `pat:ID` for an issued token.
    pub oauth_client: Option<String>,
    /// What the client calls itself.
    pub client_name: Option<String>,
    /// The version it says it has.
    pub client_version: Option<String>,
    /// The version of MCP.
    pub protocol_version: String,
    /// Calls that run.
    pub calls: u64,
    /// Whether its standalone stream is open.
    pub has_stream: bool,
    /// Seconds since it was last used.
    pub idle_seconds: u64,
    /// The instances that keep something for it.
    pub instances: Vec<String>,
}

/// Which part of a list is asked for.
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

pub(super) fn running(api: &Api) -> Result<&dyn Gateway, Problem> {
    let none = || Problem::not_found("this is the database alone: ask a gateway that runs");
    api.gateway.as_deref().ok_or_else(none)
}

/// Lists the running instances.
#[utoipa::path(get, path = "/admin/v1/instances", tag = "gateway", operation_id = "listInstances",
    responses((status = 200, body = Listed<Instance>)))]
pub(crate) async fn instances(State(api): State<Arc<Api>>) -> Result<Json<Listed<Instance>>, Problem> {
    Ok(Json(Listed { items: running(&api)?.instances().await, next: None }))
}

/// Lists the backends, how each instance finds them, and what to do about those that don't work. They are declared in the
/// configuration and can be changed there alone.
#[utoipa::path(get, path = "/admin/v1/backends", tag = "gateway", operation_id = "listBackends",
    responses((status = 200, body = Listed<Backend>)))]
pub(crate) async fn backends(State(api): State<Arc<Api>>) -> Result<Json<Listed<Backend>>, Problem> {
    Ok(Json(Listed { items: running(&api)?.backends().await, next: None }))
}

/// Shows a backend.
#[utoipa::path(get, path = "/admin/v1/backends/{name}", tag = "gateway", operation_id = "getBackend", params(("name" = String, Path)),
    responses((status = 200, body = Backend), (status = 404, body = Problem)))]
pub(crate) async fn backend(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
) -> Result<Json<Backend>, Problem> {
    let found = running(&api)?.backends().await.into_iter().find(|backend| backend.name == name);
    found.map(Json).ok_or_else(|| Problem::not_found("there is no backend with this name"))
}

/// Lists the endpoints. They are declared in the configuration and can be changed there alone.
#[utoipa::path(get, path = "/admin/v1/endpoints", tag = "gateway", operation_id = "listEndpoints",
    responses((status = 200, body = Listed<Endpoint>)))]
pub(crate) async fn endpoints(State(api): State<Arc<Api>>) -> Result<Json<Listed<Endpoint>>, Problem> {
    Ok(Json(Listed { items: running(&api)?.endpoints(), next: None }))
}

/// Lists sessions that some instance keeps something for, streams among it. A session of which nobody keeps anything is in
/// no list.
#[utoipa::path(get, path = "/admin/v1/sessions", tag = "gateway", operation_id = "listSessions", params(Part),
    responses((status = 200, body = Listed<Session>)))]
pub(crate) async fn sessions(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Part>,
) -> Result<Json<Listed<Session>>, Problem> {
    let page = page(asked.cursor, asked.limit)?;
    let (items, more) = running(&api)?.sessions(page.after, page.limit as usize).await;
    let next = items.last().filter(|_| more).map(|session| session.key.clone());
    Ok(Json(Listed { items, next }))
}

/// Lists what a user has connected at backends where each user has an account of their own.
#[utoipa::path(get, path = "/admin/v1/users/{id}/connections", tag = "users", operation_id = "listConnections", params(("id" = String, Path)),
    responses((status = 200, body = Listed<Connection>)))]
pub(crate) async fn connections(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
) -> Result<Json<Listed<Connection>>, Problem> {
    let items = running(&api)?.connections(&id).await.map_err(Problem::unavailable)?;
    Ok(Json(Listed { items, next: None }))
}

/// Forgets what a user has connected at a backend, and revokes it there if that backend's server can. The user may connect
/// again.
#[utoipa::path(delete, path = "/admin/v1/users/{id}/connections/{backend}", tag = "users", operation_id = "removeConnection",
    params(("id" = String, Path), ("backend" = String, Path)),
    responses((status = 204, description = "There is none any more."), (status = 404, body = Problem)))]
pub(crate) async fn disconnect(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path((id, backend)): Path<(String, String)>,
) -> Result<Response, Problem> {
    if !running(&api)?.disconnect(&id, &backend).await.map_err(Problem::unavailable)? {
        return Err(Problem::not_found("there is no backend with this name at which users have accounts"));
    }
    api.note(&caller, "connection.remove", &id, json!({ "backend": backend })).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Ends a session: its streams and calls end, and no instance takes its id any more. Whoever had it may begin another;
/// to keep them out, revoke their token or grant.
#[utoipa::path(delete, path = "/admin/v1/sessions/{key}", tag = "gateway", operation_id = "endSession", params(("key" = String, Path)),
    responses((status = 204, description = "It has ended."), (status = 404, body = Problem)))]
pub(crate) async fn end_session(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(key): Path<String>,
) -> Result<Response, Problem> {
    if !running(&api)?.end_session(&key).await {
        return Err(Problem::not_found("this is no key of a session"));
    }
    api.note(&caller, "session.end", &key, json!({})).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
