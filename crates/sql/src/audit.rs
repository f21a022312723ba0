//! The audit trail.

use async_trait::async_trait;
use drawbridge_auth::audit::{
    AuditEntry, AuditFilter, AuditKey, AuditKind, AuditStore, CALL, Checkpoint, CheckpointKind, Head,
};
use drawbridge_auth::records::{Page, Result, Time};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, query};

use crate::SqlRecords;
use crate::error::garbled;
use crate::list::{List, cut, limit};
use crate::row::{Columns, json, may_exist, micros};

macro_rules! columns {
    () => {
        "chain, number, at, actor, action, target, outcome, detail, hash"
    };
}
const COLUMNS: usize = 9;

/// How many entries one statement appends.
const BATCH: usize = 100;

fn read(row: &AnyRow) -> sqlx::Result<AuditEntry> {
    let mut columns = Columns::of(row);
    Ok(AuditEntry {
        chain: columns.text()?,
        number: columns.number()?,
        at: columns.time()?,
        actor: columns.text()?,
        action: columns.text()?,
        target: columns.text()?,
        outcome: columns.text()?,
        detail: columns.json()?,
        hash: columns.text()?,
    })
}

macro_rules! checkpoint_columns {
    () => {
        "chain, number, kind, at, hash, statement"
    };
}

/// As the index of actions says it.
const IS_ACTION: &str = "substr(action, 1, 4) <> 'mcp:'";

/// A gateway makes one a year.
const MOST_KEYS: usize = 1000;

/// How many rows go at once, so that nobody waits long for them.
const CUT: i64 = 500;

fn read_head(row: &AnyRow) -> sqlx::Result<Head> {
    let mut columns = Columns::of(row);
    Ok(Head { chain: columns.text()?, number: columns.number()?, hash: columns.text()? })
}

fn read_checkpoint(row: &AnyRow) -> sqlx::Result<Checkpoint> {
    let mut columns = Columns::of(row);
    let (chain, number) = (columns.text()?, columns.number()?);
    let kind = CheckpointKind::parse(&columns.text()?).ok_or_else(|| garbled("the kind of a checkpoint"))?;
    let at = columns.time()?;
    let head = Head { chain, number, hash: columns.text()? };
    Ok(Checkpoint { head, kind, at, statement: columns.text()? })
}

fn read_key(row: &AnyRow) -> sqlx::Result<AuditKey> {
    let mut columns = Columns::of(row);
    Ok(AuditKey {
        kid: columns.text()?,
        private: columns.text()?,
        public: columns.json()?,
        created_at: columns.time()?,
    })
}

