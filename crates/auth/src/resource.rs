//! Resources as OAuth means them (RFC 8707, RFC 9728): each endpoint of the gateway is one, named by its URL.

use std::fmt;

use url::Url;

/// The origin under which clients reach the gateway: scheme, host and port, without a slash at the end. The issuer of
/// its tokens, byte for byte.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    url: Url,
    text: String,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Origin {
    /// The origin of `url`, of which anything else is ignored.
    pub fn of(url: &Url) -> Self {
        let text = url.origin().ascii_serialization();
        Self { url: url.clone(), text }
    }

    /// Without a slash at the end.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is `https`.
    pub fn is_secure(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// The URL of `path`, which begins with a slash.
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.text)
    }

    /// The resource that the endpoint `name` is; the default one without.
    pub fn resource(&self, name: Option<&str>) -> String {
        self.join(&path_of(name))
    }

    /// Where the metadata of that resource are (RFC 9728 § 3.1: the path inserted).
    pub fn metadata_of(&self, name: Option<&str>) -> String {
        self.join(&format!("/.well-known/oauth-protected-resource{}", path_of(name)))
    }

    /// The name of the endpoint that a client means by `text`: `Some(None)` for the default one, which is also meant by
    /// the origin alone. `None` if it is no resource that could be here. Whether there is such an endpoint is for others.
    pub fn endpoint(&self, text: &str) -> Option<Option<String>> {
        let url = Url::parse(text).ok()?;
        let has_more = !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some();
        if has_more || url.origin() != self.url.origin() || !matches!(url.scheme(), "http" | "https") {
            return None;
        }
        match url.path().strip_suffix('/').unwrap_or(url.path()) {
            "" | "/mcp" => Some(None),
            path => {
                let name = path.strip_prefix("/mcp/")?;
                let legal = (1..=32).contains(&name.len())
                    && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
                legal.then(|| Some(name.to_owned()))
            }
        }
    }
}

/// The path of the endpoint `name`.
pub fn path_of(name: Option<&str>) -> String {
    name.map_or_else(|| "/mcp".to_owned(), |name| format!("/mcp/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_write_the_resource_in_any_form_that_means_the_same() {
        let origin = Origin::of(&"https://gw.example.com".parse().unwrap());
        assert_eq!(origin.as_str(), "https://gw.example.com");
        for default in [
            "https://gw.example.com/mcp",
            "https://gw.example.com/mcp/",
            "HTTPS://GW.example.com:443/mcp",
            "https://gw.example.com",
            "https://gw.example.com/",
        ] {
            assert_eq!(origin.endpoint(default), Some(None), "{default}");
        }
        assert_eq!(origin.endpoint("https://gw.example.com/mcp/dev"), Some(Some("dev".to_owned())));
        for none in [
            "https://gw.example.com/mcp#x",
            "https://gw.example.com/mcp?x=1",
            "https://u@gw.example.com/mcp",
            "gw.example.com/mcp",
            "https://other.example/mcp",
            "https://gw.example.com//mcp",
            "https://gw.example.com/%6dcp",
            "http://gw.example.com/mcp",
            "https://gw.example.com/mcp/a/b",
            "https://gw.example.com/mcp//",
            "https://gw.example.com/mcp/A",
            "javascript:alert(1)",
            "",
        ] {
            assert_eq!(origin.endpoint(none), None, "{none}");
        }
        assert_eq!(
            origin.metadata_of(Some("dev")),
            "https://gw.example.com/.well-known/oauth-protected-resource/mcp/dev"
        );
    }
}
