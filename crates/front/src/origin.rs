//! Where a request comes from: `Host` and `Origin` (MCP 2025-11-25, transports § Security Warning).
//!
//! A web page must not reach a gateway on its visitor's machine by rebinding a name, nor call any gateway in its
//! visitor's name. Requests without an `Origin` are not from browsers.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use url::{Host, Url};

use crate::options::FrontOptions;
use crate::reply::Refusal;

/// Which hosts and origins are accepted.
#[derive(Debug, Clone)]
pub struct Origins {
    hosts: Vec<String>,
    any_host: bool,
    loopback: bool,
    loopback_origins: bool,
    origins: Vec<String>,
}

impl Origins {
    /// As the configuration says.
    pub fn new(options: &FrontOptions) -> Self {
        let public = options.public_url.as_ref();
        let mut hosts: Vec<String> = options.allowed_hosts.iter().map(|h| h.to_ascii_lowercase()).collect();
        let any_host = hosts.is_empty() && public.is_none() && !options.on_loopback;
        hosts.extend(public.and_then(Url::host_str).map(str::to_ascii_lowercase));
        let mut origins = options.allowed_origins.clone();
        origins.extend(public.map(|url| url.origin().ascii_serialization()));
        Self {
            hosts,
            any_host,
            loopback: options.on_loopback,
            loopback_origins: options.loopback_origins,
            origins,
        }
    }

    /// Checks for which host a request is, and returns that.
    pub fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<String, Refusal> {
        let host = asked_for(headers, uri)?;
        let host_name = name_of(&host);
        let named = self.hosts.iter().any(|h| *h == host_name || *h == host);
        if !(self.any_host || named || (self.loopback && is_loopback(&host_name))) {
            return Err(Refusal::status(
                StatusCode::FORBIDDEN,
                "this Host is not served; add it to public.allowed_hosts, or set public.url",
            ));
        }
        Ok(host)
    }

    /// Checks a request; returns its `Origin` if it has one.
    pub fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<Option<HeaderValue>, Refusal> {
        let host = self.check_host(headers, uri)?;
        let host_name = name_of(&host);
        let Some(origin) = single(headers, &header::ORIGIN)? else { return Ok(None) };
        let accepted = origin.to_str().is_ok_and(|origin| self.accepts(origin, &host, &host_name));
        if accepted {
            Ok(Some(origin.clone()))
        } else {
            Err(Refusal::status(
                StatusCode::FORBIDDEN,
                "this Origin may not call the gateway; add it to public.allowed_origins",
            ))
        }
    }

    /// Origins that are not named are those of web pages: `null`, `file:` and the schemes of apps and extensions say
    /// nothing about who is behind them, or can be had by anybody.
    fn accepts(&self, origin: &str, host: &str, host_name: &str) -> bool {
        if self.origins.iter().any(|o| o == origin) {
            return true;
        }
        let Ok(url) = Url::parse(origin) else { return false };
        let Some(name) = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https")) else {
            return false;
        };
        // Where any host is served, a page can be at this one by rebinding its name. It can't rebind an address.
        let is_sure = !self.any_host || is_address(host_name);
        let same = origin.split_once("://").is_some_and(|(_, rest)| rest == host);
        (same && is_sure)
            || (self.loopback && is_loopback(name) && is_loopback(host_name))
            || (self.loopback_origins && is_loopback(name))
    }
}

/// The value of a header that may be there once.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(bad(&format!("the {name} header is there twice"))),
        (value, None) => Ok(value),
    }
}

/// The host and port that a request is for, in lower case; empty if it doesn't say. The request line may name them
/// (in the absolute form and in HTTP/2), the `Host` header may, and if both do they must agree (RFC 9112 § 3.2.2, RFC
/// 9113 § 8.3.1): what is in front may have looked at the other one.
fn asked_for(headers: &HeaderMap, uri: &Uri) -> Result<String, Refusal> {
    let header = single(headers, &header::HOST)?.map(|value| value.to_str());
    let header = header.transpose().map_err(|_| bad("the Host header is malformed"))?;
    let line = uri.authority().map(http::uri::Authority::as_str);
    if let (Some(header), Some(line)) = (header, line)
        && !header.eq_ignore_ascii_case(line)
    {
        return Err(bad("the Host header differs from the host in the request line"));
    }
    Ok(line.or(header).unwrap_or_default().to_ascii_lowercase())
}

fn bad(what: &str) -> Refusal {
    Refusal::status(StatusCode::BAD_REQUEST, what)
}

/// The host name in lower case, without a port.
fn name_of(host: &str) -> String {
    let name = match host.rfind(':') {
        Some(colon) if !host.ends_with(']') => &host[..colon],
        _ => host,
    };
    name.to_ascii_lowercase()
}

fn is_address(name: &str) -> bool {
    matches!(Host::parse(name), Ok(Host::Ipv4(_) | Host::Ipv6(_)))
}

