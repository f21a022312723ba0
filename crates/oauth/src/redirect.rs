//! Redirect URIs: which may be registered, and which of them a request means (RFC 6749 § 3.1.2, RFC 8252 § 7).

use url::{Host, Url};

/// The longest, in bytes.
pub(crate) const MAX_BYTES: usize = 2048;

/// Those of known hosts, exactly.
const KNOWN: [&str; 14] = [
    "https://claude.ai/api/mcp/auth_callback",
    "https://claude.com/api/mcp/auth_callback",
    "https://chatgpt.com/connector_platform_oauth_redirect",
    "https://vscode.dev/redirect",
    "https://insiders.vscode.dev/redirect",
    "cursor://anysphere.cursor-mcp/oauth/callback",
    "cursor://anysphere.cursor-retrieval/oauth/callback",
    "https://www.cursor.com/agents/mcp/oauth/callback",
    "https://cursor.com/agents/mcp/oauth/callback",
    "https://grok.com/connectors-oauth-exchange-code/",
    "https://antigravity.google/oauth-callback",
    "vscode://vscode.github-authentication/did-authenticate",
    "zed://oauth/callback",
    "windsurf://codeium.windsurf/oauth/callback",
];

/// Those that have one more segment.
const KNOWN_BEFORE_SEGMENT: [&str; 2] =
    ["https://chatgpt.com/connector/oauth/", "https://global.consent.azure-apim.net/redirect/"];

/// Why a redirect URI is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// It is longer than [`MAX_BYTES`].
    #[error("it is too long")]
    TooLong,
    /// It can't be parsed, or is another once it was.
    #[error("it is not an absolute URI in its normal form")]
    Form,
    /// It has a fragment or a user.
    #[error("it must have no fragment and no user")]
    Parts,
    /// Its scheme is not safe.
    #[error("its scheme must be https, or http on loopback")]
    Scheme,
    /// It is nobody's that is known.
    #[error(
        "it is not among those that this server accepts; an operator can add it to auth.registration.redirect_uris"
    )]
    Unlisted,
}

/// Whether a host is the user's own machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// Parses a redirect URI that may be anybody's.
pub(crate) fn parse(text: &str) -> Result<Url, Unfit> {
    if text.len() > MAX_BYTES {
        return Err(Unfit::TooLong);
    }
    let url = Url::parse(text).map_err(|_| Unfit::Form)?;
    if url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err(Unfit::Parts);
    }
    let is_known_private = KNOWN.contains(&text);
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        _ if is_known_private => {}
        _ => return Err(Unfit::Scheme),
    }
    let is_normal = url.as_str() == text || url.as_str().strip_suffix('/') == Some(text);
    if !is_normal || text.contains('*') {
        return Err(Unfit::Form);
    }
    Ok(url)
}

