//! The token endpoint (RFC 6749 § 4.1.3 and § 6, RFC 7636, RFC 8707). A code is good once: the grant that comes of it
//! has the id that the code names, and there is one of that id.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{TimeDelta, Utc};
use drawbridge_auth::id_jag;
use drawbridge_auth::named_clients::ClientGrant;
use drawbridge_auth::records::{
    Grant, NewRefresh, Presented, Redeemed, Refreshed, Revocation, SecretHash, Time, User,
};
use drawbridge_auth::revoking::RevocationKey;
use drawbridge_auth::scope::Scopes;
use drawbridge_auth::signing::{Access, MAX_LIFETIME};
use drawbridge_auth::token::{self, Secret, SecretKind};
use drawbridge_auth::verifier::GrantOfToken;
use http::{HeaderValue, Request, header};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::Inner;
use crate::clients::{Client, Shared};
use crate::error::OAuthError;
use crate::form::Form;
use crate::limits::Limited;
use crate::transaction::Code;

/// A code that comes again within this time comes from a proxy that tried twice, not from a thief.
const RETRIED: TimeDelta = TimeDelta::seconds(2);
/// That a code was presented is known for longer than it is good.
const CLAIMED: Duration = Duration::from_secs(600);

/// `POST /token`.
pub(crate) async fn token(
    State(inner): State<Shared>,
    request: Request<Body>,
) -> Result<Response, OAuthError> {
    inner.limit(Limited::Token, crate::address(&request)).await?;
    let (head, body) = request.into_parts();
    let form = Form::read(&head.headers, body).await?;
    let grant_type =
        form.get("grant_type").ok_or_else(|| OAuthError::invalid_request("grant_type is missing"))?;
    let grant_type = inner.grant_type(grant_type).ok_or_else(OAuthError::unsupported_grant_type)?;
    let client = inner.authenticate(&head.headers, &form).await?;
    if !client.may_use(grant_type) {
        return Err(OAuthError::unauthorized_client());
    }
    match grant_type {
        GrantType::Code => inner.redeem(&client, &form).await,
        GrantType::Refresh => inner.refresh(&client, &form).await,
        GrantType::IdJag => inner.take_assertion(&client, &form).await,
        GrantType::ClientCredentials => inner.give_client(&client, &form).await,
    }
}

/// What a client comes with to get a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantType {
    /// A code, by way of the user's browser.
    Code,
    /// A refresh token.
    Refresh,
    /// What an identity provider says for one of its users.
    IdJag,
    /// Nothing: it wants one for itself.
    ClientCredentials,
}

/// Tokens that are given out.
pub(crate) struct Given<'a> {
    pub(crate) client: &'a Client,
    pub(crate) grant: &'a Grant,
    pub(crate) user: &'a User,
    pub(crate) scopes: String,
    /// The id and the secret of the refresh token.
    pub(crate) refresh: Option<(&'a str, &'a str)>,
}

impl Inner {
    /// The type that goes by this name, if it is known here.
    fn grant_type(&self, name: &str) -> Option<GrantType> {
        match name {
            "authorization_code" => Some(GrantType::Code),
            "refresh_token" => Some(GrantType::Refresh),
            id_jag::GRANT_TYPE if !self.id_jag.is_empty() => Some(GrantType::IdJag),
            "client_credentials" if self.clients.any(ClientGrant::ClientCredentials) => {
                Some(GrantType::ClientCredentials)
            }
            _ => None,
        }
    }

    /// Claims a code under a word; whether nobody had. While that can't be told, it is `unknown`.
    async fn claim(&self, word: &str, code: &str, unknown: bool) -> bool {
        let name = format!("{word}:{}", URL_SAFE_NO_PAD.encode(Sha256::digest(code)));
        self.claims.claim(&name, CLAIMED).await.unwrap_or(unknown)
    }

    /// A code was presented whose grant was there before. It has made that grant, and somebody has a copy; unless it is
    /// another code of the same consent, which was sent twice: such a one is new when its grant is there.
    async fn used_again(
        &self,
        before: &Grant,
        client: &Client,
        (code, is_new): (&str, bool),
        now: Time,
    ) -> Result<(), OAuthError> {
        if is_new {
            self.claim("late code", code, true).await;
        } else if before.client == client.id
            && now - before.created_at > RETRIED
            && self.claim("late code", code, true).await
        {
            tracing::warn!(grant.id = before.id, "a code was used twice; its grant is revoked");
            self.revoke_grant(&before.id, "code_reuse").await?;
            self.note_end(before, "code_reuse").await;
        }
        Ok(())
    }

