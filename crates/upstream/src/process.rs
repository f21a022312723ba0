//! Running stdio servers: processes and lines, nothing of JSON-RPC.
//!
//! ```text
//!                     Writer ─ queue ─► write task ─► stdin ┐
//! caller ── Process ─ Lines ◄─ queue ── read task ◄─ stdout ┤ CMD and what it starts
//!                     Control ─ tokens ─► supervisor ─► guard ┘ (stderr ─► log and tail)
//! ```
//!
//! Invariants:
//!
//! * No process outlives its [`Control`], the gateway, or the shutdown of the runtime: see [`guard`].
//! * Every process is reaped, every queue is bounded by lines and by bytes, every stage of a stop has a deadline.
//! * A server sees the variables that are listed here and those its [`Spec`] adds, never the gateway's others:
//!   `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `TERM`, `TMPDIR`, `TZ`, `LANG`, `LC_*`, `XDG_*`, `SSL_CERT_FILE`,
//!   `SSL_CERT_DIR`, `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` (both cases), and what the usual launchers need:
//!   `NODE_*`, `npm_config_*`, `VIRTUAL_ENV`, `PYTHON*`, `UV_*`. Those last ones may hold credentials of package
//!   registries; set them for one server in its `Spec` instead where that matters.

use std::{
    collections::BTreeMap, ffi::OsString, fmt, io, path::PathBuf, process::Stdio, sync::Arc, time::Duration,
};

use tokio::{process::Command, sync::watch};
use tokio_util::task::TaskTracker;

mod backoff;
mod environment;
mod framing;
pub mod guard;
mod pipes;
mod stderr;
mod supervise;
mod tree;

pub use self::{
    backoff::Backoff,
    framing::Line,
    pipes::{Lines, WriteError, Writer},
    supervise::{Exit, Status},
};

/// What to run, and within which limits.
#[derive(Clone)]
pub struct Spec {
    /// The backend's name, for logs.
    pub name: String,
    /// The program; looked up in the server's `PATH` unless it has a slash.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables to set besides the inherited ones (see the [module](self)), or instead of them. Often secrets.
    pub env: BTreeMap<String, String>,
    /// Where to run; the gateway's own directory if not given.
    pub cwd: Option<PathBuf>,
    /// The longest line to accept from the server.
    pub max_line_bytes: usize,
    /// How long each stage of a stop may take: after closing stdin, and again after SIGTERM.
    pub stop_grace: Duration,
}

impl Spec {
    /// Runs `command` without arguments, with lines of up to 4 MiB and two seconds per stage of a stop.
    pub fn new(name: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            max_line_bytes: 4 * 1024 * 1024,
            stop_grace: Duration::from_secs(2),
        }
    }
}

/// Leaves out arguments and the values of variables: both may hold secrets.
impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("max_line_bytes", &self.max_line_bytes)
            .field("stop_grace", &self.stop_grace)
            .finish_non_exhaustive()
    }
}

/// How to start a [`guard`].
#[derive(Clone, Debug)]
pub struct GuardCommand {
    program: PathBuf,
    args: Vec<OsString>,
}

impl GuardCommand {
    /// `program`, given by its full path, which must call [`guard::run`] with what follows `args`.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { program: program.into(), args: args.into_iter().map(Into::into).collect() }
    }

    /// Servers may have so many files open, however many the gateway may.
    #[must_use]
    pub fn with_open_files(mut self, limit: u64) -> Self {
        self.args.extend(["--open-files".into(), limit.to_string().into()]);
        self
    }
}

impl Default for GuardCommand {
    /// This program, with `guard` as its first argument. By way of `/proc/self/exe`, which is the running program
    /// even when its file has been replaced by another version meanwhile.
    fn default() -> Self {
        Self::new("/proc/self/exe", ["guard"])
    }
}

