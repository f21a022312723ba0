//! How big the program is and how long it takes until it listens.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::fs;
use std::path::Path;

use clap::Args;
use tempfile::TempDir;

use crate::backend::Eras;
use crate::report::{median, spread};
use crate::run::Targets;
use crate::target::{self, Kind, Started};

/// Arguments of `start`.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    what: Targets,
    /// How often to start it.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
}

pub(crate) fn run(args: &StartArgs) -> anyhow::Result<()> {
    println!("{:<12} {:>9} {:>12} {:>18}", "target", "MB", "median ms", "[least..most]");
    let backend = target::backend(Eras::Both)?;
    for kind in args.what.kinds() {
        match kind {
            Kind::Proxy => {
                show(kind, &std::env::current_exe()?, args.times, || target::proxy(backend.address))?;
            }
            Kind::Drawbridge => {
                // one folder: the first start may make keys, as it does for a user
                let files = TempDir::new()?;
                let program = &args.what.drawbridge;
                show(kind, program, args.times, || target::gateway(program, backend.address, files.path()))?;
            }
            Kind::Direct | Kind::Nginx => {}
        }
    }
    Ok(())
}

fn show(
    kind: Kind,
    program: &Path,
    times: u32,
    start: impl Fn() -> anyhow::Result<Started>,
) -> anyhow::Result<()> {
    let mut took = Vec::new();
    for _ in 0..times {
        took.push(start()?.took.as_secs_f64() * 1e3);
    }
    let size = fs::metadata(program)?.len() as f64 / 1e6;
    let (least, most) = spread(&took);
    println!(
        "{:<12} {size:>9.1} {:>12.1} {:>18}",
        kind.name(),
        median(&took),
        format!("[{least:.1}..{most:.1}]")
    );
    Ok(())
}
