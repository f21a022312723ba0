//! The client for URLs that others have named: a client's description of itself, its keys. Whoever names a URL must not
//! learn what there is in the networks around the gateway, so only public addresses are connected to.
//!
//! The addresses that a name has are looked up once, all of them are checked, and one of these is connected to. A check
//! that is followed by another look-up would be none: a name can have another address a moment later. There is no proxy,
//! which would do that look-up, no redirect is followed, and no connection is kept.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioExecutor;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::outbound::{OutboundError, cause, tls_config};

const CONNECT_TIME: Duration = Duration::from_secs(5);
const TIME: Duration = Duration::from_secs(10);
const USER_AGENT: &str = concat!("drawbridge/", env!("CARGO_PKG_VERSION"));

/// How URLs of others are followed.
#[derive(Debug, Clone, Default)]
pub struct GuardOptions {
    /// PEM files with certificates of private authorities, believed beside those of the system.
    pub ca_bundles: Vec<PathBuf>,
    /// Networks that may be connected to though they are not public.
    pub allow_networks: Vec<IpNet>,
}

/// Why there is no answer. Not for whoever has named the URL.
#[derive(Debug, thiserror::Error)]
pub enum GuardedError {
    /// It is not `https`.
    #[error("only https is followed")]
    Scheme,
    /// It, or one of the addresses of its name, is not public.
    #[error("it is in a network that is not public; outbound.allow_networks makes exceptions")]
    NotPublic,
    /// There is no connection, or it broke.
    #[error("it can't be reached: {0}")]
    Unreachable(String),
    /// It took too long.
    #[error("it did not answer within {} s", TIME.as_secs())]
    Late,
    /// The body is too large or was broken off.
    #[error("its answer is larger than {0} bytes, or was broken off")]
    Body(usize),
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Looked = Pin<Box<dyn Future<Output = std::io::Result<Vec<IpAddr>>> + Send>>;
/// Which addresses a name has.
type LookUp = Arc<dyn Fn(String) -> Looked + Send + Sync>;

/// Which addresses may be connected to.
#[derive(Debug, Clone)]
struct Guard(Arc<[IpNet]>);

impl Guard {
    fn lets(&self, address: IpAddr) -> bool {
        let canonical = address.to_canonical();
        is_public(address) || self.0.iter().any(|net| net.contains(&address) || net.contains(&canonical))
    }
}

/// Looks names up and gives only what may be connected to.
#[derive(Clone)]
struct Resolver {
    guard: Guard,
    look_up: LookUp,
}

impl tower_service::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (guard, looked) = (self.guard.clone(), (self.look_up)(name.as_str().to_owned()));
        Box::pin(async move {
            let addresses = looked.await?;
            // A name that has an address of each kind is up to something.
            if addresses.iter().any(|address| !guard.lets(*address)) {
                return Err(GuardedError::NotPublic.into());
            }
            let addresses: Vec<SocketAddr> =
                addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect();
            Ok(addresses.into_iter())
        })
    }
}

/// Fetches from servers that others have named.
pub struct Guarded {
    client: Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>,
    guard: Guard,
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Guarded {
    /// A client that asks the system for addresses.
    ///
    /// # Errors
    ///
    /// If the authorities can't be read.
    pub fn new(options: &GuardOptions) -> Result<Self, OutboundError> {
        Self::with(
            options,
            Arc::new(|name| {
                Box::pin(async move {
                    let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
                    Ok(found.map(|address| address.ip()).collect())
                })
            }),
        )
    }

    fn with(options: &GuardOptions, look_up: LookUp) -> Result<Self, OutboundError> {
        let guard = Guard(options.allow_networks.clone().into());
        let mut tcp = HttpConnector::new_with_resolver(Resolver { guard: guard.clone(), look_up });
        tcp.set_connect_timeout(Some(CONNECT_TIME));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let secure = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(&options.ca_bundles, None)?)
            .https_only()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(secure);
        Ok(Self { client, guard })
    }

