//! A run of chaos: clients of all kinds call through three instances while something goes wrong every few seconds.
//! In the end each call has been answered, was refused with an error that says so, or is known to be unknown; none ran
//! twice, none got another's answer; and what the fleet holds is what it held before.
//!
//! `CHAOS_SECONDS` says how long (60), `CHAOS_SEED` which one (1). The seed fixes what goes wrong, where and for how long,
//! and what each client does; not how the threads of several processes take turns. `CHAOS_LOGS` names a folder for what
//! the instances log, and what happened to each call.

mod backends;
mod calls;
mod clients;
mod listeners;
mod world;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

use self::calls::{Outcome, Run};
use self::clients::{Client, Dialect};
use self::listeners::Listener;
use self::world::{INSTANCES, LOGS, Trouble, World};

/// How long a change may take to be heard.
const CHANGE: Duration = Duration::from_secs(10);
/// How long it may take until nothing is left of what has ended.
const CLEAN: Duration = Duration::from_secs(45);
/// Connections to Redis of each instance.
const CONNECTIONS: usize = 3;
/// What each instance may have grown by, in MiB.
const GROWTH: f64 = 48.0;

const CLIENTS: [(Dialect, &str); 12] = [
    (Dialect::Sessions("2025-11-25"), "/mcp"),
    (Dialect::Sessions("2025-06-18"), "/mcp"),
    (Dialect::Sessions("2025-03-26"), "/mcp"),
    (Dialect::Sessions("2025-11-25"), "/mcp/http"),
    (Dialect::Sessions("2025-11-25"), "/mcp/modern"),
    (Dialect::Stateless, "/mcp"),
    (Dialect::Stateless, "/mcp"),
    (Dialect::Stateless, "/mcp/http"),
    (Dialect::Stateless, "/mcp/modern"),
    (Dialect::Sse, "/mcp"),
    (Dialect::Sse, "/mcp/old"),
    (Dialect::Sessions("2025-11-25"), "/mcp/process"),
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_goes_wrong_every_call_is_accounted_for_and_none_runs_twice() {
    go(setting("CHAOS_SECONDS", 60), setting("CHAOS_SEED", 1), Trouble::any).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_loses_no_call() {
    let run = go(20, 1, |_| Trouble::RollingRestart).await;
    let lost = run.stories(|outcome| match outcome {
        Outcome::Lost => true,
        // Of several clients' calls in one process or connection nobody can say which one asks.
        Outcome::Unknown(why) => why != "unanswered",
        Outcome::Answered | Outcome::Refused(_) | Outcome::Cancelled => false,
    });
    assert!(lost.is_empty(), "{}\n{lost}", run.events());
}

/// Lets clients call for some seconds while one thing after another goes wrong, and looks that all is as it must be.
async fn go(seconds: u64, seed: u64, next: impl Fn(&mut StdRng) -> Trouble) -> Arc<Run> {
    println!("CHAOS_SEED={seed} CHAOS_SECONDS={seconds}");
    let (world, run) = (Arc::new(World::start().await), Run::new());
    let shared = shared_sessions(&world, &run).await;
    let stop = CancellationToken::new();
    let barrier = Barrier::new(CLIENTS.len() + 1);
    let clients = CLIENTS.into_iter().zip(1..).map(|((dialect, path), number)| {
        let own = seed.wrapping_mul(1000).wrapping_add(number);
        let client = Client::new(format!("c{number}"), dialect, path, &world, &run, own);
        attend(client, &run, &stop, &barrier)
    });
    let troubles = async {
        let mut rng = StdRng::seed_from_u64(seed);
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = world.metric("process_resident_memory_bytes").await;
        while begun.elapsed() < Duration::from_secs(seconds) {
            world.trouble(next(&mut rng), &mut rng, &run).await;
            tokio::time::sleep(Duration::from_millis(rng.random_range(300..1500))).await;
        }
        run.event("nothing goes wrong any more");
        stop.cancel();
        // All are served, and listen.
        barrier.wait().await;
        world.backends.change().await;
        // All have heard.
        barrier.wait().await;
        before
    };
    let (before, _) = tokio::join!(troubles, join_all(clients));
    run.event("all clients have gone");
    is_clean(&world, &run, &before, &shared).await;
    let runs = world.backends.runs();
    Arc::into_inner(world).unwrap().stop(&run).await;
    let (numbers, wrong) = run.judge(&runs);
    println!("{}\n\n{numbers}", run.events());
    if let Some(dir) = std::env::var_os(LOGS) {
        std::fs::write(Path::new(&dir).join("calls"), run.stories(|_| true)).unwrap();
    }
    assert!(run.answered() > usize::try_from(seconds).unwrap(), "hardly anything was answered");
    assert!(wrong.is_empty(), "CHAOS_SEED={seed} CHAOS_SECONDS={seconds}\n{}", wrong.join("\n\n"));
    run
}

/// The keys of the sessions at backends that stateless clients share; these stay.
async fn shared_sessions(world: &Arc<World>, run: &Arc<Run>) -> Vec<String> {
    let stateless = CLIENTS.into_iter().filter(|(dialect, _)| *dialect == Dialect::Stateless);
    for (number, (dialect, path)) in stateless.enumerate() {
        let mut client = Client::new(format!("first{number}"), dialect, path, world, run, 0);
        client.open().await;
        client.is_served().await;
        until(CHANGE, async || client.listener().is_some_and(Listener::is_open)).await;
        client.close().await;
    }
    let key = |key: String| Some(key.strip_suffix(":session")?.split(['{', '}']).nth(1)?.to_owned());
    world.keys().await.into_keys().filter_map(key).collect()
}

/// The life of a client.
async fn attend(mut client: Client, run: &Run, stop: &CancellationToken, barrier: &Barrier) {
    client.live(stop).await;
    client.is_served().await;
    if let Some(listener) = client.listener() {
        until(CHANGE, async || listener.is_open()).await;
    }
    let heard = client.listener().map(Listener::heard);
    barrier.wait().await;
    if let (Some(heard), Some(listener)) = (heard, client.listener())
        && client.has_changes()
        && !until(CHANGE, async || listener.heard() > heard).await
    {
        run.wrong(&format!("{} did not hear of a change", client.name()));
    }
    barrier.wait().await;
    client.close().await;
}

/// Nothing is left of what has ended.
async fn is_clean(world: &World, run: &Run, before: &[f64], shared: &[String]) {
    for gauge in [
        "drawbridge_in_flight_requests",
        "drawbridge_open_streams",
        "drawbridge_parked_calls",
        "drawbridge_sessions",
    ] {
        if !until(CLEAN, async || world.metric(gauge).await.iter().all(|value| *value == 0.0)).await {
            run.wrong(&format!("{gauge} stays at {:?}", world.metric(gauge).await));
        }
    }
    if !until(CLEAN, async || world.backends.running() == 0).await {
        run.wrong(&format!("{} calls run at backends", world.backends.running()));
    }
    if !until(CLEAN, async || world.processes().is_empty()).await {
        run.wrong(&format!("processes stay: {:?}", world.processes()));
    }
    let left = async || {
        let keys = world.keys().await;
        keys.into_iter()
            .filter(|(key, _)| !shared.iter().any(|shared| key.contains(shared)))
            .collect::<Vec<_>>()
    };
    if !until(CLEAN, async || left().await.is_empty()).await {
        run.wrong(&format!("keys stay in Redis: {:#?}", left().await));
    }
    if !until(CLEAN, async || world.redis_connections().await.len() == INSTANCES * CONNECTIONS).await {
        run.wrong(&format!("connections to Redis: {:?}", world.redis_connections().await));
    }
    let after = world.metric("process_resident_memory_bytes").await;
    for (number, (before, after)) in before.iter().zip(after).enumerate() {
        let grown = (after - before) / f64::from(1 << 20);
        run.event(&format!("instance {number} has grown by {grown:.1} MiB"));
        if grown > GROWTH {
            run.wrong(&format!("instance {number} has grown by {grown:.1} MiB"));
        }
    }
}

/// Whether a condition comes true in time.
async fn until(deadline: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !condition().await {
        if begun.elapsed() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    true
}
