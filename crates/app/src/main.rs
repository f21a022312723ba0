//! The `drawbridge` program.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use drawbridge_app::cli::{CheckArgs, Cli, Command, DemoServerArgs, QuickstartArgs, ServeArgs};
use drawbridge_app::config::{self, Inputs, Loaded};
use drawbridge_app::gateway::Gateway;
use drawbridge_app::operator::{self, Said};
use drawbridge_app::{hardening, quickstart, telemetry};
use drawbridge_upstream::process::{GuardCommand, guard};
use tokio::signal::unix::{SignalKind, signal};

/// Gives memory back after a burst, which many system allocators don't.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The guard of a stdio backend has to be small and quick: before anything else is set up.
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == "guard") {
        return guard::run(args);
    }
    let outcome = match Cli::parse().command {
        Command::Quickstart(args) => run(quickstart(args)),
        Command::Serve(args) => run(serve(args)),
        Command::Check(args) => return check(args),
        Command::Migrate(args) => run(tell(operator::migrate(args, environment()))),
        Command::Token(args) => run(async { tell(operator::token(args, &environment())).await }),
        Command::Audit(args) => {
            run(async { ended_early(operator::audit(args, environment(), &mut std::io::stdout()).await) })
        }
        Command::DemoServer(args) => run(demo_server(args)),
        Command::Guard(_) => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(&format!("{error:#}"));
            ExitCode::from(if error.is::<config::Problems>() { 2 } else { 1 })
        }
    }
}

fn run(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    telemetry::flush();
    // Reading standard input blocks a thread that nobody can wake.
    runtime.shutdown_background();
    outcome
}

/// Standard output may be closed; that is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn say_error(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn environment() -> HashMap<String, String> {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn load(inputs: &Inputs) -> anyhow::Result<Loaded> {
    let loaded = config::load(inputs)?;
    telemetry::apply(&loaded.config.log);
    for notice in &loaded.notices {
        tracing::warn!("{notice}");
    }
    Ok(loaded)
}

/// Says what a command has to say.
async fn tell(command: impl Future<Output = anyhow::Result<Said>>) -> anyhow::Result<()> {
    let said = command.await?;
    let _ = std::io::stderr().write_all(said.notes.as_bytes());
    std::io::stdout().write_all(said.result.as_bytes())?;
    Ok(())
}

/// Whoever reads what is exported may have had enough.
fn ended_early(done: anyhow::Result<()>) -> anyhow::Result<()> {
    let is_closed = |error: &anyhow::Error| {
        error.chain().any(|cause| {
            cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
        })
    };
    done.or_else(|error| if is_closed(&error) { Ok(()) } else { Err(error) })
}

/// Secrets of callers and backends are in memory.
fn keep_memory_private() {
    if let Err(error) = hardening::forbid_core_dumps() {
        tracing::warn!("core dumps of this process can't be forbidden: {error}");
    }
}

async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    keep_memory_private();
    let inputs = args.inputs(environment());
    let loaded = load(&inputs)?;
    if loaded.config.backends.is_empty() {
        tracing::warn!("no backend is configured; name some in the configuration or with --mcp-servers");
    }
    let files = loaded.files.clone();
    let gateway = Gateway::start(loaded, None, &GuardCommand::default()).await?;
    gateway.follow(inputs, files);
    announce(&gateway);
    until_stopped(gateway).await
}

fn announce(gateway: &Gateway) {
    say(&format!("listening public=http://{}", gateway.public));
    say(&format!("listening admin=http://{}", gateway.admin));
    if let Some(probes) = gateway.probes {
        say(&format!("listening probes=http://{probes}"));
    }
}

/// Runs until SIGTERM or SIGINT; a second one cuts the drain short.
async fn until_stopped(gateway: Gateway) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let hurry = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    gateway.stop(hurry).await;
    Ok(())
}

async fn quickstart(args: QuickstartArgs) -> anyhow::Result<()> {
    keep_memory_private();
    let started = quickstart::start(&args).await?;
    announce(&started.gateway);
    say(&quickstart::settings(started.gateway.public));
    let stopped = until_stopped(started.gateway).await;
    started.demo.stop().await;
    stopped
}

fn check(args: CheckArgs) -> ExitCode {
    match config::load(&args.inputs(environment())) {
        Ok(loaded) => {
            for notice in &loaded.notices {
                say_error(&notice.to_string());
            }
            let (backends, endpoints) = (loaded.config.backends.len(), loaded.config.endpoints.len());
            say(&format!("ok: {backends} backends, {endpoints} named endpoints"));
            ExitCode::SUCCESS
        }
        Err(problems) => {
            say_error(&problems.to_string());
            ExitCode::from(2)
        }
    }
}

async fn demo_server(args: DemoServerArgs) -> anyhow::Result<()> {
    quickstart::demo_server(args.listen).await
}
