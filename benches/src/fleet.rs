//! What it costs that several instances share their state: three with a Redis beside one that is alone.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::backend::Eras;
use crate::load::{self, Plan};
use crate::process;
use crate::redis::{Counts, Redis};
use crate::report::{median, number, range, spread};
use crate::scenario::{self, Scenario};
use crate::setup::{self, Balancer, SessionScope, Setup, Store};
use crate::target;

/// The most that a request may cost with three instances, in what it costs with one.
const AIM: f64 = 1.25;
/// What is compared; the first is what the others are held against.
const SETUPS: [(&str, usize, Store); 4] = [
    ("1, memory", 1, Store::Memory),
    ("1, Redis", 1, Store::Redis),
    ("3, memory", 3, Store::Memory),
    ("3, Redis", 3, Store::Redis),
];

/// Arguments of `fleet`.
#[derive(Debug, Args)]
pub(crate) struct FleetArgs {
    /// The program.
    #[arg(long, default_value = "target/release/drawbridge")]
    drawbridge: PathBuf,
    /// Scenarios of `run`, by their whole names.
    #[arg(long, value_delimiter = ',', default_value = "legacy-echo100,modern-echo100,legacy-sse100")]
    scenario: Vec<String>,
    /// Connections, for each instance.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    conns: u32,
    /// Requests per second, for each instance; 0: as many as all connections of one instance can have, shared by all.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    rate: u32,
    /// Rounds; each goes through all setups, beginning with another one.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measured milliseconds of one setup in one round.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    cell_ms: u64,
    /// Milliseconds of load before each measurement.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    warm_ms: u64,
    /// `log.level` of the gateways; at `warn` calls leave no line.
    #[arg(long, default_value = setup::LOG)]
    log_level: String,
    /// One scenario, two rounds of 300 ms: does it work?
    #[arg(long)]
    quick: bool,
}

/// A setup that runs, behind its balancer.
struct Side {
    name: &'static str,
    balancer: Balancer,
    setup: Setup,
}

/// What one cell used, each per request.
struct Cell {
    rate: f64,
    p50: f64,
    p99: f64,
    /// Microseconds of all gateways.
    cpu: f64,
    /// The same of the instance that used most for each request that it had.
    most: f64,
    balancer: f64,
    redis: Counts,
}

/// One end of a measurement.
struct Sample {
    busy: Vec<f64>,
    balancer: f64,
    requests: Vec<f64>,
    redis: Option<Counts>,
}

pub(crate) fn run(mut args: FleetArgs) -> anyhow::Result<()> {
    if args.quick {
        args.rounds = args.rounds.min(2);
        args.cell_ms = args.cell_ms.min(300);
        args.warm_ms = args.warm_ms.min(100);
        args.scenario.truncate(1);
    }
    let scenarios: Vec<Scenario> =
        args.scenario.iter().map(|name| scenario::named(name)).collect::<anyhow::Result<_>>()?;
    process::raise_files()?;
    let backend = target::backend(Eras::Both)?;
    let mut sides = Vec::new();
    for (name, instances, store) in SETUPS {
        let drawbridge = args.drawbridge.as_path();
        let scope = SessionScope::ClientSession;
        let setup = Setup::start(setup::Plan {
            drawbridge,
            backend: backend.address,
            instances,
            store,
            scope,
            log: &args.log_level,
            more: None,
        })
        .with_context(|| format!("start {name}"))?;
        sides.push(Side { name, balancer: setup.balanced()?, setup });
    }
    let load = match args.rate {
        0 => format!("{} connections in all, as fast as they can", args.conns),
        rate => format!("{} connections and {rate} requests/s for each instance", args.conns),
    };
    println!(
        "{load}, {} rounds of {} ms; HAProxy with deploy/haproxy.cfg in front of each; {} cores; load average {}",
        args.rounds,
        args.cell_ms,
        crate::net::cores(),
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
    );
    println!(
        "CPU: all gateways per request, median [least..most] of the rounds; x1: in that of \"1, memory\", per round; \
         costliest: the instance that used most, by the requests that it had itself"
    );
    println!(
        "\n{:<16} {:<10} {:>7} {:>8} {:>8} {:>9} {:<15} {:>5} {:<13} {:>9} {:>9} {:>9} {:>10}",
        "scenario",
        "instances",
        "req/s",
        "p50 us",
        "p99 us",
        "CPU us/rq",
        "[spread]",
        "x1",
        "[spread]",
        "costliest",
        "Redis/rq",
        "Redis us",
        "HAProxy us"
    );
    for scenario in &scenarios {
        let rows = row(&args, &sides, scenario)?;
        show(scenario, &sides, &rows);
    }
    Ok(())
}

fn row(args: &FleetArgs, sides: &[Side], scenario: &Scenario) -> anyhow::Result<Vec<Vec<Cell>>> {
    let every =
        (args.rate > 0).then(|| Duration::from_secs_f64(f64::from(args.conns) / f64::from(args.rate)));
    let plan = |instances: usize| Plan {
        connections: args.conns as usize * if every.is_some() { instances } else { 1 },
        warm: Duration::from_millis(args.warm_ms),
        time: Duration::from_millis(args.cell_ms),
        iterations: u64::MAX,
        every,
    };
    let mut rows: Vec<Vec<Cell>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds as usize {
        for step in 0..sides.len() {
            let at = (round + step) % sides.len();
            let cell = sides[at].cell(scenario, plan(sides[at].setup.instances.len()));
            rows[at].push(cell.with_context(|| format!("{} at {}", scenario.name, sides[at].name))?);
        }
    }
    Ok(rows)
}

