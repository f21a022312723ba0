//! What is said about a credential to a service that may ask (RFC 7662).

use chrono::Utc;

use super::{REVOKED, Refused, Verifier, usable};
use crate::jwt::{EXPIRED, Unverified};
use crate::revoking::RevocationKey;
use crate::scope::Scopes;
use crate::token::{self, SecretKind};

/// What a credential is, that is good now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introspected {
    /// Whose it is: a user's id, or a service's name.
    pub subject: String,
    /// The resources that it is for; empty for all.
    pub audience: Vec<String>,
    /// The `client_id`, or what stands for it.
    pub client: String,
    /// When it ends, in seconds since 1970.
    pub expires_at: Option<i64>,
    /// When it was issued.
    pub issued_at: i64,
    /// What it allows.
    pub scopes: Scopes,
}

impl Verifier {
    /// What a credential is that the gateway has issued for its endpoints; `None` if it is none, or no longer.
    ///
    /// # Errors
    ///
    /// If that can't be told now.
    pub async fn introspect(&self, credential: &str) -> Result<Option<Introspected>, Refused> {
        let found = if credential.starts_with(token::PREFIX) {
            self.introspect_issued(credential).await
        } else {
            self.introspect_access(credential).await
        };
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Refused::Invalid(_) | Refused::Unfit(_)) => Ok(None),
            Err(unavailable) => Err(unavailable),
        }
    }

    async fn introspect_issued(&self, secret: &str) -> Result<Introspected, Refused> {
        if !matches!(token::parse(secret), Some(SecretKind::Personal | SecretKind::Service)) {
            return Err(Refused::Invalid("it is no token for endpoints"));
        }
        let found = self.records.token_by_secret(&token::hash(secret)).await?;
        let (token, owner) = found.ok_or(Refused::Invalid("there is no such token"))?;
        usable(&token, owner.as_ref(), Utc::now())?;
        if self.revocations.is_revoked(&RevocationKey::token(&token.id, token.version)) {
            return Err(Refused::Unfit(REVOKED));
        }
        let audience = if token.endpoints.is_empty() {
            vec![self.resource(None)]
        } else if token.endpoints.contains("*") {
            Vec::new()
        } else {
            let named =
                token.endpoints.iter().map(|name| Some(name.as_str()).filter(|name| !name.is_empty()));
            named.map(|name| self.resource(name)).collect()
        };
        let subject = token.owner.or(token.service).ok_or(Refused::Unfit("it is nobody's"))?;
        Ok(Introspected {
            subject,
            audience,
            client: format!("pat:{}", token.chain),
            expires_at: token.expires_at.map(|end| end.timestamp()),
            issued_at: token.created_at.timestamp(),
            scopes: Scopes::new(token.scopes),
        })
    }

    async fn introspect_access(&self, credential: &str) -> Result<Introspected, Refused> {
        let none = || Refused::Invalid("it is no access token of the gateway");
        let token = Unverified::read(credential).ok_or_else(none)?;
        let is_own =
            self.issuers.iter().any(|issuer| issuer.own.is_some() && issuer.policy.issuer == token.issuer());
        let said = token.said().filter(|_| is_own).ok_or_else(none)?;
        let origin = self.origin.as_ref().ok_or_else(none)?;
        let endpoint = origin.endpoint(&said.aud).ok_or_else(none)?;
        // From here on all of it is proven, and that it is for this resource.
        let identity = self.find(credential, endpoint.as_deref(), None).await?;
        if said.exp <= Utc::now().timestamp() {
            return Err(Refused::Unfit(EXPIRED));
        }
        Ok(Introspected {
            subject: identity.subject.clone(),
            audience: vec![said.aud],
            client: identity.client.clone(),
            expires_at: Some(said.exp),
            issued_at: said.iat,
            scopes: identity.scopes.clone(),
        })
    }
}
