//! Finding the authorization server of a backend, and what it says about itself: RFC 9728 (protected resource metadata),
//! RFC 8414 (authorization server metadata), MCP authorization.

use drawbridge_auth::fetch::{self, Fetch, NotFetched};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use crate::printable;

/// Documents are no longer than this many bytes.
pub(crate) const MAX_BYTES: usize = 64 * 1024;

/// Why there is no server, or no usable one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoServer {
    /// It can't be had now.
    #[error("{0}")]
    Unavailable(String),
    /// What was found is not accepted; trying again does not help.
    #[error("{0}")]
    Unfit(String),
}

impl From<NotFetched> for NoServer {
    fn from(NotFetched(why): NotFetched) -> Self {
        Self::Unavailable(why)
    }
}

/// What an authorization server says about itself, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Its name, exactly.
    pub issuer: String,
    /// Where users agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_endpoint: Option<String>,
    /// Where tokens are.
    pub token_endpoint: String,
    /// Where clients register (RFC 7591).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_endpoint: Option<String>,
    /// Where tokens are revoked (RFC 7009).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocation_endpoint: Option<String>,
    /// How clients may prove who they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_endpoint_auth_methods_supported: Vec<String>,
    /// Which PKCE methods it takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code_challenge_methods_supported: Vec<String>,
    /// Scopes that there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes_supported: Vec<String>,
    /// Whether a client's id may be the URL of a document about it.
    #[serde(default)]
    pub client_id_metadata_document_supported: bool,
    /// Whether its answers name it (RFC 9207).
    #[serde(default)]
    pub authorization_response_iss_parameter_supported: bool,
}

impl Metadata {
    /// A server of which nothing but its token endpoint is known.
    pub fn of_endpoint(token_endpoint: &str) -> Self {
        Self {
            issuer: token_endpoint.to_owned(),
            authorization_endpoint: None,
            token_endpoint: token_endpoint.to_owned(),
            registration_endpoint: None,
            revocation_endpoint: None,
            token_endpoint_auth_methods_supported: Vec::new(),
            code_challenge_methods_supported: Vec::new(),
            scopes_supported: Vec::new(),
            client_id_metadata_document_supported: false,
            authorization_response_iss_parameter_supported: false,
        }
    }

    /// Whether clients may prove who they are so; RFC 8414 has a default.
    pub fn takes(&self, method: &str) -> bool {
        let named = &self.token_endpoint_auth_methods_supported;
        if named.is_empty() { method == "client_secret_basic" } else { named.iter().any(|one| one == method) }
    }
}

/// What a backend says about the tokens that it takes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProtectedResource {
    /// Its name in tokens.
    pub resource: String,
    /// Who issues tokens for it.
    #[serde(default)]
    pub authorization_servers: Vec<String>,
    /// Scopes that its clients need.
    #[serde(default)]
    pub scopes_supported: Vec<String>,
}

