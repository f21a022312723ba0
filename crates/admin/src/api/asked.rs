//! What is asked for, read strictly: queries, bodies, conditions.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use drawbridge_auth::records::PageRequest;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use super::problem::Problem;

/// No body is larger.
pub(crate) const MAX_BODY: usize = 64 * 1024;
/// How many items a part of a list has if nobody says.
const LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 200;
const MAX_CURSOR: usize = 1024;

/// A query without anything that is not known.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(error) => Err(Problem::malformed(error.body_text())),
        }
    }
}

/// A JSON body without any member that is not known.
pub(crate) struct Sent<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::wrong_type());
        }
        let body = read(request.into_body()).await?;
        let sent = serde_json::from_slice(&body);
        sent.map(Self).map_err(|error| Problem::malformed(format!("the body: {error}")))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

async fn read(body: Body) -> Result<axum::body::Bytes, Problem> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::too_large(MAX_BODY)),
        Err(_) => Err(Problem::malformed("the body did not arrive")),
    }
}

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Listed<T> {
    /// At most as many as were asked for, the newest first.
    pub(crate) items: Vec<T>,
    /// Send it as `cursor` for the next part; null when there is none.
    pub(crate) next: Option<String>,
}

/// Where the part begins that is asked for, and how long it may be.
pub(crate) fn page(cursor: Option<String>, limit: Option<u32>) -> Result<PageRequest, Problem> {
    let limit = limit.unwrap_or(LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::malformed(format!("limit is from 1 to {MAX_LIMIT}")));
    }
    if cursor.as_ref().is_some_and(|cursor| cursor.len() > MAX_CURSOR || cursor.contains('\0')) {
        return Err(Problem::malformed("cursor is not one that was given"));
    }
    Ok(PageRequest { after: cursor, limit })
}

/// Refuses what is for another state than the one with this tag.
pub(crate) fn only_if(headers: &HeaderMap, tag: &str) -> Result<(), Problem> {
    let mut wanted = headers.get_all(header::IF_MATCH).iter().peekable();
    if wanted.peek().is_none() {
        return Ok(());
    }
    let matches = wanted.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let matches = matches.map(str::trim).any(|value| value == "*" || value == tag);
    if matches { Ok(()) } else { Err(Problem::changed()) }
}

/// One thing, with the tag of its state.
pub(crate) fn tagged(tag: &str, thing: impl Serialize) -> Response {
    let mut response = Json(thing).into_response();
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
