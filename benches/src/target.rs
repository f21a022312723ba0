//! Starts what is measured, and ends it again.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

use crate::backend::Eras;
use crate::client::{Connection, Endpoint};
use crate::net;
use crate::texts::{CALLABLE, TOOLS};

const START: Duration = Duration::from_secs(10);
const STOP: Duration = Duration::from_secs(5);

/// What may stand between load and backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Nothing.
    Direct,
    /// The bare pass-through.
    Proxy,
    /// nginx, where it is installed.
    Nginx,
    /// The gateway.
    Drawbridge,
}

impl Kind {
    /// As in the tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy => "proxy",
            Self::Nginx => "nginx",
            Self::Drawbridge => "drawbridge",
        }
    }
}

/// A running process, ended when dropped.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // the process may be gone already: then there is nothing to do
        let _gone = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < STOP {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Something to send requests to.
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) endpoint: Endpoint,
    /// The measured process; none for `direct`.
    pub(crate) process: Option<Running>,
    _files: Option<TempDir>,
}

/// A process that told where it listens.
pub(crate) struct Started {
    pub(crate) process: Running,
    pub(crate) address: SocketAddr,
    /// From before the process was made until its line was read.
    pub(crate) took: Duration,
}

/// Starts a backend.
pub(crate) fn backend(eras: Eras) -> anyhow::Result<Started> {
    let eras = eras.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    start(own()?.args(["backend", "--eras", &eras])).context("start the backend")
}

/// Starts `kind` in front of `backend`.
pub(crate) fn start_kind(kind: Kind, backend: SocketAddr, drawbridge: &Path) -> anyhow::Result<Target> {
    let (endpoint, process, files) = match kind {
        Kind::Direct => (Endpoint::new(backend, "/mcp"), None, None),
        Kind::Proxy => {
            let started = proxy(backend)?;
            (Endpoint::new(started.address, "/mcp"), Some(started.process), None)
        }
        Kind::Nginx => {
            let files = TempDir::new()?;
            let (process, address) = nginx(backend, files.path()).context("start nginx")?;
            (Endpoint::new(address, "/mcp"), Some(process), Some(files))
        }
        Kind::Drawbridge => {
            let files = TempDir::new()?;
            let started = gateway(drawbridge, backend, files.path())?;
            (Endpoint::new(started.address, "/mcp"), Some(started.process), Some(files))
        }
    };
    let mut target = Target { kind, endpoint, process, _files: files };
    target.endpoint.prefix = prefix(&target.endpoint).with_context(|| format!("try {}", kind.name()))?;
    Ok(target)
}

/// Starts the pass-through.
pub(crate) fn proxy(backend: SocketAddr) -> anyhow::Result<Started> {
    start(own()?.args(["proxy", "--backend", &backend.to_string()])).context("start the pass-through")
}

/// Starts Drawbridge with its files in `folder`.
pub(crate) fn gateway(program: &Path, backend: SocketAddr, folder: &Path) -> anyhow::Result<Started> {
    let servers = folder.join("mcp.json");
    let text =
        json!({ "mcpServers": { "bench": { "type": "http", "url": format!("http://{backend}/mcp") } } });
    fs::write(&servers, text.to_string())?;
    let mut command = serve(program, folder)?;
    command.arg("--mcp-servers").arg(servers);
    command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    start(&mut command).context("start Drawbridge")
}

/// Drawbridge in front of its own demo server, as a program of the era with sessions.
pub(crate) fn in_front_of_program(drawbridge: &Path) -> anyhow::Result<Target> {
    let files = TempDir::new()?;
    let program = fs::canonicalize(drawbridge)?;
    let backend = json!({ "command": program, "args": ["demo-server", "--stdio"], "era": "legacy" });
    let file = files.path().join("drawbridge.yaml");
    fs::write(&file, json!({ "backends": { "bench": backend } }).to_string())?;
    let mut command = serve(drawbridge, files.path())?;
    command.arg("--config").arg(file);
    command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    let started = start(&mut command).context("start Drawbridge")?;
    let endpoint = Endpoint::new(started.address, "/mcp");
    Ok(Target { kind: Kind::Drawbridge, endpoint, process: Some(started.process), _files: Some(files) })
}

/// Drawbridge in `folder`, with nothing of its configuration from the environment of the bench.
pub(crate) fn serve(program: &Path, folder: &Path) -> anyhow::Result<Command> {
    let program = fs::canonicalize(program)
        .with_context(|| format!("no {}: build it, or say --drawbridge PATH or none", program.display()))?;
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DRAWBRIDGE_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).arg("serve");
    Ok(command)
}