    async fn redeem(&self, client: &Client, form: &Form) -> Result<Response, OAuthError> {
        let presented = form.get("code").ok_or_else(|| OAuthError::invalid_request("code is missing"))?;
        let code = Code::open(self, presented).ok_or_else(OAuthError::invalid_grant)?;
        // What is another's, or sent wrongly, does the code no harm.
        if code.client != client.id {
            tracing::warn!(client.id = client.id, "a client presented another one's code");
            return Err(OAuthError::invalid_grant());
        }
        if form.get("redirect_uri") != Some(code.redirect_uri.as_str()) {
            return Err(OAuthError::invalid_grant());
        }
        self.check_resource(form, code.endpoint.as_deref())?;
        let now = Utc::now();
        let verifier = form.get("code_verifier").unwrap_or_default();
        let is_new = self.claim("code", presented, false).await;
        if !proves(verifier, &code.challenge) {
            // Whoever has the code and not the verifier has stolen it.
            let burnt = Grant {
                revoked_at: Some(now),
                revoke_reason: Some("pkce_mismatch".to_owned()),
                ..self.grant_of(&code, now)
            };
            tracing::warn!(client.id = client.id, "a code was presented with a wrong code_verifier");
            if let Redeemed::Before(before) = self.records.redeem(&burnt, None).await? {
                self.used_again(&before, client, (presented, is_new), now).await?;
            }
            return Err(OAuthError::invalid_grant());
        }
        if self.has_ended(code.key.as_deref()) {
            return Err(OAuthError::invalid_grant());
        }
        let user = self.records.user(&code.user).await?;
        let user = user.filter(|user| user.disabled_at.is_none() && user.version == code.user_version);
        let user = user.ok_or_else(OAuthError::invalid_grant)?;
        let grant = self.grant_of(&code, now);
        let secret = Secret::fresh(SecretKind::Refresh);
        let refresh = self.new_refresh(&secret, &grant, now);
        match self.records.redeem(&grant, Some(&refresh)).await? {
            Redeemed::Granted => {}
            Redeemed::Before(before) => {
                self.used_again(&before, client, (presented, is_new), now).await?;
                return Err(OAuthError::invalid_grant());
            }
        }
        if let Err(error) = self.records.touch_client(&client.id, now).await {
            tracing::debug!("the use of a client was not noted: {error}");
        }
        tracing::info!(grant.id = grant.id, client.id = client.id, user.id = user.id, "granted");
        let scopes = Scopes::new(grant.scopes.iter().cloned()).to_string();
        let given = Given {
            client,
            grant: &grant,
            user: &user,
            scopes,
            refresh: Some((&refresh.id, secret.expose())),
        };
        self.give(&given, now)
    }

    fn grant_of(&self, code: &Code, now: Time) -> Grant {
        Grant {
            id: code.grant.clone(),
            user: code.user.clone(),
            client: code.client.clone(),
            client_name: code.client_name.clone(),
            resource: self.origin.resource(code.endpoint.as_deref()),
            scopes: code.scopes.iter().cloned().collect(),
            auth_time: code.auth_time(),
            created_at: now,
            last_used_at: now,
            expires_at: now + self.options.refresh_absolute_ttl,
            revoked_at: None,
            revoke_reason: None,
        }
    }

    fn new_refresh(&self, secret: &Secret, grant: &Grant, now: Time) -> NewRefresh {
        NewRefresh {
            id: drawbridge_auth::fresh_id(),
            hash: secret.hash(),
            expires_at: (now + self.options.refresh_idle_ttl).min(grant.expires_at),
        }
    }

