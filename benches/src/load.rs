//! The load: so many connections, on each one request at a time, for a time or a number of iterations. Each is sent when the
//! one before was answered, or when it is due.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use tokio::task::JoinSet;

use crate::client::{Connection, Endpoint};
use crate::net;
use crate::scenario::{Scenario, Work};

/// Errors after which a connection gives up.
const PATIENCE: u64 = 20;
/// How long answers may still take after the end of a cell.
const GRACE: Duration = Duration::from_secs(20);

/// How much load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) connections: usize,
    pub(crate) warm: Duration,
    /// The measured time.
    pub(crate) time: Duration,
    /// Ends earlier after so many measured iterations.
    pub(crate) iterations: u64,
    /// How often each connection has an iteration, if not as often as it can.
    pub(crate) every: Option<Duration>,
}

/// What a cell showed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Iterations and errors within the measured time.
    pub(crate) done: u64,
    pub(crate) errors: u64,
    pub(crate) seconds: f64,
    /// In microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// What the sample grew by in the measured time.
    pub(crate) ticks: u64,
    pub(crate) first_error: Option<String>,
    /// JSON answers that the target turned into event streams.
    pub(crate) changed_form: u64,
}

impl Outcome {
    /// Iterations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.done as f64 / self.seconds
    }
}

struct Shared {
    endpoint: Endpoint,
    scenario: Scenario,
    every: Option<Duration>,
    measuring: AtomicBool,
    stop: AtomicBool,
    done: AtomicU64,
}

#[derive(Default)]
struct Worker {
    /// Nanoseconds.
    latencies: Vec<u32>,
    errors: u64,
    first_error: Option<String>,
    changed_form: u64,
}

/// Runs one cell; `sample` is read at both ends of the measured time.
pub(crate) fn cell(
    endpoint: &Endpoint,
    scenario: &Scenario,
    plan: Plan,
    mut sample: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<Outcome> {
    let shared = Arc::new(Shared {
        endpoint: endpoint.clone(),
        scenario: scenario.clone(),
        every: plan.every,
        measuring: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
    });
    let threads = net::cores().min(plan.connections).max(1);
    let (ready, all_ready) = mpsc::channel();
    let limit = GRACE + plan.warm + plan.time;
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let (shared, ready) = (shared.clone(), ready.clone());
            let mine = plan.connections / threads + usize::from(number < plan.connections % threads);
            thread::spawn(move || work(&shared, ready, mine, limit))
        })
        .collect();
    drop(ready);
    // a thread that fails drops its end; its error comes when it is joined
    while all_ready.recv().is_ok() {}
    thread::sleep(plan.warm);
    let begin_ticks = sample();
    let begin = Instant::now();
    let begin_done = shared.done.load(Ordering::Relaxed);
    shared.measuring.store(true, Ordering::Relaxed);
    let left = || shared.done.load(Ordering::Relaxed) - begin_done;
    while begin.elapsed() < plan.time
        && left() < plan.iterations
        && !workers.iter().all(thread::JoinHandle::is_finished)
    {
        let rest = plan.time.saturating_sub(begin.elapsed());
        let step = if plan.iterations == u64::MAX { rest } else { Duration::from_millis(5) };
        thread::sleep(step.min(rest));
    }
    let end_ticks = sample();
    let done = left();
    let seconds = begin.elapsed().as_secs_f64();
    shared.stop.store(true, Ordering::Relaxed);

    let mut outcome = Outcome { done, seconds, ..Outcome::default() };
    let mut latencies = Vec::new();
    for worker in workers {
        for part in worker.join().map_err(|_panic| anyhow!("a load thread failed"))?? {
            latencies.extend(part.latencies);
            outcome.errors += part.errors;
            outcome.changed_form += part.changed_form;
            outcome.first_error = outcome.first_error.or(part.first_error);
        }
    }
    outcome.ticks = end_ticks?.saturating_sub(begin_ticks?);
    latencies.sort_unstable();
    outcome.p50 = quantile(&latencies, 0.50);
    outcome.p99 = quantile(&latencies, 0.99);
    Ok(outcome)
}

fn quantile(sorted: &[u32], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(f64::NAN, |ns| f64::from(*ns) / 1e3)
}

fn work(
    shared: &Arc<Shared>,
    ready: mpsc::Sender<()>,
    connections: usize,
    limit: Duration,
) -> anyhow::Result<Vec<Worker>> {
    net::runtime()?.block_on(async {
        let opened = tokio::time::timeout(GRACE, open_all(shared, connections))
            .await
            .context("connections did not open in time")??;
        drop(ready);
        let mut running = JoinSet::new();
        let begin = tokio::time::Instant::now();
        for (number, connection) in opened.into_iter().enumerate() {
            // Not all at once.
            let first = shared.every.map(|every| begin + every * number as u32 / connections.max(1) as u32);
            running.spawn(drive(shared.clone(), connection, first));
        }
        tokio::time::timeout(limit, running.join_all()).await.context("an answer did not come in time")
    })
}

async fn open_all(shared: &Shared, connections: usize) -> anyhow::Result<Vec<Connection>> {
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(open(shared).await?);
    }
    Ok(opened)
}

/// A connection, with a session where the scenario runs in one.
async fn open(shared: &Shared) -> anyhow::Result<Connection> {
    let mut connection = Connection::open(&shared.endpoint).await?;
    if !shared.scenario.modern() && matches!(shared.scenario.work, Work::Call(_) | Work::List) {
        connection.initialize().await?;
    }
    Ok(connection)
}

/// Iterates until it is over; where that has a pace, `due` is when the next one is.
async fn drive(
    shared: Arc<Shared>,
    mut connection: Connection,
    mut due: Option<tokio::time::Instant>,
) -> Worker {
    let mut worker = Worker { latencies: Vec::with_capacity(1 << 14), ..Worker::default() };
    while !shared.stop.load(Ordering::Relaxed) {
        if let Some((at, every)) = due.zip(shared.every) {
            tokio::time::sleep_until(at).await;
            due = Some(at + every);
        }
        let measured = shared.measuring.load(Ordering::Relaxed);
        let begin = Instant::now();
        match connection.iterate(&shared.scenario).await {
            Ok(met) => {
                shared.done.fetch_add(1, Ordering::Relaxed);
                worker.changed_form += u64::from(met.changed_form);
                if measured {
                    worker.latencies.push(u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX));
                }
            }
            Err(error) => {
                worker.errors += 1;
                worker.first_error.get_or_insert_with(|| format!("{error:#}"));
                if worker.errors > PATIENCE {
                    break;
                }
                match open(&shared).await {
                    Ok(fresh) => connection = fresh,
                    Err(_still_down) => break,
                }
            }
        }
    }
    worker
}
