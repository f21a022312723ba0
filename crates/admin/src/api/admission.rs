//! Who may use the admin API: whoever has an admin token, or the configured first token for as long as there is no other.
//!
//! Tokens are looked up for each request, so that a revoked one is refused at once and everywhere.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use chrono::Utc;
use drawbridge_auth::records::SecretHash;
use drawbridge_auth::scope::{ADMIN_ALL, ADMIN_READ, ADMIN_TOKENS, Scopes};
use drawbridge_auth::token::{self, TokenKind};
use drawbridge_auth::verifier::{Refused, Verifier};
use drawbridge_core::state::{Limiter, Quota, Verdict};
use subtle::ConstantTimeEq as _;

use super::problem::Problem;
use super::{Api, BOOTSTRAP};

/// From one address so many credentials may be wrong in a minute.
const FAILURES: u32 = 20;

/// How callers are told apart.
pub enum Admission {
    /// By what they present.
    Credentials {
        /// Knows admin tokens.
        verifier: Arc<Verifier>,
        /// The hash of the configured first token.
        bootstrap: Option<SecretHash>,
    },
    /// Not at all: whoever works on the database itself.
    Anybody {
        /// What the audit trail calls them.
        actor: &'static str,
    },
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// As the audit trail names them.
    pub(crate) actor: String,
    pub(crate) scopes: Scopes,
    pub(crate) address: Option<IpAddr>,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(Problem::unauthenticated)
    }
}

/// Lets requests through whose caller may make them: reading is one right, changing another.
pub(crate) async fn admit(
    State(api): State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let caller = caller(&api, request.headers(), address).await?;
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    let needed = if is_reading { ADMIN_READ } else { ADMIN_TOKENS };
    if !caller.scopes.allow(needed) {
        return Err(Problem::forbidden(format!("this takes the scope {needed}")));
    }
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

async fn caller(api: &Api, headers: &HeaderMap, address: Option<IpAddr>) -> Result<Caller, Problem> {
    let (verifier, bootstrap) = match &api.admission {
        Admission::Anybody { actor } => {
            return Ok(Caller { actor: (*actor).to_owned(), scopes: Scopes::new([ADMIN_ALL]), address });
        }
        Admission::Credentials { verifier, bootstrap } => (verifier, bootstrap),
    };
    if let Some(why) = (api.trouble)() {
        return Err(Problem::unavailable(format!("the database can't be used yet: {why}")));
    }
    let refused = match bearer(headers) {
        None => "there is none",
        Some(secret) if is_bootstrap(secret, bootstrap.as_ref()) => {
            if !api.records.has_token(TokenKind::Admin, BOOTSTRAP, Utc::now()).await? {
                let actor = BOOTSTRAP.to_owned();
                return Ok(Caller { actor, scopes: Scopes::new([ADMIN_ALL]), address });
            }
            "the first token is no longer good: there are admin tokens"
        }
        Some(secret) => match verifier.admin_token(secret).await {
            Ok(token) if token.may_come_from(address) => {
                let actor = format!("token:{}", token.id);
                return Ok(Caller { actor, scopes: Scopes::new(token.scopes), address });
            }
            Ok(_) => "it is not accepted from this address",
            Err(Refused::Invalid(why) | Refused::Unfit(why)) => why,
            Err(Refused::TooOften(_)) => "others from its address were none",
            Err(Refused::Unavailable(why)) => {
                tracing::warn!("admin tokens can't be checked: {why}");
                return Err(Problem::unavailable("the database is away; try again in a moment"));
            }
        },
    };
    tracing::info!(client.address = ?address, "a credential for the admin API was refused: {refused}");
    let quota = Quota { interval: Duration::from_secs(60) / FAILURES, burst: FAILURES };
    limit(&*api.limiter, "failure", address, quota).await?;
    Err(Problem::unauthenticated())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && values.next().is_none()).then_some(secret.trim())
}

fn is_bootstrap(secret: &str, bootstrap: Option<&SecretHash>) -> bool {
    bootstrap.is_some_and(|hash| bool::from(token::hash(secret).0.ct_eq(&hash.0)))
}

/// Counts one of `what` from `address`. Without shared state nothing is limited.
pub(crate) async fn limit(
    limiter: &dyn Limiter,
    what: &str,
    address: Option<IpAddr>,
    quota: Quota,
) -> Result<(), Problem> {
    let from = address.map_or_else(|| "unknown".to_owned(), |address| address.to_canonical().to_string());
    match limiter.take(&format!("admin:{what}:{from}"), quota).await {
        Ok(Verdict::Refused { retry_after }) => {
            Err(Problem::slow_down("too many of these from this address", retry_after.as_secs() + 1))
        }
        Ok(Verdict::Allowed { .. }) | Err(_) => Ok(()),
    }
}
