//! One stream of a stateless backend for all instances.
//!
//! Whoever needs a stream for a kind of clients first opens it, under a lease, and all others listen there: what they
//! want is added to what it is asked for. When the owner is gone, each of them opens its own stream anew, and one
//! becomes the owner. Where shared state is away, an instance listens by itself until that is back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::call::{Call, Emitter, Event, Events, generate};
use drawbridge_core::fleet::relay::{self, CallFrame, frame, unframe};
use drawbridge_core::fleet::{Channel, Held, Ownership, Peers, Service};
use drawbridge_core::state::InstanceId;
use drawbridge_core::{BackendName, Client, Fault, Tasks};
use drawbridge_wire::message::Field;
use futures_util::StreamExt as _;

use super::Filter;
use super::listen::{Caller, Hubs};
use crate::options::Options;

/// How often the owner is looked for anew before an instance listens by itself: one that is gone is known to be after some
/// seconds.
const TRIES: usize = 25;
const PAUSE: Duration = Duration::from_millis(200);
/// How many leases there are for a backend.
const GROUPS: u8 = 64;
/// How often an instance that listens by itself looks whether it still has to.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Opens streams that `direct` opens, once for all instances.
pub(crate) fn caller(direct: &Caller, options: &Options, tasks: &Tasks) -> Caller {
    let (peers, backend) = (options.peers.clone(), options.name.clone());
    if !peers.state().is_fleet {
        return direct.clone();
    }
    let streams = Hubs::new(&backend, direct.clone(), tasks.clone());
    let once = Arc::new(Once { peers, backend, streams });
    once.peers.serve(once.service(), Arc::new(Desk(Arc::downgrade(&once))));
    Arc::new(move |call| {
        let once = once.clone();
        generate(|emit| async move { once.run(&emit, &call).await })
    })
}

struct Once {
    peers: Peers,
    backend: BackendName,
    /// Those of this instance and, where it is the owner, of the others.
    streams: Hubs,
}

impl Once {
    fn service(&self) -> String {
        format!("listen:{}", self.backend)
    }

    /// Whose the stream for clients like `client` is; this instance's if it was nobody's. `None` if nobody knows.
    async fn owner(&self, client: &Client) -> Option<Ownership> {
        self.peers.confirm().await;
        // Leases leave something behind, so there are not as many as kinds of clients.
        let group = client.profile().digest()[0] % GROUPS;
        self.peers.own(&format!("listen:{}:{group}", self.backend)).await.ok()
    }

    async fn run(self: &Arc<Self>, emit: &Emitter, call: &Call) -> Event {
        for _ in 0..TRIES {
            let events = match self.owner(&call.client).await {
                None => break,
                Some(Ownership::Mine { held, .. }) => Some(self.here(held, call)),
                Some(Ownership::Theirs(owner)) => self.there(&owner, call).await,
            };
            if let Some(events) = events
                && let Some(last) = pass_on(emit, events).await
            {
                return last;
            }
            // It is about to give the lease back, or to be known to be gone.
            tokio::time::sleep(PAUSE).await;
        }
        self.alone(emit, call).await
    }

    async fn listen(&self, emit: &Emitter, call: &Call) -> Event {
        let wanted = Filter::read_whole(call.request.raw(Field::Notifications).unwrap_or(b"{}"));
        self.streams.listen(emit, &call.client, wanted).await
    }

    /// Listens here, for as long as this instance is the owner.
    fn here(self: &Arc<Self>, held: Arc<Held>, call: &Call) -> Events {
        let (once, call) = (self.clone(), call.clone());
        generate(|emit| async move {
            tokio::select! {
                last = once.listen(&emit, &call) => last,
                () = held.lost().cancelled() => Event::Fail(Fault::Draining),
            }
        })
    }

    /// Listens at the owner. `None` if that is gone.
    async fn there(&self, owner: &InstanceId, call: &Call) -> Option<Events> {
        let opening = frame(&CallFrame::from(call), call.request.bytes());
        let channel = self.peers.open(owner, &self.service(), opening).await.ok()?;
        // Whether it was not the owner, or went.
        Some(relay::receive(channel, |_| Event::Fail(Fault::Draining)))
    }

    /// Listens without an owner until there can be one.
    async fn alone(&self, emit: &Emitter, call: &Call) -> Event {
        let owned = async {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                if self.owner(&call.client).await.is_some() {
                    return;
                }
            }
        };
        tokio::select! {
            last = self.listen(emit, call) => last,
            () = owned => Event::Fail(Fault::Draining),
        }
    }
}

/// Passes the events of a listen on. `None` if whoever listens went before anything came: then it is to be asked elsewhere.
async fn pass_on(emit: &Emitter, mut events: Events) -> Option<Event> {
    let mut has_begun = false;
    let last = loop {
        match events.next().await {
            Some(event) if event.is_terminal() => break event,
            Some(event) => {
                has_begun = true;
                emit.emit(event).await;
            }
            None => break Event::Fail(Fault::Draining),
        }
    };
    (has_begun || !matches!(last, Event::Fail(Fault::Draining))).then_some(last)
}

/// Where other instances listen.
struct Desk(Weak<Once>);

#[async_trait]
impl Service for Desk {
    async fn accept(&self, opening: Bytes, channel: Channel) {
        let Some(once) = self.0.upgrade() else { return };
        let call = unframe::<CallFrame>(&opening).and_then(|(call, request)| call.read(request));
        let Some(call) = call else { return };
        let Some(Ownership::Mine { held, .. }) = once.owner(&call.client).await else {
            return relay::elsewhere(&channel).await;
        };
        relay::tell(channel, once.here(held, &call)).await;
    }
}
