//! How far one message goes: a backend tells once that its tools have changed, and thousands of streams at three
//! instances hear of it.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Buf as _;
use clap::Args;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backend::{CHANGE, Eras};
use crate::client::{self, Connection, Endpoint};
use crate::json;
use crate::net;
use crate::process;
use crate::redis::{Counts, Redis};
use crate::report::{median, number, quantile, range};
use crate::setup::{self, SessionScope, Setup, Store};
use crate::target;
use crate::texts::{CHANGE_NUMBER, TOOLS_CHANGED};

const INSTANCES: usize = 3;
/// Streams that open at the same time.
const OPENERS: usize = 32;
/// How long a stream may take to open, and a change to come everywhere.
const PATIENCE: Duration = Duration::from_secs(30);
/// Changes until all are known to listen.
const TRIES: usize = 30;
/// Between two changes: what is told more often than every 100 ms is told to other instances once.
const PAUSE: Duration = Duration::from_millis(300);
/// What still runs when the last stream has it.
const AFTER: Duration = Duration::from_millis(50);

/// Arguments of `fanout`.
#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    /// The program.
    #[arg(long, default_value = "target/release/drawbridge")]
    drawbridge: PathBuf,
    /// Streams; one half are standalone streams of sessions, the other listen without a session.
    #[arg(long, value_delimiter = ',', default_value = "300,3000")]
    counts: Vec<usize>,
    /// Rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Changes in each round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    changes: u32,
    /// Who shares a session at the backend.
    #[arg(long, default_value = "shared")]
    scope: SessionScope,
    /// The eras that the backend serves.
    #[arg(long, default_value = "legacy")]
    backend_eras: Eras,
    /// 60 and 120 streams, one round of two changes: does it work?
    #[arg(long)]
    quick: bool,
}

/// A change has come to a stream.
struct Arrival {
    stream: usize,
    number: u64,
    at: u64,
}

/// The streams, and what comes on them.
struct Streams {
    count: usize,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    _readers: JoinSet<()>,
}

/// One change on its way.
#[derive(Default)]
struct Told {
    /// Streams of the backend on which it was told.
    upstream: f64,
    /// Milliseconds until each stream had it.
    delays: Vec<f64>,
    /// Seconds of all gateways.
    cpu: f64,
    redis: Counts,
    seconds: f64,
}

/// The changes of one round.
struct Round {
    p50: f64,
    p99: f64,
    max: f64,
    /// Microseconds of all gateways, per delivery.
    cpu: f64,
    /// The same of Redis.
    redis_cpu: f64,
    /// Per change.
    redis: Counts,
    upstream: f64,
}

/// What so many streams have shown.
struct Row {
    count: usize,
    rounds: Vec<Round>,
}

pub(crate) fn run(mut args: FanoutArgs) -> anyhow::Result<()> {
    if args.quick {
        args.counts = vec![60, 120];
        args.rounds = 1;
        args.changes = args.changes.min(2);
    }
    let most = args.counts.iter().copied().max().unwrap_or_default();
    ensure!(args.counts.iter().all(|count| (2..=9000).contains(count)), "between 2 and 9000 streams");
    let files = process::raise_files()?;
    ensure!(files > most as u64 * 2 + 500, "{most} streams take too many open files, {files} are allowed");
    println!(
        "one {TOOLS_CHANGED} of a backend ({:?} eras, session_scope {:?}) to streams at {INSTANCES} instances with one Redis;",
        args.backend_eras, args.scope
    );
    println!(
        "half of them standalone streams of sessions, half subscriptions/listen, each instance has a third, without a balancer;"
    );
    println!(
        "{} rounds of {} changes, median [least..greatest]; delay: from the backend's word to the client's reading of it\n",
        args.rounds, args.changes
    );
    println!(
        "{:>7} {:>8} {:>8} {:>8} {:<16} {:>8} {:<13} {:>8} {:>9} {:>10}",
        "streams",
        "p50 ms",
        "p99 ms",
        "max ms",
        "[max of rounds]",
        "CPU us",
        "[spread]",
        "Redis us",
        "Redis cmd",
        "upstream"
    );
    let rows = args.counts.iter().map(|count| row(&args, *count)).collect::<anyhow::Result<Vec<Row>>>()?;
    if let [first, .., last] = &rows[..] {
        growth(first, last);
    }
    Ok(())
}

fn row(args: &FanoutArgs, count: usize) -> anyhow::Result<Row> {
    let backend = target::backend(args.backend_eras)?;
    let setup = Setup::start(setup::Plan {
        drawbridge: &args.drawbridge,
        backend: backend.address,
        instances: INSTANCES,
        store: Store::Redis,
        scope: args.scope,
        log: setup::LOG,
        more: None,
    })?;
    let redis = setup.redis.as_ref().context("no Redis")?;
    let rounds = net::runtime()?.block_on(async {
        let mut streams = Streams::open(&setup.endpoints(), count).await?;
        streams.settle(backend.address).await?;
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            let idle =
                idle(&setup, redis, Duration::from_millis(if args.quick { 300 } else { 2000 })).await?;
            let mut told = Vec::new();
            for _ in 0..args.changes {
                sleep(PAUSE).await;
                told.push(streams.change(backend.address, &setup, redis).await?);
            }
            rounds.push(Round::of(&told, &idle, count));
        }
        anyhow::Ok(rounds)
    });
    let row = Row { count, rounds: rounds.with_context(|| format!("{count} streams"))? };
    row.show();
    Ok(row)
}

