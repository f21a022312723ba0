//! The authorization server that is part of the gateway (OAuth 2.1, RFC 6749, 7009, 7591, 7636, 7662, 8414, 8707, 9207,
//! 9728), and the documents by which clients find it.
//!
//! What is on its way is sealed and carried by browsers and clients; what was granted is in the records. So any instance
//! serves any step, and whoever has not proven anything leaves nothing behind.
//!
//! Must not know: MCP, Redis, SQL, configuration files.

mod accounts;
mod assertion;
mod authorize;
mod browser;
mod client_credentials;
mod client_documents;
mod clients;
mod connect;
mod consent;
mod errand;
mod error;
mod form;
mod introspection;
mod limits;
mod login;
mod metadata;
mod noted;
pub mod oidc;
pub mod options;
mod own_tokens;
mod pages;
mod redirect;
mod registration;
mod text;
mod token;
mod transaction;
mod way_back;

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use drawbridge_auth::audit::AuditTrail;
use drawbridge_auth::fetch::Fetch;
use drawbridge_auth::id_jag;
use drawbridge_auth::named_clients::NamedClients;
use drawbridge_auth::records::Records;
use drawbridge_auth::resource::Origin;
use drawbridge_auth::revoking::Revocations;
use drawbridge_auth::signing::Signer;
use drawbridge_auth::verifier::Verifier;
use drawbridge_core::Tasks;
use drawbridge_core::seal::KeyRing;
use drawbridge_core::state::{Claims, Limiter, WithFallback};
use drawbridge_credentials::connections::Connections;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};

use oidc::Provider;
use options::Options;

/// From which address a request has come; whoever accepts requests puts it into their extensions.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

/// Which endpoints there are now. The default one has no name.
pub trait Endpoints: Send + Sync {
    /// The names of the backends behind an endpoint; `None`: there is no such endpoint.
    fn backends(&self, endpoint: Option<&str>) -> Option<Vec<String>>;

    /// The names of all but the default one.
    fn names(&self) -> Vec<String>;
}

/// What the documents of the resources say.
#[derive(Clone)]
pub struct Documents {
    /// Under which clients reach the gateway.
    pub origin: Origin,
    /// Who issues tokens for it.
    pub issuer: String,
    /// What people call it.
    pub resource_name: String,
    /// Which resources there are.
    pub endpoints: Arc<dyn Endpoints>,
}

/// What the authorization server is made of.
pub struct Parts {
    /// Its issuer.
    pub origin: Origin,
    /// Times and policies.
    pub options: Options,
    /// Who logs users in; without one they sign in with tokens.
    pub provider: Option<Provider>,
    /// Whose assertions about their users are taken.
    pub id_jag: Vec<id_jag::Provider>,
    /// The clients that the configuration names.
    pub clients: Arc<NamedClients>,
    /// Fetches from URLs that others have named; connects to public addresses alone.
    pub guarded: Arc<dyn Fetch>,
    /// Users, clients, grants.
    pub records: Arc<dyn Records>,
    /// Signs access tokens.
    pub signer: Arc<Signer>,
    /// Ends them.
    pub revocations: Arc<Revocations>,
    /// Knows tokens.
    pub verifier: Arc<Verifier>,
    /// Seals what browsers carry.
    pub ring: Arc<KeyRing>,
    /// What may happen once.
    pub claims: Arc<dyn Claims>,
    /// How often things may happen.
    pub limiter: Arc<dyn Limiter>,
    /// Which resources there are.
    pub endpoints: Arc<dyn Endpoints>,
    /// What users have at other servers, if they can have something there.
    pub connections: Option<Arc<Connections>>,
    /// What is fetched for many is fetched by one of these.
    pub tasks: Tasks,
    /// Who has signed in, and agreed to what.
    pub trail: Arc<AuditTrail>,
}

pub(crate) struct Inner {
    origin: Origin,
    options: Options,
    provider: Option<Provider>,
    id_jag: Vec<id_jag::Provider>,
    clients: Arc<NamedClients>,
    documents: client_documents::ClientDocuments,
    records: Arc<dyn Records>,
    signer: Arc<Signer>,
    revocations: Arc<Revocations>,
    verifier: Arc<Verifier>,
    ring: Arc<KeyRing>,
    claims: Arc<dyn Claims>,
    limiter: WithFallback,
    endpoints: Arc<dyn Endpoints>,
    connections: Option<Arc<Connections>>,
    trail: Arc<AuditTrail>,
}

