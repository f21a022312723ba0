//! Instances that share state.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drawbridge_core::Tasks;
use drawbridge_core::event_log::{SessionKey, StreamKey};
use drawbridge_core::state::{InstanceId, MemoryState, SharedState};
use drawbridge_redis::{RedisOptions, RedisState};
use drawbridge_testkit::redis::{Cluster, RedisServer, Sentinel};
use drawbridge_testkit::soon;

/// Two instances, and how to make another one.
pub(crate) struct Fleet {
    pub(crate) one: SharedState,
    pub(crate) two: SharedState,
    common: Common,
}

enum Common {
    Memory(MemoryState),
    Redis(Box<Redis>),
}

struct Redis {
    options: RedisOptions,
    /// Ends the connections, then the servers.
    instances: std::sync::Mutex<Vec<Instance>>,
    _servers: Box<dyn std::any::Any + Send + Sync>,
}

/// An instance over Redis; its connections end with it.
pub(crate) struct Instance {
    pub(crate) state: RedisState,
    pub(crate) shared: SharedState,
    pub(crate) tasks: Tasks,
}

impl Instance {
    /// An instance that begins to connect.
    pub(crate) fn start(options: &RedisOptions) -> Self {
        let tasks = Tasks::default();
        let state = RedisState::connect(options.clone(), InstanceId::fresh(), tasks.clone()).unwrap();
        Self { shared: state.shared(), state, tasks }
    }

    /// An instance that is connected.
    pub(crate) async fn connected(options: &RedisOptions) -> Self {
        let instance = Self::start(options);
        instance.up().await;
        instance
    }

    /// Waits until it is connected.
    pub(crate) async fn up(&self) {
        let waiting = tokio::time::timeout(Duration::from_secs(20), self.state.wait_until_up()).await;
        assert!(waiting.is_ok(), "not connected: {:?}", self.state.last_error());
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.tasks.stop_token().cancel();
    }
}

impl Fleet {
    pub(crate) async fn memory() -> Self {
        let state = MemoryState::new(64 << 20, Duration::from_secs(60));
        std::future::ready(()).await;
        Self { one: state.instance(true), two: state.instance(true), common: Common::Memory(state) }
    }

    pub(crate) async fn single() -> Self {
        let server = RedisServer::start().await;
        let url = server.url();
        Self::redis(&url, server).await
    }

    pub(crate) async fn cluster() -> Self {
        let cluster = Cluster::start(3, false).await;
        let url = cluster.url();
        Self::redis(&url, cluster).await
    }

    pub(crate) async fn sentinel() -> Self {
        let sentinel = Sentinel::start().await;
        let url = sentinel.url();
        Self::redis(&url, sentinel).await
    }

    async fn redis(url: &str, servers: impl Send + Sync + 'static) -> Self {
        let options = RedisOptions::parse(url).unwrap();
        let (one, two) = (Instance::connected(&options).await, Instance::connected(&options).await);
        let (first, second) = (one.shared.clone(), two.shared.clone());
        let instances = std::sync::Mutex::new(vec![one, two]);
        let redis = Redis { options, instances, _servers: Box::new(servers) };
        Self { one: first, two: second, common: Common::Redis(Box::new(redis)) }
    }

    /// An instance that was not there until now.
    pub(crate) async fn another(&self) -> SharedState {
        match &self.common {
            Common::Memory(state) => state.instance(true),
            Common::Redis(redis) => {
                let instance = Instance::connected(&redis.options).await;
                let shared = instance.shared.clone();
                redis.instances.lock().unwrap().push(instance);
                shared
            }
        }
    }

    /// Forgets what has expired, where that does not happen by itself.
    pub(crate) fn sweep(&self) {
        if let Common::Memory(state) = &self.common {
            state.sweep();
        }
    }
}

static COUNT: AtomicU64 = AtomicU64::new(1);

/// A session that no test had before.
pub(crate) fn session() -> SessionKey {
    let mut key = [0x5a; 16];
    key[..8].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    SessionKey(key)
}

/// A stream that no test had before.
pub(crate) fn stream() -> StreamKey {
    StreamKey { session: session(), stream: 7 }
}

/// A name that no test had before, with what names may have.
pub(crate) fn name(what: &str) -> String {
    let mut name = what.to_owned();
    let _ = write!(name, " {{{}}} ä/*", COUNT.fetch_add(1, Ordering::Relaxed));
    name
}

/// The value that `look` gives at last.
pub(crate) async fn at_last<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    soon(what, async {
        loop {
            if let Some(value) = look().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}
