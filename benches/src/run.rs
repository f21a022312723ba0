//! The comparison: every scenario through every target, a round at a time, so that a noisy minute hits all alike.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::json;

use crate::backend::Eras;
use crate::load::{self, Outcome, Plan};
use crate::net;
use crate::process::{self, Memory, TICKS_PER_SECOND};
use crate::report::{mean_ratio, median, mib, number, spread};
use crate::scenario::{self, Scenario};
use crate::target::{self, Kind, Target};

/// The aim for the p50 that a proxy adds, in that of the bare one.
const ADDED_P50_AIM: f64 = 1.3;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) what: Targets,
    /// Rounds; each goes through all targets.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measured milliseconds of one target in one round.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    cell_ms: u64,
    /// Milliseconds of load before each measurement.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    warm_ms: u64,
    /// Connections.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    conns: Vec<usize>,
    /// Only scenarios with this in their name; may be said several times.
    #[arg(long, value_name = "PART")]
    scenario: Vec<String>,
    /// Six scenarios, 1 and 16 connections, two rounds of 500 ms.
    #[arg(long)]
    quick: bool,
    /// The eras that the backend of Drawbridge serves; other than `both` starts one more for it.
    #[arg(long, default_value = "both")]
    backend_eras: Eras,
    /// Writes every cell of every round to this file too, a JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What to measure.
#[derive(Clone, Debug, Args)]
pub(crate) struct Targets {
    /// The program, or `none`.
    #[arg(long, value_name = "PATH|none", default_value = "target/release/drawbridge")]
    pub(crate) drawbridge: PathBuf,
    /// What to send load through.
    #[arg(long, value_delimiter = ',', default_value = "direct,proxy,nginx,drawbridge")]
    pub(crate) targets: Vec<Kind>,
}

impl Targets {
    /// The targets that can be had here; says which can't.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = self.targets.clone();
        if self.drawbridge.as_os_str() == "none" {
            kinds.retain(|kind| *kind != Kind::Drawbridge);
        }
        if kinds.contains(&Kind::Nginx) && target::installed("nginx").is_none() {
            println!("nginx is not installed: left out");
            kinds.retain(|kind| *kind != Kind::Nginx);
        }
        kinds
    }
}

/// All rounds of one target in one row.
#[derive(Default)]
struct Series {
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// Microseconds per iteration.
    cpu: Vec<f64>,
    errors: u64,
    changed_form: u64,
    first_error: Option<String>,
}

impl Series {
    fn add(&mut self, outcome: Outcome, measured: bool) {
        self.rate.push(outcome.rate());
        self.p50.push(outcome.p50);
        self.p99.push(outcome.p99);
        self.cpu.push(if measured { cpu(outcome.ticks, outcome.done) } else { f64::NAN });
        self.errors += outcome.errors;
        self.changed_form += outcome.changed_form;
        self.first_error = self.first_error.take().or(outcome.first_error);
    }
}

fn cpu(ticks: u64, done: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND * 1e6 / done as f64
}

/// A ratio of Drawbridge to the pass-through, and what it may be.
struct Verdict {
    row: String,
    cpu: f64,
    cpu_aim: f64,
    added_p50: f64,
    errors: u64,
}

impl Verdict {
    fn good(&self) -> bool {
        let p50_good = self.added_p50.is_nan() || self.added_p50 <= ADDED_P50_AIM;
        self.errors == 0 && self.cpu <= self.cpu_aim && p50_good
    }
}

