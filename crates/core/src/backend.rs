//! The port to backends, implemented by the upstream faces.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_wire::{Id, Message};

use crate::call::{Call, Event, Events};
use crate::client::Client;
use crate::event_log::SessionKey;
use crate::fault::Fault;
use crate::rights::Rights;

/// The configured name of a backend or an endpoint: `[a-z0-9-]{1,32}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendName(Arc<str>);

impl BackendName {
    /// Checks the name.
    pub fn parse(text: &str) -> Option<Self> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        ((1..=32).contains(&text.len()) && text.bytes().all(legal)).then(|| Self(Arc::from(text)))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a backend says about itself to a client of some profile.
#[derive(Debug, Clone)]
pub struct Description {
    /// Its `serverInfo`, raw JSON.
    pub server_info: Bytes,
    /// Its capabilities, a raw JSON object.
    pub capabilities: Bytes,
    /// Its `instructions`, a raw JSON string.
    pub instructions: Option<Bytes>,
    /// The `_meta` of the answer, raw JSON.
    pub meta: Option<Bytes>,
    /// Until when it may be kept, and the raw `cacheScope`, where the backend says.
    pub cache: Option<(Instant, Bytes)>,
}

/// With whom a conversation is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// With nobody: it is part of this session of a client.
    Session(SessionKey),
    /// With all clients of the same profile.
    Profile,
}

/// A configured MCP server.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Its name.
    fn name(&self) -> &BackendName;

    /// What it says about itself to `client`: only what works for a client of this kind. Asked of the backend at most once per profile and validity.
    async fn describe(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault>;

    /// A conversation for `client`. Costs nothing: the backend hears of it with the first call. What comes
    /// outside of calls goes to `sink`.
    fn open(
        self: Arc<Self>,
        client: &Arc<Client>,
        scope: Scope,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation>;

    /// How long a merged list waits for this backend.
    fn list_timeout(&self) -> Duration;

    /// Which protocol it was found to speak, if that is known: `modern`, `legacy`, `both` or `sse`.
    fn speaks(&self) -> Option<&'static str> {
        None
    }

    /// Whether `id` is the name of a task that `client` has there.
    fn has_task(&self, _client: &Client, _id: &str) -> bool {
        false
    }

    /// Whether calling this tool changes nothing, if that is known.
    fn reads(&self, _tool: &str) -> Option<bool> {
        None
    }

    /// What it tells of changes goes to `memory` too, as far as it comes, whether or not somebody listens.
    fn remind(&self, _memory: Weak<dyn Unsolicited>) {}

    /// What was remembered of its answers may be wrong: whoever remembers asks anew.
    fn forget(&self) {}

    /// Ends what the backend keeps open (processes, spare sessions).
    async fn close(&self);
}

/// What one client, or several of one profile, say to one backend. For backends with sessions it is a session.
#[async_trait]
pub trait Conversation: Send + Sync {
    /// Starts a call.
    fn call(self: Arc<Self>, call: Call) -> Events;

    /// Passes on a notification of the client. A backend that has no use for it never sees it.
    async fn notify(&self, notification: Message);

    /// Makes sure that what the backend sends outside of calls is received from now on, even before the first
    /// call.
    fn listen(self: Arc<Self>);

    /// What the backend sends outside of calls is of no interest any more, except while a call runs.
    fn stop_listening(&self);

    /// Goes on with the call whose request had this id, and which an instance had that is gone. `None` where that can't
    /// be: nobody knows then how it ended.
    async fn take_up(self: Arc<Self>, _id: &Id, _rights: Option<Arc<dyn Rights>>) -> Option<TakenUp> {
        None
    }

    /// Ends the conversation at the backend.
    async fn close(&self);

    /// This instance has no more use for the conversation. It ends if no other instance goes on with it.
    async fn leave(&self) {
        self.close().await;
    }
}

/// A call that goes on at another instance than it was begun at.
pub struct TakenUp {
    /// The method of its request.
    pub method: String,
    /// What happens to it from now on; something may come a second time.
    pub events: Events,
}

/// Takes what a backend sends outside of calls.
pub trait Unsolicited: Send + Sync {
    /// Takes one event. Must not block; what can't be kept is dropped, and a dropped ask counts as refused.
    fn deliver(&self, event: Event);

    /// Whether several principals have the conversation in common, so that what is meant for one must not reach another.
    fn is_shared(&self) -> bool {
        false
    }
}
