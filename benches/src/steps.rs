//! What each step in the life of a session costs where several instances share a Redis: in commands, bytes, processor
//! time and memory.
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use http::HeaderValue;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Runtime;

use crate::backend::Eras;
use crate::client::{Connection, Endpoint};
use crate::net;
use crate::process;
use crate::redis::Counts;
use crate::setup::{Instance, LOG, Plan, SessionScope, Setup, Store};
use crate::target;
use crate::texts::{ASKING, CALLABLE};

/// The most that one step may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Arguments of `steps`.
#[derive(Debug, Args)]
pub(crate) struct StepsArgs {
    /// The program.
    #[arg(long, default_value = "target/release/drawbridge")]
    drawbridge: PathBuf,
    /// Sessions.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=8000))]
    count: u32,
    /// Who shares a session at the backend.
    #[arg(long, default_value = "client_session")]
    scope: SessionScope,
    /// The eras that the backend serves.
    #[arg(long, default_value = "legacy")]
    backend_eras: Eras,
    /// Milliseconds after each step for what runs on, which is part of it. The stream on which a backend may ask stays
    /// for 5 s after the last call.
    #[arg(long, default_value_t = 6500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    settle_ms: u64,
    /// 50 sessions and 200 ms: does it work?
    #[arg(long)]
    quick: bool,
}

/// The sessions, and where they can be used.
struct Clients {
    endpoints: Vec<Endpoint>,
    count: usize,
    sessions: Vec<HeaderValue>,
    streams: Vec<(Connection, Incoming)>,
}

/// What is counted around a step.
struct Ledger<'a> {
    setup: &'a Setup,
    runtime: &'a Runtime,
    settle: Duration,
    /// Per second.
    idle: Option<Used>,
}

#[derive(Clone, Default)]
struct Used {
    redis: Counts,
    /// Seconds of all gateways.
    cpu: f64,
    /// KiB of all gateways.
    memory: f64,
    seconds: f64,
}

pub(crate) fn run(args: &StepsArgs) -> anyhow::Result<()> {
    let (count, settle, idle) =
        if args.quick { (50, 200, 300) } else { (args.count as usize, args.settle_ms, 3000) };
    let (settle, idle) = (Duration::from_millis(settle), Duration::from_millis(idle));
    process::raise_files()?;
    let backend = target::backend(args.backend_eras)?;
    let setup = Setup::start(Plan {
        drawbridge: &args.drawbridge,
        backend: backend.address,
        instances: 3,
        store: Store::Redis,
        scope: args.scope,
        log: LOG,
        more: None,
    })?;
    let runtime = net::runtime()?;
    let mut clients =
        Clients { endpoints: setup.endpoints(), count, sessions: Vec::new(), streams: Vec::new() };
    println!(
        "{count} of each, one after another; three instances A, B, C with one Redis; a backend of {:?} eras, session_scope {:?}",
        args.backend_eras, args.scope
    );
    println!(
        "commands: those within scripts count too; what an idle second costs is taken off; memory: added by the step"
    );
    let mut ledger = Ledger { setup: &setup, runtime: &runtime, settle, idle: None };
    // the first few make what all share
    runtime.block_on(clients.warm())?;
    let idle = ledger
        .use_of(async {
            tokio::time::sleep(idle).await;
            Ok(1)
        })?
        .1;
    let each_second = idle.per(idle.seconds);
    println!(
        "\nan idle second: Redis {:.1} commands ({}), {:.0} bytes in, {:.0} out, {:.0} us; gateways {:.0} us\n",
        each_second.redis.all(),
        each_second.redis.names(),
        each_second.redis.bytes_in,
        each_second.redis.bytes_out,
        each_second.redis.cpu * 1e6,
        each_second.cpu * 1e6
    );
    ledger.idle = Some(each_second);
    println!(
        "{:<40} {:>9} {:>9} {:>9} {:>9} {:>11} {:>12} {:>13}  commands",
        "step",
        "Redis cmd",
        "bytes in",
        "bytes out",
        "Redis us",
        "Redis bytes",
        "gateways us",
        "gateways KiB"
    );
    ledger.step("initialize, initialized at A", clients.open())?;
    ledger.step("its first call, at A", clients.call(0))?;
    ledger.step("its next call, at A", clients.call(0))?;
    ledger.step("its first call at B", clients.call(1))?;
    ledger.step("its next call, at B", clients.call(1))?;
    ledger.step("its standalone stream opens at C", clients.listen(2))?;
    ledger.step("a call at A, with that stream open", clients.call(0))?;
    ledger.step("the stream is closed", clients.hang_up())?;
    ledger.step("DELETE at B", clients.delete(1))?;
    ledger.step("a call without a session, at A", clients.stateless(0))?;
    // Whoever stops the gateways waits for these.
    if args.backend_eras == Eras::Legacy && !args.quick {
        ledger.step("a call without a session is parked at A", clients.park(0))?;
    }
    Ok(())
}

