//! The one HTTP client: pooled connections per runtime, TLS with private authorities, proxies.
//!
//! It follows no redirect and decodes no content, so a body is what the backend sent.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::worker;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{AlertDescription, CertificateError, RootCertStore};
use tokio::net::TcpStream;

use crate::client_certificate::ClientCertificate;

/// The proxy for `https` backends.
#[derive(Clone)]
pub struct Proxy {
    /// Its URL, perhaps with a user and password.
    pub url: String,
    /// Hosts that are reached without it, in the syntax of `NO_PROXY`.
    pub no_proxy: String,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("no_proxy", &self.no_proxy).finish_non_exhaustive()
    }
}

/// How to reach the outside.
#[derive(Debug, Clone, Default)]
pub struct OutboundOptions {
    /// PEM files with certificates of private authorities, believed beside those of the system.
    pub ca_bundles: Vec<PathBuf>,
    /// The proxy for `https` backends, if there is one.
    pub proxy: Option<Proxy>,
    /// Until a connection stands.
    pub connect_timeout: Duration,
    /// How many runtimes there are; each has a pool of its own.
    pub workers: usize,
    /// What is shown in TLS.
    pub client_certificate: Option<Arc<ClientCertificate>>,
}

/// Why a client can't be made.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// A certificate file is unreadable or holds none.
    #[error("{path}: {reason}")]
    Certificates {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS could not be set up.
    #[error("TLS could not be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The proxy's address is not a URL.
    #[error("outbound.proxy.url is not a URL: {0}")]
    Proxy(String),
}

/// Opens TCP connections, through a proxy's tunnel if there is one.
#[derive(Debug, Clone)]
enum Route {
    Direct(HttpConnector),
    Proxied(Tunnel<HttpConnector>),
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Connecting =
    std::pin::Pin<Box<dyn Future<Output = Result<TokioIo<TcpStream>, BoxError>> + Send + 'static>>;

impl tower_service::Service<Uri> for Route {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Connecting;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(c) => c.poll_ready(cx).map_err(Into::into),
            Self::Proxied(c) => c.poll_ready(cx).map_err(Into::into),
        }
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        match self {
            Self::Direct(c) => {
                let connecting = c.call(uri);
                Box::pin(async move { connecting.await.map_err(Into::into) })
            }
            Self::Proxied(c) => {
                let connecting = c.call(uri);
                Box::pin(async move { connecting.await.map_err(Into::into) })
            }
        }
    }
}

type Secure = HttpsConnector<Route>;

#[derive(Debug)]
enum Pools {
    Plain(Vec<Client<HttpConnector, Full<Bytes>>>),
    Tls(Vec<Client<Secure, Full<Bytes>>>),
}

/// A client for one backend.
#[derive(Debug)]
pub struct Outbound {
    pools: Pools,
    shows_certificate: bool,
}

/// Idle connections are closed after this long, below what balancers and servers usually allow.
const POOL_IDLE: Duration = Duration::from_secs(50);

impl Outbound {
    /// A client for `target`.
    pub fn new(target: &Uri, options: &OutboundOptions) -> Result<Self, OutboundError> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(options.connect_timeout));
        tcp.set_keepalive(Some(Duration::from_secs(60)));
        tcp.enforce_http(false);
        let workers = options.workers.max(1);
        if target.scheme_str() != Some("https") {
            let pools = (0..workers).map(|_| builder().build(tcp.clone())).collect();
            return Ok(Self { pools: Pools::Plain(pools), shows_certificate: false });
        }
        let route = match proxy_for(target, options.proxy.as_ref())? {
            Some((proxy, auth)) => {
                let tunnel = Tunnel::new(proxy, tcp);
                Route::Proxied(match auth {
                    Some(auth) => tunnel.with_auth(auth),
                    None => tunnel,
                })
            }
            None => Route::Direct(tcp),
        };
        let tls = tls_config(&options.ca_bundles, options.client_certificate.as_ref())?;
        let secure = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_all_versions()
            .wrap_connector(route);
        let pools = (0..workers).map(|_| builder().build(secure.clone())).collect();
        let shows_certificate = options.client_certificate.is_some();
        Ok(Self { pools: Pools::Tls(pools), shows_certificate })
    }

    /// Why a server takes no request because of what it was shown in TLS, and what can be done; `None` if it is not that.
    pub fn refused_certificate(&self, error: &Error) -> Option<String> {
        let alert = refused_certificate(error)?;
        // Whoever has shown one that is no good hears something else.
        if self.shows_certificate && alert == AlertDescription::HandshakeFailure {
            return None;
        }
        Some(match self.shows_certificate {
            true => format!(
                "it refuses the gateway's client certificate ({alert:?}): look whether its authority, its end and its name are \
                 what the backend wants, and put another into the client_certificate of the backend"
            ),
            false if alert == AlertDescription::HandshakeFailure => format!(
                "it ends the handshake ({alert:?}): it may want a client certificate, which is named in the client_certificate of \
                 the backend, or speak no TLS that the gateway speaks"
            ),
            false => format!(
                "it wants a client certificate ({alert:?}): name one in the client_certificate of the backend"
            ),
        })
    }

    /// Sends a request; resolves with the head of the response.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        match &self.pools {
            Pools::Plain(pools) => pools[worker::current() % pools.len()].request(request).await,
            Pools::Tls(pools) => pools[worker::current() % pools.len()].request(request).await,
        }
    }
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(POOL_IDLE).pool_max_idle_per_host(256);
    builder
}

