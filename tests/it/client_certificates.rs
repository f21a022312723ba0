//! Backends that want to see a certificate of the gateway.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use drawbridge_testkit::backend::{Backend, modern};
use drawbridge_testkit::client::text;
use drawbridge_testkit::gateway::{Gateway, Setup};
use drawbridge_testkit::{PATIENCE, eventually};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::json;
use tempfile::TempDir;

use crate::backends::{fault, message};
use crate::operating::metrics::shown as shown_metrics;

/// An authority that gives certificates to servers and clients.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of the company");
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("ca.pem"), own.pem()).unwrap();
        Self { dir, certificate: own.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// The files of a client certificate for `name`.
    fn client(&self, name: &str) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        self.write(name, params)
    }

    fn write(&self, name: &str, params: CertificateParams) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = [format!("{name}.pem"), format!("{name}.key")].map(|file| self.dir.path().join(file));
        std::fs::write(&files[0], certificate.pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        let [certificate, key] = files;
        (certificate, key)
    }

    /// A server that takes requests only of clients with certificates of `whom`; in `versions` of TLS.
    async fn backend(&self, whom: &Self, versions: &[&'static rustls::SupportedProtocolVersion]) -> Backend {
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let own = own.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(whom.certificate.clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![own.der().clone()], private)
            .unwrap();
        Backend::start_tls(Arc::new(tls), |r| async move { modern(&r) }).await
    }

    /// A gateway that believes this authority, with `settings` of the backend.
    fn in_front_of(&self, backend: &Backend, settings: &str) -> Setup {
        let bundle = self.dir.path().join("ca.pem");
        Gateway::setup()
            .backend("secure", &format!("{{ url: \"{}\"{settings} }}", backend.url()))
            .config(&format!("outbound: {{ ca_bundle: \"{}\" }}", bundle.display()))
    }
}

const BOTH: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
const OLD: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];

fn shown((certificate, key): &(PathBuf, PathBuf)) -> String {
    let file = |path: &Path| format!("{{ file: \"{}\" }}", path.display());
    format!(", client_certificate: {{ certificate: {}, key: {} }}", file(certificate), file(key))
}

#[tokio::test]
async fn a_backend_gets_its_certificate_beside_another_credential_and_no_other_backend_does() {
    let authority = Authority::new();
    let (one, two) = (authority.backend(&authority, BOTH).await, authority.backend(&authority, OLD).await);
    let settings = shown(&authority.client("gateway"));
    let gateway = authority
        .in_front_of(&one, &format!("{settings}, auth: {{ kind: header, header: X-Key, value: k1 }}"))
        .backend("old", &format!("{{ url: \"{}\"{settings} }}", two.url()))
        // The same server by another name.
        .backend("bare", &format!("{{ url: \"{}\" }}", one.url()))
        .start()
        .await;
    let call = async |backend: &str| {
        let path = format!("/mcp/{backend}");
        let client = drawbridge_testkit::client::Modern::new(&gateway.client(), &path, json!({}));
        client.tool("echo", json!({ "text": backend })).await
    };
    assert_eq!(text(&call("secure").await), "secure");
    assert_eq!(one.requests().last().unwrap().header("x-key"), "k1");
    assert_eq!(text(&call("old").await), "old");
    let before = one.requests().len();
    // No connection of the other is used for it, though it is to the same place.
    let answer = call("bare").await;
    assert_eq!(fault(&answer), ("backend_unreachable", "safe"), "{answer}");
    assert!(message(&answer).contains("it wants a client certificate"), "{answer}");
    assert_eq!(one.requests().len(), before);
    assert_eq!(text(&call("secure").await), "secure");
}

#[tokio::test]
async fn a_certificate_that_is_refused_is_an_error_that_says_what_to_do() {
    let (authority, other) = (Authority::new(), Authority::new());
    for versions in [BOTH, OLD] {
        let backend = authority.backend(&authority, versions).await;
        let mut over = CertificateParams::new(Vec::new()).unwrap();
        over.not_after = rcgen::date_time_ymd(2020, 3, 1);
        for files in [other.client("stranger"), authority.write("over", over)] {
            let gateway = authority.in_front_of(&backend, &shown(&files)).start().await;
            for answer in [
                gateway.modern().tool("echo", json!({})).await,
                gateway.modern().tool("echo", json!({})).await,
            ] {
                assert_eq!(fault(&answer), ("backend_unreachable", "safe"), "{answer}");
                for word in ["\"secure\"", "refuses the gateway's client certificate", "client_certificate"] {
                    assert!(message(&answer).contains(word), "{answer}");
                }
            }
        }
        assert_eq!(backend.requests().len(), 0);
    }
}

#[tokio::test]
async fn a_certificate_that_is_changed_is_shown_by_the_next_connection() {
    let (old, new) = (Authority::new(), Authority::new());
    let backend = old.backend(&old, BOTH).await;
    let files = old.client("gateway");
    let gateway = old.in_front_of(&backend, &shown(&files)).start().await;
    assert_eq!(text(&gateway.modern().tool("echo", json!({ "text": "old" })).await), "old");

    // From now on the old one is not taken.
    let wanting = old.backend(&new, BOTH).await;
    let gateway = old.in_front_of(&wanting, &shown(&files)).start().await;
    let answer = gateway.modern().tool("echo", json!({})).await;
    assert_eq!(fault(&answer), ("backend_unreachable", "safe"), "{answer}");
    let (certificate, key) = new.client("gateway");
    std::fs::copy(certificate, &files.0).unwrap();
    std::fs::copy(key, &files.1).unwrap();
    eventually(PATIENCE, async || {
        let answer = gateway.modern().tool("echo", json!({ "text": "new" })).await;
        answer["result"]["content"][0]["text"] == "new"
    })
    .await;
    assert!(gateway.program.stderr().contains("the client certificate was read anew"));
}

#[tokio::test]
async fn the_end_of_a_certificate_is_in_the_log_and_the_metrics() {
    let authority = Authority::new();
    let backend = authority.backend(&authority, BOTH).await;
    let mut over = CertificateParams::new(Vec::new()).unwrap();
    over.not_after = rcgen::date_time_ymd(2020, 3, 1);
    let files = authority.write("over", over);
    let gateway = authority.in_front_of(&backend, &shown(&files)).start().await;
    assert!(
        gateway
            .program
            .stderr()
            .contains("the client certificate is not good now: good from 1975-01-01 to 2020-03-01")
    );
    let line =
        r#"drawbridge_backend_client_certificate_expiry_timestamp_seconds{backend="secure"} 1583020800"#;
    let metrics = shown_metrics(&gateway.admin).await;
    assert!(metrics.lines().any(|shown| shown == line), "{metrics}");
}
