//! Grants, and the refresh token that each begins with.

use drawbridge_auth::records::{
    Grant, GrantFilter, NewRefresh, Page, PageRequest, Redeemed, SecretHash, Time,
};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, query};

use crate::list::List;
use crate::refresh;
use crate::row::{Columns, hex, json, may_exist, micros};

/// The columns of a grant, as [`read`] takes them, each after a prefix.
macro_rules! columns {
    ($of:literal) => {
        concat!(
            $of,
            "id, ",
            $of,
            "user_id, ",
            $of,
            "client_id, ",
            $of,
            "client_name, ",
            $of,
            "resource, ",
            $of,
            "scopes, ",
            $of,
            "auth_time, ",
            $of,
            "created_at, ",
            $of,
            "last_used_at, ",
            $of,
            "expires_at, ",
            $of,
            "revoked_at, ",
            $of,
            "revoke_reason"
        )
    };
}

fn read(row: &AnyRow) -> sqlx::Result<Grant> {
    let mut columns = Columns::of(row);
    Ok(Grant {
        id: columns.text()?,
        user: columns.text()?,
        client: columns.text()?,
        client_name: columns.maybe_text()?,
        resource: columns.text()?,
        scopes: columns.set()?,
        auth_time: columns.time()?,
        created_at: columns.time()?,
        last_used_at: columns.time()?,
        expires_at: columns.time()?,
        revoked_at: columns.maybe_time()?,
        revoke_reason: columns.maybe_text()?,
    })
}

fn one(rows: &[AnyRow]) -> sqlx::Result<Option<Grant>> {
    rows.first().map(read).transpose()
}

/// In a transaction.
pub(crate) async fn redeem(
    connection: &mut AnyConnection,
    grant: &Grant,
    refresh: Option<&NewRefresh>,
) -> sqlx::Result<Redeemed> {
    // Waits for a transaction that is just inserting the same.
    let added = query(concat!(
        "insert into grants (",
        columns!(""),
        ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) on conflict (id) do nothing"
    ));
    let added = added
        .bind(&grant.id)
        .bind(&grant.user)
        .bind(&grant.client)
        .bind(&grant.client_name)
        .bind(&grant.resource)
        .bind(json(&grant.scopes)?)
        .bind(micros(grant.auth_time))
        .bind(micros(grant.created_at))
        .bind(micros(grant.last_used_at))
        .bind(micros(grant.expires_at))
        .bind(grant.revoked_at.map(micros))
        .bind(&grant.revoke_reason);
    if added.execute(&mut *connection).await?.rows_affected() == 0 {
        let before = find(connection, &grant.id).await?.ok_or(sqlx::Error::RowNotFound)?;
        return Ok(Redeemed::Before(Box::new(before)));
    }
    if let Some(new) = refresh {
        refresh::add(connection, &grant.id, None, new).await?;
    }
    Ok(Redeemed::Granted)
}

pub(crate) async fn find(connection: &mut AnyConnection, id: &str) -> sqlx::Result<Option<Grant>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let found = query(concat!("select ", columns!(""), " from grants where id = $1"));
    one(&found.bind(id).fetch_all(connection).await?)
}

pub(crate) async fn of_refresh(
    connection: &mut AnyConnection,
    hash: &SecretHash,
) -> sqlx::Result<Option<Grant>> {
    let found = query(concat!(
        "select ",
        columns!("g."),
        " from refresh_tokens r join grants g on g.id = r.grant_id where r.hash = $1"
    ));
    one(&found.bind(hex(&hash.0)).fetch_all(connection).await?)
}

pub(crate) async fn page(
    connection: &mut AnyConnection,
    filter: &GrantFilter,
    page: &PageRequest,
    now: Time,
) -> sqlx::Result<Page<Grant>> {
    let mut list = List::of(columns!(""), "grants");
    list.only_text("user_id", filter.user.as_deref())?;
    list.only_text("client_id", filter.client.as_deref())?;
    if !filter.ended {
        let now = list.bind(micros(now))?;
        list.only(format!("revoked_at is null and expires_at > {now}"));
    }
    list.page(connection, page, read, |grant| &grant.id).await
}

/// In a transaction.
pub(crate) async fn revoke(
    connection: &mut AnyConnection,
    id: &str,
    reason: &str,
    now: Time,
) -> sqlx::Result<Option<Grant>> {
    let Some(before) = lock(connection, id).await? else { return Ok(None) };
    if before.revoked_at.is_none() {
        end(connection, id, reason, now).await?;
    }
    Ok(Some(before))
}

/// The grant, which nobody else changes until the transaction ends: nor do others use its refresh tokens.
pub(crate) async fn lock(connection: &mut AnyConnection, id: &str) -> sqlx::Result<Option<Grant>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let lock = query(concat!(
        "update grants set last_used_at = last_used_at where id = $1 returning ",
        columns!("")
    ));
    one(&lock.bind(id).fetch_all(connection).await?)
}

/// Revokes a grant.
pub(crate) async fn end(
    connection: &mut AnyConnection,
    id: &str,
    reason: &str,
    now: Time,
) -> sqlx::Result<()> {
    query("update grants set revoked_at = $2, revoke_reason = $3 where id = $1")
        .bind(id)
        .bind(micros(now))
        .bind(reason)
        .execute(connection)
        .await
        .map(drop)
}

/// Notes that a grant was used. Never goes back in time.
pub(crate) async fn touch(connection: &mut AnyConnection, id: &str, now: Time) -> sqlx::Result<()> {
    query("update grants set last_used_at = $2 where id = $1 and last_used_at < $2")
        .bind(id)
        .bind(micros(now))
        .execute(connection)
        .await
        .map(drop)
}
