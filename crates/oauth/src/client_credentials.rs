//! Tokens that a client gets for itself (RFC 6749 § 4.4). Only one that the operator has named does, and there is no grant
//! of a user behind them: they end by themselves, by their client, or with its entry in the configuration.

use axum::response::Response;
use chrono::Utc;
use drawbridge_auth::scope::{OFFERED, Scopes};
use drawbridge_auth::signing::Access;

use crate::Inner;
use crate::clients::Client;
use crate::error::OAuthError;
use crate::form::Form;
use crate::token::narrowed;

impl Inner {
    pub(crate) async fn give_client(&self, client: &Client, form: &Form) -> Result<Response, OAuthError> {
        if form.get("resource").is_none() {
            return Err(OAuthError::invalid_target());
        }
        let endpoint = self.endpoint_of(form.all("resource")).ok_or_else(OAuthError::invalid_target)?;
        let (resource, now) = (self.origin.resource(endpoint.as_deref()), Utc::now());
        let scopes = narrowed(client.limited(Scopes::new(OFFERED)), form);
        let id = drawbridge_auth::fresh_id();
        let access = Access {
            subject: &client.id,
            client: &client.id,
            resource: &resource,
            scope: &scopes.to_string(),
            grant: &id,
            refresh: None,
            user_version: None,
            client_version: client.version(),
            auth_time: None,
        };
        let answer = self.answer(&access, None, self.access_time(), now)?;
        tracing::info!(grant.id = id, client.id = client.id, "a client has got a token for itself");
        self.note_own_token(&client.id, &id, &resource, &scopes).await;
        Ok(answer)
    }

    /// Ends a token that a client has got for itself.
    pub(crate) async fn revoke_own(&self, client: &Client, id: &str) -> Result<(), OAuthError> {
        self.tell_revoked(id).await?;
        self.note_own_end(&client.id, id).await;
        tracing::info!(grant.id = id, client.id = client.id, "revoked by its client");
        Ok(())
    }
}
