//! Events that clients may come back for: a stream of Redis per stream of a session.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::event_log::{EventLog, Page, StreamKey};
use drawbridge_core::state::Unavailable;

use crate::hub::Hub;
use crate::options::EventLimits;
use crate::request::{Request, millis, read};
use crate::scripts;

const PORT: &str = "events";
/// Arguments of one call may hold so many bytes of events; what is more goes into several.
const MAX_APPEND: usize = 1 << 20;

/// The log of events.
pub(crate) struct Events {
    hub: Arc<Hub>,
    limits: EventLimits,
}

impl Events {
    pub(crate) fn new(hub: Arc<Hub>, limits: EventLimits) -> Self {
        Self { hub, limits }
    }

    async fn append_some(
        &self,
        key: &str,
        before: u64,
        events: &[(u64, Bytes)],
        finished: bool,
    ) -> Result<(), Unavailable> {
        let EventLimits { max_events, max_bytes, ttl } = self.limits;
        let mut request = Request::script(&scripts::APPEND, &[key])
            .arg(millis(ttl))
            .arg(max_events.max(1))
            .arg(max_bytes)
            .arg(u8::from(finished))
            .arg(before)
            .again();
        for (number, text) in events {
            request = request.arg(*number).arg(&text[..]);
        }
        self.hub.call(PORT, request).await.map(drop)
    }
}

#[async_trait]
impl EventLog for Events {
    async fn append(
        &self,
        key: StreamKey,
        events: &[(u64, Bytes)],
        finished: bool,
    ) -> Result<(), Unavailable> {
        let key = self.hub.keys.events(&key);
        let mut rest = events;
        loop {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|(_, text)| {
                bytes += text.len();
                bytes <= MAX_APPEND
            });
            let (now, later) = rest.split_at(fits.count().max(1).min(rest.len()));
            let before = now.first().map_or(0, |(number, _)| number.saturating_sub(1));
            self.append_some(&key, before, now, finished && later.is_empty()).await?;
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }

    async fn read_after(&self, key: StreamKey, seq: u64) -> Result<Option<Page>, Unavailable> {
        let request = Request::script(&scripts::READ_AFTER, &[&self.hub.keys.events(&key)]);
        let answer: Option<Vec<Bytes>> = read(self.hub.call(PORT, request.arg(seq).again()).await?)?;
        let Some(answer) = answer else { return Ok(None) };
        let mut parts = answer.into_iter();
        let (dropped, finished) = (number(parts.next())?, number(parts.next())?);
        if dropped > seq {
            return Ok(None);
        }
        let mut events = Vec::with_capacity(parts.len() / 2);
        while let (Some(seq), Some(text)) = (parts.next(), parts.next()) {
            events.push((number(Some(seq))?, text));
        }
        Ok(Some(Page { events, finished: finished == 1 }))
    }
}

fn number(text: Option<Bytes>) -> Result<u64, Unavailable> {
    let text = text.as_deref().and_then(|text| std::str::from_utf8(text).ok());
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| Unavailable("a stream in Redis is none of ours".to_owned()))
}
