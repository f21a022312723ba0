//! Login through an identity provider that speaks OpenID Connect: the gateway is a client of it, with PKCE and a nonce,
//! and takes from it who somebody is. Its tokens are for nothing else here; they may be exchanged for a backend's
//! ([`drawbridge_credentials::exchange`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use drawbridge_auth::fetch::{Fetch, NotFetched};
use drawbridge_auth::id_token::{self, BadIdToken, IdClaims};
use drawbridge_auth::jwks::{self, Jwks, Location};
use drawbridge_auth::records::UserClaims;
use drawbridge_auth::secret::Secret;
use drawbridge_core::Tasks;
use drawbridge_core::seal::Purpose;
use drawbridge_credentials::token::{OAuthClient as OidcClient, Sender, Tokens};
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointSet, PkceCodeChallenge,
    PkceCodeVerifier, RedirectUrl, Scope, TokenUrl,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::Inner;
use crate::form::Form;
use crate::text::printable;

/// What the provider says of itself is asked for again after this time.
const DISCOVERED_FOR: Duration = Duration::from_secs(600);
/// A provider that has not answered is asked again after this.
const FAILED_FOR: Duration = Duration::from_secs(5);

/// The identity provider, as the configuration names it.
#[derive(Debug, Clone)]
pub struct ProviderOptions {
    /// Its issuer, exactly.
    pub issuer: String,
    /// The gateway's id there.
    pub client_id: String,
    /// The gateway's secret there.
    pub client_secret: Option<Secret>,
    /// What is asked for; `openid` always is.
    pub scopes: Vec<String>,
    /// The claim that has the groups.
    pub groups_claim: String,
}

/// A login that is under way, sealed in the `state` that the provider gives back.
#[derive(Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// The transaction that it is for, sealed.
    #[serde(rename = "t")]
    pub(crate) transaction: String,
    #[serde(rename = "n")]
    nonce: String,
    #[serde(rename = "v")]
    verifier: String,
}

/// Why somebody is not signed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotSignedIn {
    /// The provider does not answer.
    Unavailable(String),
    /// What it answers is not accepted.
    Refused(String),
    /// The provider, or the user there, has said no.
    Denied,
}

impl From<NotFetched> for NotSignedIn {
    fn from(NotFetched(why): NotFetched) -> Self {
        Self::Unavailable(why)
    }
}

#[derive(Clone, Deserialize)]
struct Discovery {
    issuer: String,
    authorization_endpoint: AuthUrl,
    token_endpoint: TokenUrl,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// Exchanges a code for an ID token, and what comes with it.
async fn exchange(
    client: OidcClient<EndpointSet, EndpointSet>,
    fetch: Arc<dyn Fetch>,
    code: String,
    verifier: String,
) -> Result<(String, Tokens), NotSignedIn> {
    let exchanged = client
        .exchange_code(AuthorizationCode::new(code))
        .set_pkce_verifier(PkceCodeVerifier::new(verifier))
        .request_async(&Sender(fetch))
        .await;
    let refused = |why: String| NotSignedIn::Refused(why);
    let tokens = exchanged.map_err(|error| match error {
        oauth2::RequestTokenError::Request(NotFetched(why)) => NotSignedIn::Unavailable(why),
        oauth2::RequestTokenError::ServerResponse(said) => {
            refused(format!("the provider says {}", printable(said.error().as_ref(), 100)))
        }
        _ => refused("the provider's answer to the code is not as it must be".to_owned()),
    })?;
    let token = tokens.extra_fields().id_token.clone();
    let token = token.ok_or_else(|| refused("the provider gave no ID token".to_owned()))?;
    Ok((token, Tokens::from(&tokens)))
}

/// What the provider's metadata were when they were last asked for.
#[derive(Clone)]
struct Kept {
    said: Result<Discovery, NotFetched>,
    until: Instant,
}

impl Kept {
    fn fresh(&self) -> Option<Result<Discovery, NotFetched>> {
        (Instant::now() < self.until).then(|| self.said.clone())
    }
}

/// The identity provider.
pub struct Provider {
    options: ProviderOptions,
    fetch: Arc<dyn Fetch>,
    keys: Jwks,
    discovered: Mutex<Option<Kept>>,
    /// Held by the one that asks.
    asking: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.options.fmt(f)
    }
}