/// The proxy for `target` and the value of its `Proxy-Authorization`, if one is to be used.
fn proxy_for(
    target: &Uri,
    proxy: Option<&Proxy>,
) -> Result<Option<(Uri, Option<http::HeaderValue>)>, OutboundError> {
    let Some(proxy) = proxy else { return Ok(None) };
    proxy.url.parse::<Uri>().map_err(|e| OutboundError::Proxy(e.to_string()))?;
    // The matcher knows it for names alone, and not for addresses.
    if proxy.no_proxy.split(',').any(|entry| entry.trim() == "*") {
        return Ok(None);
    }
    let matcher = Matcher::builder().https(proxy.url.clone()).no(proxy.no_proxy.clone()).build();
    Ok(matcher.intercept(target).map(|hit| (hit.uri().clone(), hit.basic_auth().cloned())))
}

pub(crate) fn tls_config(
    bundles: &[PathBuf],
    own: Option<&Arc<ClientCertificate>>,
) -> Result<rustls::ClientConfig, OutboundError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!("a system certificate could not be read: {error}");
    }
    roots.add_parsable_certificates(system.certs);
    for path in bundles {
        add_bundle(&mut roots, path)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let trusting = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let Some(own) = own.cloned() else { return Ok(trusting.with_no_client_auth()) };
    let mut config = trusting.with_client_cert_resolver(own);
    // A session that is resumed is one of the certificate before.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn add_bundle(roots: &mut RootCertStore, path: &Path) -> Result<(), OutboundError> {
    let bad = |reason: String| OutboundError::Certificates { path: path.display().to_string(), reason };
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))?.collect();
    let found = found.map_err(|e| bad(e.to_string()))?;
    if found.is_empty() {
        return Err(bad("no certificate in the file (PEM is expected)".to_owned()));
    }
    for certificate in found {
        roots.add(certificate).map_err(|e| bad(e.to_string()))?;
    }
    Ok(())
}

/// Checks that a PEM file can be used as [`OutboundOptions::ca_bundles`].
///
/// # Errors
///
/// If it can't be read or holds no certificate.
pub fn check_bundle(path: &Path) -> Result<(), OutboundError> {
    add_bundle(&mut RootCertStore::empty(), path)
}

/// The message of the innermost cause, which is the one that tells an operator something.
pub fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if is_unknown_issuer(innermost) {
        return format!(
            "{innermost}; if a private authority issued it, name a PEM file with the authority's certificate in \
             ca_bundle (of the backend, or outbound.ca_bundle for all)"
        );
    }
    innermost.to_string()
}

fn is_unknown_issuer(error: &(dyn std::error::Error + 'static)) -> bool {
    match of_tls(error) {
        // An authority of the same name with another key makes for a bad signature.
        Some(rustls::Error::InvalidCertificate(why)) => {
            matches!(why, CertificateError::UnknownIssuer | CertificateError::BadSignature)
        }
        _ => false,
    }
}

/// What TLS has said, if it is that.
fn of_tls<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    // An I/O error hides what it was made of, which may be another one.
    while let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        error = inner;
    }
    error.downcast_ref()
}

/// What servers say in TLS of the certificate of a client, or of there being none. They say it before they have looked at
/// anything else, but by then a client may have sent its request already.
const OF_CERTIFICATES: [AlertDescription; 10] = [
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    // There is none, in TLS 1.2 as OpenSSL speaks it.
    AlertDescription::HandshakeFailure,
    // It knows an authority of that name, with another key.
    AlertDescription::DecryptError,
];

/// How a server has refused the certificate of the client, if it has. Nothing was done then.
fn refused_certificate(error: &(dyn std::error::Error + 'static)) -> Option<AlertDescription> {
    let mut next = Some(error);
    while let Some(error) = next {
        let known = match of_tls(error) {
            Some(rustls::Error::AlertReceived(alert)) => OF_CERTIFICATES.contains(alert).then_some(*alert),
            // HTTP/2 keeps no more of it than the text.
            _ => {
                let text = error.to_string();
                OF_CERTIFICATES.into_iter().find(|alert| text.ends_with(&format!("fatal alert: {alert:?}")))
            }
        };
        if known.is_some() {
            return known;
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn what_a_server_says_of_certificates_is_told_from_all_else_that_goes_wrong() {
        let said = |error: rustls::Error| refused_certificate(&Error::new(ErrorKind::InvalidData, error));
        for alert in OF_CERTIFICATES {
            assert_eq!(said(rustls::Error::AlertReceived(alert)), Some(alert));
            // As it is left of it in HTTP/2, and within another error.
            let text = Error::other(format!("received fatal alert: {alert:?}"));
            assert_eq!(refused_certificate(&Error::other(text)), Some(alert));
        }
        for other in [
            AlertDescription::InternalError,
            AlertDescription::CloseNotify,
            AlertDescription::UnrecognisedName,
        ] {
            assert_eq!(said(rustls::Error::AlertReceived(other)), None);
        }
        assert_eq!(said(rustls::Error::InvalidCertificate(CertificateError::Expired)), None);
        assert_eq!(refused_certificate(&Error::from(ErrorKind::ConnectionReset)), None);
    }
}
