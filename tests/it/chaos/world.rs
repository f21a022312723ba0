//! The fleet of a chaos run, and what happens to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_testkit::client::{Client, Headers, Reply, header_map};
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::fleet::{SEAL, ready};
use drawbridge_testkit::gateway::{Gateway, Setup};
use drawbridge_testkit::redis::RedisServer;
use http::Method;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, RngExt as _};
use rustix::process::{Pid, Signal, kill_process};

use super::backends::Backends;
use super::calls::Run;

/// How many instances there are.
pub(super) const INSTANCES: usize = 3;

/// Names the folder into which the logs of all instances go.
pub(super) const LOGS: &str = "CHAOS_LOGS";

/// Limits that are short enough for a run of a minute.
const SETTINGS: &str = "limits: { answer_timeout: 15s, event_log_ttl: 8s, session_idle: 12s }\n\
                        drain: { delay: 500ms, deadline: 5s }";

/// An instance, and what it reaches others through.
struct Instance {
    setup: Setup,
    gateway: tokio::sync::Mutex<Option<Gateway>>,
    client: Mutex<Client>,
    redis: FaultProxy,
    backends: Vec<(&'static str, FaultProxy)>,
}

/// The fleet.
pub(super) struct World {
    instances: Vec<Instance>,
    redis: tokio::sync::Mutex<RedisServer>,
    pub(super) backends: Backends,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    Kill,
    Terminate,
    Pause,
    RollingRestart,
    RedisRestart,
    RedisAway,
    RedisFlushed,
    RedisFull,
    RedisSlow,
    RedisSilent,
    RedisCut,
    BackendSlow,
    BackendSilent,
    BackendRefuses,
    BackendCut,
    ProcessKilled,
}

const TROUBLES: [Trouble; 16] = [
    Trouble::Kill,
    Trouble::Terminate,
    Trouble::Pause,
    Trouble::RollingRestart,
    Trouble::RedisRestart,
    Trouble::RedisAway,
    Trouble::RedisFlushed,
    Trouble::RedisFull,
    Trouble::RedisSlow,
    Trouble::RedisSilent,
    Trouble::RedisCut,
    Trouble::BackendSlow,
    Trouble::BackendSilent,
    Trouble::BackendRefuses,
    Trouble::BackendCut,
    Trouble::ProcessKilled,
];

impl Trouble {
    /// One of all.
    pub(super) fn any(rng: &mut StdRng) -> Self {
        *TROUBLES.choose(rng).unwrap()
    }
}

impl World {
    pub(super) async fn start() -> Self {
        let redis = RedisServer::start().await;
        let backends = Backends::start().await;
        let mut instances = Vec::new();
        for _ in 0..INSTANCES {
            instances.push(Instance::start(&redis, &backends).await);
        }
        Self { instances, redis: tokio::sync::Mutex::new(redis), backends }
    }

    /// Sends a request to any instance, as a balancer does: one that takes no connection is passed over. None if none
    /// takes one, or the connection was lost.
    pub(super) async fn send(
        &self,
        rng: &mut StdRng,
        method: Method,
        path: &str,
        headers: Headers<'_>,
        body: impl Into<Bytes>,
    ) -> Sent {
        let body = body.into();
        let usual = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        let mut all = header_map(&usual);
        all.extend(header_map(headers));
        let mut order: Vec<usize> = (0..self.instances.len()).collect();
        order.shuffle(rng);
        for number in order {
            let client = self.instances[number].client.lock().unwrap().clone();
            match client.ask(method.clone(), path, &all, body.clone()).await {
                Ok(reply) => return Sent::Answered(number, Box::new(reply)),
                Err(error) if error.is_connect() => {}
                Err(_) => return Sent::Lost(number),
            }
        }
        Sent::Nobody
    }

