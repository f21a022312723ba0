//! Gets a request to the node that has its key, within the deadline.

mod cluster;
mod sentinel;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drawbridge_core::Tasks;
use drawbridge_core::state::{InstanceId, Unavailable};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use self::cluster::Cluster;
use self::sentinel::Sentinels;
use crate::error::Error;
use crate::health::Health;
use crate::keys::Keys;
use crate::link::{Dialer, Link, LinkError, Pushes, Role, describe};
use crate::node::Node;
use crate::observer::Observer;
use crate::options::RedisOptions;
use crate::request::{Request, is_misfit};
use crate::url::{Address, Servers};

/// How long a request waits before it is tried again where Redis said to.
const TRY_AGAIN: Duration = Duration::from_millis(25);
/// A request is sent on to another node at most so often.
const MAX_REDIRECTS: u32 = 8;

/// What to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// The server at an address.
    At(Address),
    /// Whoever is master.
    Master,
}

impl Target {
    /// How its connection for commands is called.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::At(address) => format!("commands to {address}"),
            Self::Master => "commands to the master".to_owned(),
        }
    }
}

enum Route {
    Single(Address),
    Sentinel(Sentinels),
    Cluster(Cluster),
}

/// The connections of an instance.
pub(crate) struct Hub {
    dialer: Dialer,
    route: Route,
    nodes: Mutex<HashMap<Target, Arc<Node>>>,
    pub(crate) health: Health,
    pub(crate) keys: Keys,
    pub(crate) timeout: Duration,
    pub(crate) observer: Arc<dyn Observer>,
    /// Cancelled when the instance is done with Redis.
    pub(crate) closing: CancellationToken,
    /// All connections belong to one runtime, whichever asks.
    runtime: Handle,
    tasks: Tasks,
}

