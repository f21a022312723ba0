//! How often anybody may try: those who have not proven who they are can be told apart by their address alone, and
//! the hosts of one vendor share a few.

use std::net::IpAddr;
use std::time::Duration;

use drawbridge_core::state::{Quota, Verdict};

use crate::Inner;
use crate::error::OAuthError;

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    Authorize,
    Register,
    /// Registrations of all addresses together.
    RegisterAll,
    Token,
    SignIn,
    /// Documents of clients that are fetched for one user.
    Document,
}

impl Limited {
    fn name(self) -> &'static str {
        match self {
            Self::Authorize => "authorize",
            Self::Register => "register",
            Self::RegisterAll => "register-all",
            Self::Token => "token",
            Self::SignIn => "sign-in",
            Self::Document => "document",
        }
    }

    fn quota(self) -> Quota {
        let (per_minute, burst) = match self {
            Self::Authorize | Self::Token => (240, 240),
            Self::Register => (60, 60),
            Self::RegisterAll => (600, 600),
            Self::SignIn => (10, 10),
            Self::Document => (20, 20),
        };
        Quota { interval: Duration::from_secs(60) / per_minute, burst }
    }
}

impl Inner {
    /// Counts one of `what` from `address`, or says when there may be another.
    pub(crate) async fn limit(&self, what: Limited, address: Option<IpAddr>) -> Result<(), OAuthError> {
        let from = address.map_or_else(|| "unknown".to_owned(), |address| network(address).to_string());
        self.count(what, &from).await?;
        if what == Limited::Register {
            self.count(Limited::RegisterAll, "all").await?;
        }
        Ok(())
    }

    /// Counts one of `what` for `from`, or says when there may be another.
    pub(crate) async fn count(&self, what: Limited, from: &str) -> Result<(), OAuthError> {
        let key = format!("oauth:{}:{from}", what.name());
        match self.limiter.take(&key, what.quota()).await {
            Verdict::Allowed { .. } => Ok(()),
            Verdict::Refused { retry_after } => {
                tracing::info!(limit = what.name(), client.address = from, "too many requests");
                Err(OAuthError::slow_down(retry_after.as_secs() + 1))
            }
        }
    }
}

/// What of an address one user has: all of an IPv4 address, the network of an IPv6 one.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let mut segments = v6.segments();
            segments[4..].fill(0);
            IpAddr::from(segments)
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_many_addresses_of_one_network_is_one() {
        let of = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
    }
}
