//! What a token endpoint is asked in an exchange (RFC 8693), and what it may answer.

use std::time::Duration;

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
    let scope = wanted.scopes.join(" ");
    let subject_type = match wanted.subject_token {
        SubjectToken::Access => ACCESS_TOKEN,
        SubjectToken::Id => ID_TOKEN,
    };
    let mut form = vec![
        ("grant_type", GRANT),
        ("subject_token", subject),
        ("subject_token_type", subject_type),
        ("requested_token_type", ACCESS_TOKEN),
    ];
    form.extend(wanted.audience.as_deref().map(|audience| ("audience", audience)));
    form.extend(wanted.resource.as_deref().map(|resource| ("resource", resource)));
    if !scope.is_empty() {
        form.push(("scope", &scope));
    }
    let answered = post_form(fetch, server, client, &server.token_endpoint, &form).await;
    let answered = answered.map_err(|NotFetched(why)| NoToken::Unavailable(why))?;
    read(answered.status(), answered.body())
}

#[derive(Deserialize)]
struct Given {
    access_token: String,
    issued_token_type: String,
    token_type: String,
    #[serde(default)]
    expires_in: Value,
}

#[derive(Deserialize)]
struct Said {
    error: String,
}

/// What an answer means. Nothing of it is repeated to anybody but a short code.
fn read(status: StatusCode, body: &[u8]) -> Result<Exchanged, NoToken> {
    let unusable = |why: &str| Err(NoToken::Unavailable(why.to_owned()));
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
    let Ok(given) = serde_json::from_slice::<Given>(body) else {
        return unusable("the token endpoint's answer is none to an exchange");
    };
    if given.issued_token_type != ACCESS_TOKEN {
        return unusable("the server gave a token of another type than was asked for");
    }
    let is_sendable = !given.access_token.is_empty()
        && given.access_token.len() <= MAX_TOKEN
        && given.access_token.bytes().all(|byte| byte.is_ascii_graphic());
    if !given.token_type.eq_ignore_ascii_case("bearer") || !is_sendable {
        return unusable("the server's token is not a bearer token");
    }
    Ok(Exchanged { access: given.access_token, expires_in: life(&given.expires_in) })
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
