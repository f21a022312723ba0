//! Seeing one process tree through to its end, from the gateway's side.

use std::{
    fmt,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Child, sync::watch, time::timeout};
use tokio_util::future::FutureExt as _;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{guard::KILL_LIMIT, stderr::Tail, tree};

/// How much longer than its own limits the guard may take.
const GUARD_MARGIN: Duration = Duration::from_secs(1);
/// How long the pipes may still bring data once the tree is gone. They close with it; only a process that got away
/// keeps them open.
const PIPES_LINGER: Duration = Duration::from_millis(500);

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// With this exit code. 125 to 127 may be the guard's, see [`guard`](super::guard).
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// The gateway could not find out.
    Unknown,
}

impl From<ExitStatus> for Status {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            // The guard, like a shell, says 128 + n for signal n.
            (Some(code @ 129..=192), _) => Self::Signalled(code - 128),
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signalled(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Of the guard, or of a shell in its place; both mean the same by these.
            Self::Exited(code @ 127) => write!(
                f,
                "could not be started: the program was not found; check the command, PATH and cwd (code {code})"
            ),
            Self::Exited(code @ 126) => write!(
                f,
                "could not be started: the program can't be executed; check the file's permissions (code {code})"
            ),
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signalled(signal) => {
                let name = signal_hook::low_level::signal_name(*signal).unwrap_or("unnamed");
                write!(f, "was ended by signal {signal} ({name})")
            }
            Self::Unknown => f.write_str("ended in an unknown way"),
        }
    }
}

/// A server's end, and what it said last. Displays as its status.
#[derive(Clone, Debug)]
pub struct Exit {
    status: Status,
    stderr: Arc<[String]>,
    unlogged: Arc<[String]>,
}

impl Exit {
    pub(super) fn unknown(tail: &Tail) -> Self {
        Self::new(Status::Unknown, tail)
    }

    fn new(status: Status, tail: &Tail) -> Self {
        Self { status, stderr: tail.lines().into(), unlogged: tail.unlogged_lines().into() }
    }

    /// How it ended.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The last lines it wrote to stderr, at most 20. For operators: they may hold anything the server knows.
    pub fn stderr(&self) -> &[String] {
        &self.stderr
    }

    /// Those of them that were not logged when they came.
    pub fn unlogged_stderr(&self) -> &[String] {
        &self.unlogged
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)
    }
}

/// What the handle and the supervisor tell each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    /// End in order: close stdin, wait, SIGTERM, wait, SIGKILL.
    pub(super) stop: CancellationToken,
    /// Nobody waits for an orderly end: go on to SIGTERM.
    pub(super) abandon: CancellationToken,
    /// The tree is gone, nothing is to be expected from the pipes.
    pub(super) ended: CancellationToken,
}

/// The guard's process. However this is dropped, the guard has been told to end its tree: a runtime that shuts
/// down drops tasks without running them on.
#[derive(Debug)]
pub(super) struct Guard(pub(super) Child);

impl Guard {
    fn pid(&self) -> Option<Pid> {
        self.0.id().and_then(|pid| pid.try_into().ok()).and_then(Pid::from_raw)
    }

    fn terminate(&self) {
        // There is an id exactly as long as the process was not reaped, so it is nobody else's.
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.terminate();
    }
}

/// One running tree.
pub(super) struct Supervisor {
    pub(super) name: Arc<str>,
    pub(super) guard: Guard,
    pub(super) stop_grace: Duration,
    pub(super) signals: Signals,
    pub(super) tail: Tail,
    /// The tasks that read the pipes.
    pub(super) readers: TaskTracker,
}

impl Supervisor {
    /// Returns when the tree is gone, or could not be made to go.
    pub(super) async fn run(mut self, exit: watch::Sender<Option<Exit>>) {
        let started = Instant::now();
        let pid = self.guard.pid();
        let ended = tokio::select! {
            // cancel-safe: wait may be called again.
            status = self.guard.0.wait() => status.ok(),
            () = self.signals.stop.cancelled() => self.end().await,
        };
        // The queue to the server closes, if it did not with the stop.
        self.signals.stop.cancel();
        if let Some(pid) = pid.filter(|_| ended.is_none_or(|status| status.signal().is_some())) {
            // It was the guard that the signal ended, so its tree is still there. All of it that did not found its
            // own session is in the guard's, whose id stays taken as long as it has members.
            let _ = tokio::task::spawn_blocking(move || tree::kill_session(pid)).await;
        }
        // What the server said last is part of the answer.
        let _ = timeout(PIPES_LINGER, self.readers.wait()).await;
        self.signals.ended.cancel();

        let status = ended.map_or(Status::Unknown, Status::from);
        let uptime = started.elapsed();
        tracing::debug!(backend.name = &*self.name, ?uptime, "server {status}");
        exit.send_replace(Some(Exit::new(status, &self.tail)));
    }

    /// MCP 2025-11-25, lifecycle § shutdown, stdio. The writer closes stdin on the same token that led here.
    async fn end(&mut self) -> Option<ExitStatus> {
        let closed = timeout(self.stop_grace, self.guard.0.wait());
        if let Some(Ok(status)) = closed.with_cancellation_token(&self.signals.abandon).await {
            return status.ok();
        }
        self.guard.terminate();
        let limit = self.stop_grace + KILL_LIMIT + GUARD_MARGIN;
        if let Ok(status) = timeout(limit, self.guard.0.wait()).await {
            return status.ok();
        }
        tracing::warn!(backend.name = &*self.name, "the server's guard does not answer; killing both");
        if let Some(pid) = self.guard.pid() {
            let _ = tokio::task::spawn_blocking(move || tree::kill_below(pid)).await;
        }
        let _ = self.guard.0.start_kill();
        timeout(KILL_LIMIT, self.guard.0.wait()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_told_apart_and_say_so() {
        for (raw, expected) in [
            (0, "exited with code 0"),
            (3 << 8, "exited with code 3"),
            (
                127 << 8,
                "could not be started: the program was not found; check the command, PATH and cwd (code 127)",
            ),
            (137 << 8, "was ended by signal 9 (SIGKILL)"),
            (15, "was ended by signal 15 (SIGTERM)"),
            (255 << 8, "exited with code 255"),
        ] {
            assert_eq!(Status::from(ExitStatus::from_raw(raw)).to_string(), expected);
        }
    }
}
