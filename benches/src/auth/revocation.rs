//! How soon a revoked token is refused at all of three instances.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use drawbridge_testkit::postgres::PostgresServer;

use super::AuthArgs;
use crate::backend::Eras;
use crate::report::quantile;
use crate::setup::{self, SessionScope, Setup, Store};
use crate::target;

const INSTANCES: usize = 3;
/// At the 99th percentile.
const AIM: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);
const BODY: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;

fn status(address: SocketAddr, secret: &str) -> anyhow::Result<u16> {
    let headers = format!(
        "Authorization: Bearer {secret}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    );
    Ok(setup::exchange_with(address, "POST", "/mcp", &headers, BODY)?.0)
}

pub(super) fn run(args: &AuthArgs) -> anyhow::Result<()> {
    let count = if args.quick { 10 } else { args.tokens };
    let database = crate::net::runtime()?.block_on(PostgresServer::start());
    database.create_database("records");
    let backend = target::backend(Eras::Both)?;
    let setup = Setup::start(setup::Plan {
        drawbridge: &args.drawbridge,
        backend: backend.address,
        instances: INSTANCES,
        store: Store::Redis,
        scope: SessionScope::ClientSession,
        log: setup::LOG,
        more: Some(&super::guarded(Some(&database.url("records")), None)),
    })?;
    let mut took = Vec::new();
    for number in 0..count as usize {
        let first = &setup.instances[number % INSTANCES];
        let (id, secret) = super::token(first)?;
        for instance in &setup.instances {
            ensure!(status(instance.address, &secret)? == 200, "a fresh token is not accepted");
        }
        let (answered, _) = super::ask(first, "DELETE", &format!("tokens/{id}"), None)?;
        ensure!(answered == 204, "not revoked: {answered}");
        let begin = Instant::now();
        for instance in &setup.instances {
            // Once it is refused it stays so: what is asked at last is what was refused at last.
            while status(instance.address, &secret)? != 401 {
                ensure!(begin.elapsed() < PATIENCE, "a revoked token was accepted for {PATIENCE:?}");
                thread::sleep(Duration::from_micros(500));
            }
        }
        took.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_unstable_by(f64::total_cmp);
    let most = took.last().copied().context("nothing was revoked")?;
    let p99 = quantile(&took, 0.99);
    let verdict = if p99 <= AIM.as_secs_f64() * 1e3 { "within" } else { "over" };
    println!(
        "{count} tokens, each revoked at one of {INSTANCES} instances with a Redis and PostgreSQL; ms from the answer \
         until all refuse it"
    );
    println!(
        "p50 {:.2}, p99 {p99:.2}, most {most:.2}: {verdict} the aim of {} ms",
        quantile(&took, 0.5),
        AIM.as_millis()
    );
    Ok(())
}