    async fn refresh(&self, client: &Client, form: &Form) -> Result<Response, OAuthError> {
        let presented = form
            .get("refresh_token")
            .ok_or_else(|| OAuthError::invalid_request("refresh_token is missing"))?;
        if token::parse(presented) != Some(SecretKind::Refresh) {
            return Err(OAuthError::invalid_grant());
        }
        let hash: SecretHash = token::hash(presented);
        let known = self.records.grant_of_refresh(&hash).await?.ok_or_else(OAuthError::invalid_grant)?;
        if form.all("resource").any(|resource| !resource.is_empty()) {
            let endpoint = self.endpoint_of(form.all("resource")).ok_or_else(OAuthError::invalid_target)?;
            if self.origin.resource(endpoint.as_deref()) != known.resource {
                return Err(OAuthError::invalid_target());
            }
        }
        let now = Utc::now();
        let secret = Secret::fresh(SecretKind::Refresh);
        let successor = self.new_refresh(&secret, &known, now);
        let (new_id, replay) =
            (successor.id.clone(), drawbridge_auth::seal_under(presented, secret.expose().as_bytes()));
        let refreshed = self
            .records
            .refresh(&Presented {
                hash,
                client: &client.id,
                now,
                grace: self.options.refresh_grace,
                successor,
                replay,
            })
            .await?;
        let ((grant, user), refresh_id, refresh_token) = match refreshed {
            Refreshed::Rotated(grant) => (*grant, new_id, secret.expose().to_owned()),
            Refreshed::Again { grant, id, replay } => {
                let token = drawbridge_auth::open_under(presented, &replay)
                    .and_then(|plain| String::from_utf8(plain).ok())
                    .ok_or_else(OAuthError::invalid_grant)?;
                (*grant, id, token)
            }
            Refreshed::Dead => return Err(OAuthError::invalid_grant()),
            Refreshed::OtherClient(grant) => {
                tracing::warn!(
                    grant.id = grant.id,
                    client.id = client.id,
                    "a client presented another one's refresh token"
                );
                return Err(OAuthError::invalid_grant());
            }
            Refreshed::Reused(grant) => {
                tracing::warn!(
                    grant.id = grant.id,
                    client.id = grant.client,
                    "refresh_reuse: a refresh token was used twice; its grant is revoked"
                );
                self.tell_revoked(&grant.id).await?;
                self.note_end(&grant, "refresh_reuse").await;
                return Err(OAuthError::invalid_grant());
            }
        };
        let all = client.limited(Scopes::new(grant.scopes.iter().cloned()));
        if all.is_empty() {
            return Err(OAuthError::invalid_grant());
        }
        let scopes = narrowed(all, form);
        if let Err(error) = self.records.touch_client(&client.id, now).await {
            tracing::debug!("the use of a client was not noted: {error}");
        }
        let given = Given {
            client,
            grant: &grant,
            user: &user,
            scopes: scopes.to_string(),
            refresh: Some((&refresh_id, &refresh_token)),
        };
        self.give(&given, now)
    }

    /// Refuses a resource that is not the granted one, before anything is used up.
    pub(crate) fn check_resource(&self, form: &Form, granted: Option<&str>) -> Result<(), OAuthError> {
        if form.all("resource").all(str::is_empty) {
            return Ok(());
        }
        let meant = self.endpoint_of(form.all("resource")).ok_or_else(OAuthError::invalid_target)?;
        if meant.as_deref() == granted { Ok(()) } else { Err(OAuthError::invalid_target()) }
    }

    /// How long an access token is good for that is given now.
    pub(crate) fn access_time(&self) -> TimeDelta {
        self.options.access_token_ttl.min(MAX_LIFETIME)
    }

    pub(crate) fn give(&self, given: &Given<'_>, now: Time) -> Result<Response, OAuthError> {
        let Given { client, grant, user, scopes, refresh } = given;
        let ttl = self.access_time().min(grant.expires_at - now);
        let access = Access {
            subject: &user.id,
            client: &grant.client,
            resource: &grant.resource,
            scope: scopes,
            grant: &grant.id,
            refresh: refresh.map(|(id, _)| id),
            user_version: Some(user.version),
            client_version: client.version(),
            auth_time: Some(grant.auth_time.timestamp()),
        };
        self.answer(&access, refresh.map(|(_, secret)| secret), ttl, now)
    }

    /// An answer with an access token that says this, and is good for `ttl`.
    pub(crate) fn answer(
        &self,
        access: &Access<'_>,
        refresh: Option<&str>,
        ttl: TimeDelta,
        now: Time,
    ) -> Result<Response, OAuthError> {
        let mut answer = json!({
            "access_token": self.signer.issue(access, now, now + ttl)?,
            "token_type": "Bearer",
            "expires_in": ttl.num_seconds(),
            "scope": access.scope,
        });
        if let Some(refresh) = refresh {
            answer["refresh_token"] = json!(refresh);
        }
        let mut response = Json(answer).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
        Ok(response)
    }

    /// Ends a grant, here and everywhere.
    pub(crate) async fn revoke_grant(&self, id: &str, reason: &str) -> Result<(), OAuthError> {
        self.records.revoke_grant(id, reason, Utc::now()).await?;
        self.tell_revoked(id).await
    }

