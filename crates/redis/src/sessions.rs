//! What changes in sessions: a hash per session.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::state::{SessionState, Unavailable};

use crate::hub::Hub;
use crate::request::{Request, millis, read};
use crate::scripts;

const PORT: &str = "sessions";

/// The fields of sessions.
pub(crate) struct Sessions(pub(crate) Arc<Hub>);

#[async_trait]
impl SessionState for Sessions {
    async fn get(&self, session: SessionKey, field: &str) -> Result<Option<Bytes>, Unavailable> {
        let request = Request::command("HGET", &self.0.keys.session(&session)).arg(field).again();
        read(self.0.call(PORT, request).await?)
    }

    async fn put_if_absent(
        &self,
        session: SessionKey,
        field: &str,
        value: Bytes,
        ttl: Duration,
    ) -> Result<Bytes, Unavailable> {
        let request = Request::script(&scripts::PUT_IF_ABSENT, &[&self.0.keys.session(&session)]);
        let request = request.arg(field).arg(&value[..]).arg(millis(ttl)).again();
        read(self.0.call(PORT, request).await?)
    }

    async fn replace(
        &self,
        session: SessionKey,
        field: &str,
        old: &[u8],
        new: Bytes,
        ttl: Duration,
    ) -> Result<bool, Unavailable> {
        let request = Request::script(&scripts::REPLACE, &[&self.0.keys.session(&session)]);
        let request = request.arg(field).arg(old).arg(&new[..]).arg(millis(ttl));
        read(self.0.call(PORT, request).await?)
    }

    async fn remove(&self, session: SessionKey, field: &str, old: &[u8]) -> Result<bool, Unavailable> {
        let request = Request::script(&scripts::REMOVE, &[&self.0.keys.session(&session)]);
        read(self.0.call(PORT, request.arg(field).arg(old)).await?)
    }

    async fn touch(&self, session: SessionKey, ttl: Duration) -> Result<Option<Duration>, Unavailable> {
        let request = Request::script(&scripts::TOUCH, &[&self.0.keys.session(&session)]);
        let left: i64 = read(self.0.call(PORT, request.arg(millis(ttl))).await?)?;
        Ok(u64::try_from(left).ok().map(Duration::from_millis))
    }

    async fn take(&self, session: SessionKey) -> Result<Vec<(String, Bytes)>, Unavailable> {
        let request = Request::script(&scripts::TAKE, &[&self.0.keys.session(&session)]);
        read(self.0.call(PORT, request).await?)
    }
}
