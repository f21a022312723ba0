//! Whole requests, with and without a token, side by side.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use drawbridge_testkit::postgres::PostgresServer;
use serde_json::json;

use super::AuthArgs;
use crate::backend::Eras;
use crate::client::Endpoint;
use crate::load::{self, Plan};
use crate::redis::Redis;
use crate::report::{median, number, range};
use crate::scenario::{self, Scenario};
use crate::setup::{self, SessionScope, Setup, Store};
use crate::target;

/// More than any bench can send.
const MUCH: u32 = 1_000_000_000;

struct Side {
    name: &'static str,
    setup: Setup,
    endpoint: Endpoint,
}

struct Cell {
    rate: f64,
    cpu: f64,
    redis: f64,
}

pub(super) fn run(args: &AuthArgs) -> anyhow::Result<()> {
    let (rounds, time) = if args.quick { (2, 300) } else { (args.rounds, args.cell_ms) };
    let runtime = crate::net::runtime()?;
    let database = runtime.block_on(PostgresServer::start());
    let limits = || Some(json!({ "caller_requests_per_minute": MUCH, "caller_burst": MUCH }));
    let backend = target::backend(Eras::Both)?;
    let start = |name: &'static str, store, config: Option<serde_json::Value>| -> anyhow::Result<Side> {
        let setup = Setup::start(setup::Plan {
            drawbridge: &args.drawbridge,
            backend: backend.address,
            instances: 1,
            store,
            scope: SessionScope::ClientSession,
            log: setup::LOG,
            more: config.as_ref(),
        })
        .with_context(|| format!("start {name}"))?;
        let instance = setup.instances.first().context("no instance")?;
        let mut endpoint = Endpoint::new(instance.address, "/mcp");
        if config.is_some() {
            endpoint.token = Some(super::token(instance)?.1);
        }
        endpoint.prefix = target::prefix(&endpoint).with_context(|| format!("try {name}"))?;
        Ok(Side { name, setup, endpoint })
    };
    database.create_database("plain");
    database.create_database("limited");
    let sides = [
        start("no token", Store::Memory, None)?,
        start("token", Store::Memory, Some(super::guarded(None, None)))?,
        start("token, limits", Store::Memory, Some(super::guarded(None, limits())))?,
        start("token, Redis", Store::Redis, Some(super::guarded(Some(&database.url("plain")), None)))?,
        start(
            "token, limits, Redis",
            Store::Redis,
            Some(super::guarded(Some(&database.url("limited")), limits())),
        )?,
    ];
    println!(
        "{} connections, {rounds} rounds of {time} ms; CPU of the gateway per request, median [least..most]; x1: in \
         that of \"no token\", per round; scripts: round trips to Redis for limits",
        args.conns
    );
    println!(
        "{:<16} {:<21} {:>7} {:>9} {:<15} {:>5} {:<13} {:>10}",
        "scenario", "", "req/s", "CPU us/rq", "[spread]", "x1", "[spread]", "scripts/rq"
    );
    let plan = Plan {
        connections: args.conns as usize,
        warm: Duration::from_millis(200),
        time: Duration::from_millis(time),
        iterations: u64::MAX,
        every: None,
    };
    for name in ["legacy-echo100", "modern-echo100"] {
        let scenario = scenario::named(name)?;
        let mut rows: Vec<Vec<Cell>> = sides.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds as usize {
            for step in 0..sides.len() {
                let at = (round + step) % sides.len();
                rows[at].push(sides[at].cell(&scenario, plan).with_context(|| sides[at].name)?);
            }
        }
        show(name, &sides, &rows);
    }
    Ok(())
}

impl Side {
    fn cell(&self, scenario: &Scenario, plan: Plan) -> anyhow::Result<Cell> {
        let mut busy = Vec::new();
        let mut counts = None;
        let sample = || {
            // What takes long is outside of what it measures.
            if busy.is_empty() {
                counts = self.setup.redis.as_ref().map(Redis::begin).transpose()?;
                busy.push(self.setup.busy()?.iter().sum::<f64>());
            } else {
                busy.push(self.setup.busy()?.iter().sum::<f64>());
                let redis = self.setup.redis.as_ref().zip(counts.as_ref());
                counts = redis.map(|(redis, begin)| redis.end(begin)).transpose()?;
            }
            Ok(0)
        };
        let outcome = load::cell(&self.endpoint, scenario, plan, sample)?;
        let first_error = outcome.first_error.clone().unwrap_or_default();
        ensure!(outcome.errors == 0, "{} wrong or missing answers; the first: {first_error}", outcome.errors);
        let [begin, end] = busy[..] else { anyhow::bail!("nothing was measured") };
        Ok(Cell {
            rate: outcome.rate(),
            cpu: (end - begin) / outcome.done as f64 * 1e6,
            // What is limited is one script, however many commands are in it.
            redis: counts.map_or(f64::NAN, |counts| {
                counts.commands.get("evalsha").copied().unwrap_or_default() / outcome.done as f64
            }),
        })
    }
}

fn show(scenario: &str, sides: &[Side], rows: &[Vec<Cell>]) {
    let of = |cells: &[Cell], value: fn(&Cell) -> f64| cells.iter().map(value).collect::<Vec<f64>>();
    for (side, cells) in sides.iter().zip(rows) {
        let ratios: Vec<f64> = cells.iter().zip(&rows[0]).map(|(own, first)| own.cpu / first.cpu).collect();
        println!(
            "{scenario:<16} {:<21} {:>7.0} {:>9.1} {:<15} {:>5.2} {:<13} {:>10}",
            side.name,
            median(&of(cells, |cell| cell.rate)),
            median(&of(cells, |cell| cell.cpu)),
            range(&of(cells, |cell| cell.cpu), 1),
            median(&ratios),
            range(&ratios, 2),
            number(median(&of(cells, |cell| cell.redis)), 3),
        );
    }
}