    /// The answer to a request, whatever its status, of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// If there is none in time, or its server must not be connected to.
    pub async fn fetch(
        &self,
        mut request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Response<Bytes>, GuardedError> {
        if request.uri().scheme_str() != Some("https") {
            return Err(GuardedError::Scheme);
        }
        // An address is connected to without being looked up.
        let host = request.uri().host().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if literal.is_ok_and(|address| !self.guard.lets(address)) {
            return Err(GuardedError::NotPublic);
        }
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| why(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, most).collect().await.map_err(|_| GuardedError::Body(most))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        tokio::time::timeout(TIME, exchange).await.unwrap_or(Err(GuardedError::Late))
    }
}

fn why(error: &(dyn std::error::Error + 'static)) -> GuardedError {
    let mut inner = Some(error);
    while let Some(error) = inner {
        if matches!(error.downcast_ref(), Some(GuardedError::NotPublic)) {
            return GuardedError::NotPublic;
        }
        inner = error.source();
    }
    GuardedError::Unreachable(cause(error))
}

const fn v4(a: u8, b: u8, c: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, 0), prefix)
}

const fn v6(a: u16, b: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

/// IPv4 networks that are no public ones (RFC 6890 and the registry that it began).
const NOT_PUBLIC_V4: [Ipv4Net; 15] = [
    v4(0, 0, 0, 8),
    v4(10, 0, 0, 8),
    v4(100, 64, 0, 10),
    v4(127, 0, 0, 8),
    v4(169, 254, 0, 16),
    v4(172, 16, 0, 12),
    v4(192, 0, 0, 24),
    v4(192, 0, 2, 24),
    v4(192, 88, 99, 24),
    v4(192, 168, 0, 16),
    v4(198, 18, 0, 15),
    v4(198, 51, 100, 24),
    v4(203, 0, 113, 24),
    v4(224, 0, 0, 4),
    v4(240, 0, 0, 4),
];
/// Of IPv6, what is given out to anybody at all.
const UNICAST_V6: Ipv6Net = v6(0x2000, 0, 3);
/// And what of that is not: protocols (Teredo among them), documentation, 6to4.
const NOT_PUBLIC_V6: [Ipv6Net; 4] =
    [v6(0x2001, 0, 23), v6(0x2001, 0xdb8, 32), v6(0x2002, 0, 16), v6(0x3fff, 0, 20)];
/// An IPv4 address behind a translator (RFC 6052).
const TRANSLATED: Ipv6Net = v6(0x64, 0xff9b, 96);

/// Whether an address is one of the public internet, of one host.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => {
            if let Some(inner) = address.to_ipv4_mapped() {
                return is_public(inner.into());
            }
            let [.., e, f, g, h] = address.segments();
            let last = Ipv4Addr::from((u32::from(g) << 16) | u32::from(h));
            if TRANSLATED.contains(&address) {
                return is_public(last.into());
            }
            let is_isatap = f == 0x5efe && (e == 0 || e == 0x200);
            UNICAST_V6.contains(&address)
                && !NOT_PUBLIC_V6.iter().any(|net| net.contains(&address))
                && (!is_isatap || is_public(last.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use tokio::net::TcpListener;

    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn addresses_of_the_digest() {
        for inside in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a00:1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
            "2002:a00:1::",
            "2002:7f00:1::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:db8::1",
            "3fff::1",
            "2600::5efe:a00:1",
            "2600::200:5efe:127.0.0.1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "5f00::1",
        ] {
            assert!(!public(inside), "{inside}");
        }
        for outside in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "192.167.255.255",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2606:4700:4700::1111",
            "2a00:1450:4001:81b::200e",
            "2600::5efe:808:808",
        ] {
            assert!(public(outside), "{outside}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_special_is_not_public(bits in any::<u32>()) {
            let a = Ipv4Addr::from(bits);
            let special = a.is_private() || a.is_loopback() || a.is_link_local() || a.is_multicast()
                || a.is_broadcast() || a.is_documentation() || a.is_unspecified();
            prop_assert!(!special || !is_public(a.into()));
        }

        #[test]
        fn no_way_to_write_an_inner_address_makes_it_public(net in 0usize..15, host in any::<u32>()) {
            let net = NOT_PUBLIC_V4[net];
            let inner = Ipv4Addr::from(u32::from(net.network()) | (host & u32::from(net.hostmask())));
            let (high, low) = ((u32::from(inner) >> 16) as u16, u32::from(inner) as u16);
            for address in [
                IpAddr::from(inner),
                inner.to_ipv6_mapped().into(),
                inner.to_ipv6_compatible().into(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into(),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low).into(),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1).into(),
                Ipv6Addr::new(0x2001, 0, high, low, 0, 0, !high, !low).into(),
                Ipv6Addr::new(0x2a00, 1, 2, 3, 0, 0x5efe, high, low).into(),
                Ipv6Addr::new(0x2a00, 1, 2, 3, 0x200, 0x5efe, high, low).into(),
            ] {
                prop_assert!(!is_public(address), "{address}");
            }
        }

        #[test]
        fn what_is_not_unicast_is_not_public(bits in any::<u128>()) {
            let a = Ipv6Addr::from(bits);
            let first = a.segments()[0];
            let embeds = a.to_ipv4_mapped().is_some() || TRANSLATED.contains(&a);
            prop_assert!(first >> 13 == 1 || embeds || !is_public(a.into()));
        }

        #[test]
        fn an_exception_is_for_its_network_alone(bits in any::<u32>()) {
            let guard = Guard(vec!["10.1.0.0/16".parse().unwrap()].into());
            let a = Ipv4Addr::from(bits & 0x00ff_ffff | 0x0a00_0000);
            prop_assert_eq!(guard.lets(a.into()), a.octets()[1] == 1);
            prop_assert_eq!(guard.lets(a.to_ipv6_mapped().into()), a.octets()[1] == 1);
        }
    }

    /// Counts who connects, and hangs up.
    async fn listener(address: &str) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let counted = count.clone();
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        (port, count)
    }

    fn get(url: &str) -> Request<Full<Bytes>> {
        Request::get(url).body(Full::default()).unwrap()
    }

    /// A client for which every name has these addresses, first the first, and the last for ever.
    fn client(allow: &[&str], answers: &[&[&str]]) -> Guarded {
        let answers: Vec<Vec<IpAddr>> =
            answers.iter().map(|all| all.iter().map(|text| text.parse().unwrap()).collect()).collect();
        let asked = AtomicUsize::new(0);
        let look_up: LookUp = Arc::new(move |_| {
            let n = asked.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
            let answer = answers[n].clone();
            Box::pin(async move { Ok(answer) })
        });
        let allow_networks = allow.iter().map(|net| net.parse().unwrap()).collect();
        Guarded::with(&GuardOptions { ca_bundles: Vec::new(), allow_networks }, look_up).unwrap()
    }

    #[tokio::test]
    async fn t44_no_connection_is_made_to_an_inner_address() {
        let (port, count) = listener("127.0.0.1:0").await;
        for answers in [
            &["127.0.0.1"][..],
            &["10.0.0.1"],
            &["::ffff:10.0.0.1"],
            &["64:ff9b::a00:1"],
            &["8.8.8.8", "127.0.0.1"],
        ] {
            let error = client(&[], &[answers]).fetch(get(&format!("https://a.example:{port}/")), 9).await;
            assert!(matches!(error, Err(GuardedError::NotPublic)), "{answers:?}: {error:?}");
        }
        let system = Guarded::new(&GuardOptions::default()).unwrap();
        for host in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "169.254.169.254"] {
            let error = system.fetch(get(&format!("https://{host}:{port}/")), 9).await;
            assert!(matches!(error, Err(GuardedError::NotPublic)), "{host}: {error:?}");
        }
        // TLS takes this for no name.
        assert!(system.fetch(get(&format!("https://127.1:{port}/")), 9).await.is_err());
        let plain = system.fetch(get(&format!("http://127.0.0.1:{port}/")), 9).await;
        assert!(matches!(plain, Err(GuardedError::Scheme)));
        assert_eq!(count.load(Ordering::SeqCst), 0);

        // The same are connected to where the operator says so. The listener speaks no TLS.
        let allowed = client(&["127.0.0.0/8"], &[&["127.0.0.1"]]);
        for host in ["a.example", "127.0.0.1"] {
            let error = allowed.fetch(get(&format!("https://{host}:{port}/")), 9).await.unwrap_err();
            assert!(matches!(error, GuardedError::Unreachable(_)), "{error:?}");
            assert!(!error.to_string().contains("127.0.0"), "{error}");
        }
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn t45_a_name_that_changes_its_address_is_connected_to_where_it_was_checked() {
        let (port, allowed) = listener("127.0.0.2:0").await;
        let (_, inner) = listener(&format!("127.0.0.1:{port}")).await;
        let client = client(&["127.0.0.2/32"], &[&["127.0.0.2"], &["127.0.0.1"]]);
        let url = format!("https://a.example:{port}/");
        assert!(matches!(client.fetch(get(&url), 9).await, Err(GuardedError::Unreachable(_))));
        assert_eq!(allowed.load(Ordering::SeqCst), 1);
        assert!(matches!(client.fetch(get(&url), 9).await, Err(GuardedError::NotPublic)));
        assert_eq!((allowed.load(Ordering::SeqCst), inner.load(Ordering::SeqCst)), (1, 0));
    }
}