impl Clients {
    async fn warm(&mut self) -> anyhow::Result<()> {
        for endpoint in &self.endpoints {
            for _ in 0..20 {
                let mut connection = Connection::open(endpoint).await?;
                connection.initialize().await?;
                connection.call(CALLABLE[0], false).await?;
                connection.delete().await?;
                connection.call(CALLABLE[0], true).await?;
            }
        }
        Ok(())
    }

    async fn open(&mut self) -> anyhow::Result<usize> {
        let mut connection = Connection::open(&self.endpoints[0]).await?;
        for _ in 0..self.count {
            connection.initialize().await?;
            self.sessions.push(connection.session().context("no session")?);
        }
        Ok(self.count)
    }

    async fn call(&mut self, at: usize) -> anyhow::Result<usize> {
        let mut connection = Connection::open(&self.endpoints[at]).await?;
        for session in &self.sessions {
            connection.enter(session.clone());
            connection.call(CALLABLE[0], false).await?;
        }
        Ok(self.count)
    }

    async fn listen(&mut self, at: usize) -> anyhow::Result<usize> {
        for session in &self.sessions {
            let mut connection = Connection::open(&self.endpoints[at]).await?;
            connection.enter(session.clone());
            let mut body = connection.listen().await?;
            body.frame().await.context("a stream ended at once")??;
            self.streams.push((connection, body));
        }
        Ok(self.count)
    }

    async fn hang_up(&mut self) -> anyhow::Result<usize> {
        self.streams.clear();
        // Their ends are told by tasks of this runtime.
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(self.count)
    }

    async fn delete(&mut self, at: usize) -> anyhow::Result<usize> {
        let mut connection = Connection::open(&self.endpoints[at]).await?;
        for session in self.sessions.drain(..) {
            connection.enter(session);
            connection.delete().await?;
        }
        Ok(self.count)
    }

    async fn stateless(&mut self, at: usize) -> anyhow::Result<usize> {
        let mut connection = Connection::open(&self.endpoints[at]).await?;
        for _ in 0..self.count {
            connection.call(CALLABLE[0], true).await?;
        }
        Ok(self.count)
    }

    async fn park(&mut self, at: usize) -> anyhow::Result<usize> {
        let mut connection = Connection::open(&self.endpoints[at]).await?;
        for _ in 0..self.count {
            connection.park(ASKING).await?;
        }
        Ok(self.count)
    }
}

impl Ledger<'_> {
    /// Does a step and prints what each time cost.
    fn step(&self, name: &str, work: impl Future<Output = anyhow::Result<usize>>) -> anyhow::Result<()> {
        let (times, mut used) = self.use_of(work).with_context(|| name.to_owned())?;
        ensure!(times > 0, "nothing was done");
        if let Some(idle) = &self.idle {
            used.redis.add(&idle.redis, -used.seconds);
            used.cpu -= idle.cpu * used.seconds;
        }
        let each = used.per(times as f64);
        println!(
            "{name:<40} {:>9.2} {:>9.0} {:>9.0} {:>9.1} {:>11.0} {:>12.0} {:>13.2}  {}",
            each.redis.all(),
            each.redis.bytes_in,
            each.redis.bytes_out,
            each.redis.cpu * 1e6,
            each.redis.memory,
            each.cpu * 1e6,
            each.memory,
            each.redis.names()
        );
        Ok(())
    }

    fn use_of(&self, work: impl Future<Output = anyhow::Result<usize>>) -> anyhow::Result<(usize, Used)> {
        let redis = self.setup.redis.as_ref().context("no Redis")?;
        let memory = || self.setup.instances.iter().map(Instance::memory).sum::<anyhow::Result<f64>>();
        let busy = || anyhow::Ok(self.setup.busy()?.iter().sum::<f64>());
        let begin = redis.begin()?;
        let before = (memory()?, busy()?, Instant::now());
        let work = async { tokio::time::timeout(LIMIT, work).await };
        let times = self.runtime.block_on(work).context("it takes too long")??;
        thread::sleep(self.settle);
        let cpu = busy()? - before.1;
        let seconds = before.2.elapsed().as_secs_f64();
        let redis = redis.end(&begin)?;
        Ok((times, Used { redis, cpu, memory: memory()? - before.0, seconds }))
    }
}

impl Used {
    fn per(&self, times: f64) -> Self {
        Self {
            redis: self.redis.times(1.0 / times),
            cpu: self.cpu / times,
            memory: self.memory / times,
            seconds: self.seconds / times,
        }
    }
}
