//! The introspection endpoint (RFC 7662), for services that the operator has named. Whatever is no credential for the
//! gateway's endpoints, or no longer, is answered alike.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use drawbridge_auth::token;
use drawbridge_auth::verifier::Refused;
use http::{HeaderMap, HeaderValue, Request, header};
use serde_json::json;
use subtle::ConstantTimeEq as _;

use crate::Inner;
use crate::clients::{Presented, Proof, Shared};
use crate::error::OAuthError;
use crate::form::Form;
use crate::limits::Limited;

/// `POST /introspect`.
pub(crate) async fn introspect(
    State(inner): State<Shared>,
    request: Request<Body>,
) -> Result<Response, OAuthError> {
    if inner.options.introspection_clients.is_empty() {
        return Ok(crate::not_found());
    }
    let address = crate::address(&request);
    let (head, body) = request.into_parts();
    let form = Form::read(&head.headers, body).await?;
    if let Err(refused) = inner.may_ask(&head.headers, &form) {
        inner.limit(Limited::Token, address).await?;
        return Err(refused);
    }
    let presented = form.get("token").ok_or_else(|| OAuthError::invalid_request("token is missing"))?;
    let found = inner.verifier.introspect(presented).await.map_err(|why| {
        if let Refused::Unavailable(why) = why {
            tracing::warn!("what a token is can't be told: {why}");
        }
        OAuthError::unavailable()
    })?;
    let answer = match found {
        None => json!({ "active": false }),
        Some(found) => {
            let mut answer = json!({
                "active": true,
                "iss": inner.origin.as_str(),
                "sub": found.subject,
                "client_id": found.client,
                "iat": found.issued_at,
                "scope": found.scopes.to_string(),
                "token_type": "Bearer",
            });
            match &found.audience[..] {
                [] => {}
                [one] => answer["aud"] = json!(one),
                several => answer["aud"] = json!(several),
            }
            if let Some(end) = found.expires_at {
                answer["exp"] = json!(end);
            }
            answer
        }
    };
    let mut response = Json(answer).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl Inner {
    /// Whether a request is from a service that may ask about tokens.
    fn may_ask(&self, headers: &HeaderMap, form: &Form) -> Result<(), OAuthError> {
        let presented = Presented::of(headers, form)?;
        let refused = || OAuthError::invalid_client(presented.is_basic);
        let Proof::Secrets(secrets) = &presented.proof else { return Err(refused()) };
        let known = self.options.introspection_clients.iter().find(|(id, _)| *id == presented.id);
        let (_, hash) = known.ok_or_else(refused)?;
        let is_proven = secrets.iter().any(|secret| bool::from(token::hash(secret).0.ct_eq(&hash.0)));
        if is_proven { Ok(()) } else { Err(refused()) }
    }
}