/// Whether it belongs to a known host, to the user's own machine, or to those that an operator has named.
pub(crate) fn is_listed(text: &str, url: &Url, named: &[String]) -> bool {
    let is_segment = |rest: &str| {
        !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    (url.scheme() == "http" && is_loopback(url))
        || KNOWN.contains(&text)
        || named.iter().any(|known| known == text)
        || KNOWN_BEFORE_SEGMENT.iter().any(|known| text.strip_prefix(known).is_some_and(is_segment))
}

/// Whether `got` is the registered one. Programs on the user's own machine take any port (RFC 8252 § 7.3), if they have
/// no secret.
pub(crate) fn matches(registered: &str, got: &str, is_public: bool) -> bool {
    if registered == got {
        return true;
    }
    let (Ok(known), Ok(url)) = (Url::parse(registered), Url::parse(got)) else { return false };
    let is_normal = url.as_str().trim_end_matches('/') == got.trim_end_matches('/');
    is_public
        && is_normal
        && known.scheme() == "http"
        && url.scheme() == "http"
        && is_loopback(&known)
        && is_loopback(&url)
        && known.host() == url.host()
        && known.path() == url.path()
        && known.query() == url.query()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none()
}

/// `uri` with more parameters; its own stay as they are.
pub(crate) fn with(uri: &str, parameters: &[(&str, &str)]) -> String {
    let mut encoded = url::form_urlencoded::Serializer::new(String::new());
    encoded.extend_pairs(parameters);
    let encoded = encoded.finish();
    let separator = match uri.find('?') {
        None => "?",
        Some(at) if at + 1 == uri.len() => "",
        Some(_) => "&",
    };
    format!("{uri}{separator}{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unsafe_is_not_registered() {
        for (bad, why) in [
            ("javascript:alert(1)", Unfit::Scheme),
            ("data:text/html,x", Unfit::Scheme),
            ("file:///etc/passwd", Unfit::Scheme),
            ("http://evil.example/cb", Unfit::Scheme),
            ("http://localhost.evil.example/cb", Unfit::Scheme),
            ("custom://x/cb", Unfit::Scheme),
            ("ws://localhost/cb", Unfit::Scheme),
            ("https://a/cb#f", Unfit::Parts),
            ("https://u@a/cb", Unfit::Parts),
            ("https://*.a/cb", Unfit::Form),
            ("https://a/b/../cb", Unfit::Form),
            ("HTTPS://a/cb", Unfit::Form),
            ("http://127.1/cb", Unfit::Form),
            ("/cb", Unfit::Form),
            ("", Unfit::Form),
        ] {
            assert_eq!(parse(bad).unwrap_err(), why, "{bad}");
        }
        assert_eq!(parse(&format!("https://a/{}", "x".repeat(MAX_BYTES))).unwrap_err(), Unfit::TooLong);
    }

    #[test]
    fn those_of_real_hosts_are_listed() {
        for uri in KNOWN.into_iter().chain([
            "https://chatgpt.com/connector/oauth/abc_-1",
            "https://global.consent.azure-apim.net/redirect/x-1",
            "http://localhost:3118/callback",
            "http://127.0.0.1:33418/",
            "http://127.0.0.1:4711/callback/aB3_-xyzABCD",
            "http://[::1]:80/x",
            "http://localhost:6274/oauth/callback/debug",
        ]) {
            let url = parse(uri);
            // The default port is not written.
            if uri.contains(":80/") {
                assert_eq!(url.unwrap_err(), Unfit::Form);
                continue;
            }
            assert!(is_listed(uri, &url.unwrap(), &[]), "{uri}");
        }
        let other = "https://example.com/cb";
        assert!(!is_listed(other, &parse(other).unwrap(), &[]));
        assert!(is_listed(other, &parse(other).unwrap(), &[other.to_owned()]));
        let deeper = "https://chatgpt.com/connector/oauth/a/b";
        assert!(!is_listed(deeper, &parse(deeper).unwrap(), &[]));
    }

    #[test]
    fn a_program_on_the_users_machine_takes_any_port_and_nothing_else_varies() {
        for (registered, got, is_public, same) in [
            ("https://a/cb", "https://a/cb", false, true),
            ("http://localhost/callback", "http://localhost:3118/callback", true, true),
            ("http://localhost:3118/callback", "http://localhost:4000/callback", true, true),
            ("http://localhost:3118/callback", "http://localhost:4000/callback", false, false),
            ("http://127.0.0.1/", "http://127.0.0.1:33418/", true, true),
            ("http://127.0.0.1/", "http://127.0.0.1:33418", true, true),
            ("http://localhost/callback", "http://127.0.0.1:3118/callback", true, false),
            ("http://localhost/callback", "http://localhost:3118/other", true, false),
            ("http://localhost/callback", "http://localhost:3118/callback?x=1", true, false),
            ("http://localhost/callback", "http://localhost.evil.com/callback", true, false),
            ("http://localhost/callback", "http://localhost:1@evil.com/callback", true, false),
            ("http://127.0.0.1/cb", "http://127.1:99/cb", true, false),
            ("http://localhost/cb", "http://LOCALHOST:1/cb", true, false),
            ("https://a/cb", "https://a:8443/cb", true, false),
            ("https://a/cb", "https://a/cb/", true, false),
        ] {
            assert_eq!(matches(registered, got, is_public), same, "{registered} {got}");
        }
    }

    #[test]
    fn what_is_added_leaves_a_redirect_uris_own_parameters() {
        assert_eq!(with("https://a/cb", &[("code", "x y")]), "https://a/cb?code=x+y");
        assert_eq!(with("https://a/cb?q=%20", &[("s", "&")]), "https://a/cb?q=%20&s=%26");
        assert_eq!(with("https://a/cb?", &[("s", "1")]), "https://a/cb?s=1");
        assert_eq!(with("cursor://x/cb", &[("s", "1")]), "cursor://x/cb?s=1");
    }
}
