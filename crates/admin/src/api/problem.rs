//! What a request that fails is answered with (RFC 9457), whatever went wrong.

use std::borrow::Cow;

use axum::Json;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use drawbridge_auth::records::RecordsError;
use serde::Serialize;
use utoipa::ToSchema;

/// Answers name their request by it, and so does the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What went wrong, in words that say what to do.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// `urn:drawbridge:problem:` and a name that does not change.
    #[serde(rename = "type")]
    kind: String,
    /// The kind of problem in words.
    title: Cow<'static, str>,
    /// The HTTP status.
    status: u16,
    /// This problem in words.
    detail: Cow<'static, str>,
    /// `urn:drawbridge:request:` and the id of the request, which is in the log too.
    instance: String,
    #[serde(skip)]
    retry_after: Option<u64>,
}

impl Problem {
    fn new(status: StatusCode, name: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: format!("urn:drawbridge:problem:{name}"),
            title: Cow::Borrowed(status.canonical_reason().unwrap_or("Error")),
            status: status.as_u16(),
            detail: detail.into(),
            instance: String::new(),
            retry_after: None,
        }
    }

    /// What was sent can't be read.
    pub(crate) fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    /// What was sent can be read, but not be done.
    pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    /// There is no credential, or none that is good.
    pub(crate) fn unauthenticated() -> Self {
        let detail = "an admin token is needed: Authorization: Bearer drb_adm_...";
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
    }

    /// The credential is good, but not for this.
    pub(crate) fn forbidden(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// There is nothing there.
    pub(crate) fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// There is something there, but not for this method.
    pub(crate) fn wrong_method() -> Self {
        let detail = "not with this method; see /admin/v1/openapi.json";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
    }

    /// It can't be done to something in this state.
    pub(crate) fn conflict(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    /// It has changed since it was looked at.
    pub(crate) fn changed() -> Self {
        let detail = "it has changed since; get it again, and send its new ETag as If-Match";
        Self::new(StatusCode::PRECONDITION_FAILED, "changed", detail)
    }

    /// The body is too large.
    pub(crate) fn too_large(most: usize) -> Self {
        let detail = format!("a body has {} KiB at most", most / 1024);
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    }

    /// The body is of another kind.
    pub(crate) fn wrong_type() -> Self {
        let detail = "send JSON, with Content-Type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_type", detail)
    }

    /// Too many, too fast.
    pub(crate) fn slow_down(detail: &'static str, seconds: u64) -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", detail);
        Self { retry_after: Some(seconds), ..problem }
    }

    /// It may work in a moment.
    pub(crate) fn unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
        Self { retry_after: Some(2), ..problem }
    }
}

impl From<RecordsError> for Problem {
    fn from(error: RecordsError) -> Self {
        match error {
            RecordsError::Unavailable(why) => {
                tracing::warn!("the admin API can't reach the database: {why}");
                Self::unavailable("the database is away; try again in a moment")
            }
            RecordsError::Refused(why) => {
                tracing::error!("the database refused what the admin API asked for: {why}");
                let detail = "the database refused; the gateway's log says why";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            }
        }
    }
}

impl IntoResponse for Problem {
    /// Without a body: [`finish`] knows the request's id.
    fn into_response(self) -> Response {
        let mut response = StatusCode::from_u16(self.status).unwrap_or_default().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Gives each request an id, and problems their bodies.
pub(crate) async fn finish(request: Request, next: Next) -> Response {
    let id = drawbridge_auth::fresh_id();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let mut response = next.run(request).await;
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        // What a caller has sent may be a secret in a wrong place: it is in the answer alone.
        let detail = if problem.status >= 500 { &*problem.detail } else { &*problem.title };
        let route = route.unwrap_or_default();
        tracing::info!(request.id = id, %method, route, status = problem.status, "the admin API: {detail}");
        problem.instance = format!("urn:drawbridge:request:{id}");
        response = with_body(&problem, &response);
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn with_body(problem: &Problem, bare: &Response) -> Response {
    let mut response = (bare.status(), Json(problem)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(allow) = bare.headers().get(header::ALLOW) {
        headers.insert(header::ALLOW, allow.clone());
    }
    if let Some(seconds) = problem.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if bare.status() == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
