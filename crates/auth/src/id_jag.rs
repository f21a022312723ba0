//! Assertions by which an identity provider lets a client act for one of its users here, without a browser (the identity
//! assertion authorization grant, over RFC 7523 § 2.1): signed by the provider, for us and one client, for a few minutes,
//! to be used once.

use std::sync::Arc;

use chrono::Utc;
use drawbridge_core::state;
use serde_json::Value;

use crate::client_assertion::{MAX_ID, Unproven, remembered, use_up};
use crate::jwt::{ALGORITHMS, Claims, KeySource, Policy, Unverified};
use crate::scope::Scopes;

/// What `grant_type` must be.
pub const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// What metadata call it.
pub const PROFILE: &str = "urn:ietf:params:oauth:grant-profile:id-jag";
/// What the header `typ` must be.
const TYPE: &str = "oauth-id-jag+jwt";
/// An assertion may be good for this many seconds.
const MAX_LIFETIME: f64 = 300.0;

/// An identity provider whose assertions are taken.
pub struct Provider {
    policy: Policy,
    keys: Arc<dyn KeySource>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.policy.issuer).finish_non_exhaustive()
    }
}

impl Provider {
    /// The provider that is called `issuer` in its assertions and signs them with `keys`.
    pub fn new(issuer: &str, keys: Arc<dyn KeySource>) -> Self {
        let policy = Policy {
            groups_claim: String::new(),
            issuer: issuer.to_owned(),
            algorithms: ALGORITHMS.to_vec(),
            types: vec![TYPE.to_owned()],
            audiences: Vec::new(),
            clients: Vec::new(),
            max_lifetime: Some(MAX_LIFETIME),
        };
        Self { policy, keys }
    }
}

/// What an assertion says, that a provider has signed.
#[derive(Debug, Clone, PartialEq)]
pub struct IdJag {
    /// The provider.
    pub issuer: String,
    /// Whom it means.
    pub subject: String,
    /// For display.
    pub email: Option<String>,
    /// The client that may act for them.
    pub client: String,
    /// Where; empty for the default.
    pub resources: Vec<String>,
    /// What it may do.
    pub scopes: Scopes,
    /// When the user logged in there, in seconds since 1970; at the latest when the assertion was made.
    pub auth_time: i64,
    id: String,
    exp: f64,
}

/// What an assertion for `audience` says, if one of `providers` has signed it. Whether it was used is not looked at.
///
/// # Errors
///
/// If it is not accepted, or that can't be told.
pub async fn verify(text: &str, providers: &[Provider], audience: &str) -> Result<IdJag, Unproven> {
    use Unproven::Invalid;
    let unverified = Unverified::read(text).ok_or(Invalid("it is malformed"))?;
    let provider = providers.iter().find(|provider| provider.policy.issuer == unverified.issuer());
    let Provider { policy, keys } = provider.ok_or(Invalid("its issuer is not one of the list"))?;
    unverified.fits(policy).map_err(Invalid)?;
    let (kid, algorithm) = unverified.key();
    let key = keys.key(kid, algorithm).await.map_err(|why| Unproven::Unavailable(why.to_string()))?;
    let key = key.ok_or(Invalid("its key is not known"))?;
    let claims = unverified.verify(policy, &key, audience).map_err(|wrong| Invalid(wrong.why))?;
    read(claims, audience).map_err(Invalid)
}

fn read(claims: Claims, audience: &str) -> Result<IdJag, &'static str> {
    let is_only = |aud: &Value| {
        aud == audience || aud.as_array().is_some_and(|all| matches!(&all[..], [one] if one == audience))
    };
    if !claims.rest.get("aud").is_some_and(is_only) {
        return Err("it is for another server too");
    }
    if claims.rest.contains_key("authorization_details") {
        return Err("it allows what can't be told here");
    }
    let issued = claims.iat.ok_or("it does not say when it was issued")?;
    let id = claims.jti.clone().filter(|id| !id.is_empty() && id.len() <= MAX_ID);
    let id = id.ok_or("its id can't be remembered")?;
    let client = claims.client_id.clone().ok_or("it names no client")?;
    let resources = match claims.rest.get("resource") {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(all)) => {
            let all: Option<Vec<String>> = all.iter().map(|one| one.as_str().map(str::to_owned)).collect();
            all.filter(|all| !all.is_empty()).ok_or("its resource is none")?
        }
        Some(_) => return Err("its resource is none"),
    };
    #[expect(clippy::cast_possible_truncation, reason = "seconds")]
    let (issued, now) = (issued as i64, Utc::now().timestamp());
    let auth_time = claims.rest.get("auth_time").and_then(Value::as_i64).unwrap_or(issued);
    Ok(IdJag {
        email: claims.text("email").map(str::to_owned),
        scopes: claims.scopes(),
        issuer: claims.iss,
        subject: claims.sub,
        client,
        resources,
        auth_time: auth_time.clamp(0, now),
        id,
        exp: claims.exp,
    })
}

impl IdJag {
    /// Takes the assertion, which is good once.
    ///
    /// # Errors
    ///
    /// If it was used before, or that can't be told.
    pub async fn use_up(&self, used: &dyn state::Claims) -> Result<(), Unproven> {
        use_up(used, &remembered("id-jag", &self.issuer, &self.id), self.exp).await
    }
}

