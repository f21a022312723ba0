//! What an idle stream costs: many legacy sessions, each with its standalone stream open and silent.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::task::JoinSet;

use crate::backend::Eras;
use crate::client::{Connection, Endpoint};
use crate::net;
use crate::process;
use crate::report::{mib, number};
use crate::run::Targets;
use crate::target;

/// Sessions that open at the same time.
const OPENERS: usize = 32;

/// Arguments of `streams`.
#[derive(Debug, Args)]
pub(crate) struct StreamsArgs {
    #[command(flatten)]
    what: Targets,
    /// Streams.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Seconds that the first byte of a stream may take.
    #[arg(long, default_value_t = 60)]
    first_byte_s: u64,
    /// Seconds between the last stream and the measurement, and again after all were closed.
    #[arg(long, default_value_t = 3)]
    settle_s: u64,
}

/// A session with its stream.
struct Stream {
    _connection: Connection,
    body: Incoming,
    /// Something came on the stream.
    greeted: bool,
}

pub(crate) fn run(args: &StreamsArgs) -> anyhow::Result<()> {
    let count = args.count as usize;
    let files = process::raise_files()?;
    ensure!(
        files > 2 * u64::from(args.count) + 500,
        "{count} streams take {} open files in a proxy, {files} are allowed",
        2 * count
    );
    println!("{count} idle streams, KiB per stream; RSS and PSS of the process tree in MiB");
    println!(
        "{:<12} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}",
        "target",
        "PSS/strm",
        "RSS/strm",
        "PSS before",
        "PSS open",
        "RSS open",
        "RSS closed",
        "opened s",
        "greeted"
    );
    for kind in args.what.kinds() {
        let backend = target::backend(Eras::Both)?;
        let target = target::start_kind(kind, backend.address, &args.what.drawbridge)?;
        let Some(process) = &target.process else { continue };
        let runtime = net::runtime()?;
        // the first few make what all share
        drop(runtime.block_on(open_all(&target.endpoint, 2 * OPENERS, args.first_byte_s))?);
        thread::sleep(Duration::from_secs(args.settle_s));
        let before = process::memory(process.pid())?;
        let begin = Instant::now();
        let streams = runtime
            .block_on(open_all(&target.endpoint, count, args.first_byte_s))
            .with_context(|| format!("open streams through {}", kind.name()))?;
        let took = begin.elapsed().as_secs_f64();
        thread::sleep(Duration::from_secs(args.settle_s));
        let open = process::memory(process.pid())?;
        let alive = runtime.block_on(still_open(streams))?;
        thread::sleep(Duration::from_secs(args.settle_s));
        let closed = process::memory(process.pid())?;
        let each = |after: u64, before: u64| (after as f64 - before as f64) / count as f64;
        println!(
            "{:<12} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}",
            kind.name(),
            number(each(open.pss, before.pss), 2),
            number(each(open.rss, before.rss), 2),
            mib(before.pss),
            mib(open.pss),
            mib(open.rss),
            mib(closed.rss),
            number(took, 1),
            alive,
        );
    }
    Ok(())
}

/// Checks that no stream has ended, and closes them all; returns how many had sent something.
async fn still_open(streams: Vec<Stream>) -> anyhow::Result<usize> {
    let mut greeted = 0;
    for mut stream in streams {
        let next = tokio::time::timeout(Duration::ZERO, stream.body.frame()).await;
        ensure!(!matches!(next, Ok(None | Some(Err(_)))), "a stream ended by itself");
        greeted += usize::from(stream.greeted);
    }
    Ok(greeted)
}

async fn open_all(endpoint: &Endpoint, count: usize, first_byte_s: u64) -> anyhow::Result<Vec<Stream>> {
    let mut openers = JoinSet::new();
    for number in 0..OPENERS {
        let mine = count / OPENERS + usize::from(number < count % OPENERS);
        let endpoint = endpoint.clone();
        openers.spawn(async move {
            let mut streams = Vec::with_capacity(mine);
            for _ in 0..mine {
                streams.push(open(&endpoint).await?);
            }
            anyhow::Ok(streams)
        });
    }
    let mut streams = Vec::with_capacity(count);
    while let Some(opened) = openers.join_next().await {
        streams.extend(opened??);
    }
    // a gateway may answer the head by itself and say something only later: wait for all at once
    let deadline = tokio::time::Instant::now() + Duration::from_secs(first_byte_s);
    for stream in &mut streams {
        if let Ok(first) = tokio::time::timeout_at(deadline, stream.body.frame()).await {
            first.context("a stream ended before it said anything")??;
            stream.greeted = true;
        }
    }
    Ok(streams)
}

/// One handshake, then the stream on the same connection.
async fn open(endpoint: &Endpoint) -> anyhow::Result<Stream> {
    tokio::time::timeout(Duration::from_secs(30), async {
        let mut connection = Connection::open(endpoint).await?;
        connection.initialize().await?;
        let body = connection.listen().await?;
        Ok(Stream { _connection: connection, body, greeted: false })
    })
    .await
    .context("a stream did not open in time")?
}
