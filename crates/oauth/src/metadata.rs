//! The documents by which clients find out where to log in: of the resources (RFC 9728) and of the authorization server
//! (RFC 8414). They are made of the configuration alone, so they are there while all else is down.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use drawbridge_auth::client_assertion;
use drawbridge_auth::id_jag;
use drawbridge_auth::named_clients::ClientGrant;
use drawbridge_auth::resource::Origin;
use drawbridge_auth::scope::OFFERED;
use http::{HeaderValue, header};
use serde_json::{Value, json};

use crate::Documents;
use crate::clients::Shared;
use crate::options::{Options, Registration};

fn document(value: &Value) -> Response {
    let mut response = Json(value).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
    response
}

/// The metadata of the default resource.
pub(crate) async fn default_resource(State(documents): State<Documents>) -> Response {
    resource(&documents, None)
}

/// The metadata of the resource that a named endpoint is.
pub(crate) async fn named_resource(State(documents): State<Documents>, Path(name): Path<String>) -> Response {
    resource(&documents, Some(&name))
}

fn resource(documents: &Documents, name: Option<&str>) -> Response {
    if documents.endpoints.backends(name).is_none() {
        return crate::not_found();
    }
    document(&json!({
        "resource": documents.origin.resource(name),
        "authorization_servers": [documents.issuer],
        "scopes_supported": OFFERED,
        "bearer_methods_supported": ["header"],
        "resource_name": documents.resource_name,
    }))
}

/// The metadata of the gateway's own authorization server.
pub(crate) async fn authorization_server(State(inner): State<Shared>) -> Response {
    let mut metadata = server(&inner.origin, &inner.options);
    let mut grant_types = vec!["authorization_code", "refresh_token"];
    if !inner.id_jag.is_empty() {
        grant_types.push(id_jag::GRANT_TYPE);
        metadata["authorization_grant_profiles_supported"] = json!([id_jag::PROFILE]);
    }
    if inner.clients.any(ClientGrant::ClientCredentials) {
        grant_types.push("client_credentials");
    }
    metadata["grant_types_supported"] = json!(grant_types);
    document(&metadata)
}

fn server(origin: &Origin, options: &Options) -> Value {
    let methods = ["none", "client_secret_post", "client_secret_basic", "private_key_jwt"];
    let mut metadata = json!({
        "issuer": origin.as_str(),
        "authorization_endpoint": origin.join("/authorize"),
        "token_endpoint": origin.join("/token"),
        "revocation_endpoint": origin.join("/revoke"),
        "jwks_uri": origin.join("/jwks.json"),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": methods,
        "token_endpoint_auth_signing_alg_values_supported": client_assertion::ALGORITHMS,
        "revocation_endpoint_auth_methods_supported": methods,
        "revocation_endpoint_auth_signing_alg_values_supported": client_assertion::ALGORITHMS,
        "scopes_supported": [OFFERED[0], OFFERED[1], "offline_access"],
        "authorization_response_iss_parameter_supported": true,
        // Some clients parse this as a provider of OpenID Connect and want these two.
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    });
    if !options.introspection_clients.is_empty() {
        metadata["introspection_endpoint"] = json!(origin.join("/introspect"));
        metadata["introspection_endpoint_auth_methods_supported"] =
            json!(["client_secret_basic", "client_secret_post"]);
    }
    if options.client_documents.policy != Registration::Closed {
        metadata["client_id_metadata_document_supported"] = json!(true);
    }
    if options.registration != Registration::Closed {
        metadata["registration_endpoint"] = json!(origin.join("/register"));
    }
    metadata
}

/// What the gateway says of itself as a client of other servers.
pub(crate) async fn own_document(State(inner): State<Shared>) -> Response {
    let connections = inner.connections.as_ref();
    let said = connections.and_then(|all| all.authorities.document(&all.backends()));
    said.map_or_else(crate::not_found, |said| document(&said))
}

/// The public keys.
pub(crate) async fn keys(State(inner): State<Shared>) -> Response {
    document(&inner.signer.jwks())
}
