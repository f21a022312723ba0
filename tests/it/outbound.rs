//! The way to backends: private authorities, proxies.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drawbridge_testkit::backend::{Backend, modern};
use drawbridge_testkit::client::text;
use drawbridge_testkit::gateway::{Gateway, Setup};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::backends::{fault, message, spawn};

/// A private authority and a server certificate of it.
pub(crate) struct Authority {
    dir: TempDir,
    pub(crate) tls: Arc<rustls::ServerConfig>,
}

impl Authority {
    pub(crate) fn new(names: &[&str]) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "a private authority");
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let own_key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let own = CertificateParams::new(names).unwrap().signed_by(&own_key, &issuer).unwrap();
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
        let chain: Vec<CertificateDer<'static>> = vec![own.der().clone()];
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .unwrap();
        Self { dir, tls: Arc::new(tls) }
    }

    pub(crate) fn bundle(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    async fn backend(&self) -> Backend {
        Backend::start_tls(self.tls.clone(), |r| async move { modern(&r) }).await
    }
}

fn in_front_of(backend: &Backend, settings: &str) -> Setup {
    Gateway::setup().backend("secure", &format!("{{ url: \"{}\"{settings} }}", backend.url()))
}

#[tokio::test]
async fn a_backend_with_a_certificate_of_a_private_authority_is_believed_where_the_bundle_says_so() {
    let authority = Authority::new(&["127.0.0.1"]);
    let backend = authority.backend().await;
    let bundle = authority.bundle();
    let everywhere = format!("outbound: {{ ca_bundle: \"{}\" }}", bundle.display());
    let gateway = in_front_of(&backend, "").config(&everywhere).start().await;
    assert_eq!(text(&gateway.modern().tool("echo", json!({ "text": "private" })).await), "private");
    assert_eq!(text(&gateway.session().await.tool("echo", json!({ "text": "too" })).await), "too");

    // That of the backend is in place of that for all.
    let other = Authority::new(&["127.0.0.1"]);
    let everywhere = format!("outbound: {{ ca_bundle: [\"{}\"] }}", other.bundle().display());
    let own = format!(", ca_bundle: \"{}\"", bundle.display());
    let gateway = in_front_of(&backend, &own).config(&everywhere).start().await;
    assert_eq!(text(&gateway.modern().tool("echo", json!({ "text": "own" })).await), "own");
}

#[tokio::test]
async fn a_backend_whose_certificate_is_not_believed_gets_no_request_and_the_error_says_what_to_do() {
    let backend = Authority::new(&["127.0.0.1"]).backend().await;
    let other = Authority::new(&["127.0.0.1"]);
    let other = format!("outbound: {{ ca_bundle: \"{}\" }}", other.bundle().display());
    for config in ["", &other] {
        let gateway = in_front_of(&backend, "").config(config).start().await;
        let answer = gateway.modern().tool("echo", json!({})).await;
        assert_eq!(fault(&answer), ("backend_unreachable", "safe"));
        for word in ["\"secure\"", "certificate", "ca_bundle"] {
            assert!(message(&answer).contains(word), "{answer}");
        }
    }
    assert_eq!(backend.requests().len(), 0);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new(&["elsewhere.example"]);
    let backend = authority.backend().await;
    let config = format!("outbound: {{ ca_bundle: \"{}\" }}", authority.bundle().display());
    let gateway = in_front_of(&backend, "").config(&config).start().await;
    let answer = gateway.modern().tool("echo", json!({})).await;
    assert_eq!(fault(&answer), ("backend_unreachable", "safe"));
    assert!(message(&answer).contains("127.0.0.1") || message(&answer).contains("not valid for"), "{answer}");
    assert_eq!(backend.requests().len(), 0);
}

/// A proxy that opens tunnels, and counts them.
struct ConnectProxy {
    address: SocketAddr,
    tunnels: Arc<AtomicUsize>,
    credentials: Arc<std::sync::Mutex<Vec<String>>>,
}

impl ConnectProxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tunnels = Arc::new(AtomicUsize::new(0));
        let credentials = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (count, heard) = (tunnels.clone(), credentials.clone());
        spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (count, heard) = (count.clone(), heard.clone());
                spawn(async move { tunnel(client, &count, &heard).await });
            }
        });
        Self { address, tunnels, credentials }
    }

    fn tunnels(&self) -> usize {
        self.tunnels.load(Ordering::SeqCst)
    }
}

