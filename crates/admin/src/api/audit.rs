//! `/admin/v1/audit`: who did what.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use drawbridge_auth::records::{AuditEntry, Page};
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
    /// `token:` and the id of an admin token, `bootstrap`, or `cli`.
    actor: String,
    action: String,
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

/// Which part of the trail is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
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
    let asked = page(asked.cursor, asked.limit)?;
    if asked.after.as_deref().is_some_and(|after| !is_cursor(after)) {
        return Err(Problem::malformed("cursor is not one that was given"));
    }
    let found = api.records.audit(asked.after.as_deref(), asked.limit).await?;
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
