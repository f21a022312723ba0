//! Reads the configuration anew: when one of its files changes, or on SIGHUP.
//!
//! What is watched is the directories of the files, since files are replaced more often than rewritten: editors rename,
//! and Kubernetes swaps a symbolic link beside them. What has changed is found out by reading.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use drawbridge_admin::config::{ConfigError, ConfigFile, ConfigStatus};
use drawbridge_core::Tasks;
use notify::{EventKind, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::config::{self, Config, FileRead, Inputs, Loaded, ValueSource, Written};
use crate::live::{Changes, needs_restart};
use crate::wiring::Wired;

/// After a change this much time without another is waited for: several files may change together.
const QUIET: Duration = Duration::from_millis(500);
/// However much goes on, what has changed is read after this.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of the configuration that applies, and of the latest one.
#[derive(Clone)]
pub struct Status {
    known: Arc<Mutex<ConfigStatus>>,
    /// What was written at the start, and what is now.
    written: Arc<Mutex<(Arc<Written>, Arc<Written>)>>,
}

impl Status {
    /// The one of the start, read from `files`, in which this is `written`.
    pub fn new(files: &[FileRead], written: Written) -> Self {
        let written = Arc::new(written);
        let known = ConfigStatus {
            generation: 1,
            applied_at: now(),
            files: files.iter().map(shown).collect(),
            restart_needed_for: Vec::new(),
            last_error: None,
        };
        Self { known: Arc::new(Mutex::new(known)), written: Arc::new(Mutex::new((written.clone(), written))) }
    }

    /// All values of `config`, which applies, and where each is from.
    pub(crate) fn values(&self, config: &Config) -> Vec<(String, Value, ValueSource)> {
        let (start, latest) = self.written.lock().clone();
        latest.sources(config, &start, needs_restart)
    }

    /// The status now.
    pub fn read(&self) -> ConfigStatus {
        self.known.lock().clone()
    }

    fn applied(&self, loaded: &Loaded, changes: &Changes) -> u64 {
        self.written.lock().1 = Arc::new(loaded.written.clone());
        let mut status = self.known.lock();
        status.generation += 1;
        status.applied_at = now();
        status.files = loaded.files.iter().map(shown).collect();
        status.restart_needed_for.clone_from(&changes.restart_needed);
        status.last_error = None;
        status.generation
    }

    fn refused(&self, problems: Vec<String>) {
        self.known.lock().last_error = Some(ConfigError { at: now(), problems });
    }
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

fn shown(file: &FileRead) -> ConfigFile {
    ConfigFile { path: file.path.clone(), sha256: hex(&file.sha256) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a configuration and lets it apply.
struct Reloader {
    inputs: Inputs,
    wired: Arc<Wired>,
    status: Status,
    /// What was in the files when they were read last.
    seen: Vec<Option<FileRead>>,
}

/// Follows the configuration of `inputs` until the gateway drains. `loaded` is what was in its files at the start.
pub fn follow(inputs: Inputs, loaded: Vec<FileRead>, wired: &Arc<Wired>, status: &Status, tasks: &Tasks) {
    let (told, changes) = mpsc::channel(1);
    let watcher = match watch(&inputs, told) {
        Ok(watcher) => Some(watcher),
        Err(e) => {
            tracing::warn!("the configuration can't be watched; it is read anew on SIGHUP alone: {e}");
            None
        }
    };
    let hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(e) => return tracing::error!("SIGHUP can't be had, so the configuration is not read anew: {e}"),
    };
    let seen = loaded.into_iter().map(Some).collect();
    let reloader = Reloader { inputs, wired: wired.clone(), status: status.clone(), seen };
    let draining = tasks.clone();
    tasks.spawn("follow configuration", async move {
        let following = follow_changes(reloader, changes, hangup);
        tokio::select! {
            () = following => {}
            () = draining.draining() => {}
        }
        drop(watcher);
    });
}

async fn follow_changes(mut reloader: Reloader, mut changes: mpsc::Receiver<()>, mut hangup: Signal) {
    loop {
        // Where nothing is watched, nothing is told.
        let is_asked_for = tokio::select! {
            Some(()) = changes.recv() => false,
            Some(()) = hangup.recv() => true,
            else => return,
        };
        if !is_asked_for {
            let settled =
                async { while let Ok(Some(())) = tokio::time::timeout(QUIET, changes.recv()).await {} };
            let _ = tokio::time::timeout(PATIENCE, settled).await;
        }
        let reading = tokio::task::spawn_blocking(move || {
            reloader.read(is_asked_for);
            reloader
        });
        match reading.await {
            Ok(same) => reloader = same,
            Err(e) => return tracing::error!("the configuration is not read any more: {e}"),
        }
    }
}

impl Reloader {
    /// Reads the configuration, if it has changed or is to be read in any case, and lets it apply.
    fn read(&mut self, is_asked_for: bool) {
        let found = config::look(&self.inputs);
        if !is_asked_for && found == self.seen {
            return;
        }
        self.seen = found;
        let counted = &self.wired.metrics.configuration;
        match config::load(&self.inputs) {
            Ok(loaded) => match self.wired.apply(&loaded.config) {
                Ok(changes) => {
                    counted.applied.inc();
                    counted.is_applied();
                    let generation = self.status.applied(&loaded, &changes);
                    report(generation, &loaded, &changes);
                }
                Err(e) => self.refuse(vec![format!("{e:#}")]),
            },
            Err(problems) => self.refuse(problems.0.iter().map(ToString::to_string).collect()),
        }
    }

    fn refuse(&self, problems: Vec<String>) {
        self.wired.metrics.configuration.refused.inc();
        for problem in &problems {
            tracing::error!("configuration refused, the old one still applies: {problem}");
        }
        self.status.refused(problems);
    }
}

/// Says what has changed.
fn report(generation: u64, loaded: &Loaded, changes: &Changes) {
    for notice in &loaded.notices {
        tracing::warn!("{notice}");
    }
    let list = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
    let (backends, endpoints) = (&changes.backends, &changes.endpoints);
    let keys = (!changes.keys.is_empty()).then(|| changes.keys.join(","));
    let hash = loaded.files.first().map(|file| hex(&file.sha256));
    tracing::info!(
        config.generation = generation,
        config.sha256 = hash,
        backends.added = list(&backends.added),
        backends.changed = list(&backends.changed),
        backends.removed = list(&backends.removed),
        endpoints.added = list(&endpoints.added),
        endpoints.changed = list(&endpoints.changed),
        endpoints.removed = list(&endpoints.removed),
        config.keys = keys,
        "configuration applied"
    );
    if !changes.restart_needed.is_empty() {
        let keys = changes.restart_needed.join(",");
        tracing::warn!(config.keys = keys, "a restart is needed for some of the new configuration to apply");
    }
}

/// Tells when something happens in the directories of the files.
fn watch(inputs: &Inputs, told: mpsc::Sender<()>) -> notify::Result<notify::RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading is no change; anything else may be one. If the queue is full, a reading is due anyway.
        let is_change = event.map_or(true, |event| !matches!(event.kind, EventKind::Access(_)));
        if is_change {
            let _ = told.try_send(());
        }
    })?;
    let files = inputs.config.iter().chain(&inputs.mcp_servers);
    let directories: BTreeSet<PathBuf> = files.flat_map(|file| directories_of(file)).collect();
    for directory in directories {
        watcher.watch(&directory, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

/// The directory of a file, and that of the file which it is a symbolic link to.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let directory = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let linked = file.canonicalize().ok();
    std::iter::once(directory(file)).chain(linked.as_deref().map(directory)).collect()
}