/// The documents of the resources alone: tokens are somebody else's.
pub fn documents(documents: Documents) -> Router {
    public(resource_routes(documents)).fallback(missing)
}

/// Nothing: where clients can't get tokens by themselves, they are told so.
pub fn nothing() -> Router {
    Router::new().fallback(missing)
}

/// The authorization server and the documents of the resources.
pub fn server(parts: Parts) -> Router {
    let about = Documents {
        origin: parts.origin.clone(),
        issuer: parts.origin.as_str().to_owned(),
        resource_name: parts.options.resource_name.clone(),
        endpoints: parts.endpoints.clone(),
    };
    let documents = parts.options.client_documents.clone();
    let inner = Arc::new(Inner {
        documents: client_documents::ClientDocuments::new(documents, parts.guarded, parts.tasks),
        origin: parts.origin,
        options: parts.options,
        provider: parts.provider,
        id_jag: parts.id_jag,
        clients: parts.clients,
        records: parts.records,
        signer: parts.signer,
        revocations: parts.revocations,
        verifier: parts.verifier,
        ring: parts.ring,
        claims: parts.claims,
        limiter: WithFallback::new(parts.limiter),
        endpoints: parts.endpoints,
        connections: parts.connections,
        trail: parts.trail,
    });
    let about_server = get(metadata::authorization_server);
    // Some clients insert the path of the endpoint, some append to it, some do neither.
    let for_programs = Router::new()
        .route("/.well-known/oauth-authorization-server", about_server.clone())
        .route("/.well-known/oauth-authorization-server/mcp", about_server.clone())
        .route("/.well-known/oauth-authorization-server/mcp/{name}", about_server.clone())
        .route("/.well-known/openid-configuration", about_server.clone())
        .route("/.well-known/openid-configuration/mcp", about_server.clone())
        .route("/.well-known/openid-configuration/mcp/{name}", about_server.clone())
        .route("/mcp/.well-known/oauth-authorization-server", about_server.clone())
        .route("/mcp/.well-known/openid-configuration", about_server)
        .route("/jwks.json", get(metadata::keys))
        .route("/oauth/client-metadata.json", get(metadata::own_document))
        .route("/register", post(registration::register))
        .route("/token", post(token::token))
        .route("/revoke", post(token::revoke))
        .route("/introspect", post(introspection::introspect))
        .with_state(inner.clone());
    let for_people = Router::new()
        .route("/authorize", get(authorize::authorize).post(authorize::authorize))
        .route("/login", post(login::sign_in))
        .route("/login/callback", get(login::callback))
        .route("/consent", get(way_back::come_back).post(consent::decide))
        .route("/connect/{backend}", get(connect::ask).post(connect::go))
        .route("/connect/callback/{backend}", get(connect::callback))
        .route("/connections", get(accounts::list))
        .route("/connections/switch", post(accounts::switch))
        .route("/connections/tokens", post(own_tokens::make))
        .route("/connections/tokens/{id}/revoke", post(own_tokens::revoke))
        .route("/connections/{backend}/disconnect", post(accounts::disconnect))
        .route("/oauth/style.css", get(style))
        .with_state(inner);
    public(for_programs.merge(resource_routes(about))).merge(for_people).fallback(missing)
}

fn resource_routes(documents: Documents) -> Router {
    Router::new()
        .route("/.well-known/oauth-protected-resource", get(metadata::default_resource))
        .route("/.well-known/oauth-protected-resource/mcp", get(metadata::default_resource))
        .route("/.well-known/oauth-protected-resource/mcp/{name}", get(metadata::named_resource))
        .with_state(documents)
}

/// Lets any page read the answers: nothing in them depends on who asks.
fn public(router: Router) -> Router {
    router.layer(middleware::from_fn(cors))
}

async fn cors(request: Request<Body>, next: Next) -> Response {
    let is_preflight = request.method() == Method::OPTIONS;
    let mut response =
        if is_preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers: &mut HeaderMap = response.headers_mut();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, "www-authenticate, retry-after"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_preflight {
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                "authorization, content-type, accept, mcp-protocol-version",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    response
}

async fn style() -> Response {
    let mut response = Response::new(Body::from(pages::STYLE));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn missing() -> Response {
    not_found()
}

/// There is no such thing, in the form that clients parse wherever they look.
fn not_found() -> Response {
    let body = axum::Json(serde_json::json!({ "error": "not_found" }));
    (StatusCode::NOT_FOUND, body).into_response()
}

fn address(request: &Request<Body>) -> Option<IpAddr> {
    request.extensions().get::<ClientAddress>().map(|address| address.0)
}
