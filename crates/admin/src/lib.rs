//! The face to operators: whether the gateway lives, whether it may be sent traffic, what it counts, and who may use it
//! ([`api`]).
//!
//! Must not know: the MCP faces, Redis, SQL.

pub mod api;
pub mod config;
pub mod metrics;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use drawbridge_core::Tasks;
use serde::Serialize;

/// Says why the gateway is not ready; empty when it is.
pub type Reasons = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

#[derive(Clone)]
struct Probes {
    tasks: Tasks,
    reasons: Reasons,
}

/// What a probe answers.
#[derive(Serialize)]
struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
}

/// The routes for orchestrators: `/healthz` (the process works) and `/readyz` (it wants requests; 503 with reasons
/// while it does not, which includes draining).
pub fn probes(tasks: Tasks, reasons: Reasons) -> Router {
    Router::new()
        .route("/healthz", get(|| async { Json(Health { status: "ok", reasons: Vec::new() }) }))
        .route("/readyz", get(ready))
        .with_state(Probes { tasks, reasons })
}

async fn ready(State(probes): State<Probes>) -> (StatusCode, Json<Health>) {
    let mut reasons = (probes.reasons)();
    if probes.tasks.is_leaving() {
        reasons.push("draining".to_owned());
    }
    if reasons.is_empty() {
        (StatusCode::OK, Json(Health { status: "ready", reasons }))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(Health { status: "not ready", reasons }))
    }
}
