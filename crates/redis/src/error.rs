//! What can be wrong with the options; what goes wrong later is [`drawbridge_core::state::Unavailable`].

use crate::url::UrlError;

/// Redis can't be used as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is at fault.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// A certificate file is unreadable or holds none.
    #[error("{path}: {reason}")]
    Certificates {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS could not be set up.
    #[error("TLS could not be set up: {0}")]
    Tls(String),
    /// The prefix of the keys is at fault.
    #[error("a prefix has 1 to 64 letters, digits, `.`, `_`, `-` or `:`")]
    Prefix,
    /// There is no runtime to connect on.
    #[error("there is no runtime to connect on")]
    NoRuntime,
}
