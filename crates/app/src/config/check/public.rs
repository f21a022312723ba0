//! Checks of the public listener.

use std::net::IpAddr;

use ipnet::IpNet;
use url::Url;

use crate::config::check::Checker;
use crate::config::model::Public;
use crate::config::raw;

/// Checks the public listener.
pub(super) fn public(checker: &mut Checker<'_>, raw: raw::Public) -> Public {
    let default = Public::default();
    Public {
        listen: raw.listen.unwrap_or(default.listen),
        url: raw.url.and_then(|written| public_url(checker, &written)),
        allowed_origins: allowed_origins(checker, raw.allowed_origins.unwrap_or_default()),
        allowed_hosts: allowed_hosts(checker, raw.allowed_hosts.unwrap_or_default()),
        trusted_proxies: trusted_proxies(checker, raw.trusted_proxies.unwrap_or_default()),
    }
}

fn public_url(checker: &mut Checker<'_>, written: &str) -> Option<Url> {
    let url = Url::parse(written).ok().filter(is_origin);
    if url.is_none() {
        let hint = "write scheme, host and port only, such as `https://mcp.example.com`";
        checker.problem("public.url", "not the URL of a web server without a path", hint);
    }
    url
}

/// Scheme, host and port, and nothing else.
fn is_origin(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none()
}

fn allowed_origins(checker: &mut Checker<'_>, written: Vec<String>) -> Vec<String> {
    let mut origins = Vec::new();
    for (index, origin) in written.into_iter().enumerate() {
        match Url::parse(&origin).ok().filter(|_| !origin.contains('*')) {
            Some(url) if is_origin(&url) => origins.push(url.origin().ascii_serialization()),
            Some(url) if is_origin_of_an_app(&url, &origin) => origins.push(origin.to_ascii_lowercase()),
            _ => checker.problem(
                &format!("public.allowed_origins[{index}]"),
                "not an origin",
                "write each one in full, such as `https://app.example.com`; there are no wildcards",
            ),
        }
    }
    origins
}

/// Such as `vscode-webview://id`. To a browser these have no standard form, so they are compared as they are.
fn is_origin_of_an_app(url: &Url, written: &str) -> bool {
    let rest = written.split_once("://").map(|(_, rest)| rest);
    !matches!(url.scheme(), "http" | "https" | "file")
        && rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#', '@', '\\', ' ']))
}

fn allowed_hosts(checker: &mut Checker<'_>, written: Vec<String>) -> Vec<String> {
    let mut hosts = Vec::new();
    for (index, host) in written.into_iter().enumerate() {
        if is_host(&host) {
            hosts.push(host.to_ascii_lowercase());
        } else {
            let hint = "write a host, with a port if need be: `mcp.example.com` or `[::1]:8080`";
            checker.problem(&format!("public.allowed_hosts[{index}]"), "not a host", hint);
        }
    }
    hosts
}

fn trusted_proxies(checker: &mut Checker<'_>, written: Vec<String>) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for (index, network) in written.into_iter().enumerate() {
        let address = network.parse::<IpAddr>().map(IpNet::from);
        match network.parse::<IpNet>().or(address) {
            Ok(network) => networks.push(network),
            Err(_) => {
                let hint = "write an address, or a network such as `10.0.0.0/8`";
                checker.problem(&format!("public.trusted_proxies[{index}]"), "not a network", hint);
            }
        }
    }
    networks
}

fn is_host(host: &str) -> bool {
    let authority = host.parse::<http::uri::Authority>().ok();
    authority.is_some_and(|authority| !authority.host().is_empty() && !host.contains(['@', '*']))
}
