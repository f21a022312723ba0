//! Refresh tokens. Each is used once and has one successor; the tokens of a grant are a chain.
//!
//! ```text
//!             presented                  again, within the grace
//!  live ───────────────────▶ consumed ──────────────────────────▶ the same successor
//!                             │    ▲
//!        again, later, and its│    │its successor is replaced by a new one
//!        successor is in use  │    └── again, later, but nobody ever used its successor: the answer was lost
//!                             ▼
//!                     the grant is revoked ◀── replaced: it is presented, so its answer was not lost
//! ```
//!
//! A client whose answer was lost and a thief with an old token look the same, until what was replaced comes too: then
//! there are two who have the grant ([decision 6](../../../docs/decisions/0006-refresh-answers-that-were-lost.md)).
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
    state: State,
}

/// What has become of a token.
enum State {
    Live,
    Consumed(Consumed),
    /// Nobody had used it when the one before it came back, and another one was given out in its place.
    Replaced,
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
    let consumed = match kept.state {
        State::Live => return rotate(connection, grant, user, &kept.id, presented).await,
        State::Consumed(consumed) => consumed,
        State::Replaced => return reused(connection, &grant, now).await,
    };
    // A clock that is behind makes this negative, and the use a recent one.
    if now - consumed.at <= presented.grace {
        let Consumed { successor, replay, .. } = consumed;
        return Ok(Refreshed::Again { grant: Box::new((grant, user)), id: successor, replay });
    }
    if replace_unused(connection, &consumed.successor, now).await? {
        return rotate(connection, grant, user, &kept.id, presented).await;
    }
    reused(connection, &grant, now).await
}

/// Somebody has a copy: the grant ends.
async fn reused(connection: &mut AnyConnection, grant: &Grant, now: Time) -> sqlx::Result<Refreshed> {
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
    let state = match (columns.maybe_time()?, columns.maybe_text()?) {
        (None, _) => State::Live,
        (Some(_), None) => State::Replaced,
        (Some(at), Some(successor)) => {
            State::Consumed(Consumed { at, successor, replay: unhex(&columns.text()?)? })
        }
    };
    Ok(Some(Kept { id, expires_at, state }))
}

/// Marks a token as replaced if nobody ever used it, nor an access token that came with it; returns whether that is so.
/// One that is gone may have been used.
async fn replace_unused(connection: &mut AnyConnection, id: &str, now: Time) -> sqlx::Result<bool> {
    let replace = query(
        "update refresh_tokens set consumed_at = $2 where id = $1 and consumed_at is null and seen_at is null",
    );
    Ok(replace.bind(id).bind(micros(now)).execute(connection).await?.rows_affected() > 0)
}

/// Returns the grant of a token that was replaced, the first time.
pub(crate) async fn seen(
    connection: &mut AnyConnection,
    id: &str,
    now: Time,
) -> sqlx::Result<Option<String>> {
    if !may_exist(id) {
        return Ok(None);
    }
    let seen = query(
        "update refresh_tokens set seen_at = $2 where id = $1 and seen_at is null \
         returning grant_id, consumed_at, successor",
    );
    let rows = seen.bind(id).bind(micros(now)).fetch_all(connection).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let mut columns = Columns::of(row);
    let (grant, consumed_at, successor) = (columns.text()?, columns.maybe_time()?, columns.maybe_text()?);
    Ok((consumed_at.is_some() && successor.is_none()).then_some(grant))
}
