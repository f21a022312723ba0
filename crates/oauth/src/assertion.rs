//! Tokens for what an identity provider says for one of its users (RFC 7523 § 2.1, ID-JAG): the provider has decided which
//! client may act for them here, and nobody is asked again. Whatever is wrong with an assertion is told alike.

use axum::response::Response;
use chrono::{DateTime, Utc};
use drawbridge_auth::client_assertion::Unproven;
use drawbridge_auth::id_jag::{self, IdJag};
use drawbridge_auth::records::{Grant, RecordsError, User, UserClaims};
use drawbridge_auth::scope::Scopes;

use crate::Inner;
use crate::clients::Client;
use crate::error::OAuthError;
use crate::form::Form;
use crate::text::printable;
use crate::token::{Given, narrowed};

impl Inner {
    /// The access token for an assertion. There is no refresh token: the client asks the provider again.
    pub(crate) async fn take_assertion(&self, client: &Client, form: &Form) -> Result<Response, OAuthError> {
        let text =
            form.get("assertion").ok_or_else(|| OAuthError::invalid_request("assertion is missing"))?;
        let (said, endpoint, scopes) = match self.checked(client, text).await {
            Ok(checked) => checked,
            Err(why) => return Err(self.not_taken(client, why).await),
        };
        self.check_resource(form, endpoint.as_deref())?;
        if let Err(why) = said.use_up(&*self.claims).await {
            return Err(self.not_taken(client, why).await);
        }
        let Some(user) = self.user_of(&said).await? else {
            let why = Unproven::Invalid("the user is disabled, or in none of the allowed groups");
            return Err(self.not_taken(client, why).await);
        };
        let now = Utc::now();
        let grant = Grant {
            id: drawbridge_auth::fresh_id(),
            user: user.id.clone(),
            client: client.id.clone(),
            client_name: client.metadata.client_name.clone(),
            resource: self.origin.resource(endpoint.as_deref()),
            scopes: scopes.as_set().clone(),
            auth_time: DateTime::from_timestamp(said.auth_time, 0).unwrap_or(now),
            created_at: now,
            last_used_at: now,
            expires_at: now + self.access_time(),
            revoked_at: None,
            revoke_reason: None,
        };
        self.records.redeem(&grant, None).await?;
        if let Err(error) = self.records.touch_client(&client.id, now).await {
            tracing::debug!("the use of a client was not noted: {error}");
        }
        tracing::info!(
            grant.id = grant.id,
            client.id = client.id,
            user.id = user.id,
            issuer = said.issuer,
            "granted for an assertion"
        );
        self.note_assertion(&grant, &said.issuer).await;
        let scopes = narrowed(scopes, form).to_string();
        self.give(&Given { client, grant: &grant, user: &user, scopes, refresh: None }, now)
    }

    /// The client that the assertion in a form is for. Nothing is used up.
    pub(crate) async fn client_of_assertion(&self, form: &Form) -> Result<Option<String>, OAuthError> {
        let text = form.get("assertion").unwrap_or_default();
        match id_jag::verify(text, &self.id_jag, self.origin.as_str()).await {
            Ok(said) => Ok(Some(said.client)),
            Err(Unproven::Invalid(_)) => Ok(None),
            Err(Unproven::Unavailable(why)) => {
                tracing::warn!("an assertion can't be checked: {why}");
                Err(OAuthError::unavailable())
            }
        }
    }

    /// What an assertion for this client says, the endpoint that it means, and what it allows there.
    async fn checked(
        &self,
        client: &Client,
        text: &str,
    ) -> Result<(IdJag, Option<String>, Scopes), Unproven> {
        let said = id_jag::verify(text, &self.id_jag, self.origin.as_str()).await?;
        if said.client != client.id {
            return Err(Unproven::Invalid("it is for another client"));
        }
        let endpoint = self.endpoint_of(said.resources.iter().map(String::as_str));
        let endpoint = endpoint.ok_or(Unproven::Invalid("its resource is not one of this server"))?;
        let scopes = client.limited(said.scopes.offered());
        if scopes.is_empty() {
            return Err(Unproven::Invalid("it allows nothing that is offered here"));
        }
        Ok((said, endpoint, scopes))
    }

    /// The user that an assertion is about, if they may come in: who logs in with that provider is the same one. What is
    /// known of somebody is left as their last login has it.
    async fn user_of(&self, said: &IdJag) -> Result<Option<User>, RecordsError> {
        let allowed = &self.options.allowed_groups;
        let user = match self.records.user_of(&said.issuer, &said.subject).await? {
            Some(user) => user,
            // Nothing is known of their groups.
            None if !allowed.is_empty() => return Ok(None),
            None => {
                let claims = UserClaims {
                    issuer: said.issuer.clone(),
                    subject: said.subject.clone(),
                    email: said.email.as_deref().map(|email| printable(email, 256)),
                    name: None,
                    groups: std::collections::BTreeSet::new(),
                };
                self.records.enter_user(&drawbridge_auth::fresh_id(), &claims, Utc::now()).await?
            }
        };
        let is_allowed = allowed.is_empty() || allowed.iter().any(|group| user.groups.contains(group));
        Ok(Some(user).filter(|user| is_allowed && user.disabled_at.is_none()))
    }

    /// What a client is told whose assertion is not taken. The particulars are for the operator.
    async fn not_taken(&self, client: &Client, why: Unproven) -> OAuthError {
        match why {
            Unproven::Invalid(reason) => {
                tracing::info!(client.id = client.id, reason, "an assertion was refused");
                self.note_bad_assertion(&client.id, reason).await;
                OAuthError::invalid_grant()
            }
            Unproven::Unavailable(why) => {
                tracing::warn!(client.id = client.id, "an assertion can't be checked: {why}");
                OAuthError::unavailable()
            }
        }
    }
}
