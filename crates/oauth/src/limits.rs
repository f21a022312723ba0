//! How often anybody may try: those who have not proven who they are can be told apart by their address alone, and
//! the hosts of one vendor share a few.

use std::net::IpAddr;
use std::time::Duration;

use drawbridge_core::state::limiter::network;
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
