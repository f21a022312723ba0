//! What a parked call costs: stateless clients call a tool of a backend with sessions that asks, and never answer.
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
use crate::target::{self, Kind};

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

pub(crate) fn run(args: &ParkedArgs) -> anyhow::Result<()> {
    process::raise_files()?;
    let backend = target::backend(Eras::Legacy)?;
    let target = target::start_kind(Kind::Drawbridge, backend.address, &args.drawbridge)?;
    let process = target.process.as_ref().context("no process")?;
    let runtime = net::runtime()?;
    let park = |count: u32| {
        runtime.block_on(async {
            let mut connection = Connection::open(&target.endpoint).await?;
            for _ in 0..count {
                connection.park().await?;
            }
            anyhow::Ok(())
        })
    };
    // the first few make what all share
    park(50)?;
    thread::sleep(Duration::from_secs(args.settle_s));
    let before = process::memory(process.pid())?;
    let begin = Instant::now();
    park(args.count)?;
    let took = begin.elapsed().as_secs_f64();
    thread::sleep(Duration::from_secs(args.settle_s));
    let after = process::memory(process.pid())?;
    let each = |after: u64, before: u64| number((after as f64 - before as f64) / f64::from(args.count), 2);
    println!("{} parked calls, KiB per call; memory of the process in MiB", args.count);
    println!(
        "{:>9} {:>9} {:>10} {:>10} {:>9}",
        "PSS/call", "RSS/call", "PSS before", "PSS parked", "parked s"
    );
    println!(
        "{:>9} {:>9} {:>10} {:>10} {:>9}",
        each(after.pss, before.pss),
        each(after.rss, before.rss),
        mib(before.pss),
        mib(after.pss),
        number(took, 1)
    );
    Ok(())
}
