//! `/config/status`: which configuration applies, and what became of the latest one.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

/// What is to be known of the configuration.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigStatus {
    /// How many configurations have applied since the start, that of the start included.
    pub generation: u64,
    /// When the one that applies did so, in the form of RFC 3339.
    pub applied_at: String,
    /// The files that it was read from.
    pub files: Vec<ConfigFile>,
    /// Keys whose values differ from those that apply, and can't before a restart.
    pub restart_needed_for: Vec<&'static str>,
    /// Why a later one did not apply; none if the latest did.
    pub last_error: Option<ConfigError>,
}

/// A file of the configuration that applies.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ConfigFile {
    /// Its name, as it was given.
    pub path: String,
    /// The SHA-256 of what was in it, in hexadecimal digits.
    pub sha256: String,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigError {
    /// When, in the form of RFC 3339.
    pub at: String,
    /// Each fault: file, line, column, key, what is wrong and what to do.
    pub problems: Vec<String>,
}

/// Reads the status.
pub type ReadStatus = Arc<dyn Fn() -> ConfigStatus + Send + Sync>;

/// The route `/config/status`. It shows no values, but names of files and keys: for operators.
pub fn routes(status: ReadStatus) -> Router {
    Router::new().route("/config/status", get(show)).with_state(status)
}

async fn show(State(status): State<ReadStatus>) -> Json<ConfigStatus> {
    Json(status())
}
