//! What was revoked.

use drawbridge_auth::records::{Revocation, Time};
use drawbridge_auth::revoking::RevocationKey;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, query};

use crate::row::{Columns, hex, micros};

fn read(row: &AnyRow) -> sqlx::Result<Revocation> {
    let mut columns = Columns::of(row);
    Ok(Revocation { key: RevocationKey(columns.bytes()?), until: columns.time()? })
}

/// In a transaction. In the order of keys: who locks rows in one order never waits in a circle.
pub(crate) async fn add(
    connection: &mut AnyConnection,
    revocations: &[Revocation],
    now: Time,
) -> sqlx::Result<()> {
    let mut sorted: Vec<&Revocation> = revocations.iter().collect();
    sorted.sort_by_key(|revocation| revocation.key);
    for Revocation { key, until } in sorted {
        // Entered anew, so that who asks for what came since learns of the later end.
        let add = query(
            "insert into revocations (revoked, ends_at, entered_at) values ($1, $2, $3) \
             on conflict (revoked) do update set \
             ends_at = case when excluded.ends_at > revocations.ends_at \
             then excluded.ends_at else revocations.ends_at end, \
             entered_at = case when excluded.entered_at > revocations.entered_at \
             then excluded.entered_at else revocations.entered_at end",
        );
        add.bind(hex(&key.0)).bind(micros(*until)).bind(micros(now)).execute(&mut *connection).await?;
    }
    Ok(())
}

pub(crate) async fn since(
    connection: &mut AnyConnection,
    since: Option<Time>,
    now: Time,
) -> sqlx::Result<Vec<Revocation>> {
    let found = query(
        "select revoked, ends_at from revocations where ends_at > $1 and entered_at >= $2 \
         order by entered_at, revoked",
    );
    let found = found.bind(micros(now)).bind(since.map_or(i64::MIN, micros));
    found.fetch_all(connection).await?.iter().map(read).collect()
}