#[cfg(test)]
mod tests {
    use drawbridge_core::state::MemoryClaims;
    use jsonwebtoken::jwk::Jwk;
    use jsonwebtoken::{Algorithm, EncodingKey, Header};
    use serde_json::json;

    use super::*;
    use crate::jwks::Fixed;

    const ISSUER: &str = "https://login.example";
    const US: &str = "https://gw.example";

    struct World {
        signs: EncodingKey,
        providers: Vec<Provider>,
    }

    impl World {
        fn new() -> Self {
            let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
            let signs = EncodingKey::from_ec_der(&pair.serialize_der());
            let jwk = Jwk::from_encoding_key(&signs, Algorithm::ES256).unwrap();
            let keys = Fixed::of(&json!({ "keys": [jwk] })).unwrap();
            Self { signs, providers: vec![Provider::new(ISSUER, Arc::new(keys))] }
        }

        fn sign(&self, typ: &str, changes: &Value) -> String {
            let now = Utc::now().timestamp();
            let mut claims = json!({ "iss": ISSUER, "sub": "ann", "aud": US, "client_id": "c", "iat": now,
                "exp": now + 300, "jti": "one", "scope": "mcp:read chat", "resource": "https://gw.example/mcp" });
            for (name, value) in changes.as_object().unwrap() {
                if value.is_null() {
                    claims.as_object_mut().unwrap().remove(name);
                } else {
                    claims[name] = value.clone();
                }
            }
            let mut header = Header::new(Algorithm::ES256);
            header.typ = Some(typ.to_owned());
            jsonwebtoken::encode(&header, &claims, &self.signs).unwrap()
        }

        async fn verify(&self, typ: &str, changes: &Value) -> Result<IdJag, Unproven> {
            verify(&self.sign(typ, changes), &self.providers, US).await
        }
    }

    #[tokio::test]
    async fn what_a_provider_of_the_list_says_to_us_is_believed_once() {
        let world = World::new();
        for (typ, changes) in [
            (TYPE, json!({})),
            ("application/OAUTH-ID-JAG+JWT", json!({ "aud": [US], "resource": ["https://gw.example/mcp"] })),
            (TYPE, json!({ "ver": "2.0", "gid": 7, "email": "ann@example.com", "auth_time": 5 })),
        ] {
            let said = world.verify(typ, &changes).await.unwrap();
            assert_eq!((said.subject.as_str(), said.client.as_str()), ("ann", "c"));
            assert_eq!(
                (said.resources, said.scopes.to_string()),
                (vec!["https://gw.example/mcp".to_owned()], "chat mcp:read".to_owned())
            );
        }
        let used = MemoryClaims::default();
        let said = world.verify(TYPE, &json!({ "resource": null, "auth_time": 5 })).await.unwrap();
        assert_eq!((said.resources.len(), said.auth_time), (0, 5));
        assert_eq!(said.use_up(&used).await, Ok(()));
        assert_eq!(said.use_up(&used).await, Err(Unproven::Invalid("it was used before")));
        // Another one with the same id is not another one.
        let again = world.verify(TYPE, &json!({ "sub": "bob" })).await.unwrap();
        assert!(again.use_up(&used).await.is_err());
    }

    #[tokio::test]
    async fn t86_whatever_else_it_says_it_is_not_accepted() {
        let (world, now) = (World::new(), Utc::now().timestamp());
        for changes in [
            json!({ "iss": "https://other.example" }),
            json!({ "aud": "https://other.example" }),
            json!({ "aud": [US, "https://other.example"] }),
            json!({ "aud": [US, US] }),
            json!({ "aud": "https://gw.example/" }),
            json!({ "aud": null }),
            json!({ "sub": "" }),
            json!({ "client_id": null, "azp": "c" }),
            json!({ "exp": now + 600 }),
            json!({ "exp": now - 60 }),
            json!({ "exp": null }),
            json!({ "iat": null }),
            json!({ "iat": now - 3600, "exp": now + 60 }),
            json!({ "iat": now + 120, "exp": now + 240 }),
            json!({ "nbf": now + 120 }),
            json!({ "jti": null }),
            json!({ "jti": "" }),
            json!({ "jti": "x".repeat(MAX_ID + 1) }),
            json!({ "cnf": { "jkt": "x" } }),
            json!({ "authorization_details": [] }),
            json!({ "resource": 7 }),
            json!({ "resource": [] }),
        ] {
            let verified = world.verify(TYPE, &changes).await;
            assert!(matches!(verified, Err(Unproven::Invalid(_))), "{changes}: {verified:?}");
        }
        for typ in ["JWT", "at+jwt", ""] {
            let verified = world.verify(typ, &json!({})).await;
            assert_eq!(verified, Err(Unproven::Invalid("its type is not accepted")), "{typ}");
        }
        let foreign = World::new().sign(TYPE, &json!({}));
        let verified = verify(&foreign, &world.providers, US).await;
        assert_eq!(verified, Err(Unproven::Invalid("its signature is wrong")));
        for text in ["", "a.b", "a.b.c"] {
            assert_eq!(verify(text, &world.providers, US).await, Err(Unproven::Invalid("it is malformed")));
        }
    }
}