/// The metadata of the backend at `url`, or `None` if it has none. `challenge` is where a challenge of it says that they
/// are.
///
/// # Errors
///
/// If there are some that are not about this backend, or they can't be had.
pub async fn resource(
    fetch: &dyn Fetch,
    url: &Url,
    challenge: Option<&str>,
) -> Result<Option<ProtectedResource>, NoServer> {
    let origin = url.origin().ascii_serialization();
    let path = url.path().trim_end_matches('/');
    let named = challenge.and_then(|named| Url::parse(named).ok());
    let named = named.filter(|named| named.origin() == url.origin()).map(String::from);
    let mut places: Vec<String> = named.into_iter().collect();
    for place in [path, ""].map(|path| format!("{origin}/.well-known/oauth-protected-resource{path}")) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    for place in places {
        let Some(found) = document(fetch, &place).await? else { continue };
        let found: ProtectedResource = serde_json::from_value(found)
            .map_err(|_| NoServer::Unfit(format!("{place} is not the metadata of a resource")))?;
        if !is_about(&found.resource, url) {
            return Err(NoServer::Unfit(format!(
                "the metadata at {place} are about {}, which is another resource",
                printable(&found.resource)
            )));
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// Whether `resource` is the backend at `url`, or a path above it at the same origin.
fn is_about(resource: &str, url: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let has_more = resource.query().is_some() || resource.fragment().is_some();
    let (above, path) = (resource.path().trim_end_matches('/'), url.path().trim_end_matches('/'));
    let is_above = path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    !has_more && resource.origin() == url.origin() && is_above
}

/// The metadata of the server that is `issuer`, exactly.
///
/// # Errors
///
/// If they can't be had, or are another's.
pub async fn metadata(fetch: &dyn Fetch, issuer: &str) -> Result<Metadata, NoServer> {
    let url = Url::parse(issuer).map_err(|_| NoServer::Unfit("the issuer is not a URL".to_owned()))?;
    let (origin, path) = (url.origin().ascii_serialization(), url.path().trim_end_matches('/'));
    let places = [
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
        format!("{origin}{path}/.well-known/openid-configuration"),
    ];
    for place in places {
        let Some(found) = document(fetch, &place).await? else { continue };
        let found: Metadata = serde_json::from_value(found)
            .map_err(|_| NoServer::Unfit(format!("{place} is not the metadata of a server")))?;
        if found.issuer != issuer {
            return Err(NoServer::Unfit(format!(
                "the metadata at {place} are of {}, and not of {issuer}",
                printable(&found.issuer)
            )));
        }
        let endpoints =
            [&found.authorization_endpoint, &found.registration_endpoint, &found.revocation_endpoint];
        let endpoints: Vec<&String> =
            endpoints.into_iter().flatten().chain([&found.token_endpoint]).collect();
        if let Some(bad) = endpoints.iter().find(|endpoint| !may_be_sent_to(endpoint, &url)) {
            return Err(NoServer::Unfit(format!("{issuer} names {}, which is not https", printable(bad))));
        }
        return Ok(found);
    }
    Err(NoServer::Unavailable(format!("{issuer} has no metadata")))
}

/// Whether secrets may go to an endpoint of the server at `issuer`: by https, or in clear to where the operator has said
/// that this server is.
fn may_be_sent_to(endpoint: &str, issuer: &Url) -> bool {
    Url::parse(endpoint).is_ok_and(|url| {
        url.scheme() == "https"
            || url.scheme() == "http" && issuer.scheme() == "http" && url.host() == issuer.host()
    })
}

/// A document, or `None` if there is none at that place.
async fn document(fetch: &dyn Fetch, place: &str) -> Result<Option<Value>, NoServer> {
    match fetch::find_document(fetch, place, MAX_BYTES).await {
        Ok(found) => Ok(found.map(|(value, _)| value)),
        Err(NotFetched(why)) => Err(NoServer::Unavailable(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_about_the_backend_or_what_is_above_it() {
        let url = Url::parse("https://gh.example:8443/api/mcp").unwrap();
        for own in [
            "https://gh.example:8443/api/mcp",
            "https://gh.example:8443/api/mcp/",
            "https://gh.example:8443/api",
            "https://gh.example:8443",
            "https://gh.example:8443/",
        ] {
            assert!(is_about(own, &url), "{own}");
        }
        for foreign in [
            "https://gh.example/api/mcp",
            "http://gh.example:8443/api/mcp",
            "https://evil.example:8443/api/mcp",
            "https://gh.example:8443/api/mcp/more",
            "https://gh.example:8443/ap",
            "https://gh.example:8443/api?x",
            "gh.example",
        ] {
            assert!(!is_about(foreign, &url), "{foreign}");
        }
    }

    #[test]
    fn secrets_go_by_https_unless_the_operator_has_named_a_server_in_clear() {
        let (secure, clear) =
            (Url::parse("https://as.example").unwrap(), Url::parse("http://127.0.0.1:9/x").unwrap());
        assert!(may_be_sent_to("https://elsewhere.example/token", &secure));
        assert!(may_be_sent_to("http://127.0.0.1:10/token", &clear));
        for (endpoint, issuer) in [
            ("http://as.example/token", &secure),
            ("javascript:alert(1)", &secure),
            ("http://10.0.0.1/token", &clear),
            ("ftp://127.0.0.1/", &clear),
        ] {
            assert!(!may_be_sent_to(endpoint, issuer), "{endpoint}");
        }
    }
}
