//! Dynamic client registration (RFC 7591). Whoever registers is nobody yet: what is stored is small, equal
//! registrations are one, and what is never used is forgotten.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::{TimeDelta, Utc};
use drawbridge_auth::jwks::Fixed;
use drawbridge_auth::records::OAuthClient;
use drawbridge_auth::scope::OFFERED;
use drawbridge_auth::token::{Secret, SecretKind};
use http::{HeaderValue, Request, StatusCode, header};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::clients::{AuthMethod, Metadata, Shared, read_json};
use crate::error::OAuthError;
use crate::limits::Limited;
use crate::options::Registration;
use crate::redirect;
use crate::text::printable;

const MAX_REDIRECT_URIS: usize = 10;
const MAX_NAME: usize = 256;
/// More clients than this that never got a token are not kept.
const MAX_UNUSED: u64 = 10_000;
/// If there are so many, those that are older than this are forgotten.
const UNUSED_AT_LEAST: TimeDelta = TimeDelta::hours(1);

/// `POST /register`.
pub(crate) async fn register(
    State(inner): State<Shared>,
    request: Request<Body>,
) -> Result<Response, OAuthError> {
    if inner.options.registration == Registration::Closed {
        return Ok(crate::not_found());
    }
    inner.limit(Limited::Register, crate::address(&request)).await?;
    let body = read_json(request.into_body()).await?;
    let Value::Object(mut body) = body else {
        return Err(OAuthError::invalid_client_metadata("The body must be a JSON object"));
    };
    body.retain(|_, value| !value.is_null());
    let metadata = metadata(&body, inner.options.registration, &inner.options.redirect_uris)?;
    if inner.records.unused_clients().await? >= MAX_UNUSED {
        // Whoever has registered for a login has long begun it.
        inner.records.forget_unused_clients(Utc::now() - UNUSED_AT_LEAST).await?;
    }
    if inner.records.unused_clients().await? >= MAX_UNUSED {
        tracing::warn!(
            limit = MAX_UNUSED,
            "too many clients have registered and never logged in; none is taken"
        );
        return Err(OAuthError::slow_down(60));
    }
    let has_secret = matches!(
        metadata.token_endpoint_auth_method,
        AuthMethod::ClientSecretPost | AuthMethod::ClientSecretBasic
    );
    let secret = has_secret.then(|| Secret::fresh(SecretKind::Client));
    let now = Utc::now();
    let client = OAuthClient {
        id: format!("c_{}", drawbridge_auth::fresh_id()),
        metadata: serde_json::to_value(&metadata).unwrap_or_default(),
        created_at: now,
        last_used_at: None,
        disabled_at: None,
    };
    let hash = secret.as_ref().map(Secret::hash);
    let kept = inner.records.add_client(&client, &digest(&metadata), hash.as_ref()).await?;
    let mut answer = json!({
        "client_id": kept.id,
        "client_id_issued_at": kept.created_at.timestamp(),
        "redirect_uris": metadata.redirect_uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": metadata.token_endpoint_auth_method,
        "application_type": application_type(&metadata.redirect_uris),
        "scope": OFFERED.join(" "),
    });
    if let Some(name) = &metadata.client_name {
        answer["client_name"] = json!(name);
    }
    if let Some(uri) = &metadata.client_uri {
        answer["client_uri"] = json!(uri);
    }
    if let Some(jwks) = &metadata.jwks {
        answer["jwks"] = jwks.clone();
    }
    if let Some(secret) = &secret {
        answer["client_secret"] = json!(secret.expose());
        answer["client_secret_expires_at"] = json!(0);
    }
    tracing::info!(client.id = kept.id, "an OAuth client has registered");
    let mut response = (StatusCode::CREATED, Json(answer)).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn metadata(
    body: &Map<String, Value>,
    policy: Registration,
    named: &[String],
) -> Result<Metadata, OAuthError> {
    let bad = OAuthError::invalid_client_metadata;
    let strings = |name: &str| -> Result<Option<Vec<String>>, OAuthError> {
        let Some(value) = body.get(name) else { return Ok(None) };
        let all =
            value.as_array().and_then(|all| all.iter().map(|one| one.as_str().map(str::to_owned)).collect());
        all.map(Some).ok_or_else(|| bad(format!("{name} must be an array of strings")))
    };
    let includes = |name: &str, needed: &str| -> Result<(), OAuthError> {
        match strings(name)? {
            Some(all) if !all.iter().any(|one| one == needed) => {
                Err(bad(format!("{name} must have {needed}")))
            }
            _ => Ok(()),
        }
    };
    includes("grant_types", "authorization_code")?;
    includes("response_types", "code")?;
    let redirect_uris = strings("redirect_uris")?.unwrap_or_default();
    if redirect_uris.is_empty() || redirect_uris.len() > MAX_REDIRECT_URIS {
        let most = MAX_REDIRECT_URIS;
        return Err(OAuthError::invalid_redirect_uri(format!("redirect_uris must have 1 to {most} entries")));
    }
    for uri in &redirect_uris {
        let checked = redirect::parse(uri).and_then(|url| {
            let is_fine = policy == Registration::Open || redirect::is_listed(uri, &url, named);
            if is_fine { Ok(url) } else { Err(redirect::Unfit::Unlisted) }
        });
        if let Err(why) = checked {
            let uri = printable(uri, 200);
            return Err(OAuthError::invalid_redirect_uri(format!("redirect_uris: {uri}: {why}")));
        }
    }
    let has_only_https = redirect_uris.iter().all(|uri| uri.starts_with("https://"));
    let jwks = jwks(body)?;
    let method = match body.get("token_endpoint_auth_method").and_then(Value::as_str) {
        Some("client_secret_post") if has_only_https => AuthMethod::ClientSecretPost,
        Some("client_secret_basic") if has_only_https => AuthMethod::ClientSecretBasic,
        Some("private_key_jwt") if jwks.is_some() => AuthMethod::PrivateKeyJwt,
        // A secret in a program on a user's machine is none.
        _ => AuthMethod::None,
    };
    let text = |name: &str, most: usize| {
        body.get(name)
            .and_then(Value::as_str)
            .map(|text| printable(text, most))
            .filter(|text| !text.trim().is_empty())
    };
    Ok(Metadata {
        client_name: text("client_name", MAX_NAME),
        redirect_uris,
        token_endpoint_auth_method: method,
        client_uri: text("client_uri", redirect::MAX_BYTES).filter(|uri| uri.starts_with("https://")),
        jwks: jwks.filter(|_| method == AuthMethod::PrivateKeyJwt),
    })
}

/// The keys in the body that a client can prove with who it is.
fn jwks(body: &Map<String, Value>) -> Result<Option<Value>, OAuthError> {
    let Some(jwks) = body.get("jwks") else { return Ok(None) };
    let keys = Fixed::of(jwks).map_err(|why| {
        OAuthError::invalid_client_metadata(format!("jwks must have public keys alone: {why}"))
    })?;
    Ok((!keys.is_empty()).then(|| jwks.clone()))
}

/// As OpenID Connect names it: whether the client runs on its user's machine.
fn application_type(redirect_uris: &[String]) -> &'static str {
    if redirect_uris.iter().any(|uri| uri.starts_with("https://")) { "web" } else { "native" }
}

