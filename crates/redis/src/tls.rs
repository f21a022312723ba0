//! TLS to Redis: the authorities of the system, and those of files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::error::Error;

/// What opens TLS on a connection.
pub(crate) fn connector(bundles: &[PathBuf]) -> Result<TlsConnector, Error> {
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
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn add_bundle(roots: &mut RootCertStore, path: &Path) -> Result<(), Error> {
    let fault = |reason: String| Error::Certificates { path: path.display().to_string(), reason };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|e| fault(e.to_string()))?;
    let mut found = false;
    for certificate in certificates {
        let certificate = certificate.map_err(|e| fault(e.to_string()))?;
        roots.add(certificate).map_err(|e| fault(e.to_string()))?;
        found = true;
    }
    if found { Ok(()) } else { Err(fault("no certificate in the file (PEM is expected)".to_owned())) }
}
