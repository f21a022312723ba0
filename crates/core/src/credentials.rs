//! The port for what backends are called with. The engine knows nothing of it: faces of backends ask for a credential
//! with each request, on behalf of whoever calls, and tell when one was refused.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::client::Principal;
use crate::fault::Fault;

/// What a request to a backend proves itself with: headers.
#[derive(Clone)]
pub struct Credential {
    headers: Arc<[(String, String)]>,
    id: Arc<str>,
}

impl Credential {
    /// Headers, and a name that tells them from others of the same backend. The name is no secret.
    pub fn new(headers: impl Into<Arc<[(String, String)]>>, id: &str) -> Self {
        Self { headers: headers.into(), id: Arc::from(id) }
    }

    /// A bearer token (RFC 6750).
    pub fn bearer(token: &str, id: &str) -> Self {
        Self::new([("authorization".to_owned(), format!("Bearer {token}"))], id)
    }

    /// Names and values.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Which one it is.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How a backend has refused a request because of its credential. Nothing was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status: 401 or 403.
    pub status: u16,
    /// Its `WWW-Authenticate`.
    pub challenge: Option<String>,
}

/// Gives credentials for one backend.
#[async_trait]
pub trait Credentials: Send + Sync {
    /// What a request on behalf of `whom` is sent with. Mostly that is known and costs nothing.
    ///
    /// # Errors
    ///
    /// If there is none: [`Fault::NotConnected`] if the user has to do something about it, else another.
    async fn find(&self, whom: &Principal) -> Result<Credential, Fault>;

    /// The backend has refused a credential. Returns another one to send the request with once more; `None` if the
    /// refusal stands.
    ///
    /// # Errors
    ///
    /// If there is to be another one and it can't be had.
    async fn refused(
        &self,
        whom: &Principal,
        credential: &Credential,
        refusal: &Refusal,
    ) -> Result<Option<Credential>, Fault>;
}