impl Hub {
    pub(crate) fn new(
        options: &RedisOptions,
        instance: &InstanceId,
        tasks: Tasks,
    ) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let route = match &options.url.servers {
            Servers::Single(address) => Route::Single(address.clone()),
            Servers::Sentinel { sentinels, name } => {
                Route::Sentinel(Sentinels::new(sentinels.clone(), name.clone()))
            }
            Servers::Cluster(seeds) => Route::Cluster(Cluster::new(seeds.clone())),
        };
        let hub = Arc::new(Self {
            dialer: Dialer::new(options, instance.clone(), tasks.clone())?,
            route,
            nodes: Mutex::default(),
            health: Health::new(),
            keys: Keys::new(&options.prefix),
            timeout: options.timeout,
            observer: options.observer.clone(),
            closing: CancellationToken::new(),
            runtime,
            tasks,
        });
        match &hub.route {
            Route::Single(address) => drop(hub.node(Target::At(address.clone()))),
            Route::Sentinel(_) => drop(hub.node(Target::Master)),
            Route::Cluster(_) => {
                hub.health.expect(cluster::NAME);
                hub.spawn("redis cluster", cluster::follow(hub.clone()));
            }
        }
        Ok(hub)
    }

    /// Runs work on the hub's runtime until it ends or the hub is closed.
    pub(crate) fn spawn(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let _on = self.runtime.enter();
        let closing = self.closing.clone();
        self.tasks.spawn(name, work.with_cancellation_token_owned(closing).map(drop));
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.health.close();
        self.closing.cancel();
        self.nodes.lock().drain().for_each(|(_, node)| node.stop());
    }

    /// Whether there are several nodes, of which each has some keys.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    fn cluster(&self) -> Option<&Cluster> {
        match &self.route {
            Route::Cluster(cluster) => Some(cluster),
            Route::Single(_) | Route::Sentinel(_) => None,
        }
    }

    /// Who has a slot.
    pub(crate) async fn target(&self, slot: u16) -> Result<Target, Arc<str>> {
        match &self.route {
            Route::Single(address) => Ok(Target::At(address.clone())),
            Route::Sentinel(_) => Ok(Target::Master),
            Route::Cluster(cluster) => cluster.owner(slot).await.map(Target::At),
        }
    }

    /// The node that is connected to a target; begins to connect if there is none.
    fn node(self: &Arc<Self>, target: Target) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(&target) {
            return node.clone();
        }
        self.health.expect(&target.name());
        let node = Arc::new(Node::start(self, target.clone()));
        nodes.insert(target, node.clone());
        node
    }

    /// Opens a connection.
    pub(crate) async fn dial(
        &self,
        target: &Target,
        role: Role,
        pushes: Option<Pushes>,
    ) -> Result<Link, LinkError> {
        match (target, &self.route) {
            (Target::At(address), _) => self.dialer.dial(address, role, pushes).await,
            (Target::Master, Route::Sentinel(sentinels)) => {
                let address = sentinels.master(&self.dialer).await?;
                let link = self.dialer.dial(&address, role, pushes).await?;
                sentinel::check_master(&link, address, self.timeout).await?;
                Ok(link)
            }
            (Target::Master, _) => Err(LinkError::Discovery("there are no sentinels".to_owned())),
        }
    }

    /// Says that a connection stands, and whether it did before.
    pub(crate) fn connected(&self, name: &str, before: bool) {
        self.health.up(name);
        if before {
            self.observer.reconnected();
        }
    }

    /// A target can't be reached: perhaps another one has its keys by now.
    pub(crate) fn suspect(&self, target: &Target) {
        if let (Target::At(_), Some(cluster)) = (target, self.cluster()) {
            cluster.refresh();
        }
    }

    /// The answer to a request of a port, within the deadline.
    pub(crate) async fn call(
        self: &Arc<Self>,
        port: &'static str,
        request: Request,
    ) -> Result<Value, Unavailable> {
        let begun = Instant::now();
        let answer = match tokio::time::timeout(self.timeout, Box::pin(self.attempts(&request))).await {
            Ok(answer) => answer,
            Err(_) => Err(Unavailable(format!("Redis gave no answer within {:?}", self.timeout))),
        };
        if let Err(Unavailable(reason)) = &answer {
            self.health.failed(reason);
        }
        self.observer.command(port, begun.elapsed(), answer.is_ok());
        answer
    }

    async fn attempts(self: &Arc<Self>, request: &Request) -> Result<Value, Unavailable> {
        let unavailable = |reason: &str| Unavailable(reason.to_owned());
        let mut redirects = 0;
        let (mut lost, mut was_misfit) = (false, false);
        let mut ask = None;
        loop {
            let asking = ask.is_some();
            let target = match ask.take() {
                Some(address) => Target::At(address),
                None => self.target(request.slot()).await.map_err(|reason| unavailable(&reason))?,
            };
            let link = match self.node(target.clone()).link().await {
                Ok(link) => link,
                Err(reason) => match self.cluster() {
                    // Another node may have the slot by now, if it was this one's.
                    Some(cluster)
                        if redirects < MAX_REDIRECTS && cluster.moved_from(request.slot(), &target) =>
                    {
                        redirects += 1;
                        continue;
                    }
                    _ => return Err(unavailable(&reason)),
                },
            };
            let error = match request.run(&link, asking).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if is_misfit(&error) && !std::mem::replace(&mut was_misfit, true) {
                // It failed before it did anything.
                let deleted = request.without_misfits().run(&link, asking).await;
                tracing::warn!(
                    ?deleted,
                    "keys in Redis that are none of ours were in the way: {}",
                    describe(&error)
                );
                continue;
            }
            match self.judge(&error, &target, &link) {
                Next::Fail => return Err(Unavailable(describe(&error))),
                Next::Wait => tokio::time::sleep(TRY_AGAIN).await,
                Next::Lost if request.is_repeatable() && !lost => lost = true,
                Next::Lost => return Err(Unavailable(describe(&error))),
                Next::Moved | Next::Ask(_) if redirects == MAX_REDIRECTS => {
                    return Err(Unavailable(describe(&error)));
                }
                Next::Moved => redirects += 1,
                Next::Ask(address) => {
                    redirects += 1;
                    ask = Some(address);
                }
            }
        }
    }

    /// What an error means for the request that got it.
    fn judge(&self, error: &RedisError, target: &Target, link: &Link) -> Next {
        if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) {
            // The login was taken back: it takes another one.
            link.close();
            return Next::Fail;
        }
        let ErrorKind::Server(kind) = error.kind() else {
            // No error of the server: if the connection is lost, nobody knows whether the request was done.
            return if link.is_over() || error.is_io_error() { Next::Lost } else { Next::Fail };
        };
        let to = || {
            let (address, slot) = error.redirect_node()?;
            Some((cluster::address(address, target)?, slot))
        };
        match (kind, self.cluster()) {
            (ServerErrorKind::Moved, Some(cluster)) => match to() {
                Some((address, slot)) => {
                    cluster.moved(slot, address);
                    Next::Moved
                }
                None => Next::Fail,
            },
            (ServerErrorKind::Ask, Some(_)) => to().map_or(Next::Fail, |(address, _)| Next::Ask(address)),
            (ServerErrorKind::ClusterDown, Some(cluster)) => {
                cluster.refresh();
                Next::Wait
            }
            (ServerErrorKind::TryAgain | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown, _) => {
                Next::Wait
            }
            (ServerErrorKind::ReadOnly, _) => {
                // It was a master: whoever is one now is found when the connection is made again.
                self.suspect(target);
                link.close();
                Next::Wait
            }
            _ => Next::Fail,
        }
    }
}

/// What to do after an error.
enum Next {
    /// It stays an error.
    Fail,
    /// It was not done; try again in a moment.
    Wait,
    /// The connection was lost, and perhaps it was done.
    Lost,
    /// It was not done; another node has the slot.
    Moved,
    /// It was not done; this node is to be asked this once.
    Ask(Address),
}
