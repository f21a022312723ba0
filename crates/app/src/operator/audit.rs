//! `drawbridge audit`: the trail is read in the database itself, so that no gateway has to be believed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use drawbridge_auth::audit::{AuditFilter, AuditKind, AuditStore as _, Head, Report, Trust, Verify, verify};
use drawbridge_core::seal::{KeyRing, SealKey};
use drawbridge_sql::{SqlOptions, SqlRecords};
use serde::Deserialize;

use crate::access::database_url;
use crate::cli::{AuditArgs, AuditCommand, AuditPlace, EntryKind, ExportArgs, VerifyArgs};
use crate::config::{self, Config, Inputs, Overrides};
use crate::seal_key;

/// So many entries are read at once.
const PART: u32 = 500;
/// No line of an export is longer.
const MAX_LINE: u64 = 4 << 20;

/// Does something with the audit trail; `out` is where the result goes.
///
/// # Errors
///
/// If that is not possible, or the trail does not hold.
pub async fn audit(
    args: AuditArgs,
    env: HashMap<String, String>,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    match args.command {
        AuditCommand::Verify(args) => check(args, env, out).await,
        AuditCommand::Export(args) => export(args, env, out).await,
    }
}

/// The configuration and the database that it names.
async fn open(place: AuditPlace, env: HashMap<String, String>) -> anyhow::Result<(Config, SqlRecords)> {
    let overrides = Overrides { database: place.database, ..Overrides::default() };
    let loaded = config::load(&Inputs { config: place.config, mcp_servers: None, env, overrides })?;
    let url = database_url(&loaded.config);
    let missing =
        url.strip_prefix("sqlite:").map(Path::new).filter(|path| !path.exists() && !url.contains('%'));
    if let Some(path) = missing.filter(|path| *path != Path::new(":memory:")) {
        bail!("there is no database at {}; name one with --config or --database", path.display());
    }
    let records = SqlRecords::open(&url, &SqlOptions::default())?;
    let pending = records.pending().await.with_context(|| records.shown().to_owned())?;
    if !pending.is_empty() {
        bail!("{} lacks {}: run `drawbridge migrate` first", records.shown(), pending.join(", "));
    }
    Ok((loaded.config, records))
}

/// The keys that seal the keys of the trail, if the configuration says where they are.
fn ring(config: &Config) -> anyhow::Result<Option<KeyRing>> {
    let mut keys: Vec<SealKey> =
        config.seal_keys.iter().map(|key| SealKey { id: key.id.clone(), secret: *key.key() }).collect();
    if keys.is_empty() {
        keys.extend(seal_key::kept_in(&config.data_dir)?);
    }
    Ok(if keys.is_empty() { None } else { Some(KeyRing::new(&keys)?) })
}

async fn check(
    args: VerifyArgs,
    env: HashMap<String, String>,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let has_config = args.place.config.is_some();
    let kept = match &args.kept {
        Some(path) => kept_in(path).with_context(|| path.display().to_string())?,
        None => Vec::new(),
    };
    let (config, records) = open(args.place, env).await?;
    // Without a configuration nobody says which seal keys are the gateway's.
    let ring = if has_config { ring(&config)? } else { None };
    let keys = records.audit_keys().await?;
    let trust = Trust::of(&keys, ring.as_ref(), &args.trust);
    let by = Verify { trust, chain: args.chain, kept };
    let report = verify(&records, &by).await;
    records.close().await;
    let report = report?;
    tell(&report, &by.trust, out)?;
    ensure!(report.holds(), "the audit trail is not what was written");
    Ok(())
}

fn tell(report: &Report, trust: &Trust, out: &mut (dyn Write + Send)) -> std::io::Result<()> {
    for finding in &report.findings {
        writeln!(out, "fault: {finding}")?;
    }
    if report.unlisted > 0 {
        writeln!(out, "fault: and {} more", report.unlisted)?;
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    for head in &report.heads {
        writeln!(out, "end: {} {} {}", head.chain.escape_debug(), head.number, head.hash.escape_debug())?;
    }
    for kid in trust.kids() {
        writeln!(out, "key: {}", kid.escape_debug())?;
    }
    if trust.is_on_its_word() {
        let what = "nothing but the database speaks for the keys: name the configuration that has the seal keys with \
                    --config, or the keys themselves with --trust";
        writeln!(out, "note: {what}")?;
    }
    let (chains, entries, checkpoints) = (report.chains, report.entries, report.checkpoints);
    let verdict = if report.holds() { "ok" } else { "not ok" };
    writeln!(out, "{verdict}: {chains} chains, {entries} entries, {checkpoints} signed checkpoints")
}

/// The last entry of each chain in an export.
fn kept_in(path: &Path) -> anyhow::Result<Vec<Head>> {
    #[derive(Deserialize)]
    struct Line {
        chain: String,
        number: i64,
        hash: String,
    }
    let mut lines = BufReader::new(File::open(path)?);
    let mut last: HashMap<String, Head> = HashMap::new();
    for number in 1_usize.. {
        let mut text = Vec::new();
        if lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        let line: Line = serde_json::from_slice(&text).with_context(|| format!("line {number}"))?;
        let head = Head { chain: line.chain, number: line.number, hash: line.hash };
        if last.get(&head.chain).is_none_or(|known| known.number < head.number) {
            last.insert(head.chain.clone(), head);
        }
    }
    Ok(last.into_values().collect())
}

async fn export(
    args: ExportArgs,
    env: HashMap<String, String>,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let (_, records) = open(args.place, env).await?;
    let filter = AuditFilter {
        chain: args.chain,
        since: args.since,
        until: args.until,
        kind: args.kind.map(|kind| match kind {
            EntryKind::Action => AuditKind::Action,
            EntryKind::Call => AuditKind::Call,
        }),
        ..AuditFilter::default()
    };
    let mut after: Option<String> = None;
    loop {
        let part = records.audit(&filter, after.as_deref(), PART).await?;
        for entry in &part.items {
            serde_json::to_writer(&mut *out, entry)?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        match part.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    records.close().await;
    Ok(())
}
