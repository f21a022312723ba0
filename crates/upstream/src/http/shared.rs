//! What all conversations with one HTTP backend share: where it is and how to send to it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::call::Call;
use drawbridge_core::credentials::{Credential, Credentials, Refusal};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fault::Deadline;
use drawbridge_core::{Fault, Principal, Tasks};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::session::HttpSession;
use crate::options::Options;
use crate::outbound::{Outbound, cause};

/// The URL of a backend, checked.
#[derive(Debug, Clone)]
pub struct Target {
    pub(crate) url: url::Url,
    pub(crate) uri: Uri,
    authorization: Option<HeaderValue>,
}

/// Why a text is not the URL of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(String);

impl Target {
    /// Checks the URL: `http` or `https`, with a host. A user and password in it become a header.
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let mut url = url::Url::parse(text).map_err(|e| BadUrl(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(BadUrl(
                "a backend's url starts with http:// or https:// and names a host".to_owned(),
            ));
        }
        let authorization = basic(&url);
        // Both can only fail for URLs without a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        let uri = url.as_str().parse().map_err(|_| BadUrl("not a URL that HTTP can carry".to_owned()))?;
        Ok(Self { url, uri, authorization })
    }

    /// The URL without credentials.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

fn basic(url: &url::Url) -> Option<HeaderValue> {
    use base64::Engine as _;
    let password = url.password()?;
    let decoded = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy();
    let pair = format!("{}:{}", decoded(url.username()), decoded(password));
    let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
    let mut value = HeaderValue::from_str(&value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// One backend, as seen by its conversations.
pub(crate) struct Shared {
    pub(crate) target: Target,
    /// Sent with each request, as configured.
    pub(crate) headers: HeaderMap,
    /// Where there are credentials that are not always the same.
    pub(crate) credentials: Option<Arc<dyn Credentials>>,
    pub(crate) outbound: Outbound,
    pub(crate) options: Options,
    pub(crate) tasks: Tasks,
    /// Sessions that other instances have too.
    pub(super) sessions: Mutex<HashMap<SessionKey, Weak<HttpSession>>>,
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The headers that say which trace a call is part of, if it is traced.
pub(crate) fn trace_headers(call: &Call) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
    let context = call.trace.as_ref().map(|trace| trace.context());
    let parent = context.map(|context| (TRACEPARENT, context.to_string()));
    let state = context.and_then(|context| Some((TRACESTATE, context.state()?.to_owned())));
    let headers = parent.into_iter().chain(state);
    headers.filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)))
}

/// Requests that only help (cancel, end a session) wait no longer than this.
pub(crate) const COURTESY: Duration = Duration::from_secs(5);

impl Shared {
    fn request(
        &self,
        method: Method,
        uri: &Uri,
        extra: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri.clone();
        let headers = request.headers_mut();
        if let Some(value) = &self.target.authorization {
            headers.insert(header::AUTHORIZATION, value.clone());
        }
        for (name, value) in extra {
            headers.append(name.clone(), value.clone());
        }
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        request
    }

    /// Sends a message to the backend's own URL, on behalf of `whom`.
    pub(crate) async fn post(
        &self,
        whom: &Principal,
        extra: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Response<Incoming>, Fault> {
        self.post_to(whom, &self.target.uri, extra, body).await
    }

    /// Sends a message; resolves with the head of the answer.
    pub(crate) async fn post_to(
        &self,
        whom: &Principal,
        uri: &Uri,
        extra: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Response<Incoming>, Fault> {
        let mut request = self.request(Method::POST, uri, extra, body);
        request.headers_mut().insert(header::ACCEPT, BOTH);
        request.headers_mut().insert(header::CONTENT_TYPE, JSON);
        self.send_for(whom, request, self.options.first_byte_timeout).await
    }

    /// Opens a stream of events.
    pub(crate) async fn get(
        &self,
        whom: &Principal,
        extra: &[(HeaderName, HeaderValue)],
        limit: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let mut request = self.request(Method::GET, &self.target.uri, extra, Bytes::new());
        request.headers_mut().insert(header::ACCEPT, STREAM);
        self.send_for(whom, request, limit).await
    }

    /// Ends a session.
    pub(crate) async fn delete(
        &self,
        whom: &Principal,
        extra: &[(HeaderName, HeaderValue)],
    ) -> Result<Response<Incoming>, Fault> {
        let request = self.request(Method::DELETE, &self.target.uri, extra, Bytes::new());
        self.send_for(whom, request, COURTESY).await
    }

    /// Sends a request with the credential that there is for `whom`; with another one once more if it is refused, which
    /// means that nothing was done.
    async fn send_for(
        &self,
        whom: &Principal,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        match &self.credentials {
            None => self.send(request, limit).await,
            Some(credentials) => Box::pin(self.send_with(&**credentials, whom, request, limit)).await,
        }
    }

    async fn send_with(
        &self,
        credentials: &dyn Credentials,
        whom: &Principal,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let first = credentials.find(whom).await?;
        let response = self.send(proven(request.clone(), &first), limit).await?;
        let Some(refusal) = refusal(&response) else { return Ok(response) };
        let Some(next) = credentials.refused(whom, &first, &refusal).await? else { return Ok(response) };
        let response = self.send(proven(request, &next), limit).await?;
        if let Some(refusal) = self::refusal(&response) {
            credentials.refused(whom, &next, &refusal).await?;
        }
        Ok(response)
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let started = Instant::now();
        let sent = tokio::time::timeout(limit, self.outbound.send(request)).await;
        match sent {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(e)) if let Some(why) = self.outbound.refused_certificate(&e) => {
                Err(self.options.unreachable(why))
            }
            Ok(Err(e)) if e.is_connect() => {
                let late = started.elapsed() >= self.options.connect_timeout;
                Err(if late {
                    self.options.late(Deadline::Connect)
                } else {
                    self.options.unreachable(cause(&e))
                })
            }
            Ok(Err(e)) => Err(self.options.outcome_unknown(cause(&e))),
            Err(_) => Err(self.options.late(Deadline::FirstByte)),
        }
    }
}

/// A request with a credential.
fn proven(mut request: Request<Full<Bytes>>, credential: &Credential) -> Request<Full<Bytes>> {
    for (name, value) in credential.headers() {
        // One that is none is not sent, and the backend says what it misses.
        if let (Ok(name), Ok(mut value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            value.set_sensitive(true);
            request.headers_mut().insert(name, value);
        }
    }
    request
}

/// How a response says that the credential is not good, if it does.
fn refusal(response: &Response<Incoming>) -> Option<Refusal> {
    let status = response.status();
    let challenge = response.headers().get(header::WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        .then(|| Refusal { status: status.as_u16(), challenge: challenge.map(str::to_owned) })
}
