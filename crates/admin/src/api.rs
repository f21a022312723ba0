//! `/admin/v1`: tokens, users, grants, OAuth clients, the audit trail, and the gateway that runs, for operators and their
//! programs.
//!
//! What a request changes is in the database, told to all instances and written in the audit trail before it is
//! answered. A file for each kind of thing; [`admission`] says who may, [`problem`] what is answered to what fails.
//!
//! All of it is described by `/admin/v1/openapi.json`, which comes of the handlers themselves.

#![expect(unused_qualifications, reason = "the macro that describes handlers writes paths in full")]

mod admission;
mod asked;
mod audit;
mod clients;
pub mod configuration;
mod document;
pub mod gateway;
mod grants;
mod lifetime;
mod new_token;
mod problem;
#[cfg(test)]
mod tests;
mod tokens;
mod users;

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use chrono::Utc;
use drawbridge_auth::audit::{AuditStore, AuditTrail, Event};
use drawbridge_auth::records::{GrantFilter, PageRequest, Records, Revocation};
use drawbridge_auth::revoking::{RevocationKey, Revocations, Told};
use drawbridge_auth::signing::MAX_LIFETIME;
use drawbridge_core::state::{Claims, Limiter};
use serde_json::Value;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use admission::Admission;
use admission::{Caller, admit};
use document::{Document, complete};
use problem::Problem;

/// The name of the token that the first administrator has, and of whoever uses it.
pub const BOOTSTRAP: &str = "bootstrap";
/// Why a grant was revoked here.
const REASON: &str = "admin";
/// Says that other instances have yet to read a revocation in the database.
const PROPAGATION: HeaderName = HeaderName::from_static("x-propagation");
/// How many grants are read at once.
const BATCH: u32 = 200;

/// Says why the database can't be used, if it can't.
pub type Trouble = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What the admin API is made of.
pub struct Api {
    /// How callers are told apart.
    pub admission: Admission,
    /// What it is about.
    pub records: Arc<dyn Records>,
    /// Tells all instances what was revoked.
    pub revocations: Arc<Revocations>,
    /// Who did what.
    pub trail: Arc<AuditTrail>,
    /// All that is in the trail.
    pub audit: Arc<dyn AuditStore>,
    /// What may happen once.
    pub claims: Arc<dyn Claims>,
    /// How often things may happen.
    pub limiter: Arc<dyn Limiter>,
    /// Why the database can't be used.
    pub trouble: Trouble,
    /// The gateway that runs, if one does.
    pub gateway: Option<Arc<dyn gateway::Gateway>>,
}

impl Api {
    /// Writes down what was done. To be called before it is answered.
    async fn note(&self, caller: &Caller, action: &str, target: &str, detail: Value) -> Result<(), Problem> {
        self.note_as(&caller.actor, action, target, "ok", detail).await
    }

    async fn note_as(
        &self,
        actor: &str,
        action: &str,
        target: &str,
        outcome: &str,
        detail: Value,
    ) -> Result<(), Problem> {
        let noted = self.trail.append(&[Event { actor, action, target, outcome, detail }]).await;
        noted.map_err(|error| {
            tracing::error!(
                actor,
                action,
                target,
                outcome,
                "what was done is not in the audit trail: {error}"
            );
            Problem::unavailable(
                "it was done, but could not be written in the audit trail; look before you repeat it",
            )
        })
    }

    /// Tells all instances that what these name is no longer good.
    async fn revoke(&self, keys: &[RevocationKey]) -> Result<Told, Problem> {
        let until = Utc::now() + MAX_LIFETIME;
        let all: Vec<Revocation> = keys.iter().map(|key| Revocation { key: *key, until }).collect();
        Ok(self.revocations.revoke(&all).await?)
    }

    /// Revokes all of these grants in the records, and names them.
    async fn revoke_grants(&self, filter: &GrantFilter) -> Result<Vec<RevocationKey>, Problem> {
        let now = Utc::now();
        let mut page = PageRequest { after: None, limit: BATCH };
        let mut keys = Vec::new();
        loop {
            let found = self.records.grants(filter, &page, now).await?;
            for grant in found.items {
                self.records.revoke_grant(&grant.id, REASON, now).await?;
                keys.push(RevocationKey::grant(&grant.id));
            }
            match found.next {
                Some(next) => page.after = Some(next),
                None => return Ok(keys),
            }
        }
    }
}

/// The answer when something was revoked.
fn ended(told: Told) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    mark(&mut response, told);
    response
}

/// Says if other instances have yet to read what was revoked.
fn mark(response: &mut Response, told: Told) {
    if told == Told::Later {
        response.headers_mut().insert(PROPAGATION, HeaderValue::from_static("pending"));
    }
}

fn described() -> (Router<Arc<Api>>, OpenApi) {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::show, tokens::revoke))
        .routes(routes!(tokens::rotate))
        .routes(routes!(tokens::revoke_found))
        .routes(routes!(users::list, users::create))
        .routes(routes!(users::show))
        .routes(routes!(users::disable))
        .routes(routes!(users::enable))
        .routes(routes!(users::revoke_all))
        .routes(routes!(grants::list))
        .routes(routes!(grants::show, grants::revoke))
        .routes(routes!(clients::list))
        .routes(routes!(clients::show, clients::remove))
        .routes(routes!(clients::disable))
        .routes(routes!(clients::enable))
        .routes(routes!(audit::list))
        .routes(routes!(gateway::instances))
        .routes(routes!(gateway::backends))
        .routes(routes!(gateway::backend))
        .routes(routes!(gateway::endpoints))
        .routes(routes!(configuration::show))
        .routes(routes!(gateway::sessions))
        .routes(routes!(gateway::end_session))
        .routes(routes!(gateway::connections))
        .routes(routes!(gateway::disconnect))
        .split_for_parts();
    (router, complete(document))
}

/// The description of the admin API (OpenAPI 3.1).
pub fn openapi() -> OpenApi {
    described().1
}

/// All routes of the admin API.
pub fn routes(api: Api) -> Router {
    let api = Arc::new(api);
    let (router, document) = described();
    let document = Arc::new(document);
    router
        .route_layer(from_fn_with_state(api.clone(), admit))
        .route("/admin/v1/openapi.json", get(move || async move { Json(&*document).into_response() }))
        .with_state(api)
        .merge(others(|| Problem::not_found("there is nothing here; see /admin/v1/openapi.json")))
        .method_not_allowed_fallback(|| async { Problem::wrong_method() })
        .layer(from_fn(problem::finish))
}

/// What is there in place of the admin API if callers are not asked who they are.
pub fn absent() -> Router {
    others(|| {
        Problem::not_found(
            "there is no admin API while auth.mode is none: there are no tokens and no users. Choose another mode",
        )
    })
    .layer(from_fn(problem::finish))
}

/// The rest of the paths.
fn others(problem: fn() -> Problem) -> Router {
    let answer = any(move || async move { problem().into_response() });
    Router::new()
        .route("/admin/v1", answer.clone())
        .route("/admin/v1/", answer.clone())
        .route("/admin/v1/{*rest}", answer)
}