/// In a transaction.
async fn append(connection: &mut AnyConnection, entries: &[AuditEntry]) -> sqlx::Result<()> {
    for batch in entries.chunks(BATCH) {
        let row = |number: usize| {
            let names = (1..=COLUMNS).map(|column| format!("${}", number * COLUMNS + column));
            format!("({})", names.collect::<Vec<_>>().join(", "))
        };
        let rows = (0..batch.len()).map(row).collect::<Vec<_>>().join(", ");
        let sql = format!(concat!("insert into audit (", columns!(), ") values {}"), rows);
        // Every length is another statement: none is worth keeping prepared but the full one.
        let mut append = query(AssertSqlSafe(sql)).persistent(batch.len() == BATCH || batch.len() == 1);
        for entry in batch {
            append = append
                .bind(&entry.chain)
                .bind(entry.number)
                .bind(micros(entry.at))
                .bind(&entry.actor)
                .bind(&entry.action)
                .bind(&entry.target)
                .bind(&entry.outcome)
                .bind(json(&entry.detail)?)
                .bind(&entry.hash);
        }
        append.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn add_checkpoint(connection: &mut AnyConnection, checkpoint: &Checkpoint) -> sqlx::Result<()> {
    // Two who sweep at once cut at the same place.
    let add = query(concat!(
        "insert into audit_checkpoints (",
        checkpoint_columns!(),
        ") values ($1, $2, $3, $4, $5, $6) on conflict do nothing"
    ));
    add.bind(&checkpoint.head.chain)
        .bind(checkpoint.head.number)
        .bind(checkpoint.kind.as_str())
        .bind(micros(checkpoint.at))
        .bind(&checkpoint.head.hash)
        .bind(&checkpoint.statement)
        .execute(connection)
        .await
        .map(drop)
}

async fn page(
    connection: &mut AnyConnection,
    filter: &AuditFilter,
    after: Option<&str>,
    asked: u32,
) -> sqlx::Result<Page<AuditEntry>> {
    let most = limit(asked);
    let mut list = List::of(columns!(), "audit");
    list.only_text("chain", filter.chain.as_deref())?;
    list.only_text("actor", filter.actor.as_deref())?;
    list.only_text("action", filter.action.as_deref())?;
    list.only_text("target", filter.target.as_deref())?;
    list.only_text("outcome", filter.outcome.as_deref())?;
    if let Some(since) = filter.since {
        let since = list.bind(micros(since))?;
        list.only(format!("at >= {since}"));
    }
    if let Some(until) = filter.until {
        let until = list.bind(micros(until))?;
        list.only(format!("at < {until}"));
    }
    match filter.kind {
        Some(AuditKind::Action) => list.only(IS_ACTION.to_owned()),
        Some(AuditKind::Call) => list.only(format!("substr(action, 1, {}) = '{CALL}'", CALL.len())),
        None => {}
    }
    if let Some(after) = after
        && let Some((at, chain, number)) = begin(connection, after).await?
    {
        let (at, chain, number) = (list.bind(at)?, list.bind(chain)?, list.bind(number)?);
        list.only(format!("(at, chain, number) > ({at}, {chain}, {number})"));
    }
    let rows = list.fetch(connection, "at, chain, number", most + 1).await?;
    let entries = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()?;
    Ok(cut(entries, most, |last| format!("{}:{}", last.chain, last.number)))
}

/// Where an entry is in the order. One that is no longer there was among the oldest, so what is left comes after it.
async fn begin(connection: &mut AnyConnection, after: &str) -> sqlx::Result<Option<(i64, String, i64)>> {
    let parts = after.rsplit_once(':').and_then(|(chain, number)| Some((chain, number.parse::<i64>().ok()?)));
    let (chain, number) = parts.filter(|(chain, _)| may_exist(chain)).ok_or_else(|| garbled("the cursor"))?;
    let found = query("select at from audit where chain = $1 and number = $2").bind(chain).bind(number);
    let rows = found.fetch_all(connection).await?;
    let at = rows.first().map(|row| Columns::of(row).number()).transpose()?;
    Ok(at.map(|at| (at, chain.to_owned(), number)))
}

/// Calls are far too many to look for chains among them: a chain that grows has a checkpoint or an action now and then.
async fn heads(connection: &mut AnyConnection, since: Time) -> sqlx::Result<Vec<Head>> {
    let sql = format!(
        "select a.chain, a.number, a.hash from audit a join \
         (select c.chain, (select max(number) from audit where chain = c.chain) as number from \
         (select chain from audit_checkpoints where at >= $1 union \
         select chain from audit where at >= $1 and {IS_ACTION}) c) m \
         on m.chain = a.chain and m.number = a.number"
    );
    let heads = query(AssertSqlSafe(sql)).bind(micros(since)).fetch_all(connection).await?;
    heads.iter().map(read_head).collect()
}

async fn next_chain(connection: &mut AnyConnection, after: &str) -> sqlx::Result<Option<String>> {
    let mut next: Option<String> = None;
    for first in [
        "select chain from audit where chain > $1 order by chain limit 1",
        "select chain from audit_checkpoints where chain > $1 order by chain limit 1",
    ] {
        let rows = query(first).bind(after).fetch_all(&mut *connection).await?;
        let chain = rows.first().map(|row| Columns::of(row).text()).transpose()?;
        next = match (next, chain) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    Ok(next)
}

async fn cut_chain(connection: &mut AnyConnection, chain: &str, number: i64) -> sqlx::Result<u64> {
    for old in [
        "delete from audit where chain = $1 and number in \
         (select number from audit where chain = $1 and number <= $2 order by number limit $3)",
        "delete from audit_checkpoints where chain = $1 and number in \
         (select number from audit_checkpoints where chain = $1 and number < $2 order by number limit $3)",
    ] {
        let gone = query(old).bind(chain).bind(number).bind(CUT).execute(&mut *connection).await?;
        if gone.rows_affected() > 0 {
            return Ok(gone.rows_affected());
        }
    }
    Ok(0)
}

#[async_trait]
impl AuditStore for SqlRecords {
    async fn append_audit(&self, entries: &[AuditEntry], checkpoint: Option<&Checkpoint>) -> Result<()> {
        self.pools()
            .transact(async |c| {
                append(c, entries).await?;
                match checkpoint {
                    Some(checkpoint) => add_checkpoint(c, checkpoint).await,
                    None => Ok(()),
                }
            })
            .await
    }

    async fn audit(&self, filter: &AuditFilter, after: Option<&str>, limit: u32) -> Result<Page<AuditEntry>> {
        self.pools().read(async |c| page(c, filter, after, limit).await).await
    }

    async fn audit_chain(&self, chain: &str, after: i64, asked: u32) -> Result<Vec<AuditEntry>> {
        self.pools()
            .read(async |c| {
                let mut list = List::of(columns!(), "audit");
                list.only_text("chain", Some(chain))?;
                let after = list.bind(after)?;
                list.only(format!("number > {after}"));
                list.fetch(c, "number", limit(asked)).await?.iter().map(read).collect()
            })
            .await
    }

    async fn audit_head(&self, chain: &str) -> Result<Option<Head>> {
        self.pools()
            .read(async |c| {
                let mut list = List::of("chain, number, hash", "audit");
                list.only_text("chain", Some(chain))?;
                list.fetch(c, "number desc", 1).await?.first().map(read_head).transpose()
            })
            .await
    }

    async fn audit_heads(&self, since: Time) -> Result<Vec<Head>> {
        self.pools().read(async |c| heads(c, since).await).await
    }

    async fn next_audit_chain(&self, after: &str) -> Result<Option<String>> {
        self.pools().read(async |c| next_chain(c, after).await).await
    }

    async fn audit_checkpoints(&self, chain: &str, after: i64, asked: u32) -> Result<Vec<Checkpoint>> {
        self.pools()
            .read(async |c| {
                let mut list = List::of(checkpoint_columns!(), "audit_checkpoints");
                list.only_text("chain", Some(chain))?;
                let after = list.bind(after)?;
                list.only(format!("number > {after}"));
                let rows = list.fetch(c, "number, kind", limit(asked)).await?;
                rows.iter().map(read_checkpoint).collect()
            })
            .await
    }

    async fn audit_cut(&self, chain: &str) -> Result<Option<Checkpoint>> {
        self.pools()
            .read(async |c| {
                let mut list = List::of(checkpoint_columns!(), "audit_checkpoints");
                list.only_text("chain", Some(chain))?;
                list.only("kind = 'cut'".to_owned());
                list.fetch(c, "number desc", 1).await?.first().map(read_checkpoint).transpose()
            })
            .await
    }

    async fn newest_audit_checkpoints(&self, asked: u32) -> Result<Vec<Checkpoint>> {
        self.pools()
            .read(async |c| {
                let list = List::of(checkpoint_columns!(), "audit_checkpoints");
                let rows = list.fetch(c, "at desc", limit(asked)).await?;
                rows.iter().map(read_checkpoint).collect()
            })
            .await
    }

    async fn cut_audit(&self, chain: &str, number: i64) -> Result<u64> {
        self.pools().transact(async |c| cut_chain(c, chain, number).await).await
    }

    async fn audit_keys(&self) -> Result<Vec<AuditKey>> {
        self.pools()
            .read(async |c| {
                let list = List::of("kid, private_key, public_key, created_at", "audit_keys");
                list.fetch(c, "created_at, kid", MOST_KEYS).await?.iter().map(read_key).collect()
            })
            .await
    }

    async fn keep_audit_key(&self, key: &AuditKey) -> Result<()> {
        self.pools()
            .write(async |c| {
                let keep = query(
                    "insert into audit_keys (kid, private_key, public_key, created_at) values ($1, $2, $3, $4) \
                     on conflict (kid) do update set private_key = excluded.private_key",
                );
                keep.bind(&key.kid)
                    .bind(&key.private)
                    .bind(json(&key.public)?)
                    .bind(micros(key.created_at))
                    .execute(c)
                    .await
                    .map(drop)
            })
            .await
    }
}
