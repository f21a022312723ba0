//! Paths: `/mcp`, `/mcp/{endpoint}`, and below each `sse` and `messages` for HTTP+SSE.

/// Which transport a path belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// POST, GET and DELETE on one path.
    StreamableHttp,
    /// The stream of the two-endpoint transport.
    Sse,
    /// The other endpoint of it.
    Messages,
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The endpoint's name; `None` for the default one.
    pub endpoint: Option<String>,
    /// The transport.
    pub transport: Transport,
}

/// Whether a path is one of MCP: then what is not there is not anywhere else.
pub fn is_mcp(path: &str) -> bool {
    path.strip_prefix("/mcp").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        && !path.contains("/.well-known/")
}

/// Parses a request path; a slash at the end is ignored.
pub fn parse(path: &str) -> Option<Route> {
    let mut parts = path.strip_suffix('/').unwrap_or(path).split('/').skip(1);
    if parts.next() != Some("mcp") {
        return None;
    }
    let (first, second, rest) = (parts.next(), parts.next(), parts.next());
    let transport = |part: &str| match part {
        "sse" => Some(Transport::Sse),
        "messages" => Some(Transport::Messages),
        _ => None,
    };
    let route =
        |endpoint: Option<&str>, transport| Some(Route { endpoint: endpoint.map(str::to_owned), transport });
    match (first, second, rest) {
        (None, None, None) => route(None, Transport::StreamableHttp),
        (Some(part), None, None) => match transport(part) {
            Some(transport) => route(None, transport),
            None => route(Some(part), Transport::StreamableHttp),
        },
        (Some(name), Some(part), None) => route(Some(name), transport(part)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_an_endpoint_and_a_transport() {
        let parsed = |path| parse(path).map(|r| (r.endpoint.unwrap_or_default(), r.transport));
        assert_eq!(parsed("/mcp"), Some((String::new(), Transport::StreamableHttp)));
        assert_eq!(parsed("/mcp/"), Some((String::new(), Transport::StreamableHttp)));
        assert_eq!(parsed("/mcp/sse"), Some((String::new(), Transport::Sse)));
        assert_eq!(parsed("/mcp/files"), Some(("files".into(), Transport::StreamableHttp)));
        assert_eq!(parsed("/mcp/files/messages"), Some(("files".into(), Transport::Messages)));
        for bad in ["/", "", "/mcpx", "/mcp/a/b", "/mcp/a/sse/b", "//mcp"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
