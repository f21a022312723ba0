//! Requests to the token endpoint of another server (RFC 6749, RFC 8707), as a client of it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drawbridge_auth::fetch::{Fetch, NotFetched};
use futures_util::future::BoxFuture;
use oauth2::basic::{BasicErrorResponse, BasicErrorResponseType, BasicTokenType};
use oauth2::{
    AccessToken, AsyncHttpClient, AuthType, AuthorizationCode, ClientId, ClientSecret, EndpointNotSet,
    EndpointSet, ExtraTokenFields, HttpRequest, HttpResponse, PkceCodeVerifier, RedirectUrl, RefreshToken,
    RequestTokenError, RevocationErrorResponseType, Scope, StandardErrorResponse, StandardRevocableToken,
    StandardTokenIntrospectionResponse, StandardTokenResponse, TokenResponse as _, TokenUrl,
};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use crate::server::{MAX_BYTES, Metadata};
use crate::{Secret, printable};

/// Sends the requests that the library makes.
pub struct Sender(pub Arc<dyn Fetch>);

impl<'c> AsyncHttpClient<'c> for Sender {
    type Error = NotFetched;
    type Future = BoxFuture<'c, Result<HttpResponse, NotFetched>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        self.0.fetch(request, MAX_BYTES)
    }
}

/// What a token response has beside the standard.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Extra {
    /// The ID token of OpenID Connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_token: Option<String>,
}

impl ExtraTokenFields for Extra {}

/// What a token endpoint answers.
pub type TokenAnswer = StandardTokenResponse<Extra, BasicTokenType>;

/// A client of another server, as the library has it.
pub type OAuthClient<Authorize = EndpointNotSet, Token = EndpointNotSet> = oauth2::Client<
    BasicErrorResponse,
    TokenAnswer,
    StandardTokenIntrospectionResponse<Extra, BasicTokenType>,
    StandardRevocableToken,
    StandardErrorResponse<RevocationErrorResponseType>,
    Authorize,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    Token,
>;

/// Why there is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// The server says no, by this error code.
    #[error("the server says {0}")]
    Refused(String),
    /// It can't be told: the server is away, or answers something else.
    #[error("{0}")]
    Unavailable(String),
}

impl NoToken {
    /// Whether the grant is no longer good.
    pub fn is_invalid_grant(&self) -> bool {
        matches!(self, Self::Refused(code) if code == "invalid_grant")
    }

    /// Whether the gateway itself is refused, which concerns all users.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Refused(code) if matches!(&code[..], "invalid_client" | "unauthorized_client"))
    }
}

/// Tokens of another server.
#[derive(Clone)]
pub struct Tokens {
    /// The access token.
    pub access: String,
    /// What gets another one.
    pub refresh: Option<String>,
    /// The ID token.
    pub id_token: Option<String>,
    /// How long the access token is good.
    pub expires_in: Option<Duration>,
    /// What it allows, where the server says.
    pub scopes: Option<BTreeSet<String>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("expires_in", &self.expires_in).finish_non_exhaustive()
    }
}

impl From<&TokenAnswer> for Tokens {
    fn from(answer: &TokenAnswer) -> Self {
        Self {
            access: answer.access_token().secret().clone(),
            refresh: answer.refresh_token().map(|token| token.secret().clone()),
            id_token: answer.extra_fields().id_token.clone(),
            expires_in: answer.expires_in(),
            scopes: answer.scopes().map(|all| all.iter().map(|scope| scope.to_string()).collect()),
        }
    }
}

/// Makes what a client proves with that it is itself (RFC 7523): for the audience, a JSON Web Token.
pub type Assert = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// How the gateway proves who it is.
#[derive(Clone)]
pub enum ClientProof {
    /// It does not: PKCE has to do.
    None,
    /// HTTP Basic.
    Basic(Secret),
    /// In the form.
    Post(Secret),
    /// By a key.
    Key(Assert),
}

