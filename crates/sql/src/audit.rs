//! The audit trail.

use drawbridge_auth::records::{AuditEntry, Page};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, query};

use crate::error::garbled;
use crate::list::{cut, limit};
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

/// In a transaction.
pub(crate) async fn append(connection: &mut AnyConnection, entries: &[AuditEntry]) -> sqlx::Result<()> {
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

pub(crate) async fn page(
    connection: &mut AnyConnection,
    after: Option<&str>,
    asked: u32,
) -> sqlx::Result<Page<AuditEntry>> {
    let most = limit(asked);
    let enough = i64::try_from(most + 1).unwrap_or(i64::MAX);
    let begin = match after {
        Some(after) => begin(connection, after).await?,
        None => None,
    };
    let rows = match begin {
        Some((at, chain, number)) => {
            let page = query(concat!(
                "select ",
                columns!(),
                " from audit where (at, chain, number) > ($1, $2, $3) order by at, chain, number limit $4"
            ));
            page.bind(at).bind(chain).bind(number).bind(enough).fetch_all(connection).await?
        }
        None => {
            let page =
                query(concat!("select ", columns!(), " from audit order by at, chain, number limit $1"));
            page.bind(enough).fetch_all(connection).await?
        }
    };
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