/// What a second costs in which nothing happens.
async fn idle(setup: &Setup, redis: &Redis, time: Duration) -> anyhow::Result<Told> {
    let begin = redis.begin()?;
    let (busy, since) = (setup.busy()?, Instant::now());
    sleep(time).await;
    let seconds = since.elapsed().as_secs_f64();
    let cpu = grown(&setup.busy()?, &busy) / seconds;
    let redis = redis.end(&begin)?.times(1.0 / seconds);
    Ok(Told { cpu, redis, ..Told::default() })
}

fn grown(now: &[f64], then: &[f64]) -> f64 {
    now.iter().zip(then).map(|(now, then)| now - then).sum()
}

impl Streams {
    /// Opens them, each at the next instance.
    async fn open(endpoints: &[Endpoint], count: usize) -> anyhow::Result<Self> {
        let (tell, arrivals) = mpsc::unbounded_channel();
        let mut openers: JoinSet<anyhow::Result<Vec<(usize, Connection, Incoming)>>> = JoinSet::new();
        for opener in 0..OPENERS {
            let endpoints = endpoints.to_vec();
            openers.spawn(async move {
                let mut opened = Vec::new();
                for stream in (opener..count).step_by(OPENERS) {
                    // One of each kind in turn at each instance.
                    let endpoint = &endpoints[stream / 2 % endpoints.len()];
                    let (connection, body) = timeout(PATIENCE, open(endpoint, stream % 2 == 0))
                        .await
                        .context("a stream did not open in time")??;
                    opened.push((stream, connection, body));
                }
                Ok(opened)
            });
        }
        let mut readers = JoinSet::new();
        while let Some(opened) = openers.join_next().await {
            for (stream, connection, body) in opened?? {
                let tell = tell.clone();
                readers.spawn(async move {
                    read(stream, body, &tell).await;
                    drop(connection);
                });
            }
        }
        Ok(Self { count, arrivals, _readers: readers })
    }

    /// Waits until a change comes to all of them.
    async fn settle(&mut self, backend: SocketAddr) -> anyhow::Result<()> {
        let mut reached = 0;
        for _ in 0..TRIES {
            sleep(PAUSE).await;
            let (number, ..) = change(backend)?;
            reached = self.delays(number, 0, Duration::from_secs(3)).await?.len();
            if reached == self.count {
                return Ok(());
            }
        }
        bail!("{reached} of {} streams hear of a change", self.count);
    }

    /// Lets the backend tell of a change, and waits until all have it.
    async fn change(&mut self, backend: SocketAddr, setup: &Setup, redis: &Redis) -> anyhow::Result<Told> {
        while self.arrivals.try_recv().is_ok() {}
        let counts = redis.begin()?;
        let (busy, since) = (setup.busy()?, Instant::now());
        let (number, at, upstream) = change(backend)?;
        let delays = self.delays(number, at, PATIENCE).await?;
        sleep(AFTER).await;
        let cpu = grown(&setup.busy()?, &busy);
        let seconds = since.elapsed().as_secs_f64();
        let redis = redis.end(&counts)?;
        ensure!(delays.len() == self.count, "{} of {} streams got a change", delays.len(), self.count);
        Ok(Told { upstream, delays, cpu, redis, seconds })
    }

    /// Milliseconds from `told` until each stream had that change; those that don't get it in time are missing.
    async fn delays(&mut self, number: u64, told: u64, patience: Duration) -> anyhow::Result<Vec<f64>> {
        let deadline = Instant::now() + patience;
        let mut seen = vec![false; self.count];
        let mut delays = Vec::with_capacity(self.count);
        while delays.len() < self.count {
            let Ok(arrival) = timeout_at(deadline, self.arrivals.recv()).await else { break };
            let arrival = arrival.context("all streams have ended")?;
            if arrival.number == number {
                let twice = std::mem::replace(&mut seen[arrival.stream], true);
                ensure!(!twice, "a stream got a change twice");
                delays.push(arrival.at.saturating_sub(told) as f64 / 1e6);
            }
        }
        Ok(delays)
    }
}

/// A session with its standalone stream, or a stream that listens without one.
async fn open(endpoint: &Endpoint, in_session: bool) -> anyhow::Result<(Connection, Incoming)> {
    let mut connection = Connection::open(endpoint).await?;
    let body = if in_session {
        connection.initialize().await?;
        connection.listen().await?
    } else {
        connection.subscribe().await?
    };
    Ok((connection, body))
}