pub(crate) fn run(mut args: RunArgs) -> anyhow::Result<()> {
    if args.quick {
        args.rounds = args.rounds.min(2);
        args.cell_ms = args.cell_ms.min(500);
        args.conns = vec![1, 16];
    }
    ensure!(args.conns.iter().all(|n| (1..=1024).contains(n)), "between 1 and 1024 connections");
    let scenarios: Vec<Scenario> = scenario::all()
        .into_iter()
        .filter(|s| !args.quick || scenario::QUICK.contains(&s.name.as_str()))
        .filter(|s| {
            args.scenario.is_empty() || args.scenario.iter().any(|part| s.name.contains(part.as_str()))
        })
        .collect();
    process::raise_files()?;
    let mut log = args.json.as_ref().map(File::create).transpose().context("create the JSON file")?;

    let backend = target::backend(Eras::Both)?;
    let other = match args.backend_eras {
        Eras::Both => None,
        eras => Some(target::backend(eras)?),
    };
    let mut targets = Vec::new();
    for kind in args.what.kinds() {
        let behind = match (&other, kind) {
            (Some(other), Kind::Drawbridge) => other.address,
            _ => backend.address,
        };
        targets.push(target::start_kind(kind, behind, &args.what.drawbridge)?);
    }
    ensure!(!targets.is_empty() && !scenarios.is_empty(), "nothing to measure");
    let before = memories(&targets)?;
    let stolen = process::stolen();
    let rows = scenarios.len() * args.conns.len();
    let seconds =
        (rows * targets.len()) as u64 * u64::from(args.rounds) * (args.cell_ms + args.warm_ms) / 1000;
    println!(
        "{rows} rows, {} targets, {} rounds of {} ms: about {seconds} s; {} cores; load average {}",
        targets.len(),
        args.rounds,
        args.cell_ms,
        net::cores(),
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
    );
    println!(
        "CPU: user and system time of the target's process tree per request, median [least..most] of the rounds"
    );
    println!(
        "xproxy: median of the rounds' ratios to the bare pass-through; +p50: p50 above direct, in that of the pass-through"
    );
    heading();
    let mut verdicts = Vec::new();
    let mut errors = 0;
    for scenario in &scenarios {
        for &connections in &args.conns {
            let series = row(&args, &targets, scenario, connections, log.as_mut())?;
            errors += series.iter().map(|of_target| of_target.errors).sum::<u64>();
            verdicts.extend(show(&targets, scenario, connections, &series));
        }
    }
    summary(&verdicts);
    println!("\nStolen by the host meanwhile: {} ticks of 10 ms", process::stolen() - stolen);
    println!("\nMemory of the process tree, MiB      RSS before    after  PSS before    after");
    for ((target, before), after) in targets.iter().zip(before).zip(memories(&targets)?) {
        println!(
            "{:<35} {:>11} {:>8} {:>11} {:>8}",
            target.kind.name(),
            mib(before.rss),
            mib(after.rss),
            mib(before.pss),
            mib(after.pss)
        );
    }
    ensure!(errors == 0, "{errors} answers were wrong or missing: their rows mean nothing");
    Ok(())
}

fn memories(targets: &[Target]) -> anyhow::Result<Vec<Memory>> {
    let of =
        |target: &Target| target.process.as_ref().map_or(Ok(Memory::default()), |p| process::memory(p.pid()));
    targets.iter().map(of).collect()
}

fn row(
    args: &RunArgs,
    targets: &[Target],
    scenario: &Scenario,
    connections: usize,
    mut log: Option<&mut File>,
) -> anyhow::Result<Vec<Series>> {
    let plan = Plan {
        connections,
        warm: Duration::from_millis(args.warm_ms),
        time: Duration::from_millis(args.cell_ms),
        iterations: u64::MAX,
        every: None,
    };
    let mut series: Vec<Series> = targets.iter().map(|_| Series::default()).collect();
    for round in 0..args.rounds as usize {
        for step in 0..targets.len() {
            // no target is always the one after the same other
            let at = (round + step) % targets.len();
            let target = &targets[at];
            let pid = target.process.as_ref().map(target::Running::pid);
            let sample = || pid.map_or(Ok(0), process::ticks);
            let outcome = load::cell(&target.endpoint, scenario, plan, sample)
                .with_context(|| format!("{} through {}", scenario.name, target.kind.name()))?;
            if let Some(log) = log.as_mut() {
                let cell = json!({
                    "scenario": scenario.name, "connections": connections, "target": target.kind.name(), "round": round,
                    "per_second": outcome.rate(), "p50_us": outcome.p50, "p99_us": outcome.p99,
                    "cpu_ticks": outcome.ticks, "done": outcome.done, "errors": outcome.errors,
                });
                writeln!(log, "{cell}")?;
            }
            series[at].add(outcome, pid.is_some());
        }
    }
    Ok(series)
}

