//! What it costs to know who calls: the verifier by itself, whole requests with and without a token, and how soon a
//! revoked token is refused everywhere.
#![expect(clippy::print_stdout, reason = "the tables are what this program is for")]

mod calls;
mod revocation;
mod verifier;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::setup::Instance;

/// The first administrator's token of the gateways here.
const FIRST: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

/// Arguments of `auth`.
#[derive(Debug, Args)]
pub(crate) struct AuthArgs {
    /// The program.
    #[arg(long, default_value = "target/release/drawbridge")]
    drawbridge: PathBuf,
    /// What to print.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "verifier,calls,revocation")]
    part: Vec<Part>,
    /// Connections of `calls`.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    conns: u32,
    /// Rounds of `calls`.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measured milliseconds of one setup in one round of `calls`.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    cell_ms: u64,
    /// Tokens that `revocation` ends, and that `verifier` sees for the first time.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    tokens: u32,
    /// A look whether it works.
    #[arg(long)]
    quick: bool,
}

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The verifier alone, in this process.
    Verifier,
    /// Requests with and without a token, side by side.
    Calls,
    /// From the answer to a revocation until all instances refuse.
    Revocation,
}

pub(crate) fn run(args: &AuthArgs) -> anyhow::Result<()> {
    crate::process::raise_files()?;
    for (number, part) in args.part.iter().enumerate() {
        if number > 0 {
            println!();
        }
        match part {
            Part::Verifier => verifier::run(args)?,
            Part::Calls => calls::run(args)?,
            Part::Revocation => revocation::run(args)?,
        }
    }
    Ok(())
}

/// The configuration of a gateway that asks for tokens, with its records in `database`, or in a file of its own.
fn guarded(database: Option<&str>, limits: Option<Value>) -> Value {
    let mut config = json!({ "auth": { "mode": "tokens" }, "admin": { "bootstrap_token": FIRST } });
    if let Some(url) = database {
        config["database"] = json!({ "url": url });
    }
    if let Some(limits) = limits {
        config["limits"] = limits;
    }
    config
}

/// What the admin API answers with to the first administrator.
fn ask(instance: &Instance, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
    let headers = format!("Authorization: Bearer {FIRST}\r\nContent-Type: application/json\r\n");
    let body = body.map(ToString::to_string).unwrap_or_default();
    let path = format!("/admin/v1/{path}");
    let (status, text) = crate::setup::exchange_with(instance.admin, method, &path, &headers, &body)?;
    Ok((status, serde_json::from_str(&text).unwrap_or_default()))
}

/// A token of a service: its id and its secret.
fn token(instance: &Instance) -> anyhow::Result<(String, String)> {
    let wanted = json!({ "kind": "service", "name": "bench", "service": "bench", "scopes": ["mcp:read", "mcp:write"] });
    let (status, made) = ask(instance, "POST", "tokens", Some(&wanted))?;
    anyhow::ensure!(status == 201, "no token was made: {status} {made}");
    let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
    Ok((text("id"), text("token")))
}
