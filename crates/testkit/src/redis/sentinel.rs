//! A master, its replica, and the sentinel that watches them.

use tempfile::TempDir;
use tokio::process::Child;

use super::{RedisServer, command, free_port};
use crate::{PATIENCE, eventually};

/// A master, its replica, and their sentinel.
#[derive(Debug)]
pub struct Sentinel {
    /// The master at first.
    pub master: RedisServer,
    /// Its replica at first.
    pub replica: RedisServer,
    port: u16,
    password: Option<String>,
    _dir: TempDir,
    _child: Child,
}

/// How the sentinel calls the master.
const NAME: &str = "mymaster";

impl Sentinel {
    /// Starts all three.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Starts all three, each with a password.
    pub async fn protected(password: &str) -> Self {
        Self::start_with(Some(password)).await
    }

    async fn start_with(password: Option<&str>) -> Self {
        let setup = || {
            let setup = RedisServer::setup().option("repl-diskless-sync-delay", "0");
            match password {
                None => setup,
                Some(password) => setup
                    .option("requirepass", password)
                    .option("masterauth", password)
                    .login("default", password),
            }
        };
        let master = setup().start().await;
        let replica = setup().option("replicaof", &format!("127.0.0.1 {}", master.port())).start().await;
        let dir = TempDir::new().unwrap();
        let port = free_port();
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {NAME} 500\nsentinel failover-timeout {NAME} 2000\n",
            dir.path().display(),
            master.port(),
        );
        let secrets = password.map_or(String::new(), |password| {
            format!("requirepass {password}\nsentinel auth-pass {NAME} {password}\n")
        });
        let file = dir.path().join("sentinel.conf");
        std::fs::write(&file, config + &secrets).unwrap();
        let child = command().arg(&file).arg("--sentinel").spawn().unwrap();
        let password = password.map(str::to_owned);
        let sentinel = Self { master, replica, port, password, _dir: dir, _child: child };
        eventually(PATIENCE, async || {
            let status = sentinel.ask(&["SENTINEL", "MASTER", NAME]).await;
            status.windows(2).any(|pair| pair == ["num-slaves", "1"])
        })
        .await;
        eventually(PATIENCE, async || {
            let info: String = sentinel.replica.run(&["INFO", "replication"]).await;
            info.contains("master_link_status:up")
        })
        .await;
        sentinel
    }

    /// `redis+sentinel://` with the name of the master.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{NAME}", self.port)
    }

    /// Makes the replica the master; waits until the sentinel says so.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub async fn fail_over(&self) {
        eventually(PATIENCE, async || {
            // Refused for a while after another one.
            !self.ask(&["SENTINEL", "FAILOVER", NAME]).await.is_empty()
        })
        .await;
        let port = self.replica.port().to_string();
        eventually(PATIENCE, async || {
            self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await.contains(&port)
        })
        .await;
    }

    /// What the sentinel says; nothing if that is an error.
    async fn ask(&self, command: &[&str]) -> Vec<String> {
        let asking = async {
            let login = self.password.as_ref().map_or(String::new(), |password| format!(":{password}@"));
            let client = redis::Client::open(format!("redis://{login}127.0.0.1:{}", self.port))?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut whole = redis::cmd(command[0]);
            let answer: redis::Value = whole.arg(&command[1..]).query_async(&mut connection).await?;
            match answer {
                redis::Value::Okay => Ok(vec!["OK".to_owned()]),
                other => Ok::<Vec<String>, redis::RedisError>(redis::from_redis_value(other)?),
            }
        };
        asking.await.unwrap_or_default()
    }
}