fn is_loopback(name: &str) -> bool {
    match Host::parse(name) {
        Ok(Host::Domain(domain)) => domain == "localhost" || domain.ends_with(".localhost"),
        Ok(Host::Ipv4(ip)) => ip.is_loopback(),
        Ok(Host::Ipv6(ip)) => ip.is_loopback(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &FrontOptions, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        Origins::new(options).check(&headers, &Uri::from_static("/mcp")).is_ok()
    }

    #[test]
    fn a_gateway_on_loopback_answers_to_loopback_names_only() {
        let options = FrontOptions::default();
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"] {
            assert!(check(&options, host, None), "{host}");
        }
        assert!(!check(&options, "evil.example", None));
        assert!(!check(&options, "localhost.evil.example:8080", None));
        assert!(check(&options, "localhost:8080", Some("http://localhost:6274")));
        for origin in [
            "http://evil.example",
            "null",
            "http://localhost.evil.example",
            "file://",
            "",
            "vscode-webview://0a1b2c3d",
            "vscode-webview://localhost",
            "tauri://localhost",
            "app://127.0.0.1",
            "chrome-extension://localhost:8080",
            "http://user@evil.example",
        ] {
            assert!(!check(&options, "localhost:8080", Some(origin)), "{origin}");
        }
        let named = FrontOptions {
            allowed_origins: vec!["vscode-webview://0a1b2c3d".into()],
            ..FrontOptions::default()
        };
        assert!(check(&named, "localhost:8080", Some("vscode-webview://0a1b2c3d")));
        assert!(!check(&named, "localhost:8080", Some("vscode-webview://other")));
    }

    #[test]
    fn a_page_that_has_rebound_its_name_is_not_taken_for_the_gateways_own() {
        let open = FrontOptions { on_loopback: false, ..FrontOptions::default() };
        assert!(check(&open, "evil.example:8080", None), "any host is served, and this is no page");
        assert!(!check(&open, "evil.example:8080", Some("http://evil.example:8080")));
        assert!(check(&open, "10.0.0.7:8080", Some("http://10.0.0.7:8080")));
        let named = FrontOptions { allowed_hosts: vec!["mcp.example".into()], ..open };
        assert!(check(&named, "MCP.example:8080", Some("http://mcp.example:8080")));
    }

    #[test]
    fn a_request_names_one_host_and_one_origin() {
        let status = |uri: &str, headers: &[(HeaderName, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(name, value.parse().unwrap());
            }
            let checked = Origins::new(&FrontOptions::default()).check(&map, &uri.parse().unwrap());
            checked.map_or_else(|refusal| refusal.into_response().status().as_u16(), |_| 200)
        };
        let (host, origin) = (header::HOST, header::ORIGIN);
        assert_eq!(status("/mcp", &[(host.clone(), "localhost")]), 200);
        assert_eq!(status("/mcp", &[(host.clone(), "localhost"), (host.clone(), "evil.example")]), 400);
        assert_eq!(status("/mcp", &[(host.clone(), "localhost"), (host.clone(), "localhost")]), 400);
        let one = (origin.clone(), "http://localhost");
        assert_eq!(status("/mcp", &[(host.clone(), "localhost"), one.clone()]), 200);
        assert_eq!(
            status("/mcp", &[(host.clone(), "localhost"), one.clone(), (origin, "http://evil.example")]),
            400
        );
        // The absolute form, and HTTP/2.
        assert_eq!(status("http://localhost:1/mcp", &[]), 200);
        assert_eq!(status("http://LOCALHOST:1/mcp", &[(host.clone(), "localhost:1")]), 200);
        assert_eq!(status("http://localhost/mcp", &[(host.clone(), "evil.example")]), 400);
        assert_eq!(status("http://evil.example/mcp", &[(host.clone(), "localhost")]), 400);
        assert_eq!(status("http://evil.example/mcp", &[]), 403);
        assert_eq!(status("http://localhost@evil.example/mcp", &[]), 403);
        assert_eq!(status("/mcp", &[]), 403);
    }

    #[test]
    fn a_public_gateway_answers_to_its_own_name_and_named_origins() {
        let options = FrontOptions {
            on_loopback: false,
            public_url: Some("https://mcp.example.com/x".parse().unwrap()),
            allowed_origins: vec!["https://app.example".into()],
            ..FrontOptions::default()
        };
        assert!(check(&options, "mcp.example.com", Some("https://mcp.example.com")));
        assert!(check(&options, "mcp.example.com", Some("https://app.example")));
        assert!(!check(&options, "mcp.example.com", Some("https://app.example.evil")));
        assert!(!check(&options, "10.0.0.7:8080", None));
        assert!(!check(&options, "localhost", Some("http://localhost")));
        let open = FrontOptions { on_loopback: false, ..FrontOptions::default() };
        assert!(check(&open, "10.0.0.7:8080", None));
        assert!(!check(&open, "10.0.0.7:8080", Some("http://evil.example")));
    }
}
