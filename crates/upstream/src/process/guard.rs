//! The guard: the small process that stands between the gateway and one stdio server.
//!
//! ```text
//! gateway ── guard (own session, child subreaper) ── CMD (own process group) ── whatever CMD starts
//! ```
//!
//! The gateway may be killed without a chance to clean up; its children would stay behind, and so would what they
//! started. The guard sees the gateway end (its pidfd becomes readable, whoever inherited which descriptor), and
//! as child subreaper it adopts every process below it that loses its parent, daemonised ones included. The tree
//! is therefore complete at any time, and "no child left to wait for" means that it is gone.
//!
//! | what happens | what the guard does |
//! |---|---|
//! | the gateway ends, or the guard gets SIGTERM, SIGINT, SIGHUP or SIGQUIT | SIGTERM to the tree, the grace time, SIGKILL to what is left |
//! | CMD ends by itself | SIGKILL to what it left behind |
//!
//! It ends with the exit code of CMD, or 128 + the signal that ended CMD; with 127 when CMD was not found, 126
//! when it could not be started, and 125 when the guard itself was used wrongly or could not do its work.
//!
//! The guard copies no bytes: CMD has the pipes of the gateway, and the guard lets go of stdin and stdout as soon
//! as CMD runs, so that each side sees the other close them.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{self, Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, WaitStatus},
};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    flag,
    low_level::pipe,
};

use super::tree;

const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// How often what is left of the tree is killed again. New processes may have been forked meanwhile.
const KILL_EVERY: Duration = Duration::from_millis(10);
/// When to stop waiting for killed processes: one in an uninterruptible system call, or another user's, would
/// hold the guard for ever.
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How often to look for the parent where the kernel has no pidfds.
const PARENT_EVERY: Duration = Duration::from_millis(500);

const CODE_GUARD_FAILED: u8 = 125;
const CODE_NOT_STARTED: u8 = 126;
const CODE_NOT_FOUND: u8 = 127;
const CODE_SIGNAL_BASE: i32 = 128;

/// Runs the guard until its tree is gone.
///
/// `args` is what follows the word `guard` on the command line: `[--parent PID] [--grace-ms N] [--open-files N] -- CMD
/// ARGS...`.
/// `--parent` names the process whose end ends the tree, and must be the one that started the guard; without it,
/// that is whichever process did. Call this before anything else in `main`: no runtime, no logging.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Options::parse(args).and_then(|options| guard(&options)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Nobody may be left to read it.
            let _ = writeln!(io::stderr(), "drawbridge guard: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum GuardError {
    #[error("{0}; usage: drawbridge guard [--parent PID] [--grace-ms N] [--open-files N] -- CMD ARGS...")]
    Usage(String),
    #[error("the gateway (process {0}) is gone; nothing was started")]
    ParentGone(i32),
    #[error("cannot {action}: {source}")]
    System {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot start {}: {source}; check the command, PATH and the file's permissions", .command.display())]
    Start {
        command: OsString,
        #[source]
        source: io::Error,
    },
}

impl GuardError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => CODE_NOT_FOUND,
            Self::Start { .. } => CODE_NOT_STARTED,
            Self::Usage(_) | Self::ParentGone(_) | Self::System { .. } => CODE_GUARD_FAILED,
        }
    }

    fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    parent: Option<i32>,
    grace: Duration,
    /// How many files CMD may have open: old programs count on few.
    open_files: Option<u64>,
    command: OsString,
    args: Vec<OsString>,
}

impl Options {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, GuardError> {
        let mut args = args.into_iter();
        let mut parent = None;
        let mut grace = DEFAULT_GRACE;
        let mut open_files = None;
        loop {
            let Some(arg) = args.next() else {
                return Err(GuardError::Usage("the command is missing after --".to_owned()));
            };
            match arg.to_str() {
                Some("--") => break,
                Some("--parent") => parent = Some(number("--parent", args.next())?),
                Some("--open-files") => open_files = Some(number("--open-files", args.next())?),
                Some("--grace-ms") => {
                    grace = Duration::from_millis(number("--grace-ms", args.next())?);
                }
                _ => return Err(GuardError::Usage(format!("unknown option {}", arg.display()))),
            }
        }
        let command =
            args.next().ok_or_else(|| GuardError::Usage("the command is missing after --".to_owned()))?;
        Ok(Self { parent, grace, open_files, command, args: args.collect() })
    }
}