    /// Does something bad, and heals it after a while.
    pub(super) async fn trouble(&self, trouble: Trouble, rng: &mut StdRng, run: &Run) {
        let number = rng.random_range(0..INSTANCES);
        let instance = &self.instances[number];
        let (name, backend) = instance.backends.choose(rng).unwrap();
        let lasts = Duration::from_millis(rng.random_range(200..4000));
        let delay = Duration::from_millis(rng.random_range(50..800));
        let victim = rng.next_u32();
        run.event(&format!("{trouble:?}: instance {number}, backend {name}, {lasts:?}, delay {delay:?}"));
        match trouble {
            Trouble::Kill => instance.restart(Signal::KILL, lasts, run).await,
            Trouble::Terminate => instance.restart(Signal::TERM, Duration::ZERO, run).await,
            Trouble::Pause => instance.pause(lasts).await,
            Trouble::RollingRestart => {
                for instance in &self.instances {
                    instance.restart(Signal::TERM, Duration::ZERO, run).await;
                }
            }
            Trouble::RedisRestart | Trouble::RedisAway => {
                let mut redis = self.redis.lock().await;
                redis.kill().await;
                if let Trouble::RedisAway = trouble {
                    tokio::time::sleep(lasts).await;
                }
                redis.restart().await;
            }
            Trouble::RedisFlushed => drop(self.redis.lock().await.run::<String>(&["FLUSHALL"]).await),
            Trouble::RedisFull => {
                let redis = self.redis.lock().await;
                redis.run::<String>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
                tokio::time::sleep(lasts).await;
                redis.run::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await;
            }
            Trouble::RedisSlow => hold(&instance.redis, Fault::Delay(delay), lasts).await,
            Trouble::RedisSilent => hold(&instance.redis, Fault::Silence, lasts).await,
            Trouble::RedisCut => instance.redis.cut(),
            Trouble::BackendSlow => hold(backend, Fault::Delay(delay), lasts).await,
            Trouble::BackendSilent => hold(backend, Fault::Silence, lasts).await,
            Trouble::BackendRefuses => {
                backend.cut();
                hold(backend, Fault::Refuse, lasts).await;
            }
            Trouble::BackendCut => backend.cut(),
            Trouble::ProcessKilled => {
                let processes = self.processes();
                if !processes.is_empty() {
                    // It may have ended by itself meanwhile.
                    let _ = kill_process(processes[victim as usize % processes.len()], Signal::KILL);
                }
            }
        }
        run.event(&format!("{trouble:?} is over"));
    }

    /// The processes of the stdio backend.
    pub(super) fn processes(&self) -> Vec<Pid> {
        let marker = self.backends.ledger_file();
        let marker = marker.to_str().unwrap().as_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let ours = line.split(|byte| *byte == 0).any(|argument| argument == marker);
            if ours && line.starts_with(b"python3\0") {
                let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                found.extend(pid.and_then(Pid::from_raw));
            }
        }
        found.sort_by_key(|pid| pid.as_raw_nonzero());
        found
    }

    /// The value of a gauge or counter at each instance, all its series together.
    pub(super) async fn metric(&self, name: &str) -> Vec<f64> {
        let mut values = Vec::new();
        for instance in &self.instances {
            let gateway = instance.gateway.lock().await;
            let admin = Client::new(&gateway.as_ref().unwrap().admin);
            let text = admin.get("/metrics", &[("accept", "text/plain")]).await.text().await;
            let of = |line: &str| {
                let rest = line.strip_prefix(name)?;
                rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
            };
            values.push(text.lines().filter_map(of).sum());
        }
        values
    }

    /// Ends all instances, in good order.
    pub(super) async fn stop(self, run: &Run) {
        for instance in &self.instances {
            let mut gateway = instance.gateway.lock().await.take().unwrap();
            gateway.program.signal(Signal::TERM);
            let status = gateway.program.ended().await;
            if !status.success() {
                run.wrong(&format!("an instance ended with {status}"));
            }
            look_for_panics(&gateway, run);
        }
    }

