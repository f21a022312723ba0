//! A gateway, and the demo backend, as they run in production: the real program in a process of its own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use drawbridge_demo::Demo;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::client::{Client, Modern, Session};
use crate::{secrets, soon};

/// The `drawbridge` program: `DRAWBRIDGE_BIN`, or the one that was built beside the running test.
///
/// # Panics
///
/// If there is none.
pub fn binary() -> PathBuf {
    let path = match std::env::var_os("DRAWBRIDGE_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            // target/debug/deps/it-0123 -> target/debug/drawbridge
            let test = std::env::current_exe().unwrap();
            test.ancestors().nth(2).unwrap().join("drawbridge")
        }
    };
    assert!(path.exists(), "no program at {}; run `cargo build -p drawbridge-app`", path.display());
    path
}

/// A command that runs [`binary`] without the settings of the environment; it dies with its handle.
pub fn command() -> Command {
    command_of(binary())
}

fn command_of(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    for (key, _) in std::env::vars_os() {
        let is_setting =
            key.to_str().is_some_and(|key| key.starts_with("DRAWBRIDGE_") || key.starts_with("OTEL_"));
        if is_setting || key.to_str().is_some_and(|key| key.to_ascii_uppercase().ends_with("_PROXY")) {
            command.env_remove(key);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// A started program and what it says.
#[derive(Debug)]
pub struct Program {
    child: Child,
    pid: u32,
    stderr: Arc<Mutex<String>>,
}

impl Program {
    /// Starts `command` and reads standard output until there is a line `listening {name}=` for each name; gives
    /// the addresses.
    ///
    /// # Panics
    ///
    /// If the program ends first, or takes too long.
    pub async fn start(mut command: Command, names: &[&str]) -> (Self, Vec<String>) {
        let mut child = command.spawn().unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let tasks = TaskTracker::new();
        tasks.spawn(keep(child.stderr.take().unwrap(), stderr.clone()));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = child.id().unwrap();
        let program = Self { child, pid, stderr };
        let mut found: Vec<Option<String>> = vec![None; names.len()];
        soon("the program to listen", async {
            while found.iter().any(Option::is_none) {
                let line = lines.next_line().await.unwrap();
                let line = line.unwrap_or_else(|| panic!("the program ended: {}", program.stderr()));
                for (name, place) in names.iter().zip(&mut found) {
                    let address = line.strip_prefix("listening ").and_then(|l| l.strip_prefix(name));
                    if let Some(address) = address.and_then(|l| l.strip_prefix('=')) {
                        *place = Some(address.to_owned());
                    }
                }
            }
        })
        .await;
        // A closed pipe must not disturb it.
        tasks.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        (program, found.into_iter().flatten().collect())
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Resident memory in bytes.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// If it takes too long.
    pub async fn ended(&mut self) -> ExitStatus {
        soon("the program to end", self.child.wait()).await.unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- standard error of process {}:\n{}---", self.pid, self.stderr());
        } else if let Some(secret) = secrets::found(&self.stderr()) {
            // So the whole suite looks for what must not be in a log.
            panic!("process {} tells a secret: {secret}", self.pid);
        }
    }
}

async fn keep(mut pipe: impl AsyncRead + Unpin, into: Arc<Mutex<String>>) {
    let mut buffer = vec![0; 8192];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..read]);
        into.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
    }
}

/// What a gateway is to be.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    backends: String,
    rest: String,
    env: Vec<(String, String)>,
    program: Option<PathBuf>,
}

impl Setup {
    /// Adds a backend; `settings` is YAML in one line, such as `{ url: "http://127.0.0.1:1/mcp", era: legacy }`.
    #[must_use]
    pub fn backend(mut self, name: &str, settings: &str) -> Self {
        let _ = writeln!(self.backends, "  {name}: {settings}");
        self
    }

    /// Adds a backend at `url` of the era `era`: `legacy`, `modern` or `auto`.
    #[must_use]
    pub fn url(self, name: &str, url: &str, era: &str) -> Self {
        self.backend(name, &format!("{{ url: \"{url}\", era: {era} }}"))
    }

    /// Adds lines of YAML at the top level of the configuration.
    #[must_use]
    pub fn config(mut self, yaml: &str) -> Self {
        let _ = writeln!(self.rest, "{yaml}");
        self
    }

    /// Sets a variable of the gateway's environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Runs another program than [`binary`].
    #[must_use]
    pub fn program(self, program: PathBuf) -> Self {
        Self { program: Some(program), ..self }
    }