/// Equal for registrations that are one.
fn digest(metadata: &Metadata) -> [u8; 32] {
    let mut uris = metadata.redirect_uris.clone();
    uris.sort();
    let mut of = vec![
        json!(uris),
        json!(metadata.client_name),
        json!(metadata.token_endpoint_auth_method),
        json!(metadata.client_uri),
    ];
    of.extend(metadata.jwks.clone());
    let of = Value::Array(of);
    Sha256::digest(of.to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(body: Value, policy: Registration) -> Result<Metadata, &'static str> {
        let Value::Object(body) = body else { panic!("no object") };
        metadata(&body, policy, &[]).map_err(|error| error.code())
    }

    #[test]
    fn a_secret_is_given_to_servers_alone() {
        let method = |uri: &str, method: &str| {
            let body = json!({ "redirect_uris": [uri], "token_endpoint_auth_method": method });
            of(body, Registration::Open).unwrap().token_endpoint_auth_method
        };
        assert_eq!(method("https://a.example/cb", "client_secret_post"), AuthMethod::ClientSecretPost);
        assert_eq!(method("https://a.example/cb", "client_secret_basic"), AuthMethod::ClientSecretBasic);
        assert_eq!(method("http://localhost/cb", "client_secret_post"), AuthMethod::None);
        assert_eq!(method("https://a.example/cb", "private_key_jwt"), AuthMethod::None);
    }

    #[test]
    fn what_is_not_accepted_is_said() {
        let closed = "https://a.example/cb";
        assert_eq!(
            of(json!({ "redirect_uris": [closed] }), Registration::Curated),
            Err("invalid_redirect_uri")
        );
        assert!(of(json!({ "redirect_uris": [closed] }), Registration::Open).is_ok());
        for (body, code) in [
            (json!({}), "invalid_redirect_uri"),
            (json!({ "redirect_uris": [] }), "invalid_redirect_uri"),
            (json!({ "redirect_uris": vec!["http://localhost/x"; 11] }), "invalid_redirect_uri"),
            (json!({ "redirect_uris": "http://localhost/x" }), "invalid_client_metadata"),
            (json!({ "redirect_uris": [1] }), "invalid_client_metadata"),
            (
                json!({ "redirect_uris": ["http://localhost/x", "javascript:alert(1)"] }),
                "invalid_redirect_uri",
            ),
            (
                json!({ "redirect_uris": ["http://localhost/x"], "grant_types": ["implicit"] }),
                "invalid_client_metadata",
            ),
            (
                json!({ "redirect_uris": ["http://localhost/x"], "response_types": ["token"] }),
                "invalid_client_metadata",
            ),
        ] {
            assert_eq!(of(body.clone(), Registration::Open), Err(code), "{body}");
        }
    }

    #[test]
    fn equal_registrations_have_one_digest() {
        let body = |uris: [&str; 2]| json!({ "redirect_uris": uris, "client_name": "x" });
        let one = of(body(["http://localhost/a", "http://localhost/b"]), Registration::Open).unwrap();
        let two = of(body(["http://localhost/b", "http://localhost/a"]), Registration::Open).unwrap();
        let three = of(body(["http://localhost/b", "http://localhost/c"]), Registration::Open).unwrap();
        assert_eq!(digest(&one), digest(&two));
        assert_ne!(digest(&one), digest(&three));
    }

    proptest! {
        #[test]
        fn no_metadata_makes_it_panic(uris in prop::collection::vec("\\PC{0,40}", 0..4), name in "\\PC{0,300}") {
            let body = json!({ "redirect_uris": uris, "client_name": name });
            if let Ok(metadata) = of(body, Registration::Open) {
                prop_assert!(metadata.client_name.is_none_or(|name| name.chars().count() <= MAX_NAME));
            }
        }
    }
}
