//! What a token endpoint is asked in an exchange (RFC 8693) or for an assertion (RFC 7523), and what it may answer.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use drawbridge_auth::fetch::{Fetch, NotFetched};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use crate::printable;
use crate::server::Metadata;
use crate::token::{ClientIdentity, NoToken, post_form};

const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
/// Vouches for a user to the server of another domain (Identity Assertion JWT Authorization Grant).
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
/// Takes that (RFC 7523 § 2.1).
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// A token is no longer than this many bytes.
const MAX_TOKEN: usize = 16 * 1024;

/// Which token of a login is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SubjectToken {
    /// The access token.
    #[default]
    Access,
    /// The ID token.
    Id,
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Which token is shown.
    pub subject_token: SubjectToken,
    /// Whom the new token is for, by a name that the server knows.
    pub audience: Option<String>,
    /// Whom it is for, by its URL.
    pub resource: Option<String>,
    /// What it is to allow.
    pub scopes: Vec<String>,
}

/// A token that was got.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Exchanged {
    pub(super) access: String,
    pub(super) expires_in: Option<Duration>,
}

/// Exchanges `subject` at a server.
///
/// # Errors
///
/// If the server gives nothing that can be used.
pub(super) async fn exchange(
    fetch: &dyn Fetch,
    server: &Metadata,
    client: &ClientIdentity,
    subject: &str,
    wanted: &Wanted,
) -> Result<Exchanged, NoToken> {
    let (status, body) = asked(fetch, server, client, subject, wanted, ACCESS_TOKEN).await?;
    read(status, &body)
}

/// Has a server vouch for whom `subject` is of, to the server `audience`.
///
/// # Errors
///
/// If the server gives nothing that can be used.
pub(super) async fn vouched(
    fetch: &dyn Fetch,
    server: &Metadata,
    client: &ClientIdentity,
    subject: &str,
    wanted: &Wanted,
    audience: &str,
) -> Result<String, NoToken> {
    let wanted = Wanted { audience: Some(audience.to_owned()), ..wanted.clone() };
    let (status, body) = asked(fetch, server, client, subject, &wanted, ID_JAG).await?;
    assertion(status, &body, &server.issuer, audience)
}

/// Gets a token for an assertion.
///
/// # Errors
///
/// If the server gives nothing that can be used.
pub(super) async fn redeem(
    fetch: &dyn Fetch,
    server: &Metadata,
    client: &ClientIdentity,
    assertion: &str,
    scopes: &[String],
) -> Result<Exchanged, NoToken> {
    let scope = scopes.join(" ");
    let mut form = vec![("grant_type", JWT_BEARER), ("assertion", assertion)];
    if !scope.is_empty() {
        form.push(("scope", &scope));
    }
    let answered = post_form(fetch, server, client, &server.token_endpoint, &form).await;
    let answered = answered.map_err(|NotFetched(why)| NoToken::Unavailable(why))?;
    bearer(&given(answered.status(), answered.body())?)
}

/// Asks for a token of the type `requested` in exchange for `subject`.
async fn asked(
    fetch: &dyn Fetch,
    server: &Metadata,
    client: &ClientIdentity,
    subject: &str,
    wanted: &Wanted,
    requested: &str,
) -> Result<(StatusCode, Vec<u8>), NoToken> {
    let scope = wanted.scopes.join(" ");
    let subject_type = match wanted.subject_token {
        SubjectToken::Access => ACCESS_TOKEN,
        SubjectToken::Id => ID_TOKEN,
    };
    let mut form = vec![
        ("grant_type", GRANT),
        ("subject_token", subject),
        ("subject_token_type", subject_type),
        ("requested_token_type", requested),
    ];
    form.extend(wanted.audience.as_deref().map(|audience| ("audience", audience)));
    form.extend(wanted.resource.as_deref().map(|resource| ("resource", resource)));
    if !scope.is_empty() {
        form.push(("scope", &scope));
    }
    let answered = post_form(fetch, server, client, &server.token_endpoint, &form).await;
    let answered = answered.map_err(|NotFetched(why)| NoToken::Unavailable(why))?;
    Ok((answered.status(), answered.into_body()))
}

#[derive(Deserialize)]
struct Given {
    access_token: String,
    #[serde(default)]
    issued_token_type: Option<String>,
    token_type: String,
    #[serde(default)]
    expires_in: Value,
}

#[derive(Deserialize)]
struct Said {
    error: String,
}

fn unusable<T>(why: &str) -> Result<T, NoToken> {
    Err(NoToken::Unavailable(why.to_owned()))
}

/// What an answer to an exchange means.
fn read(status: StatusCode, body: &[u8]) -> Result<Exchanged, NoToken> {
    let given = given(status, body)?;
    if given.issued_token_type.as_deref() != Some(ACCESS_TOKEN) {
        return unusable("the server gave a token of another type than was asked for");
    }
    bearer(&given)
}