/// Where a program is, if it is installed.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(program)).find(|program| program.is_file())
}

/// A program that is installed and tells nothing of its start. It ends with the bench even if that is killed.
pub(crate) fn quiet(program: &str) -> anyhow::Result<Command> {
    let program = installed(program).with_context(|| format!("{program} is not installed"))?;
    let mut command = match installed("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "TERM"]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Starts `command` and waits until it is `ready`.
pub(crate) fn start_quiet(command: &mut Command, ready: impl Fn() -> bool) -> anyhow::Result<Running> {
    let mut running = Running { child: command.spawn()? };
    let begin = Instant::now();
    while !ready() {
        if let Some(status) = running.child.try_wait()? {
            bail!("it ended with {status}");
        }
        ensure!(begin.elapsed() < START, "it was not ready in time");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(running)
}

fn nginx(backend: SocketAddr, folder: &Path) -> anyhow::Result<(Running, SocketAddr)> {
    let program = installed("nginx").context("nginx is not installed")?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, net::free_port()?));
    let at = folder.display();
    let cores = net::cores();
    let config = format!(
        "daemon off; worker_processes {cores}; worker_rlimit_nofile 65536; pid {at}/pid; error_log {at}/error.log;
events {{ worker_connections 20000; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000; keepalive_timeout 3600s;
  client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;
  uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
  upstream backend {{ server {backend}; keepalive 256; keepalive_requests 1000000000; keepalive_timeout 3600s; }}
  server {{
    listen {address} reuseport backlog=4096;
    client_max_body_size 8m;
    location / {{
      proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 3600s;
      proxy_buffer_size 64k; proxy_buffers 8 64k;
    }}
  }}
}}
"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, config)?;
    let child = Command::new(program)
        .arg("-c")
        .arg(&file)
        .arg("-e")
        .arg(folder.join("error.log"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut running = Running { child };
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        if running.child.try_wait()?.is_some() || begin.elapsed() > START {
            bail!("it did not start: {}", fs::read_to_string(folder.join("error.log")).unwrap_or_default());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok((running, address))
}

/// This program, told to end with this process.
fn own() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--until-stdin-closes").stdin(Stdio::piped());
    Ok(command)
}

/// Starts what tells where it listens.
pub(crate) fn start(command: &mut Command) -> anyhow::Result<Started> {
    let begin = Instant::now();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut process = Running { child };
    let (lines, said) = mpsc::sync_channel(64);
    follow(process.child.stdout.take(), lines.clone());
    follow(process.child.stderr.take(), lines);
    let mut all = String::new();
    while begin.elapsed() < START {
        let Ok((at, line)) = said.recv_timeout(START.saturating_sub(begin.elapsed())) else { break };
        if let Some(address) = address(&line) {
            return Ok(Started { process, address, took: at.duration_since(begin) });
        }
        all.push_str(&line);
        all.push('\n');
    }
    bail!("it did not say where it listens; it said:\n{all}")
}

/// Hands on the lines of `pipe` while someone listens, and reads on after that.
fn follow(pipe: Option<impl Read + Send + 'static>, lines: mpsc::SyncSender<(Instant, String)>) {
    let Some(pipe) = pipe else { return };
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { break };
            // nobody listens after the start
            let _unheard = lines.send((Instant::now(), line));
        }
    });
}

/// The address of the public listener, if `line` tells it.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening")?;
    let (_, rest) = rest.split_once("public")?;
    let (_, rest) = rest.split_once("http://")?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

/// What the target puts before the names of tools.
pub(crate) fn prefix(endpoint: &Endpoint) -> anyhow::Result<String> {
    let tools = net::runtime()?.block_on(async {
        tokio::time::timeout(START, async { Connection::open(endpoint).await?.tools().await }).await
    })??;
    ensure!(tools.len() == TOOLS, "it lists {} instead of {TOOLS} tools", tools.len());
    let first = tools.iter().find_map(|tool| tool.strip_suffix(CALLABLE[0].name));
    Ok(first.context("it lists other tools than the backend")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn reads_the_address() {
        let expected = Some("127.0.0.1:4711".parse().unwrap());
        assert_eq!(address("listening public http://127.0.0.1:4711"), expected);
        assert_eq!(address("2026-01-01 INFO listening public=http://127.0.0.1:4711/mcp"), expected);
        assert_eq!(address(r#"{"message":"listening","public":"http://127.0.0.1:4711"}"#), expected);
        assert_eq!(address("listening admin http://127.0.0.1:1"), None);
    }
}
