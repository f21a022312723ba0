//! What goes wrong between a call and its result, with the three answers every reader wants: which code, whose
//! fault, and may it be tried again.

use std::time::Duration;

use drawbridge_wire::RpcError;
use drawbridge_wire::code as rpc;
use serde::{Deserialize, Serialize};

use crate::accounts::Link;
use crate::metrics::LimitKind;

/// Who has to do something about a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The client asked for something it can't have.
    Caller,
    /// The gateway is full, stopping or wrong.
    Gateway,
    /// The backend or the way to it.
    Backend,
}

/// Whether the same request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Nothing was done.
    Safe,
    /// Nothing was done; wait first.
    After(Duration),
    /// It may have been done already.
    Unsafe,
    /// It would fail again.
    Useless,
}

/// Which deadline of a backend has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deadline {
    /// Until the connection stands.
    Connect,
    /// Until the first byte of the answer.
    FirstByte,
    /// Between two bytes of an answer.
    Idle,
    /// For the whole call.
    Total,
    /// In the queue for a process.
    Queue,
    /// For a process to start and shake hands.
    Start,
    /// For its part of a merged list.
    List,
}

impl Deadline {
    /// The configuration key that sets it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Connect => "connect_timeout",
            Self::FirstByte => "first_byte_timeout",
            Self::Idle => "idle_timeout",
            Self::Total => "timeout",
            Self::Queue => "queue_timeout",
            Self::Start => "start_timeout",
            Self::List => "list_timeout",
        }
    }
}

/// Which limit an answer of a backend has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Size {
    /// Of a JSON document.
    Result,
    /// Of an event in a stream.
    Event,
    /// Of a line of a process.
    Line,
}

impl Size {
    /// The key under `limits` in the configuration that sets it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Result => "max_result_bytes",
            Self::Event => "max_event_bytes",
            Self::Line => "max_line_bytes",
        }
    }
}

/// What there may be only so many of at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bounded {
    /// Open event streams.
    Streams,
    /// Sessions that something is kept for.
    Sessions,
    /// Calls that wait for a process.
    Queue,
    /// Requests that are being answered.
    #[serde(other)]
    Requests,
}

impl std::fmt::Display for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests",
            Self::Streams => "streams",
            Self::Sessions => "sessions in use",
            Self::Queue => "calls waiting for a process",
        })
    }
}

/// Why a call that has begun can't wait for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Unparked {
    /// This many wait already.
    #[error("{0} calls wait for an answer already (limits.max_parked_calls)")]
    Busy(usize),
    /// The gateway ends.
    #[error("the gateway is shutting down")]
    Draining,
}

/// Why a call has no answer of its backend. Instances tell each other, so it has a form on the wire too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Fault {
    #[error("backend \"{backend}\" is not reachable: {detail}")]
    Unreachable { backend: String, detail: String },
    #[error("backend \"{backend}\" could not be started: {detail}")]
    NotStarted { backend: String, detail: String },
    #[error("backend \"{backend}\" took longer than its {}; nothing more is known of the call", .deadline.key())]
    Timeout { backend: String, deadline: Deadline },
    #[error("backend \"{backend}\" gave an answer that is not MCP: {detail}")]
    BadAnswer { backend: String, detail: String },
    #[error(
        "backend \"{backend}\" refuses the gateway's credentials (HTTP {status}): check its headers, or its auth, in the configuration"
    )]
    Refused { backend: String, status: u16 },
    #[error("there is no credential for backend \"{backend}\" now: {detail}")]
    NoCredential { backend: String, detail: String },
    #[error("backend \"{backend}\" needs an account that the user has not connected")]
    NotConnected { backend: String },
    /// The same, where the client can have its user do that now. What it says is for the user, and has no link in it.
    #[error("{}", link.purpose)]
    ConnectFirst { backend: String, link: Link },
    #[error(
        "the identity provider does not allow backend \"{backend}\" for this user: ask whoever manages access in the organisation, or sign in again if that has changed"
    )]
    NotAllowed { backend: String },
    #[error(
        "the answer of backend \"{backend}\" is larger than the {limit} bytes that limits.{} allows", .size.key()
    )]
    TooLarge { backend: String, size: Size, limit: usize },
    #[error(
        "the connection to backend \"{backend}\" was lost after the call was sent ({detail}): its outcome is unknown"
    )]
    OutcomeUnknown { backend: String, detail: String },
    #[error("too many {what} at once (limit {limit}); try again later")]
    Busy { what: Bounded, limit: usize },
    #[error(
        "this comes too often for what is allowed of one {}; try again in {} s", .kind.as_str(), whole_seconds(*.retry_after)
    )]
    RateLimited { kind: LimitKind, retry_after: Duration },
    #[error("the gateway is shutting down; try again")]
    Draining,
    #[error("the gateway can't reach its shared state, which this needs ({detail}); try again")]
    StateUnavailable { detail: String },
    #[error("{why}, so the client can't be asked what the call needs; what the call has done is unknown")]
    NotParked { why: Unparked },
    #[error("the client gave no answer to {asked} within limits.answer_timeout")]
    NoAnswer { asked: String },
    #[error("the call needs {asked}, which the client refused: {said}")]
    ClientRefused { asked: String, said: String },
    /// An error that is answered as it is.
    #[error("{}", .0.message)]
    Rpc(#[serde(with = "rpc_error")] RpcError),
}

