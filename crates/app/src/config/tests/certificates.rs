//! Client certificates: what is wrong with one is said before a backend is asked.

use insta::assert_snapshot;

use super::{client_certificate, load_text};
use crate::config::{BackendKind, Loaded, Problems};

const FILE: &str = "backends:\n  t:\n    url: https://a/mcp\n    client_certificate: { certificate: { env: CERTIFICATE }, key: { env: KEY } }\n";

fn load(text: &str, certificate: &str, key: &str) -> Result<Loaded, Problems> {
    load_text(text, &[("CERTIFICATE", certificate), ("KEY", key)])
}

#[test]
fn a_client_certificate_stands_beside_any_credential() {
    let (certificate, key) = client_certificate();
    let beside = format!("{FILE}    auth: {{ kind: header, value: Bearer x }}\n");
    for text in [FILE, &beside] {
        let loaded = load(text, &certificate, &key).unwrap();
        assert!(loaded.notices.is_empty());
        let BackendKind::Http(http) = &loaded.config.backends["t"].kind else { panic!() };
        assert_eq!(http.client_certificate.as_ref().unwrap().key.expose(), key);
        assert!(!format!("{http:?}").contains("KEY-"));
    }
}

#[test]
fn a_client_certificate_that_can_not_be_shown() {
    let ((certificate, key), (_, others_key)) = (client_certificate(), client_certificate());
    let complaint =
        |text: &str, certificate: &str, key: &str| load(text, certificate, key).unwrap_err().to_string();
    assert_snapshot!(complaint(FILE, &certificate, &others_key), @"");
    assert_snapshot!(complaint(FILE, "/run/secrets/gateway.pem", &key), @"");
    assert_snapshot!(complaint(FILE, &certificate, "hunter2"), @"");
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    assert_snapshot!(complaint(FILE, &certificate, &encrypted), @"");
    assert_snapshot!(complaint(&FILE.replace("https", "http"), &certificate, &key), @"");
    let of_a_program = "backends: { t: { command: sh, client_certificate: { certificate: x, key: y } } }";
    assert_snapshot!(complaint(of_a_program, "", ""), @"");
}

#[test]
fn a_client_certificate_that_is_over_is_told_of() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 3, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    let loaded = load(FILE, &certificate, &key.serialize_pem()).unwrap();
    assert_snapshot!(loaded.notices[0].to_string(), @"");
}
