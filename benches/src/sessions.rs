//! What a session costs that nobody ends: many are opened and forgotten.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::thread;
use std::time::Duration;

use clap::Args;

use crate::backend::Eras;
use crate::load::{self, Plan};
use crate::process;
use crate::report::{mib, number};
use crate::run::Targets;
use crate::scenario;
use crate::target;

/// Arguments of `sessions`.
#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    what: Targets,
    /// Sessions.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Sessions before the first measurement, so that buffers and pools have their size.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    warm: u32,
    /// Connections that open them.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    conns: u32,
    /// Seconds until the last measurement.
    #[arg(long, default_value_t = 10)]
    wait_s: u64,
    /// The most seconds that opening may take.
    #[arg(long, default_value_t = 600)]
    limit_s: u64,
}

pub(crate) fn run(args: &SessionsArgs) -> anyhow::Result<()> {
    process::raise_files()?;
    println!("{} sessions opened and abandoned; RSS of the process tree in MiB", args.count);
    println!(
        "{:<12} {:<34} {:>9} {:>8} {:>8} {:>8} {:>8} {:>14}",
        "target", "each", "sessions", "per s", "before", "after", "waited", "bytes/session"
    );
    for kind in args.what.kinds() {
        for with_call in [false, true] {
            let backend = target::backend(Eras::Both)?;
            let target = target::start_kind(kind, backend.address, &args.what.drawbridge)?;
            let Some(process) = &target.process else { continue };
            let scenario = scenario::abandon(with_call);
            let plan = Plan {
                connections: args.conns as usize,
                warm: Duration::ZERO,
                time: Duration::from_secs(args.limit_s),
                iterations: u64::from(args.warm),
                every: None,
            };
            load::cell(&target.endpoint, &scenario, plan, || Ok(0))?;
            thread::sleep(Duration::from_secs(1));
            let before = process::memory(process.pid())?;
            let plan = Plan { iterations: u64::from(args.count), ..plan };
            let outcome = load::cell(&target.endpoint, &scenario, plan, || Ok(0))?;
            let after = process::memory(process.pid())?;
            thread::sleep(Duration::from_secs(args.wait_s));
            let waited = process::memory(process.pid())?;
            println!(
                "{:<12} {:<34} {:>9} {:>8} {:>8} {:>8} {:>8} {:>14}",
                kind.name(),
                scenario.name,
                outcome.done,
                number(outcome.rate(), 0),
                mib(before.rss),
                mib(after.rss),
                mib(waited.rss),
                number((waited.rss as f64 - before.rss as f64) * 1024.0 / outcome.done as f64, 1),
            );
            if let Some(error) = outcome.first_error {
                println!("    {} errors; the first: {error}", outcome.errors);
            }
        }
    }
    Ok(())
}
