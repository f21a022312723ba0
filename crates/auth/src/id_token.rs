//! ID tokens of the identity provider that users log in with (OpenID Connect Core § 3.1.3.7).

use jsonwebtoken::{Algorithm, Validation};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::jwt::{ALGORITHMS, KeySource, LEEWAY, MAX_TOKEN_BYTES, NoKeys};

/// What a provider says of a user.
#[derive(Debug, Clone, Deserialize)]
pub struct IdClaims {
    /// Whom it means.
    pub sub: String,
    iss: String,
    aud: Value,
    azp: Option<String>,
    nonce: Option<String>,
    /// All else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Why an ID token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadIdToken {
    /// It is no good.
    #[error("the ID token is not accepted: {0}")]
    Invalid(&'static str),
    /// Keys can't be had.
    #[error(transparent)]
    NoKeys(#[from] NoKeys),
}

/// What an ID token of `issuer` to the client says, that was asked for with `nonce`.
///
/// # Errors
///
/// If it is not accepted, or the issuer's keys can't be had.
pub async fn verify(
    token: &str,
    keys: &dyn KeySource,
    issuer: &str,
    client: &str,
    nonce: &str,
) -> Result<IdClaims, BadIdToken> {
    use BadIdToken::Invalid;
    if token.len() > 4 * MAX_TOKEN_BYTES {
        return Err(Invalid("it is too long"));
    }
    let header = jsonwebtoken::decode_header(token).map_err(|_| Invalid("it is malformed"))?;
    let algorithm: Algorithm = header.alg;
    if !ALGORITHMS.contains(&algorithm) {
        return Err(Invalid("its algorithm is not accepted"));
    }
    let key = keys.key(header.kid.as_deref(), algorithm).await?.ok_or(Invalid("its key is not known"))?;
    let mut validation = Validation::new(algorithm);
    validation.leeway = LEEWAY;
    validation.validate_nbf = true;
    validation.set_issuer(&[issuer]);
    validation.set_audience(&[client]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let claims: IdClaims = key.decode(token, &validation).map_err(|wrong| Invalid(wrong.why))?;
    let has_several = claims.aud.as_array().is_some_and(|all| all.len() > 1);
    if claims.iss != issuer {
        return Err(Invalid("its issuer is another"));
    }
    if claims.azp.as_deref().is_some_and(|azp| azp != client) || (has_several && claims.azp.is_none()) {
        return Err(Invalid("it was issued to another client"));
    }
    if claims.nonce.as_deref() != Some(nonce) {
        return Err(Invalid("its nonce is another"));
    }
    if claims.sub.is_empty() {
        return Err(Invalid("it names nobody"));
    }
    Ok(claims)
}
