//! OAuth clients.

use chrono::TimeDelta;
use drawbridge_auth::records::{OAuthClient, Page, PageRequest, SecretHash, Time};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, query};

use crate::list::List;
use crate::row::{Columns, hex, json, may_exist, micros};

const COLUMNS: usize = 5;
macro_rules! columns {
    () => {
        "id, metadata, created_at, last_used_at, disabled_at"
    };
}

/// How late the last use of a client may be noted.
const LATE: TimeDelta = TimeDelta::hours(1);

/// How often a client is looked for that somebody else has just added, or just removed.
const TRIES: usize = 3;

fn read(row: &AnyRow) -> sqlx::Result<OAuthClient> {
    let mut columns = Columns::of(row);
    Ok(OAuthClient {
        id: columns.text()?,
        metadata: columns.json()?,
        created_at: columns.time()?,
        last_used_at: columns.maybe_time()?,
        disabled_at: columns.maybe_time()?,
    })
}

fn one(rows: &[AnyRow]) -> sqlx::Result<Option<OAuthClient>> {
    rows.first().map(read).transpose()
}

pub(crate) async fn add(
    connection: &mut AnyConnection,
    client: &OAuthClient,
    digest: &[u8; 32],
    secret: Option<&SecretHash>,
) -> sqlx::Result<OAuthClient> {
    for _ in 0..TRIES {
        // The condition of the index is there for both: what has a secret is not in it, and never in conflict.
        let added = query(concat!(
            "insert into oauth_clients (digest, secret_hash, ",
            columns!(),
            ") values ($1, $2, $3, $4, $5, $6, $7) on conflict (digest) where secret_hash is null do nothing returning ",
            columns!()
        ));
        let added = added.bind(hex(digest)).bind(secret.map(|hash| hex(&hash.0)));
        let added = added.bind(&client.id).bind(json(&client.metadata)?).bind(micros(client.created_at));
        let added = added.bind(client.last_used_at.map(micros)).bind(client.disabled_at.map(micros));
        if let Some(added) = one(&added.fetch_all(&mut *connection).await?)? {
            return Ok(added);
        }
        let found =
            concat!("select ", columns!(), " from oauth_clients where digest = $1 and secret_hash is null");
        if let Some(found) = one(&query(found).bind(hex(digest)).fetch_all(&mut *connection).await?)? {
            return Ok(found);
        }
    }
    Err(sqlx::Error::Decode("the client comes and goes".into()))
}

pub(crate) async fn find(
    connection: &mut AnyConnection,
    id: &str,
) -> sqlx::Result<Option<(OAuthClient, Option<SecretHash>)>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let found = query(concat!("select ", columns!(), ", secret_hash from oauth_clients where id = $1"));
    let rows = found.bind(id).fetch_all(connection).await?;
    rows.first().map(|row| Ok((read(row)?, Columns::skip(row, COLUMNS).maybe_hash()?))).transpose()
}

pub(crate) async fn page(
    connection: &mut AnyConnection,
    page: &PageRequest,
) -> sqlx::Result<Page<OAuthClient>> {
    List::of(columns!(), "oauth_clients").page(connection, page, read, |client| &client.id).await
}

pub(crate) async fn count_unused(connection: &mut AnyConnection) -> sqlx::Result<u64> {
    let rows =
        query("select count(*) from oauth_clients where last_used_at is null").fetch_all(connection).await?;
    let count = rows.first().map(|row| Columns::of(row).number()).transpose()?;
    Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
}

pub(crate) async fn forget_unused(connection: &mut AnyConnection, made: Time) -> sqlx::Result<u64> {
    let forget = query(
        "delete from oauth_clients where created_at < $1 and last_used_at is null \
         and not exists (select 1 from grants where grants.client_id = oauth_clients.id)",
    );
    Ok(forget.bind(micros(made)).execute(connection).await?.rows_affected())
}

pub(crate) async fn touch(connection: &mut AnyConnection, id: &str, now: Time) -> sqlx::Result<()> {
    if !may_exist(id) {
        return Ok(());
    }
    let touch = query(
        "update oauth_clients set last_used_at = $2 where id = $1 and (last_used_at is null or last_used_at < $3)",
    );
    touch.bind(id).bind(micros(now)).bind(micros(now - LATE)).execute(connection).await.map(drop)
}

pub(crate) async fn set_disabled(
    connection: &mut AnyConnection,
    id: &str,
    disabled: bool,
    now: Time,
) -> sqlx::Result<Option<OAuthClient>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let set = if disabled {
        let set = concat!(
            "update oauth_clients set disabled_at = coalesce(disabled_at, $2) where id = $1 returning ",
            columns!()
        );
        query(set).bind(id).bind(micros(now))
    } else {
        query(concat!("update oauth_clients set disabled_at = null where id = $1 returning ", columns!()))
            .bind(id)
    };
    one(&set.fetch_all(connection).await?)
}

pub(crate) async fn remove(connection: &mut AnyConnection, id: &str) -> sqlx::Result<bool> {
    if !may_exist(id) {
        return Ok(false);
    }
    let remove = query("delete from oauth_clients where id = $1").bind(id);
    Ok(remove.execute(connection).await?.rows_affected() > 0)
}
