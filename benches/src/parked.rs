//! What a parked call costs: stateless clients call a tool of a backend with sessions that asks, and never answer. Once
//! over HTTP/1.1, where the call has a connection to the backend of its own, and once to a program, which all share.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;

use crate::backend::Eras;
use crate::client::Connection;
use crate::net;
use crate::process;
use crate::report::{mib, number};
use crate::target::{self, Kind, Target};
use crate::texts;

/// Arguments of `parked`.
#[derive(Debug, Args)]
pub(crate) struct ParkedArgs {
    /// The program.
    #[arg(long, default_value = "target/release/drawbridge")]
    drawbridge: PathBuf,
    /// Calls.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// Seconds between the last call and the measurement.
    #[arg(long, default_value_t = 3)]
    settle_s: u64,
}

/// The tool of the demo server that asks.
const ELICIT: &str = "elicit";
/// The first few make what all share.
const FIRST: u32 = 50;
/// The demo server takes 256 requests at once.
const MOST_OF_PROGRAM: u32 = 200;

pub(crate) fn run(args: &ParkedArgs) -> anyhow::Result<()> {
    process::raise_files()?;
    println!("parked calls, KiB per call; memory of the process in MiB");
    println!(
        "{:<8} {:>6} {:>9} {:>9} {:>10} {:>10} {:>9}",
        "backend", "calls", "PSS/call", "RSS/call", "PSS before", "PSS parked", "parked s"
    );
    let backend = target::backend(Eras::Legacy)?;
    let http = target::start_kind(Kind::Drawbridge, backend.address, &args.drawbridge)?;
    measure(args, args.count, "HTTP/1.1", &http, texts::ASKING)?;
    drop(http);
    let program = target::in_front_of_program(&args.drawbridge)?;
    measure(args, args.count.min(MOST_OF_PROGRAM), "stdio", &program, ELICIT)
}

fn measure(args: &ParkedArgs, count: u32, backend: &str, target: &Target, tool: &str) -> anyhow::Result<()> {
    let process = target.process.as_ref().context("no process")?;
    let runtime = net::runtime()?;
    let park = |count: u32| {
        runtime.block_on(async {
            let mut connection = Connection::open(&target.endpoint).await?;
            for _ in 0..count {
                connection.park(tool).await?;
            }
            anyhow::Ok(())
        })
    };
    park(FIRST)?;
    thread::sleep(Duration::from_secs(args.settle_s));
    let before = process::memory(process.pid())?;
    let begin = Instant::now();
    park(count)?;
    let took = begin.elapsed().as_secs_f64();
    thread::sleep(Duration::from_secs(args.settle_s));
    let after = process::memory(process.pid())?;
    let each = |after: u64, before: u64| number((after as f64 - before as f64) / f64::from(count), 2);
    println!(
        "{:<8} {:>6} {:>9} {:>9} {:>10} {:>10} {:>9}",
        backend,
        count,
        each(after.pss, before.pss),
        each(after.rss, before.rss),
        mib(before.pss),
        mib(after.pss),
        number(took, 1)
    );
    Ok(())
}