impl Provider {
    /// The provider of `options`, reached by `fetch`. It is not asked for anything before somebody logs in; its
    /// keys are fetched by one of `tasks`.
    pub fn new(options: ProviderOptions, fetch: Arc<dyn Fetch>, tasks: Tasks) -> Self {
        let keys = Jwks::new(&options.issuer, Location::Discovered, fetch.clone(), tasks);
        Self { options, fetch, keys, discovered: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    async fn discover(&self) -> Result<Discovery, NotFetched> {
        let kept = self.discovered.lock().clone();
        if let Some(said) = kept.as_ref().and_then(Kept::fresh) {
            return said;
        }
        let _turn = match (self.asking.try_lock(), kept) {
            (Ok(turn), _) => turn,
            // Somebody asks already, and what was known will do.
            (Err(_), Some(Kept { said: Ok(known), .. })) => return Ok(known),
            (Err(_), _) => self.asking.lock().await,
        };
        if let Some(said) = self.discovered.lock().as_ref().and_then(Kept::fresh) {
            return said;
        }
        let metadata = jwks::metadata(&*self.fetch, &self.options.issuer).await;
        let fresh = metadata.and_then(|metadata| {
            let found: Discovery = serde_json::from_value(metadata).map_err(|error| {
                NotFetched(format!("the provider's metadata are not as they must be: {error}"))
            })?;
            if found.issuer != self.options.issuer {
                return Err(NotFetched(format!(
                    "the provider's metadata are of {}, and auth.login.issuer is {}",
                    found.issuer, self.options.issuer
                )));
            }
            Ok(found)
        });
        let mut discovered = self.discovered.lock();
        let known = discovered.take().and_then(|kept| kept.said.ok());
        let (said, time) = match (fresh, known) {
            (Ok(found), _) => (Ok(found), DISCOVERED_FOR),
            // It may be down for a moment; what it said before still holds.
            (Err(_), Some(known)) => (Ok(known), FAILED_FOR),
            (Err(error), None) => (Err(error), FAILED_FOR),
        };
        *discovered = Some(Kept { said: said.clone(), until: Instant::now() + time });
        said
    }

    fn client(
        &self,
        inner: &Inner,
        found: &Discovery,
    ) -> Result<OidcClient<EndpointSet, EndpointSet>, NotFetched> {
        let redirect = RedirectUrl::new(inner.origin.join("/login/callback"));
        let redirect = redirect.map_err(|error| NotFetched(error.to_string()))?;
        let takes =
            |method: &str| found.token_endpoint_auth_methods_supported.iter().any(|one| one == method);
        let in_body = takes("client_secret_post") && !takes("client_secret_basic");
        let mut client = OidcClient::new(ClientId::new(self.options.client_id.clone()))
            .set_auth_uri(found.authorization_endpoint.clone())
            .set_token_uri(found.token_endpoint.clone())
            .set_redirect_uri(redirect)
            .set_auth_type(if in_body { AuthType::RequestBody } else { AuthType::BasicAuth });
        if let Some(secret) = &self.options.client_secret {
            client = client.set_client_secret(ClientSecret::new(secret.read()));
        }
        Ok(client)
    }

    /// Where the browser goes to log in for a sealed transaction. The provider may know who is there; `anew`, it asks.
    pub(crate) async fn begin(
        &self,
        inner: &Inner,
        transaction: &str,
        anew: bool,
    ) -> Result<String, NotFetched> {
        let found = self.discover().await?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let attempt = Attempt {
            transaction: transaction.to_owned(),
            nonce: drawbridge_auth::token::Secret::fresh(drawbridge_auth::token::SecretKind::Client)
                .expose()
                .to_owned(),
            verifier: verifier.secret().clone(),
        };
        let nonce = attempt.nonce.clone();
        let plain = serde_json::to_vec(&attempt).unwrap_or_default();
        let state = inner.ring.seal(Purpose::Authorization, &plain);
        let client = self.client(inner, &found)?;
        let scopes = self.options.scopes.iter().filter(|scope| *scope != "openid").cloned();
        let mut request = client
            .authorize_url(|| CsrfToken::new(state))
            .add_scopes(std::iter::once("openid".to_owned()).chain(scopes).map(Scope::new))
            .add_extra_param("nonce", nonce)
            .set_pkce_challenge(challenge);
        if anew {
            request = request.add_extra_param("prompt", "login");
        }
        let (url, _) = request.url();
        Ok(url.into())
    }

    /// Who came back from the provider, and the tokens that it gave.
    pub(crate) async fn finish(
        &self,
        inner: &Inner,
        form: &Form,
        attempt: &Attempt,
    ) -> Result<(UserClaims, Tokens), NotSignedIn> {
        let refused = |why: &str| NotSignedIn::Refused(why.to_owned());
        let found = self.discover().await?;
        // Another provider's answer must not be taken for this one's (RFC 9207).
        match form.get("iss") {
            Some(iss) if iss != self.options.issuer => return Err(refused("the answer is another issuer's")),
            None if found.authorization_response_iss_parameter_supported => {
                return Err(refused("the answer does not name its issuer"));
            }
            _ => {}
        }
        match form.get("error") {
            Some("access_denied") => return Err(NotSignedIn::Denied),
            Some(error) => return Err(refused(&format!("the provider says {}", printable(error, 100)))),
            None => {}
        }
        let code = form.get("code").ok_or_else(|| refused("the answer has no code"))?;
        let client = self.client(inner, &found)?;
        let (code, verifier) = (code.to_owned(), attempt.verifier.clone());
        let (token, tokens) = exchange(client, self.fetch.clone(), code, verifier).await?;
        let (issuer, client_id) = (&self.options.issuer, &self.options.client_id);
        let verified = id_token::verify(&token, &self.keys, issuer, client_id, &attempt.nonce).await;
        let claims = verified.map_err(|error| match error {
            BadIdToken::NoKeys(why) => NotSignedIn::Unavailable(why.to_string()),
            BadIdToken::Invalid(_) => NotSignedIn::Refused(error.to_string()),
        })?;
        Ok((self.user(claims), tokens))
    }

    fn user(&self, claims: IdClaims) -> UserClaims {
        let text =
            |name: &str| claims.rest.get(name).and_then(Value::as_str).map(|text| printable(text, 256));
        let groups: BTreeSet<String> = match claims.rest.get(&self.options.groups_claim) {
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(Value::String(one)) => BTreeSet::from([one.clone()]),
            _ => BTreeSet::new(),
        };
        UserClaims {
            issuer: self.options.issuer.clone(),
            email: text("email"),
            name: text("name").or_else(|| text("preferred_username")),
            subject: claims.sub,
            groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use futures_util::future::join_all;
    use http::{Request, Response};

    use super::*;

    /// A provider that takes its time, and then does not answer.
    struct Hanging(AtomicUsize);

    #[async_trait]
    impl Fetch for Hanging {
        async fn fetch(&self, _: Request<Vec<u8>>, _: usize) -> Result<Response<Vec<u8>>, NotFetched> {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(10)).await;
            Err(NotFetched("no answer".to_owned()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_log_in_while_the_provider_hangs_wait_for_it_together() {
        let fetch = Arc::new(Hanging(AtomicUsize::new(0)));
        let options = ProviderOptions {
            issuer: "https://id.example".to_owned(),
            client_id: "c".to_owned(),
            client_secret: None,
            scopes: Vec::new(),
            groups_claim: "groups".to_owned(),
        };
        let provider = Provider::new(options, fetch.clone(), Tasks::default());
        let begun = Instant::now();
        let all = join_all((0..6).map(|_| provider.discover())).await;
        assert!(all.iter().all(Result::is_err));
        // Two places are looked at, each once.
        assert_eq!((begun.elapsed(), fetch.0.load(Ordering::Relaxed)), (Duration::from_secs(20), 2));
        tokio::time::advance(FAILED_FOR).await;
        assert!(provider.discover().await.is_err());
        assert_eq!(fetch.0.load(Ordering::Relaxed), 4);
    }
}