impl Side {
    fn cell(&self, scenario: &Scenario, plan: Plan) -> anyhow::Result<Cell> {
        let mut samples = Vec::new();
        let sample = || {
            // What takes long is outside of what it measures.
            let is_begin = samples.is_empty();
            samples.push(if is_begin { self.begin()? } else { self.end(&samples[0])? });
            Ok(0)
        };
        let outcome = load::cell(&self.balancer.endpoint, scenario, plan, sample)?;
        let first_error = outcome.first_error.unwrap_or_default();
        ensure!(outcome.errors == 0, "{} wrong or missing answers; the first: {first_error}", outcome.errors);
        let used = samples.pop().context("nothing was measured")?;
        let done = outcome.done as f64;
        let requests: f64 = used.requests.iter().sum();
        let each = used.busy.iter().zip(&used.requests);
        let each: Vec<f64> = each.map(|(busy, own)| busy / (done * own / requests) * 1e6).collect();
        Ok(Cell {
            rate: outcome.done as f64 / outcome.seconds,
            p50: outcome.p50,
            p99: outcome.p99,
            cpu: used.busy.iter().sum::<f64>() / done * 1e6,
            most: spread(&each).1,
            balancer: used.balancer / done * 1e6,
            redis: used.redis.unwrap_or_default().times(1.0 / done),
        })
    }

    fn requests(&self) -> anyhow::Result<Vec<f64>> {
        self.setup.instances.iter().map(|instance| instance.metric("drawbridge_requests_total")).collect()
    }

    fn begin(&self) -> anyhow::Result<Sample> {
        let requests = self.requests()?;
        let redis = self.setup.redis.as_ref().map(Redis::begin).transpose()?;
        Ok(Sample {
            requests,
            redis,
            balancer: process::busy(self.balancer.process.pid())?,
            busy: self.setup.busy()?,
        })
    }

    /// What was used since `begin`.
    fn end(&self, begin: &Sample) -> anyhow::Result<Sample> {
        let grown =
            |now: Vec<f64>, then: &[f64]| now.iter().zip(then).map(|(now, then)| now - then).collect();
        let busy = grown(self.setup.busy()?, &begin.busy);
        let balancer = process::busy(self.balancer.process.pid())? - begin.balancer;
        let redis = self.setup.redis.as_ref().zip(begin.redis.as_ref());
        let redis = redis.map(|(redis, counts)| redis.end(counts)).transpose()?;
        Ok(Sample { busy, balancer, redis, requests: grown(self.requests()?, &begin.requests) })
    }
}

fn show(scenario: &Scenario, sides: &[Side], rows: &[Vec<Cell>]) {
    let of = |cells: &[Cell], value: fn(&Cell) -> f64| cells.iter().map(value).collect::<Vec<f64>>();
    for (side, cells) in sides.iter().zip(rows) {
        let ratios = ratios(cells, &rows[0], |cell| cell.cpu);
        let has_redis = side.setup.redis.is_some();
        let redis = |value: f64, digits| if has_redis { number(value, digits) } else { "-".to_owned() };
        println!(
            "{:<16} {:<10} {:>7.0} {:>8.0} {:>8.0} {:>9.1} {:<15} {:>5.2} {:<13} {:>9.1} {:>9} {:>9} {:>10.1}",
            scenario.name,
            side.name,
            median(&of(cells, |cell| cell.rate)),
            median(&of(cells, |cell| cell.p50)),
            median(&of(cells, |cell| cell.p99)),
            median(&of(cells, |cell| cell.cpu)),
            range(&of(cells, |cell| cell.cpu), 1),
            median(&ratios),
            range(&ratios, 2),
            median(&of(cells, |cell| cell.most)),
            redis(median(&of(cells, |cell| cell.redis.all())), 4),
            redis(median(&of(cells, |cell| cell.redis.cpu * 1e6)), 2),
            median(&of(cells, |cell| cell.balancer)),
        );
        let mut commands = Counts::default();
        cells.iter().for_each(|cell| commands.add(&cell.redis, 1.0 / cells.len() as f64));
        if commands.all() >= 0.05 {
            println!("    Redis per request: {}", commands.names());
        }
    }
    let (Some(fleet), Some(apart)) = (rows.last(), rows.get(rows.len() - 2)) else { return };
    let most = |cell: &Cell| cell.most;
    println!("    {}", verdict("the costliest of three beside one alone", &ratios(fleet, &rows[0], most)));
    println!("    {}", verdict("the same beside three without Redis", &ratios(fleet, apart, most)));
}

/// In what the same round of `beside` took of all gateways.
fn ratios(cells: &[Cell], beside: &[Cell], value: fn(&Cell) -> f64) -> Vec<f64> {
    cells.iter().zip(beside).map(|(own, beside)| value(own) / beside.cpu).collect()
}

/// Whether that is within the aim.
fn verdict(what: &str, ratios: &[f64]) -> String {
    let (least, _) = spread(ratios);
    let which = match median(ratios) {
        median if median <= AIM => "within the aim",
        _ if least <= AIM => "by the spread of the rounds within the aim",
        _ => "over the aim",
    };
    format!("{what}: {} {}, {which} of {AIM}", number(median(ratios), 2), range(ratios, 2))
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn the_aim_is_held_by_the_median_or_by_the_spread() {
        assert_eq!(verdict("x", &[1.0, 1.2, 1.4]), "x: 1.20 [1.00..1.40], within the aim of 1.25");
        assert!(verdict("x", &[1.2, 1.3, 1.4]).contains("by the spread of the rounds within"));
        assert!(verdict("x", &[1.3, 1.3, 1.4]).contains("over the aim"));
    }
}