    /// The configuration file of a gateway that keeps its data in `dir`.
    pub fn yaml(&self, dir: &Path) -> String {
        let backends =
            if self.backends.is_empty() { String::new() } else { format!("backends:\n{}", self.backends) };
        format!("data_dir: {}\n{}{backends}", dir.join("data").display(), self.rest)
    }

    /// Starts it.
    pub async fn start(self) -> Gateway {
        Gateway::start_in(self, TempDir::new().unwrap()).await
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    /// `http://127.0.0.1:port` of the public listener.
    pub public: String,
    /// `http://127.0.0.1:port` of the operators' listener.
    pub admin: String,
    /// The process.
    pub program: Program,
    setup: Setup,
    dir: TempDir,
}

impl Gateway {
    /// What a gateway without backends is; add to it.
    pub fn setup() -> Setup {
        Setup::default()
    }

    async fn start_in(setup: Setup, dir: TempDir) -> Self {
        let file = dir.path().join("drawbridge.yaml");
        std::fs::write(&file, setup.yaml(dir.path())).unwrap();
        let mut command = setup.program.clone().map_or_else(command, command_of);
        command.arg("serve").arg("--config").arg(&file);
        command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        command.envs(setup.env.iter().map(|(key, value)| (key, value))).current_dir(dir.path());
        let (program, addresses) = Program::start(command, &["public", "admin"]).await;
        let [public, admin] = <[String; 2]>::try_from(addresses).unwrap();
        Self { public, admin, program, setup, dir }
    }

    /// The directory with its configuration (`drawbridge.yaml`) and data (`data`).
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes another configuration into its file, which it will notice.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn write_config(&mut self, setup: Setup) {
        std::fs::write(self.dir.path().join("drawbridge.yaml"), setup.yaml(self.dir.path())).unwrap();
        self.setup = setup;
    }

    /// `host:port` of the public listener.
    pub fn address(&self) -> &str {
        self.public.strip_prefix("http://").unwrap_or(&self.public)
    }

    /// A client with connections of its own.
    pub fn client(&self) -> Client {
        Client::new(&self.public)
    }

    /// A session of the newest legacy version at `/mcp`, with no capabilities.
    pub async fn session(&self) -> Session {
        Session::open(&self.client(), "/mcp", "2025-11-25", serde_json::json!({})).await
    }

    /// A modern client of `/mcp` without capabilities.
    pub fn modern(&self) -> Modern {
        Modern::new(&self.client(), "/mcp", serde_json::json!({}))
    }

    /// Ends it with SIGTERM.
    pub async fn stop(mut self) -> ExitStatus {
        self.program.signal(Signal::TERM);
        self.program.ended().await
    }

    /// Starts one that has ended again with the same configuration and data, at other ports.
    pub async fn start_again(self) -> Self {
        Self::start_in(self.setup, self.dir).await
    }

    /// Kills it and starts it again with the same configuration and data, at other ports.
    pub async fn restart_after_kill(mut self) -> Self {
        self.program.signal(Signal::KILL);
        self.program.ended().await;
        self.start_again().await
    }

    /// Ends it with SIGTERM and starts it again with the same configuration and data, at other ports.
    pub async fn restart(mut self) -> Self {
        self.program.signal(Signal::TERM);
        self.program.ended().await;
        self.start_again().await
    }
}

/// The demo server in this process. Ends when it is dropped.
#[derive(Debug)]
pub struct DemoBackend {
    /// The URL of the streamable HTTP endpoint.
    pub url: String,
    /// The URL of the HTTP+SSE endpoint.
    pub sse_url: String,
    stop: DropGuard,
}

impl DemoBackend {
    /// Starts one on a free port.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub async fn start() -> Self {
        let tasks = TaskTracker::new();
        let demo = Demo::new(tasks.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(async move { demo.serve(listener, stopped).await });
        Self { url: format!("{base}/mcp"), sse_url: format!("{base}/sse"), stop: stop.drop_guard() }
    }

    /// Ends its streams and its listener.
    pub fn stop(self) {
        drop(self.stop);
    }
}

/// The demo server in a process of its own, at its URL.
///
/// # Panics
///
/// If it does not start.
pub async fn demo_process() -> (Program, String) {
    let mut command = command();
    command.args(["demo-server", "--listen", "127.0.0.1:0"]);
    let (program, mut addresses) = Program::start(command, &["demo"]).await;
    (program, addresses.remove(0))
}
