//! Documents and tokens of other servers, over the one HTTP client: no redirect is followed, an exchange has a deadline,
//! and no more is read than asked for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_auth::fetch::{Fetch, NotFetched};
use drawbridge_upstream::outbound::OutboundError;
use drawbridge_upstream::{GuardOptions, Guarded, Outbound, OutboundOptions};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use parking_lot::Mutex;

/// What one exchange may take.
const TIME: Duration = Duration::from_secs(10);
/// Servers that connections are kept to.
const MAX_SERVERS: usize = 64;

/// Fetches from servers that the configuration names, or that these name.
pub(crate) struct Fetcher {
    options: OutboundOptions,
    servers: Mutex<HashMap<String, Arc<Outbound>>>,
}

impl Fetcher {
    /// A fetcher that connects as `options` say.
    pub(crate) fn new(options: OutboundOptions) -> Self {
        Self { options, servers: Mutex::default() }
    }

    fn server(&self, target: &Uri) -> Result<Arc<Outbound>, NotFetched> {
        let name = format!("{}://{}", target.scheme_str().unwrap_or_default(), place_of(target));
        let mut servers = self.servers.lock();
        if let Some(server) = servers.get(&name) {
            return Ok(server.clone());
        }
        let made = Outbound::new(target, &self.options).map_err(|error| NotFetched(error.to_string()))?;
        let made = Arc::new(made);
        if servers.len() >= MAX_SERVERS {
            servers.clear();
        }
        servers.insert(name, made.clone());
        Ok(made)
    }
}

/// Host and port. What else an authority may have is for the server alone.
fn place_of(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[async_trait]
impl Fetch for Fetcher {
    async fn fetch(&self, request: Request<Vec<u8>>, most: usize) -> Result<Response<Vec<u8>>, NotFetched> {
        let url = request.uri().clone();
        let name = place_of(&url);
        let server = self.server(&url)?;
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let exchange = async {
            let response = server
                .send(request)
                .await
                .map_err(|error| NotFetched(format!("{name} can't be reached: {}", causes(&error))))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, most).collect().await;
            let body = body.map_err(|error| NotFetched(format!("the answer of {name}: {error}")))?;
            Ok(Response::from_parts(head, body.to_bytes().to_vec()))
        };
        match tokio::time::timeout(TIME, exchange).await {
            Ok(answered) => answered,
            Err(_) => Err(NotFetched(format!("{name} did not answer within {} s", TIME.as_secs()))),
        }
    }
}

/// Fetches from servers that others have named, which may be public ones alone.
pub(crate) struct GuardedFetcher(Guarded);

impl GuardedFetcher {
    /// A fetcher that makes the exceptions of the configuration.
    pub(crate) fn new(options: &GuardOptions) -> Result<Self, OutboundError> {
        Guarded::new(options).map(Self)
    }
}

#[async_trait]
impl Fetch for GuardedFetcher {
    async fn fetch(&self, request: Request<Vec<u8>>, most: usize) -> Result<Response<Vec<u8>>, NotFetched> {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let answered = self.0.fetch(request, most).await;
        answered.map(|response| response.map(|body| body.to_vec())).map_err(|why| NotFetched(why.to_string()))
    }
}

/// An error and what it comes from, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
