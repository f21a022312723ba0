//! Puts the parts together.

use std::sync::Arc;

use drawbridge_core::Tasks;
use drawbridge_core::state::{InstanceId, SharedState};

use crate::bus::RedisBus;
use crate::claims::RedisClaims;
use crate::error::Error;
use crate::events::Events;
use crate::hub::Hub;
use crate::leases::RedisLeases;
use crate::limiter::RedisLimiter;
use crate::options::RedisOptions;
use crate::reader::{self, Feed, Inbox};
use crate::revocations::{Follower, Local, RedisRevocations};
use crate::sessions::Sessions;
use crate::topics::Topics;

/// Shared state in Redis, as one instance sees it. Cheap to clone.
#[derive(Clone)]
pub struct RedisState {
    hub: Arc<Hub>,
    shared: SharedState,
    revocations: Arc<Local>,
}

impl RedisState {
    /// Begins to connect, and returns at once: until Redis answers, and whenever it does not, the ports say
    /// [`Unavailable`](drawbridge_core::state::Unavailable). Connections live on the runtime that this is called on,
    /// until [`RedisState::close`], or until `tasks` are stopped for good; draining does not end them.
    ///
    /// # Errors
    ///
    /// If the options can't be used: a certificate file that is unreadable, or no runtime to connect on.
    pub fn connect(options: RedisOptions, instance: InstanceId, tasks: Tasks) -> Result<Self, Error> {
        let hub = Hub::new(&options, &instance, tasks)?;
        let topics = Topics::start(&hub);
        let local = Arc::new(Local::default());
        let (inbox, received, room) = Inbox::new(hub.keys.inbox(&instance), hub.keys.presence(&instance));
        let follower = Follower::new(hub.keys.revocations(), local.clone());
        let (inbox, follower) = (Feed::Inbox(inbox), Feed::Revocations(follower));
        if hub.is_cluster() {
            read(&hub, "inbox", vec![inbox]);
            read(&hub, "revocations", vec![follower]);
        } else {
            read(&hub, "inbox and revocations", vec![inbox, follower]);
        }
        let bus = RedisBus::new(hub.clone(), instance.clone(), topics, received, room);
        let shared = SharedState {
            instance,
            is_fleet: true,
            sessions: Arc::new(Sessions(hub.clone())),
            events: Arc::new(Events::new(hub.clone(), options.events)),
            revocations: Arc::new(RedisRevocations { hub: hub.clone(), local: local.clone() }),
            bus: Arc::new(bus),
            leases: Arc::new(RedisLeases(hub.clone())),
            claims: Arc::new(RedisClaims(hub.clone())),
            limiter: Arc::new(RedisLimiter(hub.clone())),
        };
        Ok(Self { hub, shared, revocations: local })
    }

    /// The ports.
    pub fn shared(&self) -> SharedState {
        self.shared.clone()
    }

    /// Whether all connections stand, and what was revoked before is known here.
    pub fn is_up(&self) -> bool {
        self.hub.health.is_up()
    }

    /// Whether what was revoked before is known here; once it is, it stays so.
    pub fn has_read_revocations(&self) -> bool {
        self.revocations.was_read()
    }

    /// Resolves when [`RedisState::is_up`].
    pub async fn wait_until_up(&self) {
        self.hub.health.wait_until_up().await;
    }

    /// What went wrong last, since the start; also when all is well again.
    pub fn last_error(&self) -> Option<String> {
        self.hub.health.last_error()
    }

    /// Closes all connections. The inbox and all subscriptions end, and whatever is asked from now on is answered
    /// [`Unavailable`](drawbridge_core::state::Unavailable).
    pub fn close(&self) {
        self.hub.close();
    }
}

fn read(hub: &Arc<Hub>, name: &'static str, feeds: Vec<Feed>) {
    hub.health.expect(name);
    hub.spawn("redis reader", reader::follow(hub.clone(), name, feeds));
}