/// The assertion in an answer: one of `issuer`, for `audience` alone. Nobody else is shown it.
fn assertion(status: StatusCode, body: &[u8], issuer: &str, audience: &str) -> Result<String, NoToken> {
    let given = given(status, body)?;
    // It is nothing that a backend takes, and says so.
    let is_none = given.token_type.eq_ignore_ascii_case("n_a");
    if given.issued_token_type.as_deref() != Some(ID_JAG) || !is_none || !is_sendable(&given.access_token) {
        return unusable("the identity provider gave no ID-JAG");
    }
    let Some(claims) = claims(&given.access_token) else {
        return unusable("the identity provider's ID-JAG can't be read");
    };
    let is_for = match claims.get("aud") {
        Some(Value::String(one)) => one == audience,
        Some(Value::Array(several)) => matches!(&several[..], [Value::String(one)] if one == audience),
        _ => false,
    };
    if claims.get("iss").and_then(Value::as_str) != Some(issuer) || !is_for {
        return unusable("the identity provider's ID-JAG is another's, or for another server");
    }
    Ok(given.access_token)
}

/// What a JSON Web Token says. Whoever it is shown to checks whether that is so.
pub(super) fn claims(token: &str) -> Option<Value> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok()
}

/// What an answer has. Nothing of it is repeated to anybody but a short code.
fn given(status: StatusCode, body: &[u8]) -> Result<Given, NoToken> {
    if !status.is_success() {
        let said = serde_json::from_slice::<Said>(body).map(|said| printable(&said.error));
        let is_final = status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
        return Err(match said {
            Ok(code) if is_final && !code.is_empty() && code != "temporarily_unavailable" => {
                NoToken::Refused(code)
            }
            _ => NoToken::Unavailable(format!("the token endpoint answered with {status}")),
        });
    }
    match serde_json::from_slice(body) {
        Ok(given) => Ok(given),
        Err(_) => unusable("the token endpoint's answer is none to what it was asked"),
    }
}

