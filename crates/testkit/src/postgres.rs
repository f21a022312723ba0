//! PostgreSQL as it runs in production: `postgres` in processes of its own, on a free port of 127.0.0.1, with its files
//! in a folder that goes with it. A server ends with its last handle, and with the process of the test.
//!
//! Making a cluster takes seconds, so it is done once for a build folder; every server starts with a copy. Tests that
//! run in one process share a server, and each has a database of its own.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::redis::free_port;
use crate::{PATIENCE, eventually};

const SETPRIV: &str = "/usr/bin/setpriv";
/// Who runs it if we are root, whom it refuses: `nobody` of Debian.
const NOBODY: u32 = 65534;
/// Of the user `postgres`, over TCP.
const PASSWORD: &str = "correct-horse";
/// The server that the tests of this process share, while one of them runs.
static SHARED: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());
/// The database that a cluster has from the beginning.
const MAINTENANCE: &str = "postgres";
/// A file system in memory: there it takes a twentieth of the time to copy a cluster's thousand files.
const MEMORY: &str = "/dev/shm";
/// With more than this free there, in KiB. In containers it is often small.
const ENOUGH: u64 = 2 << 20;

/// A server.
#[derive(Debug)]
pub struct PostgresServer {
    programs: PathBuf,
    dir: TempDir,
    port: u16,
    tls: bool,
    /// How many databases were given to tests.
    given: AtomicU32,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    pid: Pid,
    /// Waits for the process.
    keeper: JoinHandle<()>,
}

/// A database of its own on a server.
#[derive(Debug)]
pub struct PostgresDatabase {
    /// The server.
    pub server: Arc<PostgresServer>,
    name: String,
}

impl PostgresDatabase {
    /// A fresh one on the server that the tests of this process share.
    pub async fn fresh() -> Self {
        let mut shared = SHARED.lock().await;
        let server = match shared.upgrade() {
            Some(server) => server,
            None => Arc::new(PostgresServer::start().await),
        };
        *shared = Arc::downgrade(&server);
        drop(shared);
        let name = match server.given.fetch_add(1, Ordering::Relaxed) {
            // This one is there.
            0 => MAINTENANCE.to_owned(),
            number => {
                let name = format!("test_{number}");
                server.create_database(&name);
                name
            }
        };
        Self { server, name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL, with user and password.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// `psql` with it, which prints answers alone and stops at an error.
    pub fn psql(&self) -> Command {
        self.server.psql(&self.name)
    }

    /// What `psql` answers to a statement.
    ///
    /// # Panics
    ///
    /// If it is an error.
    pub fn run(&self, sql: &str) -> String {
        self.server.run(&self.name, sql)
    }
}

impl PostgresServer {
    /// Starts one.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed, or does not start.
    pub async fn start() -> Self {
        Self::start_as(None).await
    }

    /// Starts one that speaks TLS, too, with a certificate and its key in PEM form.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed, or does not start.
    pub async fn start_with_tls(certificate: &str, key: &str) -> Self {
        Self::start_as(Some((certificate, key))).await
    }

    async fn start_as(tls: Option<(&str, &str)>) -> Self {
        let programs = programs();
        let template = template(&programs);
        let dir = folder();
        // Files keep their owner.
        done(Command::new("cp").arg("-a").arg(&template).arg(dir.path().join("data")));
        if let Some((certificate, key)) = tls {
            private_file(&dir.path().join("server.crt"), certificate);
            private_file(&dir.path().join("server.key"), key);
        }
        let (port, tls, given) = (free_port(), tls.is_some(), AtomicU32::new(0));
        let mut server = Self { programs, dir, port, tls, given, running: None };
        while let Err(said) = server.launch().await {
            // Somebody else may have taken the port that was free.
            assert!(said.contains("could not bind"), "postgres ended: {said}");
            server.port = free_port();
        }
        server
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a database, with user and password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// Makes a database.
    ///
    /// # Panics
    ///
    /// If it does not work.
    pub fn create_database(&self, name: &str) {
        done(self.program("createdb").args(["--template=template0", name]));
    }

    /// What `psql` answers to a statement.
    ///
    /// # Panics
    ///
    /// If it is an error.
    pub fn run(&self, database: &str, sql: &str) -> String {
        let answer = done(self.psql(database).args(["-c", sql]));
        answer.trim_end().to_owned()
    }

    /// `psql` with a database, which prints answers alone and stops at an error.
    pub fn psql(&self, database: &str) -> Command {
        let mut psql = self.program("psql");
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database]);
        psql
    }

    /// Starts it again at the same port, with what it kept.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn restart(&mut self) {
        self.launch().await.unwrap_or_else(|said| panic!("postgres ended: {said}"));
    }

