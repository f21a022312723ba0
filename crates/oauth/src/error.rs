//! Errors of the endpoints that programs call (RFC 6749 § 5.2). What a client does next depends on the code: it
//! registers anew on `invalid_client`, logs in anew on `invalid_grant`, and comes back on `temporarily_unavailable`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use drawbridge_auth::records::RecordsError;
use drawbridge_auth::signing::SigningError;
use drawbridge_core::state::Unavailable;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

/// An answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OAuthError {
    status: StatusCode,
    code: &'static str,
    description: String,
    retry_after: Option<u64>,
    asks_for_basic: bool,
}

impl OAuthError {
    fn new(status: StatusCode, code: &'static str, description: impl Into<String>) -> Self {
        let description = description.into();
        Self { status, code, description, retry_after: None, asks_for_basic: false }
    }

    /// The request is malformed.
    pub(crate) fn invalid_request(description: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", description)
    }

    /// The client is not known or could not prove who it is.
    pub(crate) fn invalid_client(used_basic: bool) -> Self {
        let description = "The client is not known here, or its credentials are wrong; register again";
        let error = Self::new(StatusCode::UNAUTHORIZED, "invalid_client", description);
        Self { asks_for_basic: used_basic, ..error }
    }

    /// What was presented for a token is no good, or no longer. One text for all reasons.
    pub(crate) fn invalid_grant() -> Self {
        let description = "The code, refresh token or assertion is unknown, used, expired or not this client's; log in again";
        Self::new(StatusCode::BAD_REQUEST, "invalid_grant", description)
    }

    /// The resource is none, or another than before.
    pub(crate) fn invalid_target() -> Self {
        let description = "The resource is not one of this server, or not the one that access was granted to";
        Self::new(StatusCode::BAD_REQUEST, "invalid_target", description)
    }

    /// There is no such way to get a token.
    pub(crate) fn unsupported_grant_type() -> Self {
        let description = "grant_type must be one of grant_types_supported in the metadata of this server";
        Self::new(StatusCode::BAD_REQUEST, "unsupported_grant_type", description)
    }

    /// There is, but not for this client.
    pub(crate) fn unauthorized_client() -> Self {
        let description = "This client may not use this grant_type, or not without proving who it is";
        Self::new(StatusCode::BAD_REQUEST, "unauthorized_client", description)
    }

    /// The metadata of a registration is malformed.
    pub(crate) fn invalid_client_metadata(description: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_client_metadata", description)
    }

    /// A redirect URI of a registration is not accepted.
    pub(crate) fn invalid_redirect_uri(description: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_redirect_uri", description)
    }

    /// Too much of it.
    pub(crate) fn slow_down(seconds: u64) -> Self {
        let error =
            Self::new(StatusCode::TOO_MANY_REQUESTS, "slow_down", "Too many requests; come back later");
        Self { retry_after: Some(seconds.max(1)), ..error }
    }

    /// Something that is needed can't be had now.
    pub(crate) fn unavailable() -> Self {
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "temporarily_unavailable",
            "The server can't decide this now; try again",
        );
        Self { retry_after: Some(2), ..error }
    }

    /// Its code.
    #[cfg(test)]
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }
}

impl From<RecordsError> for OAuthError {
    fn from(error: RecordsError) -> Self {
        tracing::warn!("a token request can't be answered: {error}");
        Self::unavailable()
    }
}

impl From<Unavailable> for OAuthError {
    fn from(error: Unavailable) -> Self {
        tracing::warn!("a token request can't be answered: {error}");
        Self::unavailable()
    }
}

impl From<SigningError> for OAuthError {
    fn from(error: SigningError) -> Self {
        tracing::error!("no access token can be issued: {error}");
        Self::unavailable()
    }
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.code, "error_description": self.description });
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.asks_for_basic {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"token\""));
        }
        response
    }
}
