//! Headers that the configuration names, with values that may change in the files where they are kept.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drawbridge_core::credentials::{Credential, Credentials, Refusal};
use drawbridge_core::{Fault, Principal};

use crate::Secret;

/// What the value of a header is made of.
#[derive(Debug, Clone)]
pub enum Value {
    /// The secret itself.
    Plain(Secret),
    /// `Basic`, of a user and a password (RFC 7617).
    Basic(String, Secret),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Plain(secret) => secret.read(),
            Self::Basic(user, password) => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.read())))
            }
        }
    }
}

/// Headers by name, and those of another kind beside them.
pub struct Fixed {
    headers: Vec<(String, Value)>,
    beside: Option<Arc<dyn Credentials>>,
}

impl Fixed {
    /// These headers, and those that `beside` gives.
    pub fn new(headers: Vec<(String, Value)>, beside: Option<Arc<dyn Credentials>>) -> Self {
        Self { headers, beside }
    }

    fn with(&self, credential: &Credential) -> Credential {
        let own = self.headers.iter().map(|(name, value)| (name.clone(), value.text()));
        let others = credential.headers().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Credential::new(own.chain(others).collect::<Vec<_>>(), credential.id())
    }
}

#[async_trait]
impl Credentials for Fixed {
    async fn find(&self, whom: &Principal) -> Result<Credential, Fault> {
        match &self.beside {
            Some(beside) => Ok(self.with(&beside.find(whom).await?)),
            None => Ok(self.with(&Credential::new([], "fixed"))),
        }
    }

    async fn refused(
        &self,
        whom: &Principal,
        credential: &Credential,
        refusal: &Refusal,
    ) -> Result<Option<Credential>, Fault> {
        let Some(beside) = &self.beside else { return Ok(None) };
        let next = beside.refused(whom, credential, refusal).await?;
        Ok(next.map(|next| self.with(&next)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn values_are_read_when_they_are_needed() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let changing = Secret::read_by(move || format!("key {}", counted.fetch_add(1, Ordering::Relaxed)));
        let headers = vec![
            ("x-api-key".to_owned(), Value::Plain(changing)),
            ("authorization".to_owned(), Value::Basic("Aladdin".to_owned(), Secret::fixed("open sesame"))),
        ];
        let fixed = Fixed::new(headers, None);
        for expected in ["key 0", "key 1"] {
            let credential = fixed.find(&Principal::anonymous()).await.unwrap();
            let headers: Vec<_> = credential.headers().collect();
            assert_eq!(headers[0], ("x-api-key", expected));
            assert_eq!(headers[1], ("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
            assert!(!format!("{credential:?}").contains("key"));
        }
        let refusal = Refusal { status: 401, challenge: None };
        let credential = fixed.find(&Principal::anonymous()).await.unwrap();
        let next = fixed.refused(&Principal::anonymous(), &credential, &refusal).await.unwrap();
        assert!(next.is_none());
    }
}