    /// Starts it; what it said if it ends instead.
    async fn launch(&mut self) -> Result<(), String> {
        let (data, log) = (self.dir.path().join("data"), self.dir.path().join("log"));
        let mut command = unprivileged(&self.programs.join("postgres"), true);
        command.arg("-D").arg(&data).args(["-p", &self.port.to_string()]);
        command.arg("-k").arg(self.dir.path()).stderr(File::create(&log).unwrap());
        for setting in [
            "listen_addresses=127.0.0.1",
            // What is written survives the server, and need not survive the machine.
            "fsync=off",
            "full_page_writes=off",
            "autovacuum=off",
            "max_connections=400",
            "shared_buffers=16MB",
            // Not in /dev/shm, where it would outlive a server that was killed.
            "dynamic_shared_memory_type=mmap",
            "log_min_messages=warning",
        ] {
            command.args(["-c", setting]);
        }
        if self.tls {
            command.args(["-c", "ssl=on"]);
            for (setting, file) in [("ssl_cert_file", "server.crt"), ("ssl_key_file", "server.key")] {
                command.arg("-c").arg(format!("{setting}={}", self.dir.path().join(file).display()));
            }
        }
        let _ = fs::remove_file(data.join("postmaster.pid"));
        self.running = Some(run(command));
        let has_ended = || self.running.as_ref().is_none_or(|running| running.keeper.is_finished());
        eventually(PATIENCE, async || {
            let state = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            has_ended() || state.lines().nth(7).is_some_and(|line| line.trim() == "ready")
        })
        .await;
        if has_ended() { Err(fs::read_to_string(&log).unwrap_or_default()) } else { Ok(()) }
    }

    /// Ends it at once, as a crash does: it recovers when it starts again.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            // The only signal after which none of its processes is left.
            let _ = kill_process(running.pid, Signal::QUIT);
            let _ = running.keeper.join();
        }
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.arg("-h").arg(self.dir.path()).args(["-p", &self.port.to_string(), "-U", "postgres"]);
        command.env_remove("PGOPTIONS").env_remove("PGDATABASE").stdin(Stdio::null());
        command
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server from a thread that lives as long as it does: it is killed with the thread that started it.
fn run(mut command: Command) -> Running {
    let (started, pid) = mpsc::channel();
    let keeper = thread::spawn(move || {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect(NEEDED);
        started.send(child.id()).unwrap();
        let _ = child.wait();
    });
    let pid = pid.recv_timeout(PATIENCE).expect(NEEDED);
    Running { pid: Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), keeper }
}

const NEEDED: &str = "PostgreSQL is needed (Debian: the package postgresql); ./test.sh installs it";

/// Where `postgres` and `initdb` are. Debian has them outside of the path; the newest there is the last.
fn programs() -> PathBuf {
    let needed = ["initdb", "postgres", "createdb", "psql"];
    let has_all = |folder: &Path| needed.iter().all(|name| folder.join(name).exists());
    let version = |folder: &PathBuf| {
        folder.file_name().and_then(OsStr::to_str).and_then(|name| name.parse::<u32>().ok())
    };
    let installed =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut installed: Vec<PathBuf> = installed.collect();
    installed.sort_by_key(version);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all =
        std::env::split_paths(&path).chain(installed.into_iter().rev().map(|folder| folder.join("bin")));
    all.find(|folder| has_all(folder)).expect(NEEDED)
}

/// A folder that belongs to who runs the server. Those of tests that were killed go.
fn folder() -> TempDir {
    const PREFIX: &str = "drawbridge-postgres-";
    let free = Command::new("df").args(["-k", "--output=avail", MEMORY]).output();
    let free = free.ok().and_then(|free| String::from_utf8(free.stdout).ok());
    let free = free.and_then(|free| free.lines().last()?.trim().parse::<u64>().ok());
    let parent =
        if free.is_some_and(|free| free > ENOUGH) { PathBuf::from(MEMORY) } else { std::env::temp_dir() };
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent).unwrap();
    if geteuid().is_root() {
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    dir
}

/// A file that only who runs the server can read.
fn private_file(path: &Path, content: &str) {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(content.as_bytes()).unwrap();
    if geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// A program as a user that PostgreSQL accepts; `ends` with the thread that starts it.
fn unprivileged(program: &Path, ends: bool) -> Command {
    let root = geteuid().is_root();
    if !Path::new(SETPRIV).exists() {
        assert!(
            !root,
            "{SETPRIV} is needed: PostgreSQL does not run as root (Debian: the package util-linux)"
        );
        return Command::new(program);
    }
    let mut command = Command::new(SETPRIV);
    if root {
        let id = NOBODY.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    if ends {
        command.args(["--pdeathsig", "QUIT"]);
    }
    command.arg(program);
    command
}

/// A cluster that nobody has used, in the folder of the build.
fn template(programs: &Path) -> PathBuf {
    let version = done(Command::new(programs.join("postgres")).arg("--version"));
    let version: String = version.chars().filter(|c| c.is_ascii_digit() || *c == '.').take(12).collect();
    // target/debug/deps/it-0123 -> target/debug
    let test = std::env::current_exe().unwrap();
    let build = test.ancestors().nth(2).unwrap();
    let owner = if geteuid().is_root() { NOBODY } else { geteuid().as_raw() };
    let template = build.join(format!("postgres-{version}-{owner}"));
    let lock = File::create(build.join("postgres.lock")).unwrap();
    lock.lock().unwrap();
    if !template.exists() {
        let dir = folder();
        let data = dir.path().join("data");
        let password = dir.path().join("password");
        private_file(&password, PASSWORD);
        let mut initdb = unprivileged(&programs.join("initdb"), false);
        initdb.current_dir(dir.path()).arg("-D").arg(&data).arg("--pwfile").arg(&password);
        initdb.args(["-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8"]);
        done(initdb.args(["--locale=C", "--no-sync", "--wal-segsize=1"]));
        let new = build.join(format!("postgres-{version}-{owner}.new"));
        let _ = fs::remove_dir_all(&new);
        done(Command::new("cp").arg("-a").arg(&data).arg(&new));
        fs::rename(&new, &template).unwrap();
    }
    assert_eq!(fs::metadata(&template).unwrap().uid(), owner);
    template
}

/// What a program prints.
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}. {NEEDED}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
