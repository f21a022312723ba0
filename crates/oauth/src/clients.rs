//! OAuth clients: who they are, where they may be answered, and how they prove that they are who they say.

use std::sync::Arc;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drawbridge_auth::records::{OAuthClient, RecordsError, SecretHash};
use drawbridge_auth::token;
use http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use crate::Inner;
use crate::error::OAuthError;
use crate::form::Form;
use crate::redirect;

/// How a client proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AuthMethod {
    /// It does not: it is a program in the hands of its user.
    None,
    /// A secret in the body.
    ClientSecretPost,
    /// A secret in the `Authorization` header.
    ClientSecretBasic,
}

/// What is kept of a client's metadata (RFC 7591 § 2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Metadata {
    /// As the client calls itself.
    pub(crate) client_name: Option<String>,
    /// Where it may be answered.
    pub(crate) redirect_uris: Vec<String>,
    /// How it proves who it is.
    pub(crate) token_endpoint_auth_method: AuthMethod,
    /// Its home page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_uri: Option<String>,
}

/// A client that is known.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// The `client_id`.
    pub(crate) id: String,
    /// What is known of it.
    pub(crate) metadata: Metadata,
    /// What it proves with.
    pub(crate) secret: Option<SecretHash>,
    /// Whether it may do anything.
    pub(crate) is_disabled: bool,
}

impl Client {
    fn of(record: OAuthClient, secret: Option<SecretHash>) -> Option<Self> {
        let metadata = serde_json::from_value(record.metadata).ok()?;
        Some(Self { id: record.id, metadata, secret, is_disabled: record.disabled_at.is_some() })
    }

    /// Whether it has no secret.
    pub(crate) fn is_public(&self) -> bool {
        self.metadata.token_endpoint_auth_method == AuthMethod::None
    }

    /// Whether it may be answered at `uri`.
    pub(crate) fn may_be_answered_at(&self, uri: &str) -> bool {
        self.metadata.redirect_uris.iter().any(|known| redirect::matches(known, uri, self.is_public()))
    }
}

impl Inner {
    /// The client with this id.
    pub(crate) async fn client(&self, id: &str) -> Result<Option<Client>, RecordsError> {
        if id.len() > redirect::MAX_BYTES {
            return Ok(None);
        }
        let found = self.records.client(id).await?;
        Ok(found.and_then(|(record, secret)| Client::of(record, secret)))
    }

    /// The client that a request of a program is from, which must prove it.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap, form: &Form) -> Result<Client, OAuthError> {
        let presented = Presented::of(headers, form)?;
        let refused = || OAuthError::invalid_client(presented.is_basic);
        let client = self.client(&presented.id).await?.ok_or_else(refused)?;
        if client.is_disabled {
            return Err(refused());
        }
        let is_proven = match (&client.secret, &presented.secrets[..]) {
            (None, secrets) => secrets.iter().all(String::is_empty),
            (Some(hash), secrets) => {
                secrets.iter().any(|secret| bool::from(token::hash(secret).0.ct_eq(&hash.0)))
            }
        };
        if is_proven { Ok(client) } else { Err(refused()) }
    }
}

/// What a client says of itself.
struct Presented {
    id: String,
    /// The secret, in the forms that it may have been meant in.
    secrets: Vec<String>,
    is_basic: bool,
}

impl Presented {
    fn of(headers: &HeaderMap, form: &Form) -> Result<Self, OAuthError> {
        let basic = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        let in_body = form.get("client_id");
        let Some((_, encoded)) = basic else {
            let id = in_body.ok_or_else(|| OAuthError::invalid_client(false))?;
            let secrets = form.get("client_secret").map(str::to_owned).into_iter().collect();
            return Ok(Self { id: id.to_owned(), secrets, is_basic: false });
        };
        if form.get("client_secret").is_some() {
            return Err(OAuthError::invalid_request("Send the client's secret in one way, not in two"));
        }
        let refused = || OAuthError::invalid_client(true);
        let text = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or_else(refused)?;
        let (id, secret) = text.split_once(':').ok_or_else(refused)?;
        let decoded = |text: &str| {
            percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(std::borrow::Cow::into_owned)
        };
        let id = decoded(id).ok_or_else(refused)?;
        if in_body.is_some_and(|other| other != id) {
            return Err(OAuthError::invalid_request("client_id differs from the Authorization header"));
        }
        // Some libraries encode it as RFC 6749 says, some don't.
        let secrets = decoded(secret).into_iter().chain([secret.to_owned()]).collect();
        Ok(Self { id, secrets, is_basic: true })
    }
}

/// Reads the body of a request that is JSON.
pub(crate) async fn read_json(body: Body) -> Result<serde_json::Value, OAuthError> {
    let bytes = axum::body::to_bytes(body, crate::form::MAX_BODY_BYTES)
        .await
        .map_err(|_| OAuthError::invalid_client_metadata("The body is larger than 64 KiB or broken off"))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| OAuthError::invalid_client_metadata(format!("The body is not JSON: {error}")))
}

/// Shared by handlers.
pub(crate) type Shared = Arc<Inner>;
