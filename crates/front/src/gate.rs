//! Who may come in: from the `Authorization` header to the [`Caller`] that everything else is bound to.
//!
//! The header ends here: nothing behind this module sees it, so that no backend can.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use chrono::Utc;
use drawbridge_auth::challenge::Denial;
use drawbridge_auth::identity::{Credential, Identity};
use drawbridge_auth::policy::{Facts, Rules};
use drawbridge_auth::resource::Origin;
use drawbridge_auth::revoking::Watch;
use drawbridge_auth::scope;
use drawbridge_auth::verifier::{Refused, Verifier};
use drawbridge_core::fault::whole_seconds;
use drawbridge_core::rights::Rights;
use drawbridge_core::{Endpoint, Principal, request};
use drawbridge_wire::message::{Field, Incoming};
use drawbridge_wire::{Kind, Message, json, method};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::reply;

/// From which address a request has come, as its connection says. Whoever accepts connections puts it into the
/// extensions of requests.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub IpAddr);

/// Decides who may come in.
#[derive(Debug)]
pub struct Gate {
    /// Finds out whom a credential is from.
    pub verifier: Arc<Verifier>,
    /// Where clients find out how to get a token, if they can.
    pub discovery: Option<Origin>,
}

/// Whom a request is from.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    /// Of a caller who was asked.
    identity: Option<Arc<Identity>>,
}

impl Caller {
    /// As the log names it.
    pub(crate) fn shown(&self) -> Option<Arc<request::Caller>> {
        Some(self.identity.as_ref()?.caller.clone())
    }

    /// Whether it was asked who it is.
    pub(crate) fn is_known(&self) -> bool {
        self.identity.is_some()
    }

    /// What requests with its token are counted under. A token that takes the place of another is counted with it.
    pub(crate) fn token_key(&self) -> Option<String> {
        let identity = self.identity.as_ref()?;
        Some(match &identity.credential {
            Credential::Token(_) => format!("token:{}", identity.client),
            Credential::Grant { id, .. } => format!("token:grant:{id}"),
            Credential::External => {
                format!("token:external:{} {} {}", identity.issuer, identity.subject, identity.client)
            }
        })
    }

    /// What it may at the endpoint of this name, by these rules. `discovery` is where clients find out how to get more.
    pub(crate) fn rights(
        &self,
        rules: &Arc<Rules>,
        (endpoint, display_name): (Option<&str>, &str),
        address: Option<IpAddr>,
        headers: &HeaderMap,
        discovery: Option<&Origin>,
    ) -> Option<Arc<dyn Rights>> {
        let identity = self.identity.as_ref()?;
        let challenge = wants_challenges_in_results(&identity.client, headers)
            .then(|| Denial::Scope(scope::WRITE).challenge(discovery.map(|origin| (origin, endpoint))));
        Some(Arc::new(rules.allow(Facts::of(identity, display_name, address, challenge))))
    }

    /// The scope that it lacks for one of these messages, as far as that is known before they are sent on.
    pub(crate) fn lacks(
        rights: &Arc<dyn Rights>,
        endpoint: &Endpoint,
        incoming: &Incoming,
    ) -> Option<&'static str> {
        let rights = endpoint.here(Some(rights.clone()))?;
        let lacks = |message: &Message| {
            let is_call = message.kind() == Kind::Request && message.method() == method::TOOLS_CALL;
            endpoint.lacks(&*rights, &message.text(Field::Name).filter(|_| is_call)?)
        };
        match incoming {
            Incoming::One(message) => lacks(message),
            Incoming::Batch(messages) => messages.iter().flatten().find_map(lacks),
        }
    }

    /// The caller of a gateway that asks nobody who they are.
    pub(crate) fn anonymous() -> Self {
        Self { principal: Principal::anonymous(), identity: None }
    }
}

/// A request that does not come in.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// It may not.
    Out(Denial),
    /// It can't be told now.
    Unknown,
    /// Its caller, or others with no credential from there, has come too often; when it may again.
    TooOften(Duration),
}

impl Gate {
    /// Whom a request to the endpoint `name` is from.
    pub(crate) async fn admit(
        &self,
        headers: &HeaderMap,
        name: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<Caller, Kept> {
        let credential = bearer(headers).map_err(Kept::Out)?;
        match self.verifier.verify(credential, name, address).await {
            // Whoever may not even read has nothing to open a stream for.
            Ok(identity) if !identity.scopes.allow(scope::READ) => Err(Kept::Out(Denial::Scope(scope::READ))),
            Ok(identity) => Ok(Caller { principal: identity.principal.clone(), identity: Some(identity) }),
            Err(Refused::Invalid(why) | Refused::Unfit(why)) => {
                tracing::info!(
                    reason = why,
                    client.address = address.map(tracing::field::display),
                    "credential refused"
                );
                Err(Kept::Out(Denial::Invalid))
            }
            // That there are many was logged.
            Err(Refused::TooOften(wait)) => Err(Kept::TooOften(wait)),
            Err(Refused::Unavailable(why)) => {
                tracing::warn!("a credential could not be checked: {why}");
                Err(Kept::Unknown)
            }
        }
    }

    /// Lets a stream last no longer than its caller's credential.
    pub(crate) fn guard(&self, caller: &Caller, response: Response<Body>) -> Response<Body> {
        let Some(identity) = &caller.identity else { return response };
        let is_stream = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|media| media.as_bytes().starts_with(b"text/event-stream"));
        if !is_stream {
            return response;
        }
        let left = identity.expires_at.map(|end| (end - Utc::now()).to_std().unwrap_or_default());
        let watch = self.verifier.revocations().watch(&identity.keys);
        let ended = watch.ended().clone().cancelled_owned();
        response.map(|body| {
            Body::new(Guarded { body, end: Box::pin(End { ended, expiry: left.map(expiry) }), _watch: watch })
        })
    }
}

