//! `/admin/v1/audit`: who did what.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use drawbridge_auth::audit::{AuditEntry, AuditFilter, AuditKind};
use drawbridge_auth::records::Page;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::asked::{Asked, Listed, page};
use super::problem::Problem;

const LINES: &str = "application/x-ndjson";

/// Something that was done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Entry {
    /// Of one run of an instance.
    chain: String,
    /// Counts up from 1 in a chain.
    number: i64,
    at: DateTime<Utc>,
    /// `token:` and the id of an admin token, `bootstrap`, or `cli`; of calls `user:` or `service:` and who it was, or
    /// `anonymous`; `gateway` of entries about the trail itself.
    actor: String,
    /// Such as `token.create`; of calls `mcp:` and the method.
    action: String,
    /// To what; of calls the tool, prompt or resource.
    target: String,
    outcome: String,
    #[schema(value_type = Object)]
    detail: serde_json::Value,
    /// Over this entry and the hash of the one before it in the chain.
    hash: String,
}

impl From<AuditEntry> for Entry {
    fn from(entry: AuditEntry) -> Self {
        Self {
            chain: entry.chain,
            number: entry.number,
            at: entry.at,
            actor: entry.actor,
            action: entry.action,
            target: entry.target,
            outcome: entry.outcome,
            detail: entry.detail,
            hash: entry.hash,
        }
    }
}

/// What entries are about.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// What administrators and the gateway did.
    Action,
    /// Calls.
    Call,
}

/// Which part of the trail is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// Only of this chain.
    chain: Option<String>,
    /// Only from this time on (RFC 3339).
    since: Option<DateTime<Utc>>,
    /// Only from before this time (RFC 3339).
    until: Option<DateTime<Utc>>,
    /// Only calls, or only what administrators and the gateway did.
    kind: Option<Kind>,
    /// Only by this one, such as `user:ID`.
    actor: Option<String>,
    /// Only with this action, such as `token.create` or `mcp:tools/call`.
    action: Option<String>,
    /// Only to this, such as the name of a tool.
    target: Option<String>,
    /// Only what ended so, such as `ok`.
    outcome: Option<String>,
    /// Where the part begins: after the entry `chain:number`, such as `next` of the part before.
    cursor: Option<String>,
    /// The most entries, from 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// Lists entries, the oldest first. With `Accept: application/x-ndjson` it is one entry a line, and the cursor of the
/// next part is the header `X-Next-Cursor`.
#[utoipa::path(get, path = "/admin/v1/audit", tag = "audit", operation_id = "listAudit", params(Part),
    responses((status = 200, content((Listed<Entry> = "application/json"), (Entry = "application/x-ndjson")))))]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    Asked(asked): Asked<Part>,
) -> Result<Response, Problem> {
    let filter = AuditFilter {
        chain: asked.chain,
        since: asked.since,
        until: asked.until,
        kind: asked.kind.map(|kind| match kind {
            Kind::Action => AuditKind::Action,
            Kind::Call => AuditKind::Call,
        }),
        actor: asked.actor,
        action: asked.action,
        target: asked.target,
        outcome: asked.outcome,
    };
    let asked = page(asked.cursor, asked.limit)?;
    if asked.after.as_deref().is_some_and(|after| !is_cursor(after)) {
        return Err(Problem::malformed("cursor is not one that was given"));
    }
    let found = api.audit.audit(&filter, asked.after.as_deref(), asked.limit).await?;
    if wants_lines(&headers) {
        return Ok(lines(found));
    }
    let items = found.items.into_iter().map(Entry::from).collect::<Vec<_>>();
    Ok(Json(Listed { items, next: found.next }).into_response())
}

fn is_cursor(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(_, number)| number.parse::<i64>().is_ok())
}

fn wants_lines(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|range| range.split(';').next().is_some_and(|range| range.trim() == LINES))
}

fn lines(found: Page<AuditEntry>) -> Response {
    let lines = found.items.into_iter().filter_map(|entry| serde_json::to_string(&Entry::from(entry)).ok());
    let text: String = lines.map(|line| line + "\n").collect();
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(LINES));
    if let Some(next) = found.next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-cursor", next);
    }
    response
}