/// A time in whole seconds, for `Retry-After`: after them it has passed.
pub fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// An error of JSON-RPC between instances: code, message, and `data` as text.
mod rpc_error {
    use drawbridge_wire::RpcError;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(error: &RpcError, to: S) -> Result<S::Ok, S::Error> {
        let data = error.data.as_deref().map(String::from_utf8_lossy);
        (error.code, &error.message, data).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<RpcError, D::Error> {
        let (code, message, data) = <(i64, String, Option<String>)>::deserialize(from)?;
        Ok(RpcError { code, message, data: data.map(Into::into) })
    }
}

impl Fault {
    /// The stable name of the fault, as in logs and `docs/errors.md`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "backend_unreachable",
            Self::NotStarted { .. } => "backend_not_started",
            Self::Timeout { .. } => "backend_timeout",
            Self::BadAnswer { .. } => "backend_bad_answer",
            Self::Refused { .. } => "backend_refused",
            Self::NoCredential { .. } => "no_credential",
            Self::NotConnected { .. } | Self::ConnectFirst { .. } => "not_connected",
            Self::NotAllowed { .. } => "not_allowed",
            Self::TooLarge { .. } => "result_too_large",
            Self::OutcomeUnknown { .. } => "outcome_unknown",
            Self::Busy { .. } => "busy",
            Self::RateLimited { .. } => "rate_limited",
            Self::Draining => "draining",
            Self::StateUnavailable { .. } => "state_unavailable",
            Self::NoAnswer { .. } => "no_answer",
            Self::ClientRefused { .. } => "client_refused",
            Self::NotParked { why } => match why {
                Unparked::Busy(_) => "busy",
                Unparked::Draining => "draining",
            },
            Self::Rpc(_) => "rpc",
        }
    }

    /// All codes, for the documentation test.
    pub const CODES: [&'static str; 16] = [
        "backend_unreachable",
        "backend_not_started",
        "backend_timeout",
        "backend_bad_answer",
        "backend_refused",
        "no_credential",
        "not_connected",
        "not_allowed",
        "result_too_large",
        "outcome_unknown",
        "busy",
        "rate_limited",
        "draining",
        "state_unavailable",
        "no_answer",
        "client_refused",
    ];

    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Busy { .. } | Self::Draining | Self::StateUnavailable { .. } | Self::NotParked { .. } => {
                Blame::Gateway
            }
            Self::Rpc(_)
            | Self::NoAnswer { .. }
            | Self::ClientRefused { .. }
            | Self::NotConnected { .. }
            | Self::ConnectFirst { .. }
            | Self::NotAllowed { .. }
            | Self::RateLimited { .. } => Blame::Caller,
            _ => Blame::Backend,
        }
    }

    /// What an operator can do about a fault of a backend; none for others.
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Unreachable { .. } => {
                "look whether it runs, at its url, and whether this instance may reach it (networks, outbound.proxy, \
                 certificates)"
            }
            Self::NotStarted { .. } => {
                "run its command by hand; what it says on standard error is in the log under its name"
            }
            Self::Timeout { .. } => "look at its load, and at the times that its configuration allows",
            Self::BadAnswer { .. } => "look whether its url is that of its MCP endpoint, with the right path",
            Self::Refused { .. } => {
                "look at the credentials that its configuration sends (headers, or auth), and what they may there"
            }
            Self::NoCredential { .. } => {
                "look in the log why there is no token: whether the authorization server that is named runs, and takes \
                 what auth of the backend says (client_id, client_secret, scopes, resource, audience); or the database"
            }
            Self::TooLarge { .. } => "raise the limit that is named, or let it answer in pages",
            Self::OutcomeUnknown { .. } => "look why it closes connections or ends: its own log says more",
            _ => return None,
        })
    }

    /// Whether trying again is safe.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Unreachable { .. } | Self::NotStarted { .. } => Retry::Safe,
            Self::RateLimited { retry_after, .. } => Retry::After(*retry_after),
            Self::Busy { .. }
            | Self::Draining
            | Self::StateUnavailable { .. }
            | Self::NoCredential { .. } => Retry::After(Duration::from_secs(1)),
            Self::Timeout { deadline: Deadline::Connect | Deadline::Queue | Deadline::Start, .. } => {
                Retry::Safe
            }
            Self::Timeout { .. }
            | Self::BadAnswer { .. }
            | Self::OutcomeUnknown { .. }
            | Self::NotParked { .. }
            | Self::NoAnswer { .. }
            | Self::ClientRefused { .. } => Retry::Unsafe,
            Self::Refused { .. }
            | Self::NotConnected { .. }
            | Self::ConnectFirst { .. }
            | Self::NotAllowed { .. }
            | Self::TooLarge { .. }
            | Self::Rpc(_) => Retry::Useless,
        }
    }

    /// The JSON-RPC error a client gets. `data` names the code and whether a retry is safe.
    pub fn to_rpc_error(&self) -> RpcError {
        if let Self::Rpc(error) = self {
            return error.clone();
        }
        let retry = match self.retry() {
            Retry::Safe | Retry::After(_) => "safe",
            Retry::Unsafe => "unsafe",
            Retry::Useless => "useless",
        };
        RpcError::new(rpc::INTERNAL_ERROR, self.to_string()).with_data(match self {
            Self::RateLimited { retry_after, .. } => format!(
                r#"{{"code":"{}","retry":"{retry}","retry_after":{}}}"#,
                self.code(),
                whole_seconds(*retry_after)
            ),
            _ => format!(r#"{{"code":"{}","retry":"{retry}"}}"#, self.code()),
        })
    }

    /// "Method not found", for a method that nothing here offers.
    pub fn method_not_found(method: &str) -> Self {
        Self::Rpc(RpcError::new(rpc::METHOD_NOT_FOUND, format!("method not found: {method}")))
    }

    /// "Invalid params".
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::Rpc(RpcError::new(rpc::INVALID_PARAMS, message))
    }
}

