//! The configuration that applies, without what is secret in it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::gateway::running;
use super::problem::Problem;
use crate::config::ConfigFile;

/// The configuration that applies at the instance that answers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Configuration {
    /// The id of that instance.
    pub instance: String,
    /// How many configurations have applied there since its start, that of the start included; as in `/config/status`.
    pub generation: u64,
    /// When this one did so, in the form of RFC 3339.
    pub applied_at: String,
    /// The files that it was read from.
    pub files: Vec<ConfigFile>,
    /// Keys whose values in the files are others, which can't apply before a restart. `settings` has those that apply.
    pub restart_needed_for: Vec<&'static str>,
    /// Every value, that of a key which nobody has written included.
    pub settings: Vec<Setting>,
}

/// A value of the configuration.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Setting {
    /// Its key in the file, such as `limits.max_streams`.
    pub key: String,
    /// The value: durations in text, sizes in bytes, null if there is none. A secret is never shown: `{"set": true}` says that
    /// there is one, and `file` where it is kept if that is a file.
    pub value: Value,
    /// Where it is from.
    pub source: SettingSource,
}

/// Where a value is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettingSource {
    /// The configuration file.
    File,
    /// The list of servers that `--mcp-servers` names.
    McpServers,
    /// A flag of the command line.
    Flag,
    /// A variable of the environment, also one that the file names for a secret.
    Environment,
    /// Nobody has said anything else.
    Default,
}

/// Shows the configuration that applies at the instance that answers, after files, flags, environment and whatever was read
/// since the start. Secrets are not in it.
#[utoipa::path(get, path = "/admin/v1/config", tag = "gateway", operation_id = "getConfig",
    responses((status = 200, body = Configuration), (status = 404, body = Problem)))]
pub(crate) async fn show(State(api): State<Arc<Api>>) -> Result<Json<Configuration>, Problem> {
    Ok(Json(running(&api)?.configuration()))
}