fn number<N: std::str::FromStr>(option: &str, value: Option<OsString>) -> Result<N, GuardError> {
    value
        .and_then(|value| value.to_str()?.parse().ok())
        .ok_or_else(|| GuardError::Usage(format!("{option} needs a number")))
}

fn guard(options: &Options) -> Result<u8, GuardError> {
    let signals = Signals::catch().map_err(GuardError::system("catch signals"))?;
    let parent = Parent::watch(options.parent)?;
    // A session of its own keeps the terminal's signals away from the tree. Refused to the leader of a process
    // group, which the guard is only when somebody starts it from a shell.
    let _ = process::setsid();
    process::set_child_subreaper(Some(process::getpid()))
        .map_err(GuardError::system("become the subreaper of the server's processes"))?;

    if let Some(files) = options.open_files {
        let maximum = process::getrlimit(Resource::Nofile).maximum;
        process::setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum })
            .map_err(GuardError::system("limit the server's open files"))?;
    }
    let child = Command::new(&options.command)
        .args(&options.args)
        .process_group(0)
        .spawn()
        .map_err(|source| GuardError::Start { command: options.command.clone(), source })?;
    let Some(main) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return Err(GuardError::System { action: "read the id of the server", source: Errno::INVAL.into() });
    };
    // From here on the guard must not fail: it holds a tree. Where /dev/null is missing, the worst is that an
    // end of file is seen later.
    let null = File::open("/dev/null").and_then(|read| Ok((read, File::create("/dev/null")?)));
    if let Ok((read, write)) = null {
        let _ = rustix::stdio::dup2_stdin(read);
        let _ = rustix::stdio::dup2_stdout(write);
    }
    Ok(Tree { main, status: None, told: HashSet::new() }.attend(options.grace, &parent, &signals))
}

#[derive(Clone, Copy)]
enum Phase {
    Serving,
    Ending { kill_at: Instant },
    Killing { give_up_at: Instant },
}

struct Tree {
    main: Pid,
    status: Option<WaitStatus>,
    /// Who got SIGTERM. Nobody gets it twice: many servers take the second as "now".
    told: HashSet<(Pid, u64)>,
}

impl Tree {
    fn attend(mut self, grace: Duration, parent: &Parent, signals: &Signals) -> u8 {
        let mut phase = Phase::Serving;
        while self.reap() {
            let now = Instant::now();
            let killing = Phase::Killing { give_up_at: now + KILL_LIMIT };
            phase = match phase {
                Phase::Serving if self.status.is_some() => killing,
                Phase::Serving if signals.is_end_asked() || parent.is_gone() => {
                    self.terminate();
                    Phase::Ending { kill_at: now + grace }
                }
                Phase::Ending { kill_at } if now >= kill_at => killing,
                Phase::Killing { give_up_at } if now >= give_up_at => break,
                unchanged => unchanged,
            };
            match phase {
                Phase::Serving => signals.wait(parent.limit(), parent.pidfd()),
                Phase::Ending { kill_at } => {
                    if self.status.is_some() {
                        self.terminate_late_comers();
                    }
                    signals.wait(Some(kill_at.saturating_duration_since(now)), None);
                }
                Phase::Killing { .. } => {
                    tree::kill_below(process::getpid());
                    signals.wait(Some(KILL_EVERY), None);
                }
            }
        }
        self.exit_code()
    }