async fn tunnel(
    mut client: TcpStream,
    tunnels: &AtomicUsize,
    credentials: &std::sync::Mutex<Vec<String>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let target = head.strip_prefix("CONNECT ")?.split(' ').next()?;
    tunnels.fetch_add(1, Ordering::SeqCst);
    let named = head
        .lines()
        .find_map(|l| l.strip_prefix("Proxy-Authorization: ").or(l.strip_prefix("proxy-authorization: ")));
    credentials.lock().unwrap().extend(named.map(str::to_owned));
    // Whatever the name, the backends of these tests are here.
    let port = target.rsplit(':').next()?;
    let mut server = TcpStream::connect(format!("127.0.0.1:{port}")).await.ok()?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.ok()?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.ok()?;
    Some(())
}

#[tokio::test]
async fn the_proxy_of_the_environment_is_used_for_https_and_no_proxy_is_obeyed() {
    let authority = Authority::new(&["127.0.0.1", "tools.internal"]);
    let backend = authority.backend().await;
    let plain = Backend::start(|r| async move { modern(&r) }).await;
    let proxy = ConnectProxy::start().await;
    let port = backend.address().port();
    let config = format!("outbound: {{ ca_bundle: \"{}\" }}", authority.bundle().display());
    let start = |no_proxy: &'static str| {
        let named = format!("{{ url: \"https://tools.internal:{port}/mcp\" }}");
        Gateway::setup()
            .backend("named", &named)
            .backend("secure", &format!("{{ url: \"{}\" }}", backend.url()))
            .backend("plain", &format!("{{ url: \"{}\" }}", plain.url()))
            .config(&config)
            .env("HTTPS_PROXY", &format!("http://user:p%40ss@{}", proxy.address))
            .env("NO_PROXY", no_proxy)
            .start()
    };
    let call = async |gateway: &Gateway, backend: &str| {
        let path = format!("/mcp/{backend}");
        let client = drawbridge_testkit::client::Modern::new(&gateway.client(), &path, json!({}));
        client.tool("echo", json!({})).await
    };
    let gateway = start("").await;
    assert_eq!(text(&call(&gateway, "named").await), "ok");
    assert_eq!(text(&call(&gateway, "named").await), "ok");
    let named = proxy.tunnels();
    assert!(named >= 1, "the name is only known to the proxy");
    assert_eq!(proxy.credentials.lock().unwrap()[0], "Basic dXNlcjpwQHNz");
    assert_eq!(text(&call(&gateway, "secure").await), "ok");
    let all = proxy.tunnels();
    assert!(all > named);
    assert_eq!(text(&call(&gateway, "plain").await), "ok");
    assert_eq!(proxy.tunnels(), all, "HTTPS_PROXY is for https alone");

    for no_proxy in ["127.0.0.1", "example.com,127.0.0.0/8", "*"] {
        let gateway = start(no_proxy).await;
        assert_eq!(text(&call(&gateway, "secure").await), "ok");
        assert_eq!(proxy.tunnels(), all, "{no_proxy}");
    }
}

#[tokio::test]
async fn a_proxy_of_the_file_wins_over_the_environment() {
    let authority = Authority::new(&["127.0.0.1"]);
    let backend = authority.backend().await;
    let (of_file, of_environment) = (ConnectProxy::start().await, ConnectProxy::start().await);
    let bundle = authority.bundle().display().to_string();
    let proxies = [
        (format!("{{ url: \"http://{}\" }}", of_file.address), 1),
        ("none".to_owned(), 0),
        (format!("{{ url: \"http://{}\", no_proxy: [127.0.0.1] }}", of_file.address), 0),
    ];
    for (proxy, expected) in proxies {
        let before = of_file.tunnels();
        let gateway = in_front_of(&backend, "")
            .config(&format!("outbound: {{ ca_bundle: \"{bundle}\", proxy: {proxy} }}"))
            .env("HTTPS_PROXY", &format!("http://{}", of_environment.address))
            .start()
            .await;
        assert_eq!(text(&gateway.modern().tool("echo", json!({})).await), "ok");
        assert_eq!((of_file.tunnels() - before).min(1), expected, "{proxy}");
    }
    assert_eq!(of_environment.tunnels(), 0);
}

#[tokio::test]
async fn a_proxy_that_is_not_there_makes_the_backend_unreachable() {
    let authority = Authority::new(&["127.0.0.1"]);
    let backend = authority.backend().await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let gateway = in_front_of(&backend, "").env("HTTPS_PROXY", &format!("http://{closed}")).start().await;
    assert_eq!(fault(&gateway.modern().tool("echo", json!({})).await), ("backend_unreachable", "safe"));
    assert_eq!(backend.requests().len(), 0);
}
