//! Where a request comes from: `Host` and `Origin` (MCP 2025-11-25, transports § Security Warning).
//!
//! A web page must not reach a gateway on its visitor's machine by rebinding a name, nor call any gateway in its
//! visitor's name. Requests without an `Origin` are not from browsers.

use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use url::{Host, Url};

use crate::options::FrontOptions;
use crate::reply::Refusal;

/// Which hosts and origins are accepted.
#[derive(Debug, Clone)]
pub struct Origins {
    hosts: Vec<String>,
    any_host: bool,
    loopback: bool,
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
        Self { hosts, any_host, loopback: options.on_loopback, origins }
    }

    /// Checks a request; returns its `Origin` if it has one.
    pub fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<Option<HeaderValue>, Refusal> {
        let host = headers
            .get(header::HOST)
            .and_then(|v| v.to_str().ok())
            .or_else(|| uri.authority().map(http::uri::Authority::as_str));
        let host_name = host.map(name_of).unwrap_or_default();
        let full = host.unwrap_or_default().to_ascii_lowercase();
        let named = self.hosts.iter().any(|h| *h == host_name || *h == full);
        if !(self.any_host || named || (self.loopback && is_loopback(&host_name))) {
            return Err(Refusal::status(
                StatusCode::FORBIDDEN,
                "this Host is not served; add it to public.allowed_hosts, or set public.url",
            ));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
        let accepted = origin.to_str().is_ok_and(|origin| self.accepts(origin, host, &host_name));
        if accepted {
            Ok(Some(origin.clone()))
        } else {
            Err(Refusal::status(
                StatusCode::FORBIDDEN,
                "this Origin may not call the gateway; add it to public.allowed_origins",
            ))
        }
    }

    fn accepts(&self, origin: &str, host: Option<&str>, host_name: &str) -> bool {
        if self.origins.iter().any(|o| o == origin) {
            return true;
        }
        let Ok(url) = Url::parse(origin) else { return false };
        let Some(name) = url.host_str() else { return false };
        let same = host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, rest)| rest == host));
        same || (self.loopback && is_loopback(name) && is_loopback(host_name))
    }
}

/// The host name in lower case, without a port.
fn name_of(host: &str) -> String {
    let name = match host.rfind(':') {
        Some(colon) if !host.ends_with(']') => &host[..colon],
        _ => host,
    };
    name.to_ascii_lowercase()
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
        for origin in ["http://evil.example", "null", "http://localhost.evil.example", "file://"] {
            assert!(!check(&options, "localhost:8080", Some(origin)), "{origin}");
        }
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