/// Why a server was not started. What happens later, a command that is not found included, is an [`Exit`].
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No such directory to run in.
    #[error("backend {name}: the working directory {} is not a directory; create it or correct cwd", .path.display())]
    WorkingDirectory {
        /// The backend.
        name: String,
        /// What was configured.
        path: PathBuf,
    },
    /// The guard did not start.
    #[error("backend {name}: cannot start the guard {}; check the limits on processes and open files", .program.display())]
    Guard {
        /// The backend.
        name: String,
        /// The guard's program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A running server. Take it apart to hand its ends to where they are needed.
#[derive(Debug)]
pub struct Process {
    /// Its stdin.
    pub writer: Writer,
    /// Its stdout.
    pub lines: Lines,
    /// Its life.
    pub control: Control,
}

impl Process {
    /// Starts `spec` under `guard`, with the tasks that attend to it on `tracker`. Must be called within a runtime.
    ///
    /// Does not wait for the command to start: if it can't, the process [exits](Control::exited) with code 127 (not
    /// found) or 126, and the reason is in [`Exit::stderr`].
    pub fn spawn(spec: &Spec, guard: &GuardCommand, tracker: &TaskTracker) -> Result<Self, SpawnError> {
        if let Some(path) = spec.cwd.as_ref().filter(|path| !path.is_dir()) {
            return Err(SpawnError::WorkingDirectory { name: spec.name.clone(), path: path.clone() });
        }
        let failed =
            |source| SpawnError::Guard { name: spec.name.clone(), program: guard.program.clone(), source };
        let mut child = command(spec, guard).spawn().map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = child.id();
        let child = supervise::Guard(child);
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed(io::Error::other("the pipes are missing")));
        };

        let name: Arc<str> = spec.name.as_str().into();
        let signals = supervise::Signals::default();
        let tail = stderr::Tail::default();
        let (writer, outgoing) = pipes::writer(spec.max_line_bytes);
        let (lines, incoming) = pipes::lines(spec.max_line_bytes);
        let (exit_sender, exit) = watch::channel(None);

        let readers = TaskTracker::new();
        tracker.spawn(pipes::write(stdin, outgoing, signals.stop.clone(), signals.ended.clone()));
        tracker.spawn(readers.track_future(pipes::read(stdout, incoming, signals.ended.clone())));
        tracker.spawn(readers.track_future(stderr::capture(
            Arc::clone(&name),
            stderr,
            tail.clone(),
            signals.ended.clone(),
        )));
        readers.close();
        let supervisor = supervise::Supervisor {
            name,
            guard: child,
            stop_grace: spec.stop_grace,
            signals: signals.clone(),
            tail: tail.clone(),
            readers,
        };
        tracker.spawn(supervisor.run(exit_sender));
        Ok(Self { writer, lines, control: Control { pid, signals, exit, tail } })
    }
}

fn command(spec: &Spec, guard: &GuardCommand) -> Command {
    let mut command = Command::new(&guard.program);
    command
        .arg0("drawbridge")
        .args(&guard.args)
        .args(["--parent", &std::process::id().to_string()])
        .args(["--grace-ms", &spec.stop_grace.as_millis().to_string(), "--"])
        .arg(&spec.command)
        .args(&spec.args)
        .env_clear()
        .envs(environment::inherited(std::env::vars_os()))
        .envs(&spec.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    command
}

/// Holds a server alive: without it, the server and all that it started are ended, by SIGTERM and, after the grace
/// time, SIGKILL. Use [`stop`](Self::stop) to let it end in order.
#[derive(Debug)]
pub struct Control {
    pid: Option<u32>,
    signals: supervise::Signals,
    exit: watch::Receiver<Option<Exit>>,
    tail: stderr::Tail,
}

impl Control {
    /// The id of the guard's process, for logs.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The last lines the server wrote to stderr, at most 20. For operators: they may hold anything the server
    /// knows.
    pub fn stderr_tail(&self) -> Vec<String> {
        self.tail.lines()
    }

    /// Resolves once the server and all that it started are gone. Does not hold the server alive.
    pub fn exited(&self) -> impl Future<Output = Exit> + Send + use<> {
        let mut exit = self.exit.clone();
        let tail = self.tail.clone();
        async move {
            match exit.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(exit)) => exit.clone(),
                // The runtime shut down under the supervisor.
                Ok(None) | Err(_) => Exit::unknown(&tail),
            }
        }
    }

    /// Ends the server in order: writes what is queued, closes stdin, waits `stop_grace`, SIGTERM to the whole tree,
    /// waits `stop_grace`, SIGKILL. Dropping the future goes on to SIGTERM at once.
    pub async fn stop(self) -> Exit {
        self.signals.stop.cancel();
        self.exited().await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.signals.abandon.cancel();
        self.signals.stop.cancel();
    }
}
