//! The two-endpoint transport of 2024-11-05: messages to the backend are posted, all of its own come on one
//! stream of events.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::fault::Deadline;
use drawbridge_core::{Fault, Principal};
use http::Uri;

use super::shared::Shared;
use crate::answer::{self, Answer, EventStream};
use crate::pipe::{Carrier, Channel, Dialect, Received, Receiver, Sender};

/// Opens connections to one backend.
pub(super) struct SseCarrier(pub(super) Arc<Shared>, pub(super) Principal);

#[async_trait]
impl Carrier for SseCarrier {
    async fn connect(&self, _: Dialect) -> Result<Channel, Fault> {
        let shared = &self.0;
        let options = &shared.options;
        let head = shared.get(&self.1, &[], options.connect_timeout.saturating_mul(2)).await?;
        let status = head.status();
        let mut stream = EventStream::of(head, options)
            .ok_or_else(|| options.bad_answer(format!("HTTP {status} and no stream of events")))?
            .patient();
        let named = async {
            loop {
                match stream.next(options).await? {
                    Some(event) if event.name.as_deref() == Some(b"endpoint") => return Ok(event.data),
                    Some(_) => {}
                    None => return Err(options.bad_answer("the stream ended before it named its endpoint")),
                }
            }
        };
        let named = tokio::time::timeout(options.connect_timeout, named)
            .await
            .map_err(|_| options.late(Deadline::Connect))??;
        let endpoint = resolve(&shared.target.url, &named)
            .ok_or_else(|| options.bad_answer("it names an endpoint of another origin"))?;
        let sender = Arc::new(Posting { shared: shared.clone(), whom: self.1.clone(), endpoint });
        Ok(Channel { sender, receiver: Box::new(Reading { shared: shared.clone(), stream }) })
    }

    fn idle_stop(&self) -> Option<Duration> {
        None
    }
}

/// The endpoint that an event names, which must be of the same origin as the stream.
fn resolve(stream: &url::Url, named: &[u8]) -> Option<Uri> {
    let endpoint = stream.join(std::str::from_utf8(named).ok()?.trim()).ok()?;
    (endpoint.origin() == stream.origin()).then(|| endpoint.as_str().parse().ok()).flatten()
}

struct Posting {
    shared: Arc<Shared>,
    whom: Principal,
    endpoint: Uri,
}

#[async_trait]
impl Sender for Posting {
    async fn send(&self, message: Bytes) -> Result<(), Fault> {
        let options = &self.shared.options;
        let response = self.shared.post_to(&self.whom, &self.endpoint, &[], message).await?;
        let status = response.status();
        if status.is_success() {
            // Servers answer 202 or 200 with any text; what matters comes on the stream.
            drop(response);
            return Ok(());
        }
        match answer::read(response, options).await? {
            Answer::Message(..) | Answer::Accepted | Answer::Stream(_) | Answer::Other(_) => {
                Err(options.bad_answer(format!("HTTP {status} to a message")))
            }
        }
    }
}

struct Reading {
    shared: Arc<Shared>,
    stream: EventStream,
}

#[async_trait]
impl Receiver for Reading {
    async fn receive(&mut self) -> Received {
        loop {
            match self.stream.next(&self.shared.options).await {
                Ok(Some(event)) if event.name.as_deref().is_none_or(|name| name == b"message") => {
                    return Received::Message(event.data);
                }
                Ok(Some(_)) => {}
                Ok(None) => return Received::Closed("the backend closed its stream".to_owned()),
                Err(fault) => return Received::Closed(fault.to_string()),
            }
        }
    }

    async fn close(self: Box<Self>, _carrier: &dyn Carrier) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_of_another_origin_is_refused() {
        let stream = url::Url::parse("http://a.example:8080/x/sse").unwrap();
        let path = |named: &[u8]| resolve(&stream, named).map(|uri| uri.to_string());
        assert_eq!(path(b"/messages?sessionId=1").unwrap(), "http://a.example:8080/messages?sessionId=1");
        assert_eq!(path(b"messages").unwrap(), "http://a.example:8080/x/messages");
        assert_eq!(path(b"http://a.example:8080/m").unwrap(), "http://a.example:8080/m");
        for foreign in
            ["http://b.example:8080/m", "//b.example/m", "https://a.example:8080/m", "http://a.example/m"]
        {
            assert_eq!(path(foreign.as_bytes()), None, "{foreign}");
        }
    }
}
