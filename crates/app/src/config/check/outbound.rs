//! Checks of the connections to backends: trust, proxy, private networks.

use std::net::IpAddr;
use std::path::PathBuf;

use drawbridge_upstream::outbound::check_bundle;
use url::Url;

use crate::config::check::Checker;
use crate::config::model::{Outbound, Proxy};
use crate::config::raw::{self, Paths, ProxyWord};
use crate::config::secret::Secret;

/// Checks the connections to backends.
pub(super) fn outbound(checker: &mut Checker<'_>, raw: raw::Outbound) -> Outbound {
    let networks = raw.allow_networks.unwrap_or_default();
    for (index, network) in networks.iter().enumerate() {
        if !is_network(network) {
            let hint = "write an address and a prefix length, such as `10.0.0.0/8` or `fd00::/8`";
            checker.problem(&format!("outbound.allow_networks[{index}]"), "not a network", hint);
        }
    }
    Outbound {
        ca_bundle: bundles(checker, "outbound.ca_bundle", raw.ca_bundle),
        proxy: proxy(checker, raw.proxy),
        allow_networks: networks,
    }
}

/// The files with authorities to trust that the key at `path` names, one or several.
pub(super) fn bundles(checker: &mut Checker<'_>, path: &str, written: Option<Paths>) -> Vec<PathBuf> {
    let files = match written {
        None => Vec::new(),
        Some(Paths::One(file)) => vec![file],
        Some(Paths::Many(files)) => files,
    };
    for file in &files {
        if let Err(error) = check_bundle(file) {
            checker.problem(path, error.to_string(), "name a PEM file with the certificates of authorities");
        }
    }
    files
}

fn is_network(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else {
        return false;
    };
    let (Ok(address), Ok(prefix)) = (address.parse::<IpAddr>(), prefix.parse::<u8>()) else {
        return false;
    };
    prefix <= if address.is_ipv4() { 32 } else { 128 }
}

fn proxy(checker: &mut Checker<'_>, raw: Option<raw::Proxy>) -> Option<Proxy> {
    match raw {
        Some(raw::Proxy::Word(ProxyWord::None)) => None,
        None | Some(raw::Proxy::Word(ProxyWord::Environment)) => proxy_of_environment(checker),
        Some(raw::Proxy::At(at)) => {
            let path = "outbound.proxy.url";
            let url = checker.secret(path, at.url)?;
            if !is_proxy_url(&url) {
                checker.problem(
                    path,
                    "not the URL of a proxy",
                    "write it as `http://proxy.example.com:3128`",
                );
            }
            let no_proxy = at.no_proxy.unwrap_or_default().join(",");
            Some(Proxy { https: Some(url.clone()), http: Some(url), no_proxy })
        }
    }
}

fn is_proxy_url(url: &Secret) -> bool {
    Url::parse(url.expose()).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

/// What the usual variables say; the lower-case spelling wins, as in curl.
fn proxy_of_environment(checker: &Checker<'_>) -> Option<Proxy> {
    let read =
        |names: [&str; 2]| names.iter().find_map(|name| checker.env.get(*name)).filter(|v| !v.is_empty());
    let all = read(["all_proxy", "ALL_PROXY"]);
    let https = read(["https_proxy", "HTTPS_PROXY"]).or(all).map(Secret::new);
    let http = read(["http_proxy", "HTTP_PROXY"]).or(all).map(Secret::new);
    let no_proxy = read(["no_proxy", "NO_PROXY"]).cloned().unwrap_or_default();
    (https.is_some() || http.is_some()).then_some(Proxy { https, http, no_proxy })
}
