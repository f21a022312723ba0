//! OAuth clients: who they are, where they may be answered, and how they prove that they are who they say.

use std::sync::Arc;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drawbridge_auth::client_assertion::{self, Assertion, Unproven};
use drawbridge_auth::jwks::Fixed;
use drawbridge_auth::jwt::KeySource;
use drawbridge_auth::named_clients::{ClientGrant, ClientProof, NamedClient};
use drawbridge_auth::records::{OAuthClient, RecordsError, SecretHash};
use drawbridge_auth::scope::Scopes;
use drawbridge_auth::token;
use http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use subtle::ConstantTimeEq as _;

use crate::Inner;
use crate::client_documents::NoDocument;
use crate::error::OAuthError;
use crate::form::Form;
use crate::redirect;
use crate::token::GrantType;

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
    /// A token that it has signed with a key of its own.
    PrivateKeyJwt,
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
    /// Its public keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) jwks: Option<Value>,
}

/// A client that is known.
#[derive(Clone)]
pub(crate) struct Client {
    /// The `client_id`.
    pub(crate) id: String,
    /// What is known of it.
    pub(crate) metadata: Metadata,
    /// What it proves with.
    pub(crate) secret: Option<SecretHash>,
    /// The same: what it has signed is looked at with these.
    pub(crate) keys: Option<Arc<dyn KeySource>>,
    /// Whose it is, if it is known by a document at this domain.
    pub(crate) domain: Option<String>,
    /// What it may, if the operator has named it.
    pub(crate) named: Option<Arc<NamedClient>>,
    /// Whether it may do anything.
    pub(crate) is_disabled: bool,
    /// Whether it has proven with this request who it is.
    pub(crate) has_proven: bool,
}

impl Client {
    fn of(record: OAuthClient, secret: Option<SecretHash>) -> Option<Self> {
        let metadata: Metadata = serde_json::from_value(record.metadata).ok()?;
        let keys = metadata.jwks.as_ref().and_then(|jwks| Fixed::of(jwks).ok());
        let keys = keys.map(|keys| Arc::new(keys) as Arc<dyn KeySource>);
        let is_disabled = record.disabled_at.is_some();
        Some(Self {
            id: record.id,
            metadata,
            secret,
            keys,
            domain: None,
            named: None,
            is_disabled,
            has_proven: false,
        })
    }

    fn of_named(named: Arc<NamedClient>) -> Self {
        let entry = &named.entry;
        let (secret, method) = match &entry.proof {
            ClientProof::Secret(hash) => (Some(*hash), AuthMethod::ClientSecretBasic),
            ClientProof::Keys(_) => (None, AuthMethod::PrivateKeyJwt),
        };
        let metadata = Metadata {
            client_name: entry.name.clone(),
            redirect_uris: entry.redirect_uris.clone(),
            token_endpoint_auth_method: method,
            client_uri: None,
            jwks: None,
        };
        Self {
            id: entry.id.clone(),
            metadata,
            secret,
            keys: named.keys.clone(),
            domain: None,
            named: Some(named),
            is_disabled: false,
            has_proven: false,
        }
    }

    /// What it may get of `scopes`.
    pub(crate) fn limited(&self, scopes: Scopes) -> Scopes {
        let Some(named) = &self.named else { return scopes };
        Scopes::new(scopes.iter().filter(|scope| named.entry.scopes.allow(scope)))
    }

    /// What tokens for it name of it.
    pub(crate) fn version(&self) -> Option<i64> {
        self.named.as_ref().map(|named| named.version)
    }

    /// Whether it gets tokens for what it comes with now.
    pub(crate) fn may_use(&self, grant_type: GrantType) -> bool {
        let grant = match grant_type {
            GrantType::Code | GrantType::Refresh => ClientGrant::AuthorizationCode,
            GrantType::IdJag => ClientGrant::IdJag,
            GrantType::ClientCredentials => ClientGrant::ClientCredentials,
        };
        self.may_ask_for(grant) && (self.has_proven || grant == ClientGrant::AuthorizationCode)
    }

    /// Whether it gets tokens in this way at all.
    pub(crate) fn may_ask_for(&self, grant: ClientGrant) -> bool {
        match &self.named {
            Some(named) => named.entry.grants.contains(&grant),
            None => grant != ClientGrant::ClientCredentials,
        }
    }

    /// Whether it need not prove who it is.
    pub(crate) fn is_public(&self) -> bool {
        self.metadata.token_endpoint_auth_method == AuthMethod::None
    }

    /// Whether it may be answered at `uri`.
    pub(crate) fn may_be_answered_at(&self, uri: &str) -> bool {
        self.metadata.redirect_uris.iter().any(|known| redirect::matches(known, uri, self.is_public()))
    }

    /// Whether it is answered on its users' machines alone, where any program can listen.
    pub(crate) fn is_local(&self) -> bool {
        self.metadata.redirect_uris.iter().all(|uri| uri.starts_with("http://"))
    }
}

