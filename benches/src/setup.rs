//! One instance or several, with or without Redis, and HAProxy in front.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, iter};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Endpoint;
use crate::net;
use crate::process;
use crate::redis::Redis;
use crate::target::{self, Running};

const PATIENCE: Duration = Duration::from_secs(20);
/// 32 bytes in base64, which seal nothing that matters.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// The balancer as it is deployed.
const BALANCER: &str = include_str!("../../deploy/haproxy.cfg");

/// Who shares a session at the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum SessionScope {
    /// Nobody.
    ClientSession,
    /// All sessions of one principal.
    Principal,
    /// All.
    Shared,
}

impl SessionScope {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Where the instances keep what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// In the one process.
    Memory,
    /// In a Redis.
    Redis,
}

/// What is to be started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) drawbridge: &'a Path,
    pub(crate) backend: SocketAddr,
    pub(crate) instances: usize,
    pub(crate) store: Store,
    pub(crate) scope: SessionScope,
    /// `log.level`; a line for each call if not said otherwise.
    pub(crate) log: &'a str,
    /// More of the configuration, by its top-level keys.
    pub(crate) more: Option<&'a Value>,
}

/// The level of the log where nothing else is said.
pub(crate) const LOG: &str = "info";

/// A gateway.
pub(crate) struct Instance {
    process: Running,
    pub(crate) address: SocketAddr,
    probes: SocketAddr,
    /// Where operators are answered.
    pub(crate) admin: SocketAddr,
}

/// The gateways of one plan. What is needed last is dropped last.
pub(crate) struct Setup {
    pub(crate) instances: Vec<Instance>,
    pub(crate) redis: Option<Redis>,
    _files: TempDir,
}

/// HAProxy, in front of some instances.
pub(crate) struct Balancer {
    pub(crate) process: Running,
    pub(crate) endpoint: Endpoint,
    _files: TempDir,
}

impl Instance {
    fn start(plan: Plan<'_>, redis: Option<&Redis>, folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        let free = || anyhow::Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, net::free_port()?)));
        let (probes, admin) = (free()?, free()?);
        let mut config = json!({
            "seal": { "keys": [{ "id": "bench", "key": KEY }] },
            "admin": { "probes": probes.to_string() },
            "log": { "level": plan.log },
            "data_dir": folder.join("data"),
            "limits": { "max_streams": 20_000 },
            "backends": {
                "bench": { "url": format!("http://{}/mcp", plan.backend), "session_scope": plan.scope.name() },
            },
        });
        if let (Some(redis), Some(config)) = (redis, config.as_object_mut()) {
            // There is no balancer to wait for when the bench ends.
            config.insert("redis".to_owned(), json!({ "url": redis.url() }));
            config.insert("drain".to_owned(), json!({ "delay": "0s" }));
        }
        if let (Some(Value::Object(more)), Some(config)) = (plan.more, config.as_object_mut()) {
            for (name, value) in more {
                match (config.get_mut(name).and_then(Value::as_object_mut), value) {
                    (Some(own), Value::Object(more)) => own.extend(more.clone()),
                    _ => drop(config.insert(name.clone(), value.clone())),
                }
            }
        }
        let file = folder.join("drawbridge.yaml");
        fs::write(&file, config.to_string())?;
        let mut command = target::serve(plan.drawbridge, folder)?;
        command.arg("--config").arg(file).args(["--listen", "127.0.0.1:0"]);
        command.args(["--admin-listen", &admin.to_string()]);
        let started = target::start(&mut command).context("start Drawbridge")?;
        Ok(Self { process: started.process, address: started.address, probes, admin })
    }

    /// Processor time in seconds.
    pub(crate) fn busy(&self) -> anyhow::Result<f64> {
        process::busy(self.process.pid())
    }

    /// Proportional memory in KiB.
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        Ok(process::memory(self.process.pid())?.pss as f64)
    }

    /// The sum of a metric over its labels.
    pub(crate) fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let (_, text) = get(self.probes, "/metrics")?;
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let values =
            text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    fn is_ready(&self) -> bool {
        get(self.probes, "/readyz").is_ok_and(|(status, _)| status == 200)
    }
}

impl Setup {
    /// Starts all of it, and waits until all are ready.
    pub(crate) fn start(plan: Plan<'_>) -> anyhow::Result<Self> {
        let files = TempDir::new()?;
        let redis = (plan.store == Store::Redis).then(Redis::start).transpose()?;
        let folder = |number: usize| files.path().join(number.to_string());
        let instances = (0..plan.instances).map(|n| Instance::start(plan, redis.as_ref(), &folder(n)));
        let instances = instances.collect::<anyhow::Result<Vec<_>>>()?;
        let begin = Instant::now();
        while !instances.iter().all(Instance::is_ready) {
            ensure!(begin.elapsed() < PATIENCE, "the instances were not ready in time");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { instances, redis, _files: files })
    }

    /// Processor time of each instance, in seconds.
    pub(crate) fn busy(&self) -> anyhow::Result<Vec<f64>> {
        self.instances.iter().map(Instance::busy).collect()
    }

    /// An endpoint at each instance.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.instances.iter().map(|instance| Endpoint::new(instance.address, "/mcp")).collect()
    }

    /// Puts HAProxy in front, as it is deployed: round robin, without stickiness.
    pub(crate) fn balanced(&self) -> anyhow::Result<Balancer> {
        let files = TempDir::new()?;
        let file = files.path().join("haproxy.cfg");
        fs::write(&file, BALANCER)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, net::free_port()?));
        let mut command = target::quiet("haproxy")?;
        command.arg("-db").arg("-f").arg(&file);
        command.env("DRAWBRIDGE_BIND", address.to_string()).env("DRAWBRIDGE_MAXCONN", "4000");
        for (number, instance) in iter::zip(1.., &self.instances) {
            command.env(format!("DRAWBRIDGE_SERVER_{number}"), instance.address.to_string());
            command.env(format!("DRAWBRIDGE_PROBES_{number}"), instance.probes.port().to_string());
        }
        let is_ready = || get(address, "/mcp").is_ok_and(|(status, _)| status != 503);
        let process = target::start_quiet(&mut command, is_ready).context("start HAProxy")?;
        let mut endpoint = Endpoint::new(address, "/mcp");
        endpoint.prefix = target::prefix(&endpoint).context("try HAProxy")?;
        Ok(Balancer { process, endpoint, _files: files })
    }
}

/// Status and text of a small page.
pub(crate) fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    exchange(address, "GET", path)
}

/// A request without a body, on a connection of its own.
pub(crate) fn exchange(address: SocketAddr, method: &str, path: &str) -> anyhow::Result<(u16, String)> {
    exchange_with(address, method, path, "", "")
}

/// A request with these lines of headers, on a connection of its own.
pub(crate) fn exchange_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, text) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    Ok((status, text.to_owned()))
}
