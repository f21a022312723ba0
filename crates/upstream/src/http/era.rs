//! Finding out what a backend speaks (MCP 2026-07-28, versioning; `transports` § Backward Compatibility).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drawbridge_core::{Client, Fault, Principal};
use drawbridge_wire::{Id, Kind, ProtocolVersion, code};
use http::{HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;

use super::shared::Shared;
use crate::answer::{self, Answer, EventStream};
use crate::modern;
use crate::options::{EraChoice, Options, TransportChoice};

/// What a backend speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// Stateless.
    Modern,
    /// Sessions over Streamable HTTP.
    Legacy,
    /// Stateless, and perhaps sessions on the same URL: until it has refused a handshake.
    Both,
    /// Sessions over HTTP+SSE.
    Sse,
}

/// The finding about one backend.
pub(super) struct Verdict {
    pinned: Option<Era>,
    ttl: Duration,
    found: Mutex<Option<(Era, Instant)>>,
    /// A server that answers statelessly has refused a handshake; it is not tried again.
    refuses_sessions: AtomicBool,
    asking: tokio::sync::Mutex<()>,
}

/// How long the answer to the probe may take. A server that needs longer is not told from one that hangs.
const PROBE_TIME: Duration = Duration::from_secs(10);
const STREAM_PROBE_TIME: Duration = Duration::from_secs(3);

impl Verdict {
    pub(super) fn new(options: &Options, transport: TransportChoice) -> Self {
        let pinned = match (transport, options.era) {
            (TransportChoice::Sse, _) => Some(Era::Sse),
            (_, EraChoice::Legacy) if transport == TransportChoice::StreamableHttp => Some(Era::Legacy),
            (_, EraChoice::Modern) => Some(Era::Modern),
            _ => None,
        };
        Self {
            pinned,
            ttl: options.era_ttl,
            found: Mutex::new(None),
            refuses_sessions: AtomicBool::new(false),
            asking: tokio::sync::Mutex::default(),
        }
    }

    fn fresh(&self) -> Option<Era> {
        self.pinned.or_else(|| {
            let found = *self.found.lock();
            found.filter(|(_, at)| at.elapsed() < self.ttl).map(|(era, _)| era)
        })
    }

    /// The last finding, by name.
    pub(super) fn known(&self) -> Option<&'static str> {
        let found = self.pinned.or_else(|| self.found.lock().map(|(era, _)| era))?;
        Some(match found {
            Era::Modern => "modern",
            Era::Legacy => "legacy",
            Era::Both => "both",
            Era::Sse => "sse",
        })
    }

    /// The era, by asking on behalf of `whom` if it is not known. A backend that can't be reached leaves no finding.
    pub(super) async fn find(
        &self,
        shared: &Shared,
        transport: TransportChoice,
        whom: &Principal,
    ) -> Result<Era, Fault> {
        if let Some(era) = self.fresh() {
            return Ok(era);
        }
        let _turn = self.asking.lock().await;
        if let Some(era) = self.fresh() {
            return Ok(era);
        }
        // Boxed, so that those who know keep no room for it.
        let era = match Box::pin(ask(shared, transport, whom)).await? {
            Era::Both if self.refuses_sessions.load(Ordering::Relaxed) => Era::Modern,
            era => era,
        };
        tracing::info!(backend.name = %shared.options.name, era = ?era, "backend probed");
        *self.found.lock() = Some((era, Instant::now()));
        Ok(era)
    }

    /// The finding was wrong.
    pub(super) fn forget(&self) {
        *self.found.lock() = None;
    }

    /// Something speaks against the finding. Returns whether there is now another one, or none, so that asking
    /// again could help.
    pub(super) fn doubt(&self) -> bool {
        let mut found = self.found.lock();
        match *found {
            _ if self.pinned.is_some() => false,
            Some((Era::Both, at)) => {
                *found = Some((Era::Modern, at));
                self.refuses_sessions.store(true, Ordering::Relaxed);
                true
            }
            Some((_, at)) if at.elapsed() > Duration::from_secs(1) => {
                *found = None;
                true
            }
            _ => false,
        }
    }
}

/// The client as which the gateway asks for itself.
pub(crate) fn prober() -> Client {
    Client {
        principal: Principal::named("gateway"),
        version: ProtocolVersion::LATEST,
        capabilities: "{}".into(),
        info: Some(drawbridge_core::endpoint::SERVER_INFO.into()),
        answers: drawbridge_core::Answers::ByRetry,
    }
}

pub(super) fn headers(request: &drawbridge_wire::Message) -> Vec<(HeaderName, HeaderValue)> {
    modern::headers(request)
        .into_iter()
        .filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_str(&value).ok()?))
        })
        .collect()
}

async fn ask(shared: &Shared, transport: TransportChoice, whom: &Principal) -> Result<Era, Fault> {
    if shared.options.era == EraChoice::Legacy {
        return Ok(if speaks_sse(shared, whom).await { Era::Sse } else { Era::Legacy });
    }
    let request = modern::discover(&Id::from_number(1), &prober());
    let asked = async {
        let response = shared.post(whom, &headers(&request), request.bytes().clone()).await?;
        match answer::read(response, &shared.options).await? {
            Answer::Stream(mut stream) => {
                while let Some(message) = stream.next_message(&shared.options).await? {
                    if message.kind() != Kind::Notification {
                        return Ok(Answer::Message(StatusCode::OK, message));
                    }
                }
                Ok(Answer::Accepted)
            }
            other => Ok(other),
        }
    };
    let late = || shared.options.late(drawbridge_core::fault::Deadline::FirstByte);
    let answer = tokio::time::timeout(PROBE_TIME, asked).await.map_err(|_| late())?;
    match answer {
        Ok(Answer::Message(_, message)) if modern::speaks(&message) => {
            // Servers of both eras do not list the versions with sessions, so only trying a handshake can tell.
            Ok(Era::Both)
        }
        // An error in JSON-RPC comes from a server on this very URL.
        Ok(Answer::Message(_, message)) if message.error_code() != code::METHOD_NOT_FOUND => Ok(Era::Legacy),
        Ok(Answer::Other(status)) if status.is_server_error() => {
            Err(shared.options.unreachable(format!("HTTP {status}")))
        }
        Ok(Answer::Other(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED))
            if transport == TransportChoice::Auto && speaks_sse(shared, whom).await =>
        {
            Ok(Era::Sse)
        }
        Ok(_) => Ok(Era::Legacy),
        // Something answered that is no MCP server, as a page at the URL of an SSE server may.
        Err(Fault::BadAnswer { .. })
            if transport == TransportChoice::Auto && speaks_sse(shared, whom).await =>
        {
            Ok(Era::Sse)
        }
        Err(fault) => Err(fault),
    }
}

/// Whether a GET is answered as the two-endpoint transport does: with an event that names the other endpoint.
async fn speaks_sse(shared: &Shared, whom: &Principal) -> bool {
    let first = async {
        let response = shared.get(whom, &[], STREAM_PROBE_TIME).await.ok()?;
        let mut stream = EventStream::of(response, &shared.options)?;
        stream.next(&shared.options).await.ok()?
    };
    let first = tokio::time::timeout(STREAM_PROBE_TIME, first).await.ok().flatten();
    first.is_some_and(|event| event.name.as_deref() == Some(b"endpoint"))
}
