//! What the gateway proves itself to a backend with in TLS: a certificate and its key. Both may change where they are
//! kept; connections that are opened later show the new ones, as soon as these fit each other.

mod validity;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use drawbridge_core::metrics::Ends;
use parking_lot::Mutex;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, SignatureScheme};

pub use self::validity::Validity;

/// A text as it is whenever it is needed.
pub type ReadText = Arc<dyn Fn() -> String + Send + Sync>;

/// Why something can't be shown as a client certificate. Nothing of a key is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCertificate {
    /// There is none.
    #[error("no certificate in it (PEM is expected: `-----BEGIN CERTIFICATE-----`)")]
    NoCertificate,
    /// It is none.
    #[error("its certificate can't be read")]
    Unreadable,
    /// There is no key.
    #[error("no private key in it (PEM is expected: `-----BEGIN PRIVATE KEY-----`)")]
    NoKey,
    /// The key is encrypted.
    #[error("its private key is encrypted, and nobody is there to give the password")]
    EncryptedKey,
    /// The key is of a kind that is not known, or damaged.
    #[error(
        "its private key can't be used (RSA of 2048 bits and more, ECDSA P-256, P-384 and P-521, Ed25519 can)"
    )]
    UnusableKey,
    /// The key is another's.
    #[error("the key does not belong to the certificate")]
    OthersKey,
}

impl BadCertificate {
    /// Whether it is a matter of the key.
    pub fn is_of_key(&self) -> bool {
        !matches!(self, Self::NoCertificate | Self::Unreadable)
    }
}

/// Checks a certificate, with those that lead to its authority behind it, and the key of the first. Returns when it is
/// good.
///
/// # Errors
///
/// If they can't be shown to a backend.
pub fn check(certificate: &str, key: &str) -> Result<Validity, BadCertificate> {
    read(certificate, key).map(|pair| pair.validity)
}

/// A certificate with its key, ready to be used.
#[derive(Clone)]
struct Pair {
    certified: Arc<CertifiedKey>,
    validity: Validity,
}

fn read(certificate: &str, key: &str) -> Result<Pair, BadCertificate> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let chain = chain.map_err(|_| BadCertificate::Unreadable)?;
    let first = chain.first().ok_or(BadCertificate::NoCertificate)?;
    let validity = Validity::of(first).ok_or(BadCertificate::Unreadable)?;
    if key.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || key.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(BadCertificate::EncryptedKey);
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| BadCertificate::NoKey)?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let certified = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => BadCertificate::OthersKey,
        Error::InvalidCertificate(_) => BadCertificate::Unreadable,
        _ => BadCertificate::UnusableKey,
    })?;
    Ok(Pair { certified: Arc::new(certified), validity })
}

/// The certificate that one backend gets, and no other.
pub struct ClientCertificate {
    backend: String,
    certificate: ReadText,
    key: ReadText,
    kept: Mutex<Kept>,
}