impl From<crate::state::Unavailable> for Fault {
    fn from(unavailable: crate::state::Unavailable) -> Self {
        // Where it is and what it said is for the operator's log, not for clients.
        tracing::debug!("shared state: {}", unavailable.0);
        Self::StateUnavailable { detail: "it does not answer".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_credentials_says_what_to_do_wherever_they_are_from() {
        let refused = Fault::Refused { backend: "gh".to_owned(), status: 401 };
        let none = Fault::NoCredential { backend: "gh".to_owned(), detail: "away".to_owned() };
        for fault in [refused, none] {
            assert_eq!(fault.blame(), Blame::Backend);
            assert!(fault.advice().is_some_and(|advice| advice.contains("auth")), "{fault}");
        }
    }

    #[test]
    fn what_is_logged_of_a_fault_has_no_link_of_a_user() {
        let link = Link {
            name: "0815".to_owned(),
            url: "https://gw.example/connect/gh?e=sealed".to_owned(),
            purpose: "Connect an account at gh to go on".to_owned(),
        };
        let fault = Fault::ConnectFirst { backend: "gh".to_owned(), link };
        assert!(!format!("{fault} {fault:?}").contains("sealed"));
        assert_eq!((fault.code(), fault.blame()), ("not_connected", Blame::Caller));
    }
}
