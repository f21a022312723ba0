//! What a client is told when it is not let in (RFC 6750 § 3, RFC 9728 § 5.1). Parsers in the field are simple: one
//! challenge, every value quoted, nothing in it that looks like another parameter.

use crate::resource::Origin;
use crate::scope::OFFERED;

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// There was no credential.
    None,
    /// What there was is none, or no longer, or not for here. Which of these is not told.
    Invalid,
    /// More than one credential was sent.
    Several,
    /// The credential does not allow this; what would.
    Scope(&'static str),
}

impl Denial {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::None | Self::Invalid => 401,
            Self::Several => 400,
            Self::Scope(_) => 403,
        }
    }

    /// The `error` of the body.
    pub fn error(&self) -> &'static str {
        match self {
            Self::None => "unauthorized",
            Self::Invalid => "invalid_token",
            Self::Several => "invalid_request",
            Self::Scope(_) => "insufficient_scope",
        }
    }

    /// For people.
    pub fn description(&self) -> &'static str {
        match self {
            Self::None => "This server needs an access token: send it as Authorization: Bearer",
            Self::Invalid => "The access token is invalid or expired",
            Self::Several => "Send one Authorization header",
            Self::Scope(_) => "This operation needs more permission",
        }
    }

    /// The value of `WWW-Authenticate`. `discovery` is where a client finds out how to get a token for which endpoint,
    /// if it can.
    pub fn challenge(&self, discovery: Option<(&Origin, Option<&str>)>) -> String {
        let mut parameters = Vec::new();
        if *self != Self::None {
            parameters.push(format!("error=\"{}\"", self.error()));
            parameters.push(format!("error_description=\"{}\"", self.description()));
        }
        if let Some((origin, endpoint)) = discovery {
            parameters.push(format!("resource_metadata=\"{}\"", origin.metadata_of(endpoint)));
            let scope = match self {
                Self::Scope(scope) => (*scope).to_owned(),
                _ => OFFERED.join(" "),
            };
            parameters.push(format!("scope=\"{scope}\""));
        }
        if parameters.is_empty() { "Bearer".to_owned() } else { format!("Bearer {}", parameters.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_as_clients_parse_them() {
        let origin = Origin::of(&"https://gw.example.com".parse().unwrap());
        let here = Some((&origin, None));
        assert_eq!(
            Denial::None.challenge(here),
            "Bearer resource_metadata=\"https://gw.example.com/.well-known/oauth-protected-resource/mcp\", \
             scope=\"mcp:read mcp:write\""
        );
        assert_eq!(
            Denial::Invalid.challenge(Some((&origin, Some("dev")))),
            "Bearer error=\"invalid_token\", error_description=\"The access token is invalid or expired\", \
             resource_metadata=\"https://gw.example.com/.well-known/oauth-protected-resource/mcp/dev\", \
             scope=\"mcp:read mcp:write\""
        );
        assert_eq!(Denial::None.challenge(None), "Bearer");
        assert!(Denial::Scope("mcp:write").challenge(here).ends_with("scope=\"mcp:write\""));
        for denial in [Denial::None, Denial::Invalid, Denial::Several, Denial::Scope("mcp:write")] {
            let description = denial.description();
            assert!(description.is_ascii() && !description.contains(['"', '=', ',']), "{description}");
        }
    }
}