    /// Lets all instances refuse the access tokens of a grant.
    pub(crate) async fn tell_revoked(&self, id: &str) -> Result<(), OAuthError> {
        let until = Utc::now() + MAX_LIFETIME;
        let revocation = Revocation { key: RevocationKey::grant(id), until };
        let _told = self.revocations.revoke(&[revocation]).await?;
        Ok(())
    }
}

/// Of what a client could have, what it wants for this token.
pub(crate) fn narrowed(all: Scopes, form: &Form) -> Scopes {
    let Some(asked) = form.get("scope").map(Scopes::parse) else { return all };
    let fewer = Scopes::new(asked.offered().iter().filter(|scope| all.allow(scope)));
    if fewer.is_empty() { all } else { fewer }
}

/// Whether `verifier` is what the challenge was made of (RFC 7636 § 4.6).
fn proves(verifier: &str, challenge: &str) -> bool {
    let legal = (43..=128).contains(&verifier.len())
        && verifier.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b));
    let made = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier));
    legal && bool::from(made.as_bytes().ct_eq(challenge.as_bytes()))
}

/// `POST /revoke` (RFC 7009): ends the grant of a token. Whoever asks about a token that is not theirs learns nothing.
pub(crate) async fn revoke(
    State(inner): State<Shared>,
    request: Request<Body>,
) -> Result<Response, OAuthError> {
    inner.limit(Limited::Token, crate::address(&request)).await?;
    let (head, body) = request.into_parts();
    let form = Form::read(&head.headers, body).await?;
    let presented = form.get("token").ok_or_else(|| OAuthError::invalid_request("token is missing"))?;
    let own = match inner.verifier.grant_of(presented).await {
        Some(GrantOfToken::Own { id, client }) => Some((id, client)),
        _ => None,
    };
    let grant = if own.is_some() { None } else { inner.presented_grant(presented).await? };
    // A client that describes itself is not fetched to be told that nothing was done.
    let is_document = form.get("client_id").is_some_and(|id| inner.documents.may_be(id));
    if grant.is_none() && own.is_none() && is_document {
        return Ok(done());
    }
    let client = inner.authenticate(&head.headers, &form).await?;
    if let Some(grant) = grant.filter(|grant| grant.client == client.id && grant.revoked_at.is_none()) {
        inner.revoke_grant(&grant.id, "revoked_by_client").await?;
        inner.note_end(&grant, "revoked_by_client").await;
        tracing::info!(grant.id = grant.id, client.id = client.id, "revoked by its client");
    }
    if let Some((id, _)) = own.filter(|(_, owner)| *owner == client.id) {
        inner.revoke_own(&client, &id).await?;
    }
    Ok(done())
}

fn done() -> Response {
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Inner {
    /// The grant of a refresh token or an access token, whatever has become of it.
    async fn presented_grant(&self, presented: &str) -> Result<Option<Grant>, OAuthError> {
        if token::parse(presented) == Some(SecretKind::Refresh) {
            return Ok(self.records.grant_of_refresh(&token::hash(presented)).await?);
        }
        match self.verifier.grant_of(presented).await {
            Some(GrantOfToken::Recorded(id)) => Ok(self.records.grant(&id).await?),
            Some(GrantOfToken::Own { .. }) | None => Ok(None),
        }
    }

    /// The client that the code, token or assertion in a form was given to.
    pub(crate) async fn holder(&self, form: &Form) -> Result<Option<String>, OAuthError> {
        if let Some(code) = form.get("code") {
            return Ok(Code::open(self, code).map(|code| code.client));
        }
        if form.get("grant_type") == Some(id_jag::GRANT_TYPE) {
            return self.client_of_assertion(form).await;
        }
        match form.get("refresh_token").or_else(|| form.get("token")) {
            Some(presented) => Ok(self.presented_grant(presented).await?.map(|grant| grant.client)),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_proves_its_own_challenge_only() {
        // RFC 7636, appendix B.
        let (verifier, challenge) =
            ("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        assert!(proves(verifier, challenge));
        assert!(!proves(&verifier[1..], challenge));
        assert!(!proves("", challenge));
        assert!(!proves(&format!("{verifier} "), challenge));
        assert!(!proves(&"a".repeat(129), &URL_SAFE_NO_PAD.encode(Sha256::digest("a".repeat(129)))));
    }
}