/// The gateway as a client of another server.
#[derive(Clone)]
pub struct ClientIdentity {
    /// Its id there.
    pub id: String,
    /// How it proves that.
    pub proof: ClientProof,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ClientIdentity {
    /// A client with a secret, which it shows in a way that the server takes.
    pub fn with_secret(id: &str, secret: Option<Secret>, server: &Metadata) -> Self {
        let in_form = server.takes("client_secret_post") && !server.takes("client_secret_basic");
        let proof = match secret {
            None => ClientProof::None,
            Some(secret) if in_form => ClientProof::Post(secret),
            Some(secret) => ClientProof::Basic(secret),
        };
        Self { id: id.to_owned(), proof }
    }

    /// What this client adds to a request that the library does not know how to.
    pub(crate) fn assertion(&self, audience: &str) -> Vec<(&'static str, String)> {
        let ClientProof::Key(assert) = &self.proof else { return Vec::new() };
        let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
        let assertion = assert(audience).unwrap_or_default();
        vec![("client_assertion_type", kind.to_owned()), ("client_assertion", assertion)]
    }
}

/// What a token is asked for with.
#[derive(Clone, Copy)]
pub enum Grant<'a> {
    /// The client's own name.
    Client,
    /// A code that a user's browser has brought.
    Code {
        /// The code.
        code: &'a str,
        /// Proves that the gateway has asked for it (RFC 7636).
        verifier: &'a str,
        /// Where the browser was sent.
        redirect: &'a str,
    },
    /// A refresh token.
    Refresh(&'a str),
}

/// Asks a server for tokens, for these scopes where they are named, and this resource.
///
/// # Errors
///
/// If it gives none.
pub async fn request(
    fetch: &Arc<dyn Fetch>,
    server: &Metadata,
    client: &ClientIdentity,
    grant: Grant<'_>,
    scopes: &[String],
    resource: Option<&str>,
) -> Result<Tokens, NoToken> {
    let library = library(server, client)?;
    let sender = Sender(fetch.clone());
    let scopes = scopes.iter().cloned().map(Scope::new);
    let mut extra: Vec<(&'static str, String)> = client.assertion(&server.issuer);
    extra.extend(resource.map(|resource| ("resource", resource.to_owned())));
    let answered = match grant {
        Grant::Client => {
            let mut request = library.exchange_client_credentials().add_scopes(scopes);
            for (name, value) in extra {
                request = request.add_extra_param(name, value);
            }
            request.request_async(&sender).await
        }
        Grant::Code { code, verifier, redirect } => {
            let malformed = |_| NoToken::Unavailable("the redirect URI is not a URL".to_owned());
            let redirect = RedirectUrl::new(redirect.to_owned()).map_err(malformed)?;
            let library = library.set_redirect_uri(redirect);
            let mut request = library
                .exchange_code(AuthorizationCode::new(code.to_owned()))
                .set_pkce_verifier(PkceCodeVerifier::new(verifier.to_owned()));
            for (name, value) in extra {
                request = request.add_extra_param(name, value);
            }
            request.request_async(&sender).await
        }
        Grant::Refresh(token) => {
            let token = RefreshToken::new(token.to_owned());
            let mut request = library.exchange_refresh_token(&token).add_scopes(scopes);
            for (name, value) in extra {
                request = request.add_extra_param(name, value);
            }
            request.request_async(&sender).await
        }
    };
    let answer = answered.map_err(no_token)?;
    usable(&answer)?;
    Ok(Tokens::from(&answer))
}

fn library(
    server: &Metadata,
    client: &ClientIdentity,
) -> Result<OAuthClient<EndpointNotSet, EndpointSet>, NoToken> {
    let endpoint = TokenUrl::new(server.token_endpoint.clone())
        .map_err(|_| NoToken::Unavailable("the token endpoint is not a URL".to_owned()))?;
    let library = OAuthClient::new(ClientId::new(client.id.clone())).set_token_uri(endpoint);
    Ok(match &client.proof {
        ClientProof::None | ClientProof::Key(_) => library.set_auth_type(AuthType::RequestBody),
        ClientProof::Basic(secret) => {
            library.set_auth_type(AuthType::BasicAuth).set_client_secret(ClientSecret::new(secret.read()))
        }
        ClientProof::Post(secret) => {
            library.set_auth_type(AuthType::RequestBody).set_client_secret(ClientSecret::new(secret.read()))
        }
    })
}

/// Posts a form to an endpoint of a server that the library knows nothing of, as `client`.
///
/// # Errors
///
/// If there is no answer.
pub(crate) async fn post_form(
    fetch: &dyn Fetch,
    server: &Metadata,
    client: &ClientIdentity,
    endpoint: &str,
    form: &[(&str, &str)],
) -> Result<http::Response<Vec<u8>>, NotFetched> {
    let request = form_request(server, client, endpoint, form);
    fetch.fetch(request.map_err(|error| NotFetched(error.to_string()))?, MAX_BYTES).await
}

fn form_request(
    server: &Metadata,
    client: &ClientIdentity,
    endpoint: &str,
    form: &[(&str, &str)],
) -> Result<http::Request<Vec<u8>>, http::Error> {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(form);
    let mut request = http::Request::post(endpoint)
        .header("accept", "application/json")
        .header("content-type", "application/x-www-form-urlencoded");
    match &client.proof {
        ClientProof::None => {
            body.append_pair("client_id", &client.id);
        }
        ClientProof::Post(secret) => {
            body.append_pair("client_id", &client.id).append_pair("client_secret", &secret.read());
        }
        ClientProof::Key(_) => {
            body.append_pair("client_id", &client.id);
            body.extend_pairs(client.assertion(&server.issuer));
        }
        ClientProof::Basic(secret) => {
            // Both are encoded as in a form first (RFC 6749 § 2.3.1).
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let pair = format!("{}:{}", encoded(&client.id), encoded(&secret.read()));
            request = request.header("authorization", format!("Basic {}", STANDARD.encode(pair)));
        }
    }
    request.body(body.finish().into_bytes())
}

/// What a library's error means. What else the server has said is for nobody.
pub(crate) fn no_token(
    error: RequestTokenError<NotFetched, StandardErrorResponse<BasicErrorResponseType>>,
) -> NoToken {
    match error {
        RequestTokenError::ServerResponse(said) => NoToken::Refused(printable(said.error().as_ref())),
        RequestTokenError::Request(NotFetched(why)) => NoToken::Unavailable(why),
        RequestTokenError::Parse(..) | RequestTokenError::Other(_) => {
            NoToken::Unavailable("the token endpoint's answer is none".to_owned())
        }
    }
}

/// A token that can be sent as a bearer token.
fn usable(answer: &TokenAnswer) -> Result<(), NoToken> {
    let is_sendable = |token: &AccessToken| {
        let text = token.secret();
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if *answer.token_type() != BasicTokenType::Bearer || !is_sendable(answer.access_token()) {
        return Err(NoToken::Unavailable("the server's token is not a bearer token".to_owned()));
    }
    Ok(())
}
