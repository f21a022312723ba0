//! Tokens that say nothing themselves: the issuer is asked what they are (RFC 7662).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use http::{Request, StatusCode};
use moka::future::Cache;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::Instant;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::fetch::Fetch;
use crate::jwt::{EXPIRED, LEEWAY, Policy, groups_of};
use crate::scope::Scopes;
use crate::secret::Secret;
use crate::verifier::Refused;

/// The client of a token whose issuer names none. No client can have this id: ids are printable ASCII (RFC 6749 § A.1).
const NO_CLIENT: &str = "\u{2205}";
/// The largest answer, in bytes.
const MAX_BYTES: usize = 64 * 1024;
/// An answer is taken for so long.
pub(crate) const KEPT: Duration = Duration::from_secs(30);
/// Tokens that are remembered.
const MAX_KNOWN: u64 = 10_000;
/// An issuer that takes longer is away.
const TIME: Duration = Duration::from_secs(3);

/// How an issuer is asked.
pub struct Introspection {
    /// Its introspection endpoint.
    pub url: String,
    /// The gateway's id there.
    pub client_id: String,
    /// What the gateway proves that with.
    pub client_secret: Secret,
    fetch: Arc<dyn Fetch>,
    known: Cache<[u8; 32], Arc<Active>>,
}

impl std::fmt::Debug for Introspection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Introspection").field("url", &self.url).finish_non_exhaustive()
    }
}

/// What a token is that is good now.
#[derive(Debug, Clone)]
pub(crate) struct Active {
    pub(crate) subject: String,
    pub(crate) client: String,
    pub(crate) scopes: Scopes,
    pub(crate) groups: BTreeSet<String>,
    /// In seconds since 1970.
    pub(crate) expires_at: Option<i64>,
    /// When its issuer said so.
    pub(crate) asked: Instant,
}

#[derive(Deserialize)]
struct Answer {
    active: bool,
    iss: Option<String>,
    sub: Option<String>,
    client_id: Option<String>,
    token_type: Option<String>,
    exp: Option<f64>,
    iat: Option<f64>,
    nbf: Option<f64>,
    aud: Option<Value>,
    scope: Option<String>,
    cnf: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Introspection {
    /// Asks at `url` as the client with this id and secret.
    pub fn new(url: String, client_id: String, client_secret: Secret, fetch: Arc<dyn Fetch>) -> Self {
        let known = Cache::builder().max_capacity(MAX_KNOWN).time_to_live(KEPT).build();
        Self { url, client_id, client_secret, fetch, known }
    }

    /// What `token` is, which is remembered under `key`. Who asks for the same at once asks once.
    pub(crate) async fn ask(
        &self,
        token: &str,
        key: [u8; 32],
        policy: &Policy,
        resource: &str,
    ) -> Result<Arc<Active>, Refused> {
        let asked = async { self.send(token).await?.check(policy, resource).map(Arc::new) };
        let active = self.known.try_get_with(key, asked).await.map_err(|why| (*why).clone())?;
        if active.expires_at.is_some_and(|end| end <= Utc::now().timestamp()) {
            return Err(Refused::Unfit(EXPIRED));
        }
        Ok(active)
    }

    async fn send(&self, token: &str) -> Result<Answer, Refused> {
        let (place, _) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let unavailable = |why: &str| Refused::Unavailable(format!("{place}: {why}"));
        let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
        let secret = self.client_secret.read();
        let basic = STANDARD.encode(format!("{}:{}", encoded(&self.client_id), encoded(&secret)));
        let form = Serializer::new(String::new())
            .append_pair("token", token)
            .append_pair("token_type_hint", "access_token")
            .finish();
        let request = Request::post(&self.url)
            .header("authorization", format!("Basic {basic}"))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(form.into_bytes())
            .map_err(|_| unavailable("not a URL"))?;
        let answered = tokio::time::timeout(TIME, self.fetch.fetch(request, MAX_BYTES)).await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => return Err(unavailable(&why.0)),
            Err(_) => return Err(unavailable("no answer within 3 s")),
        };
        if response.status() != StatusCode::OK {
            return Err(unavailable(&format!("answered with {}", response.status())));
        }
        // What is no answer of an introspection endpoint says nothing good of a token.
        serde_json::from_slice(response.body()).map_err(|_| Refused::Invalid("its issuer's answer is none"))
    }
}

impl Answer {
    fn check(self, policy: &Policy, resource: &str) -> Result<Active, Refused> {
        if !self.active {
            return Err(Refused::Invalid("its issuer says that it is not active"));
        }
        // From here on its issuer knows it.
        let unfit = |why| Err(Refused::Unfit(why));
        if self.iss.is_some_and(|issuer| issuer != policy.issuer) {
            return unfit("its issuer is another");
        }
        let accepts = |aud: &Value| {
            let aud = aud.as_str().unwrap_or_default();
            aud == resource || policy.audiences.iter().any(|accepted| accepted == aud)
        };
        let audiences: &[Value] = match &self.aud {
            Some(Value::Array(all)) => all,
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        if !audiences.iter().any(accepts) {
            return unfit("its audience is another");
        }
        let is_for_client = |aud: &Value| policy.clients.iter().any(|client| aud == client.as_str());
        if audiences.iter().any(is_for_client) {
            return unfit("it is an ID token");
        }
        if self.token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) || self.cnf.is_some() {
            return unfit("it is no bearer token");
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let (now, leeway) = (Utc::now().timestamp() as f64, LEEWAY as f64);
        if self.exp.is_some_and(|end| end <= now) {
            return unfit(EXPIRED);
        }
        if self.nbf.is_some_and(|begin| begin > now) {
            return unfit("it is not good yet");
        }
        if self.iat.is_some_and(|iat| iat > now + leeway) {
            return unfit("it was issued in the future");
        }
        if let Some(most) = policy.max_lifetime {
            let Some(end) = self.exp else {
                return unfit("its issuer does not say when it ends (exp), so max_lifetime can't be checked");
            };
            if end - self.iat.unwrap_or(now) > most {
                return unfit("it is good for longer than is accepted");
            }
        }
        let said = |name: Option<String>| name.filter(|name| !name.is_empty());
        let is_name = |name: &String| !name.chars().any(char::is_control) && name != NO_CLIENT;
        let (subject, client) = (said(self.sub), said(self.client_id));
        if !subject.iter().chain(&client).all(is_name) {
            return unfit("its subject or its client is no name");
        }
        let (subject, client) = match (subject, client) {
            (None, None) => return unfit("it names nobody"),
            // A client that acts for itself. A subject without a client is never taken for one.
            (None, Some(client)) => (client.clone(), client),
            (Some(subject), client) => (subject, client.unwrap_or_else(|| NO_CLIENT.to_owned())),
        };
        #[expect(clippy::cast_possible_truncation, reason = "seconds")]
        let expires_at = self.exp.map(|end| end as i64);
        let scopes = Scopes::parse(&self.scope.unwrap_or_default());
        let groups = groups_of(self.rest.get(&policy.groups_claim));
        Ok(Active { subject, client, scopes, groups, expires_at, asked: Instant::now() })
    }
}
