//! Refresh tokens. Each is used once and has one successor; the tokens of a grant are a chain.
//!
//! ```text
//!             presented                  again, within the grace
//!  live ───────────────────▶ consumed ──────────────────────────▶ the same successor
//!                             │    ▲
//!        again, later, and its│    │its successor goes, a new one takes its place
//!        successor is in use  │    └── again, later, but nobody ever used its successor: the answer was lost
//!                             ▼
//!                     the grant is revoked
//! ```
//!
//! All of it happens while the grant's row is locked, so that of many who present one token at once one rotates it and
//! the others get what that one got.

use drawbridge_auth::records::{Grant, NewRefresh, Presented, Refreshed, SecretHash, Time, User};
use sqlx::{AnyConnection, query};

use crate::row::{Columns, hex, may_exist, micros, unhex};
use crate::{grants, users};

/// Why a grant is revoked when a used token comes back.
const REUSE: &str = "refresh_reuse";

/// A refresh token as it is kept.
struct Kept {
    id: String,
    expires_at: Time,
    consumed: Option<Consumed>,
}

/// What came of the use of a token.
struct Consumed {
    at: Time,
    successor: String,
    replay: Vec<u8>,
}

/// Keeps a token.
pub(crate) async fn add(
    connection: &mut AnyConnection,
    grant: &str,
    parent: Option<&str>,
    new: &NewRefresh,
) -> sqlx::Result<()> {
    query("insert into refresh_tokens (id, grant_id, hash, parent, expires_at) values ($1, $2, $3, $4, $5)")
        .bind(&new.id)
        .bind(grant)
        .bind(hex(&new.hash.0))
        .bind(parent)
        .bind(micros(new.expires_at))
        .execute(connection)
        .await
        .map(drop)
}

/// In a transaction.
pub(crate) async fn present(
    connection: &mut AnyConnection,
    presented: &Presented<'_>,
) -> sqlx::Result<Refreshed> {
    let Some(grant) = grant_id(connection, &presented.hash).await? else { return Ok(Refreshed::Dead) };
    let Some(grant) = grants::lock(connection, &grant).await? else { return Ok(Refreshed::Dead) };
    // Only now is it sure that nobody is just using it.
    let Some(kept) = find(connection, &presented.hash).await? else { return Ok(Refreshed::Dead) };
    let now = presented.now;
    let good = |user: &User| user.disabled_at.is_none();
    let Some(user) = users::find(connection, &grant.user).await?.filter(good) else {
        return Ok(Refreshed::Dead);
    };
    if grant.revoked_at.is_some() || grant.expires_at <= now || kept.expires_at <= now {
        return Ok(Refreshed::Dead);
    }
    if grant.client != presented.client {
        return Ok(Refreshed::OtherClient(Box::new(grant)));
    }
    let Some(consumed) = kept.consumed else {
        return rotate(connection, grant, user, &kept.id, presented).await;
    };
    // A clock that is behind makes this negative, and the use a recent one.
    if now - consumed.at <= presented.grace {
        let Consumed { successor, replay, .. } = consumed;
        return Ok(Refreshed::Again { grant: Box::new((grant, user)), id: successor, replay });
    }
    if is_unused(connection, &consumed.successor).await? {
        query("delete from refresh_tokens where id = $1")
            .bind(&consumed.successor)
            .execute(&mut *connection)
            .await?;
        return rotate(connection, grant, user, &kept.id, presented).await;
    }
    grants::end(connection, &grant.id, REUSE, now).await?;
    let revoked = grants::find(connection, &grant.id).await?.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Refreshed::Reused(Box::new(revoked)))
}

/// Lets the successor take the place of the token with this id.
async fn rotate(
    connection: &mut AnyConnection,
    grant: Grant,
    user: User,
    id: &str,
    presented: &Presented<'_>,
) -> sqlx::Result<Refreshed> {
    add(connection, &grant.id, Some(id), &presented.successor).await?;
    query("update refresh_tokens set consumed_at = $2, successor = $3, replay = $4 where id = $1")
        .bind(id)
        .bind(micros(presented.now))
        .bind(&presented.successor.id)
        .bind(hex(&presented.replay))
        .execute(&mut *connection)
        .await?;
    grants::touch(connection, &grant.id, presented.now).await?;
    let grant = grants::find(connection, &grant.id).await?.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Refreshed::Rotated(Box::new((grant, user))))
}

async fn grant_id(connection: &mut AnyConnection, hash: &SecretHash) -> sqlx::Result<Option<String>> {
    let found = query("select grant_id from refresh_tokens where hash = $1").bind(hex(&hash.0));
    let rows = found.fetch_all(connection).await?;
    rows.first().map(|row| Columns::of(row).text()).transpose()
}

async fn find(connection: &mut AnyConnection, hash: &SecretHash) -> sqlx::Result<Option<Kept>> {
    let found =
        query("select id, expires_at, consumed_at, successor, replay from refresh_tokens where hash = $1");
    let rows = found.bind(hex(&hash.0)).fetch_all(connection).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let mut columns = Columns::of(row);
    let (id, expires_at) = (columns.text()?, columns.time()?);
    let consumed = match columns.maybe_time()? {
        Some(at) => Some(Consumed { at, successor: columns.text()?, replay: unhex(&columns.text()?)? }),
        None => None,
    };
    Ok(Some(Kept { id, expires_at, consumed }))
}

/// Whether nobody ever used a token, nor an access token that came with it. One that is gone may have been used.
async fn is_unused(connection: &mut AnyConnection, id: &str) -> sqlx::Result<bool> {
    let found =
        query("select id from refresh_tokens where id = $1 and consumed_at is null and seen_at is null");
    Ok(!found.bind(id).fetch_all(connection).await?.is_empty())
}

pub(crate) async fn seen(connection: &mut AnyConnection, id: &str, now: Time) -> sqlx::Result<()> {
    if !may_exist(id) {
        return Ok(());
    }
    let seen = query("update refresh_tokens set seen_at = $2 where id = $1 and seen_at is null");
    seen.bind(id).bind(micros(now)).execute(connection).await.map(drop)
}
