//! Where the instances of the gateway keep what they share: in memory, or in Redis.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use drawbridge_core::Tasks;
use drawbridge_core::metrics::{Direction, Metrics, Port};
use drawbridge_core::state::{InstanceId, MemoryState, SharedState};
use drawbridge_redis::{Observer, RedisState};

use crate::config::Config;

/// Counts what goes between this instance and Redis.
struct Counted(Arc<Metrics>);

impl Observer for Counted {
    fn command(&self, port: &'static str, took: Duration, ok: bool) {
        let redis = &self.0.redis;
        if let Some(port) = Port::ALL.iter().find(|known| known.as_str() == port) {
            let commands = redis.port(*port);
            commands.duration.observe(took);
            if !ok {
                commands.errors.inc();
            }
        }
    }

    fn bus_message(&self, direction: &'static str) {
        let direction = if direction == "out" { Direction::Sent } else { Direction::Received };
        self.0.redis.bus(direction).inc();
    }
}

/// What is shared, and how to look after it.
#[derive(Clone)]
pub enum Store {
    /// There is one instance.
    Memory(MemoryState),
    /// There may be several.
    Redis(RedisState),
}

impl Store {
    /// The store that the configuration names. Does not wait for Redis. Its connections are among `tasks`.
    ///
    /// # Errors
    ///
    /// If Redis can't be used as configured.
    pub fn open(
        config: &Config,
        metrics: &Arc<Metrics>,
        tasks: &Tasks,
    ) -> anyhow::Result<(Self, SharedState)> {
        let limits = &config.limits;
        let Some(redis) = &config.redis else {
            let memory = MemoryState::new(limits.event_log_bytes, limits.event_log_ttl);
            let shared = memory.instance(false);
            return Ok((Self::Memory(memory), shared));
        };
        let options = redis.options(limits).context("redis")?.observer(Arc::new(Counted(metrics.clone())));
        let state = RedisState::connect(options, InstanceId::fresh(), tasks.clone()).context("redis")?;
        let shared = state.shared();
        Ok((Self::Redis(state), shared))
    }

    /// Forgets what has expired. To be called now and then.
    pub fn sweep(&self) {
        if let Self::Memory(memory) = self {
            memory.sweep();
        }
    }

    /// Notes whether it can be reached. To be called now and then.
    pub fn observe(&self, metrics: &Metrics) {
        if let Self::Redis(state) = self {
            metrics.redis.up.set(state.is_up());
        }
    }

    /// What keeps the gateway from doing all that it can.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Redis(state) if !state.is_up() => {
                let why = state.last_error().unwrap_or_else(|| "not connected yet".to_owned());
                Some(format!("Redis: {why}"))
            }
            Self::Memory(_) | Self::Redis(_) => None,
        }
    }

    /// Whether sessions that were ended before this instance came are known here.
    pub fn knows_what_was_ended(&self) -> bool {
        match self {
            Self::Redis(state) => state.has_read_revocations(),
            Self::Memory(_) => true,
        }
    }

    /// Ends its connections.
    pub fn close(&self) {
        if let Self::Redis(state) = self {
            state.close();
        }
    }
}