/// The answer to a request that does not come in. Nothing in it says what was wrong with a credential; `discovery` is
/// where clients find out how to get one.
pub(crate) fn turn_away(kept: &Kept, discovery: Option<&Origin>, name: Option<&str>) -> Response<Body> {
    let id = request::current().map(|id| String::from_utf8_lossy(&id.digits()).into_owned());
    let id = json::encode_string(&id.unwrap_or_default());
    let (status, error, description) = match kept {
        Kept::Out(denial) => (denial.status(), denial.error(), denial.description()),
        Kept::Unknown => {
            (503, "temporarily_unavailable", "The access token can not be checked now; try again")
        }
        Kept::TooOften(_) => (429, "too_many_requests", "Too many requests; come back later"),
    };
    let text = format!(r#"{{"error":"{error}","error_description":"{description}","request_id":{id}}}"#);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::UNAUTHORIZED);
    let mut response = reply::json(status, Bytes::from(text).into());
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    match kept {
        Kept::Out(denial) => {
            let challenge = denial.challenge(discovery.map(|origin| (origin, name)));
            if let Ok(challenge) = HeaderValue::from_str(&challenge) {
                headers.insert(header::WWW_AUTHENTICATE, challenge);
            }
        }
        Kept::Unknown => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        Kept::TooOften(wait) => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(*wait).max(1)));
        }
    }
    response
}

fn expiry(left: Duration) -> Sleep {
    // The timer of the runtime does not go further than that.
    tokio::time::sleep(left.min(Duration::from_secs(365 * 24 * 3600)))
}

/// The one bearer token of a request.
fn bearer(headers: &HeaderMap) -> Result<&str, Denial> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Err(Denial::None),
        (Some(_), Some(_)) => return Err(Denial::Several),
        (Some(value), None) => value.to_str().map_err(|_| Denial::Invalid)?,
    };
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Denial::None);
    }
    Ok(token.trim_matches(' '))
}

/// Whether a host looks for challenges in results, and takes one in HTTP for a login that failed: ChatGPT does.
fn wants_challenges_in_results(client: &str, headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    agent.starts_with("openai-mcp")
        || url::Url::parse(client)
            .is_ok_and(|url| url.scheme() == "https" && url.host_str() == Some("chatgpt.com"))
}

pin_project! {
    /// When a credential is no longer good.
    struct End {
        #[pin]
        ended: WaitForCancellationFutureOwned,
        #[pin]
        expiry: Option<Sleep>,
    }
}

impl Future for End {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let has_expired = this.expiry.as_pin_mut().is_some_and(|expiry| expiry.poll(cx).is_ready());
        if has_expired || this.ended.poll(cx).is_ready() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// The body of a stream that ends with the credential of its caller.
struct Guarded {
    body: Body,
    end: Pin<Box<End>>,
    _watch: Watch,
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.body.is_end_stream() {
            return Poll::Ready(None);
        }
        if self.end.as_mut().poll(cx).is_ready() {
            self.body = Body::empty();
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The address of the client: that of the connection, or the nearest that trusted proxies say it has come from.
pub(crate) fn client_address(
    peer: Option<PeerAddress>,
    headers: &HeaderMap,
    trusted: &[ipnet::IpNet],
) -> Option<IpAddr> {
    let mut address = peer?.0.to_canonical();
    let is_trusted = |address: &IpAddr| trusted.iter().any(|network| network.contains(address));
    let said: Vec<&str> = headers
        .get_all("x-forwarded-for")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .collect();
    for said in said.into_iter().rev() {
        if !is_trusted(&address) {
            break;
        }
        match said.trim().parse::<IpAddr>() {
            Ok(said) => address = said.to_canonical(),
            Err(_) => break,
        }
    }
    Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bearer_token_is_a_credential_and_all_else_is_none() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(of(&[]), Err(Denial::None));
        assert_eq!(of(&["Basic eDp5"]), Err(Denial::None));
        assert_eq!(of(&["bEaReR x"]), Ok("x".to_owned()));
        assert_eq!(of(&["Bearer"]), Ok(String::new()));
        assert_eq!(of(&["Bearer x", "Bearer y"]), Err(Denial::Several));
        assert_eq!(of(&["Bearerx"]), Err(Denial::None));
    }

    #[test]
    fn only_trusted_proxies_may_say_where_a_request_has_come_from() {
        let trusted: Vec<ipnet::IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
        let of = |peer: &str, forwarded: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            client_address(Some(PeerAddress(peer.parse().unwrap())), &headers, &trusted).unwrap().to_string()
        };
        assert_eq!(of("192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(of("10.0.0.1", &["198.51.100.7"]), "198.51.100.7");
        assert_eq!(of("10.0.0.1", &["6.6.6.6, 198.51.100.7", "10.0.0.2"]), "198.51.100.7");
        assert_eq!(of("10.0.0.1", &["6.6.6.6, nonsense"]), "10.0.0.1");
        assert_eq!(of("::ffff:10.0.0.1", &["::ffff:198.51.100.7"]), "198.51.100.7");
        assert_eq!(client_address(None, &HeaderMap::new(), &trusted), None);
    }
}
