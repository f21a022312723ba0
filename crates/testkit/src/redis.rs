//! Redis as it runs in production: `redis-server` in processes of its own, on free ports of 127.0.0.1, with its files
//! in a folder that goes with it. A server ends with its handle, and with the test that started it.

mod cluster;
mod sentinel;

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use redis::{FromRedisValue, IntoConnectionInfo as _};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

pub use self::cluster::Cluster;
pub use self::sentinel::Sentinel;
use crate::{PATIENCE, eventually, soon};

/// Sees to it that a server does not outlive the thread that started it, even if that is killed.
const SETPRIV: &str = "/usr/bin/setpriv";

/// A port that is free now.
///
/// # Panics
///
/// If there is none.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What a server is to be.
#[derive(Debug, Clone, Default)]
pub struct RedisSetup {
    options: Vec<String>,
    login: Option<(String, String)>,
    tls: bool,
}

impl RedisSetup {
    /// Sets an option of `redis.conf`.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Keeps what is written, also when it is killed.
    #[must_use]
    pub fn durable(self) -> Self {
        self.option("appendonly", "yes").option("appendfsync", "always")
    }

    /// The user and password that [`RedisServer::run`] logs in with, once there are some.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Speaks TLS beside the plain port, at [`RedisServer::tls_port`], with a certificate and its key, each a PEM file.
    #[must_use]
    pub fn tls(mut self, certificate: &Path, key: &Path) -> Self {
        self.tls = true;
        self.option("tls-cert-file", certificate.to_str().unwrap())
            .option("tls-key-file", key.to_str().unwrap())
            .option("tls-auth-clients", "no")
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn start(self) -> RedisServer {
        self.start_at(free_port()).await
    }

    /// Starts it at a port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn start_at(self, port: u16) -> RedisServer {
        let tls_port = self.tls.then(free_port);
        let mut setup = self;
        if let Some(port) = tls_port {
            setup = setup.option("tls-port", &port.to_string());
        }
        let mut server = RedisServer { setup, port, tls_port, dir: TempDir::new().unwrap(), child: None };
        server.restart().await;
        server
    }
}

/// A server.
#[derive(Debug)]
pub struct RedisServer {
    setup: RedisSetup,
    port: u16,
    tls_port: Option<u16>,
    dir: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// What a server without anything is; add to it.
    pub fn setup() -> RedisSetup {
        RedisSetup::default()
    }

    /// Starts a server that forgets everything when it ends.
    pub async fn start() -> Self {
        Self::setup().start().await
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its port for TLS.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn tls_port(&self) -> u16 {
        self.tls_port.unwrap()
    }

    /// Its URL, without user and password.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).unwrap()
    }

    /// Starts it again at the same port, with what it kept.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn restart(&mut self) {
        let port = self.port.to_string();
        let mut command = command();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"]);
        command.args(["--dir".as_ref(), self.dir.path().as_os_str()]).args(&self.setup.options);
        let child = command.spawn();
        self.child = Some(child.expect("redis-server is needed; ./test.sh installs it"));
        eventually(PATIENCE, async || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "redis-server ended with {ended:?}");
            self.try_run::<String>(&["PING"]).await.is_ok_and(|answer| answer == "PONG")
        })
        .await;
    }

    /// Ends it in good order.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.ended().await;
    }

    /// Kills it.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// Sends it a signal: `Signal::STOP` makes it hang.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    async fn ended(&mut self) {
        let mut child = self.child.take().unwrap();
        soon("redis-server to end", child.wait()).await.unwrap();
    }

    /// The answer to a command, over a connection of its own.
    ///
    /// # Panics
    ///
    /// If there is none, or an error.
    pub async fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_run(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// The answer to a command, or the error that it is.
    ///
    /// # Errors
    ///
    /// Of the connection and of the server.
    pub async fn try_run<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut info = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some((user, password)) = &self.setup.login {
            info = info.set_username(user).set_password(password);
        }
        let address = self.url().as_str().into_connection_info()?.set_redis_settings(info);
        let client = redis::Client::open(address)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut whole = redis::cmd(command[0]);
        whole.arg(&command[1..]).query_async(&mut connection).await
    }

    /// The names of all connections but the one that asks, in order.
    pub async fn connections(&self) -> Vec<String> {
        let list: String = self.run(&["CLIENT", "LIST"]).await;
        let name =
            |line: &str| line.split(' ').find_map(|part| part.strip_prefix("name=")).unwrap().to_owned();
        let others = list.lines().filter(|line| !line.contains("cmd=client|list"));
        let mut names: Vec<String> = others.map(name).collect();
        names.sort();
        names
    }
}

/// `redis-server`, which ends with its handle.
fn command() -> Command {
    let mut command = if Path::new(SETPRIV).exists() {
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "KILL", "redis-server"]);
        command
    } else {
        Command::new("redis-server")
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command
}
