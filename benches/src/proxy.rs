//! The measure: a pass-through proxy on hyper that does what any HTTP proxy must and nothing else.
//!
//! It takes a request, drops the hop-by-hop headers, sends it to the backend over a pooled connection, and streams
//! both bodies untouched. It knows nothing of MCP.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::net::{self, Asked};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Serves `listen` by passing everything on to `backend`.
pub(crate) fn serve(listen: SocketAddr, backend: SocketAddr, cores: usize) -> anyhow::Result<()> {
    let authority: Authority = backend.to_string().parse()?;
    let host = HeaderValue::from_str(authority.as_str())?;
    net::serve(listen, cores, move || {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build::<_, Incoming>(connector);
        let (authority, host) = (authority.clone(), host.clone());
        service_fn(move |request| pass(client.clone(), authority.clone(), host.clone(), request))
    })
}

async fn pass(
    client: Client<HttpConnector, Incoming>,
    authority: Authority,
    host: HeaderValue,
    mut request: Asked,
) -> Result<Response<Body>, Infallible> {
    strip(request.headers_mut());
    request.headers_mut().insert(HOST, host);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    let Ok(uri) = Uri::from_parts(parts) else {
        return Ok(failed(StatusCode::BAD_REQUEST));
    };
    *request.uri_mut() = uri;
    match client.request(request).await {
        Ok(mut response) => {
            strip(response.headers_mut());
            Ok(response.map(BodyExt::boxed_unsync))
        }
        Err(_unreachable) => Ok(failed(StatusCode::BAD_GATEWAY)),
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn failed(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}