struct Kept {
    /// What was read last, good or not.
    texts: (String, String),
    pair: Pair,
    /// That it is not good now was logged.
    is_told: bool,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl ClientCertificate {
    /// What `certificate` and `key` read, for the backend called `backend`.
    ///
    /// # Errors
    ///
    /// If that can't be shown now.
    pub fn new(backend: &str, certificate: ReadText, key: ReadText) -> Result<Arc<Self>, BadCertificate> {
        let texts = (certificate(), key());
        let pair = read(&texts.0, &texts.1)?;
        let kept = Mutex::new(Kept { texts, pair, is_told: false });
        let made = Arc::new(Self { backend: backend.to_owned(), certificate, key, kept });
        made.current();
        Ok(made)
    }

    /// The pair as it is now; the last one that was good, while it is none.
    fn current(&self) -> Pair {
        let texts = ((self.certificate)(), (self.key)());
        let mut kept = self.kept.lock();
        if kept.texts != texts {
            match read(&texts.0, &texts.1) {
                Ok(pair) => {
                    tracing::info!(
                        backend.name = self.backend,
                        "the client certificate was read anew: {}",
                        pair.validity
                    );
                    (kept.pair, kept.is_told) = (pair, false);
                }
                // One of the two files may have been written before the other.
                Err(why) => tracing::warn!(
                    backend.name = self.backend,
                    "the client certificate was changed and can't be used, so that the one before is shown on: {why}"
                ),
            }
            kept.texts = texts;
        }
        if !kept.pair.validity.contains(SystemTime::now()) && !std::mem::replace(&mut kept.is_told, true) {
            tracing::warn!(
                backend.name = self.backend,
                "the client certificate is not good now: {}; put another where it is kept",
                kept.pair.validity
            );
        }
        kept.pair.clone()
    }
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current().certified)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl Ends for ClientCertificate {
    fn end(&self) -> i64 {
        self.current().validity.not_after
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn made(params: CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn good() -> (String, String) {
        made(CertificateParams::new(Vec::new()).unwrap())
    }

    #[test]
    fn a_certificate_and_its_key_are_taken_and_nothing_else() {
        let ((certificate, key), (other, others_key)) = (good(), good());
        assert!(check(&certificate, &key).unwrap().contains(SystemTime::now()));
        let both = format!("{key}{certificate}");
        assert!(check(&both, &both).is_ok());
        let chain = format!("{certificate}{other}");
        assert!(check(&chain, &key).is_ok());
        let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        let damaged = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let no_certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        for (certificate, key, why) in [
            ("", &*key, BadCertificate::NoCertificate),
            ("not PEM", &key, BadCertificate::NoCertificate),
            (&key, &key, BadCertificate::NoCertificate),
            (no_certificate, &key, BadCertificate::Unreadable),
            ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", &key, BadCertificate::Unreadable),
            (&certificate, "", BadCertificate::NoKey),
            (&certificate, &certificate, BadCertificate::NoKey),
            (&certificate, &encrypted, BadCertificate::EncryptedKey),
            (&certificate, damaged, BadCertificate::UnusableKey),
            (&certificate, &others_key, BadCertificate::OthersKey),
            (&format!("{other}{certificate}"), &key, BadCertificate::OthersKey),
        ] {
            assert_eq!(check(certificate, key), Err(why));
        }
    }

    #[test]
    fn one_that_is_over_is_known_to_be() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2019, 2, 3), date_time_ymd(2020, 3, 1));
        let (certificate, key) = made(params.clone());
        let validity = check(&certificate, &key).unwrap();
        assert!(!validity.contains(SystemTime::now()));
        assert_eq!(validity.to_string(), "good from 2019-02-03 to 2020-03-01");
        // Later than 2049 the form is another.
        params.not_after = date_time_ymd(2051, 12, 31);
        let (certificate, key) = made(params);
        let validity = check(&certificate, &key).unwrap();
        assert!(validity.contains(SystemTime::now()));
        assert_eq!(validity.to_string(), "good from 2019-02-03 to 2051-12-31");
    }

    #[test]
    fn what_is_changed_is_used_once_it_fits() {
        let (one, two) = (good(), good());
        let files = Arc::new(Mutex::new(one.clone()));
        let (a, b) = (files.clone(), files.clone());
        let of_certificate: ReadText = Arc::new(move || a.lock().0.clone());
        let of_key: ReadText = Arc::new(move || b.lock().1.clone());
        let live = ClientCertificate::new("b", of_certificate, of_key).unwrap();
        let shown = || live.resolve(&[], &[]).unwrap().cert[0].clone();
        let is = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        assert_eq!(shown(), is(&one.0));
        files.lock().0.clone_from(&two.0);
        assert_eq!(shown(), is(&one.0), "the key is still the other's");
        files.lock().1.clone_from(&two.1);
        assert_eq!(shown(), is(&two.0));
        files.lock().0.clear();
        assert_eq!(shown(), is(&two.0));
        assert!(!format!("{live:?}").contains("KEY"));
    }
}
