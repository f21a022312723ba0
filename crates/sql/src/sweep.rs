//! What can be forgotten.

use chrono::TimeDelta;
use drawbridge_auth::records::{Result, Time};
use sqlx::query;

use crate::pools::Pools;
use crate::row::micros;

/// For how long refresh tokens and grants are kept after their end: for people who ask what happened.
const KEPT: TimeDelta = TimeDelta::days(30);

/// How many rows go at once, so that nobody waits long for them. The statements say so as well.
const BATCH: u64 = 500;

/// Each deletes a batch of what ended before `$1`.
const REVOCATIONS: &str = "delete from revocations where revoked in (select revoked from revocations where ends_at <= $1 limit 500)";
const REFRESH_TOKENS: &str =
    "delete from refresh_tokens where id in (select id from refresh_tokens where expires_at < $1 limit 500)";
const REFRESH_TOKENS_OF_GRANTS: &str = "delete from refresh_tokens where id in (select r.id from refresh_tokens r \
     join grants g on g.id = r.grant_id where g.expires_at < $1 or g.revoked_at < $1 limit 500)";
const GRANTS: &str = "delete from grants where id in (select id from grants where expires_at < $1 or revoked_at < $1 limit 500)";

pub(crate) async fn sweep(pools: &Pools, now: Time) -> Result<u64> {
    let mut gone = all(pools, REVOCATIONS, now).await?;
    for statement in [REFRESH_TOKENS, REFRESH_TOKENS_OF_GRANTS, GRANTS] {
        gone += all(pools, statement, now - KEPT).await?;
    }
    Ok(gone)
}

async fn all(pools: &Pools, statement: &'static str, before: Time) -> Result<u64> {
    let mut gone = 0;
    loop {
        let batch = pools
            .write(async |connection| {
                Ok(query(statement).bind(micros(before)).execute(connection).await?.rows_affected())
            })
            .await?;
        gone += batch;
        if batch < BATCH {
            return Ok(gone);
        }
    }
}
