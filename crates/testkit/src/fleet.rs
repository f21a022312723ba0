//! Several gateways with one Redis.

use crate::client::{Client, Modern, Session};
use crate::gateway::{Gateway, Setup};
use crate::redis::RedisServer;
use crate::{PATIENCE, eventually};

/// Gateways of one configuration that share their state in Redis.
#[derive(Debug)]
pub struct Fleet {
    /// What they share.
    pub redis: RedisServer,
    /// The instances.
    pub gateways: Vec<Gateway>,
    setup: Setup,
}

/// A seal key for tests, as a line of configuration.
pub const SEAL: &str = "seal: { keys: [{ id: k1, key: \"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\" }] }";

impl Fleet {
    /// Starts `count` gateways and a Redis of their own.
    pub async fn start(count: usize, setup: Setup) -> Self {
        let redis = RedisServer::start().await;
        Self::with(redis, count, setup).await
    }

    /// Starts `count` gateways that use `redis`.
    pub async fn with(redis: RedisServer, count: usize, setup: Setup) -> Self {
        let setup = setup.config(SEAL).config(&format!("redis: {{ url: \"{}\" }}", redis.url()));
        let mut fleet = Self { redis, gateways: Vec::new(), setup };
        for _ in 0..count {
            fleet.add().await;
        }
        fleet
    }

    /// Starts one more; returns its number. Every other one runs the program that `DRAWBRIDGE_BEFORE` names, if it names
    /// one: as in an update, of which instances are done and others not yet.
    pub async fn add(&mut self) -> usize {
        let mut setup = self.setup.clone();
        if let Some(before) = std::env::var_os("DRAWBRIDGE_BEFORE").filter(|_| self.gateways.len() % 2 == 1) {
            setup = setup.program(before.into());
        }
        let gateway = setup.start().await;
        ready(&gateway).await;
        self.gateways.push(gateway);
        self.gateways.len() - 1
    }

    /// A client of the gateway with this number.
    pub fn client(&self, number: usize) -> Client {
        self.gateways[number].client()
    }

    /// A session that was opened at the gateway with this number.
    pub async fn session(&self, number: usize, version: &str, capabilities: serde_json::Value) -> Session {
        Session::open(&self.client(number), "/mcp", version, capabilities).await
    }

    /// The same session at another gateway.
    pub fn at(&self, number: usize, session: &Session) -> Session {
        Session { client: self.client(number), ..session.clone() }
    }

    /// A modern client of the gateway with this number.
    pub fn modern(&self, number: usize, capabilities: serde_json::Value) -> Modern {
        Modern::new(&self.client(number), "/mcp", capabilities)
    }

    /// Kills a gateway and takes it out.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub async fn kill(&mut self, number: usize) {
        let mut gateway = self.gateways.remove(number);
        gateway.program.signal(rustix::process::Signal::KILL);
        gateway.program.ended().await;
    }
}

/// Waits until a gateway says that it is ready.
///
/// # Panics
///
/// If it is not in time.
pub async fn ready(gateway: &Gateway) {
    let admin = Client::new(&gateway.admin);
    eventually(PATIENCE, async || {
        admin.get("/readyz", &[("accept", "application/json")]).await.status() == 200
    })
    .await;
}