    /// The keys in Redis about sessions, with what they hold. Those of instances that are gone stay for their time.
    pub(super) async fn keys(&self) -> BTreeMap<String, String> {
        let redis = self.redis.lock().await;
        let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
        let is_there =
            |instance: &str| keys.iter().any(|key| key.contains(&format!("{{{instance}}}:presence")));
        let mut found = BTreeMap::new();
        for key in &keys {
            let holds = if key.ends_with(":session") {
                redis.try_run::<Vec<String>>(&["HGETALL", key]).await.unwrap_or_default().join(" ")
            } else if key.ends_with('}') {
                redis.try_run::<String>(&["GET", key]).await.unwrap_or_default()
            } else if key.contains(":events:") {
                "events".to_owned()
            } else {
                continue;
            };
            let owner = holds.split(' ').next().unwrap_or_default();
            // Nobody can end what a connection had that went with its instance.
            let is_left = key.contains("{lease:") && !is_there(owner) || holds.contains("2024-11-05");
            if !is_left && !holds.is_empty() {
                found.insert(key.clone(), holds);
            }
        }
        found
    }

    /// The connections to Redis.
    pub(super) async fn redis_connections(&self) -> Vec<String> {
        self.redis.lock().await.connections().await
    }
}

/// What came of sending a request.
pub(super) enum Sent {
    /// An answer of this instance, or its beginning.
    Answered(usize, Box<Reply>),
    /// The connection to this instance was lost before there was an answer.
    Lost(usize),
    /// No instance takes a connection: nothing was sent.
    Nobody,
}

impl Instance {
    async fn start(redis: &RedisServer, backends: &Backends) -> Self {
        let redis = FaultProxy::start(redis.port()).await;
        let level = if std::env::var_os(LOGS).is_some() { "debug" } else { "info" };
        let mut setup = Gateway::setup()
            .config(SEAL)
            .config(SETTINGS)
            .config(&format!("log: {{ level: {level} }}"))
            .config(&format!("redis: {{ url: \"redis://127.0.0.1:{}\", timeout: 1s }}", redis.port))
            .backend("process", &backends.process_settings());
        let mut proxies = Vec::new();
        for (name, backend) in &backends.http {
            let proxy = FaultProxy::start(backend.address().port()).await;
            let kind = match *name {
                "http" => "era: legacy",
                "modern" => "era: modern",
                _ => "transport: sse",
            };
            let url = format!("http://127.0.0.1:{}/mcp", proxy.port);
            let times = "connect_timeout: 2s, first_byte_timeout: 25s, idle_timeout: 25s, timeout: 30s";
            setup = setup.backend(name, &format!("{{ url: \"{url}\", {kind}, {times} }}"));
            proxies.push((*name, proxy));
        }
        let gateway = setup.clone().start().await;
        ready(&gateway).await;
        let client = Mutex::new(gateway.client());
        let gateway = tokio::sync::Mutex::new(Some(gateway));
        Self { setup, gateway, client, redis, backends: proxies }
    }

    /// Ends it, and starts it again after a while.
    async fn restart(&self, signal: Signal, after: Duration, run: &Run) {
        let mut place = self.gateway.lock().await;
        let mut gateway = place.take().unwrap();
        gateway.program.signal(signal);
        gateway.program.ended().await;
        look_for_panics(&gateway, run);
        tokio::time::sleep(after).await;
        let gateway = self.setup.clone().start().await;
        run.event(&format!("process {} is there", gateway.program.pid()));
        ready(&gateway).await;
        *self.client.lock().unwrap() = gateway.client();
        *place = Some(gateway);
    }

    async fn pause(&self, lasts: Duration) {
        let place = self.gateway.lock().await;
        let program = &place.as_ref().unwrap().program;
        program.signal(Signal::STOP);
        tokio::time::sleep(lasts).await;
        program.signal(Signal::CONT);
    }
}

fn look_for_panics(gateway: &Gateway, run: &Run) {
    if let Some(dir) = std::env::var_os(LOGS) {
        let file = Path::new(&dir).join(format!("{}.log", gateway.program.pid()));
        std::fs::write(file, gateway.program.stderr()).unwrap();
    }
    for line in gateway.program.stderr().lines().filter(|line| line.contains("panicked")) {
        run.wrong(line);
    }
}

/// Holds a fault for a while. What fell silent stays so, and is cut in the end.
async fn hold(proxy: &FaultProxy, fault: Fault, lasts: Duration) {
    proxy.set(fault);
    tokio::time::sleep(lasts).await;
    proxy.set(Fault::None);
    if fault == Fault::Silence {
        proxy.cut();
    }
}
