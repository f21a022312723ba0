//! The command line.
#![expect(clippy::print_stdout, reason = "`load` prints its row")]

use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

use crate::auth::{self, AuthArgs};
use crate::backend::{self, Eras};
use crate::client::Endpoint;
use crate::fanout::{self, FanoutArgs};
use crate::fleet::{self, FleetArgs};
use crate::load::{self, Plan};
use crate::parked::{self, ParkedArgs};
use crate::report::number;
use crate::run::{self, RunArgs};
use crate::sessions::{self, SessionsArgs};
use crate::start::{self, StartArgs};
use crate::steps::{self, StepsArgs};
use crate::streams::{self, StreamsArgs};
use crate::{net, process, proxy, scenario};

/// Drawbridge beside a bare pass-through, nginx and no proxy at all.
#[derive(Debug, Parser)]
struct Cli {
    /// End when standard input does: so a server never outlives the bench that started it.
    #[arg(long, global = true, hide = true)]
    until_stdin_closes: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares all targets side by side and prints a table.
    Run(RunArgs),
    /// Opens many idle streams and prints the memory of each.
    Streams(StreamsArgs),
    /// Opens and abandons many sessions and prints what they leave.
    Sessions(SessionsArgs),
    /// Parks many calls that wait for an answer and prints the memory of each.
    Parked(ParkedArgs),
    /// Compares three instances that share a Redis with one that is alone.
    Fleet(FleetArgs),
    /// Sends one notification to thousands of streams at three instances.
    Fanout(FanoutArgs),
    /// Prints what each step of a session costs where instances share a Redis.
    Steps(StepsArgs),
    /// Prints what it costs to know who calls, and how soon a revoked token is refused.
    Auth(AuthArgs),
    /// Prints the size of the program and how soon it listens.
    Start(StartArgs),
    /// Sends load to a URL and prints one row.
    Load(LoadArgs),
    /// Serves as a fast MCP backend.
    Backend(BackendArgs),
    /// Serves as a bare pass-through proxy.
    Proxy(ProxyArgs),
}

#[derive(Debug, Args)]
struct Listen {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Threads, each with its own runtime and listener [default: one per core].
    #[arg(long)]
    threads: Option<usize>,
}

impl Listen {
    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(net::cores).clamp(1, 256)
    }
}

#[derive(Debug, Args)]
struct BackendArgs {
    #[command(flatten)]
    listen: Listen,
    /// Which eras it serves.
    #[arg(long, default_value = "both")]
    eras: Eras,
}

#[derive(Debug, Args)]
struct ProxyArgs {
    #[command(flatten)]
    listen: Listen,
    /// The address that everything goes to.
    #[arg(long)]
    backend: SocketAddr,
}

#[derive(Debug, Args)]
struct LoadArgs {
    /// Where to, as IP:PORT.
    #[arg(long)]
    to: SocketAddr,
    /// The path of the endpoint.
    #[arg(long, default_value = "/mcp")]
    path: String,
    /// What stands before the names of tools there.
    #[arg(long, default_value = "")]
    prefix: String,
    /// A scenario of `run`.
    #[arg(long, default_value = "legacy-echo100")]
    scenario: String,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    conns: u32,
    /// Measured milliseconds.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
    cell_ms: u64,
    /// Milliseconds of load before.
    #[arg(long, default_value_t = 200)]
    warm_ms: u64,
    /// End after so many requests.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    requests: u64,
    /// Counts the processor time of this process and those below it.
    #[arg(long)]
    pid: Option<u32>,
}

/// Does what the command line says.
pub fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if !cli.until_stdin_closes {
        return command(cli.command);
    }
    let (first, ended) = mpsc::channel();
    let by_itself = first.clone();
    thread::spawn(move || by_itself.send(command(cli.command)));
    thread::spawn(move || {
        let closed = std::io::stdin().read_to_end(&mut Vec::new());
        first.send(closed.map(|_nothing| ()).context("read standard input"))
    });
    ended.recv()?
}

fn command(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Streams(args) => streams::run(&args),
        Command::Sessions(args) => sessions::run(&args),
        Command::Parked(args) => parked::run(&args),
        Command::Fleet(args) => fleet::run(args),
        Command::Fanout(args) => fanout::run(args),
        Command::Steps(args) => steps::run(&args),
        Command::Auth(args) => auth::run(&args),
        Command::Start(args) => start::run(&args),
        Command::Load(args) => load(args),
        Command::Backend(args) => backend::serve(args.listen.listen, args.eras, args.listen.threads()),
        Command::Proxy(args) => proxy::serve(args.listen.listen, args.backend, args.listen.threads()),
    }
}

fn load(args: LoadArgs) -> anyhow::Result<()> {
    let scenario = scenario::named(&args.scenario)?;
    let endpoint = Endpoint { address: args.to, path: args.path, prefix: args.prefix, token: None };
    let plan = Plan {
        connections: args.conns as usize,
        warm: Duration::from_millis(args.warm_ms),
        time: Duration::from_millis(args.cell_ms),
        iterations: args.requests,
        every: None,
    };
    let sample = || args.pid.map_or(Ok(0), process::ticks);
    let outcome = load::cell(&endpoint, &scenario, plan, sample)?;
    let cpu = if args.pid.is_some() {
        outcome.ticks as f64 / process::TICKS_PER_SECOND * 1e6 / outcome.done as f64
    } else {
        f64::NAN
    };
    println!(
        "{} conns {}: {:.0} req/s, p50 {:.1} us, p99 {:.1} us, CPU {} us/req, {} errors",
        scenario.name,
        args.conns,
        outcome.rate(),
        outcome.p50,
        outcome.p99,
        number(cpu, 1),
        outcome.errors
    );
    if let Some(error) = outcome.first_error {
        println!("the first error: {error}");
    }
    Ok(())
}