fn is_sendable(token: &str) -> bool {
    !token.is_empty() && token.len() <= MAX_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A token that a backend is sent.
fn bearer(given: &Given) -> Result<Exchanged, NoToken> {
    if !given.token_type.eq_ignore_ascii_case("bearer") || !is_sendable(&given.access_token) {
        return unusable("the server's token is not a bearer token");
    }
    Ok(Exchanged { access: given.access_token.clone(), expires_in: life(&given.expires_in) })
}

/// Seconds, which some servers write as text; nothing for what is none.
fn life(written: &Value) -> Option<Duration> {
    let seconds = match written {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    Duration::try_from_secs_f64(seconds?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn given(change: impl FnOnce(&mut Value)) -> Result<Exchanged, NoToken> {
        let mut answer = json!({ "access_token": "abc", "issued_token_type": ACCESS_TOKEN, "token_type": "Bearer",
            "expires_in": 300, "refresh_token": "ignored", "scope": "read" });
        change(&mut answer);
        read(StatusCode::OK, answer.to_string().as_bytes())
    }

    fn is_unavailable(answer: &Result<Exchanged, NoToken>) -> bool {
        matches!(answer, Err(NoToken::Unavailable(_)))
    }

    #[test]
    fn a_token_is_taken_if_it_is_what_was_asked_for() {
        let fine = given(|_| ());
        let expected = Exchanged { access: "abc".to_owned(), expires_in: Some(Duration::from_secs(300)) };
        assert!(fine == Ok(expected.clone()));
        assert!(given(|answer| answer["expires_in"] = json!("300")) == Ok(expected.clone()));
        assert!(given(|answer| answer["token_type"] = json!("bearer")) == Ok(expected.clone()));
        for none in [json!(null), json!(-1), json!("soon"), json!([300]), json!(1e300)] {
            let answer = given(|answer| answer["expires_in"] = none.clone());
            assert!(answer == Ok(Exchanged { expires_in: None, ..expected.clone() }), "{none}");
        }
    }

    #[test]
    fn another_kind_of_token_is_not_sent_to_a_backend() {
        for (member, value) in [
            ("issued_token_type", json!("urn:ietf:params:oauth:token-type:refresh_token")),
            ("issued_token_type", json!("urn:ietf:params:oauth:token-type:id_token")),
            ("issued_token_type", json!(null)),
            ("token_type", json!("N_A")),
            ("token_type", json!("DPoP")),
            ("access_token", json!("")),
            ("access_token", json!("a b")),
            ("access_token", json!("a\r\nX-Evil: 1")),
            ("access_token", json!("x".repeat(MAX_TOKEN + 1))),
            ("access_token", json!(["abc"])),
        ] {
            let answer = given(|answer| answer[member] = value.clone());
            assert!(is_unavailable(&answer), "{member}: {value}");
        }
        assert!(is_unavailable(&given(|answer| drop(
            answer.as_object_mut().unwrap().remove("issued_token_type")
        ))));
        let twice = br#"{"access_token":"a","access_token":"b","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer"}"#;
        assert!(is_unavailable(&read(StatusCode::OK, twice)));
    }

    #[test]
    fn what_passes_by_itself_is_told_from_what_does_not() {
        let said = |status: u16, body: &str| read(StatusCode::from_u16(status).unwrap(), body.as_bytes());
        let refused = |code: &str| Err(NoToken::Refused(code.to_owned()));
        assert!(said(400, r#"{"error":"invalid_grant"}"#) == refused("invalid_grant"));
        assert!(
            said(403, r#"{"error":"access_denied","error_description":"no"}"#) == refused("access_denied")
        );
        assert!(said(401, r#"{"error":"invalid_client"}"#) == refused("invalid_client"));
        for (status, body) in [
            (500, r#"{"error":"invalid_grant"}"#),
            (503, "busy"),
            (429, r#"{"error":"slow_down"}"#),
            (400, r#"{"error":"temporarily_unavailable"}"#),
            (400, r#"{"error":""}"#),
            (400, "<html>"),
            (302, ""),
        ] {
            assert!(is_unavailable(&said(status, body)), "{status} {body}");
        }
        // Nothing that a server makes up gets into a log line.
        let Err(NoToken::Refused(code)) = said(400, "{\"error\":\"a\\nb\\u001b[31m\u{202e}c\"}") else {
            panic!()
        };
        assert_eq!(code, "ab[31mc");
    }

    const IDP: &str = "https://idp.example";
    const AS: &str = "https://as.example";

    /// What an identity provider gives, with claims and members changed.
    fn vouched(claims: impl FnOnce(&mut Value), change: impl FnOnce(&mut Value)) -> Result<String, NoToken> {
        let mut said = json!({ "iss": IDP, "aud": AS, "sub": "ann", "client_id": "gate", "exp": 1 });
        claims(&mut said);
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(said.to_string()));
        let mut answer = json!({ "access_token": token, "issued_token_type": ID_JAG, "token_type": "N_A" });
        change(&mut answer);
        assertion(StatusCode::OK, answer.to_string().as_bytes(), IDP, AS)
    }

    #[test]
    fn an_assertion_is_shown_to_nobody_but_the_server_that_it_is_for() {
        assert!(vouched(|_| (), |_| ()).is_ok());
        assert!(
            vouched(|said| said["aud"] = json!([AS]), |answer| answer["token_type"] = json!("n_a")).is_ok()
        );
        for (claim, value) in [
            ("aud", json!("https://other.example")),
            ("aud", json!([AS, "https://other.example"])),
            ("aud", json!("https://as.example/")),
            ("aud", json!(null)),
            ("iss", json!("https://other.example")),
            ("iss", json!([IDP])),
        ] {
            let answer = vouched(|said| said[claim] = value.clone(), |_| ());
            assert!(matches!(answer, Err(NoToken::Unavailable(_))), "{claim}: {value}");
        }
        for (member, value) in [
            ("issued_token_type", json!(ACCESS_TOKEN)),
            ("issued_token_type", json!(ID_TOKEN)),
            ("issued_token_type", json!(null)),
            ("token_type", json!("Bearer")),
            ("access_token", json!("opaque")),
            ("access_token", json!("a.b.c")),
            ("access_token", json!("")),
            ("access_token", json!("e30.e30\r\nX-Evil: 1.c")),
            ("access_token", json!(format!("e30.{}.c", "x".repeat(MAX_TOKEN)))),
        ] {
            let answer = vouched(|_| (), |answer| answer[member] = value.clone());
            assert!(matches!(answer, Err(NoToken::Unavailable(_))), "{member}: {value}");
        }
        let denied = assertion(StatusCode::FORBIDDEN, br#"{"error":"access_denied"}"#, IDP, AS);
        assert!(denied == Err(NoToken::Refused("access_denied".to_owned())));
    }

    #[test]
    fn a_token_for_an_assertion_is_a_bearer_token() {
        let read = |answer: Value| bearer(&given_of(&answer)?);
        assert!(read(json!({ "access_token": "abc", "token_type": "Bearer", "expires_in": 5 })).is_ok());
        for bad in [
            json!({ "access_token": "abc", "token_type": "DPoP" }),
            json!({ "access_token": "a b", "token_type": "Bearer" }),
            json!({ "access_token": "", "token_type": "Bearer" }),
            json!({ "token_type": "Bearer" }),
            json!({ "access_token": "abc" }),
            json!([]),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

    fn given_of(answer: &Value) -> Result<Given, NoToken> {
        super::given(StatusCode::OK, answer.to_string().as_bytes())
    }

    proptest! {
        #[test]
        fn no_answer_does_harm(status in 100u16..600, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(exchanged) = read(StatusCode::from_u16(status).unwrap(), &body) {
                prop_assert!(exchanged.access.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }

        #[test]
        fn whatever_a_token_is_made_of_it_can_be_a_header(token in "\\PC{0,40}", typ in "\\PC{0,12}") {
            let answer = json!({ "access_token": token, "issued_token_type": ACCESS_TOKEN, "token_type": typ });
            if let Ok(exchanged) = read(StatusCode::OK, answer.to_string().as_bytes()) {
                prop_assert!(http::HeaderValue::from_str(&exchanged.access).is_ok());
            }
        }
    }
}
