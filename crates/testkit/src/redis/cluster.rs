//! A cluster of masters, with a replica for each or without.

use super::{RedisServer, RedisSetup, free_port};
use crate::{PATIENCE, eventually};

/// A cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The masters, which have the slots in this order, and then the replica of each, if there are some.
    pub nodes: Vec<RedisServer>,
    masters: usize,
}

/// How many slots there are.
const SLOTS: usize = 16384;

impl Cluster {
    /// A cluster of `masters` masters, each with a replica or without.
    pub async fn start(masters: usize, with_replicas: bool) -> Self {
        Self::start_with(masters, with_replicas, &RedisSetup::default()).await
    }

    /// A cluster whose nodes are as `setup` says.
    ///
    /// # Panics
    ///
    /// If it does not come to be.
    pub async fn start_with(masters: usize, with_replicas: bool, setup: &RedisSetup) -> Self {
        let count = if with_replicas { masters * 2 } else { masters };
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..count {
            let bus_port = free_port().to_string();
            let setup = setup.clone().option("cluster-enabled", "yes");
            let setup = setup.option("cluster-node-timeout", "1000").option("cluster-port", &bus_port);
            nodes.push(setup.option("repl-diskless-sync-delay", "0").start().await);
            bus_ports.push(bus_port);
        }
        let cluster = Self { nodes, masters };
        for (index, node) in cluster.nodes.iter().enumerate() {
            let epoch = (index + 1).to_string();
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            if index < masters {
                let first = (SLOTS * index / masters).to_string();
                let last = (SLOTS * (index + 1) / masters - 1).to_string();
                node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
            }
            if index > 0 {
                let port = cluster.nodes[0].port().to_string();
                node.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_ports[0]]).await;
            }
        }
        for index in masters..count {
            let master: String = cluster.nodes[index - masters].run(&["CLUSTER", "MYID"]).await;
            eventually(PATIENCE, async || {
                let node = &cluster.nodes[index];
                node.try_run::<()>(&["CLUSTER", "REPLICATE", &master]).await.is_ok()
            })
            .await;
        }
        cluster.agreed().await;
        cluster
    }

    /// `redis+cluster://` and the masters.
    pub fn url(&self) -> String {
        self.url_of("redis", RedisServer::port)
    }

    /// `rediss+cluster://` and the masters.
    pub fn tls_url(&self) -> String {
        self.url_of("rediss", RedisServer::tls_port)
    }

    fn url_of(&self, scheme: &str, port: impl Fn(&RedisServer) -> u16) -> String {
        let masters = self.nodes[..self.masters].iter();
        let addresses: Vec<String> = masters.map(|node| format!("127.0.0.1:{}", port(node))).collect();
        format!("{scheme}+cluster://{}", addresses.join(","))
    }

    /// Waits until all nodes know each other and all slots.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub async fn agreed(&self) {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            eventually(PATIENCE, async || {
                let info: String = node.run(&["CLUSTER", "INFO"]).await;
                let has = |what: &str| info.lines().any(|line| line == what);
                let replicates: String = node.run(&["INFO", "replication"]).await;
                has("cluster_state:ok") && has(&known) && !replicates.contains("master_link_status:down")
            })
            .await;
        }
    }
}