fn heading() {
    println!(
        "\n{:<18} {:>5} {:<10} {:>8} {:>9} {:>9} {:>9} {:<17} {:>7} {:>6}",
        "scenario", "conns", "target", "req/s", "p50 us", "p99 us", "CPU us/rq", "[spread]", "xproxy", "+p50"
    );
}

fn show(targets: &[Target], scenario: &Scenario, connections: usize, series: &[Series]) -> Option<Verdict> {
    let of = |kind| targets.iter().position(|t| t.kind == kind).and_then(|at| series.get(at));
    let (direct, bare) = (of(Kind::Direct), of(Kind::Proxy));
    let mut verdict = None;
    for (target, own) in targets.iter().zip(series) {
        let cpu_ratio = bare.map_or(f64::NAN, |bare| {
            median(&own.cpu.iter().zip(&bare.cpu).map(|(own, bare)| own / bare).collect::<Vec<_>>())
        });
        let added = match (direct, bare, target.kind) {
            (Some(direct), Some(bare), Kind::Proxy | Kind::Nginx | Kind::Drawbridge) => {
                added(own, bare, direct)
            }
            _ => f64::NAN,
        };
        let (least, most) = spread(&own.cpu);
        let range = if least.is_finite() { format!("[{least:.1}..{most:.1}]") } else { String::new() };
        let is_gateway = target.kind == Kind::Drawbridge;
        let over = is_gateway && (cpu_ratio > scenario.aim() || added > ADDED_P50_AIM);
        println!(
            "{:<18} {:>5} {:<10} {:>8.0} {:>9} {:>9} {:>9} {:<17} {:>7} {:>6}{}",
            scenario.name,
            connections,
            target.kind.name(),
            median(&own.rate),
            number(median(&own.p50), 1),
            number(median(&own.p99), 1),
            number(median(&own.cpu), 1),
            range,
            number(cpu_ratio, 2),
            number(added, 2),
            if over { " over the aim" } else { "" },
        );
        if own.changed_form > 0 {
            println!(
                "    {} answers in the other form: JSON as an event stream, or an event stream as JSON",
                own.changed_form
            );
        }
        if let Some(error) = &own.first_error {
            println!("    {} errors; the first: {error}", own.errors);
        }
        if is_gateway && bare.is_some() {
            verdict = Some(Verdict {
                row: format!("{} at {connections}", scenario.name),
                cpu: cpu_ratio,
                cpu_aim: scenario.aim(),
                added_p50: added,
                errors: own.errors,
            });
        }
    }
    verdict
}

/// How much p50 `own` adds to `direct`, in what `bare` adds; per round, then the median.
fn added(own: &Series, bare: &Series, direct: &Series) -> f64 {
    let rounds = own.p50.iter().zip(&bare.p50).zip(&direct.p50);
    // where the pass-through seems to add nothing, there is nothing to compare with
    let ratios: Vec<f64> = rounds
        .filter(|((_, bare), direct)| *bare - *direct > 1.0)
        .map(|((own, bare), direct)| (own - direct) / (bare - direct))
        .collect();
    median(&ratios)
}

fn summary(verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    let cpu: Vec<f64> = verdicts.iter().map(|v| v.cpu).filter(|r| r.is_finite()).collect();
    let p50: Vec<f64> = verdicts.iter().map(|v| v.added_p50).filter(|r| r.is_finite() && *r > 0.0).collect();
    println!(
        "\nDrawbridge in terms of the bare pass-through: CPU per request, geometric mean {}; added p50 {}",
        number(mean_ratio(&cpu), 2),
        number(mean_ratio(&p50), 2)
    );
    let over: Vec<&Verdict> = verdicts.iter().filter(|v| !v.good()).collect();
    println!(
        "{} of {} rows within the aims (CPU 1.5, at 1 MB 1.3; added p50 {ADDED_P50_AIM})",
        verdicts.len() - over.len(),
        verdicts.len()
    );
    for verdict in over {
        println!(
            "    {}: CPU {} (aim {}), added p50 {}, {} errors",
            verdict.row,
            number(verdict.cpu, 2),
            verdict.cpu_aim,
            number(verdict.added_p50, 2),
            verdict.errors
        );
    }
}
