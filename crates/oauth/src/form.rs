//! Parameters as clients send them: in queries and in form bodies, each once.

use std::collections::HashSet;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{HeaderMap, header};

use crate::error::OAuthError;

/// The largest body, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// A body that takes longer than this to arrive is given up.
const READ_TIME: Duration = Duration::from_secs(30);

/// Reads a small body.
///
/// # Errors
///
/// Why there is none.
pub(crate) async fn read(body: Body) -> Result<Bytes, &'static str> {
    match tokio::time::timeout(READ_TIME, to_bytes(body, MAX_BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err("The body is larger than 64 KiB or broken off"),
        Err(_) => Err("The body took too long to arrive"),
    }
}

/// Parameters in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

/// A parameter is there twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Twice(pub String);

impl Form {
    /// Those of an encoded text.
    pub(crate) fn parse(text: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(text).into_owned().collect())
    }

    /// Reads a body that must be a form.
    ///
    /// # Errors
    ///
    /// If it is none, is too large, or has a parameter twice.
    pub(crate) async fn read(headers: &HeaderMap, body: Body) -> Result<Self, OAuthError> {
        Self::read_but(headers, body, &[]).await
    }

    /// The same, where `several` may be there more than once.
    ///
    /// # Errors
    ///
    /// If it is none, is too large, or has another parameter twice.
    pub(crate) async fn read_but(
        headers: &HeaderMap,
        body: Body,
        several: &[&str],
    ) -> Result<Self, OAuthError> {
        let media =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = media.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return Err(OAuthError::invalid_request("The body must be application/x-www-form-urlencoded"));
        }
        let bytes = read(body).await.map_err(OAuthError::invalid_request)?;
        let form = Self::parse(&bytes);
        match form.repeated(several) {
            Some(Twice(name)) => Err(OAuthError::invalid_request(format!(
                "The parameter {} is there twice",
                crate::text::printable(&name, 64)
            ))),
            None => Ok(form),
        }
    }

    /// The first parameter that is there more than once and is none of `but`.
    pub(crate) fn repeated(&self, but: &[&str]) -> Option<Twice> {
        let mut seen = HashSet::new();
        let mut names = self.0.iter().map(|(name, _)| name.as_str());
        let twice = names.find(|name| !but.contains(name) && !seen.insert(*name));
        twice.map(|name| Twice(name.to_owned()))
    }

    /// The value of a parameter that is there and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, value)| known == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// Whether a parameter is there, if only as an empty one.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// All values of a parameter.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read(never).await, Err("The body took too long to arrive"));
    }

    #[test]
    fn what_is_there_twice_is_found() {
        let form = Form::parse(b"a=1&b=&a=2&resource=x&resource=y&c=%20");
        assert_eq!(form.repeated(&["resource"]), Some(Twice("a".to_owned())));
        assert_eq!(
            (form.get("a"), form.get("b"), form.get("c"), form.get("d")),
            (Some("1"), None, Some(" "), None)
        );
        assert!(form.has("b") && !form.has("d"));
        assert_eq!(form.all("resource").collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(Form::parse(b"resource=x&resource=y").repeated(&["resource"]), None);
    }
}