/// Why a client can't be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoClient {
    /// There are no records now.
    #[error("{0}")]
    Records(#[from] RecordsError),
    /// What it says of itself can't be had, or is wrong.
    #[error("{0}")]
    Document(#[from] NoDocument),
}

impl Inner {
    /// The client with this id, which may be a document that is to be fetched.
    pub(crate) async fn client(&self, id: &str) -> Result<Option<Client>, NoClient> {
        match self.registered(id).await? {
            Some(client) => Ok(Some(client)),
            None if self.documents.may_be(id) => Ok(Some(self.documents.client(id).await?)),
            None => Ok(None),
        }
    }

    /// The client with this id that the operator has named, or that has registered.
    pub(crate) async fn registered(&self, id: &str) -> Result<Option<Client>, RecordsError> {
        if id.len() > redirect::MAX_BYTES {
            return Ok(None);
        }
        if let Some(named) = self.clients.get(id) {
            return Ok(Some(Client::of_named(named)));
        }
        let found = self.records.client(id).await?;
        Ok(found.and_then(|(record, secret)| Client::of(record, secret)))
    }

    /// The client that a request of a program is from, which must prove it.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap, form: &Form) -> Result<Client, OAuthError> {
        let presented = Presented::of(headers, form)?;
        let refused = || OAuthError::invalid_client(presented.is_basic);
        let client = self.presenting(&presented.id, form).await?.ok_or_else(refused)?;
        if client.is_disabled {
            return Err(refused());
        }
        let secrets = match &presented.proof {
            Proof::Assertion(assertion) => {
                self.check_assertion(&client, assertion).await?;
                return Ok(Client { has_proven: true, ..client });
            }
            Proof::Secrets(secrets) => secrets,
        };
        let Some(hash) = &client.secret else {
            let is_fine = client.is_public() && secrets.iter().all(String::is_empty);
            return if is_fine { Ok(client) } else { Err(refused()) };
        };
        let has_proven = secrets.iter().any(|secret| bool::from(token::hash(secret).0.ct_eq(&hash.0)));
        if has_proven { Ok(Client { has_proven, ..client }) } else { Err(refused()) }
    }

    /// The client `id` that presents what is in the form. A document is fetched for one that a user has agreed to: anybody
    /// else could make the gateway fetch.
    async fn presenting(&self, id: &str, form: &Form) -> Result<Option<Client>, OAuthError> {
        if let Some(client) = self.registered(id).await? {
            return Ok(Some(client));
        }
        if !self.documents.may_be(id) {
            return Ok(None);
        }
        if let Some(client) = self.documents.cached(id) {
            return Ok(Some(client));
        }
        if self.holder(form).await?.as_deref() != Some(id) {
            return Err(OAuthError::invalid_grant());
        }
        match self.documents.client(id).await {
            Ok(client) => Ok(Some(client)),
            Err(NoDocument::Unfit(_)) => Ok(None),
            Err(NoDocument::Unfetched(_)) => Err(OAuthError::unavailable()),
        }
    }

    async fn check_assertion(&self, client: &Client, assertion: &Assertion<'_>) -> Result<(), OAuthError> {
        let keys = client.keys.as_ref().ok_or_else(|| OAuthError::invalid_client(false))?;
        let token_endpoint = self.origin.join("/token");
        let audiences = [self.origin.as_str(), &token_endpoint];
        assertion.verify(&audiences, &**keys, &*self.claims).await.map_err(|why| {
            tracing::info!(client.id = client.id, "a client has not proven who it is: {why}");
            match why {
                Unproven::Invalid(_) => OAuthError::invalid_client(false),
                Unproven::Unavailable(_) => OAuthError::unavailable(),
            }
        })
    }
}

/// What a client says of itself.
pub(crate) struct Presented<'f> {
    /// Its `client_id`.
    pub(crate) id: String,
    /// What it proves that with.
    pub(crate) proof: Proof<'f>,
    /// Whether it has said so in the `Authorization` header.
    pub(crate) is_basic: bool,
}

/// How a client wants to prove who it is.
pub(crate) enum Proof<'f> {
    /// The secret, in the forms that it may have been meant in.
    Secrets(Vec<String>),
    /// What it has signed.
    Assertion(Box<Assertion<'f>>),
}

impl<'f> Presented<'f> {
    /// What a request says.
    pub(crate) fn of(headers: &HeaderMap, form: &'f Form) -> Result<Self, OAuthError> {
        let basic = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        let in_body = form.get("client_id");
        let in_form = form.get("client_secret");
        let ways = [basic.is_some(), in_form.is_some(), form.get("client_assertion").is_some()];
        if ways.into_iter().filter(|is_used| *is_used).count() > 1 {
            return Err(OAuthError::invalid_request("A client must prove who it is in one way, not in two"));
        }
        if let Some(text) = form.get("client_assertion") {
            return Self::signed(text, form);
        }
        let Some((_, encoded)) = basic else {
            let id = in_body.ok_or_else(|| OAuthError::invalid_client(false))?;
            let secrets = in_form.map(str::to_owned).into_iter().collect();
            return Ok(Self { id: id.to_owned(), proof: Proof::Secrets(secrets), is_basic: false });
        };
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
        Ok(Self { id, proof: Proof::Secrets(secrets), is_basic: true })
    }

    fn signed(text: &'f str, form: &Form) -> Result<Self, OAuthError> {
        if form.get("client_assertion_type") != Some(client_assertion::TYPE) {
            let wanted = client_assertion::TYPE;
            return Err(OAuthError::invalid_request(format!("client_assertion_type must be {wanted}")));
        }
        let assertion = Assertion::read(text).ok_or_else(|| OAuthError::invalid_client(false))?;
        let id = assertion.client().to_owned();
        if form.get("client_id").is_some_and(|other| other != id) {
            return Err(OAuthError::invalid_request("client_id differs from the client_assertion"));
        }
        Ok(Self { id, proof: Proof::Assertion(Box::new(assertion)), is_basic: false })
    }
}

/// Reads the body of a request that is JSON.
pub(crate) async fn read_json(body: Body) -> Result<Value, OAuthError> {
    let bytes = crate::form::read(body).await.map_err(OAuthError::invalid_client_metadata)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| OAuthError::invalid_client_metadata(format!("The body is not JSON: {error}")))
}

/// Shared by handlers.
pub(crate) type Shared = Arc<Inner>;