    /// Collects the processes that ended. False when no child is left, which for a subreaper means that no
    /// descendant is left.
    fn reap(&mut self) -> bool {
        loop {
            match process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// SIGTERM to each process of the tree: the group at once, the others one by one.
    fn terminate(&mut self) {
        let entries = tree::descendants(process::getpid());
        let _ = process::kill_process_group(self.main, Signal::TERM);
        for entry in entries {
            if self.told.insert(entry.identity()) && !entry.is_in_group(self.main) {
                entry.signal(Signal::TERM);
            }
        }
    }

    /// SIGTERM to what was started after the others got theirs. While CMD lives such a process may be part of its
    /// orderly end; without CMD nobody is left to end it. A signal can still get lost between a fork and an exec;
    /// SIGKILL is for that too.
    fn terminate_late_comers(&mut self) {
        for entry in tree::descendants(process::getpid()) {
            if self.told.insert(entry.identity()) {
                entry.signal(Signal::TERM);
            }
        }
    }

    fn exit_code(&self) -> u8 {
        let code = self.status.and_then(|status| {
            status.exit_status().or_else(|| Some(CODE_SIGNAL_BASE + status.terminating_signal()?))
        });
        // Without a status CMD outlived SIGKILL.
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(CODE_GUARD_FAILED)
    }
}

/// The process whose end ends the tree.
struct Parent {
    pid: i32,
    pidfd: Option<OwnedFd>,
}

impl Parent {
    fn watch(expected: Option<i32>) -> Result<Self, GuardError> {
        let pid = expected.unwrap_or_else(|| Pid::as_raw(process::getppid()));
        let pidfd = Pid::from_raw(pid).and_then(|pid| process::pidfd_open(pid, PidfdFlags::empty()).ok());
        let parent = Self { pid, pidfd };
        // With the pidfd open and the parent still the parent, the pidfd is the parent's and not a stranger's
        // who took over the id.
        if parent.has_left() { Err(GuardError::ParentGone(pid)) } else { Ok(parent) }
    }

    fn has_left(&self) -> bool {
        Pid::as_raw(process::getppid()) != self.pid
    }

    /// The pidfd is asked, not only `getppid`: that changes when the parent's last thread is reaped, which may
    /// be later.
    fn is_gone(&self) -> bool {
        let ended = self.pidfd.as_ref().is_some_and(|pidfd| {
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
        });
        ended || self.has_left()
    }

    fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    fn limit(&self) -> Option<Duration> {
        self.pidfd.is_none().then_some(PARENT_EVERY)
    }
}

/// The signals the guard cares for: each makes the pipe readable, and those that ask for the end set the flag
/// first.
struct Signals {
    end_asked: Arc<AtomicBool>,
    wake: UnixStream,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let end_asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
            flag::register(signal, Arc::clone(&end_asked))?;
            pipe::register(signal, waker.try_clone()?)?;
        }
        pipe::register(SIGCHLD, waker)?;
        Ok(Self { end_asked, wake })
    }

    fn is_end_asked(&self) -> bool {
        self.end_asked.load(Ordering::SeqCst)
    }

    /// Returns on a signal, when `other` is readable, or after `limit`. Early returns do no harm: the caller
    /// looks at everything again.
    fn wait(&self, limit: Option<Duration>, other: Option<BorrowedFd<'_>>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = poll(&mut fds, limit.as_ref());
        let mut wake = &self.wake;
        while matches!(wake.read(&mut [0; 64]), Ok(1..)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        Options::parse(args.iter().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_end_at_the_separator() {
        let options = parse(&[
            "--parent",
            "12",
            "--open-files",
            "64",
            "--grace-ms",
            "250",
            "--",
            "cmd",
            "--parent",
            "--",
        ])
        .unwrap();
        assert_eq!(
            options,
            Options {
                parent: Some(12),
                grace: Duration::from_millis(250),
                open_files: Some(64),
                command: "cmd".into(),
                args: vec!["--parent".into(), "--".into()],
            }
        );
    }

    #[test]
    fn grace_has_a_default() {
        assert_eq!(parse(&["--", "cmd"]).unwrap().grace, DEFAULT_GRACE);
    }

    #[test]
    fn wrong_usage_says_what_is_wrong() {
        for (args, expected) in [
            (&[][..], "the command is missing"),
            (&["--"], "the command is missing"),
            (&["--parent", "x", "--", "cmd"], "--parent needs a number"),
            (&["--grace-ms"], "--grace-ms needs a number"),
            (&["cmd"], "unknown option cmd"),
        ] {
            let error = parse(args).unwrap_err();
            assert!(error.contains(expected) && error.contains("usage:"), "{error}");
        }
    }
}