/// Tells of each change that comes on a stream.
async fn read(stream: usize, mut body: Incoming, tell: &mpsc::UnboundedSender<Arrival>) {
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        let at = process::clock();
        text.extend_from_slice(data.chunk());
        let Some(end) = text.windows(2).rposition(|pair| pair == b"\n\n") else { continue };
        for message in client::events(&text[..end]) {
            if let Some(number) = number_of(message) {
                // Whoever counted has gone.
                let _counted = tell.send(Arrival { stream, number, at });
            }
        }
        text.drain(..end + 2);
    }
}

/// The number of the change that a message tells of.
fn number_of(message: &[u8]) -> Option<u64> {
    if json::text(message, "method")? != TOOLS_CHANGED.as_bytes() {
        return None;
    }
    let meta = json::member(json::member(message, "params")?, "_meta")?;
    std::str::from_utf8(json::member(meta, CHANGE_NUMBER)?).ok()?.parse().ok()
}

/// Lets the backend tell of a change: its number, when it was told, and on how many streams.
fn change(backend: SocketAddr) -> anyhow::Result<(u64, u64, f64)> {
    let (_, text) = setup::exchange(backend, "POST", CHANGE)?;
    let told: serde_json::Value = serde_json::from_str(&text).context("the backend's word")?;
    let member =
        |name: &str| told.get(name).and_then(serde_json::Value::as_u64).context("the backend's word");
    Ok((member("number")?, member("at")?, member("streams")? as f64))
}

impl Round {
    /// What the changes cost beyond what the time would have.
    fn of(told: &[Told], idle: &Told, count: usize) -> Self {
        let mut delays: Vec<f64> = told.iter().flat_map(|told| told.delays.iter().copied()).collect();
        delays.sort_by(f64::total_cmp);
        let changes = told.len() as f64;
        let deliveries = changes * count as f64;
        let seconds: f64 = told.iter().map(|told| told.seconds).sum();
        let mut redis = Counts::default();
        told.iter().for_each(|told| redis.add(&told.redis, 1.0));
        redis.add(&idle.redis, -seconds);
        let cpu = told.iter().map(|told| told.cpu).sum::<f64>() - idle.cpu * seconds;
        Self {
            p50: quantile(&delays, 0.5),
            p99: quantile(&delays, 0.99),
            max: delays.last().copied().unwrap_or(f64::NAN),
            cpu: cpu / deliveries * 1e6,
            redis_cpu: redis.cpu / deliveries * 1e6,
            redis: redis.times(1.0 / changes),
            upstream: told.iter().map(|told| told.upstream).sum::<f64>() / changes,
        }
    }
}

impl Row {
    fn of(&self, value: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().map(value).collect()
    }

    fn show(&self) {
        println!(
            "{:>7} {:>8.2} {:>8.2} {:>8.2} {:<16} {:>8.2} {:<13} {:>8.3} {:>9.1} {:>10}",
            self.count,
            median(&self.of(|round| round.p50)),
            median(&self.of(|round| round.p99)),
            median(&self.of(|round| round.max)),
            range(&self.of(|round| round.max), 2),
            median(&self.of(|round| round.cpu)),
            range(&self.of(|round| round.cpu), 2),
            median(&self.of(|round| round.redis_cpu)),
            median(&self.of(|round| round.redis.all())),
            number(median(&self.of(|round| round.upstream)), 0),
        );
        let mut commands = Counts::default();
        self.rounds.iter().for_each(|round| commands.add(&round.redis, 1.0 / self.rounds.len() as f64));
        println!("    all delivered; Redis per change: {}", commands.names());
    }
}

fn growth(first: &Row, last: &Row) {
    let ratio = |value: fn(&Round) -> f64| {
        let (small, great) = (median(&first.of(value)), median(&last.of(value)));
        if small.abs() < 1e-3 { "-".to_owned() } else { number(great / small, 2) }
    };
    println!(
        "\n{} streams in terms of {} ({} times as many): p50 {}, p99 {}, max {}; per delivery: CPU {}, Redis CPU {}; per change: Redis commands {}",
        last.count,
        first.count,
        number(last.count as f64 / first.count as f64, 1),
        ratio(|round| round.p50),
        ratio(|round| round.p99),
        ratio(|round| round.max),
        ratio(|round| round.cpu),
        ratio(|round| round.redis_cpu),
        ratio(|round| round.redis.all()),
    );
}

#[cfg(test)]
mod tests {
    use super::number_of;
    use crate::client;
    use crate::texts;

    #[test]
    fn a_change_is_known_by_its_number() {
        for subscription in [None, Some("7")] {
            let event = texts::changed(42, subscription);
            let numbers: Vec<_> = client::events(&event).map(number_of).collect();
            assert_eq!(numbers, [Some(42)]);
        }
        assert_eq!(number_of(br#"{"method":"notifications/tools/list_changed"}"#), None);
        let ack = texts::acknowledged("7");
        assert_eq!(client::events(&ack).map(number_of).collect::<Vec<_>>(), [None]);
    }
}
