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
    assert_snapshot!(complaint(FILE, &certificate, &others_key), @r#"
    drawbridge.yaml:4:62: backends.t.client_certificate.key: the key does not belong to the certificate
      hint: the key goes with the first certificate: look which of the two is another's
    "#);
    assert_snapshot!(complaint(FILE, "/run/secrets/gateway.pem", &key), @r#"
    drawbridge.yaml:4:27: backends.t.client_certificate.certificate: no certificate in it (PEM is expected: `-----BEGIN CERTIFICATE-----`)
      hint: name the file as `{ file: /path/certificate.pem }`, or the variable that has its text
    "#);
    assert_snapshot!(complaint(FILE, &certificate, "hunter2"), @r#"
    drawbridge.yaml:4:62: backends.t.client_certificate.key: no private key in it (PEM is expected: `-----BEGIN PRIVATE KEY-----`)
      hint: name the file as `{ file: /path/key.pem }`, or the variable that has its text
    "#);
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    assert_snapshot!(complaint(FILE, &certificate, &encrypted), @r#"
    drawbridge.yaml:4:62: backends.t.client_certificate.key: its private key is encrypted, and nobody is there to give the password
      hint: take the password off with `openssl pkey -in key.pem -out open.pem`
    "#);
    assert_snapshot!(complaint(&FILE.replace("https", "http"), &certificate, &key), @r#"
    drawbridge.yaml:4:5: backends.t.client_certificate: there is no TLS with this backend
      hint: it is shown in TLS: write the `url` with https, or remove the key
    "#);
    let of_a_program = "backends: { t: { command: sh, client_certificate: { certificate: x, key: y } } }";
    assert_snapshot!(complaint(of_a_program, "", ""), @r#"
    drawbridge.yaml:1:31: backends.t.client_certificate: this key goes with `url`, but this backend has `command`
      hint: remove the key
    "#);
}

#[test]
fn a_client_certificate_that_is_over_is_told_of() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 3, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    let loaded = load(FILE, &certificate, &key.serialize_pem()).unwrap();
    assert_snapshot!(loaded.notices[0].to_string(), @"drawbridge.yaml:4:27: backends.t.client_certificate.certificate: the client certificate is not good now: good from 1975-01-01 to 2020-03-01");
}
